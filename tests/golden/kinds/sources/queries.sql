CREATE VIEW big AS SELECT id, day, at, k, net(x) AS x FROM orders WHERE x > least;
--@ persist
CREATE VIEW joined AS SELECT b.id, r.region, b.x FROM big b JOIN regions r USING (k);
--@ persist
CREATE VIEW outer_joined AS SELECT b.id, e.body.kind FROM big b LEFT JOIN events e ON b.id = e.id;
--@ persist
CREATE VIEW sums AS
SELECT region, sum(x) AS x, count(DISTINCT id) AS n FROM joined GROUP BY ROLLUP (region) HAVING count(*) > 1;
--@ persist
CREATE VIEW ranked AS SELECT id, row_number() OVER (PARTITION BY k ORDER BY x DESC, id) AS r FROM big;
--@ persist
CREATE VIEW exploded AS SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag;
--@ persist
CREATE VIEW correlated AS
SELECT id FROM big b WHERE EXISTS (SELECT 1 FROM events e WHERE e.id = b.id AND e.body.n > 3);
--@ persist
CREATE VIEW united AS SELECT id FROM big UNION ALL SELECT id FROM events EXCEPT SELECT id FROM far;
--@ persist
CREATE VIEW chosen AS SELECT o.id FROM orders o JOIN of_region(session.region) r USING (k);
--@ persist
CREATE VIEW shared AS SELECT id, share(x, 2) AS half FROM big;
--@ persist
CREATE VIEW drawn AS SELECT id, rand() AS r FROM big;
--@ persist
CREATE VIEW today AS SELECT id FROM orders WHERE day = current_date();
--@ persist
CREATE VIEW pivoted AS SELECT * FROM (SELECT k, day, x FROM big) PIVOT (sum(x) FOR k IN (1, 2));
--@ persist materialized=view
CREATE VIEW stored AS SELECT id FROM joined ORDER BY id LIMIT 10;
--@ persist refresh=incremental watermark=at
CREATE VIEW appended AS SELECT id, at FROM orders;
--@ persist refresh=incremental watermark=at merge_key=id
CREATE VIEW latest AS SELECT id, at, x FROM orders;
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, count(*) AS n FROM orders GROUP BY day;
--@ persist refresh=snapshot key=k
CREATE VIEW history AS SELECT k, region FROM regions;
--@ persist
CREATE VIEW remote AS SELECT id FROM far WHERE x > 3;
