package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Folder;
import io.weir.e2e.jobs.LatestSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.Overwriting;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.io.FileOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A task that waits for the store ends within seconds when it is cancelled. */
class CancellationTest {
    private static final Duration SECONDS = Duration.ofSeconds(10);

    @TempDir Path directory;
    private final Control control = new Control();

    @BeforeAll
    static void needsWeir() {
        assumeTrue(BackendUnderTest.isEmbedded(), "about Weir's store");
    }

    private StreamExecutionEnvironment job(Configuration options, long keys) {
        StreamExecutionEnvironment environment = TestCluster.environment(options, 1);
        environment
                .addSource(new NumberSource(control))
                .uid("numbers")
                .keyBy(n -> n % keys)
                .process(new Overwriting(1_000))
                .uid("overwriting")
                .addSink(new LatestSink<>(control))
                .uid("sink");
        return environment;
    }

    /**
     * The store's disk is full, which the engine hopes will pass; meanwhile the writer waits for
     * room.
     */
    @Test
    void whileAFlushIsBlocked() throws Exception {
        try (Folder.Mount mount = Folder.Mount.of(directory.resolve("mount"), "4m");
                TestCluster cluster = new TestCluster(1, directory)) {
            assumeTrue(mount != null, "mounting a file system");
            Configuration options = TestCluster.manualOptions(directory.resolve("checkpoints"));
            options.setString(
                    "state.backend.weir.directory",
                    directory.resolve("mount/store").toUri().toString());
            options.setString("state.backend.weir.store.timeout", "10 min");
            JobID job = cluster.submit(job(options, Long.MAX_VALUE));
            cluster.awaitRunning(job);
            control.awaitEmitted(4_000);
            awaitStandstill();
            assertThat(cluster.cancel(job)).isLessThan(SECONDS);
        }
    }

    /** A read of the store does not come back: its files are pipes that nobody writes. */
    @Test
    void whileAMissIsBlocked() throws Exception {
        long keys = 5_000;
        List<Path> pipes = new ArrayList<>();
        try (TestCluster cluster = new TestCluster(1, directory)) {
            Configuration options = TestCluster.manualOptions(directory.resolve("checkpoints"));
            control.pauseAt(keys);
            JobID job = cluster.submit(job(options, keys));
            control.awaitEmitted(keys);
            String checkpoint = cluster.checkpoint(job);
            cluster.cancel(job);
            // Restored, it has none of its rows in memory yet.
            job = cluster.submit(job(options, keys), checkpoint);
            cluster.awaitRunning(job);
            for (Folder.Entry file : Folder.files(directory.resolve("checkpoints/weir"))) {
                if (file.path().toString().endsWith(".sst")) {
                    Files.delete(file.path());
                    assertThat(
                                    new ProcessBuilder("mkfifo", file.path().toString())
                                            .start()
                                            .waitFor())
                            .isZero();
                    pipes.add(file.path());
                }
            }
            assertThat(pipes).isNotEmpty();
            control.results().clear();
            control.pauseAt(3 * keys);
            awaitStandstill();
            assertThat(cluster.cancel(job)).isLessThan(SECONDS);
        } finally {
            for (Path pipe : pipes) {
                // Opened for reading and writing, a pipe lets all readers go.
                new Thread(() -> release(pipe)).start();
            }
        }
    }

    private static void release(Path pipe) {
        try (FileOutputStream out = new FileOutputStream(pipe.toFile())) {
            out.write(0);
        } catch (Exception e) {
            // no reader is left
        }
    }

    /** Waits until the task is inside Weir and no record comes out any more. */
    private void awaitStandstill() throws Exception {
        Await.until(
                Duration.ofSeconds(60),
                "the task waits in the native library",
                () -> {
                    Object sample = Map.copyOf(control.results());
                    Thread.sleep(300);
                    return sample.equals(Map.copyOf(control.results()))
                            && Thread.getAllStackTraces().values().stream()
                                    .anyMatch(CancellationTest::isInNativeCall);
                });
    }

    private static boolean isInNativeCall(StackTraceElement[] stack) {
        return stack.length > 0
                && stack[0].isNativeMethod()
                && stack[0].getClassName().startsWith("io.weir.flink.nativelib");
    }
}
