package org.apache.flink.runtime.state.ttl;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.BackendUnderTest;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.SavepointType;
import org.apache.flink.runtime.state.CheckpointStorageLocationReference;
import org.apache.flink.runtime.state.CheckpointableKeyedStateBackend;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.SavepointResources;
import org.apache.flink.runtime.state.SavepointSnapshotStrategy;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.SnapshotStrategyRunner;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.memory.MemCheckpointStreamFactory;
import org.junit.jupiter.api.TestTemplate;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;
import java.util.concurrent.RunnableFuture;

/**
 * Flink's own suite for TTL, in Flink's package because one of its tests can only be replaced from
 * there. It runs on checkpoints and on canonical savepoints; only the latter leave out what has
 * expired, as with RocksDB.
 */
abstract class TtlConformance extends TtlStateTestBase {

    private static final int CLEANED_KEYS = 970;

    @TempDir Path directory;

    private final String workingSet;
    private final boolean canonical;

    TtlConformance(String workingSet, boolean canonical) {
        this.workingSet = workingSet;
        this.canonical = canonical;
    }

    @Override
    protected StateBackendTestContext createStateBackendTestContext(TtlTimeProvider time) {
        return new StateBackendTestContext(time) {
            @Override
            protected StateBackend createStateBackend() {
                Configuration configuration = BackendUnderTest.configuration(workingSet);
                if (BackendUnderTest.isWeir()) {
                    configuration.setString(
                            "state.backend.weir.directory",
                            directory.resolve("weir").toUri().toString());
                }
                try {
                    return BackendUnderTest.load(configuration);
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
            }

            @Override
            public KeyedStateHandle takeSnapshot() throws Exception {
                return canonical ? savepoint(getKeyedStateBackend()) : super.takeSnapshot();
            }
        };
    }

    private static KeyedStateHandle savepoint(CheckpointableKeyedStateBackend<String> backend)
            throws Exception {
        SavepointResources<String> resources = backend.savepoint();
        RunnableFuture<SnapshotResult<KeyedStateHandle>> savepoint =
                new SnapshotStrategyRunner<>(
                                "savepoint",
                                new SavepointSnapshotStrategy<>(resources.getSnapshotResources()),
                                new CloseableRegistry(),
                                resources.getPreferredSnapshotExecutionType())
                        .snapshot(
                                1,
                                1,
                                new MemCheckpointStreamFactory(64 << 20),
                                CheckpointOptions.alignedNoTimeout(
                                        SavepointType.savepoint(SavepointFormatType.CANONICAL),
                                        CheckpointStorageLocationReference.getDefault()));
        if (!savepoint.isDone()) {
            savepoint.run();
        }
        return savepoint.get().getJobManagerOwnedSnapshot();
    }

    @Override
    public boolean isSavepoint() {
        return canonical;
    }

    @Override
    protected boolean incrementalCleanupSupported() {
        return !BackendUnderTest.NAME.equals("rocksdb");
    }

    /** As in Flink, but for the check, which there looks into a table of the heap's backend. */
    @Override
    @TestTemplate
    void testIncrementalCleanupWholeState() throws Exception {
        initTest(getConfBuilder(TTL).cleanupIncrementally(5, true).build());
        timeProvider.time = 0;
        for (int key = 0; key < CLEANED_KEYS; key++) {
            sbetc.setCurrentKey(Integer.toString(key));
            ctx().update(ctx().updateEmpty);
        }
        timeProvider.time = 120;
        for (int key = 0; key < CLEANED_KEYS; key++) {
            sbetc.setCurrentKey(Integer.toString(key));
        }
        for (int key = 0; key < CLEANED_KEYS; key++) {
            sbetc.setCurrentKey(Integer.toString(key));
            assertThat(ctx().isOriginalEmptyValue())
                    .as("the state of key %s is cleared", key)
                    .isTrue();
        }
    }
}
