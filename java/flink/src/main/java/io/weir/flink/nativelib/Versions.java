package io.weir.flink.nativelib;

import java.io.IOException;

/** Gives committed versions up; the library must be loaded. */
public final class Versions {

    private Versions() {}

    /**
     * Releases a version; not an error if it is no longer there.
     *
     * @param root URI of the store's directory
     * @param config keys and values in turn
     */
    public static void release(String root, String[] config, String branch, String version)
            throws IOException {
        NativeEngine.releaseVersion(root, config, branch, version);
    }
}
