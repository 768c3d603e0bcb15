package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.jobs.TestCluster;
import io.weir.e2e.jobs.UserJob;
import io.weir.flink.WeirStateBackendFactory;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.io.File;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Collectors;

/**
 * Two jobs in one process, whose classes have the same names and come from loaders of their own.
 */
class ClassLoadersTest {

    @TempDir Path directory;

    private final ConcurrentMap<String, Object> results = new ConcurrentHashMap<>();

    @Test
    void eachJobWithItsOwnKeysAndValues() throws Exception {
        runTwoJobs("io.weir.flink.");
        assertThat(results.get("job0 state"))
                .isSameAs(WeirStateBackendFactory.class.getClassLoader());
        assertThat(results.get("job1 state"))
                .isSameAs(WeirStateBackendFactory.class.getClassLoader());
    }

    /** As where the jar is part of the job's: each loads a native library of its own. */
    @Test
    void eachJobWithItsOwnBackendAndLibrary() throws Exception {
        runTwoJobs("no.such.package.");
        assertThat(results.get("job0 state"))
                .isSameAs(results.get("job0 function"))
                .isNotSameAs(results.get("job1 state"));
    }

    private void runTwoJobs(String ofTheCluster) throws Exception {
        System.getProperties().put(UserJob.RESULTS, results);
        Configuration clusterOptions = new Configuration();
        clusterOptions.set(
                CoreOptions.ALWAYS_PARENT_FIRST_LOADER_PATTERNS_ADDITIONAL, List.of(ofTheCluster));
        try (TestCluster cluster = new TestCluster(2, directory, clusterOptions)) {
            List<JobID> jobs = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                Configuration options =
                        TestCluster.options(
                                directory.resolve("checkpoints" + i), Duration.ofMillis(50));
                options.set(PipelineOptions.CLASSPATHS, ownClasses());
                StreamExecutionEnvironment environment = TestCluster.environment(options, 1);
                UserJob.define(environment, "job" + i);
                jobs.add(cluster.submit(environment));
            }
            for (JobID job : jobs) {
                cluster.awaitFinished(job);
            }
        } finally {
            System.getProperties().remove(UserJob.RESULTS);
        }
        for (String job : new String[] {"job0", "job1"}) {
            assertThat(results).containsKey(job + " failed");
            for (int key = 0; key < UserJob.KEYS; key++) {
                assertThat(results.get(job + " key" + key))
                        .isEqualTo(UserJob.NUMBERS / UserJob.KEYS);
            }
            assertThat(results.get(job + " function")).isNotSameAs(getClass().getClassLoader());
        }
        assertThat(results.get("job0 function")).isNotSameAs(results.get("job1 function"));
    }

    /** Where this module's and the backend's classes and the library lie. */
    private static List<String> ownClasses() {
        return Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                .filter(entry -> !entry.contains("/.gradle/") && !entry.contains("/.m2/"))
                .map(entry -> new File(entry).toURI().toString())
                .collect(Collectors.toList());
    }
}
