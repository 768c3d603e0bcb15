package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.errors.StateKindMismatchException;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.snapshot.CanonicalSavepoint;
import io.weir.flink.snapshot.WeirSnapshotStrategy;
import io.weir.flink.state.AbstractWeirState;
import io.weir.flink.state.StateContext;
import io.weir.flink.state.WeirAggregatingState;
import io.weir.flink.state.WeirListState;
import io.weir.flink.state.WeirMapState;
import io.weir.flink.state.WeirReducingState;
import io.weir.flink.state.WeirValueState;
import io.weir.flink.timers.HeapTimers;

import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializerSnapshot;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.SnapshotType;
import org.apache.flink.runtime.query.TaskKvStateRegistry;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.CheckpointStreamFactory;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.Keyed;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.PriorityComparable;
import org.apache.flink.runtime.state.PriorityQueueSetFactory;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;
import org.apache.flink.runtime.state.SavepointResources;
import org.apache.flink.runtime.state.SavepointSnapshotStrategy;
import org.apache.flink.runtime.state.SnapshotExecutionType;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategyRunner;
import org.apache.flink.runtime.state.StateSnapshotTransformer.StateSnapshotTransformFactory;
import org.apache.flink.runtime.state.StreamCompressionDecorator;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueElement;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSnapshotRestoreWrapper;
import org.apache.flink.runtime.state.metrics.LatencyTrackingStateConfig;
import org.apache.flink.runtime.state.metrics.SizeTrackingStateConfig;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.util.FlinkRuntimeException;
import org.apache.flink.util.IOUtils;
import org.apache.flink.util.StateMigrationException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.RunnableFuture;
import java.util.stream.Stream;

/**
 * The keyed state of one subtask of an operator: rows of a native {@link Engine}, timers too unless
 * they are kept on the heap.
 *
 * <p>{@link #dispose} and {@link #close} may come in any order and more than once.
 */
public final class WeirKeyedStateBackend<K> extends AbstractKeyedStateBackend<K> {

    /** What {@link #getBackendTypeIdentifier} answers. */
    public static final String IDENTIFIER = "weir";

    private static final Logger LOG = LoggerFactory.getLogger(WeirKeyedStateBackend.class);

    private final Engine engine;
    private final AutoCloseable memory;
    private final EncodedKeyContext<K> encodedKey;
    private final StateContext<K> stateContext;
    private final RegisteredStates states;
    private final Map<String, AbstractWeirState<K, ?, ?>> created = new HashMap<>();
    private final PriorityQueueSetFactory timers;
    private final boolean timersOnHeap;
    private final Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> heapQueues;
    private final WeirSnapshotStrategy<K> snapshots;
    private final StateExpiry expiry;
    private boolean disposed;

    /**
     * @param memory the backend's share of the slot's memory, given back on {@link #dispose}
     * @param states what was restored
     * @param timers makes the queues of timers, in the engine or on the heap
     */
    WeirKeyedStateBackend(
            TaskKvStateRegistry kvStateRegistry,
            TypeSerializer<K> keySerializer,
            ClassLoader userCodeClassLoader,
            ExecutionConfig executionConfig,
            TtlTimeProvider ttlTimeProvider,
            LatencyTrackingStateConfig latencyTrackingStateConfig,
            SizeTrackingStateConfig sizeTrackingStateConfig,
            CloseableRegistry cancelStreamRegistry,
            StreamCompressionDecorator keyGroupCompressionDecorator,
            EncodedKeyContext<K> keyContext,
            Engine engine,
            AutoCloseable memory,
            RegisteredStates states,
            PriorityQueueSetFactory timers,
            WeirSnapshotStrategy<K> snapshots) {
        super(
                kvStateRegistry,
                keySerializer,
                userCodeClassLoader,
                executionConfig,
                ttlTimeProvider,
                latencyTrackingStateConfig,
                sizeTrackingStateConfig,
                cancelStreamRegistry,
                keyGroupCompressionDecorator,
                keyContext);
        this.engine = engine;
        this.memory = memory;
        this.encodedKey = keyContext;
        this.states = states;
        this.timers = timers;
        this.timersOnHeap = timers instanceof HeapTimers;
        this.heapQueues = timersOnHeap ? ((HeapTimers) timers).queues() : Map.of();
        this.snapshots = snapshots;
        this.expiry = new StateExpiry(engine, ttlTimeProvider);
        this.stateContext = new StateContext<>(engine, keyContext, keySerializer, keyGroupRange);
    }

