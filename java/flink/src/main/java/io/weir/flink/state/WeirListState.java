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
import java.util.Collections;
import java.util.List;

/**
 * {@code ListState}: a row an element, whose suffix is a growing sequence, so that adding reads
 * nothing and no list meets the limit of a Java array.
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
        int count = context.engine.listValues(row, AT_ONCE_BYTES, context.value);
        if (count < 0) {
            return read(new GroupCursor(context.engine, row), elementSerializer, context.input);
        }
        if (count == 0) {
            return null;
        }
        List<E> elements = new ArrayList<>(count);
        byte[] values = context.value.array();
        for (int i = 0, at = 0; i < count; i++) {
            int length = GroupCursor.length(values, at);
            context.input.setBuffer(values, at + Integer.BYTES, length);
            elements.add(elementSerializer.deserialize(context.input));
            at += Integer.BYTES + length;
        }
        return elements;
    }

    private static <E> List<E> read(
            GroupCursor cursor, TypeSerializer<E> serializer, DataInputDeserializer input)
            throws IOException {
        List<E> elements = null;
        while (cursor.next()) {
            if (elements == null) {
                elements = new ArrayList<>();
            }
            input.setBuffer(cursor.array(), cursor.valueOffset(), cursor.valueLength());
            elements.add(serializer.deserialize(input));
        }
        return elements;
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
                DataOutputSerializer output = context.output();
                output.write(cursor.array(), cursor.valueOffset(), cursor.valueLength());
                context.engine.listAppend(row(), output);
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
        return Collections.singletonList(elementSerializer.deserialize(value));
    }

    @Override
    void replaceRow(RowKey row, int prefixLength, List<E> oldValue, List<E> newValue)
            throws IOException {
        if (newValue == null || newValue.isEmpty()) {
            removeRow(row, prefixLength);
            return;
        }
        DataOutputSerializer output = context.output();
        elementSerializer.serialize(newValue.get(0), output);
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
        DataOutputSerializer output = context.output();
        migrate(value, output, elements(previous), elements(current), time);
        context.engine.groupPut(row, prefixLength, output);
    }

    @SuppressWarnings("unchecked")
    private static <E> TtlAwareSerializer<E, ?> elements(TtlAwareSerializer<List<E>, ?> list) {
        return ((TtlAwareSerializer.TtlAwareListSerializer<E>) list).getElementSerializer();
    }
}
