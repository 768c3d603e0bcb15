package io.weir.e2e.jobs;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.TimeDomain;
import org.apache.flink.util.Collector;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;

/**
 * Sets timers for numbers, and counts in state what fires. A number n has an event-time timer up to
 * {@link #HORIZON} later, and one far ahead that the key's next number deletes again; every fourth
 * has a processing-time timer too, at a time of its own for its key. Emits, for the key, how many
 * event-time timers fired, the sum of their times and whether they came in order; for {@code -1 -
 * key}, how many processing-time timers fired and how many of those were not set.
 */
public class Alarms extends FailingFunction {
    private static final long serialVersionUID = 1L;

    private static final int HORIZON = 3_000;
    private static final long FAR = 1_000_000_000L;

    private transient ValueState<Long> far;
    private transient ValueState<Long> fired;
    private transient ValueState<Long> sum;
    private transient ValueState<Long> last;
    private transient ValueState<Boolean> disordered;
    private transient MapState<Long, Boolean> pending;
    private transient ValueState<Long> firedInProcessingTime;
    private transient ValueState<Long> unexpected;

    public Alarms(Control control) {
        super(control);
    }

    private static long time(long number) {
        return number + 1 + Math.floorMod(number * 0x9E3779B97F4A7C15L >>> 20, (long) HORIZON);
    }

    private static boolean hasProcessingTimer(long number) {
        return number % 4 == 0;
    }

    /** A watermark every ten numbers, which are their own time. */
    public static WatermarkStrategy<Long> watermarks() {
        return WatermarkStrategy.<Long>forGenerator(
                        context ->
                                new WatermarkGenerator<Long>() {
                                    @Override
                                    public void onEvent(
                                            Long number, long timestamp, WatermarkOutput output) {
                                        if (number % 10 == 0) {
                                            output.emitWatermark(new Watermark(number));
                                        }
                                    }

                                    @Override
                                    public void onPeriodicEmit(WatermarkOutput output) {}
                                })
                .withTimestampAssigner((number, timestamp) -> number);
    }

    /** What must have been emitted last, without the processing-time timers; knows no Flink. */
    public static Map<Object, Object> expectedInEventTime(long total, int keys) {
        Map<Long, TreeSet<Long>> times = new HashMap<>();
        Map<Long, Long> latest = new HashMap<>();
        for (long n = 0; n < total; n++) {
            long key = Counting.key(n, keys);
            times.computeIfAbsent(key, k -> new TreeSet<>()).add(time(n));
            latest.put(key, n);
        }
        Map<Object, Object> expected = new HashMap<>();
        times.forEach(
                (key, set) -> {
                    set.add(FAR + latest.get(key));
                    long sum = set.stream().mapToLong(Long::longValue).sum();
                    expected.put(key, set.size() + " " + sum + " in order");
                });
        return expected;
    }

    /** What must have been emitted last of the processing-time timers. */
    public static Map<Object, Object> expectedInProcessingTime(long total, int keys) {
        Map<Long, Integer> counts = new HashMap<>();
        for (long n = 0; n < total; n++) {
            if (hasProcessingTimer(n)) {
                counts.merge(-1 - Counting.key(n, keys), 1, Integer::sum);
            }
        }
        Map<Object, Object> expected = new HashMap<>();
        counts.forEach((key, count) -> expected.put(key, count + " fired, 0 unexpected"));
        return expected;
    }

    @Override
    public void open(OpenContext context) {
        far = getRuntimeContext().getState(new ValueStateDescriptor<>("far", Long.class));
        fired = getRuntimeContext().getState(new ValueStateDescriptor<>("fired", Long.class));
        sum = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Long.class));
        last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Long.class));
        disordered =
                getRuntimeContext()
                        .getState(new ValueStateDescriptor<>("disordered", Boolean.class));
        pending =
                getRuntimeContext()
                        .getMapState(
                                new MapStateDescriptor<>("pending", Long.class, Boolean.class));
        firedInProcessingTime =
                getRuntimeContext().getState(new ValueStateDescriptor<>("processing", Long.class));
        unexpected =
                getRuntimeContext().getState(new ValueStateDescriptor<>("unexpected", Long.class));
    }

    private static long or0(ValueState<Long> state) throws Exception {
        Long value = state.value();
        return value == null ? 0 : value;
    }

    @Override
    void process(Long number, Context context, Collector<Tuple2<Long, String>> out)
            throws Exception {
        context.timerService().registerEventTimeTimer(time(number));
        if (far.value() != null) {
            context.timerService().deleteEventTimeTimer(far.value());
        }
        far.update(FAR + number);
        context.timerService().registerEventTimeTimer(FAR + number);
        if (hasProcessingTimer(number)) {
            long at = context.timerService().currentProcessingTime() + number % 40;
            while (pending.contains(at)) {
                at++;
            }
            pending.put(at, true);
            context.timerService().registerProcessingTimeTimer(at);
        }
    }

    @Override
    public void onTimer(long timestamp, OnTimerContext context, Collector<Tuple2<Long, String>> out)
            throws Exception {
        if (context.timeDomain() == TimeDomain.EVENT_TIME) {
            fired.update(or0(fired) + 1);
            sum.update(or0(sum) + timestamp);
            if (timestamp <= or0(last)) {
                disordered.update(true);
            }
            last.update(timestamp);
            String order = disordered.value() == null ? " in order" : " out of order";
            out.collect(
                    Tuple2.of(context.getCurrentKey(), fired.value() + " " + sum.value() + order));
        } else {
            firedInProcessingTime.update(or0(firedInProcessingTime) + 1);
            if (!pending.contains(timestamp)) {
                unexpected.update(or0(unexpected) + 1);
            }
            pending.remove(timestamp);
            out.collect(
                    Tuple2.of(
                            -1 - context.getCurrentKey(),
                            firedInProcessingTime.value()
                                    + " fired, "
                                    + or0(unexpected)
                                    + " unexpected"));
        }
    }
}
