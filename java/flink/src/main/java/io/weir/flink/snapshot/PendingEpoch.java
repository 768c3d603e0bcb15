package io.weir.flink.snapshot;

import io.weir.flink.nativelib.Commit;
import io.weir.flink.nativelib.Engine;

import org.apache.flink.runtime.state.SnapshotResources;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/** A frozen epoch on its way to the store, with what the states looked like at the barrier. */
final class PendingEpoch implements SnapshotResources {

    private static final Logger LOG = LoggerFactory.getLogger(PendingEpoch.class);

    final long checkpoint;
    final List<StateMetaInfoSnapshot> metaInfos;
    final List<Payload.StateColumns> columns;

    private final Engine engine;
    private final long epoch;
    private final Runnable onEnd;

    /**
     * Whoever sets it decides what becomes of the epoch: it is taken by a checkpoint, or aborted.
     */
    private final AtomicBoolean decided = new AtomicBoolean();

    PendingEpoch(
            long checkpoint,
            Engine engine,
            long epoch,
            List<StateMetaInfoSnapshot> metaInfos,
            List<Payload.StateColumns> columns,
            Runnable onEnd) {
        this.checkpoint = checkpoint;
        this.engine = engine;
        this.epoch = epoch;
        this.metaInfos = metaInfos;
        this.columns = columns;
        this.onEnd = onEnd;
    }

    Commit await() throws IOException {
        return engine.awaitCommit(epoch);
    }

    /** Claims the commit for a checkpoint; false if the epoch was aborted before. */
    boolean take() {
        return decided.compareAndSet(false, true);
    }

    void abort() {
        if (take()) {
            try {
                engine.abort(epoch);
            } catch (IOException e) {
                LOG.debug("The epoch of checkpoint {} could not be aborted.", checkpoint, e);
            }
        }
    }

    /**
     * Called by Flink at the end of the asynchronous part, or when it is cancelled before it began.
     */
    @Override
    public void release() {
        abort();
        onEnd.run();
    }
}
