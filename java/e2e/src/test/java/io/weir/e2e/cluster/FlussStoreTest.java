package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.InstanceOfAssertFactories.STRING;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Counting;
import io.weir.e2e.jobs.Counting.Registration;
import io.weir.e2e.jobs.Failing;
import io.weir.e2e.jobs.Handles;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.Overwriting;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.core.execution.RecoveryClaimMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;

/** What a Fluss cluster holds of jobs, and which of their checkpoints it refuses. */
class FlussStoreTest {
    private static final int KEYS = 300;
    private static final int PARALLELISM = 2;
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    @TempDir static Path shared;
    private static TestCluster cluster;

    @TempDir Path checkpoints;
    private final Control control = new Control();

    @BeforeAll
    static void start() throws Exception {
        assumeTrue(BackendUnderTest.isOnFluss(), "about the store on Fluss");
        cluster = new TestCluster(PARALLELISM, shared);
    }

    @AfterAll
    static void stop() throws Exception {
        if (cluster != null) {
            cluster.close();
        }
    }

    /** The branches in Fluss of which anything is left. */
    private static List<String> branches(JobID job) throws Exception {
        ProcessBuilder look =
                new ProcessBuilder(
                        System.getProperty("weir.test.fluss.look"),
                        BackendUnderTest.FLUSS,
                        BackendUnderTest.FLUSS_DATABASE);
        if (BackendUnderTest.FLUSS_USER != null) {
            look.environment()
                    .put(
                            "WEIR_FLUSS_SASL",
                            BackendUnderTest.FLUSS_USER + ":" + BackendUnderTest.FLUSS_PASSWORD);
        }
        Process process = look.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String output = new String(process.getInputStream().readAllBytes());
        assertThat(process.waitFor()).as("exit status of the look into Fluss").isZero();
        return output.lines()
                .filter(line -> line.startsWith("branch " + job.toHexString() + "/"))
                .collect(Collectors.toList());
    }

    @ParameterizedTest(name = "failures={0}")
    @ValueSource(ints = {0, 2})
    void aLiveJobManagerGivesBackWhatItsCheckpointsNoLongerNeed(int failures) throws Exception {
        Configuration options = TestCluster.options(checkpoints, Duration.ofMillis(100));
        options.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION);
        options.set(CheckpointingOptions.MAX_RETAINED_CHECKPOINTS, 1);
        StreamExecutionEnvironment environment = TestCluster.environment(options, PARALLELISM);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .map(new Failing(control))
                .uid("failing")
                .setParallelism(1)
                .keyBy(n -> n % KEYS)
                .process(new Overwriting(100))
                .uid("overwriting")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        JobID job = cluster.submit(environment);
        for (int i = 1; i <= failures; i++) {
            int nth = i;
            control.failOnce(Control.Failure.BEFORE_SNAPSHOT);
            Await.until(DEADLINE, "failure " + nth, () -> control.failures() == nth);
        }
        Await.until(DEADLINE, "20 checkpoints", () -> control.completedCheckpoints() >= 20);
        // What a branch was restored from stays as long as the branch: it may still hold rows.
        int most = PARALLELISM * (1 + failures);
        Await.until(
                DEADLINE,
                "at most " + most + " branches",
                () -> !branches(job).isEmpty() && branches(job).size() <= most);
        cluster.cancel(job);
        Await.until(DEADLINE, "nothing of the job in Fluss", () -> branches(job).isEmpty());
    }

    private StreamExecutionEnvironment counting(Configuration options) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, PARALLELISM);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new Counting(control, Registration.SAME_ORDER))
                .uid("count")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        return environment;
    }

    private String failure(Configuration options, String checkpoint) throws Exception {
        return ExceptionUtils.stringifyException(cluster.failureOf(counting(options), checkpoint));
    }

    @Test
    void onlyTheStoreThatWroteACheckpointRestoresIt() throws Exception {
        Configuration options = TestCluster.manualOptions(checkpoints);
        control.pauseAt(3_000);
        JobID job = cluster.submit(counting(options));
        control.awaitEmitted(3_000);
        String checkpoint = cluster.checkpoint(job);
        cluster.cancel(job);
        assertThat(branches(job)).as("kept with the checkpoint").hasSize(PARALLELISM);
        control.results().clear();

        Configuration embedded = options.clone();
        embedded.setString("state.backend.weir.store", "embedded");
        assertThat(failure(embedded, checkpoint))
                .contains("InvalidArgumentException", "fluss://", "set the option to 'fluss'");
        Configuration otherDatabase = options.clone();
        otherDatabase.setString("state.backend.weir.fluss.database", "other");
        assertThat(failure(otherDatabase, checkpoint))
                .contains("InvalidArgumentException", "state.backend.weir.fluss.database");
        Configuration unreachable = options.clone();
        unreachable.setString("state.backend.weir.fluss.bootstrap-servers", "127.0.0.1:1");
        unreachable.setString("state.backend.weir.store.timeout", "2 s");
        assertThat(failure(unreachable, checkpoint))
                .contains("StoreUnavailableException", "127.0.0.1:1");
        assertThat(control.results()).as("what a refused job has processed").isEmpty();

        JobID restored = cluster.submit(counting(options), checkpoint, RecoveryClaimMode.NO_CLAIM);
        cluster.awaitRunning(restored);
        long total = control.finishAfter(2_000);
        cluster.awaitFinished(restored);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));

        Path copy = Files.createDirectory(checkpoints.resolve("copy"));
        Files.copy(Handles.metadata(checkpoint), copy.resolve("_metadata"));
        cluster.dispose(checkpoint);
        Await.until(DEADLINE, "nothing of the job in Fluss", () -> branches(job).isEmpty());
        assertThat(failure(options, copy.toUri().toString())).contains("MissingVersionException");
    }

    @Test
    void aWrongPasswordIsRefused() throws Exception {
        assumeTrue(BackendUnderTest.FLUSS_PASSWORD != null, "servers that ask for one");
        Configuration options = TestCluster.manualOptions(checkpoints);
        options.setString("state.backend.weir.fluss.sasl.password", "not-the-password");
        // Refused at once, so not as a server that cannot be reached in that time.
        options.setString("state.backend.weir.store.timeout", "10 min");
        control.finishAfter(10);
        assertThat(cluster.failureOf(counting(options), null))
                .hasStackTraceContaining("InvalidArgumentException")
                .hasStackTraceContaining("check the user's name and password")
                .extracting(ExceptionUtils::stringifyException, STRING)
                .doesNotContain("not-the-password");
    }

    @Test
    void noHandleHoldsThePassword() throws Exception {
        assumeTrue(BackendUnderTest.FLUSS_PASSWORD != null, "servers that ask for one");
        control.pauseAt(1_000);
        JobID job = cluster.submit(counting(TestCluster.manualOptions(checkpoints)));
        control.awaitEmitted(1_000);
        String checkpoint = cluster.checkpoint(job);
        cluster.cancel(job);
        String metadata =
                Files.readString(Handles.metadata(checkpoint), StandardCharsets.ISO_8859_1);
        assertThat(metadata)
                .contains("weir://fluss/" + BackendUnderTest.FLUSS)
                .doesNotContain(BackendUnderTest.FLUSS_PASSWORD);
        cluster.dispose(checkpoint);
    }
}
