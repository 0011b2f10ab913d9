"""Options of raw tables: unknown options are rejected, and bad records are not hidden."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from persist_assets.core.errors import StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.raw_options import OPTIONS, wrong_option
from persist_assets.storage.headers import columns_in_order, first_records, is_header, line_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.proves("S5")

AB = (Column("a", "int"), Column("b", "string"))
WITH_BAD = (*AB, Column("_corrupt_record", "string"))


@pytest.mark.parametrize(
    ("form", "option", "hint"),
    [
        ("csv", "haeder", "did you mean `header`?"),
        ("json", "multiline_", "did you mean `multiLine`?"),
        ("parquet", "mergeschem", "did you mean `mergeSchema`?"),
        ("orc", "mergschema", "did you mean `mergeSchema`?"),
        ("text", "wholetxt", "did you mean `wholetext`?"),
        ("jdbc", "dbtabel", "did you mean `dbtable`?"),
        ("iceberg", "snapshotid", "did you mean `snapshot-id`?"),
        ("avro", "avroschem", "did you mean `avroSchema`?"),
        ("xml", "rowtags", "did you mean `rowTag`?"),
    ],
)
def test_an_unknown_raw_option_is_rejected_with_a_suggestion(
    form: str, option: str, hint: str
) -> None:
    assert wrong_option(form, {option: "x"}, AB) == (f"{form} has no option `{option}`", hint)


def test_known_options_and_options_of_other_drivers_are_accepted() -> None:
    for form, names in OPTIONS.items():
        others = ("mode", "columnNameOfCorruptRecord", "quote", "escape", "comment")
        options = {name.lower(): "true" for name in names if name not in others}
        if form == "catalog":
            assert wrong_option(form, options, AB) is not None  # a table without its schema
            options["table"] = "sales.orders"
        assert wrong_option(form, options, AB) is None, form
    assert wrong_option("json", {"preferdate": "true"}, AB) is not None
    assert wrong_option("xml", {"enabledatetimeparsingfallback": "true"}, AB) is not None
    assert wrong_option("jdbc", {"url": "x", "sslmode": "require", "user": "me"}, AB) is None
    assert wrong_option("parquet", {"fs.s3a.endpoint": "x"}, AB) is None
    assert wrong_option("com.example.source", {"anything": "x"}, AB) is None


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({}, AB, None),
        ({}, WITH_BAD, None),
        ({"mode": "failfast"}, AB, None),
        ({"mode": "DROPMALFORMED"}, AB, None),
        ({"mode": "permissive"}, WITH_BAD, None),
        ({"mode": "permissive"}, AB, "bad records would become NULLs: no column `_corrupt_record`"),
        ({"columnnameofcorruptrecord": "bad"}, AB, "no column `bad` keeps them"),
        ({}, (*AB, Column("_corrupt_record", "int")), "must be a STRING column"),
        ({"mode": "permisive"}, AB, "unknown mode `permisive`"),
        ({"header": "yes"}, AB, "`header` must be true or false"),
    ],
)
def test_options_that_would_hide_bad_records_are_rejected(
    options: dict[str, str], columns: tuple[Column, ...], message: str | None
) -> None:
    wrong = wrong_option("csv", options, columns)
    assert (wrong is None) == (message is None)
    assert wrong is None or (message or "") in wrong[0]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("a,b\n1,x\n", {}, ("a", "b")),
        ("\ufeffa, b \r\n1,x", {}, ("a", "b")),
        ('\n  \n"a,1",b\n', {}, ("a,1", "b")),
        ("# by us\na;b\n", {"comment": "#", "sep": ";"}, ("a", "b")),
        ("a\tb", {"delimiter": r"\t"}, ("a", "b")),
        ("a||b\n", {"sep": "||"}, ("a", "b")),
        ('"a\nb",c\n', {"multiline": "true"}, ("a\nb", "c")),
        ("\n\na,b\n", {"multiline": "true"}, ("a", "b")),
        (" \t\na,b\n", {}, ("a", "b")),
        (" \na,b\n", {"multiline": "true"}, ("",)),
        ("\u00a0\na,b\n", {}, ("",)),
        ("a,b@1,2", {"linesep": "@"}, ("a", "b")),
        ("a,'b,c'\n", {"quote": "'"}, ("a", "b,c")),
        ("", {}, None),
        ("\n\n", {}, None),
    ],
)
def test_the_first_record_of_a_csv_file_is_parsed(
    tmp_path: Path, content: str, options: dict[str, str], expected: tuple[str, ...] | None
) -> None:
    plain, packed = tmp_path / "f.csv", tmp_path / "f.csv.gz"
    plain.write_text(content, newline="")
    packed.write_bytes(gzip.compress(content.encode()))
    found = first_records([str(plain), str(packed)], options)
    assert found == {str(plain): expected, str(packed): expected}


def test_encodings_and_path_filters_apply_to_csv_headers(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes("ä,b\n".encode("utf-16"))
    (tmp_path / "README.txt").write_text("no table")
    files = [str(tmp_path / "f.csv"), str(tmp_path / "README.txt")]
    options = {"encoding": "UTF-16", "pathglobfilter": "*.csv"}
    assert first_records(files, options) == {files[0]: ("ä", "b")}
    with pytest.raises(StorageError, match="unknown encoding `x`"):
        first_records(files, {"encoding": "x"})
    with pytest.raises(StorageError, match=r"compress it as \.gz"):
        first_records(["/x/a.csv.snappy"], {})


def test_header_columns_are_matched_by_name_or_reported() -> None:
    names = [c.name for c in columns_in_order(["B", "new", "a"], AB, (), "f")]
    assert names == ["b", "_persist_1", "a"]
    with pytest.raises(StorageError) as raised:
        columns_in_order(["bb", "a"], AB, (), "x.csv")
    assert "the header of x.csv lacks `b`: it is bb, a, but it is declared as a, b" in str(
        raised.value
    )
    with pytest.raises(StorageError, match="has `a` twice"):
        columns_in_order(["a", "b", "A"], AB, (), "x.csv")
    assert is_header(["b", "a", "more"], AB, ())
    assert is_header(["a"], AB, ("b",))
    assert not is_header(["1", "a"], AB, ())


def test_the_line_number_of_a_record_is_found(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text('a,b\n1,x\ny,z\n"p\nq",2\n')
    assert line_of(str(file), "y,z", {}) == 3
    assert line_of(str(file), '"p\nq",2', {"multiline": "true"}) == 4
    assert line_of(str(file), "gone", {}) is None
