"""Malformed records of raw tables: all declared columns count, even those no query reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

pytestmark = pytest.mark.proves("V41")

Enter = Callable[..., "Builder"] if TYPE_CHECKING else Any

CSV = "1,5\n2,x\n3\n9,9\n"
JSON = '{"id": 1, "n": 5}\n{"id": 2, "n": "x"}\nbroken\n{"id": 9, "n": 9}\n'
XML = "<t><r><id>1</id><n>5</n></r><r><id>2</id><n>x</n></r><r><id>9</id><n>9</n></r></t>"
OPTIONS = {"csv": "header false", "json": "locale 'en'", "xml": "rowTag 'r'"}
TEXTS = {"csv": CSV, "json": JSON, "xml": XML}


def tables(form: str) -> str:
    """Declare tables of one format that drop, keep and refuse malformed records."""
    options = OPTIONS[form]
    return f"""
create table {form}_drops (id int, n int) using {form}
    options ({options}, mode 'DROPMALFORMED') location '{form}';
create table {form}_keeps (id int, n int, _corrupt_record string) using {form}
    options ({options}) location '{form}';
create table {form}_refuses (id int, n int) using {form} options ({options}) location '{form}';
create view {form}_ids as select id from {form}_drops;
create view {form}_number as select count(*) as c from {form}_drops;
create view {form}_some as select id from {form}_drops where id > 1;
create view {form}_kept as select id, n from {form}_keeps where _corrupt_record is not null;
create view {form}_texts as select _corrupt_record as bad from {form}_keeps;
create view {form}_refused as select id from {form}_refuses;
create view {form}_refused_some as select id from {form}_refuses where id > 5;
"""


@pytest.mark.slow
def test_a_record_is_malformed_if_any_declared_column_is_invalid(
    enter: Enter, make_project: Callable[..., Path]
) -> None:
    root = make_project({f"{form}.sql": tables(form) for form in TEXTS})
    for form, text in TEXTS.items():
        (root / form).mkdir()
        (root / form / f"a.{form}").write_text(text)
    builder = enter(root)

    def rows(name: str) -> list[tuple[Any, ...]]:
        (source,) = (s for s in builder.project.sources if s.name == name)
        return sorted(map(tuple, builder.read(source).collect()), key=repr)

    for form, text in TEXTS.items():
        assert rows(f"{form}_ids") == [(1,), (9,)]
        assert rows(f"{form}_number") == [(2,)]
        assert rows(f"{form}_some") == [(9,)]
        where = " cannot be read" if form == "xml" else ":2 does not match its declaration"
        for name in (f"{form}_refused", f"{form}_refused_some"):
            (source,) = (s for s in builder.project.sources if s.name == name)
            with pytest.raises(StorageError, match=rf"a\.{form}{where}"):
                builder.engine.collect(builder.read(source), 9)
        if form != "xml":
            bad = text.splitlines()
            assert {r[0] for r in rows(f"{form}_texts")} == {None, bad[1], bad[2]}
    assert rows("csv_kept") == [(2, None), (3, None)]
    assert rows("json_kept") == [(2, None), (None, None)]
    assert rows("xml_kept") == [(2, None)]


PARTED = """
create table t (id int, n int, day int) using csv
    options (header false, mode 'DROPMALFORMED') location 't';
create table strict (id int, n int, day int) using csv options (header false) location 'strict';
create table texts (id string, day string) using xml options (rowTag 'r') location 'texts';
#@ refresh=incremental
create materialized view v as select id, day from t;
create view second as select id from strict where day = 2;
create view all_texts as select * from texts;
"""


@pytest.mark.slow
def test_malformed_records_in_new_files_are_dropped_and_pruned_directories_not_read(
    enter: Enter, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": PARTED.replace("#@", "--@")})

    def put(place: str, text: str) -> None:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)

    def build() -> list[tuple[Any, ...]]:
        builder = enter(root)
        (source,) = builder.project.persisted
        builder.build(source)
        return sorted(map(tuple, builder.read(source).collect()))

    put("t/day=1/a.csv", "1,5\n2,x\n")
    assert build() == [(1, 1)]
    put("t/day=2/b.csv", "3,7\n4,x\n5\n")
    assert build() == [(1, 1), (3, 2)]
    # Conditions on directories skip files: the malformed record is in a skipped one.
    put("strict/day=1/a.csv", "1,x\n")
    put("strict/day=2/b.csv", "2,7\n")
    put("texts/day=01/a.xml", "<t><r><id>007</id></r></t>")
    builder = enter(root)
    by_name = {s.name: s for s in builder.project.sources}
    assert [tuple(r) for r in builder.read(by_name["second"]).collect()] == [(2,)]
    # Values of text columns are not parsed as numbers first.
    assert [tuple(r) for r in builder.read(by_name["all_texts"]).collect()] == [("007", "01")]
