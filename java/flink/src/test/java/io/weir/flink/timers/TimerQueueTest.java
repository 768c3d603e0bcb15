package io.weir.flink.timers;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.keyed.Backends;

import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.runtime.TupleSerializer;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.StateMigrationException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;

class TimerQueueTest {

    private static final String OPTION = "state.backend.weir.timer-service.factory";

    @TempDir Path directory;

    private final Backends backends = new Backends();

    @AfterEach
    void close() throws Exception {
        backends.close();
    }

    private AbstractKeyedStateBackend<Long> backend(int keyGroups, KeyedStateHandle... handles)
            throws Exception {
        return backends.weir(
                LongSerializer.INSTANCE,
                keyGroups,
                KeyGroupRange.of(0, keyGroups - 1),
                List.of(handles));
    }

    private static KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Long, VoidNamespace>>
            queue(AbstractKeyedStateBackend<Long> backend) {
        return backend.create(
                "timers",
                new TimerSerializer<>(LongSerializer.INSTANCE, VoidNamespaceSerializer.INSTANCE));
    }

    private static TimerHeapInternalTimer<Long, VoidNamespace> timer(long timestamp, long key) {
        return new TimerHeapInternalTimer<>(timestamp, key, VoidNamespace.INSTANCE);
    }

    private static List<Long> drain(
            KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Long, VoidNamespace>> queue) {
        List<Long> timestamps = new ArrayList<>();
        TimerHeapInternalTimer<Long, VoidNamespace> timer;
        while ((timer = queue.poll()) != null) {
            timestamps.add(timer.getTimestamp());
        }
        return timestamps;
    }

    private static List<Long> range(long end) {
        List<Long> numbers = new ArrayList<>();
        for (long i = 0; i < end; i++) {
            numbers.add(i);
        }
        return numbers;
    }

    private void embedded(String memory) {
        backends.set("state.backend.weir.store", "embedded");
        backends.set("state.backend.weir.directory", directory.toUri().toString());
        backends.set("state.backend.weir.memory.fixed-per-slot", memory);
    }

