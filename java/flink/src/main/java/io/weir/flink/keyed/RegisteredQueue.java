package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.StateId;

import org.apache.flink.runtime.state.RegisteredPriorityQueueStateBackendMetaInfo;

/**
 * A queue of timers whose rows are in the engine; restored or registered, it belongs to every later
 * checkpoint. A row is a timer: {@code [key group][state id][element]}, without a value.
 */
public final class RegisteredQueue<T> {

    private final int id;
    private final RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo;
    private final String codecId;
    private final boolean restored;

    /**
     * @param codecId the columns that the elements are written in
     * @param restored whether the engine may have rows of the queue already
     */
    public RegisteredQueue(
            RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo,
            String codecId,
            boolean restored) {
        this.id = StateId.of(metaInfo.getName());
        this.metaInfo = metaInfo;
        this.codecId = codecId;
        this.restored = restored;
    }

    /** A queue with the columns that its serializer calls for. */
    public static <T> RegisteredQueue<T> of(
            RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo, boolean restored) {
        return new RegisteredQueue<>(
                metaInfo, KeyCodecs.forElement(metaInfo.getElementSerializer()).id(), restored);
    }

    public String name() {
        return metaInfo.getName();
    }

    public int id() {
        return id;
    }

    public RegisteredPriorityQueueStateBackendMetaInfo<T> metaInfo() {
        return metaInfo;
    }

    public String codecId() {
        return codecId;
    }

    public boolean isRestored() {
        return restored;
    }

    /** A codec of one's own for the elements. */
    public KeyCodec<T> codec() {
        return KeyCodecs.forElement(metaInfo.getElementSerializer());
    }
}
