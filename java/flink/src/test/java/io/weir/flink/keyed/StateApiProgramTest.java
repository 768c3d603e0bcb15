package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.apache.flink.runtime.state.internal.InternalAppendingState;
import org.apache.flink.runtime.state.internal.InternalMergingState;
import org.apache.flink.runtime.state.ttl.MockTtlTimeProvider;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.util.CloseableIterator;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Random programs over all of the state API at once, of one operator with some subtasks, against
 * HashMap: every kind of state with namespaces, with TTL by a clock of the test's own and without,
 * two queues of timers, keys around the store's longest and beyond; checkpoints and canonical
 * savepoints of either backend, from which both go on, at another parallelism and with TTL turned
 * on, off or changed.
 *
 * <p>A failure names its seed; {@code -Dweir.program.seeds=7,8,9} runs others.
 */
class StateApiProgramTest {

    private static final long[] TIMESTAMPS = {
        Long.MIN_VALUE, Long.MIN_VALUE + 1, -5, -1, 0, 1, 7, Long.MAX_VALUE - 1, Long.MAX_VALUE
    };
    private static final List<String> QUEUES =
            List.of("_timer_state/event_timers", "_timer_state/processing_timers");

    @TempDir Path directory;

    private final MockTtlTimeProvider clock = new MockTtlTimeProvider();
    private Random random;
    private Backends backends;
    private int keyGroups;
    private final List<String> keys = new ArrayList<>();
    private final List<String> namespaces = new ArrayList<>();
    private final List<String> userKeys = new ArrayList<>();
    private final Set<StateDescriptor.Type> neverWithTtl = new HashSet<>();
    private Map<StateDescriptor.Type, StateTtlConfig> ttl;

    static Stream<Long> seeds() {
        String seeds = System.getProperty("weir.program.seeds", "1,2,3,4,5,6");
        return Arrays.stream(seeds.split(",")).map(Long::valueOf);
    }

    @ParameterizedTest
    @MethodSource("seeds")
    void answersAsHashMapDoes(long seed) throws Exception {
        FileSystem.initialize(new Configuration(), null);
        // Small seeds by themselves begin alike.
        random = new Random(seed * 0x9E3779B97F4A7C15L);
        try (Backends opened = new Backends()) {
            backends = opened;
            backends.setTime(clock);
            if (random.nextBoolean()) {
                backends.set("state.backend.weir.store", "embedded");
                backends.set("state.backend.weir.directory", directory.toUri().toString());
            }
            backends.set("state.backend.weir.memory.working-set", pick("64 kb", "256 kb", "2 mb"));
            keyGroups = pick(1, 7, 128);
            boolean longKeys = random.nextInt(3) == 0;
            draw(longKeys);
            for (StateDescriptor.Type kind : KINDS) {
                if (random.nextInt(3) == 0) {
                    neverWithTtl.add(kind);
                }
            }
            run(longKeys ? 900 : 4_000);
        }
    }

    private void run(int steps) throws Exception {
        clock.time = 1_000_000;
        List<Part> parts = open(1, List.of(), List.of());
        for (int step = 1; step <= steps; step++) {
            Part part = parts.get(random.nextInt(parts.size()));
            step(part);
            if (step % (steps / 6) == 0) {
                parts.forEach(this::compareTimers);
                parts = goOn(parts);
            } else if (random.nextInt(150) == 0) {
                backends.completedCheckpoint(part.weir);
            }
            if (random.nextInt(12) == 0) {
                clock.time += random.nextInt(200);
            }
        }
        for (Part part : parts) {
            compareEverything(part);
            for (int queue = 0; queue < QUEUES.size(); queue++) {
                while (poll(part, queue)) {
                    // Until nothing is left in either.
                }
            }
        }
    }

    // ---------------- what is drawn once a program

    private static final StateDescriptor.Type[] KINDS = {
        StateDescriptor.Type.VALUE,
        StateDescriptor.Type.LIST,
        StateDescriptor.Type.MAP,
        StateDescriptor.Type.REDUCING,
        StateDescriptor.Type.AGGREGATING
    };

