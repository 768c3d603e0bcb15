package io.weir.e2e.jobs;

import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichSourceFunction;

/**
 * Emits 0, 1, 2, … as far as its control lets it; after a failure, again from the last checkpoint.
 */
public class NumberSource extends RichSourceFunction<Long>
        implements CheckpointedFunction, CheckpointListener {
    private static final long serialVersionUID = 1L;

    private final Control control;
    private long next;
    private transient ListState<Long> position;
    private volatile boolean running = true;

    public NumberSource(Control control) {
        this.control = control;
    }

    @Override
    public void run(SourceContext<Long> context) throws Exception {
        while (running) {
            int count = control.permit(next);
            if (count < 0) {
                return;
            }
            synchronized (context.getCheckpointLock()) {
                for (int i = 0; i < count; i++) {
                    context.collect(next++);
                }
            }
        }
    }

    @Override
    public void cancel() {
        running = false;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        position =
                context.getOperatorStateStore()
                        .getListState(new ListStateDescriptor<>("position", Long.class));
        for (Long restored : position.get()) {
            next = restored;
        }
        context.getRestoredCheckpointId().ifPresent(control::restored);
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        position.clear();
        position.add(next);
    }

    @Override
    public void notifyCheckpointComplete(long checkpointId) {
        control.checkpointCompleted();
    }
}
