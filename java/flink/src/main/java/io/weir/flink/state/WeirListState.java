package io.weir.flink.state;

import io.weir.flink.encoding.RowKey;
import io.weir.flink.encoding.RowKeyReader;
import io.weir.flink.keyed.RegisteredState;
import io.weir.flink.nativelib.Bytes;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.ListDelimitedSerializer;
import org.apache.flink.runtime.state.internal.InternalListState;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.util.FlinkRuntimeException;
import org.apache.flink.util.Preconditions;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/**
 * {@code ListState}: rows of elements, whose suffix is a growing sequence, so that adding reads
 * nothing and no list meets the limit of a Java array. What is added between two checkpoints shares
 * rows, up to 1 KiB each ({@link ListElements}).
 */
public final class WeirListState<K, N, E> extends AbstractWeirState<K, N, List<E>>
        implements InternalListState<K, N, E> {

    /** A list up to this size is read by one call. */
    private static final int AT_ONCE_BYTES = 256 << 10;

    private TypeSerializer<E> elementSerializer;

    public WeirListState(
            StateContext<K> context,
            RegisteredState<N, List<E>> state,
            StateDescriptor<?, List<E>> descriptor) {
        super(context, state, descriptor);
        onUpdate(descriptor);
    }

    @Override
    void onUpdate(StateDescriptor<?, List<E>> descriptor) {
        elementSerializer = ((ListSerializer<E>) valueSerializer).getElementSerializer();
    }

    @Override
    public Iterable<E> get() throws IOException {
        return getInternal();
    }

    @Override
    public List<E> getInternal() throws IOException {
        RowKey row = row();
        if (!context.engine.listElements(row, AT_ONCE_BYTES, context.value)) {
            return read(new GroupCursor(context.engine, row), elementSerializer, context.input);
        }
        int length = context.value.length();
        return length == 0
                ? null
                : read(
                        new ListElements(context.value.array(), 0, length),
                        null,
                        elementSerializer,
                        context.input);
    }

    /** Appends the elements of a row to {@code elements}; null stands for none so far. */
    private static <E> List<E> read(
            ListElements row,
            List<E> elements,
            TypeSerializer<E> serializer,
            DataInputDeserializer input)
            throws IOException {
        List<E> target = elements;
        while (row.next()) {
            if (target == null) {
                target = new ArrayList<>(row.guessedCount());
            }
            input.setBuffer(row.array(), row.offset(), row.length());
            target.add(serializer.deserialize(input));
        }
        return target;
    }

    private static <E> List<E> read(
            GroupCursor cursor, TypeSerializer<E> serializer, DataInputDeserializer input)
            throws IOException {
        List<E> elements = null;
        while (cursor.next()) {
            elements = read(elements(cursor), elements, serializer, input);
        }
        return elements;
    }

    private static ListElements elements(GroupCursor cursor) {
        return new ListElements(cursor.array(), cursor.valueOffset(), cursor.valueLength());
    }

    @Override
    public void add(E element) throws IOException {
        Preconditions.checkNotNull(element, "A list state cannot hold null.");
        append(element);
    }

    private void append(E element) throws IOException {
        DataOutputSerializer output = context.output();
        elementSerializer.serialize(element, output);
        context.engine.listAppend(row(), output);
    }

    @Override
    public void addAll(List<E> elements) throws IOException {
        checkElements(elements);
        for (E element : elements) {
            append(element);
        }
    }

    @Override
    public void update(List<E> elements) throws IOException {
        updateInternal(elements);
    }

    @Override
    public void updateInternal(List<E> elements) throws IOException {
        checkElements(elements);
        context.engine.groupClear(row());
        for (E element : elements) {
            append(element);
        }
    }

    private static void checkElements(List<?> elements) {
        Preconditions.checkNotNull(elements, "The list of elements is null.");
        for (Object element : elements) {
            Preconditions.checkNotNull(element, "A list state cannot hold null.");
        }
    }

    @Override
    public void clear() {
        try {
            context.engine.groupClear(row());
        } catch (IOException e) {
            throw new FlinkRuntimeException("The list could not be cleared.", e);
        }
    }

    @Override
    public void mergeNamespaces(N target, Collection<N> sources) throws IOException {
        if (sources == null || sources.isEmpty()) {
            return;
        }
        for (N source : sources) {
            if (source == null || source.equals(target)) {
                continue;
            }
            setCurrentNamespace(source);
            GroupCursor cursor = new GroupCursor(context.engine, row());
            boolean moved = false;
            while (cursor.next()) {
                setCurrentNamespace(target);
                ListElements elements = elements(cursor);
                while (elements.next()) {
                    DataOutputSerializer output = context.output();
                    output.write(elements.array(), elements.offset(), elements.length());
                    context.engine.listAppend(row(), output);
                }
                moved = true;
            }
            if (moved) {
                setCurrentNamespace(source);
                clear();
            }
        }
        setCurrentNamespace(target);
    }

    @Override
    byte[] serializedValue(RowKey row, TypeSerializer<List<E>> serializer) throws IOException {
        TypeSerializer<E> elements = ((ListSerializer<E>) serializer).getElementSerializer();
        List<E> list =
                read(
                        GroupCursor.visiting(context.engine, row),
                        elements,
                        new DataInputDeserializer());
        return list == null ? null : new ListDelimitedSerializer().serializeList(list, elements);
    }

    @Override
    List<E> rowValue(RowKeyReader suffix, DataInputDeserializer value) throws IOException {
        List<E> elements = new ArrayList<>();
        while (value.available() > 0) {
            value.skipBytesToRead(Integer.BYTES);
            elements.add(elementSerializer.deserialize(value));
        }
        return elements;
    }

    @Override
    void replaceRow(RowKey row, int prefixLength, List<E> oldValue, List<E> newValue)
            throws IOException {
        if (newValue == null || newValue.isEmpty()) {
            removeRow(row, prefixLength);
            return;
        }
        DataOutputSerializer output = context.output();
        for (E element : newValue) {
            ListElements.write(to -> elementSerializer.serialize(element, to), output);
        }
        context.engine.groupPut(row, prefixLength, output);
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
            TtlAwareSerializer<List<E>, ?> previous,
            TtlAwareSerializer<List<E>, ?> current,
            TtlTimeProvider time)
            throws IOException {
        TtlAwareSerializer<E, ?> from = elements(previous);
        TtlAwareSerializer<E, ?> to = elements(current);
        DataOutputSerializer output = context.output();
        while (value.available() > 0) {
            value.skipBytesToRead(Integer.BYTES);
            ListElements.write(target -> migrate(value, target, from, to, time), output);
        }
        context.engine.groupPut(row, prefixLength, output);
    }

    @SuppressWarnings("unchecked")
    private static <E> TtlAwareSerializer<E, ?> elements(TtlAwareSerializer<List<E>, ?> list) {
        return ((TtlAwareSerializer.TtlAwareListSerializer<E>) list).getElementSerializer();
    }
}
