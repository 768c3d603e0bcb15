package io.weir.e2e.jobs;

import java.io.Serializable;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What a test and its job tell each other; both run in one process. Copies made by serialization
 * are the same object again, found by id.
 */
public final class Control implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final Map<String, Control> ALL = new ConcurrentHashMap<>();
    private static final int BATCH = 50;

    private final String id = UUID.randomUUID().toString();

    private transient long limit = Long.MAX_VALUE;
    private transient long total = Long.MAX_VALUE;
    private transient long granted;
    private transient AtomicInteger completedCheckpoints = new AtomicInteger();
    private transient AtomicInteger failures = new AtomicInteger();
    private transient volatile long restoredCheckpoint;
    private transient volatile Failure failure = Failure.NONE;
    private transient Map<Object, Object> results = new ConcurrentHashMap<>();

    /** When the counting function fails, once, after two completed checkpoints. */
    public enum Failure {
        NONE,
        BEFORE_SNAPSHOT,
        IN_SYNCHRONOUS_PART,
        BETWEEN_BARRIER_AND_COMPLETION,
        AFTER_COMPLETION
    }

    public Control() {
        ALL.put(id, this);
    }

    private Object readResolve() {
        return ALL.get(id);
    }

    // ---- the test's side

    /** The source stops before this number, and goes on when the limit is raised. */
    public synchronized Control pauseAt(long number) {
        limit = number;
        notifyAll();
        return this;
    }

    /** The source stops {@code more} numbers after the last one it has emitted; returns where. */
    public synchronized long pauseAfter(long more) {
        pauseAt(granted + more);
        return limit;
    }

    /**
     * The source ends {@code more} numbers after the last one it has emitted; returns how many
     * there are in all.
     */
    public synchronized long finishAfter(long more) {
        total = granted + more;
        limit = Long.MAX_VALUE;
        notifyAll();
        return total;
    }

    /** The source ends before this number, which must not be reached yet. */
    public synchronized Control finishAt(long number) {
        if (granted >= number) {
            throw new IllegalStateException("the source is already at " + granted);
        }
        total = number;
        limit = Long.MAX_VALUE;
        notifyAll();
        return this;
    }

    /**
     * The next run of the source starts with what its checkpoint says, and may be shorter than an
     * earlier one.
     */
    public synchronized Control reset() {
        granted = 0;
        limit = Long.MAX_VALUE;
        total = Long.MAX_VALUE;
        return this;
    }

    public void failOnce(Failure kind) {
        failure = kind;
    }

    public int failures() {
        return failures.get();
    }

    public int completedCheckpoints() {
        return completedCheckpoints.get();
    }

    /** The checkpoint that the source was last restored from; 0 if it never was. */
    public long restoredCheckpoint() {
        return restoredCheckpoint;
    }

    public synchronized long emitted() {
        return granted;
    }

    public void awaitEmitted(long number) throws Exception {
        Await.until(
                Duration.ofSeconds(60), "the source reaches " + number, () -> emitted() >= number);
    }

    public Map<Object, Object> results() {
        return results;
    }

    public Set<Object> resultKeys() {
        return results.keySet();
    }

    // ---- the job's side

    /**
     * How many numbers from {@code next} on may be emitted now; 0: ask again; -1: it was the last
     * one.
     */
    synchronized int permit(long next) throws InterruptedException {
        if (next >= total) {
            return -1;
        }
        if (next >= limit) {
            wait(20);
            return 0;
        }
        int count = (int) Math.min(BATCH, Math.min(limit, total) - next);
        granted = Math.max(granted, next + count);
        if (total == Long.MAX_VALUE) {
            wait(1); // an endless source leaves the processor to the others
        }
        return count;
    }

    void restored(long checkpoint) {
        restoredCheckpoint = checkpoint;
    }

    void checkpointCompleted() {
        completedCheckpoints.incrementAndGet();
    }

    /** Throws if the test has asked for a failure at this place and it has not happened yet. */
    public void maybeFail(Failure place) {
        if (failure == place && completedCheckpoints.get() >= 2) {
            synchronized (this) {
                if (failure != place) {
                    return;
                }
                failure = Failure.NONE;
            }
            failures.incrementAndGet();
            throw new RuntimeException("failure asked for by the test: " + place);
        }
    }
}
