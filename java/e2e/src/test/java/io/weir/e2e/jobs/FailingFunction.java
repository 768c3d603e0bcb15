package io.weir.e2e.jobs;

import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * A function on keyed numbers that fails where its {@link Control} says: before, in and between the
 * parts of a snapshot, and after its completion.
 */
public abstract class FailingFunction extends KeyedProcessFunction<Long, Long, Tuple2<Long, String>>
        implements CheckpointedFunction, CheckpointListener {
    private static final long serialVersionUID = 1L;

    private final Control control;

    private transient boolean snapshotRunning;

    FailingFunction(Control control) {
        this.control = control;
    }

    /** What {@code processElement} does when it does not fail. */
    abstract void process(Long number, Context context, Collector<Tuple2<Long, String>> out)
            throws Exception;

    @Override
    public final void processElement(
            Long number, Context context, Collector<Tuple2<Long, String>> out) throws Exception {
        control.maybeFail(Control.Failure.BEFORE_SNAPSHOT);
        if (snapshotRunning) {
            control.maybeFail(Control.Failure.BETWEEN_BARRIER_AND_COMPLETION);
        }
        process(number, context, out);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) {}

    @Override
    public final void snapshotState(FunctionSnapshotContext context) {
        control.maybeFail(Control.Failure.IN_SYNCHRONOUS_PART);
        snapshotRunning = true;
    }

    @Override
    public final void notifyCheckpointComplete(long checkpointId) {
        control.maybeFail(Control.Failure.AFTER_COMPLETION);
        snapshotRunning = false;
    }

    @Override
    public final void notifyCheckpointAborted(long checkpointId) {
        snapshotRunning = false;
    }
}
