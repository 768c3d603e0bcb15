package io.weir.flink.encoding;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * A growing buffer in which the key of a row is written, column after column, in arrow-row's
 * encoding with its default options (ascending, nulls first).
 *
 * <p>Layout of a row key: {@code [key group u16 BE][state id u32 BE][key][namespace][user key |
 * sequence]}. Fixed-width columns are a marker byte (0 null, 1 valid) and the big-endian bytes with
 * the sign bit flipped; variable-width columns are cut into blocks, each followed by 0xFF or, in
 * the last one, by the number of its valid bytes.
 *
 * <p>Source of the encoding: crate {@code arrow-row}, module {@code variable} and {@code fixed}.
 */
public final class RowKey {

    /** Bytes before the key: key group and state id. */
    public static final int HEADER_BYTES = 6;

    static final byte NULL = 0;
    static final byte VALID = 1;
    static final byte EMPTY = 1;
    static final byte NON_EMPTY = 2;
    static final byte CONTINUES = (byte) 0xFF;
    static final int BLOCK = 32;
    static final int MINI_BLOCK = 8;

    private static final int STATE_ID_AT = 2;

    private static final VarHandle SHORTS =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle INTS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

    private byte[] bytes;
    private int length;

    public RowKey() {
        bytes = new byte[128];
    }

    /** The buffer, of which the first {@link #length} bytes count; replaced when it grows. */
    public byte[] bytes() {
        return bytes;
    }

    public int length() {
        return length;
    }

    /** Cuts the key back to what was written when {@link #length} was {@code length}. */
    public void truncate(int length) {
        this.length = length;
    }

    public void clear() {
        length = 0;
    }

    public byte[] toByteArray() {
        return Arrays.copyOf(bytes, length);
    }

    /** Starts a new row key; the state id is written later, by {@link #setStateId}. */
    public void start(int keyGroup) {
        SHORTS.set(bytes, 0, (short) keyGroup);
        length = HEADER_BYTES;
    }

    public void setStateId(int stateId) {
        INTS.set(bytes, STATE_ID_AT, stateId);
    }

    public static int keyGroup(byte[] row) {
        return ((short) SHORTS.get(row, 0)) & 0xFFFF;
    }

    public void append(byte[] source, int offset, int count) {
        reserve(count);
        System.arraycopy(source, offset, bytes, length, count);
        length += count;
    }

    public void set(byte[] source, int offset, int count) {
        length = 0;
        append(source, offset, count);
    }

    void reserve(int more) {
        int needed = Math.addExact(length, more);
        if (needed > bytes.length) {
            bytes =
                    Arrays.copyOf(
                            bytes,
                            Math.max(
                                    needed,
                                    (int) Math.min(bytes.length * 2L, Integer.MAX_VALUE - 8)));
        }
    }

    public void writeLong(long value) {
        reserve(1 + Long.BYTES);
        bytes[length] = VALID;
        LONGS.set(bytes, length + 1, value ^ Long.MIN_VALUE);
        length += 1 + Long.BYTES;
    }

    public void writeInt(int value) {
        reserve(1 + Integer.BYTES);
        bytes[length] = VALID;
        INTS.set(bytes, length + 1, value ^ Integer.MIN_VALUE);
        length += 1 + Integer.BYTES;
    }

    public void writeShort(short value) {
        reserve(1 + Short.BYTES);
        bytes[length] = VALID;
        SHORTS.set(bytes, length + 1, (short) (value ^ Short.MIN_VALUE));
        length += 1 + Short.BYTES;
    }

    public void writeByte(byte value) {
        reserve(1 + Byte.BYTES);
        bytes[length] = VALID;
        bytes[length + 1] = (byte) (value ^ Byte.MIN_VALUE);
        length += 1 + Byte.BYTES;
    }

    public void writeBoolean(boolean value) {
        reserve(2);
        bytes[length] = VALID;
        bytes[length + 1] = (byte) (value ? 1 : 0);
        length += 2;
    }

    /** A null in a column of {@code width} bytes a value. */
    public void writeFixedNull(int width) {
        reserve(1 + width);
        Arrays.fill(bytes, length, length + 1 + width, (byte) 0);
        length += 1 + width;
    }

    public void writeVariableNull() {
        reserve(1);
        bytes[length++] = NULL;
    }

    /** Writes {@code count} bytes of {@code source} as one Binary (or Utf8) column. */
    public void writeVariable(byte[] source, int offset, int count) {
        if (count == 0) {
            reserve(1);
            bytes[length++] = EMPTY;
            return;
        }
        reserve(variableBytes(count));
        bytes[length++] = NON_EMPTY;
        int position = offset;
        int left = count;
        int block = MINI_BLOCK;
        while (true) {
            int taken = Math.min(block, left);
            System.arraycopy(source, position, bytes, length, taken);
            position += taken;
            left -= taken;
            if (left == 0) {
                Arrays.fill(bytes, length + taken, length + block, (byte) 0);
                bytes[length + block] = (byte) taken;
                length += block + 1;
                return;
            }
            bytes[length + block] = CONTINUES;
            length += block + 1;
            if (position - offset == BLOCK) {
                block = BLOCK;
            }
        }
    }

    private static int variableBytes(int count) {
        if (count <= BLOCK) {
            return 1 + (count + MINI_BLOCK - 1) / MINI_BLOCK * (MINI_BLOCK + 1);
        }
        long rest = (count - BLOCK + BLOCK - 1L) / BLOCK;
        return Math.toIntExact(1 + BLOCK / MINI_BLOCK * (MINI_BLOCK + 1) + rest * (BLOCK + 1));
    }
}
