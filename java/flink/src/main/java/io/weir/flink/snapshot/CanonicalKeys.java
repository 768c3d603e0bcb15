package io.weir.flink.snapshot;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.CompositeKeySerializationUtils;

import java.io.IOException;

/**
 * The keys of Flink's canonical savepoints: {@code [key group][key][namespace][user key]} in the
 * serializers' bytes. Where key and namespace are both of variable size, each is followed by its
 * length.
 */
public final class CanonicalKeys<K> {

    private final TypeSerializer<K> keySerializer;
    private final int keyGroupBytes;

    public CanonicalKeys(TypeSerializer<K> keySerializer, int numberOfKeyGroups) {
        this.keySerializer = keySerializer;
        this.keyGroupBytes =
                CompositeKeySerializationUtils.computeRequiredBytesInKeyGroupPrefix(
                        numberOfKeyGroups);
    }

    /** Starts a key, here or of a timer. */
    void writeKeyGroup(int keyGroup, DataOutputSerializer output) throws IOException {
        CompositeKeySerializationUtils.writeKeyGroup(keyGroup, keyGroupBytes, output);
    }

    <N> void writeKeyAndNamespace(
            K key, N namespace, TypeSerializer<N> namespaceSerializer, DataOutputSerializer output)
            throws IOException {
        boolean ambiguous = isAmbiguous(namespaceSerializer);
        CompositeKeySerializationUtils.writeKey(key, keySerializer, output, ambiguous);
        CompositeKeySerializationUtils.writeNameSpace(
                namespace, namespaceSerializer, output, ambiguous);
    }

    /** Puts the input behind the key group. */
    public void skipKeyGroup(DataInputDeserializer input) throws IOException {
        input.skipBytesToRead(keyGroupBytes);
    }

    public K readKey(TypeSerializer<?> namespaceSerializer, DataInputDeserializer input)
            throws IOException {
        return CompositeKeySerializationUtils.readKey(
                keySerializer, input, isAmbiguous(namespaceSerializer));
    }

    public <N> N readNamespace(TypeSerializer<N> namespaceSerializer, DataInputDeserializer input)
            throws IOException {
        return CompositeKeySerializationUtils.readNamespace(
                namespaceSerializer, input, isAmbiguous(namespaceSerializer));
    }

    private boolean isAmbiguous(TypeSerializer<?> namespaceSerializer) {
        return CompositeKeySerializationUtils.isAmbiguousKeyPossible(
                keySerializer, namespaceSerializer);
    }
}
