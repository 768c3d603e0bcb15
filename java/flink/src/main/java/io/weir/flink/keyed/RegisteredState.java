package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.StateId;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;

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

    public RegisteredState(
            RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo,
            String namespaceCodecId,
            String userKeyCodecId) {
        this.id = StateId.of(metaInfo.getName());
        this.metaInfo = metaInfo;
        this.namespaceCodecId = namespaceCodecId;
        this.userKeyCodecId = userKeyCodecId;
    }

    /** A state with the columns that its serializers call for. */
    public static <N, V> RegisteredState<N, V> of(
            RegisteredKeyValueStateBackendMetaInfo<N, V> metaInfo) {
        return new RegisteredState<>(
                metaInfo,
                KeyCodecs.forNamespace(metaInfo.getNamespaceSerializer()).id(),
                userKeyCodecId(metaInfo.getStateSerializer()));
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

    /** A codec of one's own for the namespaces. */
    public KeyCodec<N> namespaceCodec() {
        return KeyCodecs.forNamespace(metaInfo.getNamespaceSerializer());
    }
}
