package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
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
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.QueryableStateOptions;
import org.apache.flink.queryablestate.client.QueryableStateClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import org.apache.flink.util.NetUtils;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * Flink's queryable state, client and servers, over a job that goes on meanwhile and holds more
 * than its memory; what is read of one key only ever grows, and is exact once the job stands still.
 */
class QueryableStateTest {
    private static final int KEYS = 300;
    private static final int READERS = 3;

    /** How many numbers of a key the job takes in at most while it is read. */
    private static final int NUMBERS = 60;

    private final Control control = new Control();
    private QueryableStateClient client;
    private JobID job;

    @Test
    void everyKindIsReadWhileTheJobWritesAndAfterAFailure(@TempDir Path directory)
            throws Exception {
        try (NetUtils.Port port = NetUtils.getAvailablePort();
                NetUtils.Port internal = NetUtils.getAvailablePort()) {
            Configuration options = new Configuration();
            options.set(QueryableStateOptions.ENABLE_QUERYABLE_STATE_PROXY_SERVER, true);
            options.set(QueryableStateOptions.PROXY_PORT_RANGE, "" + port.getPort());
            options.set(QueryableStateOptions.SERVER_PORT_RANGE, "" + internal.getPort());
            try (TestCluster cluster = new TestCluster(2, directory, options)) {
                client = new QueryableStateClient("localhost", port.getPort());
                try {
                    query(cluster, directory);
                } finally {
                    client.shutdownAndWait();
                }
            }
        }
    }

    private void query(TestCluster cluster, Path directory) throws Exception {
        StreamExecutionEnvironment environment =
                TestCluster.environment(TestCluster.options(directory, Duration.ofMillis(200)), 2);
        environment
                .addSource(new NumberSource(control))
                .setParallelism(1)
                .keyBy(n -> n % KEYS)
                .process(new Queried(control))
                .sinkTo(new DiscardingSink<>());
        control.pauseAt((long) NUMBERS * KEYS);
        job = cluster.submit(environment);
        control.awaitEmitted(10L * KEYS);

        List<Reader> readers = new ArrayList<>();
        for (int i = 0; i < READERS; i++) {
            Reader reader = new Reader(i);
            readers.add(reader);
            reader.start();
        }
        Await.until(
                Duration.ofSeconds(60),
                "answers while the job writes",
                () -> readers.stream().allMatch(reader -> reader.answers > 200 || reader.ended()));
        for (Reader reader : readers) {
            reader.end();
        }

        Await.until(
                Duration.ofSeconds(60),
                "two checkpoints",
                () -> control.completedCheckpoints() >= 2);
        control.failOnce(Control.Failure.BEFORE_SNAPSHOT);
        long total = control.pauseAfter(3L * KEYS);
        Await.until(Duration.ofSeconds(60), "the failure", () -> control.failures() == 1);
        Await.until(
                Duration.ofSeconds(60),
                "the job has taken in everything",
                () -> total == counted(total));
        for (long key = 0; key < KEYS; key++) {
            checkKey(key, total);
        }
        assertThatThrownBy(() -> read("count", KEYS + 1, count()))
                .hasMessageContaining("UnknownKeyOrNamespaceException");
        cluster.cancel(job);
    }

    /** How many numbers the last keys to be written have seen, with those before them. */
    private long counted(long total) {
        try {
            for (long number = total - KEYS; number < total; number++) {
                if (read("greatest", number % KEYS, greatest()).get() != number) {
                    return 0;
                }
            }
            return total;
        } catch (Exception e) {
            return 0; // The job is not back yet.
        }
    }

    private void checkKey(long key, long total) throws Exception {
        List<Long> numbers = new ArrayList<>();
        Map<String, Long> remainders = new HashMap<>();
        long sum = 0;
        for (long number = key; number < total; number += KEYS) {
            numbers.add(number);
            remainders.merge("r" + number % 7, 1L, Long::sum);
            sum += number;
        }
        assertThat(read("count", key, count()).value()).isEqualTo(numbers.size());
        assertThat(read("numbers", key, numbers()).get()).containsExactlyElementsOf(numbers);
        Map<String, Long> read = new HashMap<>();
        for (Map.Entry<String, Long> entry : read("remainders", key, remainders()).entries()) {
            read.put(entry.getKey(), entry.getValue());
        }
        assertThat(read).isEqualTo(remainders);
        assertThat(read("greatest", key, greatest()).get())
                .isEqualTo(numbers.get(numbers.size() - 1));
        assertThat(read("sum", key, sum()).get()).isEqualTo("sum " + sum);
    }

