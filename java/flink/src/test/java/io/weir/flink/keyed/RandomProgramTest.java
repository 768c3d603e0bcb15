package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.apache.flink.runtime.state.internal.InternalAggregatingState;
import org.apache.flink.runtime.state.internal.InternalListState;
import org.apache.flink.runtime.state.internal.InternalReducingState;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Random programs over a backend that is short of memory, restored now and then, against Flink's
 * own on the heap. A failure names its seed.
 */
class RandomProgramTest {

    private static final int KEY_GROUPS = 8;
    private static final KeyGroupRange ALL = KeyGroupRange.of(0, KEY_GROUPS - 1);
    private static final int KEYS = 400;
    private static final int NAMESPACES = 3;

    @TempDir Path directory;

    private Random random;
    private AbstractKeyedStateBackend<String> heap;
    private AbstractKeyedStateBackend<String> weir;

    @ParameterizedTest
    @CsvSource({"memory, 1, 30000", "memory, 2, 30000", "embedded, 3, 20000", "embedded, 4, 20000"})
    void answersAsTheHeapDoes(String store, long seed, int steps) throws Exception {
        random = new Random(seed);
        try (Backends backends = new Backends()) {
            if (store.equals("embedded")) {
                backends.set("state.backend.weir.store", store);
                backends.set("state.backend.weir.directory", directory.toUri().toString());
            }
            backends.set("state.backend.weir.memory.fixed-per-slot", "256 kb");
            heap =
                    backends.open(
                            new HashMapStateBackend(),
                            StringSerializer.INSTANCE,
                            KEY_GROUPS,
                            ALL,
                            List.of());
            weir = backends.weir(StringSerializer.INSTANCE, KEY_GROUPS, ALL, List.of());
            for (int step = 0; step < steps; step++) {
                step();
                if (step % (steps / 5) == steps / 10) {
                    compareKeys();
                    KeyedStateHandle handle = backends.checkpoint(weir);
                    weir.dispose();
                    weir =
                            backends.weir(
                                    StringSerializer.INSTANCE, KEY_GROUPS, ALL, List.of(handle));
                }
            }
            compareKeys();
        }
    }

    private <S extends State> S state(
            AbstractKeyedStateBackend<String> backend,
            String namespace,
            StateDescriptor<S, ?> descriptor)
            throws Exception {
        return backend.getPartitionedState(namespace, StringSerializer.INSTANCE, descriptor);
    }

    private static ValueStateDescriptor<String> value() {
        return new ValueStateDescriptor<>("value", StringSerializer.INSTANCE);
    }

    private static ListStateDescriptor<Integer> list() {
        return new ListStateDescriptor<>("list", IntSerializer.INSTANCE);
    }

    private static MapStateDescriptor<Integer, String> map() {
        return new MapStateDescriptor<>("map", IntSerializer.INSTANCE, StringSerializer.INSTANCE);
    }

    private static ReducingStateDescriptor<Integer> reducing() {
        return new ReducingStateDescriptor<>("reducing", Integer::sum, IntSerializer.INSTANCE);
    }

    private static AggregatingStateDescriptor<Integer, Integer, String> aggregating() {
        return new AggregatingStateDescriptor<>("aggregating", new Sums(), IntSerializer.INSTANCE);
    }

    private void step() throws Exception {
        String key = "key" + random.nextInt(KEYS);
        heap.setCurrentKey(key);
        weir.setCurrentKey(key);
        String namespace = "ns" + random.nextInt(NAMESPACES);
        switch (random.nextInt(5)) {
            case 0:
                stepValue(namespace);
                break;
            case 1:
                stepList(namespace);
                break;
            case 2:
                stepMap(namespace);
                break;
            case 3:
                stepReducing(namespace);
                break;
            default:
                stepAggregating(namespace);
        }
    }

    private void stepValue(String namespace) throws Exception {
        ValueState<String> expected = state(heap, namespace, value());
        ValueState<String> actual = state(weir, namespace, value());
        assertThat(actual.value()).isEqualTo(expected.value());
        if (random.nextInt(4) == 0) {
            expected.clear();
            actual.clear();
        } else {
            String update = "v".repeat(random.nextInt(40)) + random.nextInt();
            expected.update(update);
            actual.update(update);
        }
    }

