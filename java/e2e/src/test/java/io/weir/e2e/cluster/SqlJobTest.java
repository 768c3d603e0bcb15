package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

import io.weir.e2e.BackendUnderTest;
import io.weir.e2e.jobs.Await;
import io.weir.e2e.jobs.Control;
import io.weir.e2e.jobs.Failing;
import io.weir.e2e.jobs.MultisetSink;
import io.weir.e2e.jobs.NumberSource;
import io.weir.e2e.jobs.TestCluster;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.api.config.ExecutionConfigOptions;
import org.apache.flink.types.Row;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.stream.Stream;

/** SQL gives what it gives on Flink's HashMap backend, although it fails on the way. */
class SqlJobTest {
    private static final String TUMBLING =
            "TABLE(TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' SECOND))";

    /** The left and the right side of the joins. */
    private static final String LEFT = "(SELECT * FROM numbers WHERE MOD(n, 3) = 0)";

    private static final String RIGHT = "(SELECT * FROM numbers WHERE MOD(n, 3) = 1)";
    private static final String COUNTS = "(SELECT k, COUNT(*) AS c FROM numbers GROUP BY k)";
    private static final String SUMS =
            "(SELECT k, SUM(v) AS s FROM numbers WHERE MOD(k, 3) > 0 GROUP BY k)";

