--@ persist refresh=incremental owner="team:flights" tags=[cleaned] time_column=departs_at
--@ check { not_null=[carrier, origin, dest, flight_date] accepted_values { origin=[EWR, JFK, LGA] } }
-- Flights that left, with real times instead of hours and minutes.
CREATE VIEW flights AS
SELECT
  make_date(year, month, day) AS flight_date,
  time_hour + make_dt_interval(0, 0, minute, 0) AS departs_at,
  carrier,
  flight AS flight_number,
  tailnum,
  origin,
  dest,
  dep_delay,
  arr_delay,
  air_time,
  distance
FROM flights_raw
WHERE dep_time IS NOT NULL;

-- Flights that never left. Not persisted: it is inlined wherever it is read.
CREATE VIEW cancelled AS
SELECT make_date(year, month, day) AS flight_date, carrier, origin, dest
FROM flights_raw
WHERE dep_time IS NULL;

-- Weather in units that most of the world uses. Not persisted either.
CREATE VIEW weather AS
SELECT
  origin,
  time_hour,
  round((temp - 32) / 1.8, 1) AS temperature_c,
  round(wind_speed * 1.609344, 1) AS wind_kmh,
  precip * 25.4 AS rain_mm,
  visib * 1.609344 AS visibility_km
FROM weather_raw;