    @SuppressWarnings("unchecked")
    private void stepList(String namespace) throws Exception {
        ListState<Integer> expected = state(heap, namespace, list());
        ListState<Integer> actual = state(weir, namespace, list());
        switch (random.nextInt(8)) {
            case 0:
                expected.clear();
                actual.clear();
                break;
            case 1:
                List<Integer> update =
                        random.ints(random.nextInt(4)).boxed().collect(Collectors.toList());
                expected.update(new ArrayList<>(update));
                actual.update(update);
                break;
            case 2:
                List<String> sources = sources(namespace);
                ((InternalListState<?, String, ?>) expected).mergeNamespaces(namespace, sources);
                ((InternalListState<?, String, ?>) actual).mergeNamespaces(namespace, sources);
                break;
            default:
                int element = random.nextInt();
                expected.add(element);
                actual.add(element);
        }
        assertThat(elements(state(weir, namespace, list())))
                .isEqualTo(elements(state(heap, namespace, list())));
    }

    private static List<Integer> elements(ListState<Integer> list) throws Exception {
        List<Integer> elements = new ArrayList<>();
        Iterable<Integer> read = list.get();
        if (read != null) {
            read.forEach(elements::add);
        }
        return elements;
    }

    private List<String> sources(String target) {
        List<String> sources = new ArrayList<>();
        for (int i = 0; i < NAMESPACES; i++) {
            if (!target.equals("ns" + i) && random.nextBoolean()) {
                sources.add("ns" + i);
            }
        }
        return sources;
    }

    private void stepMap(String namespace) throws Exception {
        MapState<Integer, String> expected = state(heap, namespace, map());
        MapState<Integer, String> actual = state(weir, namespace, map());
        int userKey = random.nextInt(20) - 10;
        switch (random.nextInt(10)) {
            case 0:
                expected.clear();
                actual.clear();
                break;
            case 1:
            case 2:
                expected.remove(userKey);
                actual.remove(userKey);
                break;
            case 3:
                assertThat(actual.isEmpty()).isEqualTo(expected.isEmpty());
                assertThat(entries(actual)).isEqualTo(entries(expected));
                break;
            case 4:
                assertThat(actual.contains(userKey)).isEqualTo(expected.contains(userKey));
                break;
            case 5:
                removeSome(expected, userKey);
                removeSome(actual, userKey);
                if (expected.isEmpty()) {
                    // The heap goes on to list a key whose entries an iterator removed.
                    expected.clear();
                }
                break;
            default:
                assertThat(actual.get(userKey)).isEqualTo(expected.get(userKey));
                String update = random.nextInt(10) == 0 ? null : "m" + random.nextInt();
                expected.put(userKey, update);
                actual.put(userKey, update);
        }
    }

    private static Map<Integer, String> entries(MapState<Integer, String> map) throws Exception {
        Map<Integer, String> entries = new HashMap<>();
        for (Map.Entry<Integer, String> entry : map.entries()) {
            assertThat(entries.containsKey(entry.getKey())).isFalse();
            entries.put(entry.getKey(), entry.getValue());
        }
        return entries;
    }

    private static void removeSome(MapState<Integer, String> map, int below) throws Exception {
        var iterator = map.iterator();
        while (iterator.hasNext()) {
            if (iterator.next().getKey() < below) {
                iterator.remove();
            }
        }
    }

    @SuppressWarnings("unchecked")
    private void stepReducing(String namespace) throws Exception {
        InternalReducingState<String, String, Integer> expected =
                (InternalReducingState<String, String, Integer>)
                        this.<ReducingState<Integer>>state(heap, namespace, reducing());
        InternalReducingState<String, String, Integer> actual =
                (InternalReducingState<String, String, Integer>)
                        this.<ReducingState<Integer>>state(weir, namespace, reducing());
        if (random.nextInt(5) == 0) {
            List<String> sources = sources(namespace);
            expected.mergeNamespaces(namespace, sources);
            actual.mergeNamespaces(namespace, sources);
            expected.setCurrentNamespace(namespace);
            actual.setCurrentNamespace(namespace);
        } else {
            int added = random.nextInt(100);
            expected.add(added);
            actual.add(added);
        }
        assertThat(actual.get()).isEqualTo(expected.get());
    }

