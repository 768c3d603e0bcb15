package io.weir.flink.timers;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.flink.keyed.Backends;

import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;

/**
 * Random programs over queues of timers that are far larger than the memory, with snapshots,
 * restores and rescaling, against a {@link TreeSet}. A failure names its seed.
 */
class TimerProgramTest {

    private static final int KEYS = 3_000;
    private static final Comparator<TimerHeapInternalTimer<String, String>> ORDER =
            Comparator.<TimerHeapInternalTimer<String, String>>comparingLong(
                            TimerHeapInternalTimer::getTimestamp)
                    .thenComparing(TimerHeapInternalTimer::getKey)
                    .thenComparing(TimerHeapInternalTimer::getNamespace);

    @TempDir Path directory;

    private int keyGroups;
    private Random random;
    private Backends backends;
    private long now;

    /** One subtask: its backend and queue, and what the queue has to hold. */
    private static final class Part {
        final KeyGroupRange range;
        final AbstractKeyedStateBackend<String> backend;
        final KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> queue;
        final TreeSet<TimerHeapInternalTimer<String, String>> expected = new TreeSet<>(ORDER);

        Part(KeyGroupRange range, AbstractKeyedStateBackend<String> backend) {
            this.range = range;
            this.backend = backend;
            this.queue =
                    backend.create(
                            "timers",
                            new TimerSerializer<>(
                                    StringSerializer.INSTANCE, StringSerializer.INSTANCE));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "memory, 1, 12, 60000",
        "memory, 2, 1, 60000",
        "memory, 3, 700, 30000",
        "embedded, 4, 12, 40000",
        "embedded, 5, 2, 40000"
    })
    void holdsWhatATreeSetHolds(String store, long seed, int keyGroups, int steps)
            throws Exception {
        this.keyGroups = keyGroups;
        random = new Random(seed);
        try (Backends opened = new Backends()) {
            backends = opened;
            backends.set("state.backend.weir.memory.fixed-per-slot", "160 kb");
            if (store.equals("embedded")) {
                backends.set("state.backend.weir.store", store);
                backends.set("state.backend.weir.directory", directory.toUri().toString());
            }
            KeyGroupRange all = KeyGroupRange.of(0, keyGroups - 1);
            List<Part> parts =
                    List.of(
                            new Part(
                                    all,
                                    backends.weir(
                                            StringSerializer.INSTANCE, keyGroups, all, List.of())));
            for (int step = 1; step <= steps; step++) {
                Part part = parts.get(random.nextInt(parts.size()));
                step(part);
                if (step % (steps / 6) == 0) {
                    parts.forEach(TimerProgramTest::compareAll);
                    if (keyGroups < 100) {
                        assertThat(evictions(parts)).isPositive();
                    }
                    parts = rescale(parts, 1 + random.nextInt(Math.min(3, keyGroups)));
                } else if (step % (steps / 24) == 0) {
                    // A snapshot that nothing is restored from.
                    backends.checkpoint(part.backend);
                }
            }
            for (Part part : parts) {
                compareAll(part);
                while (!part.expected.isEmpty()) {
                    pollOne(part);
                }
                assertThat(part.queue.poll()).isNull();
                assertThat(part.queue.isEmpty()).isTrue();
            }
        }
    }

    private static long evictions(List<Part> parts) throws Exception {
        long evictions = 0;
        for (Part part : parts) {
            evictions += Backends.stat(part.backend, "evictions");
        }
        return evictions;
    }

    private List<Part> rescale(List<Part> parts, int parallelism) throws Exception {
        List<KeyedStateHandle> handles = new ArrayList<>();
        TreeSet<TimerHeapInternalTimer<String, String>> expected = new TreeSet<>(ORDER);
        for (Part part : parts) {
            handles.add(backends.checkpoint(part.backend));
            expected.addAll(part.expected);
            part.backend.dispose();
        }
        List<Part> next = new ArrayList<>();
        for (int i = 0; i < parallelism; i++) {
            KeyGroupRange range =
                    KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(
                            keyGroups, parallelism, i);
            List<KeyedStateHandle> assigned = new ArrayList<>();
            for (int j = 0; j < parts.size(); j++) {
                if (parts.get(j).range.getIntersection(range).getNumberOfKeyGroups() > 0) {
                    assigned.add(handles.get(j));
                }
            }
            Part part =
                    new Part(
                            range,
                            backends.weir(StringSerializer.INSTANCE, keyGroups, range, assigned));
            expected.stream()
                    .filter(timer -> range.contains(keyGroup(timer.getKey())))
                    .forEach(part.expected::add);
            next.add(part);
        }
        return next;
    }

