"""Late departures, in Python: what the parameters of a function are called is what it reads."""

from persist_assets import incremental_filter, incremental_table

VERY_LATE = 60  # minutes


@incremental_table(
    time_column="departs_at",
    lookback="2 days",
    assume="exact",
    check={"not_null": ["carrier"], "range": {"dep_delay": {"min": VERY_LATE}}},
)
def delayed(flights, weather):
    """Very late departures, with the weather of their hour.

    Flights become known at most two days after others: a build computes those two days and what
    came after them.
    """
    late = flights.filter(f"dep_delay > {VERY_LATE}").transform(incremental_filter("departs_at"))
    hourly = late.selectExpr("*", "date_trunc('hour', departs_at) AS time_hour")
    return hourly.join(weather, ["origin", "time_hour"], "left").select(
        "departs_at", "carrier", "tailnum", "origin", "dest", "dep_delay", "rain_mm", "wind_kmh"
    )
