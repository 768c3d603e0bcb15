package io.weir.flink.encoding;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Reads the columns that {@link RowKey} writes. The bytes were written by Weir: a bad marker is an
 * exception.
 */
public final class RowKeyReader {

    private static final VarHandle SHORTS =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle INTS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);

    private byte[] row = {};
    private int position;
    private int end;
    private byte[] variable = new byte[64];
    private int variableLength;

    public void reset(byte[] row, int offset, int end) {
        this.row = row;
        this.position = offset;
        this.end = end;
    }

    public int position() {
        return position;
    }

    /** Whether the next column holds a null; does not move on. */
    boolean isNull() {
        return marker(position) == RowKey.NULL;
    }

    void skipFixed(int width) {
        need(1 + width);
        position += 1 + width;
    }

    long readLong() {
        need(1 + Long.BYTES);
        long value = (long) LONGS.get(row, position + 1) ^ Long.MIN_VALUE;
        position += 1 + Long.BYTES;
        return value;
    }

    int readInt() {
        need(1 + Integer.BYTES);
        int value = (int) INTS.get(row, position + 1) ^ Integer.MIN_VALUE;
        position += 1 + Integer.BYTES;
        return value;
    }

    short readShort() {
        need(1 + Short.BYTES);
        short value = (short) ((short) SHORTS.get(row, position + 1) ^ Short.MIN_VALUE);
        position += 1 + Short.BYTES;
        return value;
    }

    byte readByte() {
        need(2);
        byte value = (byte) (row[position + 1] ^ Byte.MIN_VALUE);
        position += 2;
        return value;
    }

    boolean readBoolean() {
        need(2);
        boolean value = row[position + 1] != 0;
        position += 2;
        return value;
    }

    /**
     * Reads a variable-width column into {@link #variable}.
     *
     * @return its length, or -1 for null
     */
    int readVariable() {
        variableLength = 0;
        byte marker = marker(position);
        position++;
        if (marker == RowKey.NULL) {
            return -1;
        }
        if (marker == RowKey.EMPTY) {
            return 0;
        }
        if (marker != RowKey.NON_EMPTY) {
            throw damaged();
        }
        int block = RowKey.MINI_BLOCK;
        while (true) {
            need(block + 1);
            int valid = row[position + block] & 0xFF;
            boolean continues = valid == 0xFF;
            int taken = continues ? block : valid;
            if (taken > block || taken == 0) {
                throw damaged();
            }
            if (variableLength + taken > variable.length) {
                variable =
                        Arrays.copyOf(
                                variable, Math.max(variable.length * 2, variableLength + taken));
            }
            System.arraycopy(row, position, variable, variableLength, taken);
            variableLength += taken;
            position += block + 1;
            if (!continues) {
                return variableLength;
            }
            if (variableLength == RowKey.BLOCK) {
                block = RowKey.BLOCK;
            }
        }
    }

    /** The bytes that {@link #readVariable} read last. */
    byte[] variable() {
        return variable;
    }

    private byte marker(int at) {
        need(1);
        return row[at];
    }

    private void need(int count) {
        if (end - position < count) {
            throw damaged();
        }
    }

    private IllegalStateException damaged() {
        return new IllegalStateException(
                "A row key does not have the columns that its state is registered with (at byte "
                        + position
                        + " of "
                        + end
                        + ").");
    }
}
