-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_filter AS
SELECT id, ts, user_id, product_id, amount FROM events WHERE kind = 'purchase' AND amount > 50;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_projection AS
SELECT id, ts, upper(kind) AS kind, amount * qty AS total, length(note) AS note_length, inserted_at FROM events;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_case AS
SELECT id, ts, CASE WHEN amount >= 400 THEN 'large' WHEN amount >= 100 THEN 'medium' ELSE 'small' END AS size, qty > 3 AS many FROM events;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_regexp AS
SELECT id, ts, regexp_extract(note, 'order ([0-9]+)', 1) AS order_no FROM events WHERE note LIKE '%order%';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_join_dimension AS
SELECT e.id, e.ts, p.category, p.brand, e.amount FROM events AS e JOIN products AS p ON p.product_id = e.product_id;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_left_dimension AS
SELECT e.id, e.ts, u.country, u.segment, e.amount FROM events AS e LEFT JOIN users AS u ON u.user_id = e.user_id AND u.segment <> 'new';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_two_dimensions AS
SELECT e.id, e.ts, u.country, p.category, e.amount - p.price AS margin
FROM events AS e JOIN users AS u ON u.user_id = e.user_id JOIN products AS p ON p.product_id = e.product_id
WHERE e.kind = 'purchase';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_semi AS
SELECT e.id, e.ts, e.user_id FROM events AS e LEFT SEMI JOIN users AS u ON u.user_id = e.user_id AND u.segment = 'vip';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_anti AS
SELECT e.id, e.ts, e.user_id FROM events AS e LEFT ANTI JOIN users AS u ON u.user_id = e.user_id AND u.segment = 'blocked';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_in AS
SELECT id, ts, product_id, amount FROM events WHERE product_id IN (SELECT product_id FROM products WHERE category = 'Books' AND active);

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_versions AS
SELECT e.id, e.ts, v.plan, e.amount
FROM events AS e JOIN user_versions AS v ON v.user_id = e.user_id AND e.ts >= v.valid_from AND e.ts < v.valid_to;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_as_of AS
SELECT e.id, e.ts, e.amount * f.rate AS amount_in_euro
FROM events AS e JOIN (
  SELECT day, rate, lead(day) OVER (ORDER BY day) AS next_day FROM fx WHERE currency = 'USD' AND dayofweek(day) = 2
) AS f ON e.day >= f.day AND e.day < f.next_day
WHERE e.kind = 'refund';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_explode AS
SELECT e.id, e.ts, t.tag FROM events AS e LATERAL VIEW explode(e.tags) t AS tag;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_json AS
SELECT id, ts, get_json_object(payload, '$.page') AS page, CAST(get_json_object(payload, '$.ms') AS INT) AS ms FROM events;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_unpivot AS
SELECT e.id, e.ts, m.measure, m.value
FROM events AS e LATERAL VIEW inline(array(named_struct('measure', 'amount', 'value', CAST(e.amount AS DOUBLE)), named_struct('measure', 'qty', 'value', CAST(e.qty AS DOUBLE)))) m AS measure, value
WHERE e.kind = 'cart';

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_union_all AS
SELECT ts, user_id, kind, amount FROM events WHERE kind = 'purchase'
UNION ALL
SELECT paid_at AS ts, user_id, method AS kind, -amount AS amount FROM payments;

-- group: row-wise
--@ persist time_column=ts
CREATE VIEW row_hash_key AS
SELECT sha2(concat_ws('|', CAST(id AS STRING), kind), 256) AS event_key, md5(CAST(user_id AS STRING)) AS user_key, ts, amount FROM events;

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_inner AS
SELECT e.id, e.ts, e.amount, p.method, p.amount AS paid FROM events AS e JOIN payments AS p ON p.event_id = e.id;

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_left AS
SELECT e.id, e.ts, e.amount, p.paid_at, coalesce(p.amount, 0) AS paid
FROM events AS e LEFT JOIN payments AS p ON p.event_id = e.id WHERE e.kind = 'purchase';

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_interval AS
SELECT e.id, e.ts, p.id AS payment_id, p.amount AS paid
FROM events AS e JOIN payments AS p ON p.user_id = e.user_id AND p.paid_at BETWEEN e.ts AND e.ts + INTERVAL 1 HOUR
WHERE e.kind = 'cart';

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_exists AS
SELECT e.id, e.ts, e.user_id, e.amount FROM events AS e
WHERE EXISTS (SELECT 1 FROM payments AS p WHERE p.event_id = e.id AND p.method = 'card');

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_not_exists AS
SELECT e.id, e.ts, e.user_id, e.amount FROM events AS e
WHERE e.kind = 'purchase' AND NOT EXISTS (SELECT 1 FROM payments AS p WHERE p.event_id = e.id);

