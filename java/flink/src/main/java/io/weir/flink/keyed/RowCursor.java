package io.weir.flink.keyed;

import io.weir.flink.nativelib.Bytes;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.runtime.state.KeyGroupRange;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Walks over all rows of one state in the order of their keys, page by page. It is a position, not
 * a snapshot: the state may change on the way, and a row that comes or goes behind the position
 * changes nothing.
 */
public final class RowCursor {

    private static final int FIRST_PAGE_BYTES = 16 << 10;
    private static final int MAX_PAGE_BYTES = 256 << 10;
    private static final byte BEHIND_EVERY_COLUMN = (byte) 0xFF;

    private final Engine engine;
    private final int stateId;
    private final int lastKeyGroup;
    private final Bytes page = new Bytes(FIRST_PAGE_BYTES);
    private int pageBytes = FIRST_PAGE_BYTES;
    private int keyGroup;
    private byte[] prefix;
    private byte[] after;
    private boolean more = true;
    private int position;

    private int keyOffset;
    private int keyEnd;
    private int valueEnd;

    public RowCursor(Engine engine, KeyGroupRange range, int stateId) {
        this(engine, range.getStartKeyGroup(), range.getEndKeyGroup(), stateId);
    }

    /** Over the key groups {@code first} to {@code last}, both inclusive. */
    public RowCursor(Engine engine, int first, int last, int stateId) {
        this.engine = engine;
        this.stateId = stateId;
        this.keyGroup = first;
        this.lastKeyGroup = last;
        this.prefix = prefix();
    }

    private byte[] prefix() {
        return ByteBuffer.allocate(6).putShort((short) keyGroup).putInt(stateId).array();
    }

    /** Moves on to the next row; false behind the last one. */
    public boolean next() throws IOException {
        while (position >= page.length()) {
            if (!more) {
                if (keyGroup >= lastKeyGroup) {
                    return false;
                }
                keyGroup++;
                prefix = prefix();
                after = null;
            }
            more = engine.rowPage(prefix, after, after == null ? 0 : after.length, pageBytes, page);
            pageBytes = more ? Math.min(pageBytes * 2, MAX_PAGE_BYTES) : FIRST_PAGE_BYTES;
            position = 0;
            if (page.length() > 0) {
                after = lastKey();
            }
        }
        ByteBuffer header = ByteBuffer.wrap(page.array()).order(ByteOrder.LITTLE_ENDIAN);
        int keyLength = header.getInt(position);
        int valueLength = header.getInt(position + 4);
        keyOffset = position + 8;
        keyEnd = keyOffset + keyLength;
        valueEnd = keyEnd + valueLength;
        position = valueEnd;
        return true;
    }

    private byte[] lastKey() {
        ByteBuffer header = ByteBuffer.wrap(page.array()).order(ByteOrder.LITTLE_ENDIAN);
        int at = 0;
        while (true) {
            int keyLength = header.getInt(at);
            int end = at + 8 + keyLength + header.getInt(at + 4);
            if (end >= page.length()) {
                return Arrays.copyOfRange(page.array(), at + 8, at + 8 + keyLength);
            }
            at = end;
        }
    }

    /**
     * Goes on behind every row that shares the first {@code prefixLength} bytes of the current
     * row's key. Does not read what it skips beyond the page.
     */
    public void skip(int prefixLength) throws IOException {
        byte[] skipped = Arrays.copyOfRange(page.array(), keyOffset, keyOffset + prefixLength);
        ByteBuffer header = ByteBuffer.wrap(page.array()).order(ByteOrder.LITTLE_ENDIAN);
        while (position < page.length()) {
            int keyLength = header.getInt(position);
            int key = position + 8;
            if (keyLength < prefixLength
                    || !Arrays.equals(
                            page.array(), key, key + prefixLength, skipped, 0, prefixLength)) {
                return;
            }
            position = key + keyLength + header.getInt(position + 4);
        }
        if (more) {
            // Columns begin with 0, 1 or 2, so no row under the prefix lies behind this and no
            // other prefix before it.
            after = Arrays.copyOf(skipped, prefixLength + 1);
            after[prefixLength] = BEHIND_EVERY_COLUMN;
        }
    }

    /** The array that holds the current row, valid until {@link #next}. */
    public byte[] array() {
        return page.array();
    }

    public int keyOffset() {
        return keyOffset;
    }

    public int keyEnd() {
        return keyEnd;
    }

    public int valueOffset() {
        return keyEnd;
    }

    public int valueLength() {
        return valueEnd - keyEnd;
    }

    public byte[] key() {
        return Arrays.copyOfRange(page.array(), keyOffset, keyEnd);
    }
}
