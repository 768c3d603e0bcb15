package io.weir.e2e.jobs;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.operators.testutils.MockEnvironment;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.runtime.state.CheckpointableKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateBackendParametersImpl;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SavepointResources;
import org.apache.flink.runtime.state.SavepointSnapshotStrategy;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategyRunner;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendLoader;
import org.apache.flink.runtime.state.memory.MemCheckpointStreamFactory;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;

import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.RunnableFuture;

/** Keyed backends of any kind without a job around them; closed with this object. */
public final class KeyedBackends implements AutoCloseable {
    private final CloseableRegistry open = new CloseableRegistry();
    private final JobID job = new JobID();
    private final Path directory;

    /** Checkpoints, and with them Weir's store, lie in the directory. */
    public KeyedBackends(Path directory) {
        this.directory = directory;
    }

    public <K> AbstractKeyedStateBackend<K> open(
            Configuration configuration,
            TypeSerializer<K> keySerializer,
            int keyGroups,
            KeyGroupRange range,
            List<KeyedStateHandle> handles)
            throws Exception {
        StateBackend backend =
                StateBackendLoader.loadStateBackendFromConfig(
                        configuration, getClass().getClassLoader(), null);
        MockEnvironment environment =
                MockEnvironment.builder().setManagedMemorySize(32 << 20).build();
        environment.setCheckpointStorageAccess(
                new FileSystemCheckpointStorage(directory.toUri().toString())
                        .createCheckpointStorage(job));
        AbstractKeyedStateBackend<K> keyed =
                (AbstractKeyedStateBackend<K>)
                        backend.createKeyedStateBackend(
                                new KeyedStateBackendParametersImpl<>(
                                        environment,
                                        job,
                                        "operator",
                                        keySerializer,
                                        keyGroups,
                                        range,
                                        environment.getTaskKvStateRegistry(),
                                        TtlTimeProvider.DEFAULT,
                                        new UnregisteredMetricsGroup(),
                                        (name, value) -> {},
                                        handles,
                                        new CloseableRegistry(),
                                        1.0));
        open.registerCloseable(
                () -> {
                    keyed.dispose();
                    keyed.close();
                    try {
                        environment.close();
                    } catch (Exception e) {
                        throw new java.io.IOException(e);
                    }
                });
        return keyed;
    }

    public static <K> KeyedStateHandle canonicalSavepoint(
            CheckpointableKeyedStateBackend<K> backend) throws Exception {
        SavepointResources<K> resources = backend.savepoint();
        RunnableFuture<SnapshotResult<KeyedStateHandle>> snapshot =
                new SnapshotStrategyRunner<>(
                                "savepoint",
                                new SavepointSnapshotStrategy<>(resources.getSnapshotResources()),
                                new CloseableRegistry(),
                                resources.getPreferredSnapshotExecutionType())
                        .snapshot(
                                1,
                                1,
                                new MemCheckpointStreamFactory(64 << 20),
                                CheckpointOptions.alignedNoTimeout(
                                        SavepointType.savepoint(SavepointFormatType.CANONICAL),
                                        CheckpointStorageLocationReference.getDefault()));
        if (!snapshot.isDone()) {
            snapshot.run();
        }
        return snapshot.get().getJobManagerOwnedSnapshot();
    }

    @Override
    public void close() throws Exception {
        open.close();
    }
}
