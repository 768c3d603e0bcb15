package io.weir.flink.restore;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.keyed.RegisteredStates;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.snapshot.CanonicalKeys;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.ListDelimitedSerializer;
import org.apache.flink.runtime.state.StateSerializerProvider;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;
import org.apache.flink.runtime.state.restore.FullSnapshotRestoreOperation;
import org.apache.flink.runtime.state.restore.KeyGroup;
import org.apache.flink.runtime.state.restore.KeyGroupEntry;
import org.apache.flink.runtime.state.restore.SavepointRestoreResult;
import org.apache.flink.runtime.state.restore.ThrowingIterator;
import org.apache.flink.util.StateMigrationException;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/** Reads canonical savepoints, of whatever backend, into an empty engine. */
public final class CanonicalRestore<K> {

    private final ClassLoader userCodeClassLoader;
    private final StateSerializerProvider<K> keySerializer;
    private final RestoredMetadata<K> metadata;
    private final RegisteredStates states;
    private final KeyGroupRange range;
    private final int numberOfKeyGroups;
    private final RowKey row = new RowKey();
    private final DataInputDeserializer key = new DataInputDeserializer();
    private final DataInputDeserializer value = new DataInputDeserializer();
    private final DataOutputSerializer output = new DataOutputSerializer(128);

    /**
     * @param metadata receives what the savepoint says of states and timers
     * @param states those that {@code metadata} adds to
     */
    public CanonicalRestore(
            ClassLoader userCodeClassLoader,
            StateSerializerProvider<K> keySerializer,
            RestoredMetadata<K> metadata,
            RegisteredStates states,
            KeyGroupRange range,
            int numberOfKeyGroups) {
        this.userCodeClassLoader = userCodeClassLoader;
        this.keySerializer = keySerializer;
        this.metadata = metadata;
        this.states = states;
        this.range = range;
        this.numberOfKeyGroups = numberOfKeyGroups;
    }

    /** Writes one entry of the savepoint to where it belongs. */
    private interface Importer {
        void accept(KeyGroupEntry entry, int keyGroup) throws IOException;
    }

    /**
     * Writes every entry of the handles to the engine, timers included.
     *
     * @throws StateMigrationException if the job's key serializer cannot read the keys
     */
    public void restore(Collection<KeyedStateHandle> handles, Engine engine)
            throws IOException, StateMigrationException {
        FullSnapshotRestoreOperation<K> operation =
                new FullSnapshotRestoreOperation<>(
                        range, userCodeClassLoader, handles, keySerializer);
        try (ThrowingIterator<SavepointRestoreResult> results = operation.restore()) {
            while (results.hasNext()) {
                SavepointRestoreResult result = results.next();
                List<Importer> importers = new ArrayList<>();
                for (StateMetaInfoSnapshot snapshot : result.getStateMetaInfoSnapshots()) {
                    importers.add(importer(snapshot, engine));
                }
                readKeyGroups(result, importers);
            }
        }
    }

    private static void readKeyGroups(SavepointRestoreResult result, List<Importer> importers)
            throws IOException, StateMigrationException {
        try (ThrowingIterator<KeyGroup> keyGroups = result.getRestoredKeyGroups()) {
            while (keyGroups.hasNext()) {
                KeyGroup keyGroup = keyGroups.next();
                try (ThrowingIterator<KeyGroupEntry> entries = keyGroup.getKeyGroupEntries()) {
                    while (entries.hasNext()) {
                        KeyGroupEntry entry = entries.next();
                        importers.get(entry.getKvStateId()).accept(entry, keyGroup.getKeyGroupId());
                    }
                }
            }
        }
    }

    private Importer importer(StateMetaInfoSnapshot snapshot, Engine engine)
            throws StateMigrationException {
        CanonicalKeys<K> keys =
                new CanonicalKeys<>(keySerializer.currentSchemaSerializer(), numberOfKeyGroups);
        if (snapshot.getBackendStateType()
                == StateMetaInfoSnapshot.BackendStateType.PRIORITY_QUEUE) {
            metadata.addCanonicalQueue(snapshot);
            return timers(states.queue(snapshot.getName()), keys, engine);
        }
        metadata.addCanonicalState(snapshot);
        return rows(states.get(snapshot.getName()), keys, engine);
    }

    private <T> Importer timers(RegisteredQueue<T> queue, CanonicalKeys<K> keys, Engine engine) {
        TypeSerializer<T> serializer = queue.metaInfo().getElementSerializer();
        KeyCodec<T> codec = queue.codec();
        return (entry, keyGroup) -> {
            key.setBuffer(entry.getKey());
            keys.skipKeyGroup(key);
            row.start(keyGroup);
            row.setStateId(queue.id());
            codec.write(serializer.deserialize(key), row);
            output.clear();
            engine.groupPut(row, RowKey.HEADER_BYTES, output);
        };
    }

    private <N, V> Importer rows(
            RegisteredState<N, V> state, CanonicalKeys<K> keys, Engine engine) {
        KeyCodec<K> keyCodec = KeyCodecs.forKey(keySerializer.currentSchemaSerializer());
        KeyCodec<N> namespaceCodec = state.namespaceCodec();
        TypeSerializer<N> namespaceSerializer = state.metaInfo().getNamespaceSerializer();
        Importer prefix =
                (entry, keyGroup) -> {
                    key.setBuffer(entry.getKey());
                    keys.skipKeyGroup(key);
                    row.start(keyGroup);
                    row.setStateId(state.id());
                    keyCodec.write(keys.readKey(namespaceSerializer, key), row);
                    namespaceCodec.write(keys.readNamespace(namespaceSerializer, key), row);
                };
        switch (state.kind()) {
            case LIST:
                return list(
                        prefix,
                        ((ListSerializer<?>) state.metaInfo().getStateSerializer())
                                .getElementSerializer(),
                        engine);
            case MAP:
                return map(
                        prefix,
                        ((MapSerializer<?, ?>) state.metaInfo().getStateSerializer())
                                .getKeySerializer(),
                        engine);
            default:
                return (entry, keyGroup) -> {
                    prefix.accept(entry, keyGroup);
                    engine.put(row, valueOf(entry));
                };
        }
    }

    private <E> Importer list(Importer prefix, TypeSerializer<E> elementSerializer, Engine engine) {
        return (entry, keyGroup) -> {
            prefix.accept(entry, keyGroup);
            value.setBuffer(entry.getValue());
            while (value.available() > 0) {
                E element =
                        ListDelimitedSerializer.deserializeNextElement(value, elementSerializer);
                output.clear();
                elementSerializer.serialize(element, output);
                engine.listAppend(row, output);
            }
        };
    }

    private <UK> Importer map(
            Importer prefix, TypeSerializer<UK> userKeySerializer, Engine engine) {
        KeyCodec<UK> userKeyCodec = KeyCodecs.forUserKey(userKeySerializer);
        return (entry, keyGroup) -> {
            prefix.accept(entry, keyGroup);
            int prefixLength = row.length();
            userKeyCodec.write(userKeySerializer.deserialize(key), row);
            engine.groupPut(row, prefixLength, valueOf(entry));
        };
    }

    private DataOutputSerializer valueOf(KeyGroupEntry entry) throws IOException {
        output.clear();
        output.write(entry.getValue());
        return output;
    }
}
