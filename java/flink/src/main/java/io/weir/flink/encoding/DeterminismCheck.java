package io.weir.flink.encoding;

import io.weir.flink.errors.NonDeterministicSerializerException;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;

import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * Looks by samples whether a serializer gives equal values the same bytes: a value that was read
 * back has to be written as before, and a value that equals an earlier one as that one. It is no
 * proof: what it finds is wrong, what it does not find may be.
 */
final class DeterminismCheck<T> {

    /**
     * So many encodings are looked at one by one, then every one whose number is a power of two.
     */
    private static final int ALL_OF_THE_FIRST = 256;

    private static final int KEPT = 32;

    private final TypeSerializer<T> serializer;
    private final Map<T, byte[]> kept = new HashMap<>();
    private long seen;

    DeterminismCheck(TypeSerializer<T> serializer) {
        this.serializer = serializer;
    }

    /**
     * To be called with every encoding.
     *
     * @throws NonDeterministicSerializerException if the serializer was found to write equal values
     *     differently
     */
    void check(T value, DataOutputSerializer encoding) throws IOException {
        seen++;
        if (seen > ALL_OF_THE_FIRST && (seen & seen - 1) != 0) {
            return;
        }
        byte[] bytes = encoding.getCopyOfBuffer();
        T copy = serializer.deserialize(new DataInputDeserializer(bytes));
        DataOutputSerializer again = new DataOutputSerializer(Math.max(1, bytes.length));
        serializer.serialize(copy, again);
        byte[] before = kept.get(copy);
        if (!Arrays.equals(again.getCopyOfBuffer(), bytes)
                || before != null && !Arrays.equals(before, bytes)) {
            throw new NonDeterministicSerializerException(value, serializer);
        }
        if (before == null && kept.size() < KEPT) {
            kept.put(copy, bytes);
        }
    }
}
