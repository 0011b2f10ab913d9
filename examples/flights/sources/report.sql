--@ persist owner=["team:flights", "office@flights.example"] tags { tier=gold }
--@ check { unique=[carrier] not_null=[name] expr { share="cancelled_share BETWEEN 0 AND 1" } }
-- One row for each carrier: the page that people look at.
CREATE VIEW carrier_scorecard AS
SELECT
  d.carrier,
  a.name,
  sum(d.n_flights) AS n_flights,
  sum(d.n_flights * d.mean_dep_delay) / sum(d.n_flights) AS mean_dep_delay,
  sum(d.n_very_late) / sum(d.n_flights) AS very_late_share,
  sum(c.n_cancelled) / (sum(d.n_flights) + sum(c.n_cancelled)) AS cancelled_share,
  rank() OVER (ORDER BY sum(d.n_flights * d.mean_dep_delay) / sum(d.n_flights)) AS place
FROM daily_delays AS d
JOIN daily_cancellations AS c ON d.flight_date = c.flight_date AND d.carrier = c.carrier
JOIN airlines AS a ON d.carrier = a.carrier
GROUP BY d.carrier, a.name;

--@ persist
-- Punctuality of all carriers, month by month, beside the month before.
CREATE VIEW monthly_trend AS
WITH months AS (
  SELECT
    date_trunc('month', flight_date) AS month,
    sum(n_flights) AS n_flights,
    sum(n_very_late) AS n_very_late
  FROM daily_delays
  GROUP BY 1
)
SELECT
  month,
  n_flights,
  n_very_late / n_flights AS very_late_share,
  n_very_late / n_flights - lag(n_very_late / n_flights) OVER (ORDER BY month) AS change
FROM months;

--@ persist
-- The month in which each carrier was late least often: SQL that reads a Malloy source.
CREATE VIEW best_months AS
SELECT name, min_by(flown_in, n_late / n_flights) AS flown_in, min(n_late / n_flights) AS late_share
FROM carrier_months
GROUP BY name;
