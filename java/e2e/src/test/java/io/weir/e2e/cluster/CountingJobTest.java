package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Counting;
import io.weir.e2e.jobs.Counting.Registration;
import io.weir.e2e.jobs.Handles;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.RecoveryClaimMode;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** A job that counts must count exactly, whatever fails and at whatever parallelism it goes on. */
class CountingJobTest {
    private static final int KEYS = 500;

    @TempDir static Path directory;
    private static TestCluster cluster;

    private final Control control = new Control();

    @BeforeAll
    static void start() throws Exception {
        cluster = new TestCluster(4, directory);
    }

    @AfterAll
    static void stop() throws Exception {
        cluster.close();
    }

    private StreamExecutionEnvironment job(
            Configuration options, int parallelism, Registration registration) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, parallelism);
        numbers(environment)
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new Counting(control, registration))
                .uid("count")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        return environment;
    }

    private DataStream<Long> numbers(StreamExecutionEnvironment environment) {
        return environment.addSource(new NumberSource(control)).uid("numbers").setParallelism(1);
    }

    @ParameterizedTest
    @EnumSource(names = "NONE", mode = EnumSource.Mode.EXCLUDE)
    void countsExactlyOnceThroughAFailure(Control.Failure failure, @TempDir Path checkpoints)
            throws Exception {
        JobID job =
                cluster.submit(
                        job(
                                TestCluster.options(checkpoints, Duration.ofMillis(100)),
                                3,
                                Registration.SAME_ORDER));
        control.failOnce(failure);
        Await.until(Duration.ofSeconds(60), "the failure", () -> control.failures() == 1);
        int before = control.completedCheckpoints();
        Await.until(
                Duration.ofSeconds(60),
                "checkpoints after the restore",
                () -> control.completedCheckpoints() >= before + 2);
        long total = control.finishAfter(2_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
    }

    @Test
    void manyFailuresInARowLoseNothing(@TempDir Path checkpoints) throws Exception {
        JobID job =
                cluster.submit(
                        job(
                                TestCluster.options(checkpoints, Duration.ofMillis(50)),
                                2,
                                Registration.SAME_ORDER));
        Control.Failure[] kinds = Control.Failure.values();
        for (int i = 0; i < 8; i++) {
            int nth = i + 1;
            control.failOnce(kinds[1 + i % (kinds.length - 1)]);
            Await.until(Duration.ofSeconds(60), "failure " + nth, () -> control.failures() == nth);
        }
        long total = control.finishAfter(1_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
    }

    @Test
    void rescalesFrom1To3To2(@TempDir Path checkpoints) throws Exception {
        runAtParallelisms(checkpoints, Registration.SAME_ORDER, RecoveryClaimMode.CLAIM, 1, 3, 2);
    }

    @Test
    void rescalesWithoutClaimingTheCheckpoint(@TempDir Path checkpoints) throws Exception {
        runAtParallelisms(
                checkpoints, Registration.SAME_ORDER, RecoveryClaimMode.NO_CLAIM, 2, 2, 3);
    }

    @Test
    void subtasksMayRegisterStatesInDifferentOrders(@TempDir Path checkpoints) throws Exception {
        runAtParallelisms(
                checkpoints, Registration.ORDER_BY_SUBTASK, RecoveryClaimMode.CLAIM, 3, 2, 3);
    }

    /** Runs the job once at each parallelism, from the retained checkpoint of the run before. */
    private void runAtParallelisms(
            Path checkpoints,
            Registration registration,
            RecoveryClaimMode mode,
            int... parallelisms)
            throws Exception {
        Configuration options = TestCluster.manualOptions(checkpoints);
        String checkpoint = null;
        for (int i = 0; i < parallelisms.length; i++) {
            long until = 4_000L * (i + 1);
            control.pauseAt(until);
            JobID job =
                    cluster.submit(job(options, parallelisms[i], registration), checkpoint, mode);
            control.awaitEmitted(until);
            checkpoint = cluster.checkpoint(job);
            if (i < parallelisms.length - 1) {
                cluster.cancel(job);
            } else {
                long total = control.finishAfter(1_000);
                cluster.awaitFinished(job);
                assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
            }
        }
    }

    @Test
    void aRunOfRecordsAfterTheCheckpointIsForgotten(@TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.manualOptions(checkpoints);
        control.pauseAt(3_000);
        JobID job = cluster.submit(job(options, 2, Registration.SAME_ORDER));
        control.awaitEmitted(3_000);
        String first = cluster.checkpoint(job);
        control.pauseAt(6_000);
        control.awaitEmitted(6_000);
        String second = cluster.checkpoint(job);
        assertThat(second).isNotEqualTo(first);
        control.pauseAt(9_000); // dirty and partly flushed when the job is cancelled
        control.awaitEmitted(9_000);
        cluster.cancel(job);

        control.results().clear();
        control.reset().pauseAt(6_100);
        job =
                cluster.submit(
                        job(options, 3, Registration.SAME_ORDER),
                        second,
                        RecoveryClaimMode.NO_CLAIM);
        control.awaitEmitted(6_100);
        long total = control.finishAfter(900);
        assertThat(total).isEqualTo(7_000);
        cluster.awaitFinished(job);
        Map<Object, Object> expected = Counting.expected(7_000, KEYS);
        expected.keySet().retainAll(control.resultKeys());
        assertThat(control.results()).isEqualTo(expected).hasSizeGreaterThan(KEYS / 2);
    }

    @Test
    void aStateNotRegisteredAgainSurvivesTwoRestores(@TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.manualOptions(checkpoints);
        String checkpoint = null;
        Registration[] runs = {
            Registration.SAME_ORDER,
            Registration.WITHOUT_MAP_AND_LIST,
            Registration.WITHOUT_MAP_AND_LIST,
            Registration.SAME_ORDER
        };
        int[] parallelisms = {2, 3, 1, 2};
        control.pauseAt(4_000);
        for (int i = 0; i < runs.length; i++) {
            JobID job = cluster.submit(job(options, parallelisms[i], runs[i]), checkpoint);
            if (i == 0) {
                control.awaitEmitted(4_000);
            }
            checkpoint = cluster.checkpoint(job);
            if (i < runs.length - 1) {
                cluster.cancel(job);
            } else {
                control.results().clear();
                long total = control.finishAfter(10_000);
                cluster.awaitFinished(job);
                assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
            }
        }
    }

    @Test
    void theHandleDoesNotGrowWithTheState(@TempDir Path checkpoints) throws Exception {
        assumeTrue(BackendUnderTest.isWeir(), "about Weir's handle");
        Configuration options = TestCluster.manualOptions(checkpoints);
        List<Integer> sizes = new ArrayList<>();
        control.pauseAt(0);
        JobID job = cluster.submit(job(options, 1, Registration.SAME_ORDER));
        for (long numbers : new long[] {100, 10_000}) {
            control.pauseAt(numbers);
            control.awaitEmitted(numbers);
            Handles.rewrite(
                    cluster.checkpoint(job),
                    handle -> {
                        sizes.add(handle.length);
                        return handle;
                    });
        }
        cluster.cancel(job);
        System.out.printf("bytes of a handle after 100 and after 10,000 numbers: %s%n", sizes);
        assertThat(sizes).hasSize(2);
        // Serializer snapshots of five states are in it.
        assertThat(sizes.get(1)).isLessThan(8_192).isCloseTo(sizes.get(0), within(16));
    }

    @Test
    void twoChainedStatefulOperatorsCountExactly(@TempDir Path checkpoints) throws Exception {
        StreamExecutionEnvironment environment =
                TestCluster.environment(
                        TestCluster.options(checkpoints, Duration.ofMillis(100)), 3);
        DataStream<Tuple2<Long, String>> first =
                numbers(environment)
                        .keyBy(n -> Counting.key(n, KEYS))
                        .process(new Counting(control, Registration.SAME_ORDER))
                        .uid("first");
        // The key of the second is that of the first, so that both run in one task without an
        // exchange between.
        DataStreamUtils.reinterpretAsKeyedStream(first, result -> result.f0)
                .process(new ResultsSeen())
                .uid("second")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        JobID job = cluster.submit(environment);
        for (int i = 1; i <= 2; i++) {
            int nth = i;
            control.failOnce(Control.Failure.BETWEEN_BARRIER_AND_COMPLETION);
            Await.until(Duration.ofSeconds(60), "failure " + nth, () -> control.failures() == nth);
        }
        long total = control.finishAfter(2_000);
        cluster.awaitFinished(job);
        Map<Object, Object> expected =
                Counting.expected(total, KEYS).entrySet().stream()
                        .collect(
                                Collectors.toMap(
                                        Map.Entry::getKey,
                                        e ->
                                                e.getValue().toString().split(" ")[0]
                                                        + ": "
                                                        + e.getValue()));
        assertThat(control.results()).isEqualTo(expected);
    }
}
