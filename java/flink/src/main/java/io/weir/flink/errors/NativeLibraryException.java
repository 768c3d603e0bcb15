package io.weir.flink.errors;

/** The native library could not be unpacked, loaded or used on this machine. */
public class NativeLibraryException extends WeirException {

    private static final long serialVersionUID = 1L;

    /**
     * @param message operating system, architecture, path and what to do
     * @param cause what the JVM or the file system said, or null
     */
    public NativeLibraryException(String message, Throwable cause) {
        super(message, cause);
    }
}
