package io.weir.flink.snapshot;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredQueue;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.keyed.RowCursor;
import io.weir.flink.nativelib.Engine;
import io.weir.flink.state.ListElements;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyValueStateIterator;
import org.apache.flink.runtime.state.StateSnapshotTransformer;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueStateSnapshot;

import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

/** Rows and timers as entries of a canonical savepoint, by key group, then state. */
final class CanonicalIterator<K> implements KeyValueStateIterator {

    private static final byte LIST_DELIMITER = ',';
    private static final byte[] NO_VALUE = {};

    private final Engine engine;
    private final int lastKeyGroup;
    private final KeyCodec<K> keyCodec;
    private final CanonicalKeys<K> keys;
    private final List<RegisteredState<?, ?>> states;
    private final List<RegisteredQueue<?>> queues;
    private final List<HeapPriorityQueueStateSnapshot<?>> heapQueues;

    /**
     * Where the next entry is looked for: a key group, and a state or, behind the states, a queue
     * of the engine or, behind those, one on the heap.
     */
    private int searchedKeyGroup;

    private int searchedState = -1;
    private Entries entries = Entries.NONE;

    private boolean valid = true;
    private int keyGroup = -1;
    private int stateId = -1;
    private boolean newKeyGroup;
    private boolean newState;

    /** What is left of one state in one key group. */
    private abstract static class Entries {
        static final Entries NONE =
                new Entries() {
                    @Override
                    boolean next() {
                        return false;
                    }
                };

        byte[] key;
        byte[] value;

        abstract boolean next() throws IOException;
    }

    CanonicalIterator(
            Engine engine,
            KeyGroupRange range,
            KeyCodec<K> keyCodec,
            CanonicalKeys<K> keys,
            List<RegisteredState<?, ?>> states,
            List<RegisteredQueue<?>> queues,
            List<HeapPriorityQueueStateSnapshot<?>> heapQueues)
            throws IOException {
        this.engine = engine;
        this.searchedKeyGroup = range.getStartKeyGroup();
        this.lastKeyGroup = range.getEndKeyGroup();
        this.keyCodec = keyCodec;
        this.keys = keys;
        this.states = states;
        this.queues = queues;
        this.heapQueues = heapQueues;
        next();
    }

    @Override
    public void next() throws IOException {
        while (!entries.next()) {
            searchedState++;
            if (searchedState >= count()) {
                searchedState = 0;
                searchedKeyGroup++;
            }
            if (searchedKeyGroup > lastKeyGroup || count() == 0) {
                entries = Entries.NONE;
                valid = false;
                return;
            }
            entries = entries(searchedState, searchedKeyGroup);
        }
        newKeyGroup = keyGroup != searchedKeyGroup;
        newState = stateId != searchedState;
        keyGroup = searchedKeyGroup;
        stateId = searchedState;
    }

    private int count() {
        return states.size() + queues.size() + heapQueues.size();
    }

    private Entries entries(int index, int ofKeyGroup) {
        if (index < states.size()) {
            return rows(states.get(index), ofKeyGroup);
        }
        int queue = index - states.size();
        return queue < queues.size()
                ? timers(queues.get(queue), ofKeyGroup)
                : heapTimers(heapQueues.get(queue - queues.size()), ofKeyGroup);
    }

    private <N, V> Entries rows(RegisteredState<N, V> state, int ofKeyGroup) {
        switch (state.kind()) {
            case LIST:
                return new ListRows<N>(state, ofKeyGroup);
            case MAP:
                return mapRows(
                        state,
                        ofKeyGroup,
                        ((MapSerializer<?, ?>) state.metaInfo().getStateSerializer())
                                .getKeySerializer());
            default:
                return new ValueRows<N>(state, ofKeyGroup);
        }
    }

    private <N, UK> Entries mapRows(
            RegisteredState<N, ?> state, int ofKeyGroup, TypeSerializer<UK> userKeySerializer) {
        return new MapRows<>(state, ofKeyGroup, userKeySerializer);
    }

