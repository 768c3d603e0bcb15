package io.weir.bench;

import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.VarCharType;

import java.util.List;

/** A type of key or value: its serializer, and an object for every number. */
abstract class Data<T> {

    static final List<String> KEYS = List.of("long", "string", "rowdata");
    static final List<String> VALUES = List.of("long", "pojo", "rowdata");

    abstract TypeSerializer<T> serializer();

    /** An object that tells {@code i} apart. */
    abstract T of(long i);

    /** What of the object goes into the check sum. */
    abstract long sum(T object);

    /** Keys 0 to {@code count - 1} at hand, so that making them is not measured. */
    Data<T> prepared(int count) {
        Data<T> plain = this;
        Object[] objects = new Object[count];
        for (int i = 0; i < count; i++) {
            objects[i] = plain.of(i);
        }
        return new Data<T>() {
            @Override
            TypeSerializer<T> serializer() {
                return plain.serializer();
            }

            @Override
            @SuppressWarnings("unchecked")
            T of(long i) {
                return i < objects.length ? (T) objects[(int) i] : plain.of(i);
            }

            @Override
            long sum(T object) {
                return plain.sum(object);
            }
        };
    }

    static Data<?> named(String name) {
        switch (name) {
            case "long":
                return new Longs();
            case "string":
                return new Strings();
            case "pojo":
                return new Pojos();
            case "rowdata":
                return new Rows();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static final class Longs extends Data<Long> {
        @Override
        TypeSerializer<Long> serializer() {
            return LongSerializer.INSTANCE;
        }

        @Override
        Long of(long i) {
            return i;
        }

        @Override
        Data<Long> prepared(int count) {
            return this;
        }

        @Override
        long sum(Long object) {
            return object;
        }
    }

    /** Of 15 characters. */
    private static final class Strings extends Data<String> {
        @Override
        TypeSerializer<String> serializer() {
            return StringSerializer.INSTANCE;
        }

        @Override
        String of(long i) {
            return "customer" + (1_000_000 + i);
        }

        @Override
        long sum(String object) {
            return object.hashCode();
        }
    }

    /** An order's totals. */
    public static final class Totals {
        public long id;
        public int count;
        public double sum;
        public String last;
    }

    private static final class Pojos extends Data<Totals> {
        private final TypeSerializer<Totals> serializer =
                TypeInformation.of(Totals.class).createSerializer(new SerializerConfigImpl());

        @Override
        TypeSerializer<Totals> serializer() {
            return serializer;
        }

        @Override
        Totals of(long i) {
            Totals totals = new Totals();
            totals.id = i;
            totals.count = (int) i & 0xFFFF;
            totals.sum = i * 0.25;
            totals.last = (i & 1) == 0 ? "delivered" : "on its way";
            return totals;
        }

        @Override
        long sum(Totals object) {
            return object.id * 31
                    + object.count
                    + Double.doubleToLongBits(object.sum)
                    + object.last.length();
        }
    }

    /** BIGINT, INT, DOUBLE and VARCHAR; as a key BIGINT and VARCHAR. */
    private static final class Rows extends Data<RowData> {
        private final RowDataSerializer serializer =
                new RowDataSerializer(
                        new BigIntType(),
                        new IntType(),
                        new DoubleType(),
                        new VarCharType(VarCharType.MAX_LENGTH));
        private final StringData[] texts = {
            StringData.fromString("delivered"), StringData.fromString("on its way")
        };

        @Override
        TypeSerializer<RowData> serializer() {
            return serializer;
        }

        @Override
        RowData of(long i) {
            return GenericRowData.of(i, (int) i & 0xFFFF, i * 0.25, texts[(int) i & 1]);
        }

        @Override
        Data<RowData> prepared(int count) {
            return new KeyRows().prepared(count);
        }

        @Override
        long sum(RowData row) {
            return row.getLong(0) * 31
                    + row.getInt(1)
                    + Double.doubleToLongBits(row.getDouble(2))
                    + row.getString(3).toString().length();
        }
    }

    /** Binary rows, as SQL's key selectors make them. */
    private static final class KeyRows extends Data<RowData> {
        private final RowDataSerializer serializer =
                new RowDataSerializer(new BigIntType(), new VarCharType(VarCharType.MAX_LENGTH));

        @Override
        TypeSerializer<RowData> serializer() {
            return serializer;
        }

        @Override
        RowData of(long i) {
            return serializer
                    .toBinaryRow(GenericRowData.of(i, StringData.fromString("region" + (i % 100))))
                    .copy();
        }

        @Override
        long sum(RowData row) {
            return row.getLong(0);
        }
    }
}