    private <S extends State, V> S read(String name, long key, StateDescriptor<S, V> descriptor)
            throws Exception {
        return client.getKvState(job, name, key, Types.LONG, descriptor).get(30, TimeUnit.SECONDS);
    }

    /** Reads keys in turn, as fast as it can; what it sees of a key must never go back. */
    private final class Reader extends Thread {
        private final int offset;
        private final Map<Long, Long> seen = new HashMap<>();
        volatile int answers;
        private volatile boolean stop;
        private volatile Throwable failure;

        Reader(int offset) {
            super("reader " + offset);
            this.offset = offset;
        }

        @Override
        public void run() {
            try {
                for (long i = 0; !stop; i++) {
                    long key = (offset * 7L + i * 31) % KEYS;
                    long count = read("count", key, count()).value();
                    assertThat(count).isGreaterThanOrEqualTo(seen.getOrDefault(key, 0L));
                    seen.put(key, count);
                    List<Long> list = new ArrayList<>();
                    read("numbers", key, numbers()).get().forEach(list::add);
                    assertThat(list.size()).isGreaterThanOrEqualTo((int) count);
                    for (int n = 0; n < list.size(); n++) {
                        assertThat(list.get(n)).isEqualTo(key + (long) n * KEYS);
                    }
                    long ofMap = 0;
                    for (Long value : read("remainders", key, remainders()).values()) {
                        ofMap += value;
                    }
                    assertThat(ofMap).isGreaterThanOrEqualTo(list.size());
                    answers += 3;
                }
            } catch (Throwable e) {
                failure = e;
            }
        }

        boolean ended() {
            return failure != null;
        }

        void end() throws Exception {
            stop = true;
            join(60_000);
            if (failure != null) {
                throw new ExecutionException(failure);
            }
            assertThat(isAlive()).isFalse();
        }
    }

    // ---------------- the states

    private static ValueStateDescriptor<Long> count() {
        return new ValueStateDescriptor<>("count", Types.LONG);
    }

    private static ListStateDescriptor<Long> numbers() {
        return new ListStateDescriptor<>("numbers", Types.LONG);
    }

    private static MapStateDescriptor<String, Long> remainders() {
        return new MapStateDescriptor<>("remainders", Types.STRING, Types.LONG);
    }

    private static ReducingStateDescriptor<Long> greatest() {
        return new ReducingStateDescriptor<>("greatest", Math::max, Types.LONG);
    }

    private static AggregatingStateDescriptor<Long, Long, String> sum() {
        return new AggregatingStateDescriptor<>("sum", new Sum(), Types.LONG);
    }

    private static <D extends StateDescriptor<?, ?>> D queryable(D descriptor) {
        descriptor.setQueryable(descriptor.getName());
        return descriptor;
    }

    private static final class Queried extends KeyedProcessFunction<Long, Long, Long> {
        private static final long serialVersionUID = 1L;

        private final Control control;
        private transient ValueState<Long> count;
        private transient ListState<Long> numbers;
        private transient MapState<String, Long> remainders;
        private transient ReducingState<Long> greatest;
        private transient AggregatingState<Long, String> sum;

        Queried(Control control) {
            this.control = control;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(queryable(count()));
            numbers = getRuntimeContext().getListState(queryable(numbers()));
            remainders = getRuntimeContext().getMapState(queryable(remainders()));
            greatest = getRuntimeContext().getReducingState(queryable(greatest()));
            sum = getRuntimeContext().getAggregatingState(queryable(sum()));
        }

        /**
         * In the opposite order of the readers, which so never see less in what they read later.
         */
        @Override
        public void processElement(Long number, Context context, Collector<Long> out)
                throws Exception {
            control.maybeFail(Control.Failure.BEFORE_SNAPSHOT);
            String remainder = "r" + number % 7;
            Long before = remainders.get(remainder);
            remainders.put(remainder, before == null ? 1 : before + 1);
            numbers.add(number);
            Long counted = count.value();
            count.update(counted == null ? 1 : counted + 1);
            sum.add(number);
            greatest.add(number);
        }
    }

    private static final class Sum implements AggregateFunction<Long, Long, String> {
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
        public String getResult(Long accumulator) {
            return "sum " + accumulator;
        }

        @Override
        public Long merge(Long a, Long b) {
            return a + b;
        }
    }
}
