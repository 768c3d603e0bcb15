package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Counting;
import io.weir.e2e.jobs.Counting.Registration;
import io.weir.e2e.jobs.Folder;
import io.weir.e2e.jobs.Handles;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.Overwriting;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.RecoveryClaimMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Bad input and broken stores: each is an error that names what is wrong; a neighbour on the same
 * worker does not notice; and once the cause is mended the restore succeeds.
 */
class FaultsTest {
    private static final int KEYS = 300;
    private static final String STORE_DIRECTORY = "state.backend.weir.directory";

    @TempDir static Path shared;
    private static TestCluster cluster;
    private static final Control NEIGHBOUR = new Control();
    private static JobID neighbour;

    @TempDir Path directory;
    private final Control control = new Control();

    @BeforeAll
    static void startNeighbour() throws Exception {
        assumeTrue(BackendUnderTest.isEmbedded(), "about Weir's handles and store");
        cluster = new TestCluster(4, shared);
        StreamExecutionEnvironment environment =
                TestCluster.environment(
                        TestCluster.options(shared.resolve("checkpoints"), Duration.ofMillis(200)),
                        1);
        count(environment, NEIGHBOUR.pauseAt(1_000));
        neighbour = cluster.submit(environment);
    }

    /**
     * The neighbour has gone on in its first attempt, so this is still the same worker, and has
     * lost nothing.
     */
    @AfterAll
    static void checkNeighbour() throws Exception {
        if (cluster == null) {
            return;
        }
        assertThat(cluster.runsUndisturbed(neighbour))
                .as("the neighbour runs in its first attempt")
                .isTrue();
        long total = NEIGHBOUR.finishAfter(1_000);
        cluster.awaitFinished(neighbour);
        assertThat(NEIGHBOUR.results()).isEqualTo(Counting.expected(total, KEYS));
        cluster.close();
    }

    @AfterEach
    void onlyTheNeighbourGoesOn() throws Exception {
        cluster.cancelAllBut(neighbour);
    }

    @BeforeEach
    void neighbourRuns() throws Exception {
        cluster.awaitRunning(neighbour);
    }

    private void neighbourGoesOn() throws Exception {
        assertThat(cluster.runsUndisturbed(neighbour))
                .as("the neighbour runs in its first attempt")
                .isTrue();
        int before = NEIGHBOUR.completedCheckpoints();
        long next = NEIGHBOUR.emitted() + 500;
        NEIGHBOUR.pauseAt(next);
        NEIGHBOUR.awaitEmitted(next);
        Await.until(
                Duration.ofSeconds(30),
                "two more checkpoints of the neighbour",
                () -> NEIGHBOUR.completedCheckpoints() >= before + 2);
    }

