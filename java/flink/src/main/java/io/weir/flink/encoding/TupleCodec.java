package io.weir.flink.encoding;

import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.typeutils.runtime.TupleSerializer;

import java.io.IOException;
import java.util.List;
import java.util.stream.Collectors;

/** A flat tuple: one column a field. */
final class TupleCodec<T extends Tuple> implements KeyCodec<T> {

    private final TupleSerializer<T> serializer;
    private final KeyCodec<Object>[] columns;

    @SuppressWarnings({"unchecked", "rawtypes"})
    TupleCodec(TupleSerializer<T> serializer, List<KeyCodec<?>> columns) {
        this.serializer = serializer;
        this.columns = columns.toArray(new KeyCodec[0]);
    }

    @Override
    public String id() {
        return List.of(columns).stream()
                .map(KeyCodec::id)
                .collect(Collectors.joining(",", "tuple(", ")"));
    }

    @Override
    public void write(T value, RowKey target) throws IOException {
        for (int i = 0; i < columns.length; i++) {
            columns[i].write(value.getField(i), target);
        }
    }

    @Override
    public T read(RowKeyReader source) throws IOException {
        Object[] fields = new Object[columns.length];
        for (int i = 0; i < columns.length; i++) {
            fields[i] = columns[i].read(source);
        }
        return serializer.createInstance(fields);
    }

    @Override
    public void skip(RowKeyReader source) {
        for (KeyCodec<Object> column : columns) {
            column.skip(source);
        }
    }
}
