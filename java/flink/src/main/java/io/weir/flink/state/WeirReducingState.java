package io.weir.flink.state;

import io.weir.flink.keyed.RegisteredState;

import org.apache.flink.api.common.functions.ReduceFunction;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.runtime.state.internal.InternalReducingState;

/** {@code ReducingState}. */
public final class WeirReducingState<K, N, V> extends AbstractMergingRowState<K, N, V, V, V>
        implements InternalReducingState<K, N, V> {

    private ReduceFunction<V> function;

    public WeirReducingState(
            StateContext<K> context,
            RegisteredState<N, V> state,
            StateDescriptor<?, V> descriptor) {
        super(context, state, descriptor);
        onUpdate(descriptor);
    }

    @Override
    @SuppressWarnings("unchecked")
    void onUpdate(StateDescriptor<?, V> descriptor) {
        function = ((ReducingStateDescriptor<V>) descriptor).getReduceFunction();
    }

    @Override
    V merge(V first, V second) throws Exception {
        return function.reduce(first, second);
    }

    @Override
    public V get() throws Exception {
        return read();
    }

    @Override
    public void add(V value) throws Exception {
        V old = read();
        updateInternal(old == null ? value : function.reduce(old, value));
    }
}
