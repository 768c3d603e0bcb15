package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.errors.NonDeterministicSerializerException;

import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.common.typeutils.base.array.BytePrimitiveArraySerializer;
import org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializer;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Many, long, large, empty: what a job may do, at its edges. */
class LimitsTest {

    private static final int KEY_GROUPS = 16;
    private static final KeyGroupRange ALL = KeyGroupRange.of(0, KEY_GROUPS - 1);

    @TempDir Path directory;

    private final Backends backends = new Backends();

    @AfterEach
    void close() throws Exception {
        backends.close();
    }

    private void useFiles() {
        backends.set("state.backend.weir.store", "embedded");
        backends.set("state.backend.weir.directory", directory.toUri().toString());
    }

    private <K> AbstractKeyedStateBackend<K> weir(
            TypeSerializer<K> keys, KeyGroupRange range, KeyedStateHandle... handles)
            throws Exception {
        return backends.weir(keys, KEY_GROUPS, range, List.of(handles));
    }

    private <K> AbstractKeyedStateBackend<K> restored(
            TypeSerializer<K> keys, AbstractKeyedStateBackend<K> backend) throws Exception {
        KeyedStateHandle handle = backends.checkpoint(backend);
        backend.dispose();
        return weir(keys, ALL, handle);
    }

    private static <S extends State> S state(
            AbstractKeyedStateBackend<?> backend, StateDescriptor<S, ?> descriptor)
            throws Exception {
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE, VoidNamespaceSerializer.INSTANCE, descriptor);
    }

    private static ValueState<String> value(AbstractKeyedStateBackend<?> backend, String name)
            throws Exception {
        return state(backend, new ValueStateDescriptor<>(name, StringSerializer.INSTANCE));
    }

    private static ListState<String> list(AbstractKeyedStateBackend<?> backend, String name)
            throws Exception {
        return state(backend, new ListStateDescriptor<>(name, StringSerializer.INSTANCE));
    }

    private static MapState<String, String> map(AbstractKeyedStateBackend<?> backend, String name)
            throws Exception {
        return state(
                backend,
                new MapStateDescriptor<>(
                        name, StringSerializer.INSTANCE, StringSerializer.INSTANCE));
    }

    private static <T> List<T> elements(ListState<T> list) throws Exception {
        List<T> elements = new ArrayList<>();
        Iterable<T> read = list.get();
        if (read != null) {
            read.forEach(elements::add);
        }
        return elements;
    }

    private static Map<String, String> entries(MapState<String, String> map) throws Exception {
        Map<String, String> entries = new TreeMap<>(LimitsTest::nullsFirst);
        for (Map.Entry<String, String> entry : map.entries()) {
            entries.put(entry.getKey(), entry.getValue());
        }
        return entries;
    }

    private static int nullsFirst(String a, String b) {
        if (a == null || b == null) {
            return (a == null ? 0 : 1) - (b == null ? 0 : 1);
        }
        return a.compareTo(b);
    }

    // ---------------- many

    @Test
    void aThousandStates() throws Exception {
        AbstractKeyedStateBackend<Long> backend = weir(LongSerializer.INSTANCE, ALL);
        fillAThousand(backend);
        backend = restored(LongSerializer.INSTANCE, backend);
        // Half of them are not registered this time, and stay.
        checkAThousand(backend, 500);
        backend = restored(LongSerializer.INSTANCE, backend);
        checkAThousand(backend, 1_000);
    }

    private static void fillAThousand(AbstractKeyedStateBackend<Long> backend) throws Exception {
        for (long key = 0; key < 3; key++) {
            backend.setCurrentKey(key);
            for (int i = 0; i < 1_000; i++) {
                switch (i % 3) {
                    case 0 -> value(backend, "state" + i).update(key + "/" + i);
                    case 1 -> list(backend, "state" + i).addAll(List.of("a" + key, "b" + i));
                    default -> map(backend, "state" + i).put("k" + key, "v" + i);
                }
            }
        }
    }

    private static void checkAThousand(AbstractKeyedStateBackend<Long> backend, int count)
            throws Exception {
        for (long key = 0; key < 3; key++) {
            backend.setCurrentKey(key);
            for (int i = 0; i < count; i++) {
                switch (i % 3) {
                    case 0 ->
                            assertThat(value(backend, "state" + i).value())
                                    .isEqualTo(key + "/" + i);
                    case 1 ->
                            assertThat(elements(list(backend, "state" + i)))
                                    .containsExactly("a" + key, "b" + i);
                    default ->
                            assertThat(entries(map(backend, "state" + i)))
                                    .isEqualTo(Map.of("k" + key, "v" + i));
                }
            }
        }
    }

    @Test
    void hundredsOfNamespacesAKey() throws Exception {
        backends.set("state.backend.weir.memory.fixed-per-slot", "256 kb");
        AbstractKeyedStateBackend<String> heap =
                backends.open(
                        new HashMapStateBackend(),
                        StringSerializer.INSTANCE,
                        KEY_GROUPS,
                        ALL,
                        List.of());
        AbstractKeyedStateBackend<String> weir = weir(StringSerializer.INSTANCE, ALL);
        for (AbstractKeyedStateBackend<String> backend : List.of(heap, weir)) {
            for (int key = 0; key < 12; key++) {
                backend.setCurrentKey("key" + key);
                for (int namespace = 0; namespace < 400; namespace++) {
                    if ((key + namespace) % 11 > 0) {
                        counts(backend, namespace).add(key * 1000 + namespace);
                    }
                    if ((key + namespace) % 7 == 0) {
                        backend.getPartitionedState(
                                        namespace,
                                        IntSerializer.INSTANCE,
                                        new ListStateDescriptor<>("list", IntSerializer.INSTANCE))
                                .addAll(List.of(key, namespace));
                    }
                }
            }
        }
        AbstractKeyedStateBackend<String> again = restored(StringSerializer.INSTANCE, weir);
        for (int key = 0; key < 12; key++) {
            heap.setCurrentKey("key" + key);
            again.setCurrentKey("key" + key);
            for (int namespace = 0; namespace < 400; namespace++) {
                assertThat(counts(again, namespace).get()).isEqualTo(counts(heap, namespace).get());
            }
        }
        for (String name : List.of("counts", "list")) {
            assertThat(sorted(again.getKeysAndNamespaces(name)))
                    .hasSizeGreaterThan(600)
                    .isEqualTo(sorted(heap.getKeysAndNamespaces(name)));
            assertThat(sorted(again.getKeys(name, 21))).isEqualTo(sorted(heap.getKeys(name, 21)));
        }
    }

    private static org.apache.flink.api.common.state.ReducingState<Integer> counts(
            AbstractKeyedStateBackend<String> backend, int namespace) throws Exception {
        return backend.getPartitionedState(
                namespace,
                IntSerializer.INSTANCE,
                new ReducingStateDescriptor<>("counts", Integer::sum, IntSerializer.INSTANCE));
    }

    private static List<String> sorted(Stream<?> stream) {
        try (stream) {
            return stream.map(Object::toString).sorted().collect(Collectors.toList());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"memory", "embedded"})
    void theGreatestMaximumParallelism(String store) throws Exception {
        if (store.equals("embedded")) {
            useFiles();
        }
        int keyGroups = 32_768;
        KeyGroupRange all = KeyGroupRange.of(0, keyGroups - 1);
        AbstractKeyedStateBackend<Long> backend =
                backends.weir(LongSerializer.INSTANCE, keyGroups, all, List.of());
        int keys = 3_000;
        for (long key = 0; key < keys; key++) {
            backend.setCurrentKey(key);
            value(backend, "value").update("v" + key);
            map(backend, "map").put("k", "v" + key);
        }
        KeyedStateHandle handle = backends.checkpoint(backend);
        backend.dispose();
        int seen = 0;
        for (KeyGroupRange range :
                List.of(
                        KeyGroupRange.of(0, 9_999),
                        KeyGroupRange.of(10_000, 32_766),
                        KeyGroupRange.of(32_767, 32_767))) {
            AbstractKeyedStateBackend<Long> part =
                    backends.weir(LongSerializer.INSTANCE, keyGroups, range, List.of(handle));
            List<Long> here = new ArrayList<>();
            for (long key = 0; key < keys; key++) {
                if (range.contains(KeyGroupRangeAssignment.assignToKeyGroup(key, keyGroups))) {
                    part.setCurrentKey(key);
                    assertThat(value(part, "value").value()).isEqualTo("v" + key);
                    assertThat(map(part, "map").get("k")).isEqualTo("v" + key);
                    here.add(key);
                }
            }
            try (Stream<Long> stream = part.getKeys("map", VoidNamespace.INSTANCE)) {
                assertThat(stream.collect(Collectors.toList()))
                        .containsExactlyInAnyOrderElementsOf(here);
            }
            seen += here.size();
            part.dispose();
        }
        assertThat(seen).isEqualTo(keys);
    }

    // ---------------- long and large

    @Test
    void longNamesOfAnyScript() throws Exception {
        List<String> names =
                List.of(
                        "",
                        " ",
                        "日本語の状態",
                        "état/ß\n\u0000🙂",
                        "é".repeat(30_000) + "a",
                        "é".repeat(30_000) + "b");
        AbstractKeyedStateBackend<Long> backend = weir(LongSerializer.INSTANCE, ALL);
        backend.setCurrentKey(1L);
        for (String name : names) {
            value(backend, name).update("value of " + name);
        }
        backend = restored(LongSerializer.INSTANCE, backend);
        backend.setCurrentKey(1L);
        for (String name : names) {
            assertThat(value(backend, name).value()).isEqualTo("value of " + name);
        }
        AbstractKeyedStateBackend<Long> last = backend;
        assertThatThrownBy(() -> value(last, "n".repeat(65_536)))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("nnnn")
                .hasMessageContaining("65536")
                .hasMessageContaining("65535");
    }

    @ParameterizedTest
    @ValueSource(strings = {"32 mb", "400 mb"})
    void valuesOf64Megabytes(String budget) throws Exception {
        useFiles();
        backends.set("state.backend.weir.memory.fixed-per-slot", budget);
        AbstractKeyedStateBackend<Long> backend = weir(LongSerializer.INSTANCE, ALL);
        backend.setCurrentKey(1L);
        large(backend).update(bytes(1));
        largeList(backend).add(bytes(2));
        largeList(backend).add(bytes(3));
        largeMap(backend).put("large", bytes(4));
        largeMap(backend).put("small", new byte[] {7});
        backend = restored(LongSerializer.INSTANCE, backend);
        backend.setCurrentKey(1L);
        assertThat(Arrays.equals(large(backend).value(), bytes(1))).isTrue();
        int seed = 2;
        for (byte[] element : largeList(backend).get()) {
            assertThat(Arrays.equals(element, bytes(seed++))).isTrue();
        }
        assertThat(seed).isEqualTo(4);
        assertThat(Arrays.equals(largeMap(backend).get("large"), bytes(4))).isTrue();
        assertThat(largeMap(backend).get("small")).containsExactly(7);
    }

    private static byte[] bytes(int seed) {
        byte[] bytes = new byte[64 << 20];
        new Random(seed).nextBytes(bytes);
        return bytes;
    }

    private static ValueState<byte[]> large(AbstractKeyedStateBackend<?> backend) throws Exception {
        return state(
                backend,
                new ValueStateDescriptor<>("value", BytePrimitiveArraySerializer.INSTANCE));
    }

    private static ListState<byte[]> largeList(AbstractKeyedStateBackend<?> backend)
            throws Exception {
        return state(
                backend, new ListStateDescriptor<>("list", BytePrimitiveArraySerializer.INSTANCE));
    }

    private static MapState<String, byte[]> largeMap(AbstractKeyedStateBackend<?> backend)
            throws Exception {
        return state(
                backend,
                new MapStateDescriptor<>(
                        "map", StringSerializer.INSTANCE, BytePrimitiveArraySerializer.INSTANCE));
    }

    /** Against the heap, with little memory, so that rows are read from the store. */
    @ParameterizedTest
    @ValueSource(strings = {"memory", "embedded"})
    void keysOf64KilobytesAndMore(String store) throws Exception {
        if (store.equals("embedded")) {
            useFiles();
        }
        backends.set("state.backend.weir.memory.fixed-per-slot", "1 mb");
        List<String> keys = new ArrayList<>();
        for (int length : new int[] {60_000, 63_529, 63_530, 65_536, 70_000, 200_000}) {
            for (String end : List.of("", "a", "b", "é")) {
                keys.add("k".repeat(length) + end);
            }
        }
        keys.add("another" + "k".repeat(65_536));
        AbstractKeyedStateBackend<String> weir = weir(StringSerializer.INSTANCE, ALL);
        for (int i = 0; i < keys.size(); i++) {
            weir.setCurrentKey(keys.get(i));
            value(weir, "value").update("v" + i);
            list(weir, "list").addAll(List.of("a" + i, "b" + i));
            for (int entry = 0; entry < 5; entry++) {
                map(weir, "map").put(keys.get(entry), "m" + i + entry);
            }
        }
        checkLongKeys(weir, keys, keys.size());
        weir = restored(StringSerializer.INSTANCE, weir);
        checkLongKeys(weir, keys, keys.size());
        for (int i = keys.size() - 3; i < keys.size(); i++) {
            weir.setCurrentKey(keys.get(i));
            value(weir, "value").clear();
            list(weir, "list").clear();
            map(weir, "map").clear();
        }
        KeyedStateHandle savepoint = backends.canonicalSavepoint(weir);
        checkLongKeys(weir(StringSerializer.INSTANCE, ALL, savepoint), keys, keys.size() - 3);
        checkLongKeys(restored(StringSerializer.INSTANCE, weir), keys, keys.size() - 3);
    }

    private static void checkLongKeys(
            AbstractKeyedStateBackend<String> weir, List<String> keys, int count) throws Exception {
        for (int i = 0; i < keys.size(); i++) {
            weir.setCurrentKey(keys.get(i));
            if (i >= count) {
                assertThat(value(weir, "value").value()).isNull();
                assertThat(elements(list(weir, "list"))).isEmpty();
                assertThat(map(weir, "map").isEmpty()).isTrue();
                continue;
            }
            assertThat(value(weir, "value").value()).isEqualTo("v" + i);
            assertThat(elements(list(weir, "list"))).containsExactly("a" + i, "b" + i);
            Map<String, String> expected = new TreeMap<>();
            for (int entry = 0; entry < 5; entry++) {
                expected.put(keys.get(entry), "m" + i + entry);
            }
            assertThat(entries(map(weir, "map")).equals(expected)).isTrue();
        }
        for (String name : List.of("value", "list", "map")) {
            try (Stream<String> stream = weir.getKeys(name, VoidNamespace.INSTANCE)) {
                assertThat(stream.sorted().collect(Collectors.toList()))
                        .hasSize(count)
                        .isEqualTo(
                                keys.subList(0, count).stream()
                                        .sorted()
                                        .collect(Collectors.toList()));
            }
        }
    }

    // ---------------- empty and null

    @Test
    void emptyAndNullAsOnTheHeap() throws Exception {
        AbstractKeyedStateBackend<String> heap =
                backends.open(
                        new HashMapStateBackend(),
                        StringSerializer.INSTANCE,
                        KEY_GROUPS,
                        ALL,
                        List.of());
        AbstractKeyedStateBackend<String> weir = weir(StringSerializer.INSTANCE, ALL);
        for (AbstractKeyedStateBackend<String> backend : List.of(heap, weir)) {
            for (String key : List.of("", "a", "b")) {
                backend.setCurrentKey(key);
                value(backend, "value").update("");
                list(backend, "list").addAll(List.of("", "x", ""));
                map(backend, "map").put("", "");
                map(backend, "map").put("null", null);
                map(backend, "map").put(null, "of null");
                value(backend, "cleared").update("x");
                value(backend, "cleared").update(null);
                list(backend, "emptied").add("x");
                list(backend, "emptied").update(List.of());
                map(backend, "removed").put(null, null);
                map(backend, "removed").remove(null);
                map(backend, "nothing").putAll(Map.of());
                list(backend, "nothing added").addAll(List.of());
            }
            backend.setCurrentKey("b");
            value(backend, "value").clear();
            assertThatThrownBy(() -> list(backend, "list").add(null))
                    .isInstanceOf(NullPointerException.class);
            assertThatThrownBy(() -> backend.setCurrentKey(null))
                    .isInstanceOf(NullPointerException.class);
        }
        compareEmpty(heap, weir);
        compareEmpty(heap, restored(StringSerializer.INSTANCE, weir));
    }

    private static void compareEmpty(
            AbstractKeyedStateBackend<String> heap, AbstractKeyedStateBackend<String> weir)
            throws Exception {
        for (String key : List.of("", "a", "b", "never")) {
            heap.setCurrentKey(key);
            weir.setCurrentKey(key);
            for (String name : List.of("value", "cleared")) {
                assertThat(value(weir, name).value()).isEqualTo(value(heap, name).value());
            }
            for (String name : List.of("list", "emptied", "nothing added")) {
                assertThat(elements(list(weir, name))).isEqualTo(elements(list(heap, name)));
            }
            for (String name : List.of("map", "removed", "nothing")) {
                assertThat(entries(map(weir, name))).isEqualTo(entries(map(heap, name)));
                assertThat(map(weir, name).isEmpty()).isEqualTo(map(heap, name).isEmpty());
                for (String userKey : Arrays.asList("", "null", null, "absent")) {
                    assertThat(map(weir, name).contains(userKey))
                            .isEqualTo(map(heap, name).contains(userKey));
                    assertThat(map(weir, name).get(userKey))
                            .isEqualTo(map(heap, name).get(userKey));
                }
            }
        }
        for (String name : List.of("value", "list", "map", "cleared", "emptied")) {
            assertThat(sorted(weir.getKeys(name, VoidNamespace.INSTANCE)))
                    .isEqualTo(sorted(heap.getKeys(name, VoidNamespace.INSTANCE)));
        }
    }

    // ---------------- objects

    /** The heap hands out the object that it keeps; Weir, as RocksDB, a copy. */
    @Test
    void anObjectChangedWithoutUpdateChangesNoState() throws Exception {
        AbstractKeyedStateBackend<Long> backend = weir(LongSerializer.INSTANCE, ALL);
        backend.setCurrentKey(1L);
        ValueState<List<String>> state =
                state(
                        backend,
                        new ValueStateDescriptor<>(
                                "value", new ListSerializer<>(StringSerializer.INSTANCE)));
        MapState<String, List<String>> map =
                state(
                        backend,
                        new MapStateDescriptor<>(
                                "map",
                                StringSerializer.INSTANCE,
                                new ListSerializer<>(StringSerializer.INSTANCE)));
        List<String> written = new ArrayList<>(List.of("a"));
        state.update(written);
        map.put("k", written);
        written.add("after update");
        assertThat(state.value()).containsExactly("a");
        assertThat(map.get("k")).containsExactly("a");

        List<String> read = state.value();
        read.add("without update");
        map.get("k").add("without put");
        map.entries().iterator().next().getValue().add("without setValue");
        assertThat(state.value()).containsExactly("a");
        assertThat(map.get("k")).containsExactly("a");
        backends.checkpoint(backend);
        assertThat(state.value()).containsExactly("a");

        state.update(read);
        assertThat(state.value()).containsExactly("a", "without update");
    }

    // ---------------- serializers

    /** "Aa" and "BB" have the same hash, so that a set's order is that of insertion. */
    @Test
    void equalKeysThatAreWrittenDifferentlyAreRefused() throws Exception {
        AbstractKeyedStateBackend<HashSet<String>> backend = weir(sets(), ALL);
        backend.setCurrentKey(new HashSet<>(List.of("Aa", "BB")));
        value(backend, "value").update("first");
        backend.setCurrentKey(new HashSet<>(List.of("BB", "Aa")));
        assertThatThrownBy(() -> value(backend, "value").value())
                .isInstanceOf(NonDeterministicSerializerException.class)
                .hasMessageContaining("HashSet")
                .hasMessageContaining("KryoSerializer");
    }

    @Test
    void aKeyThatReadsBackOtherwiseIsRefused() throws Exception {
        AbstractKeyedStateBackend<Long> backend = weir(LongSerializer.INSTANCE, ALL);
        backend.setCurrentKey(1L);
        MapState<HashSet<String>, String> map =
                state(backend, new MapStateDescriptor<>("map", sets(), StringSerializer.INSTANCE));
        // In a table of so many places the order is another one than in the table of the copy.
        HashSet<String> userKey = new HashSet<>(1 << 16);
        for (int i = 0; i < 20; i++) {
            userKey.add("element" + i * 7_919);
        }
        assertThatThrownBy(() -> map.put(userKey, "value"))
                .isInstanceOf(NonDeterministicSerializerException.class)
                .hasMessageContaining("HashSet");
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static TypeSerializer<HashSet<String>> sets() {
        return (TypeSerializer) new KryoSerializer<>(HashSet.class, new SerializerConfigImpl());
    }
}
