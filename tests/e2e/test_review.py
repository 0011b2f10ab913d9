"""`persist ci` reviews a change: the tests run the steps of the examples as CI servers do."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import clean_environ, document, persist
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NOT_RUN = ("Install", "Comment")
"""The steps of the examples that need a package registry or a CI server."""
GITHUB: dict[str, Any] = yaml.safe_load(
    (ROOT / "persist_assets" / "template" / "persist.yml").read_text()
)
GITLAB: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "ci" / "gitlab.yml").read_text())
EDITED = {
    "round(avg(departure_delay), 1) AS mean_delay": (
        "round(avg(departure_delay), 0) AS mean_delay,\n  max(departure_delay) AS worst"
    ),
    "not_null=[carrier]": "not_null=[carrier, n_flights]",
}
ADDED = """\
--@ persist
-- The longest delay of each carrier.
CREATE VIEW worst_delays AS
SELECT carrier, max(worst) AS worst FROM daily_delays GROUP BY carrier;
"""


def github_steps(job: str) -> list[str]:
    """Return the commands of a job of the workflow."""
    steps: Sequence[Mapping[str, Any]] = GITHUB["jobs"][job]["steps"]
    return [s["run"] for s in steps if "run" in s and s["name"] not in NOT_RUN]


def run(root: Path, steps: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the steps of a job until one fails; return its exit code."""
    commands = root.parent / "bin"
    commands.mkdir(exist_ok=True)
    words = shlex.join([sys.executable, "-m", "persist_assets.cli"])
    (commands / "persist").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (commands / "persist").chmod(0o700)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    env = {**clean_environ(), "PATH": path, "PYTHONPATH": str(ROOT), **environ}
    for step in steps:
        done = subprocess.run(["bash", "-e", "-c", step], cwd=root, env=env, timeout=300)
        if done.returncode:
            return done.returncode
    return 0


def edit(path: Path, replaced: Mapping[str, str]) -> None:
    text = path.read_text()
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


def without_times(text: str) -> str:
    """Return Markdown with every duration and file size replaced by a fixed one."""
    text = re.sub(r"\b\d+ min \d+ s|\b\d+\.\d s", "2.0 s", text)
    text = re.sub(r"\| \d+\.\d \|$", "| 2.0 |", text, flags=re.MULTILINE)
    return re.sub(r"[\d,]+ bytes", "1,665 bytes", text)


def tables(root: Path) -> set[str]:
    directories = (root / ".persist" / "warehouse").iterdir()
    return {d.name.partition("-")[0] for d in directories if not d.name.startswith(".")}


