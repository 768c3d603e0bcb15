package io.weir.flink.errors;

/** The store cannot be reached, read or written: mend it, then the attempt can restart. */
public class StoreUnavailableException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public StoreUnavailableException(String message) {
        super(message);
    }
}
