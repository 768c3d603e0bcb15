package io.weir.flink.restore;

import io.weir.flink.errors.CorruptHandleException;
import io.weir.flink.errors.StateKindMismatchException;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.snapshot.Payload;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;
import org.apache.flink.runtime.state.RegisteredPriorityQueueStateBackendMetaInfo;
import org.apache.flink.runtime.state.StateSerializerProvider;
import org.apache.flink.runtime.state.StateSnapshotTransformer.StateSnapshotTransformFactory;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;
import org.apache.flink.util.StateMigrationException;

import java.io.IOException;

/** Brings back what payloads say of states and serializers, and checks it against the job. */
public final class RestoredMetadata<K> {

    private final ClassLoader userCodeClassLoader;
    private final StateSerializerProvider<K> keySerializer;
    private final RegisteredStates states;
    private boolean keySerializerChecked;

    /**
     * @param keySerializer learns of the previous key serializer
     * @param states receives the states, and the queues of timers wherever those are to be kept
     */
    public RestoredMetadata(
            ClassLoader userCodeClassLoader,
            StateSerializerProvider<K> keySerializer,
            RegisteredStates states) {
        this.userCodeClassLoader = userCodeClassLoader;
        this.keySerializer = keySerializer;
        this.states = states;
    }

    /**
     * Takes over one payload's states.
     *
     * @throws StateMigrationException if the job's key serializer cannot read the keys, or two
     *     payloads disagree
     */
    public void add(Payload payload) throws IOException, StateMigrationException {
        KeyedBackendSerializationProxy<K> serializers = payload.serializers(userCodeClassLoader);
        checkKeySerializer(serializers);
        for (StateMetaInfoSnapshot snapshot : serializers.getStateMetaInfoSnapshots()) {
            if (snapshot.getBackendStateType()
                    == StateMetaInfoSnapshot.BackendStateType.PRIORITY_QUEUE) {
                addQueue(payload, new RegisteredPriorityQueueStateBackendMetaInfo<>(snapshot));
            } else {
                addState(payload, new RegisteredKeyValueStateBackendMetaInfo<>(snapshot));
            }
        }
    }

    /**
     * Takes over a queue. Without columns it was on the heap: the rows have none of its timers, and
     * Flink restores them itself.
     */
    private void addQueue(Payload payload, RegisteredPriorityQueueStateBackendMetaInfo<?> metaInfo)
            throws StateMigrationException {
        Payload.StateColumns columns = payload.columns(metaInfo.getName());
        RegisteredQueue<?> known = states.queue(metaInfo.getName());
        if (columns != null && (known == null || !known.isRestored())) {
            states.putQueue(new RegisteredQueue<>(metaInfo, columns.namespaceCodec, true));
        } else if (known == null) {
            states.putQueue(RegisteredQueue.of(metaInfo, false));
        }
    }

    /** Takes over a queue of a canonical savepoint, whose timers are going to be rows. */
    public void addCanonicalQueue(StateMetaInfoSnapshot snapshot) throws StateMigrationException {
        if (states.queue(snapshot.getName()) == null) {
            states.putQueue(
                    RegisteredQueue.of(
                            new RegisteredPriorityQueueStateBackendMetaInfo<>(snapshot), true));
        }
    }

    /**
     * Takes over a state of a canonical savepoint, whose keys are written anew in the columns that
     * its serializers call for.
     */
    public void addCanonicalState(StateMetaInfoSnapshot snapshot) throws StateMigrationException {
        RegisteredKeyValueStateBackendMetaInfo<?, ?> metaInfo =
                (RegisteredKeyValueStateBackendMetaInfo<?, ?>)
                        RegisteredKeyValueStateBackendMetaInfo.fromMetaInfoSnapshot(snapshot);
        if (!isKnown(metaInfo)) {
            states.put(RegisteredState.of(metaInfo, StateSnapshotTransformFactory.noTransform()));
        }
    }

    private boolean isKnown(RegisteredKeyValueStateBackendMetaInfo<?, ?> metaInfo)
            throws StateMigrationException {
        RegisteredState<?, ?> known = states.get(metaInfo.getName());
        if (known != null && known.kind() != metaInfo.getStateType()) {
            throw new StateKindMismatchException(
                    known.name(), known.kind(), metaInfo.getStateType());
        }
        return known != null;
    }

    private void addState(Payload payload, RegisteredKeyValueStateBackendMetaInfo<?, ?> metaInfo)
            throws IOException, StateMigrationException {
        if (isKnown(metaInfo)) {
            return;
        }
        Payload.StateColumns columns = payload.columns(metaInfo.getName());
        if (columns == null) {
            throw new CorruptHandleException(
                    "The checkpoint says nothing of how the keys of state '"
                            + metaInfo.getName()
                            + "' are written.");
        }
        states.put(new RegisteredState<>(metaInfo, columns.namespaceCodec, columns.userKeyCodec));
    }

    private void checkKeySerializer(KeyedBackendSerializationProxy<K> serializers)
            throws StateMigrationException {
        if (keySerializerChecked) {
            return;
        }
        TypeSerializer<K> current = keySerializer.currentSchemaSerializer();
        TypeSerializerSchemaCompatibility<K> compatibility =
                keySerializer.setPreviousSerializerSnapshotForRestoredState(
                        serializers.getKeySerializerSnapshot());
        if (compatibility.isIncompatible() || compatibility.isCompatibleAfterMigration()) {
            throw new StateMigrationException(
                    String.format(
                            "The new key serializer (%s) must be compatible with the previous key"
                                    + " serializer (%s).",
                            current, keySerializer.previousSchemaSerializer()));
        }
        keySerializerChecked = true;
    }

    /**
     * Makes sure that the keys are still written in the columns of the checkpoint.
     *
     * @param codec the columns of the job's key serializer
     */
    public static void checkKeyColumns(Iterable<Payload> payloads, String codec)
            throws StateMigrationException {
        for (Payload payload : payloads) {
            if (!payload.keyCodec.equals(codec)) {
                throw new StateMigrationException(
                        String.format(
                                "The keys of the checkpoint were written as %s; the job's key"
                                    + " serializer writes them as %s, which cannot be migrated.",
                                payload.keyCodec, codec));
            }
        }
    }
}
