package io.weir.flink.state;

import io.weir.flink.errors.CorruptStateException;

import org.apache.flink.core.memory.DataOutputSerializer;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * Walks over the elements in the value of a list's row: {@code [length][element]} each, lengths as
 * big-endian i32. The engine writes them so when it appends.
 */
public final class ListElements {

    private static final VarHandle LENGTHS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);

    private final byte[] array;
    private final int end;
    private int offset;
    private int next;

    /**
     * @param array is read while this walks
     */
    public ListElements(byte[] array, int offset, int length) {
        this.array = array;
        this.next = offset;
        this.end = offset + length;
    }

    /** Moves on to the next element; false behind the last one. */
    public boolean next() throws CorruptStateException {
        if (next == end) {
            return false;
        }
        int length = end - next < Integer.BYTES ? -1 : (int) LENGTHS.get(array, next);
        offset = next + Integer.BYTES;
        if (length < 0 || length > end - offset) {
            throw new CorruptStateException(
                    String.format(
                            "A list's row is damaged: %d bytes before its end stands no length of"
                                    + " an element. Restore an older checkpoint.",
                            end - next));
        }
        next = offset + length;
        return true;
    }

    byte[] array() {
        return array;
    }

    public int offset() {
        return offset;
    }

    public int length() {
        return next - offset;
    }

    /** Of how many elements the value is if all are as long as the current one, the first. */
    int guessedCount() {
        return 1 + (end - next) / (Integer.BYTES + length());
    }

    /** Appends an element to the value of a row. */
    static void write(ElementWriter element, DataOutputSerializer output) throws IOException {
        int at = output.length();
        output.writeInt(0);
        element.writeTo(output);
        output.writeIntUnsafe(output.length() - at - Integer.BYTES, at);
    }

    /** Writes an element's bytes. */
    interface ElementWriter {
        void writeTo(DataOutputSerializer output) throws IOException;
    }
}
