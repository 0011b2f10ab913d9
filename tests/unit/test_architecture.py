"""The architecture: which modules may import which, and what an import loads."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT

import persist_assets
from persist_assets.cli import EXIT_CODES, MODULES, app
from persist_assets.cli.application import INTERRUPTED, exit_code
from persist_assets.core import errors
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.python_modules import EXPORTS

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / "persist_assets"
DOCS = ROOT / "docs" / "architecture"
BESIDE = {"_paths", "decorators"}
"""Modules outside the rooms: every module may import them."""
PURE = ("core", "analysis", "planning", "compiler/frontends", "compiler/malloy/answers")
PURE += ("compiler/malloy/declarations", "compiler/names", "compiler/state", "compiler/passes")
PURE += ("compiler/compile", "compiler/registry")


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if "node_modules" not in p.parts]


def name(path: Path) -> str:
    """Return the name of a module below the package: `core.model`, `core` for a package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name(path) for path in modules()} - {""}
ROOMS = {n.partition(".")[0] for n in NAMES} - BESIDE


@cache
def statements(path: Path) -> list[ast.AST]:
    """Return all statements of a module, those of its functions too, without expressions."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    for node in todo:
        blocks = (ast.stmt, ast.excepthandler, ast.match_case)
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, blocks)]
    return todo


@cache
def imports(path: Path) -> set[str]:
    """Return the modules that a module imports, also inside functions."""
    found: set[str] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {m for m in inside if m.removeprefix("persist_assets.") in NAMES}
            found |= modules or {node.module}
    return found


def own_imports(path: Path) -> set[str]:
    own = {i for i in imports(path) if i.partition(".")[0] == "persist_assets"}
    return {i.removeprefix("persist_assets").removeprefix(".") for i in own}


@cache
def arrows() -> dict[str, set[str]]:
    """Return the modules of the package that each module imports; not computed at import."""
    return {name(path): own_imports(path) for path in modules()}


def drawn_floors() -> dict[str, int]:
    """Return the floor of each room in the diagram of the docs."""
    lines = re.findall(r"^    (\d)  (.+)$", (DOCS / "README.md").read_text(), re.MULTILINE)
    return {room: int(floor) for floor, rooms in lines for room in rooms.split()}


@pytest.mark.proves("H1")
def test_the_floors_in_the_docs_match_the_code() -> None:
    rooms: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, targets in arrows().items():
        room = module.partition(".")[0]
        if room in ROOMS:
            rooms[room] |= {t.partition(".")[0] for t in targets} - {room, *BESIDE}
    floors: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():  # a cycle is an error
        floors[room] = 1 + max((floors[lower] for lower in rooms[room]), default=0)
    assert floors == drawn_floors()
    assert len(rooms) == 15
    assert max(floors.values()) <= 9


@pytest.mark.proves("H1")
@pytest.mark.parametrize("room", sorted(ROOMS))
def test_the_docs_list_the_files_of_a_room_in_import_order(room: str) -> None:
    section = (DOCS / "rooms.md").read_text().split(f"\n## {room}\n")[1].split("\n## ")[0]
    listed = [
        f"{room}.{file.removesuffix('.py').replace('/', '.')}"
        for file in re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
    ]
    faces = {name(p) for p in modules() if p.name in ("__init__.py", "__main__.py")}
    faces |= {f"{face}.__main__" for face in faces}
    own = {n for n in NAMES if n.partition(".")[0] == room}
    assert set(listed) - faces == own - faces
    for i, module in enumerate(listed):
        later = own - set(listed[:i]) - faces - {module}
        assert not arrows()[module] & later, module


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.stem)
def test_files_named_in_the_docs_exist(page: Path) -> None:
    if page.name == "rooms.md":  # it names files relative to their rooms
        return
    for file in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        assert (PACKAGE / file).exists() or (ROOT / file).exists(), file


def test_pure_modules_import_no_io_libraries() -> None:
    world = {"pyspark", "deltalake", "pyarrow", "sqlalchemy", "dagster", "subprocess", "socket"}
    pure = [p for p in modules() if name(p).replace(".", "/").startswith(PURE)]
    assert len(pure) > 100
    worldly = {name(p): {i.split(".")[0] for i in imports(p)} & world for p in pure}
    assert {module: names for module, names in worldly.items() if names} == {}


def test_the_compiler_knows_the_public_names_of_the_package() -> None:
    assert tuple(persist_assets.__all__) == EXPORTS


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_no_large_library() -> None:
    loaded = loaded_by("import persist_assets")
    assert not loaded & {"pyspark", "deltalake", "dagster", "sqlglot", "pyarrow", "sqlalchemy"}


def test_the_command_line_starts_without_dagster_and_spark() -> None:
    loaded = loaded_by("from persist_assets.cli import app")
    assert not loaded & {"pyspark", "deltalake", "dagster", "pyarrow", "sqlalchemy", "pydantic"}


def every_error() -> list[type[errors.PersistError]]:
    found: list[type[errors.PersistError]] = []
    todo: list[type[errors.PersistError]] = [errors.PersistError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda k: k.__name__)
def test_every_error_can_be_pickled(kind: type[errors.PersistError]) -> None:
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
    codes = dict(EXIT_CODES)
    nearest = next(base for base in kind.__mro__ if base in codes)
    assert exit_code(kind) == codes[nearest]  # the order of the list hides no class
    # The code of the root is for errors without a class, and for those caught in their module.
    assert nearest is not errors.PersistError or kind is nearest or kind.__name__[0] == "_"


def test_the_docs_list_every_exit_code() -> None:
    section = (ROOT / "docs" / "cli.md").read_text().split("\n## Exit codes\n")[1]
    listed = re.findall(r"^\| (\d+) \|", section.split("\n## ")[0], re.MULTILINE)
    assert [*map(int, listed)] == sorted({0, INTERRUPTED, *(code for _, code in EXIT_CODES)})


def test_no_module_derives_a_path_from_its_own_location() -> None:
    for path in modules():
        if path.name != "_paths.py":
            assert "Path(__file__)" not in path.read_text(), path


def test_no_file_contains_a_registry_host_or_a_machine_specific_path() -> None:
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


def test_all_test_files_have_different_names() -> None:
    """Pytest would take both for the same module, and collect neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, n in names.items() if n > 1] == []


def test_each_command_is_listed_with_the_module_that_defines_it() -> None:
    commands: dict[str, set[str]] = {}
    for group in (app, *(g.typer_instance for g in app.registered_groups)):
        names = {g.typer_instance: str(g.name) for g in app.registered_groups}
        for command in group.registered_commands:
            assert command.callback is not None
            module = command.callback.__module__.rpartition(".")[2]
            commands.setdefault(module, set()).add(names.get(group, str(command.name)))
    assert commands == {module: {*names} for module, names in MODULES.items()}


def test_files_and_functions_are_short() -> None:
    long: list[str] = []
    for path in modules():
        if len(path.read_text().splitlines()) > 720:
            long.append(name(path))
        for node in statements(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                docs = ast.get_docstring(node, clean=False)
                lines -= docs.count("\n") + 1 if docs else 0
                if lines > 60:
                    long.append(f"{name(path)}.{node.name}")
    assert long == []
