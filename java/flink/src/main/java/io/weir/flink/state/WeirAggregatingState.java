package io.weir.flink.state;

import io.weir.flink.keyed.RegisteredState;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.runtime.state.internal.InternalAggregatingState;

/** {@code AggregatingState}: the accumulator is stored. */
public final class WeirAggregatingState<K, N, I, A, O>
        extends AbstractMergingRowState<K, N, I, A, O>
        implements InternalAggregatingState<K, N, I, A, O> {

    private AggregateFunction<I, A, O> function;

    public WeirAggregatingState(
            StateContext<K> context,
            RegisteredState<N, A> state,
            StateDescriptor<?, A> descriptor) {
        super(context, state, descriptor);
        onUpdate(descriptor);
    }

    @Override
    @SuppressWarnings("unchecked")
    void onUpdate(StateDescriptor<?, A> descriptor) {
        function = ((AggregatingStateDescriptor<I, A, O>) descriptor).getAggregateFunction();
    }

    @Override
    A merge(A first, A second) {
        return function.merge(first, second);
    }

    @Override
    public O get() throws Exception {
        A accumulator = read();
        return accumulator == null ? null : function.getResult(accumulator);
    }

    @Override
    public void add(I value) throws Exception {
        A accumulator = read();
        updateInternal(
                function.add(
                        value, accumulator == null ? function.createAccumulator() : accumulator));
    }
}