    private int keyGroup(String key) {
        return KeyGroupRangeAssignment.assignToKeyGroup(key, keyGroups);
    }

    private String keyOf(Part part) {
        while (true) {
            String key = "key" + random.nextInt(KEYS);
            if (part.range.contains(keyGroup(key))) {
                return key;
            }
        }
    }

    private TimerHeapInternalTimer<String, String> timer(Part part) {
        // Most lie ahead, near or far, some behind what has fired, and many at the same time.
        long ahead =
                switch (random.nextInt(8)) {
                    case 0 -> -random.nextInt(200);
                    case 1, 2 -> random.nextInt(20);
                    case 3 -> 100;
                    default -> random.nextInt(20_000);
                };
        return new TimerHeapInternalTimer<>(
                now + ahead, keyOf(part), random.nextInt(4) == 0 ? "" : "ns");
    }

    private void step(Part part) {
        int kind = random.nextInt(20);
        if (kind < 11) {
            TimerHeapInternalTimer<String, String> timer = timer(part);
            long head = head(part);
            boolean changed = part.queue.add(timer);
            part.expected.add(timer);
            // "False only if the head was not changed."
            assertThat(changed || head(part) == head).isTrue();
        } else if (kind < 16) {
            pollOne(part);
        } else if (kind < 19) {
            TimerHeapInternalTimer<String, String> probe = timer(part);
            TimerHeapInternalTimer<String, String> removed = part.expected.ceiling(probe);
            if (removed == null || random.nextInt(5) == 0) {
                removed = probe;
            }
            long head = head(part);
            boolean changed = part.queue.remove(removed);
            part.expected.remove(removed);
            assertThat(changed || head(part) == head).isTrue();
        } else {
            assertThat(part.queue.isEmpty()).isEqualTo(part.expected.isEmpty());
            TimerHeapInternalTimer<String, String> peeked = part.queue.peek();
            assertThat(peeked == null ? null : peeked.getTimestamp())
                    .isEqualTo(part.expected.isEmpty() ? null : head(part));
            assertThat(peeked == null || part.expected.contains(peeked)).isTrue();
        }
    }

    private static long head(Part part) {
        return part.expected.isEmpty() ? Long.MAX_VALUE : part.expected.first().getTimestamp();
    }

    private void pollOne(Part part) {
        if (random.nextBoolean()) {
            part.queue.peek();
        }
        TimerHeapInternalTimer<String, String> polled = part.queue.poll();
        if (polled == null) {
            assertThat(part.expected).isEmpty();
            return;
        }
        assertThat(polled.getTimestamp()).isEqualTo(head(part));
        assertThat(part.expected.remove(polled)).as("%s is due, once", polled).isTrue();
        now = Math.max(now, polled.getTimestamp());
    }

    private static void compareAll(Part part) {
        TreeSet<TimerHeapInternalTimer<String, String>> seen = new TreeSet<>(ORDER);
        try (CloseableIterator<TimerHeapInternalTimer<String, String>> timers =
                part.queue.iterator()) {
            while (timers.hasNext()) {
                assertThat(seen.add(timers.next())).isTrue();
            }
        } catch (Exception e) {
            throw new AssertionError(e);
        }
        assertThat(seen).isEqualTo(part.expected);
        assertThat(part.queue.size()).isEqualTo(part.expected.size());
        TreeSet<TimerHeapInternalTimer<String, String>> first = new TreeSet<>(ORDER);
        first.addAll(part.queue.getSubsetForKeyGroup(part.range.getStartKeyGroup()));
        TreeSet<TimerHeapInternalTimer<String, String>> expected = new TreeSet<>(ORDER);
        int keyGroups = part.backend.getNumberOfKeyGroups();
        part.expected.stream()
                .filter(
                        timer ->
                                KeyGroupRangeAssignment.assignToKeyGroup(timer.getKey(), keyGroups)
                                        == part.range.getStartKeyGroup())
                .forEach(expected::add);
        assertThat(first).isEqualTo(expected);
    }
}
