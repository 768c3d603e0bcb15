package io.weir.flink.nativelib;

/**
 * A committed version that a new branch starts from, clipped to the key groups taken of it (both
 * inclusive).
 */
public final class Source {

    public final String branch;
    public final String version;
    public final int firstKeyGroup;
    public final int lastKeyGroup;

    public Source(String branch, String version, int firstKeyGroup, int lastKeyGroup) {
        this.branch = branch;
        this.version = version;
        this.firstKeyGroup = firstKeyGroup;
        this.lastKeyGroup = lastKeyGroup;
    }
}
