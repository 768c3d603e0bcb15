-- What DuckDB computes from the same files: one query a result table of job.sql, with the same column names.

-- table: events
SELECT * FROM read_csv('${input}/events/*.csv', header = false,
  columns = {'k': 'BIGINT', 'kind': 'INT', 'v': 'BIGINT', 'n': 'BIGINT'});

-- table: names
SELECT * FROM read_csv('${input}/names/*.csv', header = false, columns = {'k': 'BIGINT', 'name': 'VARCHAR'});

-- result: totals | events by key: value state
SELECT k, count(*) AS events, sum(v)::BIGINT AS v_sum, min(v) AS v_min, max(v) AS v_max FROM events GROUP BY k;

-- result: kinds | keys seen in each kind: map state
SELECT kind, count(*) AS events, count(DISTINCT k) AS ks, sum(v)::BIGINT AS v_sum FROM events GROUP BY kind;

-- result: last_of_kind | extremes of each key's last event, older ones taken back: map state
SELECT kind, count(*) AS ks, min(v) AS v_min, max(v) AS v_max
FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY n DESC) AS place FROM events) WHERE place = 1
GROUP BY kind;

-- result: named | every event joined with a name that comes later: state that keeps all input
SELECT kind, count(*) AS events, count(name) AS named, sum(v)::BIGINT AS v_sum, max(n) AS n_max
FROM events LEFT JOIN names ON events.k = names.k GROUP BY kind;
