package io.weir.flink.keyed;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.state.AbstractWeirState;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.util.StateMigrationException;

import java.io.IOException;

/**
 * Rewrites the values of a state, page by page, from what one serializer wrote to what another one
 * writes.
 */
final class StateMigration {

    private StateMigration() {}

    static <K, N, V> void migrate(
            Engine engine,
            KeyGroupRange range,
            KeyCodec<K> keyCodec,
            RegisteredState<N, V> registered,
            AbstractWeirState<K, N, V> state,
            TypeSerializer<V> previous,
            TypeSerializer<V> current,
            TtlTimeProvider time)
            throws StateMigrationException {
        TtlAwareSerializer<V, ?> from = ttlAware(previous);
        TtlAwareSerializer<V, ?> to = ttlAware(current);
        KeyCodec<N> namespaceCodec = registered.namespaceCodec();
        RowCursor rows = new RowCursor(engine, range, registered.id());
        RowKeyReader reader = new RowKeyReader();
        RowKey row = new RowKey();
        DataInputDeserializer value = new DataInputDeserializer();
        try {
            while (rows.next()) {
                reader.reset(rows.array(), rows.keyOffset() + RowKey.HEADER_BYTES, rows.keyEnd());
                keyCodec.skip(reader);
                namespaceCodec.skip(reader);
                int prefixLength = reader.position() - rows.keyOffset();
                row.set(rows.array(), rows.keyOffset(), rows.keyEnd() - rows.keyOffset());
                value.setBuffer(rows.array(), rows.valueOffset(), rows.valueLength());
                state.migrateRow(row, prefixLength, value, from, to, time);
            }
        } catch (IOException | RuntimeException e) {
            throw new StateMigrationException(
                    "State '"
                            + registered.name()
                            + "' could not be migrated to its new serializer "
                            + current
                            + ".",
                    e);
        }
    }

    @SuppressWarnings("unchecked")
    private static <V> TtlAwareSerializer<V, ?> ttlAware(TypeSerializer<V> serializer) {
        return (TtlAwareSerializer<V, ?>) TtlAwareSerializer.wrapTtlAwareSerializer(serializer);
    }
}
