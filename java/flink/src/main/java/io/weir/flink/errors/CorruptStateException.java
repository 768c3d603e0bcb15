package io.weir.flink.errors;

/** Bytes read are not what was written: restore from another checkpoint and look at the storage. */
public class CorruptStateException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public CorruptStateException(String message) {
        super(message);
    }
}
