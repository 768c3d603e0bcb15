-- The soak's job: one statement set, hence one Flink job. Dollar names are filled in by the soak.

-- Input: folders that Flink watches; the soak moves files into them for as long as it kills.
CREATE TABLE events (
  k BIGINT, kind INT, v BIGINT, n BIGINT
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/events', 'source.monitor-interval' = '${monitor_interval}', 'format' = 'csv'
);

CREATE TABLE names (
  k BIGINT, name STRING
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/names', 'source.monitor-interval' = '${monitor_interval}', 'format' = 'csv'
);

-- Results: every change of a result row, published exactly once, as in the demo.
CREATE TABLE totals (
  k BIGINT, events BIGINT, v_sum BIGINT, v_min BIGINT, v_max BIGINT
) WITH (${sink}, 'path' = '${output}/totals');

CREATE TABLE kinds (
  kind INT, events BIGINT, ks BIGINT, v_sum BIGINT
) WITH (${sink}, 'path' = '${output}/kinds');

CREATE TABLE last_of_kind (
  kind INT, ks BIGINT, v_min BIGINT, v_max BIGINT
) WITH (${sink}, 'path' = '${output}/last_of_kind');

CREATE TABLE named (
  kind INT, events BIGINT, named BIGINT, v_sum BIGINT, n_max BIGINT
) WITH (${sink}, 'path' = '${output}/named');

EXECUTE STATEMENT SET BEGIN

INSERT INTO totals
SELECT k, COUNT(*), SUM(v), MIN(v), MAX(v) FROM events GROUP BY k;

INSERT INTO kinds
SELECT kind, COUNT(*), COUNT(DISTINCT k), SUM(v) FROM events GROUP BY kind;

-- A newer event of a key takes the older back, so MIN and MAX must know every value that is left.
INSERT INTO last_of_kind
SELECT kind, COUNT(*), MIN(v), MAX(v)
FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY n DESC) AS place FROM events) WHERE place = 1
GROUP BY kind;

-- Most names come after events of their key, whose rows without a name are then taken back.
INSERT INTO named
SELECT kind, COUNT(*), COUNT(name), SUM(v), MAX(n) FROM events LEFT JOIN names ON events.k = names.k GROUP BY kind;

END;