    @SuppressWarnings("unchecked")
    private void stepAggregating(String namespace) throws Exception {
        InternalAggregatingState<String, String, Integer, Integer, String> expected =
                (InternalAggregatingState<String, String, Integer, Integer, String>)
                        this.<AggregatingState<Integer, String>>state(
                                heap, namespace, aggregating());
        InternalAggregatingState<String, String, Integer, Integer, String> actual =
                (InternalAggregatingState<String, String, Integer, Integer, String>)
                        this.<AggregatingState<Integer, String>>state(
                                weir, namespace, aggregating());
        switch (random.nextInt(5)) {
            case 0:
                expected.clear();
                actual.clear();
                break;
            case 1:
                List<String> sources = sources(namespace);
                expected.mergeNamespaces(namespace, sources);
                actual.mergeNamespaces(namespace, sources);
                expected.setCurrentNamespace(namespace);
                actual.setCurrentNamespace(namespace);
                break;
            default:
                int added = random.nextInt(100);
                expected.add(added);
                actual.add(added);
        }
        assertThat(actual.get()).isEqualTo(expected.get());
    }

    /** Changes values of all keys, and removes some, while they are gone through. */
    private void changeAllKeys() throws Exception {
        String namespace = "ns" + random.nextInt(NAMESPACES);
        assertThat(changedKeys(weir, namespace)).isEqualTo(changedKeys(heap, namespace));
    }

    private Map<String, String> changedKeys(
            AbstractKeyedStateBackend<String> backend, String namespace) throws Exception {
        Map<String, String> seen = new HashMap<>();
        backend.applyToAllKeys(
                namespace,
                StringSerializer.INSTANCE,
                value(),
                (key, state) -> {
                    assertThat(seen.put(key, state.value())).isNull();
                    if (key.endsWith("7")) {
                        state.clear();
                    } else {
                        state.update(key + " changed");
                    }
                });
        backend.applyToAllKeys(
                namespace,
                StringSerializer.INSTANCE,
                map(),
                (key, state) -> {
                    assertThat(seen.put("map of " + key, new TreeMap<>(entries(state)).toString()))
                            .isNull();
                    if (key.endsWith("3")) {
                        state.clear();
                    } else {
                        state.put(99, "changed");
                    }
                });
        return seen;
    }

    private void compareKeys() throws Exception {
        changeAllKeys();
        for (String name : List.of("value", "list", "map", "reducing", "aggregating")) {
            assertThat(keysAndNamespaces(weir, name))
                    .as(name)
                    .containsExactlyElementsOf(keysAndNamespaces(heap, name));
            for (int i = 0; i < NAMESPACES; i++) {
                assertThat(keys(weir, name, "ns" + i)).isEqualTo(keys(heap, name, "ns" + i));
            }
        }
        List<String> names = List.of("map", "value", "reducing");
        for (int i = 0; i < NAMESPACES; i++) {
            TreeSet<String> expected = new TreeSet<>();
            for (String name : names) {
                expected.addAll(keys(heap, name, "ns" + i));
            }
            try (Stream<String> stream = weir.getKeys(names, "ns" + i)) {
                assertThat(stream.sorted().collect(Collectors.toList()))
                        .isEqualTo(new ArrayList<>(expected));
            }
        }
    }

    private static List<String> keysAndNamespaces(
            AbstractKeyedStateBackend<String> backend, String name) {
        try (Stream<?> stream = backend.getKeysAndNamespaces(name)) {
            List<String> sorted = stream.map(Object::toString).collect(Collectors.toList());
            Collections.sort(sorted);
            return sorted;
        }
    }

    private static TreeSet<String> keys(
            AbstractKeyedStateBackend<String> backend, String name, String namespace) {
        try (Stream<String> stream = backend.getKeys(name, namespace)) {
            return stream.collect(Collectors.toCollection(TreeSet::new));
        }
    }

    /** Adds up, and answers in words. */
    private static final class Sums implements AggregateFunction<Integer, Integer, String> {
        private static final long serialVersionUID = 1L;

        @Override
        public Integer createAccumulator() {
            return 0;
        }

        @Override
        public Integer add(Integer value, Integer accumulator) {
            return value + accumulator;
        }

        @Override
        public String getResult(Integer accumulator) {
            return "sum " + accumulator;
        }

        @Override
        public Integer merge(Integer first, Integer second) {
            return first + second;
        }
    }
}
