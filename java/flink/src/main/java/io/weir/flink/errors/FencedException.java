package io.weir.flink.errors;

/** Another writer took this attempt's branch: the attempt must end. */
public class FencedException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public FencedException(String message) {
        super(message);
    }
}