-- group: fact joins fact
--@ persist time_column=ts
CREATE VIEW facts_and_dimension AS
SELECT e.id, e.ts, d.category, p.method, p.amount AS paid
FROM events AS e JOIN payments AS p ON p.event_id = e.id JOIN products AS d ON d.product_id = e.product_id;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_sum AS
SELECT day, sum(amount) AS amount, count(*) AS n FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_kind AS
SELECT CAST(ts AS DATE) AS day, kind, sum(amount) AS amount, sum(qty) AS qty, count(*) AS n FROM events GROUP BY CAST(ts AS DATE), kind;

-- group: by day or hour
--@ persist time_column=hour
CREATE VIEW hour_sum AS
SELECT date_trunc('HOUR', ts) AS hour, sum(amount) AS amount, count(*) AS n FROM events GROUP BY 1;

-- group: by day or hour
--@ persist time_column=hour
CREATE VIEW hour_product AS
SELECT date_trunc('HOUR', ts) AS hour, product_id, sum(qty) AS qty FROM events WHERE kind = 'purchase' GROUP BY 1, 2;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_average AS
SELECT day, avg(amount) AS amount, avg(qty) AS qty, min(amount) AS least, max(amount) AS greatest FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_deviation AS
SELECT day, kind, stddev(amount) AS deviation, corr(amount, qty) AS correlation FROM events GROUP BY day, kind;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_distinct AS
SELECT day, count(DISTINCT user_id) AS users, count(DISTINCT product_id) AS products FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_percentile AS
SELECT day, percentile(amount, 0.5) AS median, percentile(amount, 0.95) AS p95 FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_median_by_kind AS
SELECT day, kind, median(qty) AS qty, mode(qty) AS usual FROM events GROUP BY day, kind;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_approximate AS
SELECT day, approx_count_distinct(user_id) AS users FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_collect AS
SELECT day, array_sort(collect_set(kind)) AS kinds, size(collect_list(id)) AS n FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_rollup AS
SELECT day, kind, sum(amount) AS amount, grouping(kind) AS is_total FROM events GROUP BY day, ROLLUP (kind);

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_sets AS
SELECT e.day, e.kind, u.country, count(*) AS n
FROM events AS e JOIN users AS u ON u.user_id = e.user_id
GROUP BY GROUPING SETS ((e.day, e.kind), (e.day, u.country), (e.day));

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_cube AS
SELECT day, kind, qty, count(*) AS n FROM events WHERE kind IN ('purchase', 'refund') GROUP BY day, CUBE (kind, qty);

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_having AS
SELECT day, product_id, count(*) AS n FROM events GROUP BY day, product_id HAVING count(*) >= 3;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_pivot_by_case AS
SELECT day, sum(CASE WHEN kind = 'view' THEN 1 ELSE 0 END) AS views, sum(CASE WHEN kind = 'click' THEN 1 ELSE 0 END) AS clicks,
  count_if(kind = 'purchase') AS purchases, sum(amount) FILTER (WHERE kind = 'refund') AS refunded
