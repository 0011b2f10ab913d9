-- The raw data: what other people write and we only read.

-- All 336,776 departures from New York City's airports in 2013.
CREATE TABLE flights_raw USING parquet LOCATION '.persist/demo/flights';

-- Hourly weather at the three airports, in a lake of others: a version for each quarter of the year.
-- What is needed of it is held here, and followed: these seven of its fifteen columns.
CREATE EXTERNAL TABLE weather_raw (
  origin STRING,
  time_hour TIMESTAMP,
  temp DOUBLE,
  wind_speed DOUBLE,
  precip DOUBLE,
  pressure DOUBLE,
  visib DOUBLE
) WITH (
  'connectors' = '[{
    "transport": {
      "name": "delta_table_input",
      "config": {"uri": ".persist/demo/weather"}
    }
  }]'
);

-- The aircraft, by tail number.
CREATE TABLE planes USING parquet LOCATION '.persist/demo/planes';

-- Names of the carriers.
CREATE TABLE airlines (carrier STRING, name STRING)
USING csv OPTIONS (header true) LOCATION '.persist/demo/airlines';

-- Where the airports are.
CREATE TABLE airports USING parquet LOCATION '.persist/demo/airports';
