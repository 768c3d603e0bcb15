package io.weir.e2e.conformance;

import io.weir.e2e.BackendUnderTest;

import org.apache.flink.runtime.state.CheckpointStorage;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.StateBackendMigrationTestBase;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.testutils.junit.extensions.parameterized.Parameter;
import org.apache.flink.testutils.junit.extensions.parameterized.ParameterizedTestExtension;
import org.apache.flink.testutils.junit.extensions.parameterized.Parameters;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;
import java.util.List;

/** Flink's own suite for serializers that change between checkpoint and restore. */
@ExtendWith(ParameterizedTestExtension.class)
public class StateBackendMigrationConformanceTest
        extends StateBackendMigrationTestBase<StateBackend> {
    @Parameters(name = "working set {0}")
    public static List<String> workingSets() {
        return List.of("64kb", "64mb");
    }

    @Parameter public String workingSet;

    @TempDir Path directory;

    @Override
    protected StateBackend getStateBackend() throws Exception {
        return BackendUnderTest.load(workingSet, directory);
    }

    @Override
    protected CheckpointStorage getCheckpointStorage() {
        return new FileSystemCheckpointStorage(directory.resolve("checkpoints").toUri().toString());
    }
}
