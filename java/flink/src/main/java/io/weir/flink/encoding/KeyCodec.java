package io.weir.flink.encoding;

import java.io.IOException;

/**
 * Writes a key, namespace or user key as columns of a row key and reads it back. Every encoding is
 * self-delimiting and injective. An instance is used by one thread; it may hold scratch buffers and
 * a serializer.
 */
public interface KeyCodec<T> {

    /**
     * Names the columns, such as {@code int64} or {@code tuple(utf8,int32)}. Recorded in each
     * checkpoint: a restore with another choice cannot find its rows.
     */
    String id();

    void write(T value, RowKey target) throws IOException;

    T read(RowKeyReader source) throws IOException;

    /** Moves on behind the value without building it. */
    void skip(RowKeyReader source);
}
