package io.weir.e2e.jobs;

import io.weir.e2e.BackendUnderTest;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.execution.RecoveryClaimMode;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.jobmaster.JobResult;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.graph.StreamGraph;

import java.io.InputStream;
import java.net.URI;
import java.net.URL;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/** A cluster in this process: one worker with some slots. Every wait has a deadline. */
public final class TestCluster implements AutoCloseable {
    private static final Duration DEADLINE = Duration.ofSeconds(120);

    private final MiniCluster cluster;
    private final Set<JobID> submitted = ConcurrentHashMap.newKeySet();

    public TestCluster(int slots, Path directory) throws Exception {
        this(slots, directory, new Configuration());
    }

    /** A cluster with further options of its own, such as those that the JobManager needs. */
    public TestCluster(int slots, Path directory, Configuration further) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(
                TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(32L * slots));
        configuration.addAll(BackendUnderTest.clusterConfiguration());
        configuration.addAll(further);
        configuration.set(CoreOptions.TMP_DIRS, directory.resolve("tmp").toString());
        configuration.set(RestOptions.BIND_PORT, "0");
        cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(configuration)
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(slots)
                                .withRandomPorts()
                                .build());
        FileSystem.initialize(configuration, null); // as the JobManager's and TaskManager's main do
        cluster.start();
    }

    /**
     * A job's options: the backend under test, checkpoints under {@code directory}, kept when the
     * job is cancelled.
     */
    public static Configuration options(Path directory, Duration checkpointInterval) {
        Configuration configuration = BackendUnderTest.configuration("64kb");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, directory.toUri().toString());
        configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, checkpointInterval);
        configuration.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 20);
        configuration.set(
                RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(10));
        return configuration;
    }

    /**
     * Options for a job whose checkpoints the test triggers, and which ends at its first failure.
     */
    public static Configuration manualOptions(Path directory) {
        Configuration configuration = options(directory, Duration.ofHours(1));
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, "disable");
        return configuration;
    }

    public static StreamExecutionEnvironment environment(Configuration options, int parallelism) {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(options);
        environment.setParallelism(parallelism);
        environment.setMaxParallelism(128);
        return environment;
    }

    public JobID submit(StreamExecutionEnvironment environment) throws Exception {
        return submit(environment, null);
    }

    /**
     * Submits the job, restored from a checkpoint's path if there is one, which then belongs to the
     * job.
     */
    public JobID submit(StreamExecutionEnvironment environment, String checkpoint)
            throws Exception {
        return submit(environment, checkpoint, RecoveryClaimMode.CLAIM);
    }

    public JobID submit(
            StreamExecutionEnvironment environment, String checkpoint, RecoveryClaimMode mode)
            throws Exception {
        StreamGraph graph = environment.getStreamGraph();
        if (checkpoint != null) {
            graph.setSavepointRestoreSettings(
                    SavepointRestoreSettings.forPath(checkpoint, false, mode));
        }
        JobGraph jobGraph = graph.getJobGraph();
        List<URL> classPath = new ArrayList<>();
        for (String url :
                environment
                        .getConfiguration()
                        .getOptional(PipelineOptions.CLASSPATHS)
                        .orElse(List.of())) {
            classPath.add(URI.create(url).toURL());
        }
        jobGraph.setClasspaths(classPath);
        JobID job =
                cluster.submitJob(jobGraph).get(DEADLINE.toSeconds(), TimeUnit.SECONDS).getJobID();
        submitted.add(job);
        return job;
    }

    /** Waits for the job's end and throws what it failed with, if it did. */
    public void awaitFinished(JobID job) throws Exception {
        JobResult result =
                cluster.requestJobResult(job).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        if (result.getSerializedThrowable().isPresent()) {
            throw new AssertionError("the job failed", result.getSerializedThrowable().get());
        }
    }

    /** Submits a job that must fail, now or later; returns with what. */
    public Throwable failureOf(StreamExecutionEnvironment environment, String checkpoint)
            throws Exception {
        JobID job;
        try {
            job = submit(environment, checkpoint);
        } catch (ExecutionException e) {
            return e.getCause();
        }
        return failureOf(job);
    }

    public Throwable failureOf(JobID job) throws Exception {
        JobResult result =
                cluster.requestJobResult(job).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        return result.getSerializedThrowable()
                .orElseThrow(() -> new AssertionError("the job did not fail"));
    }

    /** Triggers a checkpoint and returns its path. */
    public String checkpoint(JobID job) throws Exception {
        awaitRunning(job);
        return cluster.triggerCheckpoint(job).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
    }

    /** What the cluster's REST endpoint answers to a GET of {@code path}. */
    public JsonNode rest(String path) throws Exception {
        URI uri = cluster.getRestAddress().get(10, TimeUnit.SECONDS).resolve(path);
        try (InputStream answer = uri.toURL().openStream()) {
            return new ObjectMapper().readTree(answer);
        }
    }

    /** Gives a retained checkpoint or savepoint up, as {@code flink savepoint --dispose} does. */
    public void dispose(String path) throws Exception {
        cluster.disposeSavepoint(path).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
    }

    /** Waits until every task of the job runs. */
    public void awaitRunning(JobID job) throws Exception {
        Await.until(
                DEADLINE,
                "all tasks run",
                () -> {
                    JobStatus status = cluster.getJobStatus(job).get(10, TimeUnit.SECONDS);
                    if (status.isGloballyTerminalState()) {
                        throw new AssertionError("the job is " + status, failureOf(job));
                    }
                    return status == JobStatus.RUNNING && allTasksRun(job);
                });
    }

    private boolean allTasksRun(JobID job) throws Exception {
        for (var vertex :
                cluster.getExecutionGraph(job)
                        .get(10, TimeUnit.SECONDS)
                        .getAllExecutionVertices()) {
            if (vertex.getExecutionState() != ExecutionState.RUNNING) {
                return false;
            }
        }
        return true;
    }

    /** Whether the job runs in its first attempt, no task of it having failed. */
    public boolean runsUndisturbed(JobID job) throws Exception {
        for (var vertex :
                cluster.getExecutionGraph(job)
                        .get(10, TimeUnit.SECONDS)
                        .getAllExecutionVertices()) {
            if (vertex.getCurrentExecutionAttempt().getAttemptNumber() != 0
                    || vertex.getExecutionState() != ExecutionState.RUNNING) {
                return false;
            }
        }
        return status(job) == JobStatus.RUNNING;
    }

    public JobStatus status(JobID job) throws Exception {
        return cluster.getJobStatus(job).get(10, TimeUnit.SECONDS);
    }

    /** Cancels the job and waits until it is gone; returns how long that took. */
    public Duration cancel(JobID job) throws Exception {
        long began = System.nanoTime();
        cluster.cancelJob(job).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        cluster.requestJobResult(job).get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        return Duration.ofNanos(System.nanoTime() - began);
    }

    /** Cancels what an earlier test has left running. */
    public void cancelAllBut(JobID job) throws Exception {
        for (JobID other : submitted) {
            if (!other.equals(job) && !status(other).isGloballyTerminalState()) {
                cancel(other);
            }
        }
        submitted.clear();
    }

    @Override
    public void close() throws Exception {
        cluster.close();
    }
}
