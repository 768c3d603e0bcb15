package io.weir.e2e.jobs;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

import java.nio.ByteBuffer;
import java.util.Random;

/**
 * Per key, keeps bytes that do not compress and are new with each number; emits how many numbers of
 * the key there were, which it keeps in their first bytes.
 */
public class Overwriting extends KeyedProcessFunction<Long, Long, Tuple2<Long, Long>> {
    private static final long serialVersionUID = 1L;

    private final int bytes;
    private transient ValueState<byte[]> state;

    public Overwriting(int bytes) {
        this.bytes = bytes;
    }

    @Override
    public void open(OpenContext context) {
        state = getRuntimeContext().getState(new ValueStateDescriptor<>("bytes", byte[].class));
    }

    @Override
    public void processElement(Long number, Context context, Collector<Tuple2<Long, Long>> out)
            throws Exception {
        byte[] before = state.value();
        long count = 1 + (before == null ? 0 : ByteBuffer.wrap(before).getLong());
        byte[] now = new byte[bytes];
        new Random(number).nextBytes(now);
        ByteBuffer.wrap(now).putLong(count);
        state.update(now);
        out.collect(Tuple2.of(context.getCurrentKey(), count));
    }
}
