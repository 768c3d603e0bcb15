package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.ReduceFunction;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.apache.flink.runtime.state.internal.InternalAppendingState;
import org.apache.flink.runtime.state.internal.InternalKvState;
import org.apache.flink.runtime.state.internal.InternalMergingState;
import org.apache.flink.runtime.state.ttl.MockTtlTimeProvider;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** What leaves the store once it has expired, and what does not, as jobs configure it. */
class StateExpiryTest {

    private static final int KEY_GROUPS = 16;
    private static final KeyGroupRange ALL = KeyGroupRange.of(0, KEY_GROUPS - 1);
    private static final int KEYS = 100;
    private static final long TTL = 1000;
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    @TempDir Path directory;

    private final MockTtlTimeProvider time = new MockTtlTimeProvider();
    private Backends backends;

    @BeforeEach
    void open() {
        FileSystem.initialize(new Configuration(), null);
        backends = new Backends();
        backends.setTime(time);
    }

    @AfterEach
    void close() throws Exception {
        backends.close();
    }

    private void use(String store) {
        if (store.equals("embedded")) {
            backends.set("state.backend.weir.store", "embedded");
            backends.set("state.backend.weir.directory", directory.toUri().toString());
        }
    }

    private AbstractKeyedStateBackend<Integer> weir(KeyedStateHandle... handles) throws Exception {
        return backends.weir(IntSerializer.INSTANCE, KEY_GROUPS, ALL, List.of(handles));
    }

    private static StateTtlConfig.Builder ttl() {
        return StateTtlConfig.newBuilder(Duration.ofMillis(TTL));
    }

