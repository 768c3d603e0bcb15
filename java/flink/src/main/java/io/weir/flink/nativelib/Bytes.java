package io.weir.flink.nativelib;

import org.apache.flink.core.memory.MemoryUtils;

import java.util.Arrays;

/** A reusable array that answers of the engine are copied to. */
public final class Bytes {

    static final long ARRAY_BASE = MemoryUtils.UNSAFE.arrayBaseOffset(byte[].class);

    /** Up to so many bytes are copied by a loop, which is compiled in place. */
    static final int SMALL = 64;

    private static final int KEPT = 1 << 20;

    private static final byte[] NOTHING = {};

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

    /** Leaves the array to whoever has it: the next bytes are copied to another. */
    public void detach() {
        array = NOTHING;
        length = 0;
    }

    void copyFrom(byte[] source, int offset) {
        length = source.length - offset;
        if (length > array.length) {
            array = new byte[length];
        }
        System.arraycopy(source, offset, array, 0, length);
    }

    /** Behind the bytes at {@code address} eight more may be read. */
    void copyFrom(long address, long count) {
        if (count <= SMALL && array.length >= SMALL && array.length <= KEPT) {
            length = (int) count;
            for (int at = 0; at < length; at += 8) {
                MemoryUtils.UNSAFE.putLong(
                        array, ARRAY_BASE + at, MemoryUtils.UNSAFE.getLong(address + at));
            }
            return;
        }
        length = Math.toIntExact(count);
        if (length > array.length) {
            array = new byte[Math.max(length, (int) Math.min(array.length * 2L, KEPT))];
        } else if (array.length > KEPT && length < KEPT / 2) {
            array = new byte[KEPT / 2];
        }
        MemoryUtils.UNSAFE.copyMemory(null, address, array, ARRAY_BASE, length);
    }
}
