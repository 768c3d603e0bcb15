package io.weir.flink.encoding;

import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;

import java.io.IOException;

/**
 * A timer: its timestamp as a BIGINT, then the columns of its key and of its namespace, so that
 * timers order by time and can be read as a table.
 */
public final class TimerCodec<K, N> implements KeyCodec<TimerHeapInternalTimer<K, N>> {

    private final KeyCodec<K> key;
    private final KeyCodec<N> namespace;

    TimerCodec(KeyCodec<K> key, KeyCodec<N> namespace) {
        this.key = key;
        this.namespace = namespace;
    }

    @Override
    public String id() {
        return "timer(" + key.id() + "," + namespace.id() + ")";
    }

    @Override
    public void write(TimerHeapInternalTimer<K, N> timer, RowKey target) throws IOException {
        target.writeLong(timer.getTimestamp());
        key.write(timer.getKey(), target);
        namespace.write(timer.getNamespace(), target);
    }

    @Override
    public TimerHeapInternalTimer<K, N> read(RowKeyReader source) throws IOException {
        long timestamp = source.readLong();
        K timerKey = key.read(source);
        return new TimerHeapInternalTimer<>(timestamp, timerKey, namespace.read(source));
    }

    @Override
    public void skip(RowKeyReader source) {
        source.skipFixed(Long.BYTES);
        key.skip(source);
        namespace.skip(source);
    }
}
