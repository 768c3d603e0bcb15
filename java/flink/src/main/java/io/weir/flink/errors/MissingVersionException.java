package io.weir.flink.errors;

/**
 * The version or branch that was asked for is not in the store: restore from another checkpoint.
 */
public class MissingVersionException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public MissingVersionException(String message) {
        super(message);
    }
}
