package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Counting;
import io.weir.e2e.jobs.Counting.Registration;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.StateChangelogOptions;
import org.apache.flink.configuration.StateLatencyTrackOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.configuration.StateSizeTrackOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.Histogram;
import org.apache.flink.metrics.Metric;
import org.apache.flink.runtime.testutils.InMemoryReporter;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

/** What Flink lets a job choose beside its state backend: it works, or its option is named. */
class ModesTest {
    private static final int KEYS = 500;

    @TempDir static Path directory;
    private static InMemoryReporter reporter;
    private static TestCluster cluster;

    private final Control control = new Control();

    @BeforeAll
    static void start() throws Exception {
        reporter = InMemoryReporter.createWithRetainedMetrics();
        Configuration options = new Configuration();
        reporter.addToConfiguration(options);
        options.set(StateChangelogOptions.STATE_CHANGE_LOG_STORAGE, "filesystem");
        options.setString("dstl.dfs.base-path", directory.resolve("changelog").toUri().toString());
        cluster = new TestCluster(4, directory, options);
    }

    @AfterAll
    static void stop() throws Exception {
        cluster.close();
    }

    enum Mode {
        UNALIGNED_CHECKPOINTS {
            @Override
            void set(Configuration options) {
                options.set(CheckpointingOptions.ENABLE_UNALIGNED, true);
            }
        },
        CONCURRENT_CHECKPOINTS {
            @Override
            void set(Configuration options) {
                options.set(CheckpointingOptions.MAX_CONCURRENT_CHECKPOINTS, 3);
                options.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(20));
            }
        },
        OBJECT_REUSE {
            @Override
            void set(Configuration options) {
                options.set(PipelineOptions.OBJECT_REUSE, true);
            }
        },
        LOCAL_RECOVERY {
            @Override
            void set(Configuration options) {
                options.set(StateRecoveryOptions.LOCAL_RECOVERY, true);
                options.set(CheckpointingOptions.LOCAL_BACKUP_ENABLED, true);
            }
        },
        FULL_CHECKPOINTS {
            @Override
            void set(Configuration options) {
                options.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, false);
            }
        },
        MERGED_CHECKPOINT_FILES {
            @Override
            void set(Configuration options) {
                options.set(CheckpointingOptions.FILE_MERGING_ENABLED, true);
                options.set(CheckpointingOptions.FS_SMALL_FILE_THRESHOLD, MemorySize.ZERO);
            }
        },
        COMPRESSED_SNAPSHOTS {
            @Override
            void set(Configuration options) {
                options.setString("execution.checkpointing.snapshot-compression", "true");
            }
        },
        LATENCY_AND_SIZE_TRACKING {
            @Override
            void set(Configuration options) {
                track(options, 10);
            }
        },
        /** Flink's checkpoints stay in the JobManager; the rows lie where the directory says. */
        CHECKPOINTS_IN_THE_JOBMANAGER {
            @Override
            void set(Configuration options) {
                options.set(CheckpointingOptions.CHECKPOINT_STORAGE, "jobmanager");
            }
        },
        CHANGELOG {
            @Override
            void set(Configuration options) {
                options.set(StateChangelogOptions.ENABLE_STATE_CHANGE_LOG, true);
                options.set(
                        StateChangelogOptions.PERIODIC_MATERIALIZATION_INTERVAL,
                        Duration.ofMillis(300));
            }
        };

        abstract void set(Configuration options);
    }

    private static void track(Configuration options, int sampleInterval) {
        options.set(StateLatencyTrackOptions.LATENCY_TRACK_ENABLED, true);
        options.set(StateLatencyTrackOptions.LATENCY_TRACK_SAMPLE_INTERVAL, sampleInterval);
        options.set(StateSizeTrackOptions.SIZE_TRACK_ENABLED, true);
        options.set(StateSizeTrackOptions.SIZE_TRACK_SAMPLE_INTERVAL, sampleInterval);
    }

    private StreamExecutionEnvironment job(Configuration options) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, 2);
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

    @ParameterizedTest
    @EnumSource
    void countsExactlyOnceThroughFailures(Mode mode, @TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.options(checkpoints, Duration.ofMillis(100));
        // What a small working set does has tests of its own, and slows what is looked at here.
        options.setString("state.backend.weir.memory.working-set", "16 mb");
        mode.set(options);
        JobID job = cluster.submit(job(options));
        int failures = 0;
        for (Control.Failure failure :
                new Control.Failure[] {
                    Control.Failure.BETWEEN_BARRIER_AND_COMPLETION, Control.Failure.BEFORE_SNAPSHOT
                }) {
            int nth = ++failures;
            control.failOnce(failure);
            Await.until(Duration.ofSeconds(60), "a failure", () -> control.failures() == nth);
            int before = control.completedCheckpoints();
            Await.until(
                    Duration.ofSeconds(60),
                    "checkpoints after the restore",
                    () -> control.completedCheckpoints() >= before + 2);
        }
        assertThat(control.restoredCheckpoint()).isPositive();
        long total = control.finishAfter(2_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).isEqualTo(Counting.expected(total, KEYS));
    }

    @Test
    void latencyAndSizeAreMeasuredByOption(@TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.options(checkpoints, Duration.ofMillis(100));
        track(options, 2); // Flink measures nothing with 1
        control.finishAt(3_000);
        JobID tracked = cluster.submit(job(options));
        cluster.awaitFinished(tracked);
        for (String metric :
                new String[] {
                    "count.valueStateGetLatency",
                    "count.valueStateUpdateLatency",
                    "sevenths.listStateAddLatency",
                    "remainders.mapStatePutLatency",
                    "greatest.reducingStateAddLatency",
                    "sum.aggregatingStateAddLatency",
                    "count.valueStateGetKeySize",
                    "sevenths.listStateAddKeySize",
                    "remainders.mapStatePutKeySize"
                }) {
            Histogram histogram = (Histogram) metric(tracked, metric);
            assertThat(histogram.getCount()).as(metric).isPositive();
            assertThat(histogram.getStatistics().getMax()).as(metric).isPositive();
        }
        Gauge<?> rows = (Gauge<?>) metric(tracked, "weir.");
        assertThat(rows.getValue()).isInstanceOf(Long.class);

        Control other = new Control().finishAt(100);
        StreamExecutionEnvironment environment =
                TestCluster.environment(
                        TestCluster.options(checkpoints, Duration.ofMillis(100)), 2);
        environment
                .addSource(new NumberSource(other))
                .keyBy(n -> Counting.key(n, KEYS))
                .process(new Counting(other, Registration.SAME_ORDER))
                .addSink(new LatestSink<>(other));
        JobID untracked = cluster.submit(environment);
        cluster.awaitFinished(untracked);
        assertThat(reporter.findMetrics(untracked, "valueStateGetLatency")).isEmpty();
    }

    private static Metric metric(JobID job, String name) {
        Map<String, Metric> found = reporter.findMetrics(job, name);
        assertThat(found).as(name).isNotEmpty();
        return found.values().iterator().next();
    }

    /** As Flink's page shows them. */
    @Test
    void checkpointedAndFullBytes(@TempDir Path checkpoints) throws Exception {
        Configuration options = TestCluster.manualOptions(checkpoints);
        control.pauseAt(20_000);
        JobID job = cluster.submit(job(options));
        control.awaitEmitted(20_000);
        cluster.checkpoint(job);
        JsonNode first = latestAfter(job, 0);
        control.pauseAt(20_050);
        control.awaitEmitted(20_050);
        cluster.checkpoint(job);
        JsonNode second = latestAfter(job, first.get("id").asLong());
        control.finishAfter(0);
        cluster.awaitFinished(job);

        long written = first.get("checkpointed_size").asLong();
        long full = first.get("state_size").asLong();
        assertThat(written).isBetween(20_000L, 20_000_000L);
        assertThat(full).isBetween(20_000L, 20_000_000L);
        assertThat(second.get("checkpointed_size").asLong()).isBetween(500L, written / 2);
        assertThat(second.get("state_size").asLong()).isGreaterThanOrEqualTo(full);
    }

    /** The page is kept for some seconds, so it may show an earlier checkpoint at first. */
    private static JsonNode latestAfter(JobID job, long checkpoint) throws Exception {
        AtomicReference<JsonNode> latest = new AtomicReference<>();
        Await.until(
                Duration.ofSeconds(60),
                "a checkpoint after " + checkpoint + " on the page",
                () -> {
                    latest.set(
                            cluster.rest("/jobs/" + job + "/checkpoints").at("/latest/completed"));
                    return latest.get().path("id").asLong() > checkpoint;
                });
        return latest.get();
    }

    @Test
    void withoutManagedMemoryTheOptionsAreNamedAndAFixedBudgetWorks(@TempDir Path checkpoints)
            throws Exception {
        Configuration none = new Configuration();
        none.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ZERO);
        try (TestCluster poor = new TestCluster(2, checkpoints.resolve("cluster"), none)) {
            Configuration options = TestCluster.manualOptions(checkpoints);
            control.finishAt(2_000);
            Throwable failure = poor.failureOf(job(options), null);
            assertThat(ExceptionUtils.stringifyException(failure))
                    .contains("taskmanager.memory.managed.size")
                    .contains("state.backend.weir.memory.fixed-per-slot");

            options.setString("state.backend.weir.memory.fixed-per-slot", "8 mb");
            control.reset().finishAt(2_000);
            JobID job = poor.submit(job(options));
            poor.awaitFinished(job);
            assertThat(control.results()).isEqualTo(Counting.expected(2_000, KEYS));
        }
    }
}
