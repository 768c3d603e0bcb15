package io.weir.flink.nativelib;

import java.io.IOException;

/**
 * The raw entry points of the native library; {@link Engine} is what the rest of the backend calls.
 *
 * <p>Scratch region of an engine, at the address A that {@link #scratch} returns: A+0 a 64-bit
 * output length, A+8 64-bit output flags (bit 0: more follows) or number of values, A+16 the input:
 * key or prefix, suffix and value back to back. Header fields are in native byte order. Behind an
 * answer eight bytes may be read.
 */
final class NativeEngine {

    /** What {@link #abi} has to return for this jar. */
    static final int ABI = 2;

    private NativeEngine() {}

    static native int abi();

    /**
     * @param sink a class with {@code static void log(int level, String target, String message)}
     */
    static native void initLogging(Class<?> sink) throws IOException;

    static native long budgetCreate(long bytes) throws IOException;

    static native void budgetDestroy(long budget) throws IOException;

    static native long budgetUsed(long budget) throws IOException;

    static native long open(
            long budget,
            String root,
            String[] config,
            String branch,
            int firstKeyGroup,
            int lastKeyGroup,
            String[] sourceBranches,
            String[] sourceVersions,
            int[] sourceRanges,
            long restoredCheckpoint,
            long nextSequence)
            throws IOException;

    static native long scratch(long engine, long minBytes) throws IOException;

    static native long get(long engine, int keyLength) throws IOException;

    static native void put(long engine, int keyLength, int valueLength) throws IOException;

    static native void delete(long engine, int keyLength) throws IOException;

    static native long groupGet(long engine, int prefixLength, int suffixLength) throws IOException;

    static native void groupPut(long engine, int prefixLength, int suffixLength, int valueLength)
            throws IOException;

    static native void groupDelete(long engine, int prefixLength, int suffixLength)
            throws IOException;

    static native boolean groupContains(long engine, int prefixLength, int suffixLength)
            throws IOException;

    static native boolean groupIsEmpty(long engine, int prefixLength) throws IOException;

    static native void groupClear(long engine, int prefixLength) throws IOException;

    static native void listAppend(long engine, int prefixLength, int valueLength)
            throws IOException;

    /** 0 if the list is not in memory, or larger. */
    static native long listElements(long engine, int prefixLength, int maxBytes) throws IOException;

    static native long groupPage(long engine, int prefixLength, int afterLength, int maxBytes)
            throws IOException;

    static native long rowPage(long engine, int prefixLength, int afterLength, int maxBytes)
            throws IOException;

    static native byte[] visitGet(long engine, byte[] key) throws IOException;

    static native byte[] visitGroupPage(long engine, byte[] prefix, byte[] after, int maxBytes)
            throws IOException;

    static native long deleteRows(long engine, int prefixLength) throws IOException;

    static native long freeze(long engine, long checkpoint) throws IOException;

    static native String[] awaitCommit(long engine, long epoch) throws IOException;

    static native void abort(long engine, long epoch) throws IOException;

    static native void checkpointComplete(long engine, long checkpoint) throws IOException;

    static native void setExpiry(
            long engine,
            int state,
            long ttlMillis,
            boolean elements,
            int timestampAt,
            long stayMillis)
            throws IOException;

    static native void clearExpiry(long engine, int state) throws IOException;

    static native void expireByWallClock(long engine, long behindMillis) throws IOException;

    static native void expireAt(long engine, long nowMillis) throws IOException;

    static native void cancel(long engine) throws IOException;

    static native void close(long engine) throws IOException;

    static native void free(long engine) throws IOException;

    static native long[] stats(long engine) throws IOException;

    static native String[] statNames() throws IOException;

    static native void releaseVersion(String root, String[] config, String branch, String version)
            throws IOException;

    static native long[] processStats() throws IOException;
}