FROM events GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_funnel AS
SELECT day, count(*) AS users, count_if(carts > 0) AS with_cart, count_if(carts > 0 AND purchases > 0) AS with_purchase
FROM (SELECT day, user_id, count_if(kind = 'cart') AS carts, count_if(kind = 'purchase') AS purchases FROM events GROUP BY day, user_id)
GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_share AS
SELECT day, kind, n, n / sum(n) OVER (PARTITION BY day) AS share
FROM (SELECT day, kind, count(*) AS n FROM events GROUP BY day, kind);

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_row_share AS
SELECT id, day, amount, amount / sum(amount) OVER (PARTITION BY day, user_id) AS share FROM events WHERE kind = 'purchase';

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_rank AS
SELECT day, product_id, amount, rank() OVER (PARTITION BY day ORDER BY amount DESC) AS place
FROM (SELECT day, product_id, sum(amount) AS amount FROM events GROUP BY day, product_id);

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_top AS
SELECT day, product_id, n FROM (SELECT day, product_id, count(*) AS n FROM events GROUP BY day, product_id)
QUALIFY row_number() OVER (PARTITION BY day ORDER BY n DESC, product_id) <= 3;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_dedupe AS
SELECT id, day, user_id, kind, amount FROM (
  SELECT *, row_number() OVER (PARTITION BY day, user_id, kind ORDER BY ts DESC, id DESC) AS place FROM events
) WHERE place = 1;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_self_join AS
SELECT a.day, a.user_id, count(*) AS pairs
FROM events AS a JOIN events AS b ON b.day = a.day AND b.user_id = a.user_id AND b.id > a.id
WHERE a.kind = 'cart' AND b.kind = 'purchase' GROUP BY a.day, a.user_id;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_left_of_dailies AS
SELECT s.day, s.amount, coalesce(p.paid, 0) AS paid
FROM (SELECT day, sum(amount) AS amount FROM events WHERE kind = 'purchase' GROUP BY day) AS s
LEFT JOIN (SELECT day, sum(amount) AS paid FROM payments GROUP BY day) AS p ON p.day = s.day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_spine AS
SELECT d.day, coalesce(count(e.id), 0) AS n FROM (SELECT DISTINCT day FROM fx) AS d
LEFT JOIN events AS e ON e.day = d.day AND e.kind = 'refund' GROUP BY d.day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_country AS
SELECT e.day, u.country, sum(e.amount) AS amount, count(DISTINCT e.user_id) AS users
FROM events AS e JOIN users AS u ON u.user_id = e.user_id GROUP BY e.day, u.country;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_category AS
SELECT e.day, p.category, sum(e.amount * e.qty) AS amount
FROM events AS e LEFT JOIN products AS p ON p.product_id = e.product_id GROUP BY e.day, p.category;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_currency AS
SELECT e.day, u.currency, sum(e.amount * f.rate) AS amount_in_euro
FROM events AS e JOIN users AS u ON u.user_id = e.user_id JOIN fx AS f ON f.day = e.day AND f.currency = u.currency
GROUP BY e.day, u.currency;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_of_some AS
SELECT day, count(*) AS n, sum(amount) AS amount FROM events
WHERE user_id IN (SELECT user_id FROM users WHERE segment = 'vip') GROUP BY day;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_tags AS
SELECT e.day, t.tag, count(*) AS n FROM events AS e LATERAL VIEW explode(e.tags) t AS tag GROUP BY e.day, t.tag;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_json AS
SELECT day, get_json_object(payload, '$.ref') AS ref, sum(CAST(get_json_object(payload, '$.ms') AS BIGINT)) AS ms FROM events GROUP BY day, get_json_object(payload, '$.ref');

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_union AS
SELECT day, user_id FROM events WHERE kind = 'purchase' UNION SELECT day, user_id FROM payments;

-- group: by day or hour
--@ persist time_column=day
CREATE VIEW day_flags AS
SELECT day, user_id, bool_or(kind = 'purchase') AS bought, max_by(kind, struct(ts, id)) AS last_kind FROM events GROUP BY day, user_id;

-- group: by day or hour
--@ persist time_column=ts
CREATE VIEW day_running AS
SELECT id, ts, user_id, sum(amount) OVER (PARTITION BY user_id, CAST(ts AS DATE) ORDER BY ts, id) AS so_far FROM events WHERE kind = 'purchase';

-- group: fact joins fact by day
--@ persist time_column=day
CREATE VIEW facts_day AS
SELECT e.day, p.method, sum(p.amount) AS paid, count(*) AS n
FROM events AS e JOIN payments AS p ON p.event_id = e.id GROUP BY e.day, p.method;

-- group: fact joins fact by day
--@ persist time_column=day
CREATE VIEW facts_lines AS
SELECT p.id AS payment_id, p.day, p.method, count(e.id) AS lines, sum(e.amount * e.qty) AS amount
FROM payments AS p LEFT JOIN events AS e ON e.user_id = p.user_id AND e.day = p.day AND e.kind = 'cart'
GROUP BY p.id, p.day, p.method;

-- group: fact joins fact by day
--@ persist time_column=day
CREATE VIEW facts_correlated AS
SELECT e.id, e.day, e.user_id,
  (SELECT count(*) FROM payments AS p WHERE p.user_id = e.user_id AND p.day = e.day) AS payments
FROM events AS e WHERE e.kind = 'cart';

-- group: upsert by merge_key
--@ persist time_column=ts merge_key=user_id { on_tie=greatest }
CREATE VIEW upsert AS
SELECT user_id, ts, id, kind, amount FROM events WHERE kind <> 'view';

