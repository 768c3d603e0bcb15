package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.hashmap.HashMapStateBackend;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.List;

/** What one backend writes to a canonical savepoint, another one reads. */
class CanonicalSavepointTest {

    private static final int KEYS = 300;

    private final Backends backends = new Backends();

    @AfterEach
    void close() throws Exception {
        backends.close();
    }

    private AbstractKeyedStateBackend<String> weir(int keyGroups, List<KeyedStateHandle> handles)
            throws Exception {
        return backends.weir(
                StringSerializer.INSTANCE, keyGroups, KeyGroupRange.of(0, keyGroups - 1), handles);
    }

    private AbstractKeyedStateBackend<String> heap(int keyGroups, List<KeyedStateHandle> handles)
            throws Exception {
        return backends.open(
                new HashMapStateBackend(),
                StringSerializer.INSTANCE,
                keyGroups,
                KeyGroupRange.of(0, keyGroups - 1),
                handles);
    }

    private static ValueState<Integer> value(
            AbstractKeyedStateBackend<String> backend, String namespace) throws Exception {
        return backend.getPartitionedState(
                namespace,
                StringSerializer.INSTANCE,
                new ValueStateDescriptor<>("value", IntSerializer.INSTANCE));
    }

    private static ListState<String> list(AbstractKeyedStateBackend<String> backend)
            throws Exception {
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE,
                VoidNamespaceSerializer.INSTANCE,
                new ListStateDescriptor<>("list", StringSerializer.INSTANCE));
    }

    private static MapState<String, Integer> map(AbstractKeyedStateBackend<String> backend)
            throws Exception {
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE,
                VoidNamespaceSerializer.INSTANCE,
                new MapStateDescriptor<>("map", StringSerializer.INSTANCE, IntSerializer.INSTANCE));
    }

    private static ReducingState<Integer> sum(AbstractKeyedStateBackend<String> backend)
            throws Exception {
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE,
                VoidNamespaceSerializer.INSTANCE,
                new ReducingStateDescriptor<>("sum", Integer::sum, IntSerializer.INSTANCE));
    }

    private static KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> timers(
            AbstractKeyedStateBackend<String> backend) {
        return backend.create(
                "timers",
                new TimerSerializer<>(StringSerializer.INSTANCE, StringSerializer.INSTANCE));
    }

    /** The heap cannot write a null of a map to a savepoint. */
    private static Integer entry(int j, boolean nulls) {
        return nulls && j == 3 ? null : Integer.valueOf(j);
    }

    private static void fill(AbstractKeyedStateBackend<String> backend, boolean nulls)
            throws Exception {
        KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> timers =
                timers(backend);
        for (int i = 0; i < KEYS; i++) {
            backend.setCurrentKey("key" + i);
            value(backend, "").update(i);
            value(backend, "window" + i % 3).update(-i);
            for (int j = 0; j < i % 5; j++) {
                list(backend).add("element," + j);
                map(backend).put("entry" + j, entry(j, nulls));
            }
            sum(backend).add(i);
            sum(backend).add(1);
            timers.add(new TimerHeapInternalTimer<>(i - KEYS / 2, "key" + i, "ns"));
        }
    }

    private static void check(AbstractKeyedStateBackend<String> backend, boolean nulls)
            throws Exception {
        for (int i = 0; i < KEYS; i++) {
            backend.setCurrentKey("key" + i);
            assertThat(value(backend, "").value()).isEqualTo(i);
            assertThat(value(backend, "window" + i % 3).value()).isEqualTo(-i);
            assertThat(value(backend, "window" + (i + 1) % 3).value()).isNull();
            List<String> elements = new ArrayList<>();
            for (int j = 0; j < i % 5; j++) {
                elements.add("element," + j);
                assertThat(map(backend).contains("entry" + j)).isTrue();
                assertThat(map(backend).get("entry" + j)).isEqualTo(entry(j, nulls));
            }
            assertThat(map(backend).contains("entry" + i % 5)).isFalse();
            Iterable<String> read = list(backend).get();
            if (elements.isEmpty()) {
                assertThat(read == null || !read.iterator().hasNext()).isTrue();
            } else {
                assertThat(read).containsExactlyElementsOf(elements);
            }
            assertThat(sum(backend).get()).isEqualTo(i + 1);
        }
    }

    private static void checkTimers(AbstractKeyedStateBackend<String> backend) {
        KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<String, String>> timers =
                timers(backend);
        assertThat(timers.size()).isEqualTo(KEYS);
        for (int i = 0; i < KEYS; i++) {
            assertThat(timers.poll())
                    .isEqualTo(new TimerHeapInternalTimer<>(i - KEYS / 2, "key" + i, "ns"));
        }
        assertThat(timers.poll()).isNull();
    }

    @ParameterizedTest
    @ValueSource(ints = {16, 128, 300})
    void whatWeirWritesWeirReads(int keyGroups) throws Exception {
        AbstractKeyedStateBackend<String> written = weir(keyGroups, List.of());
        fill(written, true);
        AbstractKeyedStateBackend<String> read =
                weir(keyGroups, List.of(backends.canonicalSavepoint(written)));
        check(read, true);
        checkTimers(read);
        check(written, true);
    }

    @ParameterizedTest
    @ValueSource(ints = {16, 128, 300})
    void whatWeirWritesTheHeapReads(int keyGroups) throws Exception {
        AbstractKeyedStateBackend<String> written = weir(keyGroups, List.of());
        fill(written, true);
        AbstractKeyedStateBackend<String> read =
                heap(keyGroups, List.of(backends.canonicalSavepoint(written)));
        check(read, true);
        checkTimers(read);
    }

    @ParameterizedTest
    @ValueSource(ints = {16, 128, 300})
    void whatTheHeapWritesWeirReads(int keyGroups) throws Exception {
        AbstractKeyedStateBackend<String> written = heap(keyGroups, List.of());
        fill(written, false);
        AbstractKeyedStateBackend<String> read =
                weir(keyGroups, List.of(backends.canonicalSavepoint(written)));
        check(read, false);
        AbstractKeyedStateBackend<String> restored =
                weir(keyGroups, List.of(backends.checkpoint(read)));
        checkTimers(read);
        checkTimers(restored);
        restored.setCurrentKey("key299");
        assertThat(value(restored, "").value()).isEqualTo(299);
        assertThat(list(restored).get()).hasSize(4);
    }

    @ParameterizedTest
    @ValueSource(ints = {128})
    void timersOnWeirsHeapGoThereAndBackToo(int keyGroups) throws Exception {
        backends.set("state.backend.weir.timer-service.factory", "heap");
        AbstractKeyedStateBackend<String> written = weir(keyGroups, List.of());
        fill(written, true);
        AbstractKeyedStateBackend<String> read =
                weir(keyGroups, List.of(backends.canonicalSavepoint(written)));
        KeyedStateHandle again = backends.canonicalSavepoint(read);
        check(read, true);
        checkTimers(read);
        checkTimers(heap(keyGroups, List.of(again)));
        backends.set("state.backend.weir.timer-service.factory", "engine");
        checkTimers(weir(keyGroups, List.of(again)));
    }

    @ParameterizedTest
    @ValueSource(ints = {128})
    void statesThatNobodyRegisteredAgainAreExportedToo(int keyGroups) throws Exception {
        AbstractKeyedStateBackend<String> written = weir(keyGroups, List.of());
        fill(written, true);
        AbstractKeyedStateBackend<String> untouched =
                weir(keyGroups, List.of(backends.checkpoint(written)));
        AbstractKeyedStateBackend<String> read =
                heap(keyGroups, List.of(backends.canonicalSavepoint(untouched)));
        read.setCurrentKey("key7");
        assertThat(value(read, "").value()).isEqualTo(7);
        assertThat(list(read).get()).containsExactly("element,0", "element,1");
        assertThat(map(read).get("entry1")).isEqualTo(1);
        checkTimers(read);
    }
}