    /** The first bytes of long keys are the same, so that their rows are kept together. */
    private void draw(boolean longKeys) {
        for (int i = 0; i < (longKeys ? 12 : 80); i++) {
            keys.add("key" + i);
        }
        namespaces.addAll(List.of("", "ns1", "longer ns 2"));
        userKeys.addAll(List.of("", "a", "b", "seven c", "user key d", "user key e"));
        keys.add("");
        if (longKeys) {
            for (int i = 0; i < 8; i++) {
                // About where the encoded row reaches 65,535 bytes, in steps of its blocks.
                keys.add("k".repeat(63_440 + 32 * random.nextInt(5)) + "e".repeat(i));
            }
            keys.add("k".repeat(200_000));
            namespaces.add("n".repeat(65_534 + random.nextInt(3)));
            for (int i = 0; i < 3; i++) {
                userKeys.add("u".repeat(63_400 + 32 * random.nextInt(5)) + i);
                userKeys.add("u".repeat(65_534 + i));
            }
        }
    }

    private Map<StateDescriptor.Type, StateTtlConfig> drawTtl() {
        Map<StateDescriptor.Type, StateTtlConfig> drawn = new EnumMap<>(StateDescriptor.Type.class);
        for (StateDescriptor.Type kind : KINDS) {
            if (neverWithTtl.contains(kind) || random.nextInt(4) == 0) {
                continue;
            }
            StateTtlConfig.Builder builder =
                    StateTtlConfig.newBuilder(Duration.ofMillis(pick(200, 1_000, 5_000)));
            if (random.nextInt(3) == 0) {
                builder.updateTtlOnReadAndWrite();
            }
            switch (random.nextInt(5)) {
                case 0 -> builder.disableCleanupInBackground();
                case 1 -> builder.cleanupIncrementally(3, random.nextBoolean());
                case 2 -> builder.cleanupFullSnapshot();
                default -> {}
            }
            drawn.put(kind, builder.build());
        }
        return drawn;
    }

    @SafeVarargs
    private <T> T pick(T... choices) {
        return choices[random.nextInt(choices.length)];
    }

    private <T> T pick(List<T> choices) {
        return choices.get(random.nextInt(choices.size()));
    }

    // ---------------- subtasks

    /** One subtask on either backend. */
    private final class Part {
        final KeyGroupRange range;
        final AbstractKeyedStateBackend<String> heap;
        final AbstractKeyedStateBackend<String> weir;
        final List<KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>>>
                heapTimers;
        final List<KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>>>
                weirTimers;
        final List<String> keys;

        Part(KeyGroupRange range, List<KeyedStateHandle> ofHeap, List<KeyedStateHandle> ofWeir)
                throws Exception {
            this.range = range;
            heap =
                    backends.open(
                            new HashMapStateBackend(),
                            StringSerializer.INSTANCE,
                            keyGroups,
                            range,
                            ofHeap);
            weir = backends.weir(StringSerializer.INSTANCE, keyGroups, range, ofWeir);
            heapTimers = queues(heap);
            weirTimers = queues(weir);
            keys =
                    StateApiProgramTest.this.keys.stream()
                            .filter(key -> range.contains(keyGroup(key)))
                            .collect(Collectors.toList());
            List<StateDescriptor.Type> kinds = new ArrayList<>(List.of(KINDS));
            Collections.shuffle(kinds, random);
            for (StateDescriptor.Type kind : kinds) {
                state(heap, "", kind);
                state(weir, "", kind);
            }
        }
    }

    private static List<KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>>>
            queues(AbstractKeyedStateBackend<String> backend) {
        List<KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>>> queues =
                new ArrayList<>();
        for (String name : QUEUES) {
            queues.add(
                    backend.create(
                            name,
                            new TimerSerializer<>(
                                    StringSerializer.INSTANCE, StringSerializer.INSTANCE)));
        }
        return queues;
    }

