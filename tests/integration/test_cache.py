"""Compiling with what earlier compilations found: the same project, sooner, whatever happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from persist_assets import cache
from persist_assets.errors import SourcesError
from persist_assets.frontends import FRONTENDS
from persist_assets.model import Project
from persist_assets.project import load_project, require
from persist_assets.settings import load_settings

FILES = {
    "raw.sql": "CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 't';",
    "a.sql": "CREATE VIEW v AS SELECT a, upper(b) AS b FROM t WHERE a > 0;\n"
    "--@ persist\nCREATE VIEW p AS SELECT a, count(*) AS n FROM v GROUP BY a;",
    "b.sql": "--@ persist\nCREATE VIEW q AS SELECT a FROM p;\n"
    "--@ persist\nCREATE VIEW r AS SELECT n, rand() AS x FROM p;\n"
    "CREATE VIEW s AS SELECT x FROM r;",
}


def load(root: Path) -> Project:
    return load_project(load_settings(root))


def caches(root: Path) -> list[Path]:
    return sorted((root / ".persist" / "cache").iterdir())


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are parsed during a test."""
    seen: list[str] = []
    parse = FRONTENDS[".sql"]
    monkeypatch.setitem(
        FRONTENDS, ".sql", lambda text, path, find: seen.append(path) or parse(text, path, find)
    )
    return seen


def test_a_warm_load_parses_nothing_and_finds_the_same(
    make_project: Callable[..., Path], parses: list[str]
) -> None:
    root = make_project(FILES)
    cold = load(root)
    assert parses == ["sources/a.sql", "sources/b.sql", "sources/raw.sql"]
    (made,) = caches(root)
    before = made.stat().st_mtime_ns
    parses.clear()
    assert load(root) == cold
    assert parses == []
    assert made.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("path", "old", "new", "parsed"),
    [
        ("a.sql", "SELECT a, upper", "SELECT  a, upper", ["a"]),
        ("a.sql", "CREATE VIEW v", "-- Said.\nCREATE VIEW v", ["a"]),
        ("a.sql", "a > 0", "a > 1", ["a", "b"]),
        ("b.sql", "SELECT x FROM r", "SELECT x + 1 AS x FROM r", ["b"]),
        ("raw.sql", "a INT", "a BIGINT", ["raw", "a", "b"]),
        ("a.sql", "--@ persist\n", "", ["a", "b"]),
    ],
)
def test_after_an_edit_it_is_the_project_that_a_cold_load_finds(
    make_project: Callable[..., Path],
    parses: list[str],
    path: str,
    old: str,
    new: str,
    parsed: list[str],
) -> None:
    root = make_project(FILES)
    load(root)
    parses.clear()
    assert old in FILES[path]
    (root / "sources" / path).write_text(FILES[path].replace(old, new))
    warm = load(root)
    assert sorted(set(parses)) == sorted(f"sources/{name}.sql" for name in parsed)
    caches(root)[0].unlink()
    assert warm == load(root)


def test_what_is_deep_is_remembered_too(
    make_project: Callable[..., Path], parses: list[str]
) -> None:
    deep = f"--@ persist\nCREATE VIEW p AS SELECT {' + '.join(['a'] * 1000)} AS x FROM t;"
    root = make_project({"a.sql": f"{FILES['raw.sql']}{deep}"})
    assert load(root) == load(root)
    (root / "sources" / "c.sql").write_text("CREATE VIEW r AS SELECT x FROM p WHERE x > 0")
    parses.clear()
    warm = load(root)
    assert parses == ["sources/c.sql"]
    (made,) = caches(root)
    made.unlink()
    assert load(root) == warm


def test_what_is_wrong_is_found_again(make_project: Callable[..., Path]) -> None:
    root = make_project({**FILES, "c.sql": "CREATE VIEW c AS SELECT nope FROM t;"})
    told = [str(p) for p in load(root).problems]
    assert [str(p) for p in load(root).problems] == told
    with pytest.raises(SourcesError, match="`nope` is not a column"):
        require(load(root))


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "directory"])
def test_a_damaged_cache_is_no_cache(make_project: Callable[..., Path], harm: str) -> None:
    root = make_project(FILES)
    cold = load(root)
    (made,) = caches(root)
    data = made.read_bytes()
    made.unlink()
    match harm:
        case "cut":
            made.write_bytes(data[:-100])
        case "flip":
            made.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
        case "empty":
            made.write_bytes(b"")
        case _:
            made.mkdir()
    assert load(root) == cold


def test_another_release_reads_nothing_of_it(
    make_project: Callable[..., Path], parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(FILES)
    cold = load(root)
    parses.clear()
    monkeypatch.setattr(cache, "_stamp", lambda: "0" * 64)
    assert load(root) == cold
    assert len(parses) == 3


def test_settings_that_change_results_have_a_cache_of_their_own(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    settings = load_settings(root)
    utc = load_project(settings)
    other = load_project(replace(settings, spark=(*settings.spark, ("spark.sql.x", "1"))))
    assert len(caches(root)) == 2
    assert {s.build_id for s in utc.sources}.isdisjoint({s.build_id for s in other.sources})


def test_processes_that_load_at_once_do_not_disturb_each_other(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    command = (
        "import sys; from pathlib import Path;"
        "from persist_assets.project import load_project;"
        "from persist_assets.settings import load_settings\n"
        "for _ in range(5):\n"
        "    found = load_project(load_settings(Path(sys.argv[1])))\n"
        "    print(' '.join(s.build_id for s in found.sources))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", command, str(root)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    told = {line for process in running for line in process.communicate(timeout=60)[0].split("\n")}
    assert len(told - {""}) == 1
    assert [p.returncode for p in running] == [0] * 4
    assert len(caches(root)) == 1