-- group: by key
--@ persist
CREATE VIEW key_totals AS
SELECT user_id, sum(amount) AS amount, sum(qty) AS qty, count(*) AS n FROM events GROUP BY user_id;

-- group: by key
--@ persist
CREATE VIEW key_min_max AS
SELECT product_id, min(amount) AS least, max(amount) AS greatest, min(qty) AS fewest, max(qty) AS most FROM events GROUP BY product_id;

-- group: by key
--@ persist
CREATE VIEW key_seen AS
SELECT user_id, min(ts) AS first_seen, max(ts) AS last_seen FROM events GROUP BY user_id;

-- group: by key
--@ persist
CREATE VIEW key_average AS
SELECT product_id, avg(amount) AS amount, avg(CAST(amount AS DOUBLE) * qty) AS total FROM events GROUP BY product_id;

-- group: by key
--@ persist
CREATE VIEW key_funnel AS
SELECT user_id, count_if(kind = 'view') AS views, count_if(kind = 'cart') AS carts, count_if(kind = 'purchase') AS purchases FROM events GROUP BY user_id;

-- group: by key
--@ persist
CREATE VIEW key_balance AS
SELECT user_id, sum(amount) AS balance FROM (
  SELECT user_id, amount FROM events WHERE kind = 'purchase' UNION ALL SELECT user_id, -amount AS amount FROM payments
) GROUP BY user_id;

-- group: by key
--@ persist
CREATE VIEW key_distinct AS
SELECT DISTINCT product_id, kind FROM events;

-- group: by key
--@ persist
CREATE VIEW key_having AS
SELECT user_id, sum(amount) AS spent FROM events WHERE kind = 'purchase' GROUP BY user_id HAVING sum(amount) > 2000;

-- group: by key
--@ persist
CREATE VIEW key_top AS
SELECT product_id, id, amount FROM events QUALIFY row_number() OVER (PARTITION BY product_id ORDER BY amount DESC, id) <= 3;

-- group: by key
--@ persist
CREATE VIEW key_max_by AS
SELECT product_id, max_by(user_id, struct(amount, id)) AS best_user, max(amount) AS amount FROM events GROUP BY product_id;

-- group: by key
--@ persist
CREATE VIEW key_percentile AS
SELECT product_id, percentile(amount, 0.5) AS median FROM events GROUP BY product_id;

-- group: by key
--@ persist
CREATE VIEW key_approximate AS
SELECT product_id, approx_count_distinct(user_id) AS users FROM events GROUP BY product_id;

-- group: by key
--@ persist
CREATE VIEW key_collect AS
SELECT user_id, array_sort(collect_set(kind)) AS kinds FROM events GROUP BY user_id;

-- group: by key
--@ persist
CREATE VIEW key_dimensions AS
SELECT u.country, p.category, sum(e.amount) AS amount, count(DISTINCT e.user_id) AS users
FROM events AS e JOIN users AS u ON u.user_id = e.user_id JOIN products AS p ON p.product_id = e.product_id
GROUP BY u.country, p.category;

-- group: latest row per key
--@ persist
CREATE VIEW latest_row_number AS
SELECT user_id, id, ts, kind, amount FROM (
  SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY ts DESC, id DESC) AS place FROM events
) WHERE place = 1;

-- group: latest row per key
--@ persist
CREATE VIEW latest_qualify AS
SELECT product_id, id, ts, user_id, amount FROM events WHERE kind = 'purchase'
QUALIFY row_number() OVER (PARTITION BY product_id ORDER BY inserted_at DESC, id DESC) = 1;

-- group: sequence per key
--@ persist time_column=ts
CREATE VIEW sequence_lag AS
SELECT id, user_id, ts, kind, lag(kind) OVER (PARTITION BY user_id ORDER BY ts, id) AS previous_kind FROM events;

-- group: sequence per key
--@ persist time_column=ts
CREATE VIEW sequence_lead AS
SELECT id, user_id, ts, unix_seconds(lead(ts) OVER (PARTITION BY user_id ORDER BY ts, id)) - unix_seconds(ts) AS seconds FROM events WHERE kind = 'purchase';

-- group: sequence per key
--@ persist time_column=ts
CREATE VIEW sequence_running_total AS
SELECT id, user_id, ts, sum(amount) OVER (PARTITION BY user_id ORDER BY ts, id ROWS UNBOUNDED PRECEDING) AS total FROM events WHERE kind = 'purchase';

