package io.weir.flink.timers;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.state.GroupCursor;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.runtime.state.HeapPriorityQueuesManager;
import org.apache.flink.runtime.state.KeyExtractorFunction;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.Keyed;
import org.apache.flink.runtime.state.PriorityComparable;
import org.apache.flink.runtime.state.PriorityQueueSetFactory;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueElement;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSet;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSetFactory;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSnapshotRestoreWrapper;

import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Makes Flink's queues on the heap. Flink writes their timers to checkpoints itself, as raw keyed
 * state; a canonical savepoint of the backend has them.
 */
public final class HeapTimers implements PriorityQueueSetFactory {

    private static final int CAPACITY = 128;

    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final HeapPriorityQueueSetFactory factory;
    private final Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> queues =
            new LinkedHashMap<>();
    private final HeapPriorityQueuesManager manager;

    public HeapTimers(KeyGroupRange range, int numberOfKeyGroups) {
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.factory = new HeapPriorityQueueSetFactory(range, numberOfKeyGroups, CAPACITY);
        this.manager = new HeapPriorityQueuesManager(queues, factory, range, numberOfKeyGroups);
    }

    /** By name, those that were restored and not registered again included. */
    public Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> queues() {
        return queues;
    }

    /** Moves all timers that the engine has to queues on the heap. */
    public void takeFrom(Engine engine, RegisteredStates states) throws IOException {
        for (RegisteredQueue<?> queue : new ArrayList<>(states.queues())) {
            take(engine, queue);
            states.removeQueue(queue);
        }
    }

    @SuppressWarnings("unchecked")
    private <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            void take(Engine engine, RegisteredQueue<?> untyped) throws IOException {
        RegisteredQueue<T> registered = (RegisteredQueue<T>) untyped;
        HeapPriorityQueueSet<T> queue =
                factory.create(registered.name(), registered.metaInfo().getElementSerializer());
        queues.put(
                registered.name(),
                new HeapPriorityQueueSnapshotRestoreWrapper<>(
                        queue,
                        registered.metaInfo(),
                        KeyExtractorFunction.forKeyedObjects(),
                        range,
                        numberOfKeyGroups));
        if (!registered.isRestored()) {
            return;
        }
        KeyCodec<T> codec = registered.codec();
        RowKeyReader reader = new RowKeyReader();
        RowKey row = new RowKey();
        for (int keyGroup : range) {
            row.start(keyGroup);
            row.setStateId(registered.id());
            GroupCursor rows = new GroupCursor(engine, row, null);
            while (rows.next()) {
                reader.reset(rows.array(), rows.suffixOffset(), rows.suffixEnd());
                queue.add(codec.read(reader));
                row.truncate(RowKey.HEADER_BYTES);
                row.append(
                        rows.array(), rows.suffixOffset(), rows.suffixEnd() - rows.suffixOffset());
                engine.groupDelete(row, RowKey.HEADER_BYTES);
            }
        }
    }

    @Override
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name, TypeSerializer<T> elementSerializer) {
        return create(name, elementSerializer, false);
    }

    @Override
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name,
                    TypeSerializer<T> elementSerializer,
                    boolean allowFutureMetadataUpdates) {
        return manager.createOrUpdate(name, elementSerializer, allowFutureMetadataUpdates);
    }
}