    private int keyGroup(String key) {
        return KeyGroupRangeAssignment.assignToKeyGroup(key, keyGroups);
    }

    private List<Part> open(
            int parallelism, List<KeyedStateHandle> ofHeap, List<KeyedStateHandle> ofWeir)
            throws Exception {
        ttl = drawTtl();
        List<Part> parts = new ArrayList<>();
        for (int i = 0; i < parallelism; i++) {
            KeyGroupRange range =
                    KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(
                            keyGroups, parallelism, i);
            parts.add(new Part(range, within(range, ofHeap), within(range, ofWeir)));
        }
        return parts;
    }

    private static List<KeyedStateHandle> within(
            KeyGroupRange range, List<KeyedStateHandle> handles) {
        List<KeyedStateHandle> within = new ArrayList<>();
        for (KeyedStateHandle handle : handles) {
            KeyedStateHandle part = handle.getIntersection(range);
            if (part != null) {
                within.add(part);
            }
        }
        return within;
    }

    /** Ends all subtasks and begins others, from what the old ones have written. */
    private List<Part> goOn(List<Part> parts) throws Exception {
        int kind = random.nextInt(4);
        List<KeyedStateHandle> ofHeap = new ArrayList<>();
        List<KeyedStateHandle> ofWeir = new ArrayList<>();
        for (Part part : parts) {
            compareEverything(part);
            switch (kind) {
                case 0 -> ofHeap.add(backends.canonicalSavepoint(part.weir));
                case 1 -> ofHeap.add(backends.canonicalSavepoint(part.heap));
                default -> {
                    ofHeap.add(backends.checkpoint(part.heap));
                    ofWeir.add(backends.checkpoint(part.weir));
                }
            }
            part.heap.dispose();
            part.weir.dispose();
        }
        int parallelism = 1 + random.nextInt(Math.min(4, keyGroups));
        return open(parallelism, ofHeap, kind < 2 ? ofHeap : ofWeir);
    }

    // ---------------- states

    @SuppressWarnings("unchecked")
    private <S extends State> S state(
            AbstractKeyedStateBackend<String> backend, String namespace, StateDescriptor.Type kind)
            throws Exception {
        StateDescriptor<? extends State, ?> descriptor = descriptor(kind);
        if (ttl.containsKey(kind)) {
            descriptor.enableTimeToLive(ttl.get(kind));
        }
        return (S) backend.getPartitionedState(namespace, StringSerializer.INSTANCE, descriptor);
    }

    private static StateDescriptor<? extends State, ?> descriptor(StateDescriptor.Type kind) {
        return switch (kind) {
            case VALUE -> new ValueStateDescriptor<>("value", StringSerializer.INSTANCE);
            case LIST -> new ListStateDescriptor<>("list", IntSerializer.INSTANCE);
            case MAP ->
                    new MapStateDescriptor<>(
                            "map", StringSerializer.INSTANCE, IntSerializer.INSTANCE);
            case REDUCING ->
                    new ReducingStateDescriptor<>("reducing", Integer::sum, IntSerializer.INSTANCE);
            default ->
                    new AggregatingStateDescriptor<>(
                            "aggregating", new Texts(), StringSerializer.INSTANCE);
        };
    }

