package io.weir.flink.nativelib;

/** What the store made durable for one checkpoint. */
public final class Commit {

    public final String branch;
    public final String version;

    /** Bytes that this commit added to the store. */
    public final long writtenBytes;

    /** Bytes of everything that the version needs, shared with other versions or not. */
    public final long totalBytes;

    /** The list sequence that a restore of this version has to go on from. */
    public final long nextSequence;

    Commit(String[] fields) {
        branch = fields[0];
        version = fields[1];
        writtenBytes = Long.parseLong(fields[2]);
        totalBytes = Long.parseLong(fields[3]);
        nextSequence = Long.parseLong(fields[4]);
    }
}
