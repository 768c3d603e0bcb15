package io.weir.flink.snapshot;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.runtime.state.FullSnapshotResources;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyValueStateIterator;
import org.apache.flink.runtime.state.StreamCompressionDecorator;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSnapshotRestoreWrapper;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueStateSnapshot;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A savepoint in the format that all of Flink's backends read: every row and timer, converted. Rows
 * are read while the savepoint is written, so that has to happen on the task thread.
 */
public final class CanonicalSavepoint<K> implements FullSnapshotResources<K> {

    private final Engine engine;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final TypeSerializer<K> keySerializer;
    private final KeyCodec<K> keyCodec;
    private final StreamCompressionDecorator compression;
    private final List<StateMetaInfoSnapshot> metaInfos = new ArrayList<>();
    private final List<RegisteredState<?, ?>> states;
    private final List<RegisteredQueue<?>> queues;
    private final List<HeapPriorityQueueStateSnapshot<?>> heapQueues = new ArrayList<>();

    public CanonicalSavepoint(
            Engine engine,
            KeyGroupRange range,
            int numberOfKeyGroups,
            TypeSerializer<K> keySerializer,
            StreamCompressionDecorator compression,
            RegisteredStates states,
            Map<String, HeapPriorityQueueSnapshotRestoreWrapper<?>> heapQueues) {
        this.engine = engine;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
        this.keySerializer = keySerializer;
        this.keyCodec = KeyCodecs.forKey(keySerializer);
        this.compression = compression;
        this.states = new ArrayList<>(states.all());
        for (RegisteredState<?, ?> state : this.states) {
            metaInfos.add(state.metaInfo().snapshot());
        }
        this.queues = new ArrayList<>(states.queues());
        for (RegisteredQueue<?> queue : this.queues) {
            metaInfos.add(queue.metaInfo().snapshot());
        }
        for (HeapPriorityQueueSnapshotRestoreWrapper<?> queue : heapQueues.values()) {
            metaInfos.add(queue.getMetaInfo().snapshot());
            this.heapQueues.add(queue.stateSnapshot());
        }
    }

    @Override
    public List<StateMetaInfoSnapshot> getMetaInfoSnapshots() {
        return metaInfos;
    }

    @Override
    public KeyValueStateIterator createKVStateIterator() throws IOException {
        return new CanonicalIterator<>(
                engine,
                range,
                keyCodec,
                new CanonicalKeys<>(keySerializer, numberOfKeyGroups),
                states,
                queues,
                heapQueues);
    }

    @Override
    public KeyGroupRange getKeyGroupRange() {
        return range;
    }

    @Override
    public TypeSerializer<K> getKeySerializer() {
        return keySerializer;
    }

    @Override
    public StreamCompressionDecorator getStreamCompressionDecorator() {
        return compression;
    }

    @Override
    public void release() {}
}