-- group: sequence per key
--@ persist time_column=started_at
CREATE VIEW sequence_sessions AS
SELECT user_id, session, min(ts) AS started_at, max(ts) AS ended_at, count(*) AS n FROM (
  SELECT user_id, ts, sum(is_new) OVER (PARTITION BY user_id ORDER BY ts, id ROWS UNBOUNDED PRECEDING) AS session FROM (
    SELECT id, user_id, ts, CASE WHEN lag(ts) OVER (PARTITION BY user_id ORDER BY ts, id) >= ts - INTERVAL 30 MINUTES THEN 0 ELSE 1 END AS is_new FROM events
  )
) GROUP BY user_id, session;

-- group: sequence per key
--@ persist time_column=day
CREATE VIEW sequence_cohort AS
SELECT f.first_day, e.day, count(DISTINCT e.user_id) AS users
FROM events AS e JOIN (SELECT user_id, min(day) AS first_day FROM events GROUP BY user_id) AS f ON f.user_id = e.user_id
WHERE e.kind = 'purchase' GROUP BY f.first_day, e.day;

-- group: sequence per key
--@ persist time_column=ts
CREATE VIEW sequence_first_touch AS
SELECT id, user_id, ts, amount, first_value(get_json_object(payload, '$.ref')) OVER (PARTITION BY user_id ORDER BY ts, id) AS first_ref FROM events;

-- group: sequence per key
--@ persist time_column=ts
CREATE VIEW sequence_number AS
SELECT id, user_id, ts, row_number() OVER (PARTITION BY user_id ORDER BY ts, id) AS nth FROM events WHERE kind = 'purchase';

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_average AS
SELECT day, avg(amount) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week_average
FROM (SELECT day, sum(amount) AS amount FROM events GROUP BY day);

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_range AS
SELECT day, kind, sum(n) OVER (PARTITION BY kind ORDER BY day RANGE BETWEEN INTERVAL 6 DAYS PRECEDING AND CURRENT ROW) AS of_week
FROM (SELECT day, kind, count(*) AS n FROM events GROUP BY day, kind);

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_lag AS
SELECT day, amount, amount - lag(amount) OVER (ORDER BY day) AS gained FROM (SELECT day, sum(amount) AS amount FROM events GROUP BY day);

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_join AS
SELECT t.day, t.n, y.n AS n_before
FROM (SELECT day, count(*) AS n FROM events GROUP BY day) AS t
JOIN (SELECT day, count(*) AS n FROM events GROUP BY day) AS y ON y.day = date_add(t.day, -1);

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_returning AS
SELECT t.day, count(*) AS returning FROM (SELECT DISTINCT day, user_id FROM events) AS t
JOIN (SELECT DISTINCT date_add(day, 7) AS day, user_id FROM events) AS w ON w.day = t.day AND w.user_id = t.user_id GROUP BY t.day;

-- group: shifted time
--@ persist time_column=day
CREATE VIEW shift_monthly_actives AS
SELECT d.day, count(DISTINCT a.user_id) AS users
FROM (SELECT DISTINCT day FROM events) AS d
JOIN (SELECT DISTINCT day, user_id FROM events WHERE kind = 'purchase') AS a ON a.day > date_add(d.day, -28) AND a.day <= d.day
GROUP BY d.day;

-- group: other steps of time
--@ persist time_column=bucket
CREATE VIEW step_bucket AS
SELECT timestamp_seconds(unix_seconds(ts) DIV 900 * 900) AS bucket, count(*) AS n FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=hour
CREATE VIEW step_millis AS
SELECT date_trunc('HOUR', timestamp_millis(paid_ms)) AS hour, sum(amount) AS paid FROM payments GROUP BY 1;

-- group: other steps of time
--@ persist time_column=hour
CREATE VIEW step_seconds AS
SELECT date_trunc('HOUR', timestamp_seconds(paid_ms DIV 1000)) AS hour, count(*) AS n FROM payments GROUP BY 1;

-- group: other steps of time
--@ persist time_column=day
CREATE VIEW step_micros AS
SELECT CAST(timestamp_micros(paid_ms * 1000) AS DATE) AS day, count(*) AS n FROM payments GROUP BY 1;

-- group: other steps of time
--@ persist time_column=day
CREATE VIEW step_interval AS
SELECT CAST(ts - INTERVAL 6 HOURS AS DATE) AS day, sum(amount) AS amount FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=due
CREATE VIEW step_date_add AS
SELECT date_add(day, 14) AS due, sum(amount) AS amount FROM events WHERE kind = 'purchase' GROUP BY 1;

