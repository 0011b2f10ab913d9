--@ persist
--@ check { unique=[flight_date, carrier] not_null=[carrier] }
-- How late each carrier left, day by day.
CREATE VIEW daily_delays AS
SELECT
  flight_date,
  carrier,
  count(*) AS n_flights,
  round(avg(departure_delay), 1) AS mean_delay
FROM flights
GROUP BY flight_date, carrier;
