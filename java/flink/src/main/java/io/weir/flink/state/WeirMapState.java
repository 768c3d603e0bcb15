package io.weir.flink.state;

import io.weir.flink.encoding.KeyCodec;
import io.weir.flink.encoding.KeyCodecs;
import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.nativelib.Bytes;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.queryablestate.client.state.serialization.KvStateSerializer;
import org.apache.flink.runtime.state.internal.InternalMapState;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.util.FlinkRuntimeException;

import java.io.IOException;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Objects;

/** {@code MapState}: a row an entry; its value is a null flag and the serializer's bytes. */
public final class WeirMapState<K, N, UK, UV> extends AbstractWeirState<K, N, Map<UK, UV>>
        implements InternalMapState<K, N, UK, UV> {

    private TypeSerializer<UV> userValueSerializer;
    private KeyCodec<UK> userKeyCodec;
    private final RowKeyReader reader = new RowKeyReader();

    public WeirMapState(
            StateContext<K> context,
            RegisteredState<N, Map<UK, UV>> state,
            StateDescriptor<?, Map<UK, UV>> descriptor) {
        super(context, state, descriptor);
        onUpdate(descriptor);
    }

    @Override
    void onUpdate(StateDescriptor<?, Map<UK, UV>> descriptor) {
        MapSerializer<UK, UV> serializer = (MapSerializer<UK, UV>) valueSerializer;
        userValueSerializer = serializer.getValueSerializer();
        userKeyCodec = KeyCodecs.forUserKey(serializer.getKeySerializer());
    }

    // ---------------- single
    // entries

    @Override
    public UV get(UK userKey) throws IOException {
        RowKey row = row();
        int prefixLength = row.length();
        userKeyCodec.write(userKey, row);
        return context.engine.groupGet(row, prefixLength, context.value)
                ? readValue(context.input())
                : null;
    }

    @Override
    public void put(UK userKey, UV userValue) throws IOException {
        RowKey row = row();
        int prefixLength = row.length();
        userKeyCodec.write(userKey, row);
        DataOutputSerializer output = context.output();
        writeValue(userValue, output);
        context.engine.groupPut(row, prefixLength, output);
    }

    @Override
    public void putAll(Map<UK, UV> entries) throws IOException {
        if (entries == null) {
            return;
        }
        for (Map.Entry<UK, UV> entry : entries.entrySet()) {
            put(entry.getKey(), entry.getValue());
        }
    }

    @Override
    public void remove(UK userKey) throws IOException {
        RowKey row = row();
        int prefixLength = row.length();
        userKeyCodec.write(userKey, row);
        context.engine.groupDelete(row, prefixLength);
    }

    @Override
    public boolean contains(UK userKey) throws IOException {
        RowKey row = row();
        int prefixLength = row.length();
        userKeyCodec.write(userKey, row);
        return context.engine.groupContains(row, prefixLength);
    }

    @Override
    public boolean isEmpty() throws IOException {
        return context.engine.groupIsEmpty(row());
    }

    @Override
    public void clear() {
        try {
            context.engine.groupClear(row());
        } catch (IOException e) {
            throw new FlinkRuntimeException("The map could not be cleared.", e);
        }
    }

    private void writeValue(UV userValue, DataOutputSerializer output) throws IOException {
        output.writeBoolean(userValue == null);
        if (userValue != null) {
            userValueSerializer.serialize(userValue, output);
        }
    }

    private UV readValue(DataInputDeserializer input) throws IOException {
        return input.readBoolean() ? null : userValueSerializer.deserialize(input);
    }

    // ---------------- iteration

    @Override
    public Iterable<Map.Entry<UK, UV>> entries() throws IOException {
        RowKey prefix = copy(row());
        return () -> new EntryIterator(prefix);
    }

    @Override
    public Iterable<UK> keys() throws IOException {
        RowKey prefix = copy(row());
        return () ->
                new MappedIterator<UK>(new EntryIterator(prefix)) {
                    @Override
                    public UK next() {
                        return entries.next().getKey();
                    }
                };
    }

    @Override
    public Iterable<UV> values() throws IOException {
        RowKey prefix = copy(row());
        return () ->
                new MappedIterator<UV>(new EntryIterator(prefix)) {
                    @Override
                    public UV next() {
                        return entries.next().getValue();
                    }
                };
    }

    @Override
    public Iterator<Map.Entry<UK, UV>> iterator() throws IOException {
        return new EntryIterator(copy(row()));
    }

    private static RowKey copy(RowKey row) {
        RowKey copy = new RowKey();
        copy.set(row.bytes(), 0, row.length());
        return copy;
    }

    private abstract class MappedIterator<T> implements Iterator<T> {
        final EntryIterator entries;

        MappedIterator(EntryIterator entries) {
            this.entries = entries;
        }

        @Override
        public boolean hasNext() {
            return entries.hasNext();
        }

        @Override
        public void remove() {
            entries.remove();
        }
    }

    private final class EntryIterator implements Iterator<Map.Entry<UK, UV>> {
        private final GroupCursor cursor;
        private final RowKey prefix;
        private boolean ahead;
        private Entry last;

        /**
         * @param prefix not changed any more
         */
        EntryIterator(RowKey prefix) {
            this.prefix = prefix;
            cursor = new GroupCursor(context.engine, prefix);
        }

        @Override
        public boolean hasNext() {
            if (!ahead) {
                try {
                    ahead = cursor.next();
                } catch (IOException e) {
                    throw new FlinkRuntimeException("The entries of a map could not be read.", e);
                }
            }
            return ahead;
        }

        @Override
        public Map.Entry<UK, UV> next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            ahead = false;
            last = new Entry(prefix, cursor);
            return last;
        }

        @Override
        public void remove() {
            if (last == null) {
                throw new IllegalStateException(
                        "There is no entry to remove: next() was not called.");
            }
            last.remove();
            last = null;
        }
    }

    /** An entry that is read, from the page that holds it, when it is asked for. */
    private final class Entry implements Map.Entry<UK, UV> {
        private final RowKey prefix;
        private final byte[] page;
        private final int suffixOffset;
        private final int suffixEnd;
        private final int valueLength;
        private UK userKey;
        private UV userValue;
        private boolean hasKey;
        private boolean hasValue;
        private boolean removed;

        Entry(RowKey prefix, GroupCursor cursor) {
            this.prefix = prefix;
            this.page = cursor.array();
            this.suffixOffset = cursor.suffixOffset();
            this.suffixEnd = cursor.suffixEnd();
            this.valueLength = cursor.valueLength();
        }

        @Override
        public UK getKey() {
            if (!hasKey) {
                try {
                    reader.reset(page, suffixOffset, suffixEnd);
                    userKey = userKeyCodec.read(reader);
                } catch (IOException e) {
                    throw new FlinkRuntimeException("The key of a map entry could not be read.", e);
                }
                hasKey = true;
            }
            return userKey;
        }

        @Override
        public UV getValue() {
            if (!hasValue && !removed) {
                try {
                    context.input.setBuffer(page, suffixEnd, valueLength);
                    userValue = readValue(context.input);
                } catch (IOException e) {
                    throw new FlinkRuntimeException(
                            "The value of a map entry could not be read.", e);
                }
                hasValue = true;
            }
            return userValue;
        }

        @Override
        public UV setValue(UV newValue) {
            if (removed) {
                throw new IllegalStateException("The entry was removed.");
            }
            UV old = getValue();
            try {
                DataOutputSerializer output = context.output();
                writeValue(newValue, output);
                context.engine.groupPut(row(), prefix.length(), output);
            } catch (IOException e) {
                throw new FlinkRuntimeException("A map entry could not be written.", e);
            }
            userValue = newValue;
            return old;
        }

        void remove() {
            try {
                context.engine.groupDelete(row(), prefix.length());
            } catch (IOException e) {
                throw new FlinkRuntimeException("A map entry could not be removed.", e);
            }
            userValue = null;
            removed = true;
        }

        private RowKey row() {
            RowKey row = copy(prefix);
            row.append(page, suffixOffset, suffixEnd - suffixOffset);
            return row;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Map.Entry
                    && Objects.equals(getKey(), ((Map.Entry<?, ?>) other).getKey())
                    && Objects.equals(getValue(), ((Map.Entry<?, ?>) other).getValue());
        }

        @Override
        public int hashCode() {
            return Objects.hashCode(getKey()) ^ Objects.hashCode(getValue());
        }

        @Override
        public String toString() {
            return getKey() + "=" + getValue();
        }
    }

    // ---------------- rows

    @Override
    byte[] serializedValue(RowKey row, TypeSerializer<Map<UK, UV>> serializer) throws Exception {
        MapSerializer<UK, UV> map = (MapSerializer<UK, UV>) serializer;
        KeyCodec<UK> keys = KeyCodecs.forUserKey(map.getKeySerializer());
        RowKeyReader suffix = new RowKeyReader();
        DataInputDeserializer value = new DataInputDeserializer();
        List<Map.Entry<UK, UV>> entries = new ArrayList<>();
        GroupCursor cursor = GroupCursor.visiting(context.engine, row);
        while (cursor.next()) {
            suffix.reset(cursor.array(), cursor.suffixOffset(), cursor.suffixEnd());
            UK userKey = keys.read(suffix);
            value.setBuffer(cursor.array(), cursor.valueOffset(), cursor.valueLength());
            UV userValue = value.readBoolean() ? null : map.getValueSerializer().deserialize(value);
            entries.add(new AbstractMap.SimpleEntry<>(userKey, userValue));
        }
        return entries.isEmpty()
                ? null
                : KvStateSerializer.serializeMap(
                        entries, map.getKeySerializer(), map.getValueSerializer());
    }

    @Override
    Map<UK, UV> rowValue(RowKeyReader suffix, DataInputDeserializer value) throws IOException {
        return Collections.singletonMap(userKeyCodec.read(suffix), readValue(value));
    }

    @Override
    void replaceRow(RowKey row, int prefixLength, Map<UK, UV> oldValue, Map<UK, UV> newValue)
            throws IOException {
        if (newValue == null || newValue.isEmpty()) {
            removeRow(row, prefixLength);
            return;
        }
        DataOutputSerializer output = context.output();
        writeValue(newValue.values().iterator().next(), output);
        DataOutputSerializer before = new DataOutputSerializer(Math.max(1, output.length()));
        writeValue(oldValue.values().iterator().next(), before);
        // TTL's clean-up hands back a copy of what it keeps: that must not make the row dirty.
        boolean same =
                Arrays.equals(
                        output.getSharedBuffer(),
                        0,
                        output.length(),
                        before.getSharedBuffer(),
                        0,
                        before.length());
        if (!same) {
            context.engine.groupPut(row, prefixLength, output);
        }
    }

    @Override
    boolean readRow(RowKey row, int prefixLength, Bytes target) throws IOException {
        return context.engine.groupGet(row, prefixLength, target);
    }

    @Override
    void removeRow(RowKey row, int prefixLength) throws IOException {
        context.engine.groupDelete(row, prefixLength);
    }

    @Override
    public void migrateRow(
            RowKey row,
            int prefixLength,
            DataInputDeserializer value,
            TtlAwareSerializer<Map<UK, UV>, ?> previous,
            TtlAwareSerializer<Map<UK, UV>, ?> current,
            TtlTimeProvider time)
            throws IOException {
        DataOutputSerializer output = context.output();
        boolean isNull = value.readBoolean();
        output.writeBoolean(isNull);
        if (!isNull) {
            migrate(value, output, values(previous), values(current), time);
        }
        context.engine.groupPut(row, prefixLength, output);
    }

    @SuppressWarnings("unchecked")
    private static <UK, UV> TtlAwareSerializer<UV, ?> values(
            TtlAwareSerializer<Map<UK, UV>, ?> map) {
        return ((TtlAwareSerializer.TtlAwareMapSerializer<UK, UV>) map).getValueSerializer();
    }
}
