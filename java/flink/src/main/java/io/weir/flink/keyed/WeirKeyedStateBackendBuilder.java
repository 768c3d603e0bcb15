package io.weir.flink.keyed;

import io.weir.flink.StoreDirectory;
import io.weir.flink.WeirConfig;
import io.weir.flink.WeirOptions;
import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.errors.MissingVersionException;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.nativelib.NativeBudget;
import io.weir.flink.restore.CanonicalRestore;
import io.weir.flink.restore.RestoredMetadata;
import io.weir.flink.restore.RestoredSources;
import io.weir.flink.snapshot.Payload;
import io.weir.flink.snapshot.WeirSnapshotStrategy;
import io.weir.flink.timers.EngineTimers;
import io.weir.flink.timers.HeapTimers;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.runtime.memory.OpaqueMemoryResource;
import org.apache.flink.runtime.metrics.MetricNames;
import org.apache.flink.runtime.state.AbstractKeyedStateBackendBuilder;
import org.apache.flink.runtime.state.BackendBuildingException;
import org.apache.flink.runtime.state.PriorityQueueSetFactory;
import org.apache.flink.runtime.state.SavepointKeyedStateHandle;
import org.apache.flink.runtime.state.StateBackend.KeyedStateBackendParameters;
import org.apache.flink.runtime.state.StreamCompressionDecorator;
import org.apache.flink.runtime.state.metrics.LatencyTrackingStateConfig;
import org.apache.flink.runtime.state.metrics.SizeTrackingStateConfig;
import org.apache.flink.util.IOUtils;
import org.apache.flink.util.StateMigrationException;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;
import java.util.Map;

/**
 * Opens a branch of the store, from what was checkpointed before or empty, and puts a keyed backend
 * on it.
 */
public final class WeirKeyedStateBackendBuilder<K> extends AbstractKeyedStateBackendBuilder<K> {

    private final KeyedStateBackendParameters<K> parameters;
    private final WeirConfig config;
    private final StoreDirectory directory;
    private final String branch;
    private final OpaqueMemoryResource<NativeBudget> memory;
    private final List<String> engineConfig;

    /**
     * @param directory where the store lies
     * @param branch where the attempt writes
     * @param memory given to the backend; the caller gives it back if {@link #build} fails
     */
    public WeirKeyedStateBackendBuilder(
            KeyedStateBackendParameters<K> parameters,
            LatencyTrackingStateConfig latencyTrackingStateConfig,
            SizeTrackingStateConfig sizeTrackingStateConfig,
            StreamCompressionDecorator keyGroupCompressionDecorator,
            WeirConfig config,
            StoreDirectory directory,
            String branch,
            OpaqueMemoryResource<NativeBudget> memory) {
        super(
                parameters.getKvStateRegistry(),
                parameters.getKeySerializer(),
                parameters.getEnv().getUserCodeClassLoader().asClassLoader(),
                parameters.getNumberOfKeyGroups(),
                parameters.getKeyGroupRange(),
                parameters.getEnv().getExecutionConfig(),
                parameters.getTtlTimeProvider(),
                latencyTrackingStateConfig,
                sizeTrackingStateConfig,
                parameters.getStateHandles(),
                keyGroupCompressionDecorator,
                parameters.getCancelStreamRegistry());
        this.parameters = parameters;
        this.config = config;
        this.directory = directory;
        this.branch = branch;
        this.memory = memory;
        this.engineConfig = config.engineConfig(memory.getSize());
    }

    @Override
    public WeirKeyedStateBackend<K> build() throws BackendBuildingException {
        Engine engine = null;
        long began = System.nanoTime();
        try {
            boolean canonical = isCanonicalSavepoint();
            RestoredSources restored =
                    RestoredSources.read(
                            canonical ? List.of() : restoreStateHandles,
                            keyGroupRange,
                            numberOfKeyGroups);
            RegisteredStates states = new RegisteredStates();
            RestoredMetadata<K> metadata =
                    new RestoredMetadata<>(userCodeClassLoader, keySerializerProvider, states);
            for (Payload payload : restored.payloads()) {
                metadata.add(payload);
            }
            RestoredMetadata.checkKeyColumns(
                    restored.payloads(),
                    KeyCodecs.forKey(keySerializerProvider.currentSchemaSerializer()).id());

            String root =
                    restored.isEmpty() ? directory.uri() : directory.toGoOnFrom(restored.root());
            engine = open(root, restored);
            if (canonical) {
                importSavepoint(engine, metadata, states);
            }
            if (!restoreStateHandles.isEmpty()) {
                // Flink's page of a job's initialization shows it.
                parameters
                        .getCustomInitializationMetrics()
                        .addMetric(
                                MetricNames.RESTORE_STATE_DURATION,
                                (System.nanoTime() - began) / 1_000_000);
            }
            return backend(engine, root, states, timers(engine, states));
        } catch (Exception | Error e) {
            IOUtils.closeQuietly(engine);
            if (e instanceof Error) {
                throw (Error) e;
            }
            throw new BackendBuildingException(
                    "The keyed state of " + branch + " could not be opened.", e);
        }
    }

