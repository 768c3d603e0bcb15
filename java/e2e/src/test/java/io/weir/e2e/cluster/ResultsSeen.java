package io.weir.e2e.cluster;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Puts before each result how many of its key there were, itself included. */
class ResultsSeen extends KeyedProcessFunction<Long, Tuple2<Long, String>, Tuple2<Long, String>> {
    private static final long serialVersionUID = 1L;

    private transient ValueState<Long> seen;

    @Override
    public void open(OpenContext context) {
        seen = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
    }

    @Override
    public void processElement(
            Tuple2<Long, String> result, Context context, Collector<Tuple2<Long, String>> out)
            throws Exception {
        long count = seen.value() == null ? 1 : seen.value() + 1;
        seen.update(count);
        out.collect(Tuple2.of(result.f0, count + ": " + result.f1));
    }
}
