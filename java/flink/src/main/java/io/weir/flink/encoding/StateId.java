package io.weir.flink.encoding;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * The state id in a row key is a pure function of the state's name: subtasks register states lazily
 * and in any order, and rows of several subtasks meet after a rescale.
 */
public final class StateId {

    private StateId() {}

    /** The first four bytes, big-endian, of the SHA-256 of the name in UTF-8. */
    public static int of(String name) {
        try {
            byte[] digest =
                    MessageDigest.getInstance("SHA-256")
                            .digest(name.getBytes(StandardCharsets.UTF_8));
            return ByteBuffer.wrap(digest).getInt();
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("Every Java platform has SHA-256.", e);
        }
    }
}
