"""TPC-H and a star schema on Spark: edits keep rows, and so do mutations that keep BuildIDs."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import need
from queries import edited, is_analysed, meaning, mutated, project, queries, schema
from soundness import Answer, difference, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()
_ROWS = {"store_sales": 300, "store_returns": 60, "web_sales": 150, "catalog_sales": 150, "item": 30, "customer": 40, "customer_address": 15, "date_dim": 48, "store": 5, "promotion": 4}  # fmt: skip
_OF = {"item": 30, "customer": 40, "addr": 15, "store": 5, "promo": 4, "date": 48}


def _value(draw: random.Random, column: str, kind: str, row: int) -> Any:
    """Return a value of a column of the star schema; keys of dimensions start at 1."""
    short = column.split("_", 1)[1]
    if short in ("item_sk", "customer_sk", "store_sk", "promo_sk", "date_sk", "address_sk") and (
        column[:2] in ("i_", "c_", "s_", "p_", "d_", "ca")
    ):
        return row + 1
    if short == "date":
        return date(2000, 1, 1) + timedelta(days=row * 17)
    day = date(2000, 1, 1) + timedelta(days=row * 17)
    known = {"d_year": day.year, "d_moy": day.month, "d_qoy": (day.month + 2) // 3}
    if column in known:
        return known[column]
    if draw.random() < 0.06:
        return None
    if short.endswith("_sk"):
        return draw.randint(1, next(n for what, n in _OF.items() if what in short))
    if kind.startswith("DECIMAL"):
        return Decimal(draw.randint(-500 if "profit" in short else 0, 9000)) / 100
    if kind == "INT":
        return draw.randint(1940, 1960) if "year" in short else draw.randint(1, 10)
    if kind.startswith("ARRAY"):
        return draw.sample(["new", "sale", "old", "S", "L"], draw.randint(0, 3))
    if kind.startswith("MAP"):
        return [(k, draw.randint(1, 3)) for k in draw.sample(["S", "M", "L"], draw.randint(0, 2))]
    words = {
        "category": ["Books", "Music", "Home"], "class": ["a", "b"], "brand": ["x", "y", "z"],
        "state": ["TN", "CA", "NY"], "day_name": _DAYS, "zip": ["35100", "24010", "35999", "60000"],
        "item_id": [f"i{row // 2}"], "customer_id": [f"c{row}"], "channel_email": ["N", "Y"],
        "channel_tv": ["N", "Y"], "last_name": ["Ng", "Diaz", "", "ng"],
    }  # fmt: skip
    return draw.choice(words.get(short, ["one", "two", "three"]))


def _write_star(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types: dict[str, Any] = {
        "INT": pa.int32(), "STRING": pa.string(), "DATE": pa.date32(),
        "DECIMAL(7,2)": pa.decimal128(7, 2), "ARRAY<STRING>": pa.list_(pa.string()),
        "MAP<STRING, INT>": pa.map_(pa.string(), pa.int32()),
    }  # fmt: skip
    for table, columns in schema("star").items():
        draw = random.Random(table)
        rows = [
            {c: _value(draw, c, kind, i) for c, kind in columns.items()}
            for i in range(_ROWS[table])
        ]
        made = pa.schema([(c, types[kind]) for c, kind in columns.items()])
        pq.write_table(pa.Table.from_pylist(rows, made), root / f"{table}.parquet")


def _write_tpch(root: Path) -> None:
    beside = Path(sys.executable).parent / "tpchgen-cli"
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    tool = need(found, "install tpchgen-cli: it makes the data of TPC-H")
    command = [tool, "parquet", "-s", "0.01", "--output-dir", str(root)]
    subprocess.run(command, check=True, capture_output=True)


WRITERS: dict[str, Callable[[Path], None]] = {"tpch": _write_tpch, "star": _write_star}


@pytest.fixture(scope="module", params=WRITERS)
def suite(
    request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return a suite whose raw tables are views of the session."""
    name: str = request.param
    root = tmp_path_factory.mktemp(name)
    WRITERS[name](root)
    for table, columns in schema(name).items():
        frame = spark.read.parquet(str(root / f"{table}.parquet"))
        typed = frame.select(*(frame[c].cast(kind) for c, kind in columns.items()))
        typed.coalesce(1).cache().createOrReplaceTempView(f"{name}_{table}")
    return name


def _views(suite: str) -> Mapping[str, str]:
    return {f"{table}@sources/raw.sql": f"{suite}_{table}" for table in schema(suite)}


def test_edits_and_mutations_that_keep_build_ids_keep_rows(spark: Any, suite: str) -> None:
    """Run every pair of different texts with equal BuildIDs, and compare their rows."""
    counts = dict.fromkeys(
        ("queries", "with rows", "edits", "mutations", "other", "refused", "same", "errors"), 0
    )
    wrong: list[str] = []
    for title, query in queries(suite).items():
        source = meaning(suite, query)
        assert source is not None
        counts["queries"] += 1

        def ask(text: str) -> Answer:
            return run(spark, project(suite, text), _views(suite))

        answer = ask(query)
        assert answer.error is None, f"{title}: {answer.error}"
        counts["with rows"] += bool(answer.rows)

        def compare(what: str, text: str, answer: Answer = answer, title: str = title) -> None:
            other = ask(text)
            counts["errors"] += other.error is not None
            if said := difference(answer, other):
                wrong.append(f"{title}, {what}: {said}\n{text}")

        if is_analysed(source):
            compare("all edits", edited(query, title)["all of them"])
            counts["edits"] += 1
        for what, text in mutated(suite, query):
            counts["mutations"] += 1
            changed = meaning(suite, text)
            if changed is None:
                counts["refused"] += 1
            elif changed.build_id != source.build_id:
                counts["other"] += 1
            else:
                counts["same"] += 1
                compare(what, text)
    print(f"\n{suite}: {counts}")
    assert min(counts[kind] for kind in ("edits", "same", "with rows")) > 0, counts
    assert not wrong, f"{len(wrong)} of {counts}:\n" + "\n".join(wrong)