@pytest.mark.slow
@pytest.mark.proves("W12", "W13")
def test_the_ci_examples_review_a_change_and_end_its_environment(
    tmp_path: Path, servers: None
) -> None:
    root = tmp_path / "shop"
    begun = persist("init", str(root), "--language", "sql", "--language", "malloy")
    assert begun.returncode == 0, begun.stderr
    document("build", "--env", "prod", cwd=root)
    before = (root / ".persist" / "manifests" / "prod.json").read_bytes()
    delays, summary = root / "sources" / "marts" / "daily_delays.sql", tmp_path / "summary.md"
    edit(delays, EDITED)
    (root / "sources" / "marts" / "worst_delays.sql").write_text(ADDED)
    with (root / "persist.toml").open("a") as file:
        file.write('\n[selectors]\nlate = "daily_delays+"\n')

    # without --build: the plan of prod, and no Spark
    planned = document("ci", "--against", "prod", "selector:late", cwd=root)
    assert [(s["source_id"], s["change"]) for s in planned["sources"]] == [
        ("daily_delays@sources/marts/daily_delays.sql", "changed"),
        ("worst_delays@sources/marts/worst_delays.sql", "added"),
    ]
    assert planned["cost"]["builds"] == 2
    assert planned["cost"]["not_measured"] == 1
    assert planned["cost"]["seconds"] > 0
    assert (planned["environment"], planned["tests"]) == (None, None)
    changed = planned["sources"][0]
    assert changed["reasons"][0]["code"] == "code"
    assert changed["columns"]["added"] == [{"name": "worst", "type": "bigint"}]
    assert changed["columns"]["changed"] == ["mean_delay"]
    assert changed["checks"]["added"] == ["n_flights not null"]
    assert changed["readers_rebuilt"] == ["worst_delays@sources/marts/worst_delays.sql"]
    assert document("ls", "--selectors", cwd=root)[0]["name"] == "late"

    # GitHub
    shared = {"GITHUB_STEP_SUMMARY": str(summary)}
    name: str = GITHUB["env"]["PERSIST_ENV"].replace("${{ github.event.number }}", "7")
    assert name == "pr-7"
    assert run(root, github_steps("review"), {**shared, "PERSIST_ENV": name}) == 0
    review = (root / "review.md").read_text()
    assert summary.read_text() == review
    example = (ROOT / "docs" / "ci.md").read_text().partition("```markdown\n")[2]
    assert without_times(review) == without_times(example.rpartition("\n```")[0] + "\n")
    assert tables(root) == {"daily_delays", "destinations", "worst_delays"}
    assert (root / ".persist" / "manifests" / "prod.json").read_bytes() == before

    # GitLab, and a change with a failing test, a failing check and a skipped build
    edit(delays, {"count(*) AS n_flights": "nullif(count(*), 1) AS n_flights"})
    edit(root / "tests" / "delays.yml", {"n_flights: 2": "n_flights: 3"})
    script: list[str] = GITLAB["persist-review"]["script"]
    name = GITLAB[".persist"]["variables"]["PERSIST_ENV"].replace("$CI_MERGE_REQUEST_IID", "8")
    assert run(root, script, {"PERSIST_ENV": name}) == 1
    review = (root / "review.md").read_text()
    assert review.startswith("<!-- persist ci -->\n## ❌ persist: ")
    assert "- failed: `daily_delays@sources/marts/daily_delays.sql`" in review
    assert "failed not_null_n_flights (3 rows)" in review
    assert "- skipped: `worst_delays@sources/marts/worst_delays.sql`" in review
    assert "- test failed: `cancelled_flights_have_no_delay` (`tests/delays.yml:2" in review
    assert (root / ".persist" / "manifests" / "prod.json").read_bytes() == before

    # a source that cannot be compiled
    (root / "sources" / "marts" / "worst_delays.sql").write_text(ADDED.replace("worst)", "wors)"))
    wrong = persist("ci", "--against", "prod", "--json", cwd=root)
    assert wrong.returncode == 3
    assert json.loads(wrong.stdout)["problems"][0]["path"] == "sources/marts/worst_delays.sql"

    # ending an environment works even if the change cannot be compiled
    assert run(root, github_steps("end"), {"PERSIST_ENV": "pr-7"}) == 0
    assert run(root, GITLAB["persist-end"]["script"], {"PERSIST_ENV": "pr-8"}) == 0
    assert tables(root) == {"daily_delays", "destinations"}
    assert not [*(root / ".persist" / "manifests").glob("pr-*")]
    assert (root / ".persist" / "manifests" / "prod.json").read_bytes() == before
    refused = persist("ci", "--end", "--env", "prod", cwd=root)
    assert (refused.returncode, "pr-*" in refused.stderr) == (2, True)


VIEWS = """\
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ check { not_null=b { severity=warn } }
CREATE VIEW v AS SELECT a, b FROM t;
--@ persist
--@ check { unique=a }
CREATE VIEW p AS SELECT a, b FROM v;
"""


@pytest.mark.slow
@pytest.mark.proves("W12")
def test_a_review_fails_on_rows_and_on_warnings_of_views(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": VIEWS}, '[env.prod]\n[env."pr-*"]\nreads = "prod"\n')
    (root / "raw" / "t").mkdir(parents=True)
    values = {"a": pa.array([1, 2], pa.int64()), "b": ["x", None]}
    pq.write_table(pa.table(values), root / "raw/t/p.parquet")
    document("build", "--env", "prod", cwd=root)
    edit(root / "sources" / "m.sql", {"SELECT a, b FROM v": "SELECT a, upper(b) AS b FROM v"})
    build = ("ci", "--against", "prod", "--build", "--env", "pr-1", "--json")
    passed = document(*build, cwd=root)
    (source,) = passed["sources"]
    assert [c["name"] for c in source["failed_checks"]] == ["m/v:not_null_b"]
    assert (passed["exit_code"], passed["violations"]) == (0, [])
    named = persist(*build, "--fail-on", "warnings", "--fail-on", "rows", cwd=root)
    assert named.returncode == 1
    assert [(v["rule"], v["reason"]) for v in json.loads(named.stdout)["violations"]] == [
        ("warnings", "it fails b not null in m/v: 1 rows"),
        ("rows", "rows differ: 0 added, 0 removed, 1 changed"),
    ]
    edit(root / "sources" / "m.sql", {"SELECT a, upper(b) AS b FROM v": "SELECT 1L AS a, b FROM v"})
    failed = persist(*build[:-1], "--sample", "0", cwd=root)
    assert failed.returncode == 1
    assert "failed unique_a (2 rows)" in failed.stdout
    assert '{"a"' not in failed.stdout, "no row is shown"


def test_the_jobs_of_the_workflow_exclude_each_other() -> None:
    conditions = {name: job["if"] for name, job in GITHUB["jobs"].items()}
    assert conditions == {
        "review": "github.event.action != 'closed'",
        "end": "github.event.action == 'closed'",
    }


def test_the_ci_docs_page_contains_the_example_files() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    for path in ("persist_assets/template/persist.yml", "examples/ci/gitlab.yml"):
        assert f"```yaml\n{(ROOT / path).read_text()}```" in page
