"""Comparisons of files, git revisions, environments and builds on the command line."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.compiler.load import load_project
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.planning.diff import recorded_reads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS
SELECT
  a,
  upper(b) AS b
FROM t
WHERE a > 0;
CREATE VIEW v AS SELECT a + 1 AS c, b FROM p;
--@ persist
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v GROUP BY b;
--@ persist
CREATE VIEW r AS SELECT a FROM p;
"""
EDITED = SOURCES.replace("upper(b) AS b", "lower(b) AS b").replace("a + 1", "a + 2")


def run(root: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["--project", str(root), *arguments])


def json_of(root: Path, *arguments: str) -> Any:
    done = run(root, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def published(root: Path, environment: str) -> None:
    """Write the ledger records that a build of all sources would write."""
    settings = load_settings(root, environment=environment)
    project, ledger = load_project(settings), Ledger(settings.ledger)
    now = datetime.now(UTC)
    for n, source in enumerate(project.persisted):
        uid = f"{environment}{ledger.events.position()}{n}"
        build = Build(
            uid, source.source_id, source.build_id, source.definition, environment, "run",
            "started", "built", now, digests=source.digests,
            reads=recorded_reads(project, source),
        )  # fmt: skip
        snapshot = Snapshot(
            uid, source.source_id, source.build_id, source.table, 0, (), "c", 1, 1, now
        )
        ledger.builds.record_started(build, source.table)
        ledger.builds.publish(Publication(build, snapshot, []))
    ledger.close()


@pytest.fixture
def root(make_project: Callable[..., Path], tmp_path: Path) -> Path:
    """A project in a subdirectory of a repository, edited since its only commit."""
    made = make_project({"m.sql": SOURCES, "sub/ü.sql": "CREATE VIEW w AS SELECT b FROM p;"})
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (made / "sources" / "m.sql").write_text(EDITED)
    return made


def test_a_diff_with_a_revision_lists_changed_expressions(root: Path) -> None:
    p, v, q, w = json_of(root, "diff", "HEAD", ".")["sources"]
    assert p == {
        "source_id": "p@sources/m.sql",
        "change": "changed",
        "columns": ["b"],
        "rows_changed": False,
        "expressions": [{"column": "b", "before": "upper(b)", "after": "lower(b)"}],
        "because": [],
        "rows": None,
    }
    assert v["columns"] == ["c", "b"]
    assert v["expressions"] == [{"column": "c", "before": "a + 1", "after": "a + 2"}]
    assert v["because"] == ["p@sources/m.sql"]
    assert (q["source_id"], q["expressions"]) == ("q@sources/m.sql", [])
    assert w["source_id"] == "w@sources/sub/ü.sql"
    assert (
        json_of(root, "diff", ".", ".") == json_of(root, "diff", "main", "HEAD") == {"sources": []}
    )
    plain = run(root, "diff", "main", ".").stdout
    assert "changed p@sources/m.sql b\n│   └── b: upper(b) → lower(b)" in plain
    assert "because p@sources/m.sql changed" in plain
    assert run(root, "diff", ".", ".").stdout == "no differences between . and .\n"


def test_a_plan_against_a_revision_lists_the_tables_to_rebuild(root: Path) -> None:
    with (root / "sources" / "m.sql").open("a") as file:
        file.write("--@ persist\nCREATE VIEW n AS SELECT b FROM t;")
    against = json_of(root, "plan", "--against", "HEAD")["against"]
    assert (against["ref"], against["to_rebuild"]) == ("HEAD", 3)
    assert [(s["source_id"][0], s["change"], s["columns"]) for s in against["sources"]] == [
        ("p", "changed", ["b"]),
        ("q", "changed", ["b", "s"]),
        ("r", "same", []),
        ("n", "added", ["b"]),
    ]
    some = json_of(root, "plan", "r", "--against", "HEAD")["against"]
    assert ([s["change"] for s in some["sources"]], some["to_rebuild"]) == (["same"], 0)
    plain = run(root, "plan", "--against", "HEAD").stdout
    assert "against HEAD\n├── changed p@sources/m.sql b" in plain
    assert plain.endswith("3 to rebuild, 1 the same as in HEAD\n")
    assert "against" not in json_of(root, "plan")


def test_environments_are_compared_by_their_recorded_builds(root: Path) -> None:
    (root / "sources" / "m.sql").write_text(SOURCES)
    published(root, "prod")
    (root / "sources" / "m.sql").write_text(EDITED.replace("VIEW r ", "VIEW z "))
    published(root, "dev")
    changed = {s["source_id"][0]: s for s in json_of(root, "diff", "prod", "dev")["sources"]}
    assert {k: (s["change"], s["columns"]) for k, s in changed.items()} == {
        "p": ("changed", ["b"]),
        "q": ("changed", ["b", "s"]),
        "z": ("added", ["a"]),
        "r": ("removed", ["a"]),
    }
    assert changed["p"]["expressions"] == []
    against = json_of(root, "plan", "--against", "prod")["against"]
    assert [(s["source_id"][0], s["change"]) for s in against["sources"]] == [
        ("p", "changed"),
        ("q", "changed"),
        ("z", "added"),
        ("r", "removed"),
    ]
    assert against["to_rebuild"] == 2
    (p,) = json_of(root, "diff", "prod", ".")["sources"][:1]
    assert p["expressions"] == [{"column": "b", "before": None, "after": "lower(b)"}]


def test_a_diff_accepts_build_id_prefixes(root: Path) -> None:
    published(root, "prod")
    ids = [s["build_id"] for s in json_of(root, "plan")["steps"]]
    (root / "sources" / "m.sql").write_text(SOURCES)
    published(root, "prod")
    other = json_of(root, "plan")["steps"][0]["build_id"]
    (one,) = json_of(root, "diff", ids[0][:12], other)["sources"]
    assert (one["source_id"], one["columns"]) == ("p@sources/m.sql", ["b"])
    (one,) = json_of(root, "diff", ids[0], ".")["sources"]
    assert (one["source_id"], one["columns"]) == ("p@sources/m.sql", ["b"])
    assert json_of(root, "diff", other, ".") == {"sources": []}


def test_a_plan_names_the_columns_and_the_lines_that_changed(root: Path) -> None:
    (root / "sources" / "m.sql").write_text(SOURCES)
    published(root, "dev")
    (root / "sources" / "m.sql").write_text(EDITED)
    (root / "raw").mkdir()
    others = ("no-data", "upgrade")  # there is no data, and the builds record no query text
    reasons = {
        s["source_id"][0]: [r["message"] for r in s["reasons"] if r["code"] not in others]
        for s in json_of(root, "plan")["steps"]
    }
    assert reasons["p"] == ["column b changed in sources/m.sql:6"]
    assert reasons["q"] == ["column b of p changed", "columns c, b of v changed"]


@pytest.mark.parametrize("command", [("diff", "prdo", "."), ("plan", "--against", "prdo")])
def test_an_unknown_name_is_reported_with_a_suggestion(
    root: Path, command: tuple[str, ...]
) -> None:
    published(root, "prod")
    done = run(root, *command)
    assert done.exit_code == 4
    assert "`prdo` is not an environment, git revision or BuildID" in done.stderr
    assert "did you mean `prod`?" in done.stderr
    assert run(root, "diff", "--", "--help", ".").exit_code == 4


def test_source_errors_of_a_revision_are_reported_with_its_name(root: Path, tmp_path: Path) -> None:
    (root / "sources" / "m.sql").write_text("CREATE VIEW p AS SELECT zz FROM nowhere;")
    git(tmp_path, "commit", "-q", "-a", "-m", "second")
    (root / "sources" / "m.sql").write_text(SOURCES)
    done = run(root, "diff", "HEAD", ".")
    assert done.exit_code == 3
    assert "HEAD:sources/m.sql:1:" in done.stderr
    assert json_of(root, "diff", "HEAD~1", ".") == {"sources": []}


def test_a_diff_does_not_change_source_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PERSIST_CACHE", str(cache))
    json_of(root, "check")

    def state() -> dict[str, tuple[bytes, int]]:
        return {
            str(p): (p.read_bytes(), p.stat().st_mtime_ns)
            for d in (root / "sources", root / ".persist" / "cache", cache)
            for p in d.rglob("*")
            if p.is_file()
        }

    before = state()
    assert any(path.endswith(".cache") for path in before)
    json_of(root, "diff", "HEAD", ".")
    assert state() == before


def test_a_diff_with_a_revision_fails_outside_a_git_repository(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = make_project({"m.sql": SOURCES}, name="alone")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(alone.parent))
    done = run(alone, "diff", "HEAD", ".")
    assert done.exit_code == 4
    assert "environments: none yet" in done.stderr


def test_a_promotion_is_recorded_in_the_history_and_can_be_rolled_back(root: Path) -> None:
    published(root, "dev")
    stale = run(root, "promote", "dev", "prod", "p", "--json")
    assert stale.exit_code == 4
    refused = json.loads(stale.stdout)
    assert (refused["change_id"], refused["moved"]) == (None, [])
    assert "is gone" in refused["refused"][0]["reason"]
    dry = json_of(root, "promote", "dev", "prod", "p", "--allow-stale", "--dry-run")
    assert (dry["change_id"], len(dry["moved"])) == (None, 1)
    done = json_of(root, "promote", "dev", "prod", "--allow-stale", "--why", "why not")
    assert {m["source_id"].partition("@")[0] for m in done["moved"]} == {"p", "q", "r"}
    assert {m["from_build"] for m in done["moved"]} == {None}
    (change,) = json_of(root, "history", "--env", "prod")
    assert (change["change_id"], change["kind"]) == (done["change_id"], "promote")
    assert change["why"] == "why not"
    entry = change["entries"][0]
    assert entry.keys() == {"source_id", "build_id", "before", "after"}
    assert entry["before"] is None
    (back,) = json_of(root, "rollback", "--env", "prod")
    assert [e["after"] for e in back["entries"]] == [None, None, None]
    assert json_of(root, "manifest", "--env", "prod")["entries"] == {}
    assert len(json_of(root, "history", "--env", "prod", "--limit", "1")) == 1
    shown = run(root, "history", "--env", "prod").stdout.splitlines()
    assert " rollback by " in shown[0]
    assert shown[0].endswith(" to nothing")
    nothing = run(root, "rollback", "--env", "prod", "--to", "1")
    assert nothing.exit_code == 4
    assert "prod has no change 1" in nothing.stderr


def test_a_diff_ignores_tables_that_an_environment_reads_from_the_other(root: Path) -> None:
    toml = root / "persist.toml"
    toml.write_text('[env.prod]\n[env.dev]\nreads = "prod"\n' + toml.read_text())
    published(root, "prod")
    assert json_of(root, "diff", "prod", "dev")["sources"] == []
    (root / "sources" / "m.sql").write_text(EDITED.replace("sum(c)", "max(c)"))
    published(root, "dev")
    (q,) = json_of(root, "diff", "prod", "dev")["sources"]
    assert (q["source_id"], q["columns"]) == ("q@sources/m.sql", ["s"])
