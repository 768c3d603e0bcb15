package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.jobs.Alarms;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Counting;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;

/**
 * Timers of both times fire once and in order, whatever fails, at whatever parallelism the job goes
 * on, and wherever its timers are kept.
 */
class TimerJobTest {
    private static final int KEYS = 400;
    private static final String OPTION = "state.backend.weir.timer-service.factory";

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

    private StreamExecutionEnvironment job(Configuration options, int parallelism) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, parallelism);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .setParallelism(1)
                .assignTimestampsAndWatermarks(Alarms.watermarks())
                .setParallelism(1)
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new Alarms(control))
                .uid("alarms")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        return environment;
    }

    /** Waits for the timers in processing time, ends the source, and with it all event time. */
    private void finishAndCheck(JobID job, long total) throws Exception {
        control.awaitEmitted(total);
        Map<Object, Object> expected = Alarms.expectedInProcessingTime(total, KEYS);
        Await.until(
                Duration.ofSeconds(60),
                "all timers in processing time",
                () -> control.results().entrySet().containsAll(expected.entrySet()));
        assertThat(control.finishAfter(0)).isEqualTo(total);
        cluster.awaitFinished(job);
        expected.putAll(Alarms.expectedInEventTime(total, KEYS));
        assertThat(control.results()).isEqualTo(expected);
    }

    @ParameterizedTest
    @CsvSource({
        "BEFORE_SNAPSHOT, engine",
        "IN_SYNCHRONOUS_PART, engine",
        "BETWEEN_BARRIER_AND_COMPLETION, engine",
        "AFTER_COMPLETION, engine",
        "BETWEEN_BARRIER_AND_COMPLETION, heap"
    })
    void everyTimerFiresOnceThroughAFailure(
            Control.Failure failure, String timers, @TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.options(checkpoints, Duration.ofMillis(100));
        options.setString(OPTION, timers);
        JobID job = cluster.submit(job(options, 3));
        control.failOnce(failure);
        Await.until(Duration.ofSeconds(60), "the failure", () -> control.failures() == 1);
        int before = control.completedCheckpoints();
        Await.until(
                Duration.ofSeconds(60),
                "checkpoints after the restore",
                () -> control.completedCheckpoints() >= before + 2);
        finishAndCheck(job, control.pauseAfter(1_000));
    }

    @Test
    void rescalesFrom1To3To2(@TempDir Path checkpoints) throws Exception {
        runAt(checkpoints, new int[] {1, 3, 2}, "engine", "engine", "engine");
    }

    @Test
    void timersMoveFromTheHeapToTheEngineAndBack(@TempDir Path checkpoints) throws Exception {
        runAt(checkpoints, new int[] {2, 3, 1, 2}, "heap", "engine", "heap", "engine");
    }

    /** Runs the job once each, from the retained checkpoint of the run before. */
    private void runAt(Path checkpoints, int[] parallelisms, String... timers) throws Exception {
        String checkpoint = null;
        for (int i = 0; i < parallelisms.length; i++) {
            Configuration options = TestCluster.manualOptions(checkpoints);
            options.setString(OPTION, timers[i]);
            long until = 4_000L * (i + 1);
            control.pauseAt(until);
            JobID job = cluster.submit(job(options, parallelisms[i]), checkpoint);
            control.awaitEmitted(until);
            checkpoint = cluster.checkpoint(job);
            if (i < parallelisms.length - 1) {
                cluster.cancel(job);
            } else {
                finishAndCheck(job, control.pauseAfter(1_000));
            }
        }
    }
}
