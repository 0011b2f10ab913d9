"""The house: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT

from persist_assets import errors
from persist_assets.cli import EXIT_CODES
from persist_assets.model import CheckResult

# docs/architecture.md has the same list, with what each room is for.
ROOMS = [
    "_paths", "decorators", "errors", "stores", "settings", "trust", "model", "spark_types", "dialect", "wants", "watermarks", "partitions", "contracts", "frontends", "meaning", "growth", "compiler", "substitution",
    "compare", "planner", "promotion", "selection", "lineage", "ledger", "manifest", "storage", "connectors", "bridge", "cache", "malloy", "project",
    "revisions", "server", "session", "functions", "audit", "engine", "rows", "outside", "ingestion", "routes", "holdings", "reader",
    "verdicts", "assertions", "continuation", "validity", "builder", "follow", "pool", "requests", "asking", "circles", "upstreams", "scheduled", "service", "site", "environments", "recovery", "collector", "home", "doctor", "plugin", "cli",
]  # fmt: skip
# And so has it these.
MEANING = [
    "functions", "algebra", "syntax", "scope", "types", "binding", "names", "expressions",
    "relations", "grouping", "binder", "identity", "lineage", "increments", "understanding",
    "predicates", "pushdown",
]  # fmt: skip
PURE = ROOMS[: ROOMS.index("ledger")]


def room(path: Path) -> str:
    return path.relative_to(ROOT / "persist_assets").with_suffix("").parts[0]


def modules() -> list[Path]:
    return [p for p in sorted((ROOT / "persist_assets").rglob("*.py")) if room(p) != "__init__"]


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_rooms_above_it(path: Path) -> None:
    here = ROOMS.index(room(path))
    for name in imports(path):
        if name.startswith("persist_assets."):
            there = name.split(".")[1]
            assert ROOMS.index(there) <= here, f"{path.name} imports {name}"


@pytest.mark.parametrize("name", MEANING)
def test_a_module_of_meaning_imports_only_from_those_above_it(name: str) -> None:
    above = {f"persist_assets.meaning.{m}" for m in MEANING[: MEANING.index(name)]}
    path = ROOT / "persist_assets" / "meaning" / f"{name}.py"
    own = {i for i in imports(path) if i.startswith("persist_assets.meaning")}
    assert own <= above


@pytest.mark.parametrize("path", [p for p in modules() if room(p) in PURE], ids=lambda p: p.stem)
def test_the_pure_rooms_know_no_world(path: Path) -> None:
    world = {"pyspark", "deltalake", "pyarrow", "sqlalchemy", "dagster", "subprocess", "socket"}
    assert not {name.split(".")[0] for name in imports(path)} & world


def test_the_map_in_the_docs_is_the_house() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()

    def listed(heading: str) -> list[str]:
        table = text.split(f"## {heading}")[1].split("##")[0]
        return [
            line.split("`")[1].removesuffix("/").removesuffix(".py")
            for line in table.splitlines()
            if line.startswith("| `")
        ]

    assert listed("The house") == ROOMS
    assert listed("What a query means") == MEANING
    there = {p.stem for p in (ROOT / "persist_assets" / "meaning").glob("*.py")}
    assert there == {*MEANING, "__init__"}


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_importing_the_package_is_cheap() -> None:
    loaded = loaded_by("import persist_assets")
    assert not loaded & {"pyspark", "deltalake", "dagster", "sqlglot", "pyarrow", "sqlalchemy"}


def test_the_command_line_starts_without_dagster_and_spark() -> None:
    loaded = loaded_by("import persist_assets.cli")
    assert not loaded & {"pyspark", "deltalake", "dagster", "pyarrow", "sqlalchemy"}


def every_error() -> list[type[errors.PersistError]]:
    found: list[type[errors.PersistError]] = []
    todo: list[type[errors.PersistError]] = [errors.PersistError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda k: k.__name__)
def test_every_error_survives_the_way_to_another_process(kind: type[errors.PersistError]) -> None:
    place = errors.Location("a.sql", 1, 2)
    if kind is errors.SourcesError:
        error: errors.PersistError = errors.SourcesError([errors.Problem("c", "m", place)])
    elif kind is errors.CheckFailedError:
        result = CheckResult("n", False, True, 3, "a not null")
        error = errors.CheckFailedError("m", results=[result], location=place)
    elif kind is errors.MissingUpstream:
        error = errors.MissingUpstream(["daily/2024-01-01"])
    else:
        error = kind("message", hint="hint", location=place)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", every_error(), ids=lambda k: k.__name__)
def test_every_error_has_an_exit_code(kind: type[errors.PersistError]) -> None:
    assert any(issubclass(kind, known) for known, _ in EXIT_CODES)


def test_no_module_derives_a_path_from_its_own_place() -> None:
    for path in modules():
        if path.name != "_paths.py":
            assert "Path(__file__)" not in path.read_text(), path


def test_no_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        path = ROOT / name
        if (
            path.suffix in (".md", ".py", ".toml", ".lock", ".json", ".yaml", ".sql", "")
            and path.exists()
        ):
            text = path.read_text(errors="replace")
            for word in (
                "pypi.org/simple",
                "registry.npmjs",
                "files.pythonhosted",
                "/root/",
                "index-url =",
            ):
                assert word not in text or name == "tests/unit/test_architecture.py", (
                    f"{name}: {word}"
                )


def test_no_two_test_files_have_one_name() -> None:
    """Pytest takes both for the same module, and collects neither."""
    names = Counter(path.name for path in (ROOT / "tests").glob("*/test_*.py"))
    assert [name for name, n in names.items() if n > 1] == []
