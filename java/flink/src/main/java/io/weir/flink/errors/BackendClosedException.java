package io.weir.flink.errors;

/** The backend was closed before this call. */
public class BackendClosedException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public BackendClosedException(String message) {
        super(message);
    }
}