    @Test
    void whatIsSetAndFiredWithinAnEpochNeverReachesTheStore() throws Exception {
        AbstractKeyedStateBackend<Long> backend = backend(128);
        var queue = queue(backend);
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < 1_000; i++) {
                queue.add(timer(i, i));
            }
            assertThat(drain(queue)).isEqualTo(range(1_000));
        }
        backends.checkpoint(backend);
        assertThat(Backends.stat(backend, "elided_rows")).isEqualTo(10_000);
        assertThat(Backends.stat(backend, "flushed_rows")).isZero();
    }

    @Test
    void timersFarOverTheBudgetFireOnceInOrderWithCheckpointsInBetween() throws Exception {
        embedded("1 mb");
        final int timers = 120_000;
        AbstractKeyedStateBackend<Long> backend = backend(16);
        var queue = queue(backend);
        // Every timestamp once, in an order that has nothing to do with time.
        for (int i = 0; i < timers; i++) {
            queue.add(timer((i * 70_001L) % timers, i));
            if (i % 20_000 == 0) {
                backends.checkpoint(backend);
            }
        }
        assertThat(cached(queue)).isLessThanOrEqualTo(16 * 256);
        assertThat(Backends.stat(backend, "evictions")).isPositive();
        long scans = Backends.stat(backend, "scans");
        KeyedStateHandle half = null;
        for (long i = 0; i < timers; i++) {
            if (i % 20_000 == 10_000) {
                assertThat(Backends.stat(backend, "resident_bytes")).isLessThan(2 << 20);
                assertThat(cached(queue)).isLessThanOrEqualTo(16 * 256);
                KeyedStateHandle handle = backends.checkpoint(backend);
                half = i < timers / 2 ? handle : half;
            }
            assertThat(queue.poll().getTimestamp()).isEqualTo(i);
        }
        assertThat(queue.poll()).isNull();
        // A page of the store brings many timers, and fired ones are not walked over again.
        assertThat(Backends.stat(backend, "scans") - scans).isLessThan(timers / 50);

        var restored = queue(backend(16, half));
        assertThat(restored.size()).isEqualTo(timers - 50_000);
        assertThat(drain(restored)).isEqualTo(range(timers).subList(50_000, timers));
    }

    private static int cached(KeyGroupedInternalPriorityQueue<?> queue) {
        return ((TimerQueue<?>) queue).cachedRows();
    }

    @Test
    void theHeapIsBoundedWithManyKeyGroupsAndReadsWaitUntilTheyAreNeeded() throws Exception {
        final int keyGroups = 32_768;
        AbstractKeyedStateBackend<Long> backend = backend(keyGroups);
        var queue = queue(backend);
        long calls = Backends.stat(backend, "scans");
        for (int i = 0; i < 300_000; i++) {
            queue.add(timer((i * 7_919L) % 300_000, i));
        }
        assertThat(cached(queue)).isLessThanOrEqualTo(4 * keyGroups);
        assertThat(queue.peek().getTimestamp()).isZero();
        assertThat(Backends.stat(backend, "scans")).isEqualTo(calls);

        AbstractKeyedStateBackend<Long> restored = backend(keyGroups, backends.checkpoint(backend));
        var timers = queue(restored);
        timers.add(timer(300_000, 1));
        assertThat(Backends.stat(restored, "scans")).isZero();
        assertThat(timers.peek().getTimestamp()).isZero();
        // One page each.
        assertThat(Backends.stat(restored, "scans")).isLessThanOrEqualTo(keyGroups);
        assertThat(drain(timers)).isEqualTo(range(300_001));
    }

    @Test
    void hugeKeysDoNotFillTheHeap() throws Exception {
        AbstractKeyedStateBackend<String> backend =
                backends.weir(StringSerializer.INSTANCE, 4, KeyGroupRange.of(0, 3), List.of());
        KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, VoidNamespace>> queue =
                backend.create(
                        "timers",
                        new TimerSerializer<>(
                                StringSerializer.INSTANCE, VoidNamespaceSerializer.INSTANCE));
        String tail = "k".repeat(30_000);
        for (int i = 0; i < 1_000; i++) {
            queue.add(new TimerHeapInternalTimer<>(i, i + tail, VoidNamespace.INSTANCE));
            assertThat((long) cached(queue) * tail.length())
                    .isLessThanOrEqualTo(TimerQueue.CACHED_BYTES + 4L * tail.length());
        }
        for (int i = 0; i < 1_000; i++) {
            assertThat(queue.poll().getKey()).isEqualTo(i + tail);
            assertThat((long) cached(queue) * tail.length())
                    .isLessThanOrEqualTo(TimerQueue.CACHED_BYTES + 4L * tail.length());
        }
        assertThat(queue.isEmpty()).isTrue();
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void anOptionMovesTimersBetweenEngineAndHeap(boolean rescaled) throws Exception {
        AbstractKeyedStateBackend<Long> engine = backend(128);
        for (int i = 0; i < 5_000; i++) {
            queue(engine).add(timer(i, i));
        }
        assertThat(engine.isSafeToReuseKVState()).isTrue();
        KeyedStateHandle handle = backends.checkpoint(engine);

        backends.set(OPTION, "heap");
        List<Long> fired = new ArrayList<>();
        int parts = rescaled ? 2 : 1;
        List<KeyedStateHandle> handles = new ArrayList<>();
        for (int part = 0; part < parts; part++) {
            KeyGroupRange range =
                    KeyGroupRange.of(part * 128 / parts, (part + 1) * 128 / parts - 1);
            AbstractKeyedStateBackend<Long> heap =
                    backends.weir(LongSerializer.INSTANCE, 128, range, List.of(handle));
            assertThat(heap.isSafeToReuseKVState()).isFalse();
            handles.add(backends.checkpoint(heap));
            var queue = queue(heap);
            assertThat(queue).isNotInstanceOf(TimerQueue.class);
            fired.addAll(drain(queue));
        }
        assertThat(fired).containsExactlyInAnyOrderElementsOf(range(5_000));

        // Now they are Flink's to restore; the engine must have none left.
        backends.set(OPTION, "engine");
        var back = queue(backend(128, handles.toArray(new KeyedStateHandle[0])));
        assertThat(back.isEmpty()).isTrue();
        assertThat(back.size()).isZero();
    }

    @Test
    void aQueueThatNobodyRegisteredAgainKeepsItsTimers() throws Exception {
        AbstractKeyedStateBackend<Long> first = backend(8);
        for (int i = 0; i < 500; i++) {
            queue(first).add(timer(i, i));
        }
        AbstractKeyedStateBackend<Long> second = backend(8, backends.checkpoint(first));
        AbstractKeyedStateBackend<Long> third = backend(8, backends.checkpoint(second));
        assertThat(drain(queue(third))).isEqualTo(range(500));
    }

    @Test
    void callersMayChangeTheKeysOfTheirTimers() throws Exception {
        @SuppressWarnings({"unchecked", "rawtypes"})
        TypeSerializer<Tuple2<Long, String>> keys =
                new TupleSerializer<>(
                        (Class<Tuple2<Long, String>>) (Class) Tuple2.class,
                        new TypeSerializer<?>[] {
                            LongSerializer.INSTANCE, StringSerializer.INSTANCE
                        });
        AbstractKeyedStateBackend<Tuple2<Long, String>> backend =
                backends.weir(keys, 8, KeyGroupRange.of(0, 7), List.of());
        KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<Tuple2<Long, String>, VoidNamespace>>
                queue =
                        backend.create(
                                "timers",
                                new TimerSerializer<>(keys, VoidNamespaceSerializer.INSTANCE));
        Tuple2<Long, String> key = Tuple2.of(1L, "one");
        queue.add(new TimerHeapInternalTimer<>(5, key, VoidNamespace.INSTANCE));
        key.setFields(2L, "two");
        assertThat(queue.peek().getKey()).isEqualTo(Tuple2.of(1L, "one"));
        assertThat(queue.poll().getKey()).isEqualTo(Tuple2.of(1L, "one"));
        assertThat(queue.poll()).isNull();
    }

    @Test
    void timersMayBeRemovedWhileTheyAreIterated() throws Exception {
        AbstractKeyedStateBackend<Long> backend = backend(4);
        var queue = queue(backend);
        for (int i = 0; i < 10_000; i++) {
            queue.add(timer(i, i));
        }
        List<Long> seen = new ArrayList<>();
        try (CloseableIterator<TimerHeapInternalTimer<Long, VoidNamespace>> timers =
                queue.iterator()) {
            while (timers.hasNext()) {
                TimerHeapInternalTimer<Long, VoidNamespace> timer = timers.next();
                seen.add(timer.getTimestamp());
                if (timer.getTimestamp() % 2 == 0) {
                    queue.remove(timer);
                    queue.add(timer(timer.getTimestamp() + 1, timer.getKey() + 1));
                }
            }
        }
        assertThat(seen).containsExactlyInAnyOrderElementsOf(range(10_000));
        assertThat(queue.size()).isEqualTo(5_000);
    }

    @Test
    void timersOfOneTimestampAreToldApart() throws Exception {
        var queue = queue(backend(128));
        Random random = new Random(1);
        for (int i = 0; i < 2_000; i++) {
            queue.add(timer(7, random.nextInt(500)));
            queue.add(timer(Long.MIN_VALUE, i % 3));
            queue.add(timer(Long.MAX_VALUE, i % 5));
        }
        List<Long> fired = drain(queue);
        assertThat(fired).hasSizeBetween(450, 508);
        assertThat(fired.subList(0, 3)).containsOnly(Long.MIN_VALUE);
        assertThat(fired.subList(fired.size() - 5, fired.size())).containsOnly(Long.MAX_VALUE);
        assertThat(fired.subList(3, fired.size() - 5)).containsOnly(7L);
    }

    @Test
    void aQueueAndAStateMayNotShareAName() throws Exception {
        AbstractKeyedStateBackend<Long> backend = backend(8);
        queue(backend);
        assertThatThrownBy(
                        () ->
                                backend.getPartitionedState(
                                        VoidNamespace.INSTANCE,
                                        VoidNamespaceSerializer.INSTANCE,
                                        new ValueStateDescriptor<>(
                                                "timers", IntSerializer.INSTANCE)))
                .isInstanceOf(StateMigrationException.class)
                .hasMessageContaining("'timers' names a queue of timers and a keyed state");
        AbstractKeyedStateBackend<Long> other = backend(8);
        other.getPartitionedState(
                VoidNamespace.INSTANCE,
                VoidNamespaceSerializer.INSTANCE,
                new ValueStateDescriptor<>("timers", IntSerializer.INSTANCE));
        assertThatThrownBy(() -> queue(other)).hasCauseInstanceOf(StateMigrationException.class);
    }

    @Test
    void anotherNamespaceIsRefusedByWhatItIsAndWas() throws Exception {
        AbstractKeyedStateBackend<Long> written = backend(8);
        queue(written).add(timer(1, 1));
        AbstractKeyedStateBackend<Long> restored = backend(8, backends.checkpoint(written));
        assertThatThrownBy(
                        () ->
                                restored.create(
                                        "timers",
                                        new TimerSerializer<>(
                                                LongSerializer.INSTANCE,
                                                StringSerializer.INSTANCE)))
                .hasCauseInstanceOf(StateMigrationException.class)
                .hasMessageContaining("timers")
                .hasMessageContaining("not compatible");
    }

    @Test
    void registeringAgainIsTheSameQueue() throws Exception {
        AbstractKeyedStateBackend<Long> backend = backend(8);
        var queue = queue(backend);
        queue.add(timer(1, 1));
        assertThat(queue(backend)).isSameAs(queue);
        assertThat(drain(queue(backend))).containsExactly(1L);
    }
}
