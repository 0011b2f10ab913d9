"""CSV and JSON as raw tables: columns are matched by name; bad records are errors or kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

pytestmark = pytest.mark.proves("S5")

SOURCES = """
create table named (id int, name string, day date) using csv options (header true)
    location 'named';
create table silent (id int, name string) using csv location 'silent';
create table strict (id int, name string) using csv options (header false) location 'strict';
create table lines (id int, name string) using json location 'lines';
create table kept (id int, name string, _corrupt_record string) using csv options (header true)
    location 'strict';
create materialized view v_named as select * from named;
create materialized view v_silent as select name from silent;
create materialized view v_strict as select name from strict where id > 0;
create materialized view v_lines as select id from lines;
create materialized view v_kept as select * from kept;
"""


def put(root: Path, place: str, text: str) -> Path:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)
    return root / place


def rows(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    """Build a source and return its rows."""
    (source,) = (s for s in builder.project.persisted if s.name == name)
    builder.build(source)
    return sorted((tuple(r) for r in builder.read(source).collect()), key=repr)


def refusal(builder: Builder, name: str) -> str:
    with pytest.raises(StorageError) as raised:
        rows(builder, name)
    return raised.value.message


@pytest.mark.slow
def test_columns_are_matched_by_name_and_bad_records_do_not_become_nulls(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES})
    # Columns are swapped, added, in another case, or missing: each file has its own header.
    put(root, "named/day=2024-01-01/a.csv", "id,name\n1,x\n")
    put(root, "named/day=2024-01-02/b.csv", "name,more,ID\ny,7,2\n")
    put(root, "named/day=2024-01-02/empty.csv", "")
    put(root, "silent/a.csv", "id,name\n1,x\n")
    put(root, "strict/a.csv", "1,x\n2,y\nz,bad value\n4,d\n")
    put(root, "lines/a.json", '{"id": 1}\n{"id": 2}\n{"id": "x"}\n')
    builder = enter(root)
    found = [(*row[:2], str(row[2])) for row in rows(builder, "v_named")]
    assert found == [(1, "x", "2024-01-01"), (2, "y", "2024-01-02")]
    message = refusal(builder, "v_silent")
    assert "silent/a.csv is a header" in message
    assert message.endswith("id, name")
    assert refusal(builder, "v_strict") == f"{root}/strict/a.csv:3 does not match its declaration: z,bad value"  # fmt: skip
    assert refusal(builder, "v_lines") == f'{root}/lines/a.json:3 does not match its declaration: {{"id": "x"}}'  # fmt: skip
    assert "header of" in refusal(builder, "v_kept")
    # The files are repaired; a new one has a misspelled column.
    put(root, "silent/a.csv", "1,x\n")
    put(root, "strict/a.csv", "name,id\nx,1\n2,y,3\n")
    put(root, "lines/a.json", '{"id": 1}\n')
    put(root, "named/day=2024-01-03/c.csv", "id,nmae\n3,z\n")
    builder = enter(root)
    assert rows(builder, "v_silent") == [("x",)]
    assert rows(builder, "v_lines") == [(1,)]
    assert rows(builder, "v_kept") == [(1, "x", None), (None, "2", "2,y,3")]
    message = refusal(builder, "v_named")
    assert "c.csv lacks `name`: it is id, nmae, but it is declared as id, name" in message
