package io.weir.flink.nativelib;

import io.weir.flink.errors.BackendClosedException;

import java.io.IOException;

/**
 * A native memory budget, shared by the engines of one slot; engines that still run keep the native
 * object alive.
 */
public final class NativeBudget implements AutoCloseable {

    private final long bytes;
    private long handle;

    /**
     * @param bytes the limit; the library must be loaded
     */
    public NativeBudget(long bytes) throws IOException {
        this.bytes = bytes;
        this.handle = NativeEngine.budgetCreate(bytes);
    }

    public long getBytes() {
        return bytes;
    }

    synchronized long handle() throws BackendClosedException {
        if (handle == 0) {
            throw new BackendClosedException("The memory budget of the slot is closed.");
        }
        return handle;
    }

    /** Bytes in use now; 0 once closed. */
    public synchronized long used() throws IOException {
        return handle == 0 ? 0 : NativeEngine.budgetUsed(handle);
    }

    @Override
    public synchronized void close() throws IOException {
        if (handle != 0) {
            NativeEngine.budgetDestroy(handle);
            handle = 0;
        }
    }
}
