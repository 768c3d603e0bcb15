package io.weir.flink.errors;

/** The task was cancelled while the call waited. */
public class WeirCancelledException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public WeirCancelledException(String message) {
        super(message);
    }
}
