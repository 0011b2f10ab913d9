"""JSON lines from Malloy's compiler are read into values."""

from __future__ import annotations

from typing import Any

import pytest

from persist_assets.compiler.malloy.answers import MalloyColumn, Note, read_model, read_query
from persist_assets.core.errors import Location, Problem

PLACE = {"path": "s/a.malloy", "line": 3, "column": 9}
PROBLEM = {"code": "c", "message": "m", "severity": "warning", "hint": None, **PLACE}


def note(text: str, *, inherited: bool = False) -> dict[str, Any]:
    return {"text": text, "inherited": inherited, **PLACE}


def definition(*notes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "x", "annotations": list(notes), "persist": True, "problems": [PROBLEM], **PLACE, **more}  # fmt: skip


def source(**more: Any) -> dict[str, Any]:
    said = {
        "source_id": "x@s/a.malloy", "kind": "query_source", "connection": "spark", "table": None,
        "parameters": ["p"], "filtered": False, "redefined": ["a"], "build_id": "b", "runtime_id": "b", "malloy_sql": "SELECT 1",
        "sql": "SELECT 1", "reads": ["y@s/a.malloy"], "columns": [["a", "integer"]],
    }  # fmt: skip
    return definition(note("#@ persist"), **said, **more)


def model(**more: Any) -> dict[str, Any]:
    empty = {
        "sources": [],
        "queries": [],
        "givens": [],
        "tables": [],
        "selects": [],
        "files": [],
        "problems": [],
    }
    return {"path": "s/a.malloy", "flag": True, **empty, **more}


def test_a_model_is_read_into_hashable_values() -> None:
    read = read_model(model(sources=[source()], queries=[definition()], problems=[PROBLEM]))
    (found,) = read.sources
    assert found.location == Location("s/a.malloy", 3, 9)
    assert found.notes == (Note("#@ persist", Location("s/a.malloy", 3, 9)),)
    assert found.columns == (MalloyColumn("a", "integer"),)
    assert (found.parameters, found.reads) == (("p",), ("y@s/a.malloy",))
    assert read.problems == found.problems == (Problem("c", "m", found.location, None, "warning"),)
    assert read.queries[0].name == "x"
    assert len({read, read_model(model())}) == 2


def test_a_query_is_read_into_a_value() -> None:
    read = read_query({"sql": None, "connection": None, "columns": [], "problems": [PROBLEM]})
    assert (read.sql, len(read.problems)) == (None, 1)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([], None),
        ([note("#@ persist"), note("# size=xs")], None),
        ([note('#" One.'), note('#" Two.')], "One.\nTwo."),
        ([note('#" Base.', inherited=True)], "Base."),
        ([note('#" Base.', inherited=True), note('#" Own.')], "Own."),
        ([note('#"')], None),
    ],
)
def test_doc_annotations_set_description(notes: list[dict[str, Any]], expected: str | None) -> None:
    read = read_model(model(queries=[definition(*notes)]))
    assert read.queries[0].description == expected
