package io.weir.flink.state;

import io.weir.flink.keyed.RegisteredState;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.runtime.state.internal.InternalAppendingState;

import java.io.IOException;
import java.util.Collection;

/**
 * Reducing and aggregating state: what is added is merged into one value.
 *
 * @param <I> type of what is added
 * @param <V> type of what is stored
 * @param <O> type of what is read
 */
abstract class AbstractMergingRowState<K, N, I, V, O> extends AbstractValueRowState<K, N, V>
        implements InternalAppendingState<K, N, I, V, O> {

    AbstractMergingRowState(
            StateContext<K> context,
            RegisteredState<N, V> state,
            StateDescriptor<?, V> descriptor) {
        super(context, state, descriptor);
    }

    /** Null if nothing is left of both, as with TTL when both have expired. */
    abstract V merge(V first, V second) throws Exception;

    @Override
    public final V getInternal() throws IOException {
        return read();
    }

    @Override
    public final void updateInternal(V value) throws IOException {
        if (value == null) {
            clear();
        } else {
            write(value);
        }
    }

    /** Moves the values of the sources into that of the target. */
    public final void mergeNamespaces(N target, Collection<N> sources) throws Exception {
        if (sources == null || sources.isEmpty()) {
            return;
        }
        V merged = null;
        for (N source : sources) {
            if (source == null) {
                continue;
            }
            setCurrentNamespace(source);
            V value = read();
            if (value != null) {
                clear();
                merged = merged == null ? value : merge(merged, value);
            }
        }
        if (merged != null) {
            setCurrentNamespace(target);
            V value = read();
            updateInternal(value == null ? merged : merge(value, merged));
        }
    }
}
