"""Raw tables of plain files: which of them are read, and which columns they have."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import RawTable
from persist_assets.core.raw_options import wrong_option
from persist_assets.storage.changes import keep_listing, listed_version, raw_change
from persist_assets.storage.file_columns import missing_columns
from persist_assets.storage.headers import first_records, pattern_of_names
from persist_assets.storage.partition_texts import partition_names
from persist_assets.storage.raw import pin_raw


def put(file: Path, **columns: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    write = orc.write_table if file.suffix == ".orc" else pq.write_table
    write(pa.table(columns or {"id": [1]}), str(file))
    return file


@pytest.mark.proves("V43")
@pytest.mark.parametrize(
    ("glob", "names", "others"),
    [
        ("*", ("a.csv", ".x"), ()),
        ("*.csv", ("a.csv",), ("a.csv.gz", "acsv")),
        ("{a,b}.csv", ("a.csv", "b.csv"), ("c.csv", "a,b.csv")),
        ("{a,b{c,d}}.csv", ("a.csv", "bd.csv"), ("b.csv",)),
        ("[^c].csv", ("a.csv", "^.csv"), ("c.csv",)),
        ("[!c].csv", ("a.csv",), ("c.csv",)),
        ("[a-c]?.csv", ("b1.csv",), ("d1.csv", "b.csv")),
        (r"\*.csv", ("*.csv",), ("a.csv",)),
        ("a+(b).csv", ("a+(b).csv",), ("aab.csv",)),
        ("a,b.csv", ("a,b.csv",), ("a.csv",)),
    ],
)
def test_globs_match_the_same_names_as_in_spark(
    glob: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    pattern = pattern_of_names(glob)
    assert [n for n in (*names, *others) if pattern.fullmatch(n)] == [*names]


@pytest.mark.proves("V43")
def test_quoted_header_names_may_contain_multi_character_separators(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('"a||b"||c||" d "\n1||2||3\n')
    records = first_records([str(file)], {"sep": "||", "header": "true"})
    assert records == {str(file): ("a||b", "c", "d")}


@pytest.mark.proves("V43")
def test_recursive_file_lookup_ignores_partition_directories(tmp_path: Path) -> None:
    put(tmp_path / "x=1" / "a.parquet")
    put(tmp_path / "b.parquet")
    recursive = RawTable("parquet", str(tmp_path), (("recursivefilelookup", "true"),))
    pin = pin_raw(recursive, str(tmp_path))
    assert partition_names(pin.files or (), pin.base) == frozenset()
    assert missing_columns(pin, recursive, [Column("id", "bigint"), Column("x", "int")]) == ["x"]
    plain = RawTable("parquet", str(tmp_path), (("recursivefilelookup", "false"),))
    with pytest.raises(StorageError, match="is not in a partition directory"):
        pin_raw(plain, str(tmp_path))


@pytest.mark.parametrize("name", ["quote", "escape", "comment"])
def test_characters_of_csv_are_single(name: str) -> None:
    columns = [Column("a", "int")]
    assert wrong_option("csv", {name: "ab"}, columns) == (f"`{name}` must be one character", None)
    assert wrong_option("csv", {name: ""}, columns) is None


def test_a_long_first_value_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"1,{'x' * 200_000}\n")
    ((_, record),) = first_records([str(tmp_path / "t.csv")], {}).items()
    assert record is not None
    assert len(record[1]) == 200_000


@pytest.mark.proves("V43")
def test_unsupported_options_that_hide_files_are_rejected() -> None:
    problem = wrong_option("csv", {"ignoredpathsegmentregex": "^x"}, [Column("a", "int")])
    assert problem is not None and "is not supported" in problem[0]


@pytest.mark.proves("V42")
def test_different_partition_columns_are_an_error(tmp_path: Path) -> None:
    put(tmp_path / "x=1" / "a.parquet")
    put(tmp_path / "X=2" / "a.parquet")
    raw = RawTable("parquet", str(tmp_path))
    pin_raw(raw, str(tmp_path))
    put(tmp_path / "y=1" / "a.parquet")
    with pytest.raises(StorageError, match="in directories of different partition columns"):
        pin_raw(raw, str(tmp_path))


@pytest.mark.proves("V42")
def test_versions_change_if_earlier_releases_read_different_values(tmp_path: Path) -> None:
    put(tmp_path / "x=300" / "a.parquet")
    raw = RawTable("parquet", str(tmp_path))
    small, great = ([Column("x", kind)] for kind in ("tinyint", "int"))
    pins = [pin_raw(raw, str(tmp_path), columns=of) for of in ((), great, small)]
    assert pins[0].version == pins[1].version != pins[2].version


@pytest.mark.proves("V41")
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_listings_of_earlier_releases_are_continued_only_for_parquet(
    tmp_path: Path, form: str
) -> None:
    place = tmp_path / "t" / f"a.{form}"
    place.parent.mkdir()
    place.write_text("x")
    pin = pin_raw(RawTable(form, str(place.parent)), str(place.parent))
    keep_listing(str(tmp_path / "listings"), pin)
    (kept,) = (tmp_path / "listings").iterdir()
    assert listed_version(str(kept)) == pin.version
    # In earlier releases, malformed records depended on the columns that a query read.
    older = f"files:p{(pin.version or '')[-32:]}"
    kept.rename(kept.with_name(f"{older.removeprefix('files:')}.json"))
    change = raw_change(str(tmp_path / "listings"), str(place.parent), older, pin, form)
    assert (change is None) == (form != "parquet")


@pytest.mark.proves("V44")
@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_a_column_is_missing_only_if_all_files_lack_it(tmp_path: Path, form: str) -> None:
    raw = RawTable(form, str(tmp_path))
    columns = [Column(name, "bigint") for name in ("id", "n", "day")]
    for name in ("a", "b", "c"):
        put(tmp_path / "day=1" / f"{name}.{form}", ID=[1])
    assert missing_columns(pin_raw(raw, str(tmp_path)), raw, columns) == ["n"]
    put(tmp_path / "day=1" / f"z.{form}", N=[1])
    assert missing_columns(pin_raw(raw, str(tmp_path)), raw, columns) == []
    (tmp_path / "day=1" / f"z.{form}").write_text("no")
    with pytest.raises(StorageError, match=rf"z\.{form} is not"):
        missing_columns(pin_raw(raw, str(tmp_path)), raw, columns)


@pytest.mark.proves("V44")
def test_orc_files_without_column_names_are_read_by_position(tmp_path: Path) -> None:
    put(tmp_path / "a.orc", _col0=[1])
    raw = RawTable("orc", str(tmp_path))
    assert missing_columns(pin_raw(raw, str(tmp_path)), raw, [Column("id", "bigint")]) == []


@pytest.mark.proves("V44")
def test_statistics_of_partition_columns_are_ignored(tmp_path: Path) -> None:
    table, listings = tmp_path / "t", str(tmp_path / "listings")
    raw = RawTable("parquet", str(table))
    put(table / "day=2026-01-01" / "a.parquet", id=[1])
    first = pin_raw(raw, str(table))
    keep_listing(listings, first)
    put(table / "day=2026-01-02" / "b.parquet", id=[2], day=[date(1999, 1, 1)])
    change = raw_change(
        listings, str(table), first.version or "", pin_raw(raw, str(table)), "parquet"
    )
    assert change is not None
    assert [{*piece.spans} for piece in change.added] == [{"id"}]
