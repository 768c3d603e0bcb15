package io.weir.e2e.conformance;

import io.weir.e2e.BackendUnderTest;

import org.apache.flink.runtime.state.AbstractStateBackend;
import org.apache.flink.runtime.state.CheckpointStorage;
import org.apache.flink.runtime.state.ConfigurableStateBackend;
import org.apache.flink.runtime.state.StateBackendTestBase;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.testutils.junit.extensions.parameterized.Parameter;
import org.apache.flink.testutils.junit.extensions.parameterized.ParameterizedTestExtension;
import org.apache.flink.testutils.junit.extensions.parameterized.Parameters;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;
import java.util.List;

/**
 * Flink's own suite for a state backend, with a working set that holds a few rows and with one that
 * holds all.
 */
@ExtendWith(ParameterizedTestExtension.class)
public class StateBackendConformanceTest extends StateBackendTestBase<AbstractStateBackend> {
    @Parameters(name = "working set {0}")
    public static List<String> workingSets() {
        return List.of("64kb", "64mb");
    }

    @Parameter public String workingSet;

    @TempDir Path directory;

    @Override
    protected ConfigurableStateBackend getStateBackend() throws Exception {
        return (ConfigurableStateBackend) BackendUnderTest.load(workingSet, directory);
    }

    @Override
    protected CheckpointStorage getCheckpointStorage() {
        return new FileSystemCheckpointStorage(directory.resolve("checkpoints").toUri().toString());
    }

    @Override
    protected boolean isSerializerPresenceRequiredOnRestore() {
        return BackendUnderTest.NAME.equals("hashmap");
    }

    @Override
    protected boolean supportsAsynchronousSnapshots() {
        return true;
    }

    /** State and timers of HashMap keep the objects that they are given. */
    @Override
    protected boolean isSafeToReuseKVState() {
        return !BackendUnderTest.NAME.equals("hashmap");
    }
}
