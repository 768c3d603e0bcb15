package io.weir.bench;

import io.weir.flink.WeirStateBackendFactory;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.fs.local.LocalFileSystem;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.operators.testutils.MockEnvironment;
import org.apache.flink.runtime.state.CheckpointableKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateBackendParametersImpl;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.StateBackendLoader;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.filesystem.FsCheckpointStreamFactory;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.runtime.util.TestingTaskManagerRuntimeInfo;

import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.RunnableFuture;

/** One keyed state backend under test, with 128 key groups and its defaults, in a folder. */
final class Backend<K> implements AutoCloseable {

    static final List<String> NAMES = List.of("hashmap", "rocksdb", "forst", "weir");

    private static final int KEY_GROUPS = 128;

    /** Of the task manager: block caches and write buffers, or the working set. */
    private static final long MANAGED_MEMORY = 2L << 30;

    private static final com.sun.management.OperatingSystemMXBean SYSTEM =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    final CheckpointableKeyedStateBackend<K> keyed;
    private final MockEnvironment environment;
    private final FsCheckpointStreamFactory streams;
    private long checkpoint;

    Backend(String name, TypeSerializer<K> keySerializer, File folder) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(
                StateBackendOptions.STATE_BACKEND,
                name.equals("weir") ? WeirStateBackendFactory.class.getName() : name);
        configuration.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);
        File checkpoints = new File(folder, "checkpoints");
        File local = new File(folder, "local");
        make(checkpoints);
        make(local);
        configuration.set(
                CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toURI().toString());
        JobID job = new JobID();
        environment =
                MockEnvironment.builder()
                        .setManagedMemorySize(MANAGED_MEMORY)
                        .setTaskManagerRuntimeInfo(
                                new TestingTaskManagerRuntimeInfo(configuration, local.getPath()))
                        .build();
        environment.setCheckpointStorageAccess(
                new FileSystemCheckpointStorage(checkpoints.toURI().toString())
                        .createCheckpointStorage(job));
        keyed =
                StateBackendLoader.loadStateBackendFromConfig(
                                configuration, Backend.class.getClassLoader(), null)
                        .createKeyedStateBackend(
                                new KeyedStateBackendParametersImpl<>(
                                        environment,
                                        job,
                                        "operator",
                                        keySerializer,
                                        KEY_GROUPS,
                                        KeyGroupRange.of(0, KEY_GROUPS - 1),
                                        environment.getTaskKvStateRegistry(),
                                        TtlTimeProvider.DEFAULT,
                                        new UnregisteredMetricsGroup(),
                                        (key, value) -> {},
                                        Collections.emptyList(),
                                        new CloseableRegistry(),
                                        1.0));
        File shared = new File(checkpoints, "shared");
        make(shared);
        streams =
                new FsCheckpointStreamFactory(
                        LocalFileSystem.getSharedInstance(),
                        new Path(checkpoints.toURI()),
                        new Path(shared.toURI()),
                        20 << 10,
                        4 << 10);
    }

    private static void make(File folder) throws IOException {
        if (!folder.mkdirs()) {
            throw new IOException(folder + " could not be made");
        }
    }

    <S extends State> S state(StateDescriptor<S, ?> descriptor) throws Exception {
        return keyed.getPartitionedState(
                VoidNamespace.INSTANCE, VoidNamespaceSerializer.INSTANCE, descriptor);
    }

    /** Runs the synchronous part of a checkpoint; what is returned runs the rest. */
    RunnableFuture<SnapshotResult<KeyedStateHandle>> barrier() throws Exception {
        checkpoint++;
        return keyed.snapshot(
                checkpoint,
                checkpoint,
                streams,
                CheckpointOptions.forCheckpointWithDefaultLocation());
    }

    /** Takes the rest of a checkpoint and says that it is complete. */
    void complete(RunnableFuture<SnapshotResult<KeyedStateHandle>> rest) throws Exception {
        rest.run();
        rest.get();
        ((CheckpointListener) keyed).notifyCheckpointComplete(checkpoint);
    }

    /** CPU time of this process, in nanoseconds. */
    static long processCpu() {
        return SYSTEM.getProcessCpuTime();
    }

    /**
     * Waits until no background work is left: until the process has used less than 15 ms of CPU in
     * each of 15 spans of 100 ms, which is longer than any of the backends pauses between two looks
     * at what there is to compact.
     */
    static void awaitQuiet() throws InterruptedException {
        long before = processCpu();
        for (int quiet = 0, spans = 0; quiet < 15 && spans < 1200; spans++) {
            Thread.sleep(100);
            long now = processCpu();
            quiet = now - before < 15_000_000 ? quiet + 1 : 0;
            before = now;
        }
    }

    @Override
    public void close() throws Exception {
        keyed.dispose();
        keyed.close();
        environment.close();
    }
}