-- group: other steps of time
--@ persist time_column=month_end
CREATE VIEW step_last_day AS
SELECT last_day(day) AS month_end, sum(amount) AS amount FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=month
CREATE VIEW step_make_date AS
SELECT make_date(year(day), month(day), 1) AS month, count(*) AS n FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=day
CREATE VIEW step_from_utc AS
SELECT CAST(from_utc_timestamp(ts, 'Europe/Berlin') AS DATE) AS day, count(*) AS n FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=month
CREATE VIEW step_format AS
SELECT date_format(ts, 'yyyy-MM') AS month, sum(amount) AS amount FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=day
CREATE VIEW step_coalesce AS
SELECT CAST(coalesce(inserted_at, ts) AS DATE) AS day, count(*) AS n FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=block
CREATE VIEW step_div AS
SELECT id DIV 1000 AS block, count(*) AS n, sum(amount) AS amount FROM events GROUP BY 1;

-- group: other steps of time
--@ persist time_column=day
CREATE VIEW step_substring AS
SELECT to_date(substr(paid_text, 1, 10)) AS day, sum(amount) AS paid FROM payments GROUP BY 1;

-- group: other steps of time
--@ persist time_column=month
CREATE VIEW step_trunc AS
SELECT trunc(day, 'MM') AS month, kind, sum(amount) AS amount FROM events GROUP BY 1, 2;

-- group: other steps of time
--@ persist time_column=month
CREATE VIEW step_month_of_daily AS
SELECT CAST(date_trunc('MONTH', day) AS DATE) AS month, sum(amount) AS amount, sum(n) AS n FROM day_sum GROUP BY 1;

-- group: other steps of time
--@ persist time_column=begins
CREATE VIEW step_window AS
SELECT window.start AS begins, count(*) AS n FROM events GROUP BY window(ts, '15 minutes');

-- group: clock
--@ persist time_column=day
CREATE VIEW clock_last_days AS
SELECT id, day, user_id, amount FROM events WHERE day >= date_add(current_date(), -30);

-- group: clock
--@ persist
CREATE VIEW clock_age AS
SELECT user_id, datediff(current_date(), max(day)) AS days FROM events GROUP BY user_id;

-- group: draws lots
--@ persist time_column=ts
CREATE VIEW lots_sample AS
SELECT id, ts, amount FROM events WHERE rand() < 0.01;

-- group: draws lots
--@ persist time_column=day
CREATE VIEW lots_loaded_at AS
SELECT day, sum(amount) AS amount, current_timestamp() AS loaded_at FROM events GROUP BY day;

-- group: over everything
--@ persist time_column=day
CREATE VIEW all_full_join AS
SELECT coalesce(s.day, p.day) AS day, s.n, p.paid
FROM (SELECT day, count(*) AS n FROM events WHERE kind = 'refund' GROUP BY day) AS s
FULL JOIN (SELECT day, sum(amount) AS paid FROM payments GROUP BY day) AS p ON p.day = s.day;

-- group: over everything
--@ persist time_column=day
CREATE VIEW all_pivot AS
SELECT * FROM (SELECT day, kind, amount FROM events) PIVOT (sum(amount) FOR kind IN ('view' AS views, 'click' AS clicks, 'purchase' AS purchases));

-- group: over everything
--@ persist time_column=ts
CREATE VIEW all_self_join AS
SELECT b.id, b.ts, b.user_id, a.kind AS kind_before FROM events AS a JOIN events AS b ON b.id = a.id + 1 WHERE b.kind = 'purchase';

-- group: over everything
--@ persist
CREATE VIEW all_top AS
SELECT id, user_id, amount FROM events ORDER BY amount DESC, id LIMIT 100;

-- group: over everything
--@ persist
CREATE VIEW all_share AS
SELECT product_id, amount / sum(amount) OVER () AS share FROM (SELECT product_id, sum(amount) AS amount FROM events GROUP BY product_id);

-- group: over everything
--@ persist
CREATE VIEW all_numbered AS
SELECT row_number() OVER (ORDER BY user_id) AS user_no, user_id FROM (SELECT DISTINCT user_id FROM events);

-- group: over everything
--@ persist
CREATE VIEW all_max AS
SELECT max(ts) AS last_ts, max(inserted_at) AS last_insert, count(*) AS n FROM events;
