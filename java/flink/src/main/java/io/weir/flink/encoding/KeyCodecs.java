package io.weir.flink.encoding;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.BooleanSerializer;
import org.apache.flink.api.common.typeutils.base.ByteSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.ShortSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.typeutils.runtime.TupleSerializer;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerSerializer;

import java.util.List;

/**
 * Chooses the columns of a key by its serializer: integers, booleans, strings and flat tuples of
 * them become typed columns, as do the {@code RowData} keys of SQL; anything else is one Binary
 * column of the serializer's bytes.
 */
public final class KeyCodecs {

    private static final String ROW_DATA_SERIALIZER =
            "org.apache.flink.table.runtime.typeutils.RowDataSerializer";

    private KeyCodecs() {}

    /** The codec of the current key. */
    public static <T> KeyCodec<T> forKey(TypeSerializer<T> serializer) {
        if (isRowData(serializer)) {
            KeyCodec<T> typed = rowData(serializer);
            if (typed != null) {
                return typed;
            }
        }
        return forUserKey(serializer);
    }

    /**
     * The codec of a map's user key. {@code RowData} is one Binary column here: unlike a current
     * key, it may carry any row kind, which columns would not tell apart.
     */
    public static <T> KeyCodec<T> forUserKey(TypeSerializer<T> serializer) {
        KeyCodec<T> column = column(serializer);
        if (column != null) {
            return column;
        }
        if (serializer instanceof TupleSerializer) {
            KeyCodec<T> tuple = tuple((TupleSerializer<?>) serializer);
            if (tuple != null) {
                return tuple;
            }
        }
        return new SerializerCodec<>(serializer);
    }

    /** The codec of a namespace; the void namespace has no columns. */
    public static <T> KeyCodec<T> forNamespace(TypeSerializer<T> serializer) {
        return serializer instanceof VoidNamespaceSerializer
                ? cast(new VoidCodec())
                : forUserKey(serializer);
    }

    /**
     * The codec of an element of a queue: of a timer its columns, of anything else the bytes of its
     * serializer, which Flink demands to order as the elements do.
     */
    public static <T> KeyCodec<T> forElement(TypeSerializer<T> serializer) {
        return serializer instanceof TimerSerializer
                ? cast(timer((TimerSerializer<?, ?>) serializer))
                : new SerializerCodec<>(serializer);
    }

    private static <K, N> KeyCodec<?> timer(TimerSerializer<K, N> serializer) {
        return new TimerCodec<>(
                forKey(serializer.getKeySerializer()),
                forNamespace(serializer.getNamespaceSerializer()));
    }

    private static <T> KeyCodec<T> column(TypeSerializer<T> serializer) {
        if (serializer instanceof LongSerializer) {
            return cast(new ColumnCodecs.LongCodec());
        }
        if (serializer instanceof IntSerializer) {
            return cast(new ColumnCodecs.IntCodec());
        }
        if (serializer instanceof ShortSerializer) {
            return cast(new ColumnCodecs.ShortCodec());
        }
        if (serializer instanceof ByteSerializer) {
            return cast(new ColumnCodecs.ByteCodec());
        }
        if (serializer instanceof BooleanSerializer) {
            return cast(new ColumnCodecs.BooleanCodec());
        }
        if (serializer instanceof StringSerializer) {
            return cast(new ColumnCodecs.StringCodec());
        }
        return null;
    }

    private static <T> KeyCodec<T> tuple(TupleSerializer<?> serializer) {
        // A subclass of a tuple may have fields of its own.
        if (!serializer
                .getTupleClass()
                .getName()
                .matches("org\\.apache\\.flink\\.api\\.java\\.tuple\\.Tuple\\d+")) {
            return null;
        }
        TypeSerializer<?>[] fields = serializer.getFieldSerializers();
        KeyCodec<?>[] columns = new KeyCodec<?>[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = column(fields[i]);
            if (columns[i] == null) {
                return null;
            }
        }
        if (columns.length == 0) {
            return null;
        }
        return cast(new TupleCodec<>(asTuple(serializer), List.of(columns)));
    }

    @SuppressWarnings("unchecked")
    private static TupleSerializer<Tuple> asTuple(TupleSerializer<?> serializer) {
        return (TupleSerializer<Tuple>) serializer;
    }

    /**
     * By name, since a job without SQL has no table runtime; and only where this class sees the
     * same one as the job.
     */
    private static boolean isRowData(TypeSerializer<?> serializer) {
        if (!serializer.getClass().getName().equals(ROW_DATA_SERIALIZER)) {
            return false;
        }
        try {
            ClassLoader own = KeyCodecs.class.getClassLoader();
            return Class.forName(ROW_DATA_SERIALIZER, false, own) == serializer.getClass();
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    /** Null where a field has no typed column. */
    private static <T> KeyCodec<T> rowData(TypeSerializer<T> serializer) {
        return cast(RowDataCodec.create(serializer));
    }

    @SuppressWarnings("unchecked")
    private static <T> KeyCodec<T> cast(KeyCodec<?> codec) {
        return (KeyCodec<T>) codec;
    }
}
