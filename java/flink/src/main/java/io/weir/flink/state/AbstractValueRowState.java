package io.weir.flink.state;

import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.nativelib.Bytes;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;

import java.io.IOException;

/** A state that is one row a key and namespace: the serializer's bytes. */
abstract class AbstractValueRowState<K, N, V> extends AbstractWeirState<K, N, V> {

    AbstractValueRowState(
            StateContext<K> context,
            RegisteredState<N, V> state,
            StateDescriptor<?, V> descriptor) {
        super(context, state, descriptor);
    }

    /** The value under the current key and namespace, or null. */
    final V read() throws IOException {
        return context.engine.get(row(), context.value)
                ? valueSerializer.deserialize(context.input())
                : null;
    }

    final void write(V value) throws IOException {
        DataOutputSerializer output = context.output();
        valueSerializer.serialize(value, output);
        context.engine.put(row(), output);
    }

    @Override
    final V rowValue(RowKeyReader suffix, DataInputDeserializer value) throws IOException {
        return valueSerializer.deserialize(value);
    }

    @Override
    final void replaceRow(RowKey row, int prefixLength, V oldValue, V newValue) throws IOException {
        DataOutputSerializer output = context.output();
        valueSerializer.serialize(newValue, output);
        context.engine.put(row, output);
    }

    @Override
    final boolean readRow(RowKey row, int prefixLength, Bytes target) throws IOException {
        return context.engine.get(row, target);
    }

    @Override
    final void removeRow(RowKey row, int prefixLength) throws IOException {
        context.engine.delete(row);
    }

    @Override
    public final void migrateRow(
            RowKey row,
            int prefixLength,
            DataInputDeserializer value,
            TtlAwareSerializer<V, ?> previous,
            TtlAwareSerializer<V, ?> current,
            TtlTimeProvider time)
            throws IOException {
        DataOutputSerializer output = context.output();
        migrate(value, output, previous, current, time);
        context.engine.put(row, output);
    }
}
