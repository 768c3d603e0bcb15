package io.weir.e2e.conformance;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.KeyedBackends;

import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.runtime.state.InternalPriorityQueue;
import org.apache.flink.runtime.state.InternalPriorityQueueTestBase;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;
import java.util.List;

/**
 * Flink's own suite for queues of timers, with a working set that holds a few rows and with one
 * that holds all.
 */
class PriorityQueueConformanceTest {

    @Nested
    class SmallWorkingSet extends Suite {
        SmallWorkingSet() {
            super("64kb");
        }
    }

    @Nested
    class LargeWorkingSet extends Suite {
        LargeWorkingSet() {
            super("64mb");
        }
    }

    abstract static class Suite extends InternalPriorityQueueTestBase {
        private final String workingSet;
        @TempDir Path directory;
        private KeyedBackends backends;

        Suite(String workingSet) {
            this.workingSet = workingSet;
        }

        @Override
        protected InternalPriorityQueue<TestElement> newPriorityQueue(int initialCapacity) {
            try {
                if (backends == null) {
                    backends = new KeyedBackends(directory);
                }
                return backends.open(
                                BackendUnderTest.configuration(workingSet),
                                IntSerializer.INSTANCE,
                                KEY_GROUP_RANGE.getNumberOfKeyGroups(),
                                KEY_GROUP_RANGE,
                                List.of())
                        .create("queue", TestElementSerializer.INSTANCE);
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }

        @AfterEach
        void close() throws Exception {
            if (backends != null) {
                backends.close();
            }
        }

        @Override
        protected boolean testSetSemanticsAgainstDuplicateElements() {
            return true;
        }
    }
}
