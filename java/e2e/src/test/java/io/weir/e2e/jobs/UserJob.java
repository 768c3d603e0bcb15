package io.weir.e2e.jobs;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichSourceFunction;
import org.apache.flink.util.Collector;

import java.util.List;
import java.util.Objects;
import java.util.concurrent.ConcurrentMap;

/**
 * A job whose classes are loaded anew for it. It shares nothing with the test but a map among the
 * system's properties, which holds classes of Java alone.
 */
public final class UserJob {

    /** The property with the map. */
    public static final String RESULTS = UserJob.class.getName() + ".results";

    public static final int KEYS = 50;
    public static final long NUMBERS = 3_000;

    private UserJob() {}

    /** Counts numbers by key, and fails once, after a checkpoint. */
    public static void define(StreamExecutionEnvironment environment, String name) {
        environment
                .addSource(new Numbers(name))
                .keyBy(n -> new Key("key" + n % KEYS), TypeInformation.of(Key.class))
                .process(new Count(name))
                .sinkTo(new DiscardingSink<>());
    }

    @SuppressWarnings("unchecked")
    private static ConcurrentMap<String, Object> results() {
        return (ConcurrentMap<String, Object>) System.getProperties().get(RESULTS);
    }

    /** Holds the last numbers back until a checkpoint is complete. */
    private static final class Numbers extends RichSourceFunction<Long>
            implements CheckpointedFunction {
        private static final long serialVersionUID = 1L;

        private final String job;
        private long next;
        private transient ListState<Long> position;
        private volatile boolean running = true;

        Numbers(String job) {
            this.job = job;
        }

        @Override
        public void run(SourceContext<Long> context) throws Exception {
            while (running && next < NUMBERS) {
                if (next == NUMBERS - KEYS && !results().containsKey(job + " checkpoint")) {
                    Thread.sleep(1);
                    continue;
                }
                synchronized (context.getCheckpointLock()) {
                    context.collect(next++);
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
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            position.update(List.of(next));
        }
    }

    /** A key of the job's own class. */
    public static final class Key {
        public String name;

        public Key() {}

        Key(String name) {
            this.name = name;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Key && Objects.equals(name, ((Key) other).name);
        }

        @Override
        public int hashCode() {
            return name.hashCode();
        }
    }

    /** A value of the job's own class. */
    public static final class Counter {
        public long count;
    }

    private static final class Count extends KeyedProcessFunction<Key, Long, Long>
            implements CheckpointListener {
        private static final long serialVersionUID = 1L;

        private final String job;
        private transient ConcurrentMap<String, Object> results;
        private transient ValueState<Counter> counter;

        Count(String job) {
            this.job = job;
        }

        @Override
        public void open(OpenContext context) {
            results = results();
            counter =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("counter", Counter.class));
            results.put(job + " function", getClass().getClassLoader());
            results.put(job + " state", counter.getClass().getClassLoader());
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out)
                throws Exception {
            if (results.containsKey(job + " checkpoint")
                    && results.putIfAbsent(job + " failed", true) == null) {
                throw new RuntimeException("failure asked for by the test");
            }
            Counter value = counter.value();
            if (value == null) {
                value = new Counter();
            }
            value.count++;
            counter.update(value);
            results.put(job + " " + context.getCurrentKey().name, value.count);
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            results.put(job + " checkpoint", checkpoint);
        }
    }
}