    private void step(Part part) throws Exception {
        if (random.nextInt(4) == 0) {
            stepTimers(part);
            return;
        }
        if (part.keys.isEmpty()) {
            return;
        }
        String key = pick(part.keys);
        part.heap.setCurrentKey(key);
        part.weir.setCurrentKey(key);
        StateDescriptor.Type kind = pick(KINDS);
        String namespace = pick(namespaces);
        State expected = state(part.heap, namespace, kind);
        State actual = state(part.weir, namespace, kind);
        if (random.nextInt(15) == 0) {
            expected.clear();
            actual.clear();
        } else if (kind != StateDescriptor.Type.VALUE
                && kind != StateDescriptor.Type.MAP
                && random.nextInt(8) == 0) {
            List<String> sources = new ArrayList<>(namespaces);
            sources.remove(namespace);
            Collections.shuffle(sources, random);
            sources = sources.subList(0, random.nextInt(sources.size() + 1));
            merge(expected, namespace, sources);
            merge(actual, namespace, sources);
            if (read(kind, expected) == null) {
                // Where all have expired HashMap keeps a null, and fails at the next snapshot.
                expected.clear();
            }
        } else {
            change(kind, expected, actual);
        }
        compare(kind, state(part.heap, namespace, kind), state(part.weir, namespace, kind));
    }

    @SuppressWarnings("unchecked")
    private static void merge(State state, String target, List<String> sources) throws Exception {
        ((InternalMergingState<String, String, ?, ?, ?>) state).mergeNamespaces(target, sources);
    }

    @SuppressWarnings("unchecked")
    private void change(StateDescriptor.Type kind, State expected, State actual) throws Exception {
        switch (kind) {
            case VALUE -> {
                String value = "v".repeat(random.nextInt(60)) + random.nextInt();
                ((ValueState<String>) expected).update(value);
                ((ValueState<String>) actual).update(value);
            }
            case LIST -> changeList((ListState<Integer>) expected, (ListState<Integer>) actual);
            case MAP ->
                    changeMap(
                            (MapState<String, Integer>) expected,
                            (MapState<String, Integer>) actual);
            default -> {
                int added = random.nextInt(50);
                ((InternalAppendingState<String, String, Integer, ?, ?>) expected).add(added);
                ((InternalAppendingState<String, String, Integer, ?, ?>) actual).add(added);
            }
        }
    }

    private void changeList(ListState<Integer> expected, ListState<Integer> actual)
            throws Exception {
        List<Integer> elements =
                random.ints(random.nextInt(4)).boxed().collect(Collectors.toList());
        switch (random.nextInt(5)) {
            case 0 -> {
                expected.update(new ArrayList<>(elements));
                actual.update(elements);
            }
            case 1 -> {
                expected.addAll(new ArrayList<>(elements));
                actual.addAll(elements);
            }
            default -> {
                int element = random.nextInt();
                expected.add(element);
                actual.add(element);
            }
        }
    }

    private void changeMap(MapState<String, Integer> expected, MapState<String, Integer> actual)
            throws Exception {
        String userKey = pick(userKeys);
        int value = random.nextInt();
        switch (random.nextInt(8)) {
            case 0 -> {
                expected.remove(userKey);
                actual.remove(userKey);
            }
            case 1 -> {
                Map<String, Integer> all = new HashMap<>();
                for (int i = 0; i < 4; i++) {
                    all.put(pick(userKeys), value + i);
                }
                expected.putAll(all);
                actual.putAll(all);
            }
            case 2 -> {
                assertThat(actual.contains(userKey)).isEqualTo(expected.contains(userKey));
                assertThat(actual.get(userKey)).isEqualTo(expected.get(userKey));
            }
            case 3 -> {
                int below = random.nextInt(40) - 5;
                changeEntries(expected, below, value);
                changeEntries(actual, below, value);
                if (neverWithTtl.contains(StateDescriptor.Type.MAP) && expected.isEmpty()) {
                    // HashMap goes on to list a key whose entries an iterator removed. With TTL,
                    // asking would change when entries expire.
                    expected.clear();
                }
            }
            default -> {
                expected.put(userKey, value);
                actual.put(userKey, value);
            }
        }
    }

    /** Some entries are removed and some changed on the way, by what they are alone. */
    private static void changeEntries(MapState<String, Integer> map, int below, int value)
            throws Exception {
        Iterator<Map.Entry<String, Integer>> entries = map.iterator();
        while (entries.hasNext()) {
            Map.Entry<String, Integer> entry = entries.next();
            int hash = Math.floorMod(entry.getKey().hashCode(), 40);
            if (hash < below) {
                entries.remove();
            } else if (hash % 3 == 0) {
                entry.setValue(value + hash);
            }
        }
    }

