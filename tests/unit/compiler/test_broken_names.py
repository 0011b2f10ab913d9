"""Names that a broken or unreadable file may define do not resolve to other sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_assets.cli.application import Invocation
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load, load_project, sound
from persist_assets.compiler.registry import NAMES
from persist_assets.core.errors import ConflictError, NotFoundError, SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.lineage import find_columns
from persist_assets.planning.selection import find_source

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

pytestmark = pytest.mark.proves("S16")

Make = Callable[..., Path]

T = "CREATE TABLE t (id INT, x DOUBLE) USING parquet LOCATION 't';"
A = "CREATE VIEW orders AS SELECT id FROM t"
FILES = {
    "t.sql": T,
    "a/orders.sql": A,
    "c.sql": "--@ persist\nCREATE VIEW c AS SELECT id FROM orders",
    "above.sql": "--@ persist\nCREATE VIEW above AS SELECT id FROM c",
    "checked.sql": '--@ persist\n--@ check { relationship { id="orders.id" } }\n'
    "CREATE VIEW checked AS SELECT id FROM t",
    "exact.sql": "--@ persist\nCREATE VIEW exact AS SELECT id FROM a.orders.orders",
}
BROKEN = {
    "an unclosed quote": ("b/orders.sql", "CREATE VIEW orders AS SELECT 'a FROM t"),
    "a statement before it": (
        "b/orders.sql",
        "CREATE VIEW other AS SELECT 'a FROM t;\nCREATE OR REPLACE VIEW IF NOT EXISTS `orders` AS SELECT 1",
    ),
    "an unclosed comment": ("b/orders.sql", "CREATE VIEW /* x */ orders AS SELECT 1 /* FROM t"),
    "an unclosed quote of a table": ("b/x.sql", "CREATE TABLE orders (id INT) USING csv LOCATION 't"),
    "no query": ("b/orders.sql", "CREATE VIEW orders"),
    "no bracket": ("b/orders.sql", "CREATE TABLE orders (id INT USING parquet LOCATION 't'"),
    "a qualifier": ("b/orders.sql", "CREATE VIEW b.orders AS SELECT 1 AS id"),
    "no semicolon": ("b/x.sql", "CREATE VIEW x AS SELECT id FROM t\nCREATE VIEW orders AS SELECT 1"),
    "a syntax error": ("b/orders.sql", "CREATE VIEW orders AS SELECT ("),
    "not UTF-8": ("b/orders.sql", "CREATE VIEW orders AS SELECT 'ä' AS id".encode("latin-1")),
    "UTF-16": ("b/orders.sql", "CREATE VIEW orders AS SELECT 1 AS id".encode("utf-16")),
    "no Python": ("b/orders.py", "from persist_assets import model as m\n@m\ndef orders(t):\n  return ("),
    "Python not UTF-8": ("b/orders.py", "@model\ndef orders(t):\n  'ä'".encode("latin-1")),
    "Python refused": (
        "b/orders.py",
        "from persist_assets import source\n@source\ndef orders(nowhere):\n    return nowhere\n",
    ),
    "Python within a condition": (
        "b/orders.py",
        "from persist_assets import model\nif 1:\n    @model\n    def orders(t):\n        return t\n",
    ),
    "Python that is almost annotated": ("b/orders.py", "#@ order_by=x\ndef orders(t):\n    return t\n"),
    "Malloy not UTF-8": ("m.malloy", "source: x is t, orders is t -> {} // ä".encode("latin-1")),
    "one key twice": ("a/orders.py", "from persist_assets import model\n@model\ndef orders(t):\n    return t\n"),
    "a file that cannot be read": ("b/x.sql", None),
}  # fmt: skip


@pytest.fixture
def made(make_project: Make) -> Callable[[str], Path]:
    """Return a function that makes a project with a broken file."""

    def made(kind: str) -> Path:
        root = make_project(FILES)
        path, content = BROKEN[kind]
        file = root / "sources" / path
        file.parent.mkdir(exist_ok=True)
        if content is None:
            file.symlink_to(root / "nowhere.sql")
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return made


def names(project: Project) -> set[str]:
    return {s.name for s in project.persisted}


@pytest.mark.parametrize("kind", BROKEN)
def test_names_in_a_broken_file_do_not_resolve_to_other_sources(
    made: Callable[[str], Path], kind: str
) -> None:
    settings = load_settings(made(kind))
    for _ in range(2):  # the second time from the cache
        loaded = load(settings)
        left = sound(loaded.project)
        assert names(left) == (set() if kind in UNCERTAIN else {"exact"})
        for text in ("SELECT id FROM orders", "SELECT id FROM c", "SELECT id FROM above"):
            with pytest.raises(SourcesError) as caught:
                loaded.bind(parse_query(text))
            assert {*caught.value.problems} & {*loaded.project.errors}
        for name in ("orders", "c", "above", "checked"):
            with pytest.raises((ConflictError, NotFoundError)):
                find_source(left, name)
            with pytest.raises((ConflictError, NotFoundError)):
                find_columns(left, f"{name}.id")


UNCERTAIN = ("one key twice", "a file that cannot be read")
"""Broken files that make even a qualified name, or its source, uncertain."""


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if kind not in UNCERTAIN])
def test_a_qualified_name_resolves_despite_a_broken_file(
    made: Callable[[str], Path], kind: str
) -> None:
    loaded = load(load_settings(made(kind)))
    (bound,) = loaded.bind(parse_query("SELECT id FROM a.orders.orders"))
    left = sound(loaded.project)
    found = (
        find_source(left, n).source_id for n in ("a/orders/orders", "orders@sources/a/orders.sql")
    )
    assert {bound, *found} == {"orders@sources/a/orders.sql"}


def test_only_names_of_the_same_file_resolve_if_a_file_is_unreadable(
    make_project: Make,
) -> None:
    own = f"{T}\n--@ persist\nCREATE VIEW own AS SELECT id FROM t"
    root = make_project({"own.sql": own})
    (root / "sources" / "x.sql").symlink_to(root / "nowhere.sql")
    assert names(sound(load_project(load_settings(root)))) == {"own"}


def test_all_names_resolve_in_a_project_without_errors(make_project: Make) -> None:
    project = load_project(load_settings(make_project(FILES)))
    assert not project.problems
    assert not project.broken
    assert names(sound(project)) == {"c", "above", "checked", "exact"}


def test_commands_report_a_name_that_a_broken_source_makes_ambiguous(
    make_project: Make,
) -> None:
    files = FILES | {"b/orders.sql": "CREATE VIEW orders AS SELECT id FROM nobody"}
    given = Invocation(project_dir=make_project(files), keep_going=True)
    several = "`orders` is ambiguous: a/orders/orders, b/orders/orders"
    with pytest.raises(ConflictError, match=several), given.naming_errors("orders"):
        find_source(given.project, "orders")
    with pytest.raises(ConflictError, match=several), given.naming_errors("orders.id", "orders"):
        find_columns(given.project, "orders.id")
    with pytest.raises(ConflictError, match="is ambiguous"):
        given.select(["orders+"])
    with pytest.raises(SourcesError, match="nobody"), given.naming_errors("b/orders/orders"):
        pass
    with given.naming_errors("orders@sources/a/orders.sql"):
        assert find_source(given.project, "orders@sources/a/orders.sql").name == "orders"


def test_a_raw_override_of_a_name_in_a_broken_file_is_uncertain(make_project: Make) -> None:
    raw = "CREATE TABLE r (id INT) USING parquet LOCATION 'r'"
    files = {
        "a.sql": raw,
        "b.sql": f"{raw} OPTIONS ('x",
        "c.sql": "--@ persist\nCREATE VIEW c AS SELECT id FROM a.r",
    }
    root = make_project(files, '[env.dev.raw]\nr = "elsewhere"\n')
    project = load_project(load_settings(root, environment="dev"))
    assert [p.location.path for p in project.errors] == ["sources/b.sql"]
    assert not names(sound(project))


@pytest.mark.parametrize(
    ("suffix", "text", "found"),
    [
        (".sql", "CREATE VIEW\n  -- x\n  a AS SELECT 1;\n-- CREATE VIEW b\ncreate table if not exists d.`c`(", "a c"),
        (".py", "@a.b(\n)\nasync  def f(): ...\n#@ persist\ndef g(): ...\ndef h(): ...", "f g"),
        (".malloy", "source: a is t extend { measure: n is count() }\n b(p::number) is a\nquery: q is b -> {}", "a b"),
        (".malloy", "// it's\nsource: x is t, `y` is t -> { select: c is d\nsource: z is t", "x y c z"),
    ],
)  # fmt: skip
def test_names_are_read_from_text_that_cannot_be_parsed(suffix: str, text: str, found: str) -> None:
    assert [d.name for d in NAMES[suffix](text, "f")] == found.split()


@pytest.mark.parametrize(
    "query", ["TABLE orders |> EXTEND DISTINCT id", "(TABLE orders) UNION ALL (TABLE orders"]
)
def test_an_unparsable_table_query_does_not_make_its_table_ambiguous(
    make_project: Make, query: str
) -> None:
    root = make_project({**FILES, "b.sql": f"CREATE VIEW b AS {query}"})
    project = load(load_settings(root)).project
    assert [e.location.path for e in project.errors] == ["sources/b.sql"]
    assert names(sound(project)) == {"c", "above", "checked", "exact"}
