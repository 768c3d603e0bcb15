package io.weir.flink.errors;

/** A name, path, option or argument that can never work. */
public class InvalidArgumentException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message what happened, to which file, key group or version, and what to do
     */
    public InvalidArgumentException(String message) {
        super(message);
    }
}
