package io.weir.flink.errors;

/**
 * The payload of a checkpoint handle was written by a newer release: restore it with that release
 * or a later one.
 */
public class HandleFormatException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public HandleFormatException(String message) {
        super(message);
    }
}
