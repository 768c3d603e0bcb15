package io.weir.flink.errors;

import java.io.IOException;

/**
 * Base of everything that Weir throws on its own account; the subclass says what the caller can do
 * about it.
 */
public class WeirException extends IOException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public WeirException(String message) {
        super(message);
    }

    /**
     * @param message what happened, to which file, key group or version, and what to do
     * @param cause what made it happen
     */
    public WeirException(String message, Throwable cause) {
        super(message, cause);
    }
}
