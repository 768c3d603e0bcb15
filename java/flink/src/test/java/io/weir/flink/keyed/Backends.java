package io.weir.flink.keyed;

import io.weir.flink.WeirStateBackendFactory;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.CheckpointType;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.checkpoint.SnapshotType;
import org.apache.flink.runtime.operators.testutils.MockEnvironment;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.AbstractStateBackend;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateBackendParametersImpl;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SavepointResources;
import org.apache.flink.runtime.state.SavepointSnapshotStrategy;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategyRunner;
import org.apache.flink.runtime.state.memory.MemCheckpointStreamFactory;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.RunnableFuture;

/**
 * Opens keyed backends one by one, each as an execution attempt of its own, and takes snapshots of
 * them.
 */
public final class Backends implements AutoCloseable {

    private final Configuration configuration = new Configuration();
    private final JobID job = new JobID();
    private final CloseableRegistry open = new CloseableRegistry();
    private final Map<String, Long> initializationMetrics = new HashMap<>();
    private TtlTimeProvider time = TtlTimeProvider.DEFAULT;
    private long checkpoint;

    /** With a store in memory that is shared by the backends of this object alone. */
    public Backends() {
        set("state.backend.weir.store", "memory");
        set("state.backend.weir.directory", "memory://" + UUID.randomUUID());
    }

    /** What backends told Flink of how they began. */
    public Map<String, Long> initializationMetrics() {
        return initializationMetrics;
    }

    public void set(String key, String value) {
        configuration.setString(key, value);
    }

    /** The time that TTL goes by in backends opened from now on. */
    public void setTime(TtlTimeProvider provider) {
        time = provider;
    }

    public void unset(String key) {
        configuration.removeKey(key);
    }

    public <K> AbstractKeyedStateBackend<K> weir(
            TypeSerializer<K> keySerializer,
            int keyGroups,
            KeyGroupRange range,
            List<KeyedStateHandle> handles)
            throws Exception {
        return open(
                new WeirStateBackendFactory()
                        .createFromConfig(configuration, getClass().getClassLoader()),
                keySerializer,
                keyGroups,
                range,
                handles);
    }

    public <K> AbstractKeyedStateBackend<K> open(
            AbstractStateBackend backend,
            TypeSerializer<K> keySerializer,
            int keyGroups,
            KeyGroupRange range,
            List<KeyedStateHandle> handles)
            throws Exception {
        MockEnvironment environment =
                MockEnvironment.builder().setManagedMemorySize(32 << 20).build();
        AbstractKeyedStateBackend<K> keyed =
                backend.createKeyedStateBackend(
                        new KeyedStateBackendParametersImpl<>(
                                environment,
                                job,
                                "operator",
                                keySerializer,
                                keyGroups,
                                range,
                                environment.getTaskKvStateRegistry(),
                                time,
                                new UnregisteredMetricsGroup(),
                                initializationMetrics::put,
                                handles,
                                new CloseableRegistry(),
                                1.0));
        open.registerCloseable(
                () -> {
                    keyed.dispose();
                    try {
                        environment.close();
                    } catch (Exception e) {
                        throw new java.io.IOException(e);
                    }
                });
        return keyed;
    }

    public KeyedStateHandle checkpoint(AbstractKeyedStateBackend<?> backend) throws Exception {
        return snapshot(backend, CheckpointType.CHECKPOINT);
    }

    /** A checkpoint that the JobManager has completed. */
    KeyedStateHandle completedCheckpoint(AbstractKeyedStateBackend<?> backend) throws Exception {
        KeyedStateHandle handle = checkpoint(backend);
        backend.notifyCheckpointComplete(checkpoint);
        return handle;
    }

    KeyedStateHandle nativeSavepoint(AbstractKeyedStateBackend<?> backend) throws Exception {
        return snapshot(backend, SavepointType.savepoint(SavepointFormatType.NATIVE));
    }

    private KeyedStateHandle snapshot(AbstractKeyedStateBackend<?> backend, SnapshotType type)
            throws Exception {
        RunnableFuture<SnapshotResult<KeyedStateHandle>> snapshot =
                backend.snapshot(
                        ++checkpoint,
                        checkpoint,
                        streams(),
                        CheckpointOptions.alignedNoTimeout(
                                type, CheckpointStorageLocationReference.getDefault()));
        snapshot.run();
        return snapshot.get().getJobManagerOwnedSnapshot();
    }

    public <K> KeyedStateHandle canonicalSavepoint(AbstractKeyedStateBackend<K> backend)
            throws Exception {
        SavepointResources<K> resources = backend.savepoint();
        RunnableFuture<SnapshotResult<KeyedStateHandle>> snapshot =
                new SnapshotStrategyRunner<>(
                                "savepoint",
                                new SavepointSnapshotStrategy<>(resources.getSnapshotResources()),
                                new CloseableRegistry(),
                                resources.getPreferredSnapshotExecutionType())
                        .snapshot(
                                ++checkpoint,
                                checkpoint,
                                streams(),
                                CheckpointOptions.alignedNoTimeout(
                                        SavepointType.savepoint(SavepointFormatType.CANONICAL),
                                        CheckpointStorageLocationReference.getDefault()));
        if (!snapshot.isDone()) {
            snapshot.run();
        }
        return snapshot.get().getJobManagerOwnedSnapshot();
    }

    /** A figure of the backend's engine. */
    public static long stat(AbstractKeyedStateBackend<?> backend, String name) throws Exception {
        long[] figures = ((WeirKeyedStateBackend<?>) backend).engine().stats();
        return figures[List.of(Engine.statNames()).indexOf(name)];
    }

    private static MemCheckpointStreamFactory streams() {
        return new MemCheckpointStreamFactory(64 << 20);
    }

    @Override
    public void close() throws Exception {
        open.close();
    }
}
