--@ persist owner="team:flights" freshness.window="24h" time_column=flight_date
--@ check { unique=[flight_date, carrier] not_null=[mean_dep_delay] expr { plausible="n_flights > 0" } }
-- How late each carrier left, day by day.
CREATE VIEW daily_delays AS
SELECT
  flight_date,
  carrier,
  count(*) AS n_flights,
  avg(dep_delay) AS mean_dep_delay,
  percentile_approx(dep_delay, 0.9) AS p90_dep_delay,
  count_if(dep_delay > 60) AS n_very_late
FROM flights
GROUP BY flight_date, carrier;

--@ persist
-- Of all that was scheduled, how much was cancelled.
CREATE VIEW daily_cancellations AS
SELECT
  coalesce(d.flight_date, c.flight_date) AS flight_date,
  coalesce(d.carrier, c.carrier) AS carrier,
  coalesce(c.n_cancelled, 0) AS n_cancelled,
  coalesce(c.n_cancelled, 0) / (coalesce(d.n_flights, 0) + coalesce(c.n_cancelled, 0)) AS share
FROM daily_delays AS d
FULL JOIN (
  SELECT flight_date, carrier, count(*) AS n_cancelled
  FROM cancelled
  GROUP BY flight_date, carrier
) AS c ON d.flight_date = c.flight_date AND d.carrier = c.carrier;
