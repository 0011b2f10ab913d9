"""The hours of a month: computed day by day, and read as a whole."""

import narwhals as nw

from persist_assets import incremental_filter, table


@table(
    partition="daily",
    time_column="flight_date",
    start="2013-01-01",
    end="2013-02-01",
    check={"unique": ["flight_date", "origin", "hour"]},
)
def departures_by_hour(flights):
    """How many flights left in each hour, and how late."""
    days = flights.transform(incremental_filter("flight_date"))
    hours = days.selectExpr("*", "hour(departs_at) AS hour").groupBy(
        "flight_date", "origin", "hour"
    )
    return hours.agg({"*": "count", "dep_delay": "sum"}).toDF(
        "flight_date", "origin", "hour", "n_flights", "delay"
    )


@table(check={"unique": ["origin", "hour"], "accepted_values": {"origin": ["EWR", "JFK", "LGA"]}})
def rush_hours(departures_by_hour: nw.LazyFrame) -> nw.LazyFrame:
    """How late one leaves in each hour: a Narwhals frame, of Spark here and of polars in tests."""
    n_flights, delay = nw.col("n_flights").sum(), nw.col("delay").sum()
    hours = departures_by_hour.group_by("origin", "hour").agg(n_flights, delay)
    return hours.select(
        "origin", "hour", "n_flights", mean_delay=nw.col("delay") / nw.col("n_flights")
    )
