package io.weir.flink.keyed;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.flink.errors.BackendClosedException;
import io.weir.flink.errors.CorruptHandleException;
import io.weir.flink.errors.InvalidArgumentException;
import io.weir.flink.errors.MissingVersionException;
import io.weir.flink.errors.StateIdCollisionException;
import io.weir.flink.errors.StateKindMismatchException;
import io.weir.flink.errors.WeirCancelledException;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeutils.base.DoubleSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.IllegalConfigurationException;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.IncrementalRemoteKeyedStateHandle;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupRangeOffsets;
import org.apache.flink.runtime.state.KeyGroupsStateHandle;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;
import org.apache.flink.util.StateMigrationException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.LongStream;

class WeirKeyedStateBackendTest {

    private static final int KEY_GROUPS = 16;
    private static final KeyGroupRange ALL = KeyGroupRange.of(0, KEY_GROUPS - 1);
    private static final int KEYS = 200;

    private Backends backends;

    @BeforeEach
    void open() {
        FileSystem.initialize(new Configuration(), null);
        backends = new Backends();
    }

    @AfterEach
    void close() throws Exception {
        backends.close();
    }

    private AbstractKeyedStateBackend<Long> weir(KeyGroupRange range, KeyedStateHandle... handles)
            throws Exception {
        return backends.weir(LongSerializer.INSTANCE, KEY_GROUPS, range, List.of(handles));
    }

    private static <S extends State> S state(
            AbstractKeyedStateBackend<?> backend, StateDescriptor<S, ?> descriptor)
            throws Exception {
        return backend.getPartitionedState(
                VoidNamespace.INSTANCE, VoidNamespaceSerializer.INSTANCE, descriptor);
    }

    private static ValueState<Long> value(AbstractKeyedStateBackend<?> backend) throws Exception {
        return state(backend, new ValueStateDescriptor<>("value", LongSerializer.INSTANCE));
    }

    private static ListState<Long> list(AbstractKeyedStateBackend<?> backend) throws Exception {
        return state(backend, new ListStateDescriptor<>("list", LongSerializer.INSTANCE));
    }

    private static MapState<String, Long> map(AbstractKeyedStateBackend<?> backend)
            throws Exception {
        return state(
                backend,
                new MapStateDescriptor<>(
                        "map", StringSerializer.INSTANCE, LongSerializer.INSTANCE));
    }

    private static List<Long> keysIn(KeyGroupRange range) {
        return LongStream.range(0, KEYS)
                .filter(
                        key ->
                                range.contains(
                                        KeyGroupRangeAssignment.assignToKeyGroup(key, KEY_GROUPS)))
                .boxed()
                .collect(Collectors.toList());
    }

    private static void add(
            AbstractKeyedStateBackend<Long> backend, KeyGroupRange range, long element)
            throws Exception {
        for (long key : keysIn(range)) {
            backend.setCurrentKey(key);
            value(backend).update(key * 10 + element);
            list(backend).add(element);
            map(backend).put("entry" + element, key);
        }
    }

    private static void check(
            AbstractKeyedStateBackend<Long> backend, KeyGroupRange range, Long... elements)
            throws Exception {
        for (long key : keysIn(range)) {
            backend.setCurrentKey(key);
            assertThat(value(backend).value()).isEqualTo(key * 10 + elements[elements.length - 1]);
            assertThat(list(backend).get()).containsExactly(elements);
            for (long element : elements) {
                assertThat(map(backend).get("entry" + element)).isEqualTo(key);
            }
        }
        assertThat(backend.getKeys("value", VoidNamespace.INSTANCE))
                .containsExactlyInAnyOrderElementsOf(keysIn(range));
        assertThat(backend.getKeys("map", VoidNamespace.INSTANCE))
                .containsExactlyInAnyOrderElementsOf(keysIn(range));
        assertThat(backend.getKeys(List.of("value", "list", "map"), VoidNamespace.INSTANCE))
                .containsExactlyInAnyOrderElementsOf(keysIn(range));
    }

