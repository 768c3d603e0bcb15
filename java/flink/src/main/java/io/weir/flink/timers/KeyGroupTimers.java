package io.weir.flink.timers;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The first timers of one key group, as the suffixes of their rows, in order.
 *
 * <p>Every timer up to the {@link #bound} is here; behind it the engine has the others, or none if
 * the key group is {@link #complete}. So the bound is also where the next page begins: no row of a
 * timer that has fired is ever walked over.
 */
final class KeyGroupTimers<T> {

    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final byte[][] NONE = {};

    final int keyGroup;

    /** Place in the queue's heap; -1 without a timer. */
    int heapIndex = -1;

    /** How many timers the next page is to have. */
    int pageRows;

    /** The first timer, once somebody has asked for it. */
    T head;

    private byte[][] suffixes = NONE;
    private int from;
    private int to;
    private long bytes;
    private byte[] bound;
    private boolean complete;

    /**
     * @param complete whether the engine has no timer of this key group
     */
    KeyGroupTimers(int keyGroup, boolean complete, int pageRows) {
        this.keyGroup = keyGroup;
        this.complete = complete;
        this.pageRows = pageRows;
    }

    boolean isEmpty() {
        return from == to;
    }

    int size() {
        return to - from;
    }

    /** Whether the engine has no timers beside these. */
    boolean isComplete() {
        return complete;
    }

    /** Null if nothing has been read yet. */
    byte[] bound() {
        return bound;
    }

    byte[] first() {
        return suffixes[from];
    }

    /**
     * Grows with the first suffix, not always strictly: the eight bytes behind the first column's
     * marker, which of a timer are its timestamp. A suffix shorter than that is an empty column,
     * the least of all.
     */
    long order() {
        byte[] suffix = suffixes[from];
        return suffix.length <= Long.BYTES
                ? Long.MIN_VALUE
                : (long) LONGS.get(suffix, 1) ^ Long.MIN_VALUE;
    }

    /** Null if there is none. */
    byte[] last() {
        return from == to ? null : suffixes[to - 1];
    }

    byte[][] toArray() {
        return Arrays.copyOfRange(suffixes, from, to);
    }

    /** Whether a timer with this suffix would be here. */
    boolean covers(byte[] row, int offset, int end) {
        return complete
                || bound != null
                        && Arrays.compareUnsigned(row, offset, end, bound, 0, bound.length) <= 0;
    }

    /**
     * Where the suffix is, from 0 for the first timer, or {@code -(where it belongs) - 1} as with
     * {@link Arrays#binarySearch}.
     */
    int find(byte[] row, int offset, int end) {
        int low = from;
        int high = to - 1;
        while (low <= high) {
            int middle = (low + high) >>> 1;
            byte[] suffix = suffixes[middle];
            int order = Arrays.compareUnsigned(suffix, 0, suffix.length, row, offset, end);
            if (order < 0) {
                low = middle + 1;
            } else if (order > 0) {
                high = middle - 1;
            } else {
                return middle - from;
            }
        }
        return -(low - from) - 1;
    }

    void insert(int position, byte[] suffix) {
        bytes += suffix.length;
        if (position == 0) {
            head = null;
            if (from > 0) {
                suffixes[--from] = suffix;
                return;
            }
        }
        if (to == suffixes.length) {
            makeRoom();
        }
        int at = from + position;
        System.arraycopy(suffixes, at, suffixes, at + 1, to - at);
        suffixes[at] = suffix;
        to++;
    }

    /** Adds a timer behind all others. */
    void append(byte[] suffix) {
        insert(size(), suffix);
    }

    private void makeRoom() {
        int size = size();
        byte[][] target = suffixes;
        if (size > suffixes.length / 2 || suffixes.length == 0) {
            target = new byte[Math.max(4, size * 2)][];
        }
        System.arraycopy(suffixes, from, target, 0, size);
        if (target == suffixes) {
            Arrays.fill(suffixes, size, to, null);
        }
        suffixes = target;
        from = 0;
        to = size;
    }

    void remove(int position) {
        int at = from + position;
        bytes -= suffixes[at].length;
        if (position == 0) {
            head = null;
            suffixes[from++] = null;
        } else {
            System.arraycopy(suffixes, at + 1, suffixes, at, to - at - 1);
            suffixes[--to] = null;
        }
        if (from == to) {
            from = 0;
            to = 0;
            if (suffixes.length > 16) {
                suffixes = NONE;
            }
        }
    }

    /** Leaves the last timers to the engine until there are few enough, but never all of them. */
    void shrinkTo(int maxRows, long maxBytes) {
        while (size() > 1 && (size() > maxRows || bytes > maxBytes)) {
            bytes -= suffixes[--to].length;
            suffixes[to] = null;
            bound = suffixes[to - 1];
            complete = false;
        }
    }

    /**
     * Ends a page.
     *
     * @param reached the last suffix that was read; null if there was none
     * @param whole whether the engine has none behind it
     */
    void pageRead(byte[] reached, boolean whole) {
        if (reached != null) {
            bound = reached;
        }
        complete = whole;
    }
}
