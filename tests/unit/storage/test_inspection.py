"""Inspection of undeclared data: its format, columns and options."""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from persist_assets.core.errors import StorageError
from persist_assets.operations.starting import declaration, table_name
from persist_assets.storage import inspection
from persist_assets.storage.inspection import Inspected, inspect_data

if TYPE_CHECKING:
    from pathlib import Path


def inspected(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Inspected:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return inspect_data(str(tmp_path / name))


def columns(data: Inspected) -> dict[str, str | None]:
    return {c.name: c.type for c in data.columns}


@pytest.mark.proves("W1")
def test_threads_do_not_hold_a_text_after_its_inspection() -> None:
    """A thread of Arrow that releases it while Python exits ends the process with a fault."""
    text = b"a,b\n" + b"1,2\n" * 200
    table = inspection._Csv(text, ",", 2, has_header=True)
    before = sys.getrefcount(text)
    for _ in range(1000):
        table.types()
        assert sys.getrefcount(text) == before


@pytest.mark.proves("W1")
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "-20", ""), "bigint"),
        (("1", "2.5"), "double"),
        (("true", "FALSE", ""), "boolean"),
        (("2024-01-31", ""), "date"),
        (("2024-01-31 10:00:00", "2024-01-31T10:00:00.5"), "timestamp"),
        (("10:00:00", "11:00:00"), "string"),
        (("a", "1"), "string"),
        (("", ""), "string"),
        (("00123", "45678"), "string"),  # post codes keep their zeros
        (("+49123", "1"), "string"),
        (("0x1F", "0xFF"), "string"),
        (("2024-01-01 10:00:00.123456789",), "string"),
        (("0", "0.5"), "double"),
        (("0.30000000000000004", "1"), "double"),
        (("9223372036854775807", "-1"), "bigint"),
        (("1.5", "NaN"), "string"),  # Spark expects its own spellings
        (("1.5", "inf"), "string"),
        (("12345678901234567890", "1"), "string"),  # a DOUBLE would lose digits
        (("1234567890.123456789", "1"), "string"),
        (("0.1234567890123456789", "1"), "string"),
        (("-0.30000000000000004", "1"), "double"),  # as programs write a DOUBLE
        (("0.00000000000000000001", "100000000000000000000.5"), "string"),
        (("0.00000000000000000001", "1.500000000000000000000"), "double"),
        (("yes", "no"), "string"),
    ],
)
def test_the_type_of_a_csv_column_fits_all_values(
    tmp_path: Path, values: tuple[str, ...], kind: str
) -> None:
    data = inspected(tmp_path, "id,v\n" + "".join(f"x,{v}\n" for v in values))
    assert (data.format, columns(data)) == ("csv", {"id": "string", "v": kind})
    assert data.options == (("header", "true"),)


@pytest.mark.proves("W1")
@pytest.mark.parametrize(
    ("text", "options", "kinds"),
    [
        ("a;b\n1;2,5\n", {"sep": ";"}, {"a": "bigint", "b": "string"}),
        ("a\tb\n1\tx\n", {"sep": "\\t"}, {"a": "bigint", "b": "string"}),
        ('a,b\n1,"x ""y"""\n', {"escape": '"'}, {"a": "bigint", "b": "string"}),
        ('a,b\n1,"x\ny"\n', {"multiLine": "true"}, {"a": "bigint", "b": "string"}),
        ("a,b\nNA,x\n1,y\n", {"nullValue": "NA"}, {"a": "bigint", "b": "string"}),
        # NA may be a country code, so it is not NULL here.
        ("a,b\nNA,x\n1,NA\n", {}, {"a": "string", "b": "string"}),
        ("\ufeffa,b\n1,x\n", {}, {"a": "bigint", "b": "string"}),
    ],
)
def test_the_options_of_csv_follow_from_its_text(
    tmp_path: Path, text: str, options: dict[str, str], kinds: dict[str, str]
) -> None:
    data = inspected(tmp_path, text)
    assert (dict(data.options), columns(data)) == ({"header": "true", **options}, kinds)


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "a,a\n1,2\n", "x,2024-01-01\ny,2024-01-02\n"])
def test_a_first_row_without_names_is_not_a_header(tmp_path: Path, text: str) -> None:
    data = inspected(tmp_path, text)
    assert data.options == ()
    assert [*columns(data)] == ["_c0", "_c1"]


