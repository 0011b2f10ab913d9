"""Reviews of changed files against an environment, and the end of pull request environments."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import ConflictError, PersistError, SettingsError
from persist_assets.core.model.snapshots import Build
from persist_assets.core.wants import Want
from persist_assets.operations.environments import promote
from persist_assets.operations.gc import end_environment
from persist_assets.operations.review import Altered, Review, review

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    from persist_assets.building.builder import Builder

SETTINGS = """
[env.prod]
[env."pr-*"]
reads = "prod"
"""
SOURCES = """
CREATE TABLE t (a BIGINT, b BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
--@ check { not_null=[a, b] range { b { min=0 } } }
CREATE VIEW p AS SELECT a, b, a + b AS c FROM t;
--@ persist
CREATE VIEW of_c AS SELECT c FROM p;
--@ persist
CREATE VIEW of_a AS SELECT a FROM p;
--@ persist
CREATE VIEW gone AS SELECT b FROM t;
"""


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array(values, pa.int64())
    pq.write_table(pa.table({"a": column, "b": column}), path)


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, SETTINGS)
    write(made, [1, 2])
    return made


def edit(root: Path, **replaced: str) -> None:
    path = root / "sources" / "m.sql"
    text = path.read_text()
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


def build_all(builder: Builder, *names: str) -> None:
    for source in builder.project.persisted:
        if not names or source.name in names:
            builder.build(source)


def invoked(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--project", str(root)])


def seen(builder: Builder, against: str = "prod", *names: str) -> Review:
    chosen = [s.source_id for s in builder.project.persisted if s.name in names] if names else None
    return review(builder.settings, builder.project, builder.ledger, against, chosen)


@pytest.mark.proves("W12")
def test_a_review_lists_columns_checks_readers_and_costs(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    path = root / "sources" / "m.sql"
    text = path.read_text().replace("a + b AS c", "CAST(a + b AS STRING) AS c, a AS d")
    text = text.replace("not_null=[a, b] range { b { min=0 } }", "unique=[a] range { b { min=1 } }")
    text = text.partition("--@ persist\nCREATE VIEW gone")[0]
    text += "--@ persist\nCREATE VIEW new AS SELECT a FROM of_a;\n"
    path.write_text(text)
    found = seen(enter(root, "pr-1"))
    by_name = {r.source_id.partition("@")[0]: r for r in found.sources}
    changes = {name: r.difference.change for name, r in by_name.items()}
    assert changes == {"p": "changed", "of_c": "changed", "new": "added", "gone": "removed"}
    assert (found.n_same, found.notes) == (1, ())
    p = by_name["p"]
    assert [(c.name, c.type) for c in p.columns.added] == [("d", "bigint")]
    assert p.columns.retyped == (Altered("c", "bigint", "string"),)
    assert p.columns.changed == ("c",)
    assert p.checks.added == ("a unique",)
    assert p.checks.removed == ("a not null", "b not null")
    assert p.checks.changed == (Altered("range_b", "b at least 0", "b at least 1"),)
    assert p.rebuilt == ("of_c@sources/m.sql", "new@sources/m.sql")
    assert p.spared == ("of_a@sources/m.sql",)
    assert p.seconds is not None
    assert p.step is not None
    assert [r.code for r in p.step.reasons] == ["code"]
    assert by_name["of_c"].step is not None
    assert [r.source_id for r in by_name["of_c"].step.reasons] == ["p@sources/m.sql"]
    assert by_name["new"].seconds is None
    assert (by_name["gone"].step, by_name["gone"].is_rebuilt) == (None, False)


@pytest.mark.proves("W12")
def test_builds_in_a_pull_request_do_not_change_its_review(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(root, **{"a + b AS c": "a - b AS c"})
    before = seen(enter(root, "pr-1"))
    build_all(enter(root, "pr-1"))
    after = seen(enter(root, "pr-1"))
    assert [r.step for r in after.sources] == [r.step for r in before.sources]
    assert [r.is_rebuilt for r in after.sources] == [True, True]


@pytest.mark.proves("W12")
def test_a_review_reports_changed_checks_newer_data_and_an_empty_environment(
    root: Path, enter: Callable[..., Builder]
) -> None:
    empty = seen(enter(root, "pr-1"))
    assert empty.notes == ("prod has no tables in this ledger, so every source is new to it",)
    assert {r.difference.change for r in empty.sources} == {"added"}
    build_all(enter(root, "prod"))
    edit(root, **{"not_null=[a, b]": "not_null=[a]"})
    write(root, [1, 2, 3])
    (checked,) = seen(enter(root, "pr-1")).sources
    assert (checked.difference.change, checked.checks.removed) == ("same", ("b not null",))
    assert seen(enter(root, "pr-1")).notes == ("4 more are stale in prod, because of newer data",)


@pytest.mark.proves("W12")
def test_checks_are_compared_with_those_of_the_last_build_in_the_environment(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(root, **{"not_null=[a, b]": "not_null=[a]"})
    build_all(enter(root, "prod"))
    assert seen(enter(root, "pr-1")).sources == (), "prod has built without the removed check"
    edit(root, **{"not_null=[a]": "not_null=[a] unique=[a]"})
    for _ in range(2):  # the builds of the pull request check the table of prod
        (p,) = seen(enter(root, "pr-1")).sources
        assert (p.checks.added, p.checks.removed) == (("a unique",), ())
        build_all(enter(root, "pr-1"))


@pytest.mark.proves("W12")
def test_checks_that_passed_in_a_pull_request_count_for_its_promotion(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(root, **{"not_null=[a, b]": "not_null=[a, b] unique=[a]", "a + b AS c": "a - b AS c"})
    build_all(enter(root, "pr-1"), "p")
    edit(root, **{"unique=[a]": "unique=[a, b]", "a - b AS c": "a + b AS c"})
    pull = enter(root, "pr-1")
    refused = [r.reason for r in promote(pull, "prod", ["p@sources/m.sql"])[0].refused]
    assert refused == ["its table has not passed these checks: a, b unique"]
    build_all(pull, "p", "of_a", "of_c")  # the table of prod, which the pull request only reads
    assert promote(pull, "prod", ["p@sources/m.sql"])[0].refused == ()
    edit(root, **{"a + b AS c": "a * b AS c"})
    build_all(enter(root, "pr-1"), "p", "of_c")
    edit(root, **{"unique=[a, b]": "unique=[b]"})
    pull = enter(root, "pr-1")
    build_all(pull, "p")
    promotion, change = promote(pull, "prod", ["p@sources/m.sql", "of_c@sources/m.sql"])
    assert change is not None, promotion.refused
    assert seen(enter(root, "pr-2")).sources == (), "of the build that was promoted"


@pytest.mark.proves("W12")
def test_unselected_sources_that_differ_are_not_counted_as_unchanged(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(root, **{"a + b AS c": "a - b AS c"})
    reviewed = seen(enter(root, "pr-1"), "prod", "p", "gone")
    assert [r.source_id for r in reviewed.sources] == ["p@sources/m.sql"]
    assert reviewed.n_same == 1
    assert reviewed.notes == ("1 more source differs and is not selected",)


@pytest.mark.proves("W12")
def test_a_review_notes_a_revision_with_different_settings(
    root: Path, enter: Callable[..., Builder]
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    git("add", "sources", "persist.toml")
    author = ("-c", "user.name=x", "-c", "user.email=x@x")
    git(*author, "commit", "-q", "-m", "first")
    builder = enter(root, "pr-1")
    assert seen(builder, "HEAD").notes == (), "of newer data nothing is known"
    with (root / "persist.toml").open("a") as file:
        file.write('[defaults."*"]\nrefresh = "whole"\n')
    (note,) = seen(enter(root, "pr-1"), "HEAD").notes
    assert note.startswith("persist.toml differs in HEAD")


@pytest.mark.proves("W12")
def test_fail_on_selects_the_differences_that_fail_a_review(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(
        root,
        **{"a + b AS c": "a - b AS d", "not_null=[a, b]": "not_null=[a]", "SELECT c": "SELECT d"},
    )

    def outcome(*arguments: str) -> tuple[int, list[tuple[str, str, str]]]:
        done = invoked(root, "ci", "--against", "prod", "--json", *arguments)
        broken = json.loads(done.stdout).get("violations", [])
        return done.exit_code, [(v["rule"], v["source_id"][0], v["reason"]) for v in broken]

    assert outcome() == (0, [])
    gone = [("columns", "p", "the column c is gone"), ("columns", "o", "the column c is gone")]
    assert outcome("--fail-on", "columns") == (1, gone)
    checks = [("checks", "p", "no longer checked: b not null")]
    assert outcome("--fail-on", "checks,columns") == (1, [*checks, *gone])
    built = [("rebuilds", name, "a build computes its table") for name in "po"]
    assert outcome("of_c", "--fail-on", "rebuilds") == (1, built[1:])
    assert outcome("--fail-on", "rebuilds", "--exclude", "p or of_c") == (0, [])
    assert outcome("--fail-on", "rows") == (2, [])
    assert (
        "- `--fail-on columns`"
        in invoked(root, "ci", "--against", "prod", "--fail-on", "columns").stdout
    )
    refused = invoked(
        root, "ci", "--against", "HEAD", "--build", "--fail-on", "rows", "--env", "pr-1"
    )
    assert refused.exit_code == 4, "there is no such revision"


@pytest.mark.proves("W12")
def test_an_unwritable_output_file_is_rejected_before_any_work(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    (root / "file").touch()
    for name, why in (("sources", "it is a directory"), ("file/x.md", "File exists")):
        done = invoked(root, "ci", "--against", "prod", "--markdown", str(root / name))
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"cannot write {root / name}: {why}" in done.stderr
        done = invoked(root, "test", "--junit", str(root / name))
        assert (done.exit_code, done.stdout) == (2, "")
    written = root / "new" / "review.md"
    invoked(root, "ci", "--against", "prod", "--markdown", str(written))
    assert written.read_text().startswith("<!-- persist ci -->")


@pytest.mark.proves("W12")
@pytest.mark.parametrize("more", [["pr-2"], ["--against", "prod"], ["--build"], ["--exclude", "p"]])
def test_ending_an_environment_takes_no_other_arguments(
    root: Path, enter: Callable[..., Builder], more: list[str]
) -> None:
    pull = enter(root, "pr-1")
    build_all(pull, "p")
    done = invoked(root, "ci", "--end", "--env", "pr-1", *more)
    assert (done.exit_code, "takes no other options" in done.stderr) == (2, True)
    assert len(pull.ledger.manifests.fetch("pr-1")) == 1


@pytest.mark.proves("W12")
def test_ending_an_environment_deletes_all_its_tables_except_promoted_ones(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = enter(root, "prod")
    build_all(prod)
    was = prod.ledger.manifests.fetch("prod")
    edit(root, **{"a + b AS c": "a - b AS c"})
    pull = enter(root, "pr-1")
    build_all(pull, "p", "of_c")
    warehouse = root / ".persist" / "warehouse"
    assert sum(d.name.startswith("p-") for d in warehouse.iterdir()) == 2
    promotion, change = promote(pull, "prod", ["p@sources/m.sql"])
    assert change is not None, promotion.refused
    n_entries, collected = end_environment(pull.settings, pull.project, pull.ledger)
    assert n_entries == 2
    assert [c.table.partition("-")[0] for c in collected] == ["of_c"]
    assert sum(d.name.startswith("p-") for d in warehouse.iterdir()) == 2
    assert sum(d.name.startswith("of_c-") for d in warehouse.iterdir()) == 1
    assert "pr-1" not in pull.ledger.manifests.fetch_environments()
    assert pull.ledger.manifests.fetch_history("pr-1") == []
    assert was.items() <= pull.ledger.manifests.fetch("prod").items()
    assert not pull.settings.manifest_path.exists()
    assert end_environment(pull.settings, pull.project, pull.ledger) == (0, [])
    # Another pull request can reuse the name.
    again = enter(root, "pr-1")
    build_all(again, "of_c")
    assert list(again.ledger.manifests.fetch("pr-1")) == [again.project.persisted[1].build_id]


@pytest.mark.proves("W12")
def test_production_and_environments_in_use_cannot_be_ended(
    root: Path, enter: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    prod = enter(root, "prod")
    build_all(prod, "p")
    with pytest.raises(SettingsError, match="`prod` is not an environment of a pull request"):
        end_environment(prod.settings, prod.project, prod.ledger)
    pull = enter(root, "pr-1")
    pull.ledger.wants.create([Want("w1", "m/p", "pr-1", datetime.now(UTC))])
    fields = ("uid", "p@s.sql", "build-p", "def", "pr-1", "run", "started", "built")
    under_way = Build(*fields, datetime.now(UTC))
    pull.ledger.builds.record_started(under_way, "table-p")
    with pytest.raises(ConflictError, match=r"p@s\.sql is being built in it"):
        end_environment(pull.settings, pull.project, pull.ledger)
    # The machine of a killed runner is gone, so a build counts as dead after a time limit.
    monkeypatch.setattr("persist_assets.operations.gc.LONGEST", timedelta(0))
    with pytest.raises(ConflictError, match="the want w1 is not met yet"):
        end_environment(pull.settings, pull.project, pull.ledger)
    pull.ledger.builds.record_failed(under_way, "x")
    with pytest.raises(ConflictError, match="the want w1 is not met yet"):
        end_environment(pull.settings, pull.project, pull.ledger)
    assert len(prod.ledger.manifests.fetch("prod")) == 1


@pytest.mark.proves("W12")
@pytest.mark.parametrize(
    ("settings", "name", "error", "says"),
    [
        ('[env."pr-*"]\n[env.qa]\nreads = "pr-1"\n', "pr-1", ConflictError, "`qa` reads it"),
        ('[env."pr-*"]\n[env."qa-*"]\nreads = "pr-1"\n', "pr-1", ConflictError, "`qa-*` reads it"),
        ('environment = "main"\n[env."m*"]\n', "main", SettingsError, "`main` is not an environment of"),
    ],
)  # fmt: skip
def test_an_environment_that_the_settings_refer_to_cannot_be_ended(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    settings: str,
    name: str,
    error: type[PersistError],
    says: str,
) -> None:
    root = make_project({"m.sql": SOURCES}, settings)
    write(root, [1, 2])
    builder = enter(root, name)
    build_all(builder, "p")
    with pytest.raises(error, match=re.escape(says)):
        end_environment(builder.settings, builder.project, builder.ledger)
    assert len(builder.ledger.manifests.fetch(name)) == 1