    private static void count(StreamExecutionEnvironment environment, Control control) {
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new Counting(control, Registration.SAME_ORDER))
                .uid("count")
                .addSink(new LatestSink<>(control))
                .uid("sink");
    }

    private StreamExecutionEnvironment job(Configuration options) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, 2);
        count(environment, control);
        return environment;
    }

    private Configuration options() {
        Configuration options = TestCluster.manualOptions(directory.resolve("checkpoints"));
        options.setString("state.backend.weir.store.timeout", "2 s");
        return options;
    }

    /** Counts 3,000 numbers, and returns the checkpoint that is left of the job. */
    private String retainedCheckpoint(Configuration options) throws Exception {
        control.pauseAt(3_000);
        JobID job = cluster.submit(job(options));
        control.awaitEmitted(3_000);
        String checkpoint = cluster.checkpoint(job);
        cluster.cancel(job);
        return checkpoint;
    }

    private String failure(Configuration options, String checkpoint) throws Exception {
        String text =
                ExceptionUtils.stringifyException(cluster.failureOf(job(options), checkpoint));
        neighbourGoesOn();
        return text;
    }

    /** Goes on from the checkpoint to the end; the counts are those of a job that never stopped. */
    private void restoreSucceeds(Configuration options, String checkpoint) throws Exception {
        JobID job = cluster.submit(job(options), checkpoint, RecoveryClaimMode.NO_CLAIM);
        cluster.awaitRunning(job);
        long total = control.finishAfter(5_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
    }

    private void changedHandleIsRefused(UnaryOperator<byte[]> change, String... named)
            throws Exception {
        String checkpoint = retainedCheckpoint(options());
        byte[] good = Files.readAllBytes(Handles.metadata(checkpoint));
        assertThat(Handles.rewrite(checkpoint, change))
                .as("handles in the checkpoint")
                .isEqualTo(2);
        String id = checkpoint.substring(checkpoint.lastIndexOf("chk-") + "chk-".length());
        assertThat(failure(options(), checkpoint)).contains("checkpoint " + id).contains(named);
        Files.write(Handles.metadata(checkpoint), good);
        restoreSucceeds(options(), checkpoint);
    }

    @Test
    void corruptHandle() throws Exception {
        changedHandleIsRefused(
                handle -> {
                    handle[handle.length / 2] ^= 0x40;
                    return handle;
                },
                "CorruptHandleException");
    }

    @Test
    void truncatedHandle() throws Exception {
        changedHandleIsRefused(
                handle -> Arrays.copyOf(handle, handle.length / 2), "CorruptHandleException");
    }

    @Test
    void handleTruncatedWithinItsHead() throws Exception {
        changedHandleIsRefused(handle -> Arrays.copyOf(handle, 5), "CorruptHandleException");
    }

    @Test
    void handleOfANewerFormat() throws Exception {
        changedHandleIsRefused(
                handle -> {
                    ByteBuffer.wrap(handle).putShort(4, (short) 999);
                    return handle;
                },
                "HandleFormatException",
                "999");
    }

    @Test
    void storeDirectoryMissing() throws Exception {
        String checkpoint = retainedCheckpoint(options());
        Path store = directory.resolve("checkpoints/weir");
        Path away = directory.resolve("away");
        Files.move(store, away);
        assertThat(failure(options(), checkpoint))
                .contains("MissingVersionException", store.toString());
        Folder.delete(store);
        Files.move(away, store);
        restoreSucceeds(options(), checkpoint);
    }

    @Test
    void aDatabaseFileMissing() throws Exception {
        String checkpoint = retainedCheckpoint(options());
        Path store = directory.resolve("checkpoints/weir");
        Path away = Files.createDirectories(directory.resolve("away"));
        int[] moved = {0};
        for (Folder.Entry file : Folder.files(store)) {
            if (file.path().toString().endsWith(".sst")) {
                Files.move(file.path(), away.resolve(moved[0]++ + ".sst"));
                Files.writeString(away.resolve(moved[0] - 1 + ".path"), file.path().toString());
            }
        }
        assertThat(moved[0]).isPositive();
        control.pauseAt(6_000); // so that rows are read
        assertThat(failure(options(), checkpoint))
                .contains("io.weir.flink.errors", store.toString());
        for (int i = 0; i < moved[0]; i++) {
            Path back = Path.of(Files.readString(away.resolve(i + ".path")));
            Files.createDirectories(back.getParent());
            Files.move(away.resolve(i + ".sst"), back);
        }
        restoreSucceeds(options(), checkpoint);
    }

    @Test
    void aFileInPlaceOfTheStoreDirectory() throws Exception {
        Path store = Files.writeString(directory.resolve("store"), "not a directory");
        Configuration options = options();
        options.setString(STORE_DIRECTORY, store.toUri().toString());
        assertThat(failure(options, null)).contains("StoreUnavailableException", store.toString());
        Files.delete(store);
        String checkpoint = retainedCheckpoint(options);
        restoreSucceeds(options, checkpoint);
    }

    @Test
    void storeNotWritable() throws Exception {
        try (Folder.Mount mount = Folder.Mount.of(directory.resolve("mount"), "64m")) {
            assumeTrue(mount != null, "mounting a file system");
            Configuration options = options();
            options.setString(STORE_DIRECTORY, directory.resolve("mount/store").toUri().toString());
            String checkpoint = retainedCheckpoint(options);
            mount.remount("ro");
            assertThat(failure(options, checkpoint))
                    .contains(
                            "StoreUnavailableException",
                            directory.resolve("mount/store").toString());
            mount.remount("rw");
            restoreSucceeds(options, checkpoint);
        }
    }

    @Test
    void diskFull() throws Exception {
        try (Folder.Mount mount = Folder.Mount.of(directory.resolve("mount"), "3m")) {
            assumeTrue(mount != null, "mounting a file system");
            Configuration options = options();
            options.setString(STORE_DIRECTORY, directory.resolve("mount/store").toUri().toString());
            control.pauseAt(1_000);
            JobID job = cluster.submit(filling(options));
            control.awaitEmitted(1_000);
            String checkpoint = cluster.checkpoint(job);
            control.pauseAt(20_000);
            control.awaitEmitted(20_000);
            assertThat(failureOfCheckpointing(job))
                    .contains(
                            "StoreUnavailableException",
                            directory.resolve("mount/store").toString(),
                            "No space");
            neighbourGoesOn();
            mount.remount("size=256m");
            job = cluster.submit(filling(options), checkpoint, RecoveryClaimMode.NO_CLAIM);
            cluster.checkpoint(job);
            long total = control.finishAfter(1_000);
            cluster.awaitFinished(job);
            assertThat(control.results()).hasSize((int) total).containsValue(1L);
            assertThat(control.results().values()).containsOnly(1L);
        }
    }

    /**
     * What a checkpoint fails with, and its job after it: Flink gives the cause only to the one who
     * asked for it.
     */
    private static String failureOfCheckpointing(JobID job) throws Exception {
        String text;
        try {
            text = "succeeded: " + cluster.checkpoint(job);
        } catch (Exception | AssertionError failure) {
            text = ExceptionUtils.stringifyException(failure);
        }
        return text + ExceptionUtils.stringifyException(cluster.failureOf(job));
    }

    /** A kilobyte for each number. */
    private StreamExecutionEnvironment filling(Configuration options) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, 1);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .keyBy(n -> n)
                .process(new Overwriting(1_000))
                .uid("filling")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        return environment;
    }

    @Test
    void checkpointsInTheJobManagersMemory() throws Exception {
        Configuration options = options();
        options.set(CheckpointingOptions.CHECKPOINT_STORAGE, "jobmanager");
        options.removeConfig(CheckpointingOptions.CHECKPOINTS_DIRECTORY);
        assertThat(failure(options, null)).contains(STORE_DIRECTORY, "execution.checkpointing.dir");
        String checkpoint = retainedCheckpoint(options());
        restoreSucceeds(options(), checkpoint);
    }

    @Test
    void aJobWithoutCheckpointsNeedsNoDirectory() throws Exception {
        Configuration options = options();
        options.removeConfig(CheckpointingOptions.CHECKPOINTS_DIRECTORY);
        options.removeConfig(CheckpointingOptions.CHECKPOINTING_INTERVAL);
        options.set(CheckpointingOptions.TOLERABLE_FAILURE_NUMBER, 10);
        control.pauseAt(1_000);
        JobID job = cluster.submit(job(options));
        control.awaitEmitted(1_000);
        cluster.awaitRunning(job);
        assertThat(temporaryStores()).as("one for each subtask").hasSize(2);

        // What dies with the worker cannot be part of a checkpoint.
        assertThatThrownBy(() -> cluster.checkpoint(job))
                .hasStackTraceContaining("InvalidArgumentException")
                .hasStackTraceContaining("execution.checkpointing.dir");

        long total = control.finishAfter(5_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
        assertThat(temporaryStores()).isEmpty();
        neighbourGoesOn();
    }

    private static List<Path> temporaryStores() throws IOException {
        try (Stream<Path> paths = Files.walk(shared.resolve("tmp"))) {
            return paths.filter(path -> path.getFileName().toString().startsWith("weir-store-"))
                    .collect(Collectors.toList());
        }
    }

    @Test
    void aSchemeThatCannotBeReached() throws Exception {
        Configuration options = options();
        options.setString(STORE_DIRECTORY, "hdfs://nowhere:9000/weir");
        assertThat(failure(options, null)).contains(STORE_DIRECTORY, "hdfs");
        String checkpoint = retainedCheckpoint(options());
        restoreSucceeds(options(), checkpoint);
    }

    @Test
    void aStateRegisteredAgainAsAnotherKind() throws Exception {
        String checkpoint = retainedCheckpoint(options());
        StreamExecutionEnvironment environment = TestCluster.environment(options(), 2);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new CountAsMap())
                .uid("count")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        String text = ExceptionUtils.stringifyException(cluster.failureOf(environment, checkpoint));
        neighbourGoesOn();
        assertThat(text).contains("StateKindMismatchException", "count", "VALUE", "MAP");
        restoreSucceeds(options(), checkpoint);
    }

    /** Registers as a map what {@link Counting} keeps as a value. */
    private static final class CountAsMap
            extends KeyedProcessFunction<Long, Long, Tuple2<Long, Long>> {
        private static final long serialVersionUID = 1L;

        private transient MapState<Long, Long> count;

        @Override
        public void open(OpenContext context) {
            count =
                    getRuntimeContext()
                            .getMapState(new MapStateDescriptor<>("count", Long.class, Long.class));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Tuple2<Long, Long>> out)
                throws Exception {
            count.put(number, number);
            out.collect(Tuple2.of(context.getCurrentKey(), number));
        }
    }
}
