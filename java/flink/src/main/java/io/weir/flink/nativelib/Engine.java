package io.weir.flink.nativelib;

import io.weir.flink.encoding.RowKey;
import io.weir.flink.errors.InvalidArgumentException;

import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.core.memory.MemoryUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Owns one native engine: an ordered map of rows, kept in the working set and in the store.
 *
 * <p>State operations, pages and {@link #freeze} belong to the task thread. {@link #awaitCommit},
 * {@link #abort}, {@link #checkpointComplete}, {@link #visit}, {@link #cancel}, {@link #stats} and
 * {@link #close} may come from any thread at any time; what comes after {@link #close} is a {@link
 * io.weir.flink.errors.BackendClosedException}, never a crash: the native shell and its scratch
 * memory live until this object is unreachable.
 *
 * <p>Ownership: the scratch region belongs to the native side and stays where {@link
 * NativeEngine#scratch} said until that is called again; an address that an operation returns is
 * valid until the next operation, so it is copied at once.
 */
public final class Engine implements Closeable {

    private static final Logger LOG = LoggerFactory.getLogger(Engine.class);

    private static final Cleaner CLEANER = Cleaner.create();

    private static final int OUT_LENGTH = 0;
    private static final int OUT_FLAGS = 8;
    private static final int INPUT = 16;
    private static final long MORE = 1;

    /** Input room above this is given back after the call that needed it. */
    private static final int ROOM_KEPT = 1 << 20;

    private static final int ROOM_FIRST = 4 << 10;

    /** Room behind the input, so that it can be copied eight bytes at a time. */
    private static final int BEHIND = 8;

    private final long handle;
    private long scratch;
    private int room;

    private Engine(long handle) throws IOException {
        this.handle = handle;
        CLEANER.register(this, new Free(handle));
        grow(ROOM_FIRST);
    }

    /**
     * Frees the native shell, and closes the engine first if nobody has; holds no reference to the
     * engine.
     */
    private static final class Free implements Runnable {
        private final long handle;

        Free(long handle) {
            this.handle = handle;
        }

        @Override
        public void run() {
            try {
                NativeEngine.free(handle);
            } catch (IOException e) {
                LOG.warn("A native engine could not be freed.", e);
            }
        }
    }

    /**
     * Opens a new branch.
     *
     * @param budget shared by the engines of a slot; stays open while the engine is
     * @param root URI of the store's directory
     * @param config keys and values in turn
     * @param branch {@code job/operator/subtask/attempt}
     * @param firstKeyGroup first key group of the backend
     * @param lastKeyGroup last key group of the backend, inclusive
     * @param sources disjoint versions to start from
     * @param restoredCheckpoint the checkpoint that the sources belong to, 0 without sources
     * @param nextSequence first sequence of new list elements
     */
    public static Engine open(
            NativeBudget budget,
            String root,
            List<String> config,
            String branch,
            int firstKeyGroup,
            int lastKeyGroup,
            List<Source> sources,
            long restoredCheckpoint,
            long nextSequence)
            throws IOException {
        String[] branches = sources.stream().map(source -> source.branch).toArray(String[]::new);
        String[] versions = sources.stream().map(source -> source.version).toArray(String[]::new);
        int[] ranges =
                sources.stream()
                        .flatMapToInt(
                                source -> IntStream.of(source.firstKeyGroup, source.lastKeyGroup))
                        .toArray();
        long handle =
                NativeEngine.open(
                        budget.handle(),
                        root,
                        config.toArray(new String[0]),
                        branch,
                        firstKeyGroup,
                        lastKeyGroup,
                        branches,
                        versions,
                        ranges,
                        restoredCheckpoint,
                        nextSequence);
        return new Engine(handle);
    }

    /** Gives back what a huge row needed; at the end of every operation. */
    private void settle() throws IOException {
        if (room > ROOM_KEPT) {
            grow(ROOM_FIRST);
        }
        Reference.reachabilityFence(this);
    }

    // ---------------- value rows

    /**
     * Reads the value of a row.
     *
     * @return false if there is no such row; {@code target} is then as before
     */
    public boolean get(RowKey key, Bytes target) throws IOException {
        try {
            int length = key.length();
            write(key.bytes(), length);
            long address = NativeEngine.get(handle, length);
            return answer(address, target);
        } finally {
            settle();
        }
    }

    public void put(RowKey key, DataOutputSerializer value) throws IOException {
        try {
            int length = key.length();
            int valueLength = value.length();
            write(key.bytes(), length, value.getSharedBuffer(), valueLength);
            NativeEngine.put(handle, length, valueLength);
        } finally {
            settle();
        }
    }

    public void delete(RowKey key) throws IOException {
        try {
            int length = key.length();
            write(key.bytes(), length);
            NativeEngine.delete(handle, length);
        } finally {
            settle();
        }
    }

    // ---------------- groups: maps and lists

    /**
     * Reads the value of the entry whose suffix follows {@code prefixLength} bytes of prefix in
     * {@code key}.
     */
    public boolean groupGet(RowKey key, int prefixLength, Bytes target) throws IOException {
        try {
            write(key.bytes(), key.length());
            long address = NativeEngine.groupGet(handle, prefixLength, key.length() - prefixLength);
            return answer(address, target);
        } finally {
            settle();
        }
    }

    public void groupPut(RowKey key, int prefixLength, DataOutputSerializer value)
            throws IOException {
        try {
            int valueLength = value.length();
            write(key.bytes(), key.length(), value.getSharedBuffer(), valueLength);
            NativeEngine.groupPut(handle, prefixLength, key.length() - prefixLength, valueLength);
        } finally {
            settle();
        }
    }

    public void groupDelete(RowKey key, int prefixLength) throws IOException {
        try {
            write(key.bytes(), key.length());
            NativeEngine.groupDelete(handle, prefixLength, key.length() - prefixLength);
        } finally {
            settle();
        }
    }

    public boolean groupContains(RowKey key, int prefixLength) throws IOException {
        try {
            write(key.bytes(), key.length());
            return NativeEngine.groupContains(handle, prefixLength, key.length() - prefixLength);
        } finally {
            settle();
        }
    }

    /** {@code key} is the prefix. */
    public boolean groupIsEmpty(RowKey key) throws IOException {
        try {
            write(key.bytes(), key.length());
            return NativeEngine.groupIsEmpty(handle, key.length());
        } finally {
            settle();
        }
    }

    /** {@code key} is the prefix. */
    public void groupClear(RowKey key) throws IOException {
        try {
            write(key.bytes(), key.length());
            NativeEngine.groupClear(handle, key.length());
        } finally {
            settle();
        }
    }

    /**
     * Appends an element behind all others; {@code key} is the prefix.
     *
     * <p>A row of a list holds elements as {@code [length][element]} each, lengths as big-endian
     * i32.
     */
    public void listAppend(RowKey key, DataOutputSerializer value) throws IOException {
        try {
            int length = key.length();
            int valueLength = value.length();
            write(key.bytes(), length, value.getSharedBuffer(), valueLength);
            NativeEngine.listAppend(handle, length, valueLength);
        } finally {
            settle();
        }
    }

    /**
     * Reads all elements of a list at once, if it is in memory and small.
     *
     * @param key the prefix
     * @param maxBytes of the elements with their lengths
     * @param elements receives the values of its rows, one behind the other
     * @return whether it is; if not, read it by pages
     */
    public boolean listElements(RowKey key, int maxBytes, Bytes elements) throws IOException {
        try {
            write(key.bytes(), key.length());
            return answer(NativeEngine.listElements(handle, key.length(), maxBytes), elements);
        } finally {
            settle();
        }
    }

    // ---------------- pages

    /**
     * Reads entries of a group in the order of their suffixes.
     *
     * @param key prefix, then the suffix to go on behind
     * @param fromStart no suffix is given
     * @param maxBytes the page ends behind the entry that reaches it
     * @param page receives entries of {@code [suffix length][value length][suffix][value]}, lengths
     *     as little-endian i32
     * @return whether entries are left
     */
    public boolean groupPage(
            RowKey key, int prefixLength, boolean fromStart, int maxBytes, Bytes page)
            throws IOException {
        try {
            write(key.bytes(), key.length());
            int after = fromStart ? -1 : key.length() - prefixLength;
            return page(NativeEngine.groupPage(handle, prefixLength, after, maxBytes), page);
        } finally {
            settle();
        }
    }

    /**
     * As {@link #groupPage}, over all rows with a prefix, with whole keys in the place of suffixes.
     */
    public boolean rowPage(byte[] prefix, byte[] after, int afterLength, int maxBytes, Bytes page)
            throws IOException {
        try {
            if (after == null) {
                write(prefix, prefix.length);
            } else {
                write(prefix, prefix.length, after, afterLength);
            }
            return page(
                    NativeEngine.rowPage(
                            handle, prefix.length, after == null ? -1 : afterLength, maxBytes),
                    page);
        } finally {
            settle();
        }
    }

    /** Reads the value of a row from any thread; null if there is none. */
    public byte[] visit(byte[] key) throws IOException {
        byte[] value = NativeEngine.visitGet(handle, key);
        Reference.reachabilityFence(this);
        return value;
    }

    /** As {@link #groupPage}, from any thread; {@code after} is null for the first page. */
    public boolean visitGroupPage(byte[] prefix, byte[] after, int maxBytes, Bytes page)
            throws IOException {
        byte[] answer = NativeEngine.visitGroupPage(handle, prefix, after, maxBytes);
        page.copyFrom(answer, 1);
        Reference.reachabilityFence(this);
        return answer[0] != 0;
    }

    /** Deletes all rows with a prefix and returns how many there were. */
    public long deleteRows(byte[] prefix) throws IOException {
        try {
            write(prefix, prefix.length);
            return NativeEngine.deleteRows(handle, prefix.length);
        } finally {
            settle();
        }
    }

    // ---------------- epochs

    /** Ends the epoch in O(1) and starts to make it durable. */
    public long freeze(long checkpoint) throws IOException {
        try {
            return NativeEngine.freeze(handle, checkpoint);
        } finally {
            settle();
        }
    }

    /** Waits until the epoch is durable; once an epoch, from any thread. */
    public Commit awaitCommit(long epoch) throws IOException {
        Commit commit = new Commit(NativeEngine.awaitCommit(handle, epoch));
        Reference.reachabilityFence(this);
        return commit;
    }

    /** Says that nobody wants the epoch's version any more; a waiting {@link #awaitCommit} ends. */
    public void abort(long epoch) throws IOException {
        NativeEngine.abort(handle, epoch);
        Reference.reachabilityFence(this);
    }

    public void checkpointComplete(long checkpoint) throws IOException {
        NativeEngine.checkpointComplete(handle, checkpoint);
        Reference.reachabilityFence(this);
    }

    // ---------------- expiry

    /**
     * Lets the store drop rows of a state once they have expired.
     *
     * @param elements a row holds elements of a list, and expires with the last of them
     * @param timestampAt where in a row's value, or in each element, the time of its last access
     *     lies, as a big-endian long
     * @param stayMillis for how long after its expiry a row may stay in the store because there is
     *     little else to drop; below 0: for any time
     */
    public void setExpiry(
            int state, long ttlMillis, boolean elements, int timestampAt, long stayMillis)
            throws IOException {
        NativeEngine.setExpiry(handle, state, ttlMillis, elements, timestampAt, stayMillis);
        Reference.reachabilityFence(this);
    }

    /** Rows of a state do not expire, which is how it begins. */
    public void clearExpiry(int state) throws IOException {
        NativeEngine.clearExpiry(handle, state);
        Reference.reachabilityFence(this);
    }

    /** From now on the wall clock decides what has expired, so many milliseconds behind. */
    public void expireByWallClock(long behindMillis) throws IOException {
        NativeEngine.expireByWallClock(handle, behindMillis);
        Reference.reachabilityFence(this);
    }

    /** For what has expired it is {@code nowMillis} until another time is handed over. */
    public void expireAt(long nowMillis) throws IOException {
        NativeEngine.expireAt(handle, nowMillis);
        Reference.reachabilityFence(this);
    }

    // ---------------- end

    /** Ends blocked and later calls with a {@link io.weir.flink.errors.WeirCancelledException}. */
    public void cancel() throws IOException {
        NativeEngine.cancel(handle);
        Reference.reachabilityFence(this);
    }

    @Override
    public void close() throws IOException {
        NativeEngine.close(handle);
        Reference.reachabilityFence(this);
    }

    /** One figure for each of {@link #statNames}. */
    public long[] stats() throws IOException {
        long[] figures = NativeEngine.stats(handle);
        Reference.reachabilityFence(this);
        return figures;
    }

    public static String[] statNames() throws IOException {
        return NativeEngine.statNames();
    }

    // ---------------- scratch

    private void write(byte[] first, int firstLength) throws IOException {
        reserve((long) firstLength + BEHIND);
        copyIn(first, scratch + INPUT, firstLength);
    }

    private void write(byte[] first, int firstLength, byte[] second, int secondLength)
            throws IOException {
        reserve((long) firstLength + secondLength + BEHIND);
        copyIn(first, scratch + INPUT, firstLength);
        copyIn(second, scratch + INPUT + firstLength, secondLength);
    }

    private void reserve(long bytes) throws IOException {
        if (bytes > room) {
            makeRoom(bytes);
        }
    }

    private void makeRoom(long bytes) throws IOException {
        if (bytes > Integer.MAX_VALUE - 64) {
            throw new InvalidArgumentException(
                    "A row of "
                            + bytes
                            + " bytes is too large; key and value together may have 2 GiB.");
        }
        grow((int) Math.min(Integer.MAX_VALUE - 64, Math.max(bytes, room * 2L)));
    }

    private void grow(int bytes) throws IOException {
        scratch = NativeEngine.scratch(handle, bytes);
        room = bytes;
    }

    private boolean answer(long address, Bytes target) throws IOException {
        if (address == 0) {
            return false;
        }
        target.copyFrom(address, MemoryUtils.UNSAFE.getLong(scratch + OUT_LENGTH));
        return true;
    }

    private boolean page(long address, Bytes target) throws IOException {
        if (address == 0) {
            target.clear();
        } else {
            target.copyFrom(address, MemoryUtils.UNSAFE.getLong(scratch + OUT_LENGTH));
        }
        boolean more = (MemoryUtils.UNSAFE.getLong(scratch + OUT_FLAGS) & MORE) != 0;
        return more;
    }

    /** What lies behind the input may be overwritten: there is room for it. */
    private static void copyIn(byte[] source, long address, int length) {
        int rounded = length + 7 & ~7;
        if (length <= Bytes.SMALL && rounded <= source.length) {
            for (int at = 0; at < length; at += 8) {
                MemoryUtils.UNSAFE.putLong(
                        address + at, MemoryUtils.UNSAFE.getLong(source, Bytes.ARRAY_BASE + at));
            }
        } else {
            MemoryUtils.UNSAFE.copyMemory(source, Bytes.ARRAY_BASE, null, address, length);
        }
    }
}
