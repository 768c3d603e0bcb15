package io.weir.flink.nativelib;

import org.apache.flink.core.memory.MemoryUtils;

import java.util.Arrays;

/** A reusable array that answers of the engine are copied to. */
public final class Bytes {

    static final long ARRAY_BASE = MemoryUtils.UNSAFE.arrayBaseOffset(byte[].class);

    private static final int KEPT = 1 << 20;

    private byte[] array;
    private int length;

    /**
     * @param initial bytes to hold without growing
     */
    public Bytes(int initial) {
        array = new byte[initial];
    }

    public byte[] array() {
        return array;
    }

    public int length() {
        return length;
    }

    public byte[] toByteArray() {
        return Arrays.copyOf(array, length);
    }

    void clear() {
        length = 0;
    }

    void copyFrom(byte[] source, int offset) {
        length = source.length - offset;
        if (length > array.length) {
            array = new byte[length];
        }
        System.arraycopy(source, offset, array, 0, length);
    }

    void copyFrom(long address, long count) {
        length = Math.toIntExact(count);
        if (length > array.length) {
            array = new byte[Math.max(length, (int) Math.min(array.length * 2L, KEPT))];
        } else if (array.length > KEPT && length < KEPT / 2) {
            array = new byte[KEPT / 2];
        }
        MemoryUtils.UNSAFE.copyMemory(null, address, array, ARRAY_BASE, length);
    }
}
