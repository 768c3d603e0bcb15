package io.weir.flink.errors;

/** A defect of Weir: please report it with the message. */
public class WeirInternalException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public WeirInternalException(String message) {
        super(message);
    }
}
