package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.StateId;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;
import org.apache.flink.runtime.state.StateSnapshotTransformer;
import org.apache.flink.runtime.state.StateSnapshotTransformer.StateSnapshotTransformFactory;

import java.util.Optional;

/**
 * A state that was registered, or restored and perhaps never registered again; either way it
 * belongs to every later checkpoint.
 */
public final class RegisteredState<N, V> {

    /** What {@link #userKeyCodecId} says of a state without user keys. */
    public static final String NO_USER_KEYS = "";

    private final int id;
    private final RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo;
    private final String namespaceCodecId;
    private final String userKeyCodecId;
    private final StateSnapshotTransformFactory<?> transformFactory;

    /** A state that was restored, and is not registered yet. */
    public RegisteredState(
            RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo,
            String namespaceCodecId,
            String userKeyCodecId) {
        this(
                metaInfo,
                namespaceCodecId,
                userKeyCodecId,
                StateSnapshotTransformFactory.noTransform());
    }

    public RegisteredState(
            RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo,
            String namespaceCodecId,
            String userKeyCodecId,
            StateSnapshotTransformFactory<?> transformFactory) {
        this.id = StateId.of(metaInfo.getName());
        this.metaInfo = metaInfo;
        this.namespaceCodecId = namespaceCodecId;
        this.userKeyCodecId = userKeyCodecId;
        this.transformFactory = transformFactory;
    }

    /** A state with the columns that its serializers call for. */
    public static <N, V> RegisteredState<N, V> of(
            RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo,
            StateSnapshotTransformFactory<?> transformFactory) {
        return new RegisteredState<>(
                metaInfo,
                KeyCodecs.forNamespace(metaInfo.getNamespaceSerializer()).id(),
                userKeyCodecId(metaInfo.getStateSerializer()),
                transformFactory);
    }

    static String userKeyCodecId(TypeSerializer<?> stateSerializer) {
        return stateSerializer instanceof MapSerializer
                ? KeyCodecs.forUserKey(((MapSerializer<?, ?>) stateSerializer).getKeySerializer())
                        .id()
                : NO_USER_KEYS;
    }

    public String name() {
        return metaInfo.getName();
    }

    public int id() {
        return id;
    }

    public StateDescriptor.Type kind() {
        return metaInfo.getStateType();
    }

    /** Whether the rows of the state are entries under a prefix rather than one row a key. */
    public boolean isGroup() {
        return kind() == StateDescriptor.Type.MAP || kind() == StateDescriptor.Type.LIST;
    }

    public RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo() {
        return metaInfo;
    }

    public String namespaceCodecId() {
        return namespaceCodecId;
    }

    public String userKeyCodecId() {
        return userKeyCodecId;
    }

    /**
     * What becomes of a value, list element or map value in a canonical savepoint, as the
     * serializer's bytes: TTL leaves out what has expired. Empty if nothing changes.
     */
    public Optional<StateSnapshotTransformer<byte[]>> snapshotTransformer() {
        return transformFactory.createForSerializedState();
    }

    /** A codec of one's own for the namespaces. */
    public KeyCodec<N> namespaceCodec() {
        return KeyCodecs.forNamespace(metaInfo.getNamespaceSerializer());
    }
}
