--@ persist
-- Delays by the weather in the hour of departure.
CREATE VIEW delays_by_weather AS
SELECT
  f.origin,
  CASE
    WHEN w.rain_mm > 2.5 THEN 'heavy rain'
    WHEN w.rain_mm > 0 THEN 'rain'
    WHEN w.wind_kmh > 40 THEN 'wind'
    WHEN w.visibility_km < 5 THEN 'fog'
    ELSE 'fair'
  END AS weather,
  count(*) AS n_flights,
  avg(f.dep_delay) AS mean_dep_delay
FROM flights AS f
JOIN weather AS w
  ON f.origin = w.origin AND date_trunc('hour', f.departs_at) = w.time_hour
GROUP BY 1, 2;

--@ persist owner="team:fleet"
-- How much each aircraft flew.
CREATE VIEW plane_utilisation AS
SELECT
  f.tailnum,
  p.manufacturer,
  p.model,
  2013 - p.year AS age_years,
  count(*) AS n_flights,
  sum(f.air_time) / 60 AS hours_in_air,
  sum(f.distance) AS miles,
  count(DISTINCT f.dest) AS n_destinations
FROM flights AS f
JOIN planes AS p USING (tailnum)
GROUP BY f.tailnum, p.manufacturer, p.model, p.year;

--@ persist owner="team:fleet"
-- Do old aircraft fly less?
CREATE VIEW fleet_by_age AS
SELECT
  floor(age_years / 5) * 5 AS age_from,
  count(*) AS n_planes,
  avg(hours_in_air) AS mean_hours,
  max_by(tailnum, hours_in_air) AS busiest
FROM plane_utilisation
WHERE age_years IS NOT NULL
GROUP BY 1;
