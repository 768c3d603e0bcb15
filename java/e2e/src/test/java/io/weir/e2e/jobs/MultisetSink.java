package io.weir.e2e.jobs;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

import java.util.HashMap;
import java.util.Map;

/**
 * Applies a changelog to a multiset of rows, itself exactly once since that is operator state, and
 * gives it to the control at the input's end: row as text, how often.
 */
public class MultisetSink extends RichSinkFunction<Row> implements CheckpointedFunction {
    private static final long serialVersionUID = 1L;

    private final Control control;
    private transient Map<String, Integer> rows;
    private transient ListState<Tuple2<String, Integer>> state;

    public MultisetSink(Control control) {
        this.control = control;
    }

    @Override
    public void invoke(Row row, Context context) {
        boolean adds = row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER;
        row.setKind(RowKind.INSERT);
        rows.merge(row.toString(), adds ? 1 : -1, (a, b) -> a + b == 0 ? null : a + b);
    }

    @Override
    public void finish() {
        control.results().putAll(rows);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        rows = new HashMap<>();
        state =
                context.getOperatorStateStore()
                        .getListState(
                                new ListStateDescriptor<>(
                                        "rows",
                                        TypeInformation.of(
                                                new TypeHint<Tuple2<String, Integer>>() {})));
        for (Tuple2<String, Integer> row : state.get()) {
            rows.put(row.f0, row.f1);
        }
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        state.clear();
        for (Map.Entry<String, Integer> row : rows.entrySet()) {
            state.add(Tuple2.of(row.getKey(), row.getValue()));
        }
    }
}
