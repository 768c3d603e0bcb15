package io.weir.flink.keyed;

import io.weir.flink.nativelib.Engine;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.StateTtlConfig.RocksdbCompactFilterCleanupStrategy;
import org.apache.flink.runtime.state.ttl.TtlAwareSerializer;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;

import java.io.IOException;
import java.time.Duration;

/**
 * Tells the store which rows it may drop: those of the states that were registered with TTL, unless
 * the job has disabled the clean-up in background. A state that was restored and not registered
 * again, or registered without TTL, loses nothing.
 */
final class StateExpiry {

    /** A clock that is set back by no more than this makes no dropped row live again. */
    private static final long BEHIND_MILLIS = 10_000;

    /** Flink's default for what {@code cleanupInRocksdbCompactFilter} can set. */
    private static final Duration PERIODIC_COMPACTION_TIME = Duration.ofDays(30);

    /** A map's row begins with whether its value is null. */
    private static final int NULL_FLAG_BYTES = 1;

    private final Engine engine;
    private final TtlTimeProvider time;
    private boolean anyExpires;

    StateExpiry(Engine engine, TtlTimeProvider time) {
        this.engine = engine;
        this.time = time;
    }

    /** Rows of the state are about to change their form. */
    void suspend(RegisteredState<?, ?> state) throws IOException {
        if (anyExpires) {
            engine.clearExpiry(state.id());
        }
    }

    /**
     * Called once all rows of the state are in the form of its serializer, or on their way to the
     * store: what older form is left there is hidden by them.
     */
    void register(RegisteredState<?, ?> state, StateDescriptor<?, ?> descriptor)
            throws IOException {
        StateTtlConfig ttl = descriptor.getTtlConfig();
        if (!ttl.isEnabled()
                || !ttl.getCleanupStrategies().inRocksdbCompactFilter()
                || !TtlAwareSerializer.isSerializerTtlEnabled(
                        state.metaInfo().getStateSerializer())) {
            suspend(state);
            return;
        }
        if (!anyExpires && time == TtlTimeProvider.DEFAULT) {
            engine.expireByWallClock(BEHIND_MILLIS);
        }
        anyExpires = true;
        RocksdbCompactFilterCleanupStrategy strategy =
                ttl.getCleanupStrategies().getRocksdbCompactFilterCleanupStrategy();
        Duration stay =
                strategy == null ? PERIODIC_COMPACTION_TIME : strategy.getPeriodicCompactionTime();
        engine.setExpiry(
                state.id(),
                ttl.getTimeToLive().toMillis(),
                state.kind() == StateDescriptor.Type.LIST,
                state.kind() == StateDescriptor.Type.MAP ? NULL_FLAG_BYTES : 0,
                stay.isZero() || stay.isNegative() ? -1 : stay.toMillis());
        tick();
    }

    /**
     * Hands over the time of a provider of the job's own, which the store cannot ask; it stands
     * still there until the next call.
     */
    void tick() throws IOException {
        if (anyExpires && time != TtlTimeProvider.DEFAULT) {
            engine.expireAt(time.currentTimestamp());
        }
    }
}