    private void compare(StateDescriptor.Type kind, State expected, State actual) throws Exception {
        assertThat(read(kind, actual)).as("%s", kind).isEqualTo(read(kind, expected));
    }

    @SuppressWarnings("unchecked")
    private static Object read(StateDescriptor.Type kind, State state) throws Exception {
        switch (kind) {
            case VALUE:
                return ((ValueState<String>) state).value();
            case LIST:
                List<Integer> elements = new ArrayList<>();
                Iterable<Integer> list = ((ListState<Integer>) state).get();
                if (list != null) {
                    list.forEach(elements::add);
                }
                return elements;
            case MAP:
                Map<String, Integer> entries = new HashMap<>();
                for (Map.Entry<String, Integer> entry :
                        ((MapState<String, Integer>) state).entries()) {
                    assertThat(entries.put(entry.getKey(), entry.getValue())).isNull();
                }
                return entries;
            default:
                return ((InternalAppendingState<String, String, Integer, ?, ?>) state).get();
        }
    }

    /**
     * With TTL, also removes what has expired: whether that is still there when TTL is turned off
     * or made longer afterwards is not promised.
     */
    @SuppressWarnings("unchecked")
    private void compareEverything(Part part) throws Exception {
        for (StateDescriptor.Type kind : KINDS) {
            for (String key : part.keys) {
                part.heap.setCurrentKey(key);
                part.weir.setCurrentKey(key);
                for (String namespace : namespaces) {
                    State expected = state(part.heap, namespace, kind);
                    State actual = state(part.weir, namespace, kind);
                    compare(kind, expected, actual);
                    if (kind == StateDescriptor.Type.LIST && ttl.containsKey(kind)) {
                        // Reading a list leaves expired elements beside others.
                        rewrite((ListState<Integer>) expected);
                        rewrite((ListState<Integer>) actual);
                    }
                }
            }
            if (neverWithTtl.contains(kind)) {
                String name = descriptor(kind).getName();
                assertThat(keysOf(part.weir, name)).as(name).isEqualTo(keysOf(part.heap, name));
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static void rewrite(ListState<Integer> list) throws Exception {
        list.update((List<Integer>) read(StateDescriptor.Type.LIST, list));
    }

    private static List<String> keysOf(AbstractKeyedStateBackend<String> backend, String state) {
        try (Stream<org.apache.flink.api.java.tuple.Tuple2<String, String>> stream =
                backend.getKeysAndNamespaces(state)) {
            return stream.map(Object::toString).sorted().collect(Collectors.toList());
        }
    }

    /** The order in which it was added to and merged shows. */
    private static final class Texts implements AggregateFunction<Integer, String, String> {
        private static final long serialVersionUID = 1L;

        @Override
        public String createAccumulator() {
            return "";
        }

        @Override
        public String add(Integer value, String accumulator) {
            return shorten(accumulator + "," + value);
        }

        @Override
        public String getResult(String accumulator) {
            return "[" + accumulator + "]";
        }

        @Override
        public String merge(String a, String b) {
            return shorten(a + ";" + b);
        }

        private static String shorten(String text) {
            return text.substring(Math.max(0, text.length() - 60));
        }
    }

    // ---------------- timers

    private void stepTimers(Part part) throws Exception {
        int queue = random.nextInt(QUEUES.size());
        int kind = random.nextInt(20);
        if (kind < 9 && !part.keys.isEmpty()) {
            TimerHeapInternalTimer<String, String> timer = timer(part);
            part.heapTimers.get(queue).add(copy(timer));
            part.weirTimers.get(queue).add(timer);
        } else if (kind < 12 && !part.keys.isEmpty()) {
            TimerHeapInternalTimer<String, String> timer = timer(part);
            part.heapTimers.get(queue).remove(copy(timer));
            part.weirTimers.get(queue).remove(timer);
        } else if (kind < 19) {
            for (int i = random.nextInt(3); i >= 0; i--) {
                poll(part, queue);
            }
        } else {
            removeSome(part, queue);
        }
        TimerHeapInternalTimer<String, String> expected = part.heapTimers.get(queue).peek();
        TimerHeapInternalTimer<String, String> actual = part.weirTimers.get(queue).peek();
        assertThat(actual == null ? null : actual.getTimestamp())
                .isEqualTo(expected == null ? null : expected.getTimestamp());
    }

    private TimerHeapInternalTimer<String, String> timer(Part part) {
        long timestamp =
                random.nextInt(3) == 0
                        ? TIMESTAMPS[random.nextInt(TIMESTAMPS.length)]
                        : clock.time + random.nextInt(300) - 50;
        return new TimerHeapInternalTimer<>(timestamp, pick(part.keys), pick(namespaces));
    }

    private static TimerHeapInternalTimer<String, String> copy(
            TimerHeapInternalTimer<String, String> timer) {
        return new TimerHeapInternalTimer<>(
                timer.getTimestamp(), timer.getKey(), timer.getNamespace());
    }

    /** Which of several timers of one timestamp comes first is not promised. */
    private boolean poll(Part part, int queue) {
        TimerHeapInternalTimer<String, String> polled = part.weirTimers.get(queue).poll();
        TimerHeapInternalTimer<String, String> head = part.heapTimers.get(queue).peek();
        if (polled == null) {
            assertThat(head).isNull();
            return false;
        }
        assertThat(head).isNotNull();
        assertThat(polled.getTimestamp()).isEqualTo(head.getTimestamp());
        assertThat(part.heapTimers.get(queue).getSubsetForKeyGroup(keyGroup(polled.getKey())))
                .contains(polled);
        part.heapTimers.get(queue).remove(copy(polled));
        return true;
    }

    /** Timers go while they are gone through. */
    private void removeSome(Part part, int queue) throws Exception {
        Set<TimerHeapInternalTimer<String, String>> seen = new HashSet<>();
        List<TimerHeapInternalTimer<String, String>> removed = new ArrayList<>();
        int modulus = 2 + random.nextInt(10);
        try (CloseableIterator<TimerHeapInternalTimer<String, String>> timers =
                part.weirTimers.get(queue).iterator()) {
            while (timers.hasNext()) {
                TimerHeapInternalTimer<String, String> timer = timers.next();
                assertThat(seen.add(timer)).isTrue();
                if (Math.floorMod(timer.hashCode(), modulus) == 0) {
                    part.weirTimers.get(queue).remove(timer);
                    removed.add(timer);
                }
            }
        }
        assertThat(seen).isEqualTo(all(part.heapTimers.get(queue)));
        for (TimerHeapInternalTimer<String, String> timer : removed) {
            part.heapTimers.get(queue).remove(copy(timer));
        }
    }

    private void compareTimers(Part part) {
        for (int queue = 0; queue < QUEUES.size(); queue++) {
            KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> expected =
                    part.heapTimers.get(queue);
            KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> actual =
                    part.weirTimers.get(queue);
            assertThat(actual.size()).isEqualTo(expected.size());
            assertThat(actual.isEmpty()).isEqualTo(expected.isEmpty());
            for (int keyGroup : part.range) {
                assertThat(new HashSet<>(actual.getSubsetForKeyGroup(keyGroup)))
                        .isEqualTo(new HashSet<>(expected.getSubsetForKeyGroup(keyGroup)));
            }
        }
    }

    private static Set<TimerHeapInternalTimer<String, String>> all(
            KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> queue)
            throws Exception {
        Set<TimerHeapInternalTimer<String, String>> all = new HashSet<>();
        try (CloseableIterator<TimerHeapInternalTimer<String, String>> timers = queue.iterator()) {
            timers.forEachRemaining(all::add);
        }
        return all;
    }
}
