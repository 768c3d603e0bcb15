package io.weir.flink.snapshot;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.errors.CorruptHandleException;
import io.weir.flink.errors.HandleFormatException;

import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;

class PayloadTest {

    private static byte[] written() throws IOException {
        DataOutputSerializer serializers = new DataOutputSerializer(64);
        new KeyedBackendSerializationProxy<>(LongSerializer.INSTANCE, List.of(), false)
                .write(serializers);
        return new Payload(
                        "file:///checkpoints/weir",
                        "job/op/0-of-2/attempt",
                        "v1",
                        17,
                        KeyGroupRange.of(0, 63),
                        128,
                        99,
                        "int64",
                        List.of(
                                new Payload.StateColumns("count", "void", ""),
                                new Payload.StateColumns("m", "int64", "utf8")),
                        serializers.getCopyOfBuffer())
                .write();
    }

    @Test
    void comesBackAsItWasWritten() throws IOException {
        Payload payload = Payload.read(written(), "h");
        assertThat(payload.root).isEqualTo("file:///checkpoints/weir");
        assertThat(payload.branch).isEqualTo("job/op/0-of-2/attempt");
        assertThat(payload.version).isEqualTo("v1");
        assertThat(payload.checkpoint).isEqualTo(17);
        assertThat(payload.range).isEqualTo(KeyGroupRange.of(0, 63));
        assertThat(payload.numberOfKeyGroups).isEqualTo(128);
        assertThat(payload.nextSequence).isEqualTo(99);
        assertThat(payload.keyCodec).isEqualTo("int64");
        assertThat(payload.columns("m").namespaceCodec).isEqualTo("int64");
        assertThat(payload.columns("m").userKeyCodec).isEqualTo("utf8");
        assertThat(payload.columns("timers")).isNull();
        assertThat(
                        payload.serializers(getClass().getClassLoader())
                                .getKeySerializerSnapshot()
                                .restoreSerializer())
                .isEqualTo(LongSerializer.INSTANCE);
    }

    @Test
    void everyTruncationNamesTheHandle() throws IOException {
        byte[] whole = written();
        for (int length = 0; length < whole.length; length++) {
            byte[] cut = Arrays.copyOf(whole, length);
            assertThatThrownBy(() -> Payload.read(cut, "the-handle"))
                    .isInstanceOf(CorruptHandleException.class)
                    .hasMessageContaining("the-handle");
        }
    }

    @Test
    void everyFlippedBitIsFound() throws IOException {
        byte[] whole = written();
        for (int bit = 0; bit < whole.length * 8; bit++) {
            byte[] damaged = whole.clone();
            damaged[bit / 8] ^= (byte) (1 << bit % 8);
            assertThatThrownBy(() -> Payload.read(damaged, "the-handle"))
                    .isInstanceOfAny(CorruptHandleException.class, HandleFormatException.class)
                    .hasMessageContaining("the-handle");
        }
    }

    @Test
    void anotherFormatIsRefusedByItsNumber() throws IOException {
        for (int format : new int[] {0, 1, 2, 4}) {
            byte[] other = written();
            other[5] = (byte) format;
            assertThatThrownBy(() -> Payload.read(other, "the-handle"))
                    .isInstanceOf(HandleFormatException.class)
                    .hasMessageContaining("the-handle")
                    .hasMessageContaining("has format version " + format)
                    .hasMessageContaining("reads version 3")
                    .hasMessageContaining("canonical savepoint");
        }
    }
}
