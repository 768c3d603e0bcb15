package io.weir.flink.encoding;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.data.writer.BinaryRowWriter;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.types.RowKind;

import java.lang.reflect.Field;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The key of a SQL operator: one column a field. What is read back is a {@code BinaryRowData} with
 * the same bytes, and so the same hash, as the one that was written. Used only where Flink's table
 * runtime is on the class path.
 */
final class RowDataCodec implements KeyCodec<RowData> {

    private final LogicalTypeRoot[] fields;

    private RowDataCodec(LogicalTypeRoot[] fields) {
        this.fields = fields;
    }

    /** Null if a field has no typed column, or this Flink's serializer does not show its types. */
    static RowDataCodec create(TypeSerializer<?> serializer) {
        LogicalType[] types;
        try {
            Field declared = RowDataSerializer.class.getDeclaredField("types");
            declared.setAccessible(true);
            types = (LogicalType[]) declared.get(serializer);
        } catch (ReflectiveOperationException | RuntimeException e) {
            return null;
        }
        LogicalTypeRoot[] fields =
                Stream.of(types).map(LogicalType::getTypeRoot).toArray(LogicalTypeRoot[]::new);
        boolean typed =
                fields.length > 0 && Stream.of(fields).allMatch(field -> column(field) != null);
        return typed ? new RowDataCodec(fields) : null;
    }

    private static String column(LogicalTypeRoot field) {
        switch (field) {
            case BIGINT:
                return "int64";
            case INTEGER:
                return "int32";
            case SMALLINT:
                return "int16";
            case TINYINT:
                return "int8";
            case BOOLEAN:
                return "boolean";
            case CHAR:
            case VARCHAR:
                return "utf8";
            default:
                return null;
        }
    }

    private static int width(LogicalTypeRoot field) {
        switch (field) {
            case BIGINT:
                return Long.BYTES;
            case INTEGER:
                return Integer.BYTES;
            case SMALLINT:
                return Short.BYTES;
            default:
                return Byte.BYTES;
        }
    }

    private static boolean isString(LogicalTypeRoot field) {
        return field == LogicalTypeRoot.CHAR || field == LogicalTypeRoot.VARCHAR;
    }

    @Override
    public String id() {
        return Stream.of(fields)
                .map(RowDataCodec::column)
                .collect(Collectors.joining(",", "row(", ")"));
    }

    @Override
    public void write(RowData value, RowKey target) {
        if (value.getRowKind() != RowKind.INSERT) {
            throw new IllegalArgumentException(
                    "A key is a row of kind "
                            + value.getRowKind()
                            + "; keys have to be of kind INSERT.");
        }
        for (int i = 0; i < fields.length; i++) {
            LogicalTypeRoot field = fields[i];
            if (isString(field)) {
                if (value.isNullAt(i)) {
                    target.writeVariableNull();
                } else {
                    byte[] utf8 = value.getString(i).toBytes();
                    target.writeVariable(utf8, 0, utf8.length);
                }
            } else if (value.isNullAt(i)) {
                target.writeFixedNull(width(field));
            } else {
                switch (field) {
                    case BIGINT:
                        target.writeLong(value.getLong(i));
                        break;
                    case INTEGER:
                        target.writeInt(value.getInt(i));
                        break;
                    case SMALLINT:
                        target.writeShort(value.getShort(i));
                        break;
                    case TINYINT:
                        target.writeByte(value.getByte(i));
                        break;
                    default:
                        target.writeBoolean(value.getBoolean(i));
                }
            }
        }
    }

    @Override
    public RowData read(RowKeyReader source) {
        BinaryRowData row = new BinaryRowData(fields.length);
        BinaryRowWriter writer = new BinaryRowWriter(row);
        for (int i = 0; i < fields.length; i++) {
            LogicalTypeRoot field = fields[i];
            if (isString(field)) {
                int length = source.readVariable();
                if (length < 0) {
                    writer.setNullAt(i);
                } else {
                    writer.writeString(i, BinaryStringData.fromBytes(source.variable(), 0, length));
                }
            } else if (source.isNull()) {
                source.skipFixed(width(field));
                writer.setNullAt(i);
            } else {
                switch (field) {
                    case BIGINT:
                        writer.writeLong(i, source.readLong());
                        break;
                    case INTEGER:
                        writer.writeInt(i, source.readInt());
                        break;
                    case SMALLINT:
                        writer.writeShort(i, source.readShort());
                        break;
                    case TINYINT:
                        writer.writeByte(i, source.readByte());
                        break;
                    default:
                        writer.writeBoolean(i, source.readBoolean());
                }
            }
        }
        writer.complete();
        return row;
    }

    @Override
    public void skip(RowKeyReader source) {
        for (LogicalTypeRoot field : fields) {
            if (isString(field)) {
                source.readVariable();
            } else {
                source.skipFixed(width(field));
            }
        }
    }
}
