package io.weir.flink.state;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RowCursor;
import io.weir.flink.nativelib.Bytes;

import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.runtime.state.StateEntry;
import org.apache.flink.runtime.state.internal.InternalKvState.StateIncrementalVisitor;
import org.apache.flink.util.FlinkRuntimeException;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;

/**
 * Visits the rows of a state, a few at a time. An entry of a map or list is an element of its own
 * here, so that no collection has to fit into memory; changes go to that row alone.
 */
final class RowVisitor<K, N, V> implements StateIncrementalVisitor<K, N, V> {

    private final AbstractWeirState<K, N, V> state;
    private final KeyCodec<N> namespaceCodec;
    private final int recommendedRecords;
    private final RowCursor cursor;
    private final RowKeyReader reader = new RowKeyReader();
    private final DataInputDeserializer input = new DataInputDeserializer();
    private final Bytes now = new Bytes(256);
    private boolean ahead;
    private boolean done;

    RowVisitor(
            AbstractWeirState<K, N, V> state, KeyCodec<N> namespaceCodec, int recommendedRecords) {
        this.state = state;
        this.namespaceCodec = namespaceCodec;
        this.recommendedRecords = Math.max(1, recommendedRecords);
        this.cursor = new RowCursor(state.context.engine, state.context.range, state.stateId);
    }

    /** A row seen as an entry of the state. */
    private static final class Entry<K, N, V> implements StateEntry<K, N, V> {
        final K key;
        final N namespace;
        final V value;
        final byte[] row;
        final int prefixLength;
        final byte[] written;

        Entry(K key, N namespace, V value, byte[] row, int prefixLength, byte[] written) {
            this.key = key;
            this.namespace = namespace;
            this.value = value;
            this.row = row;
            this.prefixLength = prefixLength;
            this.written = written;
        }

        @Override
        public K getKey() {
            return key;
        }

        @Override
        public N getNamespace() {
            return namespace;
        }

        @Override
        public V getState() {
            return value;
        }

        RowKey rowKey() {
            RowKey copy = new RowKey();
            copy.set(row, 0, row.length);
            return copy;
        }
    }

    @Override
    public boolean hasNext() {
        if (!ahead && !done) {
            try {
                ahead = cursor.next();
            } catch (IOException e) {
                throw new FlinkRuntimeException("The rows of a state could not be read.", e);
            }
            done = !ahead;
        }
        return ahead;
    }

    @Override
    public Collection<StateEntry<K, N, V>> nextEntries() {
        List<StateEntry<K, N, V>> entries = new ArrayList<>();
        try {
            while (entries.size() < recommendedRecords && hasNext()) {
                entries.add(entry());
                ahead = false;
            }
        } catch (IOException e) {
            throw new FlinkRuntimeException("The rows of a state could not be read.", e);
        }
        return entries;
    }

    private Entry<K, N, V> entry() throws IOException {
        reader.reset(cursor.array(), cursor.keyOffset() + RowKey.HEADER_BYTES, cursor.keyEnd());
        K key = state.context.key.codec().read(reader);
        N namespace = namespaceCodec.read(reader);
        int prefixLength = reader.position() - cursor.keyOffset();
        input.setBuffer(cursor.array(), cursor.valueOffset(), cursor.valueLength());
        V value = state.rowValue(reader, input);
        byte[] written =
                Arrays.copyOfRange(
                        cursor.array(),
                        cursor.valueOffset(),
                        cursor.valueOffset() + cursor.valueLength());
        return new Entry<>(key, namespace, value, cursor.key(), prefixLength, written);
    }

    /** The page that the entry came from may be older than what the row holds now. */
    private boolean isUnchanged(RowKey row, Entry<K, N, V> entry) throws IOException {
        return state.readRow(row, entry.prefixLength, now)
                && Arrays.equals(
                        now.array(), 0, now.length(), entry.written, 0, entry.written.length);
    }

    @Override
    public void remove(StateEntry<K, N, V> visited) {
        Entry<K, N, V> entry = (Entry<K, N, V>) visited;
        try {
            RowKey row = entry.rowKey();
            if (isUnchanged(row, entry)) {
                state.removeRow(row, entry.prefixLength);
            }
        } catch (IOException e) {
            throw new FlinkRuntimeException("A row of a state could not be removed.", e);
        }
    }

    @Override
    public void update(StateEntry<K, N, V> visited, V newValue) {
        Entry<K, N, V> entry = (Entry<K, N, V>) visited;
        try {
            RowKey row = entry.rowKey();
            if (isUnchanged(row, entry)) {
                state.replaceRow(row, entry.prefixLength, entry.value, newValue);
            }
        } catch (IOException e) {
            throw new FlinkRuntimeException("A row of a state could not be updated.", e);
        }
    }
}
