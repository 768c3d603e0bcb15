package io.weir.e2e.cluster;

import static org.assertj.core.api.Assertions.assertThat;

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
import org.apache.flink.types.Row;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;

/** SQL gives what it gives on Flink's HashMap backend, although it fails on the way. */
class SqlJobTest {
    enum Query {
        GROUP_BY(
                "SELECT k, t, COUNT(*), SUM(v), MIN(v), MAX(v), COUNT(DISTINCT v % 10) FROM numbers"
                        + " GROUP BY k, t"),
        GROUP_BY_OVER_RETRACTIONS(
                "SELECT c, COUNT(*), MIN(s), MAX(k) FROM (SELECT k, COUNT(*) AS c, SUM(v) AS s FROM"
                        + " numbers GROUP BY k) GROUP BY c"),
        JOIN(
                "SELECT a.k, a.v, b.v, b.t FROM (SELECT * FROM numbers WHERE MOD(n, 3) = 0) AS a"
                        + " JOIN (SELECT * FROM numbers WHERE MOD(n, 3) = 1) AS b ON a.k = b.k"),
        LEFT_JOIN(
                "SELECT a.k, a.n, b.m FROM (SELECT k, n FROM numbers WHERE MOD(n, 50) = 0) AS a"
                        + " LEFT JOIN (SELECT k, MAX(n) AS m FROM numbers GROUP BY k) AS b ON a.k ="
                        + " b.k"),
        TOP_N(
                "SELECT k, v, n, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v"
                        + " DESC, n) AS r FROM numbers) WHERE r <= 3"),
        DEDUPLICATION_FIRST(
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY p) AS r"
                        + " FROM numbers) WHERE r = 1"),
        DEDUPLICATION_LAST(
                "SELECT k, v, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC)"
                        + " AS r FROM numbers) WHERE r = 1"),
        TUMBLING_WINDOW(
                "SELECT k, window_start, COUNT(*), SUM(v) FROM"
                        + " TABLE(TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
                        + " GROUP BY k, window_start, window_end");

        final String sql;

        Query(String sql) {
            this.sql = sql;
        }
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

    @ParameterizedTest
    @EnumSource
    void equalsHashMap(Query query, @TempDir Path checkpoints) throws Exception {
        Control control = new Control();
        JobID job =
                submit(query, control, TestCluster.options(checkpoints, Duration.ofMillis(100)));
        control.failOnce(Control.Failure.BEFORE_SNAPSHOT);
        Await.until(Duration.ofSeconds(60), "the failure", () -> control.failures() == 1);
        int before = control.completedCheckpoints();
        Await.until(
                Duration.ofSeconds(60),
                "a checkpoint after the restore",
                () -> control.completedCheckpoints() > before);
        long total = control.finishAfter(3_000);
        cluster.awaitFinished(job);

        Control reference = new Control().finishAt(total);
        Configuration hashMap = TestCluster.options(checkpoints, Duration.ofMillis(100));
        hashMap.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        cluster.awaitFinished(submit(query, reference, hashMap));

        System.out.printf(
                "%s: %d numbers, %d result rows%n", query, total, control.results().size());
        assertThat(control.results()).hasSizeGreaterThan(1).isEqualTo(reference.results());
    }

    private static JobID submit(Query query, Control control, Configuration options)
            throws Exception {
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
        tables.toChangelogStream(tables.sqlQuery(query.sql))
                .addSink(new MultisetSink(control))
                .uid("sink")
                .setParallelism(1);
        return cluster.submit(environment);
    }

    /** About 2,000 keys, values without order, a text, a time of 10 ms a number. */
    private static Row row(long n) {
        long mixed = n * 0x9E3779B97F4A7C15L;
        long k = (mixed >>> 40) % 2_000;
        int v = (int) (mixed >>> 20) % 10_000;
        return Row.of(n, k, "t" + k % 17, v, Instant.ofEpochMilli(n * 10));
    }
}
