CREATE TABLE orders (id BIGINT, day DATE, at TIMESTAMP, k INT, x DOUBLE, name CHAR(4), tags ARRAY<STRING>)
    USING parquet LOCATION 'raw/orders';
CREATE TABLE regions (k INT, region STRING) USING csv OPTIONS (header true, mode 'DROPMALFORMED')
    LOCATION 'raw/regions';
CREATE TABLE events (id BIGINT, body STRUCT<kind: STRING, n: INT>) USING delta LOCATION 'raw/events';
CREATE EXTERNAL TABLE far (id BIGINT, x INT) WITH ('connectors' = '[{"transport": {
    "name": "delta_table_input",
    "config": {"uri": "raw/far", "mode": "snapshot"}
}}]');