    private boolean isCanonicalSavepoint() {
        return !restoreStateHandles.isEmpty()
                && restoreStateHandles.stream()
                        .allMatch(handle -> handle instanceof SavepointKeyedStateHandle);
    }

    private void importSavepoint(
            Engine engine, RestoredMetadata<K> metadata, RegisteredStates states)
            throws IOException, StateMigrationException {
        // Flink closes its registry if the task is cancelled meanwhile.
        try (Closeable ignored =
                cancelStreamRegistry.registerCloseableTemporarily(engine::cancel)) {
            new CanonicalRestore<>(
                            userCodeClassLoader,
                            keySerializerProvider,
                            metadata,
                            states,
                            keyGroupRange,
                            numberOfKeyGroups)
                    .restore(restoreStateHandles, engine);
        }
    }

    private PriorityQueueSetFactory timers(Engine engine, RegisteredStates states)
            throws IOException {
        if (config.timerService() == WeirOptions.TimerService.ENGINE) {
            return new EngineTimers(engine, states, keyGroupRange, numberOfKeyGroups);
        }
        HeapTimers timers = new HeapTimers(keyGroupRange, numberOfKeyGroups);
        try (Closeable ignored =
                cancelStreamRegistry.registerCloseableTemporarily(engine::cancel)) {
            timers.takeFrom(engine, states);
        }
        return timers;
    }

    private WeirKeyedStateBackend<K> backend(
            Engine engine, String root, RegisteredStates states, PriorityQueueSetFactory timers)
            throws IOException {
        TypeSerializer<K> keySerializer = keySerializerProvider.currentSchemaSerializer();
        KeyCodec<K> keyCodec = KeyCodecs.forKey(keySerializer);
        // Flink closes its own registry at the end of the restore; this one is closed with the
        // backend.
        CloseableRegistry cancelRegistry = new CloseableRegistry();
        cancelRegistry.registerCloseable(engine::cancel);
        EngineMetrics.register(parameters.getMetricGroup(), engine);
        return new WeirKeyedStateBackend<>(
                kvStateRegistry,
                keySerializer,
                userCodeClassLoader,
                executionConfig,
                ttlTimeProvider,
                latencyTrackingStateConfig,
                sizeTrackingStateConfig,
                cancelRegistry,
                keyGroupCompressionDecorator,
                new EncodedKeyContext<>(keyGroupRange, numberOfKeyGroups, keyCodec),
                engine,
                memory,
                states,
                timers,
                new WeirSnapshotStrategy<>(
                        engine,
                        root,
                        directory.isTemporary() && root.equals(directory.uri()),
                        engineConfig.toArray(new String[0]),
                        keyGroupRange,
                        numberOfKeyGroups,
                        keySerializer,
                        keyCodec.id(),
                        states,
                        timers instanceof HeapTimers ? ((HeapTimers) timers).queues() : Map.of()));
    }

    private Engine open(String root, RestoredSources restored) throws IOException {
        logger.info(
                "Opening branch {} in {} for key groups {} from {} version(s), with {} bytes of"
                        + " memory for the slot.",
                branch,
                root,
                keyGroupRange,
                restored.sources().size(),
                memory.getSize());
        try {
            return Engine.open(
                    memory.getResourceHandle(),
                    root,
                    engineConfig,
                    branch,
                    keyGroupRange.getStartKeyGroup(),
                    keyGroupRange.getEndKeyGroup(),
                    restored.sources(),
                    restored.checkpoint(),
                    restored.nextSequence());
        } catch (MissingVersionException e) {
            if (restored.isEmpty() || restored.root().equals(root)) {
                throw e;
            }
            throw new MissingVersionException(
                    String.format(
                            "%s; the checkpoint was written to %s, and this was looked for in %s",
                            e.getMessage(), restored.root(), root));
        }
    }
}
