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

    /** What {@link java.io.DataOutput#writeUTF} takes. */
    private static final int MAX_NAME_BYTES = 65_535;

    private StateId() {}

    /**
     * The first four bytes, big-endian, of the SHA-256 of the name in UTF-8.
     *
     * @throws IllegalArgumentException if no checkpoint could hold the name
     */
    public static int of(String name) {
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        if (bytes.length > MAX_NAME_BYTES) {
            throw new IllegalArgumentException(
                    String.format(
                            "The name of state '%s…' has %d bytes; Flink's checkpoints hold names"
                                    + " of up to %d.",
                            name.substring(0, 40), bytes.length, MAX_NAME_BYTES));
        }
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            return ByteBuffer.wrap(digest).getInt();
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("Every Java platform has SHA-256.", e);
        }
    }
}
