"""New projects: their files, and the sources that these compile to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.starting import LANGUAGES, Language, begin, declarations, write_files
from persist_assets.storage.inspection import inspect_data

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("W3", "W10")
@pytest.mark.parametrize("languages", [("sql",), ("malloy",), ("python",), LANGUAGES])
def test_a_new_project_has_a_source_in_each_language_and_no_problems(
    tmp_path: Path, languages: tuple[Language, ...]
) -> None:
    paths, first = begin(tmp_path, languages, {})
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {*paths}
    assert {"persist.toml", "definitions.py", ".gitignore", "data/LICENSE.txt"} <= {*paths}
    project = load_project(load_settings(tmp_path))
    assert not project.problems
    assert {s.language.removesuffix("3") for s in project.persisted} == {*languages}
    assert first in {s.name for s in project.persisted}
    assert all(s.annotation.checks and s.description for s in project.persisted)
    assert {s.key for s in project.persisted} == {f"marts/{s.name}" for s in project.persisted}


@pytest.mark.proves("W3")
def test_a_project_over_existing_data_groups_by_a_column_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "Orders 2024.csv").write_text("id,Ship To,paid\n1,Bern,1.5\n2,Oslo,2.5\n")
    (tmp_path / "in" / "b.json").write_text('{"x": 1.5}\n')
    data = {f"in/{p.name}": inspect_data(str(p)) for p in sorted((tmp_path / "in").iterdir())}
    paths, first = begin(tmp_path, LANGUAGES, data)
    assert first == "rows_by_ship_to"
    assert not any(path.startswith("data/") for path in paths)
    project = load_project(load_settings(tmp_path))
    assert not project.problems
    assert {s.name for s in project.sources if s.raw} == {"orders_2024", "b"}
    assert {s.key for s in project.persisted} == {f"marts/{s.name}" for s in project.persisted}
    columns = {s.name: [c.name for c in s.columns] for s in project.persisted if s.columns}
    assert columns == {
        "rows_by_ship_to": ["ship_to", "n_rows"],
        "groups_by_ship_to": ["ship_to", "n_rows"],
    }


def test_tables_of_files_with_the_same_name_are_numbered(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "t.csv").write_text("x\n1\n")
    data = {f"{d}/t.csv": inspect_data(str(tmp_path / d / "t.csv")) for d in ("a", "b")}
    statements = declarations(data)
    assert [f"CREATE TABLE {name} (" in statements for name in ("t", "t_2")] == [True, True]


@pytest.mark.proves("W3")
def test_files_that_exist_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "definitions.py").write_text("mine")
    with pytest.raises(SettingsError, match=r"definitions\.py already exists"):
        begin(tmp_path, ("sql",), {})
    assert [p.name for p in tmp_path.iterdir()] == ["definitions.py"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot write to"):
        write_files(tmp_path / "file" / "project", {"a.sql": b""})
