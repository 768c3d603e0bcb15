package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.jobs.KeyedBackends;

import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * Timers go from backend to backend in canonical savepoints, and every one fires once, in order.
 */
class TimersInSavepointsTest {
    private static final int TIMERS = 4_000;

    @TempDir Path directory;

    private static Configuration configuration(String backend) {
        Configuration configuration = new Configuration();
        String[] nameAndTimers = backend.split("-");
        if (nameAndTimers[0].equals("weir")) {
            configuration.set(
                    StateBackendOptions.STATE_BACKEND, "io.weir.flink.WeirStateBackendFactory");
            configuration.setString("state.backend.weir.timer-service.factory", nameAndTimers[1]);
            configuration.setString("state.backend.weir.memory.working-set", "128kb");
        } else {
            configuration.set(StateBackendOptions.STATE_BACKEND, nameAndTimers[0]);
            if (nameAndTimers.length > 1) {
                configuration.setString(
                        "state.backend.rocksdb.timer-service.factory", nameAndTimers[1]);
            }
        }
        return configuration;
    }

    private static final class Queues {
        final AbstractKeyedStateBackend<Long> backend;
        final KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Long, String>> named;
        final KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Long, TimeWindow>> windows;

        Queues(AbstractKeyedStateBackend<Long> backend) {
            this.backend = backend;
            this.named =
                    backend.create(
                            "_timer_state/processing_named",
                            new TimerSerializer<>(
                                    LongSerializer.INSTANCE, StringSerializer.INSTANCE));
            this.windows =
                    backend.create(
                            "_timer_state/event_windows",
                            new TimerSerializer<>(
                                    LongSerializer.INSTANCE, new TimeWindow.Serializer()));
        }
    }

    private static long timestamp(int i) {
        return (i * 7_919L) % TIMERS - TIMERS / 2;
    }

    private static TimerHeapInternalTimer<Long, String> named(int i) {
        return new TimerHeapInternalTimer<>(timestamp(i), (long) i, "namespace" + i % 7);
    }

    private static TimerHeapInternalTimer<Long, TimeWindow> window(int i) {
        return new TimerHeapInternalTimer<>(
                timestamp(i), (long) -i, new TimeWindow(timestamp(i) - 10, timestamp(i)));
    }

    @ParameterizedTest
    @CsvSource({
        "weir-engine, rocksdb-rocksdb",
        "weir-engine, rocksdb-heap",
        "weir-engine, hashmap",
        "weir-engine, weir-heap",
        "weir-heap, weir-engine",
        "weir-heap, rocksdb-rocksdb",
        "rocksdb-rocksdb, weir-engine",
        "rocksdb-heap, weir-engine",
        "rocksdb-rocksdb, weir-heap",
        "hashmap, weir-engine",
        "hashmap, weir-heap",
    })
    void thereAndBack(String first, String second) throws Exception {
        try (KeyedBackends backends = new KeyedBackends(directory)) {
            KeyGroupRange all = KeyGroupRange.of(0, 127);
            Queues written = new Queues(open(backends, first, all, List.of()));
            for (int i = 0; i < TIMERS; i++) {
                written.named.add(named(i));
                written.windows.add(window(i));
            }
            KeyedStateHandle there = KeyedBackends.canonicalSavepoint(written.backend);
            Queues read = new Queues(open(backends, second, all, List.of(there)));
            for (int i = 0; i < TIMERS / 4; i++) {
                assertThat(read.named.poll().getTimestamp()).isEqualTo(i - TIMERS / 2);
            }
            KeyedStateHandle back = KeyedBackends.canonicalSavepoint(read.backend);

            // Back on the first, with two subtasks.
            List<TimerHeapInternalTimer<Long, String>> named = new ArrayList<>();
            List<TimerHeapInternalTimer<Long, TimeWindow>> windows = new ArrayList<>();
            for (int part = 0; part < 2; part++) {
                KeyGroupRange range = KeyGroupRange.of(64 * part, 64 * part + 63);
                Queues half =
                        new Queues(
                                open(backends, first, range, List.of(back.getIntersection(range))));
                named.addAll(drained(half.named));
                windows.addAll(drained(half.windows));
            }
            List<TimerHeapInternalTimer<Long, String>> expectedNamed = new ArrayList<>();
            List<TimerHeapInternalTimer<Long, TimeWindow>> expectedWindows = new ArrayList<>();
            for (int i = 0; i < TIMERS; i++) {
                expectedWindows.add(window(i));
                if (timestamp(i) >= TIMERS / 4 - TIMERS / 2) {
                    expectedNamed.add(named(i));
                }
            }
            assertThat(named).containsExactlyInAnyOrderElementsOf(expectedNamed);
            assertThat(windows).containsExactlyInAnyOrderElementsOf(expectedWindows);
        }
    }

    private static AbstractKeyedStateBackend<Long> open(
            KeyedBackends backends,
            String backend,
            KeyGroupRange range,
            List<KeyedStateHandle> handles)
            throws Exception {
        return backends.open(configuration(backend), LongSerializer.INSTANCE, 128, range, handles);
    }

    private static <N> List<TimerHeapInternalTimer<Long, N>> drained(
            KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Long, N>> queue) {
        List<TimerHeapInternalTimer<Long, N>> timers = new ArrayList<>();
        TimerHeapInternalTimer<Long, N> timer;
        while ((timer = queue.poll()) != null) {
            timers.add(timer);
        }
        assertThat(timers)
                .isSortedAccordingTo(
                        Comparator.comparingLong(TimerHeapInternalTimer::getTimestamp));
        return timers;
    }
}
