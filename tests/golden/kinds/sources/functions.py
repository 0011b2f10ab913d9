from pyspark.sql import SparkSession
from sources import rates

from persist_assets import source, table, udf


@udf(returns="double")
def share(x, n):
    return x / n * rates.RATE


@table
def scaled(joined):
    return joined.select("id", "x").selectExpr("id", f"x * {rates.RATE} AS x")


@source
def outside(spark: SparkSession):
    return spark.range(3)
