CREATE TABLE events (id BIGINT, ts TIMESTAMP, day DATE, user_id BIGINT, product_id BIGINT, kind STRING, amount DECIMAL(12,2), qty INT, note STRING, inserted_at TIMESTAMP, tags ARRAY<STRING>, payload STRING) USING delta LOCATION 'raw/events';
CREATE TABLE payments (id BIGINT, event_id BIGINT, paid_at TIMESTAMP, day DATE, user_id BIGINT, method STRING, amount DECIMAL(12,2), paid_ms BIGINT, paid_text STRING) USING delta LOCATION 'raw/payments';
CREATE TABLE users (user_id BIGINT, name STRING, country STRING, segment STRING, currency STRING, signup DATE, score DOUBLE) USING delta LOCATION 'raw/users';
CREATE TABLE user_versions (user_id BIGINT, plan STRING, valid_from TIMESTAMP, valid_to TIMESTAMP) USING delta LOCATION 'raw/user_versions';
CREATE TABLE products (product_id BIGINT, title STRING, category STRING, brand STRING, price DECIMAL(10,2), active BOOLEAN) USING delta LOCATION 'raw/products';
CREATE TABLE fx (day DATE, currency STRING, rate DECIMAL(12,6)) USING delta LOCATION 'raw/fx';