    private <T> Entries timers(RegisteredQueue<T> queue, int ofKeyGroup) {
        RowCursor rows = new RowCursor(engine, ofKeyGroup, ofKeyGroup, queue.id());
        RowKeyReader reader = new RowKeyReader();
        KeyCodec<T> codec = queue.codec();
        TypeSerializer<T> serializer = queue.metaInfo().getElementSerializer();
        return new Timers<T>(serializer, ofKeyGroup) {
            @Override
            T nextElement() throws IOException {
                if (!rows.next()) {
                    return null;
                }
                reader.reset(rows.array(), rows.keyOffset() + RowKey.HEADER_BYTES, rows.keyEnd());
                return codec.read(reader);
            }
        };
    }

    private <T> Entries heapTimers(HeapPriorityQueueStateSnapshot<T> queue, int ofKeyGroup) {
        Iterator<T> elements = queue.getIteratorForKeyGroup(ofKeyGroup);
        return new Timers<T>(queue.getMetaInfo().getElementSerializer(), ofKeyGroup) {
            @Override
            T nextElement() {
                return elements.hasNext() ? elements.next() : null;
            }
        };
    }

    /** Timers of a queue, each a key without a value. */
    private abstract class Timers<T> extends Entries {
        private final TypeSerializer<T> serializer;
        private final int ofKeyGroup;
        private final DataOutputSerializer output = new DataOutputSerializer(64);

        Timers(TypeSerializer<T> serializer, int ofKeyGroup) {
            this.serializer = serializer;
            this.ofKeyGroup = ofKeyGroup;
        }

        /** Null behind the last one. */
        abstract T nextElement() throws IOException;

        @Override
        boolean next() throws IOException {
            T element = nextElement();
            if (element == null) {
                return false;
            }
            output.clear();
            keys.writeKeyGroup(ofKeyGroup, output);
            serializer.serialize(element, output);
            key = output.getCopyOfBuffer();
            value = NO_VALUE;
            return true;
        }
    }

    /** Rows of any kind of state, with the conversion of their key. */
    private abstract class Rows<N> extends Entries {
        final RowCursor rows;
        final RowKeyReader reader = new RowKeyReader();
        final DataOutputSerializer output = new DataOutputSerializer(128);
        byte[] rowValue;
        private final int ofKeyGroup;
        private final KeyCodec<N> namespaceCodec;
        private final TypeSerializer<N> namespaceSerializer;
        final StateSnapshotTransformer<byte[]> transformer;

        Rows(RegisteredState<N, ?> state, int ofKeyGroup) {
            this.rows = new RowCursor(engine, ofKeyGroup, ofKeyGroup, state.id());
            this.ofKeyGroup = ofKeyGroup;
            this.namespaceCodec = state.namespaceCodec();
            this.namespaceSerializer = state.metaInfo().getNamespaceSerializer();
            this.transformer = state.snapshotTransformer().orElse(null);
        }

        /** Goes to the next row that belongs into the savepoint, and takes its value. */
        final boolean nextRow() throws IOException {
            while (rows.next()) {
                rowValue = transformed();
                if (rowValue != null) {
                    return true;
                }
            }
            return false;
        }

        /** The current row's value as it is to be written, or null. */
        byte[] transformed() throws IOException {
            byte[] bytes = copy(rows.valueOffset(), rows.valueLength());
            return transformer == null ? bytes : transform(bytes, transformer);
        }

        final byte[] copy(int offset, int length) {
            return Arrays.copyOfRange(rows.array(), offset, offset + length);
        }

        byte[] transform(byte[] value, StateSnapshotTransformer<byte[]> transformer) {
            return transformer.filterOrTransform(value);
        }

        /**
         * Converts key group, key and namespace of the current row, and leaves the reader behind
         * them.
         */
        void convertPrefix() throws IOException {
            output.clear();
            reader.reset(rows.array(), rows.keyOffset() + RowKey.HEADER_BYTES, rows.keyEnd());
            keys.writeKeyGroup(ofKeyGroup, output);
            K rowKey = keyCodec.read(reader);
            N namespace = namespaceCodec.read(reader);
            keys.writeKeyAndNamespace(rowKey, namespace, namespaceSerializer, output);
        }
    }

    private final class ValueRows<N> extends Rows<N> {
        ValueRows(RegisteredState<N, ?> state, int ofKeyGroup) {
            super(state, ofKeyGroup);
        }

        @Override
        boolean next() throws IOException {
            if (!nextRow()) {
                return false;
            }
            convertPrefix();
            key = output.getCopyOfBuffer();
            value = rowValue;
            return true;
        }
    }

