package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.Overwriting;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;

/**
 * Forty backends in one process share threads and caches: ten stateful operators by four subtasks.
 */
class ResourceBoundsTest {
    private static final int OPERATORS = 10;
    private static final int PARALLELISM = 4;
    private static final long NUMBERS = 20_000;

    /** Threads that are not the JVM's, open files, and resident bytes of this process. */
    private record Figures(
            int nativeThreads,
            int files,
            long residentMegabytes,
            Map<String, Integer> threadNames) {
        static Figures now() throws Exception {
            Map<String, Integer> names = new TreeMap<>();
            for (File thread : new File("/proc/self/task").listFiles()) {
                try {
                    String name = Files.readString(thread.toPath().resolve("comm")).trim();
                    if (name.startsWith("weir")
                            || name.startsWith("tokio")
                            || name.startsWith("slatedb")) {
                        names.merge(name.replaceAll("[0-9]+$", ""), 1, Integer::sum);
                    }
                } catch (IOException gone) {
                    // the thread has ended meanwhile
                }
            }
            long resident = 0;
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith("VmRSS:")) {
                    resident = Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024;
                }
            }
            int threads = names.values().stream().mapToInt(Integer::intValue).sum();
            return new Figures(threads, new File("/proc/self/fd").list().length, resident, names);
        }
    }

    @Test
    void threadsFilesAndMemoryAreBounded(@TempDir Path directory) throws Exception {
        try (TestCluster cluster = new TestCluster(PARALLELISM, directory)) {
            Configuration hashMap =
                    TestCluster.options(directory.resolve("hashmap"), Duration.ofMillis(300));
            hashMap.set(StateBackendOptions.STATE_BACKEND, "hashmap");
            Figures reference = run(cluster, hashMap);
            Figures figures =
                    run(
                            cluster,
                            TestCluster.options(
                                    directory.resolve("checkpoints"), Duration.ofMillis(300)));
            System.out.printf("on the HashMap backend %s%non this one %s%n", reference, figures);

            assertThat(figures.nativeThreads())
                    .as("native threads %s", figures)
                    .isLessThanOrEqualTo(24);
            assertThat(figures.files() - reference.files())
                    .as("more open files")
                    .isLessThanOrEqualTo(100);
            assertThat(figures.residentMegabytes() - reference.residentMegabytes())
                    .as("more resident megabytes")
                    .isLessThanOrEqualTo(600);
        }
    }

    /** Runs the job, checks its results, and returns the greatest figures seen meanwhile. */
    private static Figures run(TestCluster cluster, Configuration options) throws Exception {
        Control control = new Control().pauseAt(NUMBERS);
        StreamExecutionEnvironment environment = TestCluster.environment(options, PARALLELISM);
        DataStream<Long> numbers =
                environment.addSource(new NumberSource(control)).uid("numbers").setParallelism(1);
        for (int i = 0; i < OPERATORS - 1; i++) {
            int salt = i;
            numbers =
                    numbers.keyBy(n -> (n + salt) % 1_000).process(new PassingOn()).uid("pass" + i);
        }
        DataStream<Tuple2<Long, Long>> counts =
                numbers.keyBy(n -> n % 1_000).process(new Overwriting(500)).uid("last");
        counts.addSink(new LatestSink<>(control)).uid("sink");

        JobID job = cluster.submit(environment);
        Figures greatest = Figures.now();
        long end = System.nanoTime() + Duration.ofSeconds(120).toNanos();
        while (control.emitted() < NUMBERS || control.completedCheckpoints() < 5) {
            assertThat(System.nanoTime())
                    .as("20,000 numbers and 5 checkpoints in 2 minutes")
                    .isLessThan(end);
            Thread.sleep(50);
            Figures now = Figures.now();
            greatest =
                    new Figures(
                            Math.max(greatest.nativeThreads, now.nativeThreads),
                            Math.max(greatest.files, now.files),
                            Math.max(greatest.residentMegabytes, now.residentMegabytes),
                            now.threadNames);
        }
        long total = control.finishAfter(1_000);
        cluster.awaitFinished(job);
        assertThat(control.results()).hasSize(1_000);
        assertThat(control.results().values()).containsOnly(total / 1_000);
        return greatest;
    }
}
