package io.weir.flink.state;

import io.weir.flink.keyed.RegisteredState;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.runtime.state.internal.InternalValueState;

import java.io.IOException;

/** {@code ValueState}: null is no row. */
public final class WeirValueState<K, N, V> extends AbstractValueRowState<K, N, V>
        implements InternalValueState<K, N, V> {

    public WeirValueState(
            StateContext<K> context,
            RegisteredState<N, V> state,
            StateDescriptor<?, V> descriptor) {
        super(context, state, descriptor);
    }

    @Override
    public V value() throws IOException {
        V value = read();
        return value == null ? defaultValue() : value;
    }

    @Override
    public void update(V value) throws IOException {
        if (value == null) {
            clear();
        } else {
            write(value);
        }
    }
}
