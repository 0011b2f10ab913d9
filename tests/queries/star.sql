-- # brands by month
SELECT dt.d_year AS year, i.i_brand AS brand, sum(ss.ss_ext_sales_price) AS sum_agg FROM date_dim dt, store_sales ss, item i WHERE dt.d_date_sk = ss.ss_sold_date_sk AND ss.ss_item_sk = i.i_item_sk AND i.i_manager_id = 1 AND dt.d_moy = 11 GROUP BY dt.d_year, i.i_brand
-- # customers who returned more than the average of their store
WITH ctr AS (SELECT sr_customer_sk AS cust, sr_store_sk AS store_sk, sum(sr_return_amt) AS total FROM store_returns JOIN date_dim ON sr_returned_date_sk = d_date_sk WHERE d_year = 2000 GROUP BY sr_customer_sk, sr_store_sk) SELECT c.c_customer_id FROM ctr c1 JOIN store s ON s.s_store_sk = c1.store_sk JOIN customer c ON c.c_customer_sk = c1.cust WHERE c1.total > (SELECT avg(c2.total) * 1.2 FROM ctr c2 WHERE c1.store_sk = c2.store_sk) AND s.s_state = 'TN'
-- # all channels by weekday
WITH wscs AS (SELECT ws_sold_date_sk AS sold, ws_ext_sales_price AS price FROM web_sales UNION ALL SELECT cs_sold_date_sk, cs_ext_sales_price FROM catalog_sales) SELECT d.d_year AS y, sum(CASE WHEN d.d_day_name = 'Sunday' THEN x.price END) AS sunday, sum(CASE WHEN d.d_day_name = 'Monday' THEN x.price END) AS monday FROM wscs x JOIN date_dim d ON d.d_date_sk = x.sold GROUP BY d.d_year
-- # year over year by customer
WITH yt AS (SELECT c.c_customer_id AS id, d.d_year AS y, sum(ss.ss_net_profit) AS total, 's' AS kind FROM customer c, store_sales ss, date_dim d WHERE c.c_customer_sk = ss.ss_customer_sk AND ss.ss_sold_date_sk = d.d_date_sk GROUP BY c.c_customer_id, d.d_year UNION ALL SELECT c.c_customer_id AS id, d.d_year AS y, sum(ws.ws_net_profit) AS total, 'w' AS kind FROM customer c, web_sales ws, date_dim d WHERE c.c_customer_sk = ws.ws_bill_customer_sk AND ws.ws_sold_date_sk = d.d_date_sk GROUP BY c.c_customer_id, d.d_year) SELECT s1.id FROM yt s1, yt s2, yt w1, yt w2 WHERE s2.id = s1.id AND s1.id = w1.id AND w2.id = s1.id AND s1.kind = 's' AND w1.kind = 'w' AND s2.kind = 's' AND w2.kind = 'w' AND s1.y = 2000 AND s2.y = 2001 AND w1.y = 2000 AND w2.y = 2001 AND w2.total * s1.total > s2.total * w1.total
-- # rollup of channels
WITH ssr AS (SELECT s_store_name AS name, sum(ss_ext_sales_price) AS sales, sum(ss_net_profit) AS profit FROM store_sales, store WHERE ss_store_sk = s_store_sk GROUP BY s_store_name), csr AS (SELECT i_category AS name, sum(cs_ext_sales_price) AS sales, sum(cs_net_profit) AS profit FROM catalog_sales, item WHERE cs_item_sk = i_item_sk GROUP BY i_category) SELECT channel, name, sum(sales) AS sales, sum(profit) AS profit FROM (SELECT 'store' AS channel, name, sales, profit FROM ssr UNION ALL SELECT 'catalog' AS channel, name, sales, profit FROM csr) x GROUP BY ROLLUP (channel, name)
-- # states with dear items
SELECT a.ca_state AS state, count(*) AS cnt FROM customer_address a, customer c, store_sales s, date_dim d, item i WHERE a.ca_address_sk = c.c_current_addr_sk AND c.c_customer_sk = s.ss_customer_sk AND s.ss_sold_date_sk = d.d_date_sk AND s.ss_item_sk = i.i_item_sk AND d.d_year = 2001 AND i.i_current_price > 1.2 * (SELECT avg(j.i_current_price) FROM item j WHERE j.i_category = i.i_category) GROUP BY a.ca_state HAVING count(*) >= 2
-- # averages of promoted sales
SELECT i_item_id, avg(ss_quantity) AS agg1, avg(ss_sales_price) AS agg2 FROM store_sales, item, promotion WHERE ss_item_sk = i_item_sk AND ss_promo_sk = p_promo_sk AND (p_channel_email = 'N' OR p_channel_tv = 'N') GROUP BY i_item_id
-- # buckets of quantity
SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 5) > 20 THEN (SELECT avg(ss_ext_sales_price) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 5) ELSE (SELECT avg(ss_net_profit) FROM store_sales WHERE ss_quantity BETWEEN 6 AND 10) END AS bucket1, s_store_name FROM store WHERE s_store_sk = 1
-- # customers of several channels
SELECT c.c_birth_year AS birth, count(*) AS cnt FROM customer c WHERE EXISTS (SELECT * FROM store_sales s, date_dim d WHERE c.c_customer_sk = s.ss_customer_sk AND s.ss_sold_date_sk = d.d_date_sk AND d.d_year = 2000) AND (EXISTS (SELECT * FROM web_sales w WHERE c.c_customer_sk = w.ws_bill_customer_sk) OR EXISTS (SELECT * FROM catalog_sales k WHERE c.c_customer_sk = k.cs_bill_customer_sk)) GROUP BY c.c_birth_year
-- # share of a class
SELECT i.i_item_id AS id, i.i_class AS class, sum(w.ws_ext_sales_price) AS revenue, sum(w.ws_ext_sales_price) * 100 / sum(sum(w.ws_ext_sales_price)) OVER (PARTITION BY i.i_class) AS share FROM web_sales w JOIN item i ON w.ws_item_sk = i.i_item_sk WHERE i.i_category IN ('Books', 'Music') GROUP BY i.i_item_id, i.i_class
-- # items sold in all channels
WITH cross_items AS (SELECT i.i_item_sk AS sk FROM item i JOIN (SELECT a.i_brand AS b, a.i_class AS cl FROM store_sales ss JOIN item a ON ss.ss_item_sk = a.i_item_sk INTERSECT SELECT b.i_brand, b.i_class FROM catalog_sales cs JOIN item b ON cs.cs_item_sk = b.i_item_sk INTERSECT SELECT e.i_brand, e.i_class FROM web_sales ws JOIN item e ON ws.ws_item_sk = e.i_item_sk) x ON i.i_brand = x.b AND i.i_class = x.cl) SELECT s.ss_store_sk AS store, sum(s.ss_quantity) AS q FROM store_sales s WHERE s.ss_item_sk IN (SELECT sk FROM cross_items) GROUP BY s.ss_store_sk
-- # customers of stores only
SELECT count(*) AS n FROM (SELECT DISTINCT c.c_last_name AS l, c.c_first_name AS f FROM store_sales s JOIN customer c ON s.ss_customer_sk = c.c_customer_sk EXCEPT SELECT DISTINCT c.c_last_name, c.c_first_name FROM web_sales w JOIN customer c ON w.ws_bill_customer_sk = c.c_customer_sk EXCEPT SELECT DISTINCT c.c_last_name, c.c_first_name FROM catalog_sales k JOIN customer c ON k.cs_bill_customer_sk = c.c_customer_sk) cool
-- # cube of customers and items
SELECT i.i_category AS cat, i.i_class AS cls, avg(s.ss_quantity) AS q, grouping(i.i_category) AS g FROM store_sales s JOIN item i ON s.ss_item_sk = i.i_item_sk GROUP BY CUBE (i.i_category, i.i_class)
-- # grouping sets of places
SELECT s_state, s_county, sum(ss_net_profit) AS profit, grouping_id(s_state, s_county) AS gid FROM store_sales JOIN store ON ss_store_sk = s_store_sk GROUP BY GROUPING SETS ((s_state, s_county), (s_state), ())
-- # rank within a hierarchy
SELECT total, cat, cls, lochierarchy, rank() OVER (PARTITION BY lochierarchy, CASE WHEN lochierarchy = 0 THEN cat END ORDER BY total DESC) AS rank_within FROM (SELECT sum(w.ws_net_profit) AS total, i.i_category AS cat, i.i_class AS cls, grouping(i.i_category) + grouping(i.i_class) AS lochierarchy FROM web_sales w JOIN item i ON i.i_item_sk = w.ws_item_sk GROUP BY ROLLUP (i.i_category, i.i_class)) t
-- # first sales of a customer by row number
SELECT id, price FROM (SELECT c.c_customer_id AS id, s.ss_sales_price AS price, row_number() OVER (PARTITION BY c.c_customer_sk ORDER BY s.ss_ticket_number, s.ss_item_sk, s.ss_sales_price) AS rn FROM customer c JOIN store_sales s ON s.ss_customer_sk = c.c_customer_sk) r WHERE rn = 1
-- # running sums of days
SELECT d.d_date AS day, sum(sum(s.ss_quantity)) OVER (ORDER BY d.d_date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS running FROM store_sales s JOIN date_dim d ON s.ss_sold_date_sk = d.d_date_sk GROUP BY d.d_date
-- # tags of items sold
SELECT tag, count(*) AS n FROM store_sales s JOIN item i ON s.ss_item_sk = i.i_item_sk LATERAL VIEW explode(i.i_tags) g AS tag GROUP BY tag
-- # sizes of items
SELECT i.i_item_id AS id, sz, cnt FROM item i LATERAL VIEW OUTER explode(i.i_sizes) g AS sz, cnt WHERE cnt IS NULL OR cnt > 1
-- # positions of tags
SELECT i.i_category AS cat, max(pos) AS last FROM item i LATERAL VIEW posexplode(i.i_tags) g AS pos, tag WHERE tag <> 'new' GROUP BY i.i_category
-- # two laterals
SELECT i.i_item_sk AS sk, tag, sz FROM item i LATERAL VIEW explode(i.i_tags) a AS tag LATERAL VIEW explode(map_keys(i.i_sizes)) b AS sz WHERE tag = sz OR length(tag) > 3
-- # pivot of quarters
SELECT * FROM (SELECT d.d_year AS y, d.d_qoy AS q, s.ss_quantity AS n FROM store_sales s JOIN date_dim d ON s.ss_sold_date_sk = d.d_date_sk) PIVOT (sum(n) FOR q IN (1 AS q1, 2 AS q2, 3 AS q3, 4 AS q4))
-- # pivot of categories
SELECT * FROM (SELECT i_category AS cat, i_class AS cls, i_current_price AS p FROM item) PIVOT (max(p) AS dearest FOR cat IN ('Books' AS books, 'Music' AS music))
-- # quarters by hand
SELECT d.d_year AS y, sum(s.ss_quantity) FILTER (WHERE d.d_qoy = 1) AS q1, sum(s.ss_quantity) FILTER (WHERE d.d_qoy = 2) AS q2 FROM store_sales s JOIN date_dim d ON s.ss_sold_date_sk = d.d_date_sk GROUP BY d.d_year
-- # best item of a category by window
SELECT cat, id FROM (SELECT i.i_category AS cat, i.i_item_id AS id, dense_rank() OVER (PARTITION BY i.i_category ORDER BY i.i_current_price DESC) AS r FROM item i) x WHERE r <= 2
-- # sales that were returned
SELECT s.ss_item_sk AS sk, s.ss_ticket_number AS ticket, r.sr_return_quantity AS back FROM store_sales s LEFT JOIN store_returns r ON s.ss_item_sk = r.sr_item_sk AND s.ss_ticket_number = r.sr_ticket_number WHERE s.ss_quantity > 3
-- # sales that were never returned
SELECT s.ss_item_sk AS sk, s.ss_quantity AS q FROM store_sales s LEFT ANTI JOIN store_returns r ON s.ss_item_sk = r.sr_item_sk AND s.ss_ticket_number = r.sr_ticket_number
-- # customers with any return
SELECT c.c_customer_id AS id FROM customer c LEFT SEMI JOIN store_returns r ON c.c_customer_sk = r.sr_customer_sk WHERE c.c_birth_year > 1950
-- # everything of two channels
SELECT coalesce(w.sk, k.sk) AS sk, w.q AS web, k.q AS catalog FROM (SELECT ws_item_sk AS sk, sum(ws_quantity) AS q FROM web_sales GROUP BY ws_item_sk) w FULL OUTER JOIN (SELECT cs_item_sk AS sk, sum(cs_quantity) AS q FROM catalog_sales GROUP BY cs_item_sk) k ON w.sk = k.sk
-- # stores with and without sales
SELECT st.s_store_name AS name, count(s.ss_item_sk) AS n FROM store_sales s RIGHT JOIN store st ON s.ss_store_sk = st.s_store_sk AND s.ss_quantity > 5 GROUP BY st.s_store_name
-- # items no one bought
SELECT i.i_item_id AS id FROM item i WHERE i.i_item_sk NOT IN (SELECT s.ss_item_sk FROM store_sales s WHERE s.ss_item_sk IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM web_sales w WHERE w.ws_item_sk = i.i_item_sk)
-- # neighbours in a window
SELECT d.d_date_sk AS sk, d.d_year AS y, lag(d.d_date, 1) OVER (PARTITION BY d.d_year ORDER BY d.d_date) AS before, lead(d.d_date, 1) OVER (PARTITION BY d.d_year ORDER BY d.d_date) AS after FROM date_dim d
-- # moving averages
SELECT i.i_category AS cat, d.d_moy AS m, avg(sum(s.ss_sales_price)) OVER (PARTITION BY i.i_category ORDER BY d.d_moy RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS moving FROM store_sales s, item i, date_dim d WHERE s.ss_item_sk = i.i_item_sk AND s.ss_sold_date_sk = d.d_date_sk GROUP BY i.i_category, d.d_moy
-- # months above the average of their year
WITH v1 AS (SELECT i.i_category AS cat, d.d_year AS y, d.d_moy AS m, sum(s.ss_sales_price) AS sum_sales, avg(sum(s.ss_sales_price)) OVER (PARTITION BY i.i_category, d.d_year) AS avg_monthly, rank() OVER (PARTITION BY i.i_category ORDER BY d.d_year, d.d_moy) AS rn FROM item i, store_sales s, date_dim d WHERE s.ss_item_sk = i.i_item_sk AND s.ss_sold_date_sk = d.d_date_sk GROUP BY i.i_category, d.d_year, d.d_moy) SELECT a.cat, a.y, a.m, a.sum_sales, b.sum_sales AS psum, e.sum_sales AS nsum FROM v1 a, v1 b, v1 e WHERE a.cat = b.cat AND a.cat = e.cat AND a.rn = b.rn + 1 AND a.rn = e.rn - 1 AND a.avg_monthly > 0
-- # best and worst
SELECT b.rnk AS rnk, b.sk AS best, w.sk AS worst FROM (SELECT sk, rank() OVER (ORDER BY p) AS rnk FROM (SELECT ss_item_sk AS sk, avg(ss_net_profit) AS p FROM store_sales GROUP BY ss_item_sk) v) w JOIN (SELECT sk, rank() OVER (ORDER BY p DESC) AS rnk FROM (SELECT ss_item_sk AS sk, avg(ss_net_profit) AS p FROM store_sales GROUP BY ss_item_sk) v) b ON w.rnk = b.rnk WHERE b.rnk < 4
-- # towns bought in and lived in
SELECT c.c_last_name AS name, dn.bought AS bought, a.ca_city AS home FROM (SELECT s.ss_customer_sk AS cust, st.s_county AS bought, sum(s.ss_net_profit) AS p FROM store_sales s, store st, date_dim d WHERE s.ss_store_sk = st.s_store_sk AND s.ss_sold_date_sk = d.d_date_sk AND d.d_day_name IN ('Saturday', 'Sunday') GROUP BY s.ss_customer_sk, st.s_county) dn, customer c, customer_address a WHERE dn.cust = c.c_customer_sk AND c.c_current_addr_sk = a.ca_address_sk AND a.ca_city <> dn.bought
-- # zip codes of good customers
SELECT st.s_store_name AS name, sum(s.ss_net_profit) AS p FROM store_sales s JOIN store st ON s.ss_store_sk = st.s_store_sk JOIN (SELECT substr(a.ca_zip, 1, 2) AS z FROM customer_address a INTERSECT SELECT zz FROM (SELECT substr(b.ca_zip, 1, 2) AS zz, count(*) AS n FROM customer_address b JOIN customer c ON b.ca_address_sk = c.c_current_addr_sk GROUP BY substr(b.ca_zip, 1, 2) HAVING count(*) > 1) y) v ON substr(st.s_county, 1, 1) < v.z GROUP BY st.s_store_name
-- # profit per item and its rank in each store
SELECT s.ss_store_sk AS store, s.ss_item_sk AS sk, sum(s.ss_net_profit) AS p, ntile(4) OVER (PARTITION BY s.ss_store_sk ORDER BY sum(s.ss_net_profit), s.ss_item_sk) AS quarter FROM store_sales s WHERE s.ss_store_sk IS NOT NULL GROUP BY s.ss_store_sk, s.ss_item_sk
-- # categories of two years
SELECT a.cat AS cat, a.q AS q2000, b.q AS q2001, b.q - a.q AS diff FROM (SELECT i.i_category AS cat, sum(s.ss_quantity) AS q FROM store_sales s, item i, date_dim d WHERE s.ss_item_sk = i.i_item_sk AND s.ss_sold_date_sk = d.d_date_sk AND d.d_year = 2000 GROUP BY i.i_category) a JOIN (SELECT i.i_category AS cat, sum(s.ss_quantity) AS q FROM store_sales s, item i, date_dim d WHERE s.ss_item_sk = i.i_item_sk AND s.ss_sold_date_sk = d.d_date_sk AND d.d_year = 2001 GROUP BY i.i_category) b ON a.cat = b.cat
-- # the most frequent items
SELECT i.i_item_id AS id, t.n AS n FROM item i JOIN (SELECT ss_item_sk AS sk, count(*) AS n FROM store_sales GROUP BY ss_item_sk) t ON i.i_item_sk = t.sk WHERE t.n = (SELECT max(m) FROM (SELECT count(*) AS m FROM store_sales GROUP BY ss_item_sk) mm)
-- # returns of a reason
SELECT r.sr_store_sk AS store, count(DISTINCT r.sr_customer_sk) AS customers, sum(DISTINCT r.sr_return_quantity) AS q FROM store_returns r GROUP BY r.sr_store_sk HAVING sum(r.sr_return_amt) > (SELECT avg(x.sr_return_amt) FROM store_returns x)
-- # first letters
SELECT upper(left(c.c_last_name, 1)) AS letter, count(*) AS n, min(c.c_birth_year) AS oldest FROM customer c WHERE c.c_last_name IS NOT NULL AND c.c_last_name <> '' GROUP BY upper(left(c.c_last_name, 1))
-- # generations
SELECT g.gen AS gen, g.n AS n FROM (SELECT floor(c.c_birth_year / 10) AS gen, count(*) AS n FROM customer c GROUP BY 1) g ORDER BY n DESC, gen LIMIT 3
-- # neighbours of one birth year
SELECT DISTINCT a.c_customer_id AS one, b.c_customer_id AS other FROM customer a JOIN customer b ON a.c_birth_year = b.c_birth_year AND a.c_customer_sk < b.c_customer_sk
-- # sets of sets
(SELECT ss_item_sk AS sk FROM store_sales UNION SELECT ws_item_sk FROM web_sales) EXCEPT (SELECT cs_item_sk FROM catalog_sales INTERSECT SELECT sr_item_sk FROM store_returns)
-- # sets that keep duplicates
SELECT sk FROM (SELECT ss_item_sk AS sk FROM store_sales WHERE ss_quantity > 2 EXCEPT ALL SELECT ws_item_sk FROM web_sales) x UNION ALL SELECT cs_item_sk FROM catalog_sales WHERE cs_quantity IN (1, 2, 3)
-- # a scalar for each store
SELECT st.s_store_name AS name, (SELECT max(s.ss_sales_price) FROM store_sales s WHERE s.ss_store_sk = st.s_store_sk) AS dearest, (SELECT count(*) FROM store_returns r WHERE r.sr_store_sk = st.s_store_sk) AS returned FROM store st
-- # a lateral subquery
SELECT st.s_store_name AS name, t.total AS total FROM store st, LATERAL (SELECT sum(s.ss_net_profit) AS total FROM store_sales s WHERE s.ss_store_sk = st.s_store_sk AND s.ss_quantity > 1) t WHERE t.total IS NOT NULL
-- # nested correlation
SELECT c.c_customer_id AS id FROM customer c WHERE EXISTS (SELECT 1 FROM store_sales s WHERE s.ss_customer_sk = c.c_customer_sk AND EXISTS (SELECT 1 FROM item i WHERE i.i_item_sk = s.ss_item_sk AND i.i_category = 'Books')) AND c.c_current_addr_sk IN (SELECT a.ca_address_sk FROM customer_address a WHERE a.ca_state IN ('TN', 'CA'))
-- # values joined to items
SELECT v.label AS label, count(*) AS n FROM item i JOIN (VALUES ('cheap', 0, 50), ('dear', 50, 1000)) AS v (label, low, high) ON i.i_current_price >= v.low AND i.i_current_price < v.high GROUP BY v.label
-- # USING and stars
SELECT x.*, y.n AS n FROM (SELECT s_store_sk AS sk, s_state AS state FROM store) x LEFT JOIN (SELECT ss_store_sk AS sk, count(*) AS n FROM store_sales GROUP BY ss_store_sk) y USING (sk)
-- # named windows
SELECT s.ss_store_sk AS store, s.ss_ticket_number AS ticket, sum(s.ss_quantity) OVER w AS q, count(*) OVER w AS n FROM store_sales s WINDOW w AS (PARTITION BY s.ss_store_sk ORDER BY s.ss_ticket_number)
-- # arrays and higher functions
SELECT i.i_item_id AS id, size(filter(i.i_tags, t -> t <> 'new')) AS old, array_contains(i.i_tags, 'sale') AS on_sale, element_at(i.i_sizes, 'S') AS small FROM item i WHERE size(i.i_tags) > 0
-- # sorted lists of tags
SELECT i.i_category AS cat, sort_array(collect_set(tag)) AS tags FROM item i LATERAL VIEW explode(i.i_tags) g AS tag GROUP BY i.i_category
-- # percent of a total
SELECT ca.ca_state AS state, count(*) / (SELECT count(*) FROM customer) AS share FROM customer c JOIN customer_address ca ON c.c_current_addr_sk = ca.ca_address_sk GROUP BY ca.ca_state
-- # weekends by case
SELECT CASE d.d_day_name WHEN 'Saturday' THEN 'weekend' WHEN 'Sunday' THEN 'weekend' ELSE 'week' END AS part, sum(w.ws_quantity) AS q FROM web_sales w JOIN date_dim d ON w.ws_sold_date_sk = d.d_date_sk GROUP BY 1 HAVING sum(w.ws_quantity) > 0
-- # chains of expressions
WITH a AS (SELECT ss_item_sk AS sk, sum(ss_quantity) AS q FROM store_sales GROUP BY ss_item_sk), b AS (SELECT sk, q, q * 2 AS q2 FROM a WHERE q > 1), e AS (SELECT b.sk AS sk, b.q2 AS q2, a.q AS q FROM b JOIN a ON b.sk = a.sk) SELECT i.i_brand AS brand, sum(e.q2) AS q2 FROM e JOIN item i ON e.sk = i.i_item_sk GROUP BY i.i_brand