def test_text_in_another_encoding_is_read(tmp_path: Path) -> None:
    data = inspected(tmp_path, "Straße,n\nGrün,1\n".encode("cp1252"))
    assert dict(data.options) == {"header": "true", "encoding": "iso-8859-1"}
    assert columns(data) == {"Straße": "string", "n": "bigint"}


@pytest.mark.proves("W1")
def test_json_lines_and_json_lists_are_recognized(tmp_path: Path) -> None:
    rows = [
        {"a": 1, "b": {"c": [1.5], "d e": None}, "t": "2024-01-01T00:00:00Z", "d": "2024-01-01"},
        {"a": 2},
    ]
    kinds = {
        "a": "bigint",
        "b": "struct<c:array<double>,`d e`:string>",
        "t": "timestamp",
        "d": "date",
    }
    lines = inspected(tmp_path, "\n".join(map(json.dumps, rows)), "l.jsonl")
    assert (lines.format, lines.options, columns(lines)) == ("json", (), kinds)
    whole = inspected(tmp_path, json.dumps(rows), "w.json")
    assert (whole.options, columns(whole)) == ((("multiLine", "true"),), kinds)
    with pytest.raises(StorageError, match="cannot find the columns"):
        inspected(tmp_path, '{"a": 1}\n{"a": [2]}', "bad.json")


@pytest.mark.proves("W1")
def test_types_of_parquet_and_delta_are_read_from_metadata(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1], pa.int32()), "s": [{"x": "y"}]})
    (tmp_path / "p" / "day=2024-01-01").mkdir(parents=True)
    pq.write_table(table, tmp_path / "p" / "day=2024-01-01" / "0.parquet")
    data = inspect_data(str(tmp_path / "p"))
    kinds = {"a": "int", "s": "struct<x:string>"}
    assert (data.format, columns(data)) == ("parquet", {**kinds, "day": "date"})
    write_deltalake(str(tmp_path / "d"), table)
    data = inspect_data(str(tmp_path / "d"))
    assert (data.format, columns(data)) == ("delta", kinds)


def test_a_directory_of_compressed_text_is_inspected_in_part(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for n in range(2):
        (tmp_path / "logs" / f"{n}.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n"))
    data = inspect_data(str(tmp_path / "logs"))
    assert (columns(data), data.is_partial) == ({"a": "bigint", "b": "string"}, True)