    /** For tests. */
    Engine engine() {
        return engine;
    }

    // ---------------- keys

    @Override
    public <N> Stream<K> getKeys(String state, N namespace) {
        RegisteredState<N, ?> registered = registered(state);
        return registered == null ? Stream.empty() : keyStreams().keys(registered, namespace);
    }

    @Override
    public <N> Stream<K> getKeys(List<String> names, N namespace) {
        List<RegisteredState<N, ?>> registered = new ArrayList<>();
        for (String name : names) {
            RegisteredState<N, ?> state = registered(name);
            if (state != null) {
                registered.add(state);
            }
        }
        return keyStreams().keys(registered, namespace);
    }

    @Override
    public <N> Stream<Tuple2<K, N>> getKeysAndNamespaces(String state) {
        RegisteredState<N, ?> registered = registered(state);
        return registered == null ? Stream.empty() : keyStreams().keysAndNamespaces(registered);
    }

    private KeyStreams<K> keyStreams() {
        return new KeyStreams<>(engine, keyGroupRange, KeyCodecs.forKey(keySerializer));
    }

    @SuppressWarnings("unchecked")
    private <N, V> RegisteredState<N, V> registered(String name) {
        return (RegisteredState<N, V>) states.get(name);
    }

    /** Counts values, map entries, and lists. */
    @Override
    public int numKeyValueStateEntries() {
        try {
            long count = 0;
            for (RegisteredState<?, ?> state : states.all()) {
                if (state.kind() == StateDescriptor.Type.LIST) {
                    count += keyStreams().keysAndNamespaces(state).count();
                } else {
                    RowCursor rows = new RowCursor(engine, keyGroupRange, state.id());
                    while (rows.next()) {
                        count++;
                    }
                }
            }
            return Math.toIntExact(count);
        } catch (IOException e) {
            throw new FlinkRuntimeException("The rows could not be counted.", e);
        }
    }

    // ---------------- states

    @Override
    public <N, SV, SEV, S extends State, IS extends S> IS createOrUpdateInternalState(
            TypeSerializer<N> namespaceSerializer,
            StateDescriptor<S, SV> descriptor,
            StateSnapshotTransformFactory<SEV> transformFactory)
            throws Exception {
        return createOrUpdateInternalState(
                namespaceSerializer, descriptor, transformFactory, false);
    }

    @Override
    public <N, SV, SEV, S extends State, IS extends S> IS createOrUpdateInternalState(
            TypeSerializer<N> namespaceSerializer,
            StateDescriptor<S, SV> descriptor,
            StateSnapshotTransformFactory<SEV> transformFactory,
            boolean allowFutureMetadataUpdates)
            throws Exception {
        RegisteredState<N, SV> restored = registered(descriptor.getName());
        return restored == null
                ? register(
                        namespaceSerializer,
                        descriptor,
                        transformFactory,
                        allowFutureMetadataUpdates)
                : registerAgain(
                        restored,
                        namespaceSerializer,
                        descriptor,
                        transformFactory,
                        allowFutureMetadataUpdates);
    }

    private <N, SV, S extends State, IS extends S> IS register(
            TypeSerializer<N> namespaceSerializer,
            StateDescriptor<S, SV> descriptor,
            StateSnapshotTransformFactory<?> transformFactory,
            boolean allowFutureMetadataUpdates)
            throws Exception {
        RegisteredKeyValueStateBackendMetaInfo<N, SV> metaInfo =
                new RegisteredKeyValueStateBackendMetaInfo<>(
                        descriptor.getType(),
                        descriptor.getName(),
                        namespaceSerializer,
                        descriptor.getSerializer(),
                        StateSnapshotTransformFactory.noTransform());
        RegisteredState<N, SV> state =
                RegisteredState.of(
                        allowFutureMetadataUpdates
                                ? metaInfo.withSerializerUpgradesAllowed()
                                : metaInfo,
                        transformFactory);
        states.put(state);
        expiry.register(state, descriptor);
        return instance(state, descriptor);
    }

