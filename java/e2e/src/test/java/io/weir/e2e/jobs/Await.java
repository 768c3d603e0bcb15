package io.weir.e2e.jobs;

import java.time.Duration;

/** Waits for a condition, and fails with its name when the time is over. */
public final class Await {
    /** A condition that may throw. */
    @FunctionalInterface
    public interface Condition {
        boolean holds() throws Exception;
    }

    private Await() {}

    public static void until(Duration deadline, String what, Condition condition) throws Exception {
        long end = System.nanoTime() + deadline.toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("not within " + deadline.toSeconds() + " s: " + what);
            }
            Thread.sleep(10);
        }
    }
}