def test_numbers_with_blanks_are_texts_as_spark_reads_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,day,c\n1, 2,2024-01-01 ,3\n")
    kinds = {"a": "bigint", "b": "string", "day": "string", "c": "bigint"}
    assert columns(inspect_data(str(tmp_path / "a.csv"))) == kinds


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\x0b", "\x0c"])
def test_other_line_ends_of_unicode_are_parts_of_values(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.csv").write_text(f"id;name;note\n1;a{end}b;wait\n2;b;c\n", encoding="utf-8")
    data = inspect_data(str(tmp_path / "a.csv"))
    assert columns(data) == {"id": "bigint", "name": "string", "note": "string"}
    assert dict(data.options) == {"header": "true", "sep": ";"}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_the_beginning_of_a_long_utf_16_file_ends_between_characters(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\ufeffday,name\n" + "2024-01-01,\N{OWL}ਊ\n" * 40  # ਊ has the byte 0A
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    for size in range(400, 408):
        monkeypatch.setattr(inspection, "_MOST_BYTES", size)
        data = inspect_data(str(tmp_path / "a.csv"))
        assert (columns(data), data.is_partial) == ({"day": "date", "name": "string"}, True)


@pytest.mark.parametrize(
    ("names", "kinds", "glob"),
    [
        (("LICENSE.txt", "airlines.csv", "flights.csv"), ".csv, .txt", "*.csv"),
        (("README", "part-0.parquet"), "no suffix, .parquet", "*.parquet"),
        (("a.csv", "b.tsv.gz"), ".csv, .tsv", "*.csv"),
        (("a.csv", "b.json"), ".csv, .json", "*.csv"),
    ],
)
def test_a_directory_with_files_of_several_kinds_is_rejected(
    tmp_path: Path, names: tuple[str, ...], kinds: str, glob: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(StorageError, match=f"several kinds \\({kinds}\\)") as caught:
        inspect_data(str(tmp_path))
    assert caught.value.hint == f"name files of one kind: persist raw {tmp_path}/{glob}"
    (tmp_path / names[-1]).rename(tmp_path / f"_{names[-1]}")  # Spark skips it
    (tmp_path / names[0]).rename(tmp_path / f".{names[0]}")
    if len(names) > 2:
        assert inspect_data(str(tmp_path)).file == str(tmp_path / "airlines.csv")


@pytest.mark.parametrize("names", [(), ("a.xlsx",), ("a.csv", "b.json"), (".hidden.csv",)])
def test_unreadable_data_is_rejected_with_a_hint(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(StorageError) as caught:
        inspect_data(str(tmp_path))
    assert caught.value.hint


@pytest.mark.proves("W1")
def test_a_declaration_is_a_create_table_statement(tmp_path: Path) -> None:
    data = inspected(tmp_path, "Order ID;day\n1;2024-01-01\n", "it's.csv")
    assert declaration("orders", "data/it's.csv", data) == (
        "CREATE TABLE orders (\n  `Order ID` BIGINT, day DATE\n)"
        " USING csv OPTIONS (header 'true', sep ';') LOCATION 'data/it\\'s.csv';\n"
    )
    wide = Inspected("parquet", tuple(data.columns * 20))
    assert declaration("o", "o", wide).count("\n") == 42


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("data/Daily Orders.csv.gz", "daily_orders"),
        ("s3://lake/raw/orders/", "orders"),
        ("2024.parquet", "t_2024"),
        ("données.csv", "donn_es"),
        ("é.csv", "t"),
    ],
)
def test_tables_are_named_after_their_files(location: str, name: str) -> None:
    assert table_name(location) == name


@pytest.mark.proves("W1")
def test_long_integers_in_json_are_texts(tmp_path: Path) -> None:
    text = '{"a": 18446744073709551615, "b": 9223372036854775807, "c": 1.5}\n'
    assert columns(inspected(tmp_path, text, "t.json")) == {
        "a": "string",
        "b": "bigint",
        "c": "double",
    }


@pytest.mark.proves("W1")
@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('{"a": 1234567890123456}{"a": 2}', {"a": "bigint"}),
        ('{"a": {"b": 99999999999999999999}}', {"a": "string"}),
        ('{"a": 9007199254740993}\n{"a": 1.5}\n', {"a": "string"}),
        ('{"a": [1.5], "s": "12345678901234567"}', {"a": "array<double>", "s": "string"}),
    ],
)
def test_numbers_in_json_keep_their_digits(
    tmp_path: Path, text: str, kinds: dict[str, str]
) -> None:
    assert columns(inspected(tmp_path, text, "t.json")) == kinds


@pytest.mark.proves("W1")
def test_blank_lines_before_a_header_are_skipped(tmp_path: Path) -> None:
    data = inspected(tmp_path, "\n\na,b\n1,2\n")
    assert columns(data) == {"a": "bigint", "b": "bigint"}


@pytest.mark.proves("W1")
@pytest.mark.parametrize("text", ["\n\n", "\ufeff"])
def test_a_file_without_records_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(StorageError, match="the file has no records"):
        inspected(tmp_path, text)


def test_long_values_are_inspected(tmp_path: Path) -> None:
    assert columns(inspected(tmp_path, f"a,b\n1,{'x' * 200_000}\n")) == {
        "a": "bigint",
        "b": "string",
    }
