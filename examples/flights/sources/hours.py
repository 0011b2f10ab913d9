"""The hours of a month: computed day by day, and read as a whole."""

import narwhals as nw

from persist_assets import incremental_filter, table


@table(
    partition="daily",
    time_column="flight_date",
    start="2013-01-01",
    end="2013-02-01",
    check={"unique": ["flight_date", "origin", "hour"], "range": {"hour": {"min": 0, "max": 23}}},
)
def departures_by_hour(flights):
    """How many flights of January left in which hour, New York's time, and how late in all."""
    days = flights.transform(incremental_filter("flight_date"))
    hour = "hour(from_utc_timestamp(departs_at, 'America/New_York')) AS hour"
    hours = days.selectExpr("flight_date", "origin", hour, "dep_delay")
    summed = hours.groupBy("flight_date", "origin", "hour").agg({"*": "count", "dep_delay": "sum"})
    return summed.toDF("flight_date", "origin", "hour", "n_flights", "delay")


@table(check={"unique": ["origin", "hour"], "accepted_values": {"origin": ["EWR", "JFK", "LGA"]}})
def rush_hours(departures_by_hour: nw.LazyFrame) -> nw.LazyFrame:
    """When one leaves late: a frame of Narwhals, over Spark here and over polars in a test."""
    n_flights, delay = nw.col("n_flights").sum(), nw.col("delay").sum()
    hours = departures_by_hour.group_by("origin", "hour").agg(n_flights, delay)
    mean_delay = nw.col("delay") / nw.col("n_flights")
    return hours.select("origin", "hour", "n_flights", mean_delay=mean_delay)