    private final class MapRows<N, UK> extends Rows<N> {
        private final KeyCodec<UK> userKeyCodec;
        private final TypeSerializer<UK> userKeySerializer;

        MapRows(RegisteredState<N, ?> state, int ofKeyGroup, TypeSerializer<UK> userKeySerializer) {
            super(state, ofKeyGroup);
            this.userKeySerializer = userKeySerializer;
            this.userKeyCodec = KeyCodecs.forUserKey(userKeySerializer);
        }

        @Override
        boolean next() throws IOException {
            if (!nextRow()) {
                return false;
            }
            convertPrefix();
            userKeySerializer.serialize(userKeyCodec.read(reader), output);
            key = output.getCopyOfBuffer();
            value = rowValue;
            return true;
        }

        /** What is transformed follows the null flag; a null has nothing behind it. */
        @Override
        byte[] transform(byte[] value, StateSnapshotTransformer<byte[]> transformer) {
            if (value.length <= 1) {
                return value;
            }
            byte[] transformed =
                    transformer.filterOrTransform(Arrays.copyOfRange(value, 1, value.length));
            if (transformed == null) {
                return null;
            }
            byte[] flagged = new byte[transformed.length + 1];
            flagged[0] = value[0];
            System.arraycopy(transformed, 0, flagged, 1, transformed.length);
            return flagged;
        }
    }

    /** A list is rows of elements here, and one value there. */
    private final class ListRows<N> extends Rows<N> {
        private final String name;
        private boolean ahead;
        private boolean done;

        ListRows(RegisteredState<N, ?> state, int ofKeyGroup) {
            super(state, ofKeyGroup);
            this.name = state.name();
        }

        @Override
        boolean next() throws IOException {
            if (done || (!ahead && !nextRow())) {
                return false;
            }
            convertPrefix();
            key = output.getCopyOfBuffer();
            byte[] prefix = Arrays.copyOfRange(rows.array(), rows.keyOffset(), reader.position());
            DataOutputSerializer list = new DataOutputSerializer(Math.max(1, rowValue.length));
            list.write(rowValue);
            ahead = nextRow();
            done = !ahead;
            while (ahead && hasPrefix(prefix)) {
                if ((long) list.length() + rowValue.length > Integer.MAX_VALUE - 64) {
                    throw new IOException(
                            "A list of state '"
                                    + name
                                    + "' is larger than 2 GiB, which a canonical savepoint cannot"
                                    + " hold.");
                }
                list.write(LIST_DELIMITER);
                list.write(rowValue);
                ahead = nextRow();
                done = !ahead;
            }
            value = list.getCopyOfBuffer();
            return true;
        }

        /** The row's elements in the form of the one value; each is transformed by itself. */
        @Override
        byte[] transformed() throws IOException {
            ListElements elements =
                    new ListElements(rows.array(), rows.valueOffset(), rows.valueLength());
            DataOutputSerializer saved = null;
            while (elements.next()) {
                byte[] element = copy(elements.offset(), elements.length());
                if (transformer != null) {
                    element = transformer.filterOrTransform(element);
                }
                if (element == null) {
                    continue;
                }
                if (saved == null) {
                    saved = new DataOutputSerializer(Math.max(1, rows.valueLength()));
                } else {
                    saved.write(LIST_DELIMITER);
                }
                saved.write(element);
            }
            return saved == null ? null : saved.getCopyOfBuffer();
        }

        private boolean hasPrefix(byte[] prefix) {
            int end = rows.keyOffset() + prefix.length;
            return end <= rows.keyEnd()
                    && Arrays.equals(rows.array(), rows.keyOffset(), end, prefix, 0, prefix.length);
        }
    }

    @Override
    public int keyGroup() {
        return keyGroup;
    }

    @Override
    public byte[] key() {
        return entries.key;
    }

    @Override
    public byte[] value() {
        return entries.value;
    }

    @Override
    public int kvStateId() {
        return stateId;
    }

    @Override
    public boolean isNewKeyValueState() {
        return newState;
    }

    @Override
    public boolean isNewKeyGroup() {
        return newKeyGroup;
    }

    @Override
    public boolean isValid() {
        return valid;
    }

    @Override
    public void close() {}
}
