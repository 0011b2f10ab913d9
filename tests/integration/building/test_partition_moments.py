"""Timestamps of partitions: without a time zone, they are in the session's, as in Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pytest
from foreign import delta_connector
from test_ingestion import build

from persist_assets.storage.files import reached
from persist_assets.storage.raw import open_delta, partition_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persist_assets.building.builder import Builder

BERLIN = ZoneInfo("Europe/Berlin")
ZONE = "spark.sql.session.timeZone"
TEXTS = (
    "2024-01-01 10:00:00",
    "2024-01-01T10:00:00.000000Z",  # as newer releases of Delta write it
    "2024-01-01 10:00:00.000000",
    "2024-01-01 10:00:00+05:00",
    "2024-03-31 02:30:00",  # does not exist in Berlin
    "2024-10-27 02:30:00",  # occurred twice in Berlin
    "1969-12-31 23:59:59.999999",
    None,
)


@pytest.fixture
def in_berlin(spark: Any) -> Iterator[Any]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, BERLIN.key)
    yield spark
    spark.conf.set(ZONE, before)


def write(root: Path, *texts: str | None, first: int = 0) -> None:
    """Append a file for each text, as by a writer with this format of timestamps."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    for v, text in enumerate(texts, first):
        # delta-rs has one format of timestamps: replace it by that of the text.
        stamp = None if text is None else datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=v)
        table = pa.table({"ts": [stamp], "v": [v]}, schema=schema)
        deltalake.write_deltalake(root, table, mode="append", partition_by=["ts"])
        if stamp is None:
            continue
        written = f"{stamp:%Y-%m-%d %H:%M:%S}.000000"
        log = max((root / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if add := action.get("add"):
                assert add["partitionValues"] == {"ts": written}
                add["partitionValues"]["ts"] = text
                # The name of the directory is the value, with special characters quoted.
                spelled = f"ts={text}".replace(" ", "%20").replace(":", "%3A").replace("+", "%2B")
                (file,) = root.glob(f"*/{Path(add['path']).name}")
                there = root / spelled / file.name
                there.parent.mkdir(exist_ok=True)
                file.rename(there)
                add["path"] = there.relative_to(root).as_posix().replace("%", "%25")
        log.write_text("\n".join(map(json.dumps, actions)))


def by_spark(spark: Any, *texts: str | None) -> dict[int, Any]:
    """Return the timestamps, in microseconds, that Spark parses from texts, by position."""
    casts = [f"unix_micros(CAST({'NULL' if t is None else repr(t)} AS TIMESTAMP))" for t in texts]
    return dict(enumerate(spark.sql(f"SELECT {', '.join(casts)}").head()))


def micros(frame: Any) -> dict[int, Any]:
    return {row.v: row.m for row in frame.selectExpr("v", "unix_micros(ts) AS m").collect()}


@pytest.mark.slow
@pytest.mark.proves("S29")
@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_external_table_has_the_same_partition_timestamps_as_spark(
    in_berlin: Any, tmp_path: Path, checkpoint: bool
) -> None:
    root = tmp_path / "t"
    write(root, *TEXTS[:5])
    since = delta_connector(in_berlin, root, zone=BERLIN).pin()
    if checkpoint:
        deltalake.DeltaTable(root).create_checkpoint()
        for version in range(4):  # the commits that the checkpoint replaces
            (root / "_delta_log" / f"{version:020}.json").unlink()
    write(root, *TEXTS[5:], first=5)
    source = delta_connector(in_berlin, root, zone=BERLIN)
    expected = by_spark(in_berlin, *TEXTS)
    assert len({*expected.values()}) == 7
    version = source.pin()
    assert micros(source.snapshot(None, ["v", "ts"], version)) == expected
    came = source.changes(since, version, None, ["v", "ts"])
    assert came.frame is not None, came.full_read_reason
    assert micros(came.frame) == {n: expected[n] for n in (5, 6, 7)}
    # Exactly the matching rows are returned, from fewer files.
    for n, text in enumerate(TEXTS[:-1]):
        instant = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=expected[n])
        predicate = f"ts = TIMESTAMP '{instant.isoformat(sep=' ')}'"
        fit = {v for v, m in expected.items() if m == expected[n]}
        assert set(micros(source.snapshot(predicate, ["v", "ts"], version))) == fit, text
        assert source.prune(predicate, version).files < len(TEXTS)
    assert source.prune("ts > TIMESTAMP '2030-01-01 00:00:00Z'", version).files == 0
    assert source.prune("ts IS NULL", version).files == 1


@pytest.mark.proves("S29")
def test_partition_values_of_files_are_read_from_the_delta_log(tmp_path: Path) -> None:
    root = tmp_path / "t"
    write(root, *TEXTS)

    def texts() -> list[str | None]:
        table = open_delta(str(root))
        with reached(str(root)) as (system, path):
            found = partition_texts(table, str(root), system, f"{path}/")
        return sorted((t["ts"] for t in found.values()), key=str)

    assert texts() == sorted(TEXTS, key=str)
    table = deltalake.DeltaTable(root)
    table.create_checkpoint()
    # A checkpoint of several parts counts only if all of them exist.
    log, last = root / "_delta_log", table.version()
    whole = log / f"{last:020}.checkpoint.parquet"
    part = log / f"{last - 1:020}.checkpoint.0000000001.0000000002.parquet"
    part.write_bytes(whole.read_bytes())
    assert texts() == sorted(TEXTS, key=str)
    for file in log.glob("*.json"):
        file.write_text("{}\n")  # only the checkpoint lists files
    assert texts() == sorted(TEXTS, key=str)


@pytest.mark.proves("S29")
def test_a_version_pinned_in_another_time_zone_is_read_in_full_again(
    in_berlin: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    write(root, *TEXTS[:2])
    utc = delta_connector(in_berlin, root).pin()
    source = delta_connector(in_berlin, root, zone=BERLIN, mode="snapshot")
    assert source.pin(utc) != utc
    assert source.pin(source.pin()) == source.pin()
    write(root, TEXTS[2], first=2)
    follows = delta_connector(in_berlin, root, zone=BERLIN)
    again = follows.changes(utc, follows.pin(), None, ["v", "ts"]).full_read_reason
    assert again == "moments of its partitions were read in another time zone"
    # Timestamps with a zone do not depend on the session's time zone.
    other = tmp_path / "other"
    write(other, TEXTS[1], TEXTS[3])
    pins = [delta_connector(in_berlin, other, zone=z).pin() for z in (BERLIN, ZoneInfo("UTC"))]
    assert pins[0] == pins[1]


@pytest.mark.proves("S29")
@pytest.mark.parametrize("kind", ["external", "raw"])
def test_a_source_has_the_same_partition_timestamps_as_spark(
    enter: Callable[..., Builder], make_project: Callable[..., Path], in_berlin: Any, kind: str
) -> None:
    table = {
        "external": "CREATE EXTERNAL TABLE t (ts TIMESTAMP, v BIGINT) WITH ('connectors' = "
        '\'[{"transport": {"name": "delta_table_input", "config": {"uri": "lake",'
        ' "mode": "snapshot"}}}]\');\n',
        "raw": "CREATE TABLE t USING delta LOCATION 'lake';\n",
    }[kind]
    text = table + (
        "--@ persist\nCREATE VIEW q AS SELECT v, unix_micros(ts) AS m FROM t\n"
        "WHERE ts >= TIMESTAMP '2024-01-01 00:00:00';"
    )
    root = make_project({"m.sql": text}, f'timezone = "{BERLIN.key}"\n')
    write(root / "lake", *TEXTS)
    builder = enter(root)
    assert build(builder) == {"q": "build"}
    (q,) = builder.project.persisted
    rows = builder.read(q).collect()
    expected = by_spark(in_berlin, *TEXTS)
    assert {r.v: r.m for r in rows} == {n: expected[n] for n in range(6)}


@pytest.mark.proves("S29")
def test_tables_whose_directories_contradict_the_delta_log_are_read_by_the_log(
    tmp_path: Path,
) -> None:
    from persist_assets.core.model.sources import RawTable
    from persist_assets.storage.raw import pin_raw

    root = tmp_path / "t"
    write(root, *TEXTS)
    raw = RawTable("delta", str(root))
    assert len(pin_raw(raw, str(root)).files or ()) == len(TEXTS)
    log = root / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(f'"{TEXTS[0]}"', '"2024-01-01 11:00:00"'))
    pin = pin_raw(raw, str(root))
    assert pin.by_log
    assert pin.files is None