    private <N, SV, S extends State, IS extends S> IS registerAgain(
            RegisteredState<N, SV> restored,
            TypeSerializer<N> namespaceSerializer,
            StateDescriptor<S, SV> descriptor,
            StateSnapshotTransformFactory<?> transformFactory,
            boolean allowFutureMetadataUpdates)
            throws Exception {
        String name = restored.name();
        if (restored.kind() != descriptor.getType()) {
            throw new StateKindMismatchException(name, restored.kind(), descriptor.getType());
        }
        RegisteredKeyValueStateBackendMetaInfo<N, SV> metaInfo = restored.metaInfo();

        // Taken before the update, which hides it if the new one does not fit.
        TypeSerializer<N> previousNamespaceSerializer = metaInfo.getNamespaceSerializer();
        TypeSerializerSchemaCompatibility<N> namespaces =
                metaInfo.updateNamespaceSerializer(namespaceSerializer);
        if (namespaces.isIncompatible() || namespaces.isCompatibleAfterMigration()) {
            throw new StateMigrationException(
                    String.format(
                            "State '%s': the new namespace serializer (%s) must be compatible with"
                                    + " the previous one (%s).",
                            name, namespaceSerializer, previousNamespaceSerializer));
        }
        checkColumns(
                name,
                "namespaces",
                restored.namespaceCodecId(),
                KeyCodecs.forNamespace(metaInfo.getNamespaceSerializer()).id());

        TypeSerializer<SV> previousSerializer = metaInfo.getStateSerializer();
        TypeSerializerSchemaCompatibility<SV> values =
                metaInfo.updateStateSerializer(descriptor.getSerializer());
        if (values.isIncompatible()) {
            throw new StateMigrationException(
                    String.format(
                            "State '%s': the new state serializer (%s) is incompatible with the"
                                    + " previous one (%s).",
                            name, descriptor.getSerializer(), previousSerializer));
        }
        if (values.isCompatibleAfterMigration() && restored.kind() == StateDescriptor.Type.MAP) {
            checkUserKeysUnchanged(metaInfo);
        }
        checkColumns(
                name,
                "user keys",
                restored.userKeyCodecId(),
                RegisteredState.userKeyCodecId(metaInfo.getStateSerializer()));

        RegisteredState<N, SV> state =
                new RegisteredState<>(
                        allowFutureMetadataUpdates
                                ? metaInfo.withSerializerUpgradesAllowed()
                                : metaInfo,
                        restored.namespaceCodecId(),
                        restored.userKeyCodecId(),
                        transformFactory);
        states.put(state);
        IS instance = instance(state, descriptor);
        if (values.isCompatibleAfterMigration()) {
            expiry.suspend(state);
            LOG.info(
                    "Rewriting state '{}' for its new serializer {}.",
                    name,
                    descriptor.getSerializer());
            StateMigration.migrate(
                    engine,
                    keyGroupRange,
                    encodedKey.codec(),
                    state,
                    this.<N, SV>createdState(name),
                    metaInfo.getPreviousStateSerializer(),
                    metaInfo.getStateSerializer(),
                    ttlTimeProvider);
        }
        expiry.register(state, descriptor);
        return instance;
    }

    private static void checkColumns(String name, String what, String restored, String registered)
            throws StateMigrationException {
        if (!restored.equals(registered)) {
            throw new StateMigrationException(
                    String.format(
                            "State '%s': the %s were written as %s; the new serializer writes them"
                                    + " as %s, which cannot be migrated.",
                            name, what, restored, registered));
        }
    }

    private static <SV> void checkUserKeysUnchanged(
            RegisteredKeyValueStateBackendMetaInfo<?, SV> metaInfo) throws StateMigrationException {
        TypeSerializerSnapshot<SV> previous = metaInfo.getPreviousStateSerializerSnapshot();
        TypeSerializer<SV> current = metaInfo.getStateSerializer();
        if (!(previous instanceof MapSerializerSnapshot) || !(current instanceof MapSerializer)) {
            return;
        }
        if (!userKeysCompatible(
                (MapSerializerSnapshot<?, ?>) previous, (MapSerializer<?, ?>) current)) {
            throw new StateMigrationException(
                    String.format(
                            "State '%s': only the values of a map can be migrated, and the schema"
                                    + " of its keys has changed.",
                            metaInfo.getName()));
        }
    }

    @SuppressWarnings("unchecked")
    private static <UK> boolean userKeysCompatible(
            MapSerializerSnapshot<?, ?> previous, MapSerializer<?, ?> current) {
        return ((TypeSerializer<UK>) current.getKeySerializer())
                .snapshotConfiguration()
                .resolveSchemaCompatibility(
                        (TypeSerializerSnapshot<UK>) previous.getKeySerializerSnapshot())
                .isCompatibleAsIs();
    }