    enum Query {
        GROUP_BY(true, "SELECT k, t, COUNT(*), SUM(v), MIN(v), MAX(v) FROM numbers GROUP BY k, t"),
        GROUP_BY_OVER_RETRACTIONS(
                true,
                "SELECT c, COUNT(*), MIN(s), MAX(k) FROM (SELECT k, COUNT(*) AS c, SUM(v) AS s FROM"
                        + " numbers GROUP BY k) GROUP BY c"),
        DISTINCT_AGGREGATES(
                true,
                "SELECT t, COUNT(DISTINCT k), SUM(DISTINCT v), COUNT(DISTINCT v) FILTER (WHERE"
                        + " MOD(n, 2) = 0), COUNT(*) FROM numbers GROUP BY t"),
        DISTINCT_OVER_RETRACTIONS(
                true,
                "SELECT COUNT(DISTINCT c), SUM(c) FROM (SELECT k, COUNT(*) AS c FROM numbers GROUP"
                        + " BY k)"),
        JOIN(
                true,
                "SELECT a.k, a.v, b.v, b.t FROM "
                        + LEFT
                        + " AS a JOIN "
                        + RIGHT
                        + " AS b ON a.k ="
                        + " b.k"),
        JOIN_OF_UPDATES(
                true,
                "SELECT a.k, c, s FROM " + COUNTS + " AS a JOIN " + SUMS + " AS b ON a.k = b.k"),
        JOIN_OF_UPDATES_WITHOUT_UNIQUE_KEY(
                true,
                "SELECT a.k, c, b.n FROM (SELECT * FROM "
                        + COUNTS
                        + " WHERE k < 200) AS a JOIN"
                        + " (SELECT * FROM numbers WHERE MOD(n, 500) = 0) AS b ON MOD(a.c, 5) ="
                        + " MOD(b.n, 7)"),
        LEFT_JOIN(
                true,
                "SELECT a.k, a.n, b.m FROM (SELECT k, n FROM numbers WHERE MOD(n, 50) = 0) AS a"
                        + " LEFT JOIN (SELECT k, MAX(n) AS m FROM numbers GROUP BY k) AS b ON a.k ="
                        + " b.k"),
        LEFT_JOIN_OF_UPDATES(
                true,
                "SELECT a.k, c, s FROM "
                        + COUNTS
                        + " AS a LEFT JOIN "
                        + SUMS
                        + " AS b ON a.k ="
                        + " b.k"),
        FULL_JOIN(
                false,
                "SELECT a.k, a.v, b.k, b.v FROM (SELECT * FROM "
                        + LEFT
                        + " WHERE k < 300) AS a"
                        + " FULL JOIN (SELECT * FROM "
                        + RIGHT
                        + " WHERE k > 200 AND k < 400) AS b"
                        + " ON a.k = b.k"),
        SEMI_AND_ANTI_JOIN(
                false,
                "SELECT k, n FROM numbers AS a WHERE k < 300 AND k IN (SELECT k FROM "
                        + LEFT
                        + ") AND NOT EXISTS (SELECT * FROM "
                        + RIGHT
                        + " AS b WHERE b.k = a.k AND b.v > 9000)"),
        INTERVAL_JOIN(
                false,
                "SELECT a.n, b.n, a.v, b.v FROM "
                        + LEFT
                        + " AS a JOIN "
                        + RIGHT
                        + " AS b ON a.k ="
                        + " b.k AND b.ts BETWEEN a.ts - INTERVAL '5' SECOND AND a.ts + INTERVAL"
                        + " '5' SECOND"),
        INTERVAL_LEFT_JOIN(
                false,
                "SELECT a.n, b.n, a.v, b.v FROM "
                        + LEFT
                        + " AS a LEFT JOIN "
                        + RIGHT
                        + " AS b ON"
                        + " a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '5' SECOND AND a.ts +"
                        + " INTERVAL '5' SECOND"),
        TEMPORAL_JOIN(
                false,
                "SELECT a.n, a.k, a.v, b.n, b.v FROM "
                        + LEFT
                        + " AS a JOIN versions FOR"
                        + " SYSTEM_TIME AS OF a.ts AS b ON a.k = b.k"),
        TEMPORAL_LEFT_JOIN(
                false,
                "SELECT a.n, a.k, a.v, b.n, b.v FROM "
                        + LEFT
                        + " AS a LEFT JOIN versions FOR"
                        + " SYSTEM_TIME AS OF a.ts AS b ON a.k = b.k"),
        OVER_ROWS(
                false,
                "SELECT k, n, SUM(v) OVER w, COUNT(*) OVER w FROM numbers WINDOW w AS (PARTITION BY"
                        + " k ORDER BY ts ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)"),
        OVER_RANGE(
                false,
                "SELECT k, n, SUM(v) OVER w, MAX(v) OVER w FROM numbers WINDOW w AS (PARTITION BY k"
                        + " ORDER BY ts RANGE BETWEEN INTERVAL '40' SECOND PRECEDING AND CURRENT"
                        + " ROW)"),
        OVER_UNBOUNDED(
                false,
                "SELECT k, n, SUM(v) OVER w, COUNT(*) OVER w FROM numbers WINDOW w AS (PARTITION BY"
                        + " k ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"),
        TOP_N(
                true,
                "SELECT k, v, n, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v"
                        + " DESC, n) AS r FROM numbers) WHERE r <= 3"),
        TOP_N_OF_UPDATES(
                true,
                "SELECT t, k, s, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY t ORDER BY s"
                        + " DESC, k) AS r FROM (SELECT t, k, SUM(v - 5000) AS s FROM numbers GROUP"
                        + " BY t, k)) WHERE r <= 5"),
        DEDUPLICATION_FIRST(
                true,
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY p) AS r"
                        + " FROM numbers) WHERE r = 1"),
        DEDUPLICATION_LAST(
                true,
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY p DESC)"
                        + " AS r FROM numbers) WHERE r = 1"),
        DEDUPLICATION_FIRST_BY_TIME(
                true,
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS r"
                        + " FROM numbers) WHERE r = 1"),
        DEDUPLICATION_LAST_BY_TIME(
                true,
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC)"
                        + " AS r FROM numbers) WHERE r = 1"),
        TUMBLING_WINDOW(
                false,
                "SELECT k, window_start, COUNT(*), SUM(v), COUNT(DISTINCT v) FROM "
                        + TUMBLING
                        + " GROUP BY k, window_start, window_end"),
        HOPPING_WINDOW(
                false,
                "SELECT k, window_start, COUNT(*), SUM(v), COUNT(DISTINCT v) FROM"
                        + " TABLE(HOP(TABLE numbers, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL"
                        + " '8' SECOND)) WHERE k < 500 GROUP BY k, window_start, window_end"),
        CUMULATING_WINDOW(
                false,
                "SELECT k, window_start, window_end, COUNT(*), MAX(v) FROM TABLE(CUMULATE(TABLE"
                        + " numbers, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND))"
                        + " WHERE k < 500 GROUP BY k, window_start, window_end"),
        SESSION_WINDOW(
                false,
                "SELECT k, window_start, window_end, COUNT(*), SUM(v) FROM TABLE(SESSION(TABLE"
                        + " numbers PARTITION BY k, DESCRIPTOR(ts), INTERVAL '20' SECOND)) GROUP BY"
                        + " k, window_start, window_end"),
        GROUPED_SESSION_WINDOW(
                false,
                "SELECT k, SESSION_START(ts, INTERVAL '20' SECOND), COUNT(*), SUM(v),"
                        + " COUNT(DISTINCT v) FROM numbers GROUP BY k, SESSION(ts, INTERVAL '20'"
                        + " SECOND)"),
        WINDOW_TOP_N(
                false,
                "SELECT window_start, t, k, c, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY"
                        + " window_start, window_end, t ORDER BY c DESC, k) AS r FROM (SELECT"
                        + " window_start, window_end, t, k, SUM(v) AS c FROM "
                        + TUMBLING
                        + " GROUP BY window_start, window_end, t, k)) WHERE r <= 2"),
        WINDOW_JOIN(
                false,
                "SELECT a.n, b.n, a.window_start FROM (SELECT * FROM "
                        + TUMBLING
                        + " WHERE MOD(n, 3) = 0) AS a LEFT JOIN (SELECT * FROM "
                        + TUMBLING
                        + " WHERE MOD(n, 3) = 1) AS b ON a.k = b.k AND a.window_start ="
                        + " b.window_start AND a.window_end = b.window_end");

        /** Whether the plan differs with mini-batches. */
        final boolean batches;

        final String sql;

        Query(boolean batches, String sql) {
            this.batches = batches;
            this.sql = sql;
        }
    }

    /** Every query, and those that Flink runs otherwise in mini-batches a second time so. */
    static Stream<Arguments> queries() {
        // On Fluss a few, unless all are asked for: each takes several seconds there.
        boolean all = !BackendUnderTest.isOnFluss() || Boolean.getBoolean("weir.test.fluss.all");
        return Arrays.stream(Query.values())
                .filter(query -> all || query.ordinal() % 7 == 0)
                .flatMap(
                        query ->
                                (query.batches ? Stream.of(false, true) : Stream.of(false))
                                        .map(batches -> Arguments.of(query, batches)));
    }

    @TempDir static Path directory;
    private static TestCluster cluster;

    @BeforeAll
    static void start() throws Exception {
        cluster = new TestCluster(4, directory);
    }

    @AfterAll
    static void stop() throws Exception {
        cluster.close();
    }

    @ParameterizedTest(name = "{0}, in mini-batches: {1}")
    @MethodSource("queries")
    void equalsHashMap(Query query, boolean batches, @TempDir Path checkpoints) throws Exception {
        Control control = new Control();
        JobID job =
                submit(
                        query,
                        batches,
                        control,
                        TestCluster.options(checkpoints, Duration.ofMillis(100)));
        control.failOnce(Control.Failure.BEFORE_SNAPSHOT);
        Await.until(Duration.ofSeconds(60), "the failure", () -> control.failures() == 1);
        int before = control.completedCheckpoints();
        Await.until(
                Duration.ofSeconds(60),
                "a checkpoint after the restore",
                () -> control.completedCheckpoints() > before);
        assertThat(control.restoredCheckpoint()).isPositive();
        long total = control.finishAfter(3_000);
        cluster.awaitFinished(job);

        Control reference = new Control().finishAt(total);
        Configuration hashMap = TestCluster.options(checkpoints, Duration.ofMillis(100));
        hashMap.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        cluster.awaitFinished(submit(query, batches, reference, hashMap));
        assertThat(reference.restoredCheckpoint()).isZero();

        assertThat(control.results())
                .as("%d numbers", total)
                .hasSizeGreaterThan(query == Query.DISTINCT_OVER_RETRACTIONS ? 0 : 1)
                .isEqualTo(reference.results());
    }

    private static JobID submit(
            Query query, boolean batches, Control control, Configuration options) throws Exception {
        if (batches) {
            options.set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ENABLED, true);
            options.set(
                    ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ALLOW_LATENCY,
                    Duration.ofMillis(50));
            options.set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_SIZE, 200L);
        }
        StreamExecutionEnvironment environment = TestCluster.environment(options, 2);
        DataStream<Row> rows =
                environment
                        .addSource(new NumberSource(control))
                        .uid("numbers")
                        .setParallelism(1)
                        .map(new Failing(control))
                        .uid("failing")
                        .setParallelism(1)
                        .map(SqlJobTest::row)
                        .returns(
                                Types.ROW_NAMED(
                                        new String[] {"n", "k", "t", "v", "ts"},
                                        Types.LONG,
                                        Types.LONG,
                                        Types.STRING,
                                        Types.INT,
                                        Types.INSTANT))
                        .uid("rows")
                        .setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.createTemporaryView(
                "numbers",
                rows,
                Schema.newBuilder()
                        .column("n", DataTypes.BIGINT())
                        .column("k", DataTypes.BIGINT())
                        .column("t", DataTypes.STRING())
                        .column("v", DataTypes.INT())
                        .column("ts", DataTypes.TIMESTAMP_LTZ(3))
                        .columnByExpression("p", "PROCTIME()")
                        .watermark("ts", "ts - INTERVAL '2' SECOND")
                        .build());
        tables.createTemporaryView(
                "versions",
                tables.sqlQuery(
                        "SELECT k, n, v, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER"
                                + " BY ts DESC) AS r FROM numbers WHERE MOD(n, 3) = 1) WHERE r ="
                                + " 1"));
        tables.toChangelogStream(tables.sqlQuery(query.sql))
                .addSink(new MultisetSink(control))
                .uid("sink")
                .setParallelism(1);
        return cluster.submit(environment);
    }

    /** About 2,000 keys, values without order, a text, a time of 10 ms a number. */
    private static Row row(long n) {
        long mixed = (n + 1) * 0x9E3779B97F4A7C15L;
        mixed = (mixed ^ mixed >>> 30) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ mixed >>> 27) * 0x94D049BB133111EBL;
        mixed ^= mixed >>> 31;
        long k = (mixed >>> 40) % 2_000;
        int v = (int) (mixed >>> 20) % 10_000;
        return Row.of(n, k, "t" + k % 17, v, Instant.ofEpochMilli(n * 10));
    }
}
