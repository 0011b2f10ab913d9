-- Every pair of airports, with how it does.
CREATE VIEW route_delays AS
SELECT
  origin,
  dest,
  count(*) AS n_flights,
  avg(arr_delay) AS mean_arr_delay,
  avg(distance / air_time * 60) AS mean_mph
FROM flights
WHERE arr_delay IS NOT NULL
GROUP BY origin, dest
HAVING count(*) >= 100;

--@ persist tags { tier=gold }
--@ check { not_null=[airport] unique=[origin, place] }
-- The ten routes from each airport on which one arrives the latest.
CREATE VIEW worst_routes AS
WITH ranked AS (
  SELECT *, row_number() OVER (PARTITION BY origin ORDER BY mean_arr_delay DESC, dest) AS place
  FROM route_delays
)
SELECT r.origin, r.place, r.dest, coalesce(a.name, r.dest) AS airport, r.n_flights, r.mean_arr_delay
FROM ranked AS r
LEFT JOIN airports AS a ON r.dest = a.faa
WHERE r.place <= 10;
