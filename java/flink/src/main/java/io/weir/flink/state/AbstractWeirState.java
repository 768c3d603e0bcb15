package io.weir.flink.state;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.nativelib.Bytes;

import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.StateTtlConfig.IncrementalCleanupStrategy;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.queryablestate.client.state.serialization.KvStateSerializer;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.internal.InternalKvState;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.util.FlinkRuntimeException;
import org.apache.flink.util.Preconditions;

import java.io.IOException;
import java.time.Duration;

/**
 * What all kinds of state have in common.
 *
 * @param <K> type of the key
 * @param <N> type of the namespace
 * @param <V> type of the state's value
 */
public abstract class AbstractWeirState<K, N, V> implements InternalKvState<K, N, V>, State {

    /** What Flink answers where no incremental clean-up was configured, always the same object. */
    private static final IncrementalCleanupStrategy INCREMENTAL_BY_DEFAULT =
            StateTtlConfig.newBuilder(Duration.ofMillis(1))
                    .build()
                    .getCleanupStrategies()
                    .getIncrementalCleanupStrategy();

    final StateContext<K> context;
    final int stateId;

    TypeSerializer<V> valueSerializer;
    private TypeSerializer<N> namespaceSerializer;
    private KeyCodec<N> namespaceCodec;
    private boolean voidNamespace;
    private V defaultValue;
    private boolean visited;
    private N currentNamespace;

    AbstractWeirState(
            StateContext<K> context,
            RegisteredState<N, V> state,
            StateDescriptor<?, V> descriptor) {
        this.context = context;
        this.stateId = state.id();
        use(state, descriptor);
    }

    /** Takes over the serializers and the default of a state that is registered again. */
    public final void update(RegisteredState<N, V> state, StateDescriptor<?, V> descriptor) {
        use(state, descriptor);
        onUpdate(descriptor);
    }

    private void use(RegisteredState<N, V> state, StateDescriptor<?, V> descriptor) {
        namespaceSerializer = state.metaInfo().getNamespaceSerializer();
        namespaceCodec = state.namespaceCodec();
        voidNamespace = namespaceSerializer instanceof VoidNamespaceSerializer;
        valueSerializer = state.metaInfo().getStateSerializer();
        defaultValue = descriptor.getDefaultValue();
        visited = !isIncrementalByDefault(descriptor.getTtlConfig());
    }

    /**
     * Whether TTL would visit rows at every access only because the job has configured nothing: the
     * store drops what has expired, and a visit costs every access.
     */
    private static boolean isIncrementalByDefault(StateTtlConfig ttl) {
        return ttl.isEnabled()
                && ttl.getCleanupStrategies().getIncrementalCleanupStrategy()
                        == INCREMENTAL_BY_DEFAULT;
    }

    /** Takes over what else a subclass holds of {@link #valueSerializer} or the descriptor. */
    void onUpdate(StateDescriptor<?, V> descriptor) {}

    @Override
    public final TypeSerializer<K> getKeySerializer() {
        return context.keySerializer;
    }

    @Override
    public final TypeSerializer<N> getNamespaceSerializer() {
        return namespaceSerializer;
    }

    @Override
    public final TypeSerializer<V> getValueSerializer() {
        return valueSerializer;
    }

    @Override
    public final void setCurrentNamespace(N namespace) {
        currentNamespace = Preconditions.checkNotNull(namespace, "namespace");
    }

    final N currentNamespace() {
        return currentNamespace;
    }

    final V defaultValue() {
        return defaultValue == null ? null : valueSerializer.copy(defaultValue);
    }

    /**
     * Key group, state, current key and current namespace: the whole key of a value row, or the
     * prefix of a group.
     */
    final RowKey row() throws IOException {
        RowKey row = context.key.row(stateId);
        if (!voidNamespace) {
            namespaceCodec.write(currentNamespace, row);
        }
        return row;
    }

    @Override
    public void clear() {
        try {
            context.engine.delete(row());
        } catch (IOException e) {
            throw new FlinkRuntimeException("The state could not be cleared.", e);
        }
    }

    /**
     * Reads for queryable state, from any thread; uses nothing that the task thread uses.
     *
     * @return null if there is no value
     */
    @Override
    public final byte[] getSerializedValue(
            byte[] serializedKeyAndNamespace,
            TypeSerializer<K> safeKeySerializer,
            TypeSerializer<N> safeNamespaceSerializer,
            TypeSerializer<V> safeValueSerializer)
            throws Exception {
        Tuple2<K, N> keyAndNamespace =
                KvStateSerializer.deserializeKeyAndNamespace(
                        serializedKeyAndNamespace, safeKeySerializer, safeNamespaceSerializer);
        int keyGroup =
                KeyGroupRangeAssignment.assignToKeyGroup(
                        keyAndNamespace.f0, context.key.getNumberOfKeyGroups());
        RowKey row = new RowKey();
        row.start(keyGroup);
        row.setStateId(stateId);
        KeyCodecs.forKey(safeKeySerializer).write(keyAndNamespace.f0, row);
        KeyCodecs.forNamespace(safeNamespaceSerializer).write(keyAndNamespace.f1, row);
        return serializedValue(row, safeValueSerializer);
    }

    /** The value under {@code row} in the format of queryable state, or null. */
    byte[] serializedValue(RowKey row, TypeSerializer<V> serializer) throws Exception {
        return context.engine.visit(row.toByteArray());
    }

    /** Null says that the state is not visited. */
    @Override
    public final StateIncrementalVisitor<K, N, V> getStateIncrementalVisitor(
            int recommendedRecords) {
        if (!visited) {
            return null;
        }
        return new RowVisitor<>(this, namespaceCodec, recommendedRecords);
    }

    /** What one row contributes to the state: the value, or a collection of a single entry. */
    abstract V rowValue(RowKeyReader suffix, DataInputDeserializer value) throws IOException;

    /** Writes {@code newValue} in the place of what {@link #rowValue} returned for the row. */
    abstract void replaceRow(RowKey row, int prefixLength, V oldValue, V newValue)
            throws IOException;

    /** Reads what the row holds now; false if it is gone. */
    abstract boolean readRow(RowKey row, int prefixLength, Bytes target) throws IOException;

    abstract void removeRow(RowKey row, int prefixLength) throws IOException;

    /**
     * Rewrites the value of one row.
     *
     * @param row the row's whole key
     * @param prefixLength bytes of it up to and including the namespace
     * @param value what the previous serializer wrote
     */
    public abstract void migrateRow(
            RowKey row,
            int prefixLength,
            DataInputDeserializer value,
            TtlAwareSerializer<V, ?> previous,
            TtlAwareSerializer<V, ?> current,
            TtlTimeProvider time)
            throws IOException;

    /**
     * Reads with one serializer and writes with the other, adding or removing the timestamp of TTL.
     */
    static <T> void migrate(
            DataInputDeserializer input,
            DataOutputSerializer output,
            TtlAwareSerializer<T, ?> previous,
            TtlAwareSerializer<T, ?> current,
            TtlTimeProvider time)
            throws IOException {
        current.migrateValueFromPriorSerializer(
                previous, () -> previous.deserialize(input), output, time);
    }
}
