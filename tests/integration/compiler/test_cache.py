"""The compilation cache: it yields the same project faster, even if the cache is damaged."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler import cache
from persist_assets.compiler.lasting import load_lasting
from persist_assets.compiler.load import load as load_all
from persist_assets.compiler.load import load_project, require
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.core.digests import digest, digest_connection
from persist_assets.core.errors import Location, SourcesError
from persist_assets.core.model.deltas import NoRule, Program
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Malloy

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.project import Project

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
    return sorted((root.parent / "cache" / "compiled").glob("*.cache"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIST_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are parsed during a test."""
    seen: list[str] = []
    parse = FRONTENDS[".sql"]
    monkeypatch.setitem(
        FRONTENDS, ".sql", lambda text, path, *rest: seen.append(path) or parse(text, path, *rest)
    )
    return seen


def test_a_warm_load_parses_no_files_and_finds_the_same_project(
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


def test_a_warm_load_does_not_unpickle_the_faces_of_sources(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    cold = load(root)
    (made,) = caches(root)
    stored = cache.load_cache(made)
    assert len(stored.meanings) == 5
    unreadable = {key: replace(m, face=b"no pickle") for key, m in stored.meanings.items()}
    cache.save_cache(made, stored.files, unreadable)
    warm = load(root)
    assert warm == cold
    assert not warm.errors


def test_memory_holds_the_cached_meanings_without_syntax_trees(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    cold = load_all(load_settings(root))
    (made,) = caches(root)
    assert cold.n_new == 5
    assert cold.compilation.memory.used == cache.load_cache(made).meanings
    units = [unit for unit in cold.compilation.units.values() if unit.meaning is not None]
    assert len(units) == 5
    for unit in units:
        assert unit.meaning is not None
        assert isinstance(unit.meaning.face, bytes)
        assert unit.names() == unit.face().names
        for query in (unit.written.query, unit.declaration.query):
            assert query is not None
            assert query.tree is None
    assert load_all(load_settings(root)).n_new == 0


@pytest.mark.slow
def test_a_long_lived_process_loads_the_same_project(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "".join(
        f"--@ persist\nCREATE VIEW v{n} AS SELECT a + {n} AS a FROM p;\n" for n in range(250)
    )
    root = make_project({**FILES, "many.sql": many})
    lasting = load_lasting(load_settings(root))  # cold: compiled, then read from the cache
    warm = load_lasting(load_settings(root))
    monkeypatch.setenv("PERSIST_CACHE", str(root.parent / "another"))
    assert load(root) == lasting == warm
    monkeypatch.setenv("PERSIST_CACHE", "/proc/nowhere")  # nothing can be stored
    assert load_lasting(load_settings(root)) == lasting


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
def test_after_an_edit_a_warm_load_equals_a_cold_load(
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


def test_deeply_nested_expressions_are_cached(
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


def test_a_warm_load_reports_the_same_problems(make_project: Callable[..., Path]) -> None:
    root = make_project({**FILES, "c.sql": "CREATE VIEW c AS SELECT nope FROM t;"})
    told = [str(p) for p in load(root).problems]
    assert [str(p) for p in load(root).problems] == told
    with pytest.raises(SourcesError, match="`nope` is not a column"):
        require(load(root))


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "directory"])
def test_a_damaged_cache_is_ignored(make_project: Callable[..., Path], harm: str) -> None:
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


def test_a_cache_of_another_release_is_ignored(
    make_project: Callable[..., Path], parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(FILES)
    cold = load(root)
    parses.clear()
    monkeypatch.setattr(cache, "_stamp", lambda: "0" * 64)
    assert load(root) == cold
    assert len(parses) == 3


class _Harm:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (Path.touch, (self.path,))


@pytest.mark.proves("S7")
@pytest.mark.parametrize("key", ["their key", "public key", "linked key", "no key"])
def test_a_cache_signed_with_another_key_runs_no_code(
    make_project: Callable[..., Path], tmp_path: Path, key: str
) -> None:
    root = make_project(FILES)
    cold = load(root)
    (made,) = caches(root)
    own, theirs = made.parent / "key", b"k" * 32
    data = pickle.dumps(_Harm(tmp_path / "harmed"))
    signed = cache._sign(theirs, made, data)
    made.write_bytes(cache._stamp().encode() + signed + data)
    if key == "public key":
        own.write_bytes(theirs)
        own.chmod(0o644)
    elif key == "linked key":
        (tmp_path / "elsewhere").write_bytes(theirs)
        (tmp_path / "elsewhere").chmod(0o600)
        own.unlink()
        own.symlink_to(tmp_path / "elsewhere")
    elif key == "no key":
        own.unlink()
    assert load(root) == cold
    assert not (tmp_path / "harmed").exists()
    assert own.stat().st_mode & 0o777 == 0o600
    assert not own.is_symlink() and own.read_bytes() != theirs
    assert load(root) == cold


@pytest.mark.proves("S7")
def test_a_cache_signed_for_one_project_is_rejected_by_another(
    make_project: Callable[..., Path], parses: list[str]
) -> None:
    one, other = make_project(FILES), make_project(FILES, name="other")
    load(one)
    (first,) = caches(one)
    load(other)
    (second,) = set(caches(other)) - {first}
    second.write_bytes(first.read_bytes())
    parses.clear()
    load(other)
    assert len(parses) == 3


@pytest.mark.proves("S7")
def test_the_cache_of_older_releases_in_the_project_is_not_read(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_project(FILES)
    kind = digest(
        "cache", digest_connection(load_settings(root).connection), repr(Malloy("spark", (), ()))
    )
    old = root / ".persist" / "cache" / f"{kind[:16]}.pickle"
    old.parent.mkdir(parents=True)
    data = pickle.dumps(_Harm(tmp_path / "harmed"))
    old.write_bytes(cache._stamp().encode() + sha256(data).hexdigest().encode() + data)
    load(root)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.proves("S7")
def test_cache_files_are_private_and_expire_when_unused(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_project(FILES)
    load(root)
    (made,) = caches(root)
    for path, mode in ((made, 0o600), (made.parent, 0o700), (tmp_path / "cache", 0o700)):
        assert path.stat().st_mode & 0o777 == mode
    gone = made.with_name("0" * 32 + ".cache")
    gone.write_bytes(b"")
    long_ago = time.time() - 100 * 24 * 3600
    os.utime(gone, (long_ago, long_ago))
    os.utime(made, (long_ago, long_ago))
    load(root)
    assert made.stat().st_mtime > time.time() - 600
    (root / "sources" / "c.sql").write_text("CREATE VIEW c AS SELECT a FROM t")
    load(root)
    assert caches(root) == [made]
    (names,) = made.parent.glob("*.names")
    assert {p.name for p in made.parent.iterdir()} == {made.name, names.name, "key"}


@pytest.mark.parametrize("trouble", ["file", "no home"])
def test_a_project_loads_without_a_place_for_the_cache(
    make_project: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parses: list[str],
    trouble: str,
) -> None:
    root = make_project(FILES)
    if trouble == "file":
        (tmp_path / "cache").touch()
    else:
        monkeypatch.delenv("PERSIST_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", lambda: _raise(RuntimeError("no home")))
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    assert load(root) == load(root)
    assert len(parses) == 2 * len(FILES), "nothing was cached"
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def _raise(error: Exception) -> Path:
    raise error


def test_settings_that_change_results_have_a_cache_of_their_own(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    settings = load_settings(root)
    utc = load_project(settings)
    other = load_project(replace(settings, spark=(*settings.spark, ("spark.sql.x", "1"))))
    assert len(caches(root)) == 2
    assert {s.build_id for s in utc.sources}.isdisjoint({s.build_id for s in other.sources})


@pytest.mark.slow
def test_processes_that_load_concurrently_find_the_same_project(
    make_project: Callable[..., Path],
) -> None:
    root = make_project(FILES)
    command = (
        "import sys; from pathlib import Path;"
        "from persist_assets.compiler.load import load_project;"
        "from persist_assets.core.settings.load import load_settings\n"
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


# ---------------------------------------------------------------------------------------- programs

T, P, Q = "t@sources/raw.sql", "p@sources/a.sql", "q@sources/b.sql"
LIMITED = "CREATE VIEW q AS SELECT a FROM p ORDER BY a LIMIT 3 OFFSET 1"


def derived(project: Project) -> list[object]:
    """Return all programs of the sources that are persisted."""
    out: list[object] = []
    for source_id, table in ((P, T), (Q, P)):
        for derive in (project.program, project.merging):
            try:
                out.append(derive(source_id, frozenset((table,)), frozenset()))
            except NoRule as error:
                out.append((error.reason, error.location))
        out.append(project.uses(source_id))
    return out


def test_programs_are_derived_once(make_project: Callable[..., Path], parses: list[str]) -> None:
    files = {**FILES, "b.sql": FILES["b.sql"].replace("CREATE VIEW q AS SELECT a FROM p", LIMITED)}
    root = make_project(files)
    project = load(root)
    programs = derived(project)
    assert isinstance(programs[0], Program)
    assert programs[3] == ("of a LIMIT with an OFFSET", Location("sources/b.sql", 2, 51))
    project.remember()
    parses.clear()
    again = load(root)
    assert derived(again) == programs
    assert parses == []


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("a.sql", "a > 0", "a > 1"),
        ("a.sql", "SELECT a, count(*)", "SELECT a,\n count(*)"),
        ("raw.sql", "a INT", "a BIGINT"),
        ("raw.sql", "a INT", "z STRING, a INT"),
    ],
)
def test_an_edit_invalidates_cached_programs(
    make_project: Callable[..., Path], path: str, old: str, new: str
) -> None:
    root = make_project(FILES)
    project = load(root)
    derived(project)
    project.remember()
    (root / "sources" / path).write_text(FILES[path].replace(old, new))
    warm = derived(load(root))
    for file in (root.parent / "cache" / "compiled").glob("*.programs"):
        file.unlink()
    assert warm == derived(load(root))
