package io.weir.e2e.jobs;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.util.Collector;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Per key of a stream of numbers, one state of each kind: how many (value), every seventh (list),
 * how many by remainder (map), the greatest (reducing), the sum (aggregating). Emits all five as
 * text after each number.
 */
public class Counting extends FailingFunction {
    private static final long serialVersionUID = 1L;

    /** Which states a run registers, and whether the order differs from subtask to subtask. */
    public enum Registration implements Serializable {
        SAME_ORDER,
        ORDER_BY_SUBTASK,
        WITHOUT_MAP_AND_LIST
    }

    private final Registration registration;

    private transient ValueState<Long> count;
    private transient ListState<Long> sevenths;
    private transient MapState<String, Long> remainders;
    private transient ReducingState<Long> greatest;
    private transient AggregatingState<Long, Long> sum;

    public Counting(Control control, Registration registration) {
        super(control);
        this.registration = registration;
    }

    /** The key of a number, of {@code keys} many. */
    public static long key(long number, int keys) {
        return Math.floorMod(number * 0x9E3779B97F4A7C15L >>> 7, (long) keys);
    }

    /**
     * What the job must have emitted last for each key after the numbers below {@code total}; knows
     * no Flink state.
     */
    public static Map<Object, Object> expected(long total, int keys) {
        Map<Long, List<Long>> numbers = new HashMap<>();
        for (long n = 0; n < total; n++) {
            numbers.computeIfAbsent(key(n, keys), k -> new ArrayList<>()).add(n);
        }
        Map<Object, Object> expected = new HashMap<>();
        numbers.forEach(
                (key, list) -> {
                    List<Long> sevenths = new ArrayList<>();
                    TreeMap<String, Long> remainders = new TreeMap<>();
                    long sum = 0;
                    for (long n : list) {
                        if (n % 7 == 0) {
                            sevenths.add(n);
                        }
                        remainders.merge("r" + n % 5, 1L, Long::sum);
                        sum += n;
                    }
                    expected.put(
                            key,
                            text(
                                    list.size(),
                                    sevenths,
                                    remainders,
                                    list.get(list.size() - 1),
                                    sum));
                });
        return expected;
    }

    private static String text(
            long count,
            List<Long> sevenths,
            TreeMap<String, Long> remainders,
            long greatest,
            long sum) {
        return count + " " + sevenths + " " + remainders + " " + greatest + " " + sum;
    }

    @Override
    public void open(OpenContext context) throws Exception {
        if (registration == Registration.WITHOUT_MAP_AND_LIST) {
            register(0);
            register(3);
            register(4);
            return;
        }
        int first =
                registration == Registration.ORDER_BY_SUBTASK
                        ? 1 + getRuntimeContext().getTaskInfo().getIndexOfThisSubtask()
                        : 0;
        for (int i = 0; i < 5; i++) {
            register((first + i) % 5);
        }
    }

    private void register(int state) throws Exception {
        switch (state) {
            case 0 ->
                    count =
                            getRuntimeContext()
                                    .getState(new ValueStateDescriptor<>("count", Long.class));
            case 1 ->
                    sevenths =
                            getRuntimeContext()
                                    .getListState(
                                            new ListStateDescriptor<>("sevenths", Long.class));
            case 2 ->
                    remainders =
                            getRuntimeContext()
                                    .getMapState(
                                            new MapStateDescriptor<>(
                                                    "remainders", String.class, Long.class));
            case 3 ->
                    greatest =
                            getRuntimeContext()
                                    .getReducingState(
                                            new ReducingStateDescriptor<>(
                                                    "greatest", Math::max, Long.class));
            default ->
                    sum =
                            getRuntimeContext()
                                    .getAggregatingState(
                                            new AggregatingStateDescriptor<>(
                                                    "sum", new Sum(), Long.class));
        }
    }

    @Override
    void process(Long number, Context context, Collector<Tuple2<Long, String>> out)
            throws Exception {
        Long before = count.value();
        count.update(before == null ? 1 : before + 1);
        greatest.add(number);
        sum.add(number);
        List<Long> sevenths = new ArrayList<>();
        TreeMap<String, Long> remainders = new TreeMap<>();
        if (registration != Registration.WITHOUT_MAP_AND_LIST) {
            if (number % 7 == 0) {
                this.sevenths.add(number);
            }
            String remainder = "r" + number % 5;
            Long seen = this.remainders.get(remainder);
            this.remainders.put(remainder, seen == null ? 1 : seen + 1);
            this.sevenths.get().forEach(sevenths::add);
            for (Map.Entry<String, Long> entry : this.remainders.entries()) {
                remainders.put(entry.getKey(), entry.getValue());
            }
        }
        out.collect(
                Tuple2.of(
                        context.getCurrentKey(),
                        text(count.value(), sevenths, remainders, greatest.get(), sum.get())));
    }

    private static final class Sum implements AggregateFunction<Long, Long, Long> {
        private static final long serialVersionUID = 1L;

        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long value, Long accumulator) {
            return accumulator + value;
        }

        @Override
        public Long getResult(Long accumulator) {
            return accumulator;
        }

        @Override
        public Long merge(Long a, Long b) {
            return a + b;
        }
    }
}