    @SuppressWarnings("unchecked")
    private <N, SV> AbstractWeirState<K, N, SV> createdState(String name) {
        return (AbstractWeirState<K, N, SV>) created.get(name);
    }

    @SuppressWarnings("unchecked")
    private <N, SV, S extends State, IS extends S> IS instance(
            RegisteredState<N, SV> state, StateDescriptor<S, SV> descriptor) {
        AbstractWeirState<K, N, SV> instance = createdState(state.name());
        if (instance == null) {
            instance = create(state, descriptor);
            created.put(state.name(), instance);
        } else {
            instance.update(state, descriptor);
        }
        return (IS) instance;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private <N, SV> AbstractWeirState<K, N, SV> create(
            RegisteredState<N, SV> state, StateDescriptor<?, SV> descriptor) {
        switch (descriptor.getType()) {
            case VALUE:
                return new WeirValueState<>(stateContext, state, descriptor);
            case REDUCING:
                return new WeirReducingState<>(stateContext, state, descriptor);
            case AGGREGATING:
                return new WeirAggregatingState<>(stateContext, state, descriptor);
            case LIST:
                return new WeirListState(stateContext, state, descriptor);
            case MAP:
                return new WeirMapState(stateContext, state, descriptor);
            default:
                throw new FlinkRuntimeException(
                        "State '"
                                + state.name()
                                + "' is of kind "
                                + descriptor.getType()
                                + ", which Weir does not know.");
        }
    }

    // ---------------- timers

    @Override
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name, TypeSerializer<T> elementSerializer) {
        return create(name, elementSerializer, false);
    }

    @Override
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name,
                    TypeSerializer<T> elementSerializer,
                    boolean allowFutureMetadataUpdates) {
        return timers.create(name, elementSerializer, allowFutureMetadataUpdates);
    }

    /** Flink writes timers on the heap itself, except to a savepoint. */
    @Override
    public boolean requiresLegacySynchronousTimerSnapshots(SnapshotType type) {
        return timersOnHeap && !type.isSavepoint();
    }

    /** Timers on the heap keep the key objects that they were made with. */
    @Override
    public boolean isSafeToReuseKVState() {
        return !timersOnHeap;
    }

    // ---------------- snapshots

    @Override
    public RunnableFuture<SnapshotResult<KeyedStateHandle>> snapshot(
            long checkpointId,
            long timestamp,
            CheckpointStreamFactory streamFactory,
            CheckpointOptions options)
            throws Exception {
        if (options.getCheckpointType().isSavepoint()) {
            // Both formats promise a savepoint that stands on its own; Weir has one way to write
            // it.
            SavepointResources<K> savepoint = savepoint();
            return new SnapshotStrategyRunner<>(
                            "Weir savepoint",
                            new SavepointSnapshotStrategy<>(savepoint.getSnapshotResources()),
                            cancelStreamRegistry,
                            savepoint.getPreferredSnapshotExecutionType())
                    .snapshot(checkpointId, timestamp, streamFactory, options);
        }
        expiry.tick();
        return new SnapshotStrategyRunner<>(
                        snapshots.description(),
                        snapshots,
                        cancelStreamRegistry,
                        SnapshotExecutionType.ASYNCHRONOUS)
                .snapshot(checkpointId, timestamp, streamFactory, options);
    }

    /** Written on the task thread, which is the one that may read rows. */
    @Override
    public SavepointResources<K> savepoint() {
        return new SavepointResources<>(
                new CanonicalSavepoint<>(
                        engine,
                        keyGroupRange,
                        numberOfKeyGroups,
                        keySerializer,
                        keyGroupCompressionDecorator,
                        states,
                        heapQueues),
                SnapshotExecutionType.SYNCHRONOUS);
    }

    @Override
    public void notifyCheckpointComplete(long checkpointId) throws Exception {
        engine.checkpointComplete(checkpointId);
    }

    @Override
    public void notifyCheckpointAborted(long checkpointId) throws Exception {
        snapshots.abort(checkpointId);
    }

    @Override
    public String getBackendTypeIdentifier() {
        return IDENTIFIER;
    }

    // ---------------- end

    /**
     * Wakes whatever waits for the store, then closes the engine. {@link #close}, which may come
     * from the thread that cancels the task, only wakes.
     */
    @Override
    public void dispose() {
        if (disposed) {
            return;
        }
        disposed = true;
        super.dispose();
        IOUtils.closeQuietly(engine);
        IOUtils.closeQuietly(memory);
    }
}