    private static <S extends State> S state(
            AbstractKeyedStateBackend<?> backend,
            StateDescriptor<S, ?> descriptor,
            StateTtlConfig ttl)
            throws Exception {
        if (ttl != null) {
            descriptor.enableTimeToLive(ttl);
        }
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE, VoidNamespaceSerializer.INSTANCE, descriptor);
    }

    private static ValueState<Long> value(
            AbstractKeyedStateBackend<?> backend, String name, StateTtlConfig ttl)
            throws Exception {
        return state(backend, new ValueStateDescriptor<>(name, LongSerializer.INSTANCE), ttl);
    }

    /** A state of each kind. */
    private static final class EachKind {
        final AbstractKeyedStateBackend<Integer> backend;
        final ValueState<Long> value;
        final org.apache.flink.api.common.state.ListState<Long> list;
        final org.apache.flink.api.common.state.MapState<String, Long> map;
        final org.apache.flink.api.common.state.ReducingState<Long> reducing;
        final org.apache.flink.api.common.state.AggregatingState<Long, Long> aggregating;

        EachKind(AbstractKeyedStateBackend<Integer> backend, StateTtlConfig ttl) throws Exception {
            this.backend = backend;
            value = value(backend, "value", ttl);
            list = state(backend, new ListStateDescriptor<>("list", LongSerializer.INSTANCE), ttl);
            map =
                    state(
                            backend,
                            new MapStateDescriptor<>(
                                    "map", StringSerializer.INSTANCE, LongSerializer.INSTANCE),
                            ttl);
            ReduceFunction<Long> sum = Long::sum;
            reducing =
                    state(
                            backend,
                            new ReducingStateDescriptor<>("reducing", sum, LongSerializer.INSTANCE),
                            ttl);
            aggregating =
                    state(
                            backend,
                            new AggregatingStateDescriptor<>(
                                    "aggregating", new Sum(), LongSerializer.INSTANCE),
                            ttl);
        }

        void add(int key, String entry, long number) throws Exception {
            backend.setCurrentKey(key);
            value.update(number);
            list.add(number);
            map.put(entry, number);
            reducing.add(number);
            aggregating.add(number);
        }

        /** All that is there, as text. */
        Map<Integer, String> all() throws Exception {
            Map<Integer, String> all = new TreeMap<>();
            for (int key = 0; key < 2 * KEYS; key++) {
                backend.setCurrentKey(key);
                List<Long> elements = new ArrayList<>();
                Iterable<Long> found = list.get();
                if (found != null) {
                    found.forEach(elements::add);
                }
                TreeSet<String> entries = new TreeSet<>();
                for (Map.Entry<String, Long> entry : map.entries()) {
                    entries.add(entry.getKey() + "=" + entry.getValue());
                }
                String text =
                        value.value()
                                + " "
                                + elements
                                + " "
                                + entries
                                + " "
                                + reducing.get()
                                + " "
                                + aggregating.get();
                if (!text.equals("null [] [] null null")) {
                    all.put(key, text);
                }
            }
            return all;
        }
    }

    private static final class Sum implements AggregateFunction<Long, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long value, Long sum) {
            return sum + value;
        }

        @Override
        public Long getResult(Long sum) {
            return sum;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    /** What a checkpoint or savepoint holds, seen at a time when nothing has expired yet. */
    private Map<Integer, String> held(KeyedStateHandle handle, StateTtlConfig ttl)
            throws Exception {
        long now = time.time;
        time.time = 0;
        AbstractKeyedStateBackend<Integer> backend = weir(handle);
        Map<Integer, String> all = new EachKind(backend, ttl).all();
        backend.dispose();
        time.time = now;
        return all;
    }

    /** How many keys a checkpoint holds of a state that is not registered. */
    private long keys(KeyedStateHandle handle, String name) throws Exception {
        AbstractKeyedStateBackend<Integer> backend = weir(handle);
        long keys = backend.getKeys(name, VoidNamespace.INSTANCE).count();
        backend.dispose();
        return keys;
    }

    private interface Check {
        boolean holds(KeyedStateHandle handle) throws Exception;
    }

    /** Takes checkpoints, and does nothing else, until one of them is as it should be. */
    private KeyedStateHandle until(
            String what, AbstractKeyedStateBackend<Integer> backend, Check check) throws Exception {
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (true) {
            KeyedStateHandle handle = backends.completedCheckpoint(backend);
            if (check.holds(handle)) {
                return handle;
            }
            assertThat(System.nanoTime()).as("until %s", what).isLessThan(end);
            Thread.sleep(100);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"memory", "embedded"})
    void expiredRowsOfEveryKindLeaveWithoutBeingRead(String store) throws Exception {
        use(store);
        StateTtlConfig ttl = ttl().build();
        AbstractKeyedStateBackend<Integer> backend = weir();
        EachKind states = new EachKind(backend, ttl);
        time.time = 100;
        for (int key = 0; key < KEYS; key++) {
            states.add(key, "old", key);
            if (key % 25 == 0) {
                backends.completedCheckpoint(backend);
            }
        }
        // Elements that are added to a list between two checkpoints may share a row, which expires
        // with the last of them.
        backends.completedCheckpoint(backend);
        time.time = 600;
        for (int key = KEYS - 10; key < KEYS + 10; key++) {
            states.add(key, "new", key);
        }
        KeyedStateHandle before = backends.completedCheckpoint(backend);
        Map<Integer, String> all = held(before, ttl);
        assertThat(all).hasSize(KEYS + 10);

        // The old ones expire at 1100, the new ones at 1600.
        time.time = 1200;
        Map<Integer, String> left = new TreeMap<>();
        for (int key = KEYS - 10; key < KEYS + 10; key++) {
            // These two kinds were read and written again at 600.
            int sum = key < KEYS ? 2 * key : key;
            left.put(key, String.format("%d [%d] [new=%d] %d %d", key, key, key, sum, sum));
        }
        until(
                "only what was written at 600 is left",
                backend,
                handle -> held(handle, ttl).equals(left));
        assertThat(held(before, ttl)).as("an older version").isEqualTo(all);
        time.time = 1700;
        until("nothing is left", backend, handle -> held(handle, ttl).isEmpty());
        assertThat(states.all()).isEmpty();
    }

    @ParameterizedTest
    @ValueSource(strings = {"memory", "embedded"})
    void onlyWhatTheJobLetsExpireLeaves(String store) throws Exception {
        use(store);
        StateTtlConfig byDefault = ttl().build();
        StateTtlConfig disabled = ttl().disableCleanupInBackground().build();
        StateTtlConfig incremental =
                ttl().disableCleanupInBackground().cleanupIncrementally(3, false).build();
        StateTtlConfig filter =
                ttl().disableCleanupInBackground()
                        .cleanupInRocksdbCompactFilter(1000, Duration.ZERO)
                        .build();
        Map<String, StateTtlConfig> first = new TreeMap<>();
        first.put("by-default", byDefault);
        first.put("disabled", disabled);
        first.put("incremental", incremental);
        first.put("filter", filter);
        first.put("unregistered", byDefault);
        first.put("turned-off", byDefault);
        first.put("turned-on", null);
        AbstractKeyedStateBackend<Integer> backend = weir();
        time.time = 100;
        for (int key = 0; key < KEYS; key++) {
            backend.setCurrentKey(key);
            for (Map.Entry<String, StateTtlConfig> state : first.entrySet()) {
                value(backend, state.getKey(), state.getValue()).update(key + 7L);
            }
            if (key % 25 == 0) {
                backends.completedCheckpoint(backend);
            }
        }
        KeyedStateHandle handle = backends.completedCheckpoint(backend);
        backend.dispose();

        time.time = 2000;
        AbstractKeyedStateBackend<Integer> restored = weir(handle);
        for (String name : List.of("by-default", "disabled", "incremental", "filter")) {
            value(restored, name, first.get(name));
        }
        value(restored, "turned-off", null);
        value(restored, "turned-on", byDefault);
        KeyedStateHandle after =
                until(
                        "what has expired is gone",
                        restored,
                        version -> keys(version, "by-default") + keys(version, "filter") == 0);
        for (String name :
                List.of("disabled", "incremental", "unregistered", "turned-off", "turned-on")) {
            assertThat(keys(after, name)).as(name).isEqualTo(KEYS);
        }
        for (int key = 0; key < KEYS; key++) {
            restored.setCurrentKey(key);
            assertThat(value(restored, "turned-off", null).value()).isEqualTo(key + 7L);
            assertThat(value(restored, "turned-on", byDefault).value()).isEqualTo(key + 7L);
        }

        // TTL was turned on at 2000.
        time.time = 3100;
        after = until("and later this", restored, version -> keys(version, "turned-on") == 0);
        for (String name : List.of("disabled", "incremental", "unregistered", "turned-off")) {
            assertThat(keys(after, name)).as(name).isEqualTo(KEYS);
        }
        restored.dispose();

        // Turned off and on again: what was not dropped is still there.
        AbstractKeyedStateBackend<Integer> last = weir(after);
        for (int key = 0; key < KEYS; key++) {
            last.setCurrentKey(key);
            for (String name : List.of("disabled", "incremental", "unregistered", "turned-off")) {
                assertThat(value(last, name, null).value()).as(name).isEqualTo(key + 7L);
            }
        }
    }

    @Test
    void aLongerTimeToLiveAcrossARestoreCounts() throws Exception {
        AbstractKeyedStateBackend<Integer> backend = weir();
        time.time = 100;
        backend.setCurrentKey(1);
        value(backend, "value", ttl().build()).update(5L);
        KeyedStateHandle handle = backends.completedCheckpoint(backend);
        time.time = 5000;
        AbstractKeyedStateBackend<Integer> restored = weir(handle);
        StateTtlConfig longer = StateTtlConfig.newBuilder(Duration.ofMillis(10 * TTL)).build();
        restored.setCurrentKey(1);
        ValueState<Long> value = value(restored, "value", longer);
        handle = backends.completedCheckpoint(restored);
        assertThat(keys(handle, "value")).isEqualTo(1);
        assertThat(value.value()).isEqualTo(5L);
        // The clock is handed over with a checkpoint, and counts from the next merge on.
        time.time = 100 + 10 * TTL;
        backends.completedCheckpoint(restored);
        assertThat(keys(backends.completedCheckpoint(restored), "value")).isZero();
    }

    @Test
    void onlyAConfiguredIncrementalCleanupVisitsRows() throws Exception {
        AbstractKeyedStateBackend<Integer> backend = weir();
        assertThat(isVisited(backend, "a", null)).isTrue();
        assertThat(isVisited(backend, "b", ttl().build())).isFalse();
        assertThat(isVisited(backend, "c", ttl().cleanupInRocksdbCompactFilter(1).build()))
                .isFalse();
        assertThat(isVisited(backend, "d", ttl().cleanupIncrementally(5, false).build())).isTrue();
        StateTtlConfig only =
                ttl().disableCleanupInBackground().cleanupIncrementally(2, true).build();
        assertThat(isVisited(backend, "e", only)).isTrue();
    }

    private static boolean isVisited(
            AbstractKeyedStateBackend<Integer> backend, String name, StateTtlConfig ttl)
            throws Exception {
        ValueStateDescriptor<Long> descriptor =
                new ValueStateDescriptor<>(name, LongSerializer.INSTANCE);
        if (ttl != null) {
            descriptor.enableTimeToLive(ttl);
        }
        InternalKvState<Integer, VoidNamespace, Long> state =
                backend.createOrUpdateInternalState(VoidNamespaceSerializer.INSTANCE, descriptor);
        return state.getStateIncrementalVisitor(5) != null;
    }

    @Test
    void anIncrementalCleanupCleansWhatItVisits() throws Exception {
        StateTtlConfig incremental =
                ttl().disableCleanupInBackground().cleanupIncrementally(10, false).build();
        AbstractKeyedStateBackend<Integer> backend = weir();
        time.time = 100;
        ValueState<Long> value = value(backend, "value", incremental);
        for (int key = 0; key < KEYS; key++) {
            backend.setCurrentKey(key);
            value.update(1L);
        }
        time.time = 2000;
        backend.setCurrentKey(KEYS);
        for (int access = 0; access <= KEYS / 10; access++) {
            value.value();
        }
        assertThat(backend.getKeys("value", VoidNamespace.INSTANCE)).isEmpty();
    }

    @Test
    void aFullSnapshotLeavesOutWhatHasExpiredIfItIsConfiguredTo() throws Exception {
        for (boolean configured : new boolean[] {true, false}) {
            StateTtlConfig.Builder builder = ttl().disableCleanupInBackground();
            StateTtlConfig ttl =
                    configured ? builder.cleanupFullSnapshot().build() : builder.build();
            AbstractKeyedStateBackend<Integer> backend = weir();
            EachKind states = new EachKind(backend, ttl);
            time.time = 100;
            for (int key = 0; key < KEYS; key++) {
                states.add(key, "old", key);
            }
            time.time = 600;
            for (int key : List.of(3, KEYS + 5)) {
                states.add(key, "new", key);
            }
            time.time = 1200;
            KeyedStateHandle savepoint = backends.canonicalSavepoint(backend);
            KeyedStateHandle checkpoint = backends.completedCheckpoint(backend);
            assertThat(held(checkpoint, ttl)).as("a checkpoint").hasSize(KEYS + 1);
            Map<Integer, String> expected =
                    configured
                            ? new TreeMap<>(
                                    Map.of(
                                            3,
                                            "3 [3] [new=3] 6 6",
                                            KEYS + 5,
                                            "105 [105] [new=105] 105 105"))
                            : held(checkpoint, ttl);
            assertThat(held(savepoint, ttl)).as("a savepoint").isEqualTo(expected);

            // What is written is what HashMap reads.
            time.time = 0;
            EachKind heap =
                    new EachKind(
                            backends.open(
                                    new HashMapStateBackend(),
                                    IntSerializer.INSTANCE,
                                    KEY_GROUPS,
                                    ALL,
                                    List.of(savepoint)),
                            ttl);
            assertThat(heap.all()).as("read by HashMap").isEqualTo(expected);
        }
    }

    /** Flink's merge of two expired values is null. */
    @Test
    @SuppressWarnings("unchecked")
    void namespacesWhoseValuesHaveExpiredMergeIntoNothing() throws Exception {
        AbstractKeyedStateBackend<Integer> backend = weir();
        ReducingStateDescriptor<Long> reducing =
                new ReducingStateDescriptor<>("reducing", Long::sum, LongSerializer.INSTANCE);
        AggregatingStateDescriptor<Long, Long, Long> aggregating =
                new AggregatingStateDescriptor<>("aggregating", new Sum(), LongSerializer.INSTANCE);
        StateTtlConfig ttl = ttl().disableCleanupInBackground().build();
        reducing.enableTimeToLive(ttl);
        aggregating.enableTimeToLive(ttl);
        for (StateDescriptor<?, ?> descriptor : List.of(reducing, aggregating)) {
            InternalAppendingState<Integer, String, Long, ?, Long> state =
                    (InternalAppendingState<Integer, String, Long, ?, Long>)
                            backend.getPartitionedState("", StringSerializer.INSTANCE, descriptor);
            backend.setCurrentKey(1);
            time.time = 100;
            for (String namespace : List.of("target", "a", "b")) {
                state.setCurrentNamespace(namespace);
                state.add(1L);
            }
            time.time = 2000;
            InternalMergingState<Integer, String, ?, ?, ?> merging =
                    (InternalMergingState<Integer, String, ?, ?, ?>) state;
            merging.mergeNamespaces("target", List.of("a"));
            assertThat(backend.getKeysAndNamespaces(descriptor.getName()))
                    .containsExactly(Tuple2.of(1, "b"));
            merging.mergeNamespaces("target", List.of("a", "b"));
            state.setCurrentNamespace("target");
            assertThat(state.get()).isNull();
            assertThat(backend.getKeysAndNamespaces(descriptor.getName())).isEmpty();
            state.add(5L);
            assertThat(state.get()).isEqualTo(5L);
        }
    }

    @Test
    void theWallClockCountsByDefault() throws Exception {
        Backends real = new Backends();
        try {
            AbstractKeyedStateBackend<Integer> backend =
                    real.weir(IntSerializer.INSTANCE, KEY_GROUPS, ALL, List.of());
            // Longer than the slack for clocks that are set back, and far from it.
            StateTtlConfig hour = StateTtlConfig.newBuilder(Duration.ofHours(1)).build();
            StateTtlConfig moment = StateTtlConfig.newBuilder(Duration.ofMillis(1)).build();
            List<Integer> keys = IntStream.range(0, 20).boxed().collect(Collectors.toList());
            for (int key : keys) {
                backend.setCurrentKey(key);
                value(backend, "hour", hour).update(1L);
                value(backend, "moment", moment).update(1L);
            }
            long end = System.nanoTime() + DEADLINE.toNanos();
            long left;
            do {
                assertThat(System.nanoTime()).isLessThan(end);
                Thread.sleep(200);
                KeyedStateHandle handle = real.completedCheckpoint(backend);
                AbstractKeyedStateBackend<Integer> restored =
                        real.weir(IntSerializer.INSTANCE, KEY_GROUPS, ALL, List.of(handle));
                assertThat(restored.getKeys("hour", VoidNamespace.INSTANCE)).hasSize(keys.size());
                left = restored.getKeys("moment", VoidNamespace.INSTANCE).count();
                restored.dispose();
            } while (left > 0);
        } finally {
            real.close();
        }
    }
}