    @Test
    void aRestoreIsTimed() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        assertThat(backends.initializationMetrics()).isEmpty();
        weir(ALL, backends.checkpoint(first));
        assertThat(backends.initializationMetrics().get("RestoreStateDurationMs"))
                .isBetween(0L, 60_000L);
    }

    @Test
    void aNativeSavepointStandsOnItsOwn() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        KeyedStateHandle savepoint = backends.nativeSavepoint(first);
        add(first, ALL, 2);
        backends.set("state.backend.weir.directory", "memory://" + UUID.randomUUID());
        check(weir(ALL, savepoint), ALL, 1L);
    }

    @Test
    void aCheckpointHoldsItsBarrierWhateverCameLater() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        KeyedStateHandle one = backends.checkpoint(first);
        add(first, ALL, 2);
        KeyedStateHandle two = backends.checkpoint(first);
        add(first, ALL, 3);

        // The same checkpoint twice gives independent branches.
        AbstractKeyedStateBackend<Long> left = weir(ALL, two);
        add(left, ALL, 5);
        AbstractKeyedStateBackend<Long> right = weir(ALL, two);
        check(right, ALL, 1L, 2L);
        add(right, ALL, 6);
        check(left, ALL, 1L, 2L, 5L);
        check(right, ALL, 1L, 2L, 6L);
        check(first, ALL, 1L, 2L, 3L);
        assertThat(one.getStateSize()).isPositive();
    }

    @Test
    void rescalingMovesKeyGroupsAndKeepsListsInOrder() throws Exception {
        KeyGroupRange low = KeyGroupRange.of(0, 5);
        KeyGroupRange high = KeyGroupRange.of(6, KEY_GROUPS - 1);
        AbstractKeyedStateBackend<Long> a = weir(low);
        AbstractKeyedStateBackend<Long> b = weir(high);
        add(a, low, 1);
        for (long element = 1; element <= 4; element++) {
            add(b, high, element);
        }
        KeyedStateHandle ofA = backends.checkpoint(a);
        KeyedStateHandle ofB = backends.checkpoint(b);

        AbstractKeyedStateBackend<Long> merged = weir(ALL, ofA, ofB);
        checkLists(merged, low, 1L);
        add(merged, low, 9);
        add(merged, high, 9);
        KeyedStateHandle together = backends.checkpoint(merged);

        KeyGroupRange middle = KeyGroupRange.of(4, 10);
        AbstractKeyedStateBackend<Long> part = weir(middle, together);
        checkLists(part, middle.getIntersection(low), 1L, 9L);
        checkLists(part, middle.getIntersection(high), 1L, 2L, 3L, 4L, 9L);
        assertThat(part.getKeys("value", VoidNamespace.INSTANCE))
                .containsExactlyInAnyOrderElementsOf(keysIn(middle));
    }

    private static void checkLists(
            AbstractKeyedStateBackend<Long> backend, KeyGroupRange range, Long... elements)
            throws Exception {
        for (long key : keysIn(range)) {
            backend.setCurrentKey(key);
            assertThat(list(backend).get()).containsExactly(elements);
            assertThat(map(backend).get("entry" + elements[elements.length - 1])).isEqualTo(key);
        }
    }

    @Test
    void statesThatNobodyRegistersStayInEveryLaterCheckpoint() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        AbstractKeyedStateBackend<Long> second = weir(ALL, backends.checkpoint(first));
        second.setCurrentKey(0L);
        state(second, new ValueStateDescriptor<>("other", IntSerializer.INSTANCE)).update(1);
        AbstractKeyedStateBackend<Long> third = weir(ALL, backends.checkpoint(second));
        AbstractKeyedStateBackend<Long> fourth = weir(ALL, backends.checkpoint(third));
        check(fourth, ALL, 1L);
    }

    @Test
    void anotherKindUnderTheSameNameIsRefusedByNameAndKinds() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        AbstractKeyedStateBackend<Long> second = weir(ALL, backends.checkpoint(first));
        assertThatThrownBy(
                        () ->
                                state(
                                        second,
                                        new ListStateDescriptor<>(
                                                "value", LongSerializer.INSTANCE)))
                .isInstanceOf(StateKindMismatchException.class)
                .hasMessageContaining("'value'")
                .hasMessageContaining("VALUE")
                .hasMessageContaining("LIST");
    }

    @Test
    void serializersThatCannotReadAreRefusedByTheStatesName() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        KeyedStateHandle handle = backends.checkpoint(first);
        AbstractKeyedStateBackend<Long> second = weir(ALL, handle);
        assertThatThrownBy(
                        () ->
                                state(
                                        second,
                                        new ValueStateDescriptor<>(
                                                "value", StringSerializer.INSTANCE)))
                .isInstanceOf(StateMigrationException.class)
                .hasMessageContaining("'value'");
        assertThatThrownBy(
                        () ->
                                state(
                                        second,
                                        new MapStateDescriptor<>(
                                                "map",
                                                DoubleSerializer.INSTANCE,
                                                LongSerializer.INSTANCE)))
                .isInstanceOf(StateMigrationException.class)
                .hasMessageContaining("'map'");
        assertThatThrownBy(
                        () ->
                                backends.weir(
                                        StringSerializer.INSTANCE,
                                        KEY_GROUPS,
                                        ALL,
                                        List.of(handle)))
                .hasRootCauseInstanceOf(StateMigrationException.class)
                .rootCause()
                .hasMessageContaining("key serializer");
    }

    @Test
    void collidingStateIdsAreRefusedByBothNames() throws Exception {
        // Two names whose SHA-256 begin with the same four bytes.
        String first = "state-55419";
        String second = "state-109004";
        AbstractKeyedStateBackend<Long> backend = weir(ALL);
        backend.setCurrentKey(1L);
        state(backend, new ValueStateDescriptor<>(first, LongSerializer.INSTANCE));
        assertThatThrownBy(
                        () ->
                                state(
                                        backend,
                                        new ValueStateDescriptor<>(
                                                second, LongSerializer.INSTANCE)))
                .isInstanceOf(StateIdCollisionException.class)
                .hasMessageContaining("'" + first + "'")
                .hasMessageContaining("'" + second + "'");
    }

    @Test
    void discardingTheHandleReleasesTheVersion() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        KeyedStateHandle kept = backends.checkpoint(first);
        KeyedStateHandle dropped = backends.checkpoint(first);
        dropped.discardState();
        assertThatThrownBy(() -> weir(ALL, dropped))
                .hasRootCauseInstanceOf(MissingVersionException.class);
        check(weir(ALL, kept), ALL, 1L);
    }

    @Test
    void handlesThatCannotBeReadAreNamed() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        IncrementalRemoteKeyedStateHandle handle =
                (IncrementalRemoteKeyedStateHandle) backends.checkpoint(first);
        byte[] payload = ((ByteStreamStateHandle) handle.getMetaDataStateHandle()).getData();
        payload[payload.length / 2] ^= 1;
        assertThatThrownBy(() -> weir(ALL, handle))
                .hasRootCauseInstanceOf(CorruptHandleException.class)
                .rootCause()
                .hasMessageContaining(handle.getStateHandleId().toString());

        KeyedStateHandle foreign =
                new IncrementalRemoteKeyedStateHandle(
                        UUID.randomUUID(),
                        ALL,
                        1,
                        Collections.emptyList(),
                        Collections.emptyList(),
                        new ByteStreamStateHandle("other", new byte[100]));
        assertThatThrownBy(() -> weir(ALL, foreign))
                .hasRootCauseInstanceOf(CorruptHandleException.class)
                .rootCause()
                .hasMessageContaining("not written by Weir");

        KeyedStateHandle full =
                new KeyGroupsStateHandle(
                        new KeyGroupRangeOffsets(ALL),
                        new ByteStreamStateHandle("other", new byte[100]));
        assertThatThrownBy(() -> weir(ALL, full))
                .hasRootCauseInstanceOf(InvalidArgumentException.class)
                .rootCause()
                .hasMessageContaining("KeyGroupsStateHandle");
    }

    @Test
    void anotherMaximumParallelismIsRefused() throws Exception {
        AbstractKeyedStateBackend<Long> first = weir(ALL);
        add(first, ALL, 1);
        KeyedStateHandle handle = backends.checkpoint(first);
        assertThatThrownBy(
                        () ->
                                backends.weir(
                                        LongSerializer.INSTANCE,
                                        32,
                                        KeyGroupRange.of(0, 31),
                                        List.of(handle)))
                .rootCause()
                .hasMessageContaining("16")
                .hasMessageContaining("32");
    }

    @Test
    void theHandleDoesNotGrowWithTheRows() throws Exception {
        AbstractKeyedStateBackend<Long> backend = weir(ALL);
        add(backend, ALL, 1);
        int small = payloadBytes(backends.checkpoint(backend));
        for (long key = 0; key < 20_000; key++) {
            backend.setCurrentKey(key);
            value(backend).update(key);
        }
        int large = payloadBytes(backends.checkpoint(backend));
        assertThat(large).isBetween(small - 16, small + 16).isLessThan(4096);
    }

    private static int payloadBytes(KeyedStateHandle handle) {
        return ((ByteStreamStateHandle)
                        ((IncrementalRemoteKeyedStateHandle) handle).getMetaDataStateHandle())
                .getData()
                .length;
    }

    @Test
    void callsAfterCloseAndDisposeAreExceptionsInAnyOrder() throws Exception {
        AbstractKeyedStateBackend<Long> closed = weir(ALL);
        add(closed, ALL, 1);
        ValueState<Long> ofClosed = value(closed);
        closed.close();
        closed.close();
        assertThatThrownBy(() -> ofClosed.update(1L)).isInstanceOf(WeirCancelledException.class);
        closed.dispose();
        closed.dispose();
        closed.close();
        assertThatThrownBy(() -> ofClosed.update(1L)).isInstanceOf(BackendClosedException.class);
        assertThatThrownBy(ofClosed::value).isInstanceOf(IOException.class);
        assertThatThrownBy(() -> backends.checkpoint(closed)).isInstanceOf(IOException.class);

        AbstractKeyedStateBackend<Long> disposed = weir(ALL);
        add(disposed, ALL, 1);
        ValueState<Long> ofDisposed = value(disposed);
        disposed.dispose();
        disposed.close();
        assertThatThrownBy(ofDisposed::value).isInstanceOf(BackendClosedException.class);
    }

    @Test
    void withoutMemoryTheOptionsAreNamed() {
        backends.set("state.backend.weir.memory.managed", "false");
        assertThatThrownBy(() -> weir(ALL))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.memory.managed")
                .hasMessageContaining("state.backend.weir.memory.fixed-per-slot");
    }

    @Test
    void withoutADirectoryTheOptionsAreNamed() {
        backends.set("state.backend.weir.store", "embedded");
        backends.set("state.backend.weir.directory", "s3://bucket/weir");
        assertThatThrownBy(() -> weir(ALL))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.directory")
                .hasMessageContaining("'s3'");
        backends.unset("state.backend.weir.directory");
        backends.set("execution.checkpointing.interval", "1 s");
        assertThatThrownBy(() -> weir(ALL))
                .isInstanceOf(IllegalConfigurationException.class)
                .hasMessageContaining("state.backend.weir.directory")
                .hasMessageContaining("execution.checkpointing.dir");
    }

    @Test
    void mapsIterateInPagesAndRemoveOnTheWay() throws Exception {
        AbstractKeyedStateBackend<Long> backend = weir(ALL);
        backend.setCurrentKey(1L);
        MapState<String, Long> map = map(backend);
        for (long i = 0; i < 5_000; i++) {
            map.put("entry" + i, i);
        }
        long sum = 0;
        var entries = map.iterator();
        while (entries.hasNext()) {
            var entry = entries.next();
            sum += entry.getValue();
            if (entry.getValue() % 2 == 0) {
                entries.remove();
            } else {
                entry.setValue(-1L);
            }
        }
        assertThat(sum).isEqualTo(5_000L * 4_999 / 2);
        List<Long> left = new ArrayList<>();
        map.values().forEach(left::add);
        assertThat(left).hasSize(2_500).containsOnly(-1L);
        backend.setCurrentKey(2L);
        assertThat(map.isEmpty()).isTrue();
        backend.setCurrentKey(1L);
        map.clear();
        assertThat(map.isEmpty()).isTrue();
        assertThat(backend.getKeys("map", VoidNamespace.INSTANCE)).isEmpty();
    }
}
