package org.apache.flink.runtime.state.ttl;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.KeyedBackends;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.StateBackend;
import org.junit.jupiter.api.TestTemplate;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;

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
                return canonical
                        ? KeyedBackends.canonicalSavepoint(getKeyedStateBackend())
                        : super.takeSnapshot();
            }
        };
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
