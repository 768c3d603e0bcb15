package io.weir.flink.timers;

import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.Keyed;
import org.apache.flink.runtime.state.PriorityComparable;
import org.apache.flink.runtime.state.PriorityQueueSetFactory;
import org.apache.flink.runtime.state.RegisteredPriorityQueueStateBackendMetaInfo;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueElement;
import org.apache.flink.util.FlinkRuntimeException;
import org.apache.flink.util.StateMigrationException;

import java.util.HashMap;
import java.util.Map;

/** Makes the queues of a backend whose timers are rows of its engine. */
public final class EngineTimers implements PriorityQueueSetFactory {

    private final Engine engine;
    private final RegisteredStates states;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final Map<String, TimerQueue<?>> created = new HashMap<>();

    /**
     * @param states holds the queues that were restored, and receives those that are made
     */
    public EngineTimers(
            Engine engine, RegisteredStates states, KeyGroupRange range, int numberOfKeyGroups) {
        this.engine = engine;
        this.states = states;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
    }

    @Override
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name, TypeSerializer<T> elementSerializer) {
        return create(name, elementSerializer, false);
    }

    /**
     * Makes a queue, goes on with a restored one, or returns the one that was made before.
     *
     * @param elementSerializer of other elements than Flink's timers, its bytes have to order as
     *     the elements do
     * @throws FlinkRuntimeException caused by a {@link StateMigrationException}, if the queue's
     *     rows are written otherwise than the serializer calls for, or a state has the name or id
     */
    @Override
    @SuppressWarnings("unchecked")
    public <T extends HeapPriorityQueueElement & PriorityComparable<? super T> & Keyed<?>>
            KeyGroupedInternalPriorityQueue<T> create(
                    String name,
                    TypeSerializer<T> elementSerializer,
                    boolean allowFutureMetadataUpdates) {
        try {
            RegisteredQueue<T> known = (RegisteredQueue<T>) states.queue(name);
            TimerQueue<T> instance = (TimerQueue<T>) created.get(name);
            RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo;
            if (known == null) {
                metaInfo =
                        new RegisteredPriorityQueueStateBackendMetaInfo<>(name, elementSerializer);
            } else if (instance == null) {
                metaInfo = update(known.metaInfo(), elementSerializer);
            } else {
                // Flink's description of a queue takes one new serializer.
                metaInfo =
                        update(
                                new RegisteredPriorityQueueStateBackendMetaInfo<>(
                                        known.metaInfo().snapshot()),
                                elementSerializer);
            }
            if (allowFutureMetadataUpdates) {
                metaInfo = metaInfo.withSerializerUpgradesAllowed();
            }
            RegisteredQueue<T> queue =
                    RegisteredQueue.of(metaInfo, known != null && known.isRestored());
            checkColumns(known, queue);
            states.putQueue(queue);
            if (instance == null) {
                instance = new TimerQueue<>(engine, range, numberOfKeyGroups, queue);
                created.put(name, instance);
            } else {
                instance.update(queue);
            }
            return instance;
        } catch (StateMigrationException e) {
            throw new FlinkRuntimeException(e);
        }
    }

    /** The rows are ordered by what the serializer writes, so they cannot be rewritten in place. */
    private static <T> RegisteredPriorityQueueStateBackendMetaInfo<T> update(
            RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo, TypeSerializer<T> serializer)
            throws StateMigrationException {
        TypeSerializer<T> previous = metaInfo.getElementSerializer();
        TypeSerializerSchemaCompatibility<T> compatibility =
                metaInfo.updateElementSerializer(serializer);
        if (compatibility.isIncompatible() || compatibility.isCompatibleAfterMigration()) {
            throw new StateMigrationException(
                    String.format(
                            "Queue '%s': timers cannot be migrated, and the new serializer (%s) is"
                                    + " not compatible with the previous one (%s) as it is.",
                            metaInfo.getName(), serializer, previous));
        }
        return metaInfo;
    }

    private static void checkColumns(RegisteredQueue<?> known, RegisteredQueue<?> queue)
            throws StateMigrationException {
        if (known != null && !known.codecId().equals(queue.codecId())) {
            throw new StateMigrationException(
                    String.format(
                            "Queue '%s': timers were written as %s; the new serializer writes them"
                                    + " as %s, which cannot be migrated.",
                            queue.name(), known.codecId(), queue.codecId()));
        }
    }
}
