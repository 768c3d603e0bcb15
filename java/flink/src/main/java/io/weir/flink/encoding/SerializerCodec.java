package io.weir.flink.encoding;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;

import java.io.IOException;

/** One Binary column with the bytes of a Flink serializer. */
final class SerializerCodec<T> implements KeyCodec<T> {

    private final TypeSerializer<T> serializer;
    private final DeterminismCheck<T> determinism;
    private final DataOutputSerializer output = new DataOutputSerializer(64);
    private final DataInputDeserializer input = new DataInputDeserializer();

    SerializerCodec(TypeSerializer<T> serializer) {
        this.serializer = serializer;
        this.determinism = new DeterminismCheck<>(serializer);
    }

    @Override
    public String id() {
        return "binary";
    }

    @Override
    public void write(T value, RowKey target) throws IOException {
        output.clear();
        serializer.serialize(value, output);
        determinism.check(value, output);
        target.writeVariable(output.getSharedBuffer(), 0, output.length());
    }

    @Override
    public T read(RowKeyReader source) throws IOException {
        int length = source.readVariable();
        input.setBuffer(source.variable(), 0, Math.max(length, 0));
        return serializer.deserialize(input);
    }

    @Override
    public void skip(RowKeyReader source) {
        source.readVariable();
    }
}
