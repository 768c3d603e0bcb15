package io.weir.flink.state;

import io.weir.flink.encoding.RowKey;
import io.weir.flink.nativelib.Bytes;
import io.weir.flink.nativelib.Engine;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Walks over the entries of one map or list in the order of their suffixes, page by page; a
 * position, as {@link io.weir.flink.keyed.RowCursor} is.
 */
public final class GroupCursor {

    private static final VarHandle LENGTHS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

    private static final int FIRST_PAGE_BYTES = 4 << 10;
    private static final int MAX_PAGE_BYTES = 256 << 10;

    private final Engine engine;
    private final boolean visiting;
    private final RowKey key = new RowKey();
    private final int prefixLength;
    private final Bytes page = new Bytes(0);
    private int pageBytes = FIRST_PAGE_BYTES;
    private int position;
    private boolean startsBehind;
    private boolean started;
    private boolean more = true;

    private int suffixOffset;
    private int suffixEnd;
    private int valueEnd;

    /**
     * For the task thread.
     *
     * @param prefix key group, state, key and namespace; copied
     */
    GroupCursor(Engine engine, RowKey prefix) {
        this(engine, prefix, false);
    }

    /**
     * For the task thread, over the entries behind a suffix.
     *
     * @param prefix copied
     * @param after null for all entries
     */
    public GroupCursor(Engine engine, RowKey prefix, byte[] after) {
        this(engine, prefix, false);
        if (after != null) {
            key.append(after, 0, after.length);
            startsBehind = true;
        }
    }

    /** For any thread. */
    static GroupCursor visiting(Engine engine, RowKey prefix) {
        return new GroupCursor(engine, prefix, true);
    }

    private GroupCursor(Engine engine, RowKey prefix, boolean visiting) {
        this.visiting = visiting;
        this.engine = engine;
        this.prefixLength = prefix.length();
        key.set(prefix.bytes(), 0, prefixLength);
    }

    /** Moves on to the next entry; false behind the last one. */
    public boolean next() throws IOException {
        while (position >= page.length()) {
            if (!more) {
                return false;
            }
            if (started) {
                key.truncate(prefixLength);
                key.append(page.array(), suffixOffset, suffixEnd - suffixOffset);
            }
            boolean fromStart = !started && !startsBehind;
            // Entries may still be read from the last page.
            page.detach();
            more =
                    visiting
                            ? visitPage()
                            : engine.groupPage(key, prefixLength, fromStart, pageBytes, page);
            pageBytes = Math.min(pageBytes * 4, MAX_PAGE_BYTES);
            position = 0;
            if (page.length() == 0) {
                if (more) {
                    throw new IllegalStateException(
                            "The engine answered an empty page although entries are left.");
                }
                return false;
            }
            started = true;
        }
        int suffixLength = length(page.array(), position);
        int valueLength = length(page.array(), position + 4);
        suffixOffset = position + 8;
        suffixEnd = suffixOffset + suffixLength;
        valueEnd = suffixEnd + valueLength;
        position = valueEnd;
        return true;
    }

    private boolean visitPage() throws IOException {
        byte[] prefix = Arrays.copyOf(key.bytes(), prefixLength);
        byte[] after = started ? Arrays.copyOfRange(key.bytes(), prefixLength, key.length()) : null;
        return engine.visitGroupPage(prefix, after, pageBytes, page);
    }

    /** A length as the engine writes it. */
    static int length(byte[] array, int at) {
        return (int) LENGTHS.get(array, at);
    }

    /** Holds the current entry; what was handed out before stays as it is. */
    public byte[] array() {
        return page.array();
    }

    public int suffixOffset() {
        return suffixOffset;
    }

    public int suffixEnd() {
        return suffixEnd;
    }

    int valueOffset() {
        return suffixEnd;
    }

    int valueLength() {
        return valueEnd - suffixEnd;
    }
}
