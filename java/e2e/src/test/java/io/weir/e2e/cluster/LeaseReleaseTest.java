package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Failing;
import io.weir.e2e.jobs.Folder;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.Overwriting;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;

/** A live JobManager gives back what its checkpoints no longer need. */
class LeaseReleaseTest {
    private static final int KEYS = 2_000;
    private static final int VALUE_BYTES = 1_000;
    private static final int PARALLELISM = 2;
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    private final Control control = new Control();

    @BeforeAll
    static void needsWeir() {
        assumeTrue(BackendUnderTest.isEmbedded(), "about Weir's store");
    }

    @ParameterizedTest(name = "failures={0}")
    @ValueSource(ints = {0, 2})
    void theStoreHoldsWhatTheLastCheckpointNeeds(int failures, @TempDir Path directory)
            throws Exception {
        Path store = directory.resolve("checkpoints/weir");
        Configuration options =
                TestCluster.options(directory.resolve("checkpoints"), Duration.ofMillis(50));
        options.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION);
        options.set(CheckpointingOptions.MAX_RETAINED_CHECKPOINTS, 1);
        Configuration collectSoon = new Configuration();
        collectSoon.setString("state.backend.weir.embedded.gc.min-age", "1 s");
        options.addAll(collectSoon);
        StreamExecutionEnvironment environment = TestCluster.environment(options, PARALLELISM);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .map(new Failing(control))
                .uid("failing")
                .setParallelism(1)
                .keyBy(n -> n % KEYS)
                .process(new Overwriting(VALUE_BYTES))
                .uid("overwriting")
                .addSink(new LatestSink<>(control))
                .uid("sink");

        try (TestCluster cluster = new TestCluster(PARALLELISM, directory, collectSoon)) {
            JobID job = cluster.submit(environment);
            for (int i = 1; i <= failures; i++) {
                int nth = i;
                control.failOnce(Control.Failure.BEFORE_SNAPSHOT);
                Await.until(DEADLINE, "failure " + nth, () -> control.failures() == nth);
            }
            Await.until(
                    Duration.ofSeconds(120),
                    "100 checkpoints",
                    () -> control.completedCheckpoints() >= 100);
            control.pauseAt(control.emitted());

            // All rows, twice: what compaction has not merged yet, and a little for manifests.
            long bound = 3L * KEYS * (VALUE_BYTES + 50) + 2_000_000;
            Await.until(
                    DEADLINE,
                    "at most " + bound + " bytes in the store",
                    () -> Folder.bytes(store) <= bound);
            Await.until(
                    DEADLINE,
                    "one branch for each subtask, not " + branches(store),
                    () -> branches(store).size() == PARALLELISM);
            System.out.printf(
                    "after %d checkpoints and %d failures, %d numbers: %d bytes in %d files,"
                            + " branches %s%n",
                    control.completedCheckpoints(),
                    failures,
                    control.emitted(),
                    Folder.bytes(store),
                    Folder.files(store).size(),
                    branches(store));

            cluster.cancel(job);
            Await.until(DEADLINE, "an empty store", () -> Folder.files(store).isEmpty());
        }
    }

    @Test
    void aRetainedCheckpointThatIsDisposedOfLeavesNothing(@TempDir Path directory)
            throws Exception {
        Path store = directory.resolve("checkpoints/weir");
        StreamExecutionEnvironment environment =
                TestCluster.environment(
                        TestCluster.manualOptions(directory.resolve("checkpoints")), PARALLELISM);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> n % KEYS)
                .process(new Overwriting(VALUE_BYTES))
                .uid("overwriting")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        try (TestCluster cluster = new TestCluster(PARALLELISM, directory)) {
            control.pauseAt(1_000);
            JobID job = cluster.submit(environment);
            control.awaitEmitted(1_000);
            String checkpoint = cluster.checkpoint(job);
            cluster.cancel(job);
            assertThat(branches(store)).as("kept with the checkpoint").hasSize(PARALLELISM);
            cluster.dispose(checkpoint);
            Await.until(DEADLINE, "an empty store", () -> Folder.files(store).isEmpty());
        }
    }

    /** The folders in which a database lies, relative to the store. */
    private static List<String> branches(Path store) throws Exception {
        return Folder.files(store.resolve("branches")).stream()
                .map(Folder.Entry::path)
                .filter(file -> file.getParent().endsWith("manifest"))
                .map(file -> store.relativize(file.getParent().getParent()).toString())
                .distinct()
                .collect(Collectors.toList());
    }
}
