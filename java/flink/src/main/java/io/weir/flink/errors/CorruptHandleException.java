package io.weir.flink.errors;

/** The payload of a checkpoint handle is truncated or damaged: restore from another checkpoint. */
public class CorruptHandleException extends CorruptStateException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public CorruptHandleException(String message) {
        super(message);
    }
}
