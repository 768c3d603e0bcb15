package io.weir.e2e.cluster;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Keeps the sum of a key's numbers and passes them on. */
class PassingOn extends KeyedProcessFunction<Long, Long, Long> {
    private static final long serialVersionUID = 1L;

    private transient ValueState<Long> sum;

    @Override
    public void open(OpenContext context) {
        sum = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Long.class));
    }

    @Override
    public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
        Long before = sum.value();
        sum.update(before == null ? number : before + number);
        out.collect(number);
    }
}
