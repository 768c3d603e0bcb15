-- What DuckDB computes from the same files: one query a result table of job.sql, with the same column names.
-- The demo fills in the folder with the very files that Flink read. "table" is read once, "result" is
-- compared, row by row. The part between the two marks "big" is kept with --big only.

-- table: flights
SELECT * FROM read_csv('${input}/flights/*.csv', header = false, nullstr = 'NA', columns = {
  'year': 'INT', 'month': 'INT', 'day': 'INT', 'dep_time': 'INT', 'sched_dep_time': 'INT', 'dep_delay': 'INT',
  'arr_time': 'INT', 'sched_arr_time': 'INT', 'arr_delay': 'INT', 'carrier': 'VARCHAR', 'flight': 'INT', 'tailnum': 'VARCHAR',
  'origin': 'VARCHAR', 'dest': 'VARCHAR', 'air_time': 'INT', 'distance': 'INT', 'hour': 'INT', 'minute': 'INT', 'time_hour': 'VARCHAR'});

-- table: weather
SELECT * FROM read_csv('${input}/weather/*.csv', header = false, nullstr = 'NA', columns = {
  'origin': 'VARCHAR', 'year': 'INT', 'month': 'INT', 'day': 'INT', 'hour': 'INT', 'temp': 'DECIMAL(5, 2)', 'dewp': 'VARCHAR',
  'humid': 'VARCHAR', 'wind_dir': 'INT', 'wind_speed': 'VARCHAR', 'wind_gust': 'VARCHAR', 'precip': 'DECIMAL(4, 2)',
  'pressure': 'VARCHAR', 'visib': 'VARCHAR', 'time_hour': 'VARCHAR'});

-- table: planes
SELECT * FROM read_csv('${input}/planes/*.csv', header = false, nullstr = 'NA', columns = {
  'tailnum': 'VARCHAR', 'year': 'INT', 'type': 'VARCHAR', 'manufacturer': 'VARCHAR', 'model': 'VARCHAR', 'engines': 'INT',
  'seats': 'INT', 'speed': 'INT', 'engine': 'VARCHAR'});

-- result: carriers | aggregates by carrier, with MIN and MAX
SELECT carrier, count(*) AS flights, count(arr_delay) AS arrived, sum(distance) AS miles, sum(dep_delay) AS delay_sum,
  min(arr_delay) AS delay_min, max(arr_delay) AS delay_max
FROM flights GROUP BY carrier;

-- result: routes | aggregates by route, with the number of different planes
SELECT origin, dest, count(*) AS flights, count(DISTINCT tailnum) AS planes,
  min(air_time) AS air_time_min, max(air_time) AS air_time_max, sum(arr_delay) AS delay_sum
FROM flights GROUP BY origin, dest;

-- result: journeys | every flight joined with its plane and the weather of its hour
SELECT f.month, f.day, f.carrier, f.flight, f.origin, f.dest, f.sched_dep_time, f.tailnum, f.arr_delay,
  p.manufacturer, p.seats, w.temp, w.precip
FROM flights f
LEFT JOIN planes p ON f.tailnum = p.tailnum
LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour;

-- result: makers | delays by the plane's maker, dry and in rain: aggregates over the join
SELECT p.manufacturer, w.precip > 0 AS rain, count(*) AS flights, sum(f.distance) AS miles,
  min(f.arr_delay) AS delay_min, max(f.arr_delay) AS delay_max
FROM flights f
JOIN planes p ON f.tailnum = p.tailnum
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
GROUP BY ALL;

-- result: worst_of_day | Top-N: the three latest departures of each day
SELECT month, day, place, dep_delay, carrier, flight, origin
FROM (
  SELECT *, row_number() OVER (PARTITION BY month, day ORDER BY dep_delay DESC, carrier, flight) AS place
  FROM flights WHERE dep_delay IS NOT NULL
) WHERE place <= 3;

-- result: last_flights | deduplication: the last flight of each tail number
SELECT tailnum, month, day, sched_dep_time, carrier, flight, origin, dest
FROM flights WHERE tailnum IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY tailnum ORDER BY time_hour DESC, minute DESC, flight DESC) = 1;

-- result: fleets | MIN and MAX with retraction: each carrier's planes by their last flight
WITH last_flights AS (
  SELECT * FROM flights WHERE tailnum IS NOT NULL
  QUALIFY row_number() OVER (PARTITION BY tailnum ORDER BY time_hour DESC, minute DESC, flight DESC) = 1)
SELECT carrier, count(*) AS planes, count(DISTINCT dest) AS places,
  min(sched_dep_time) AS departure_min, max(sched_dep_time) AS departure_max
FROM last_flights GROUP BY carrier;

-- big: begin
-- table: readings
SELECT * FROM read_csv('${input}/readings/*.csv', header = false, columns = {'sensor': 'BIGINT', 'reading': 'BIGINT'});

-- result: sensors | a wide aggregate over many generated keys
SELECT sensor, count(*) AS readings, sum(reading) AS total, md5(max(
  concat(sha256(concat('a', sensor * 7 + reading)), sha256(concat('b', sensor * 7 + reading)),
         sha256(concat('c', sensor * 7 + reading)), sha256(concat('d', sensor * 7 + reading))))) AS digest
FROM readings GROUP BY sensor;
-- big: end
