package io.weir.flink.state;

import io.weir.flink.keyed.EncodedKeyContext;
import io.weir.flink.nativelib.Bytes;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;

/**
 * What the states of one backend share: the engine, the current key and the buffers that values
 * pass through. All of it belongs to the task thread.
 */
public final class StateContext<K> {

    private static final int KEPT_BYTES = 1 << 20;

    final Engine engine;
    final EncodedKeyContext<K> key;
    final TypeSerializer<K> keySerializer;
    final KeyGroupRange range;
    final Bytes value = new Bytes(256);
    final DataInputDeserializer input = new DataInputDeserializer();
    private DataOutputSerializer output = new DataOutputSerializer(256);

    public StateContext(
            Engine engine,
            EncodedKeyContext<K> key,
            TypeSerializer<K> keySerializer,
            KeyGroupRange range) {
        this.engine = engine;
        this.key = key;
        this.keySerializer = keySerializer;
        this.range = range;
    }

    /** An empty buffer to serialize a value to. */
    DataOutputSerializer output() {
        if (output.getSharedBuffer().length > KEPT_BYTES) {
            output = new DataOutputSerializer(256);
        } else {
            output.clear();
        }
        return output;
    }

    /** The value that the engine answered last. */
    DataInputDeserializer input() {
        input.setBuffer(value.array(), 0, value.length());
        return input;
    }
}
