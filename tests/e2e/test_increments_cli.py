"""Incremental sources on the command line: plans, builds and reported state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import clean_environ, document, persist
from growing import ONE, PLAIN, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.proves("P8", "P9", "P10", "P15", "P21", "T12")
def test_an_incremental_table_grows_and_reports_its_watermark(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": PLAIN})
    put(root, 0, (0, "a"), (3, "b"))
    assert document("state", cwd=root) == {}
    document("build", cwd=root)
    put(root, 1, (1, "late"), (5, "c"))
    (step,) = document("plan", cwd=root)["steps"]
    assert [r["code"] for r in step["reasons"]] == ["input", "increment"]
    assert (step["maintenance"], step["why"]) == (
        "append",
        "only rows that follow from rows added to t are computed",
    )
    assert "build m/q (append) the data of t changed; only" in persist("plan", cwd=root).stdout
    (built,) = document("build", cwd=root)["builds"]
    assert (built["rows"], built["version"]) == (4, 1)
    effort = built["effort"]
    assert effort["seconds_saved"] is not None
    assert effort == {
        **{"rows_changed": 2, "keys_touched": None, "files_rewritten": 0, "files_kept": 1},
        "seconds_saved": effort["seconds_saved"],
        "seconds_by_size": None,  # no costs were compared
        **{"seconds_shared": 0.0, "seconds_lost": 0.0, "seconds_owed": 0.0},
    }
    last, first = document("show", "q", cwd=root)["builds"]
    assert (last["maintenance"], last["rows_written"], last["effort"]) == ("append", 2, effort)
    assert (first["maintenance"], first["effort"]) == ("whole", None)
    words = "rows in changed files: 2, files rewritten: 0, files kept: 1, seconds saved: "
    assert words in persist("show", "q", cwd=root).stdout
    assert document("explain", "m/q", cwd=root)["build"]["effort"] == effort
    state = document("state", cwd=root)["q@sources/m.sql"]
    assert state.pop("last_run").endswith("+00:00")
    upto = "2024-01-06T00:00:00Z"
    assert state == {"last_max_value": upto, "type": "timestamp", "rows": 4, "timeless": 0}
    (step,) = document("plan", cwd=root)["steps"]
    assert (step["maintenance"], step["why"]) == ("reuse", "the table is up to date")
    (again,) = document("build", cwd=root)["builds"]
    assert (again["action"], again["version"]) == ("reused", 1)
    (anew,) = document("build", "--full-refresh", cwd=root)["builds"]
    assert (anew["action"], anew["rows"], anew["version"]) == ("built", 4, 2)
    assert "2024-01-06T00:00:00Z" in persist("state", cwd=root).stdout
    (runs,) = document("state", "--history", cwd=root).values()
    upto = "2024-01-06T00:00:00Z"
    facts = ("action", "maintenance", "rows", "rows_written", "watermark_before", "watermark_after")
    assert [tuple(run[f] for f in facts) for run in runs] == [
        ("built", "whole", 4, 4, upto, upto),
        ("built", "append", 4, 2, "2024-01-04T00:00:00Z", upto),
        ("built", "whole", 2, 2, None, "2024-01-04T00:00:00Z"),
    ]
    assert [(r["computed_seconds"] or 0) > 0 for r in runs] == [True, True, True]
    explained = document("explain", "m/q", cwd=root)
    costs = [(c["maintenance"], c["seconds"], c["rows_written"]) for c in explained["costs"]]
    computed = [r for r in runs if r["maintenance"]]
    assert costs == [(r["maintenance"], r["computed_seconds"], r["rows_written"]) for r in computed]
    printed = persist("explain", "m/q", cwd=root).stdout
    assert re.search(r"recent builds\n  whole +\d+\.\d s, 4 rows written\n  append +", printed)
    assert len({run["run_id"] for run in runs}) == 3
    assert runs[1]["bytes"] > runs[1]["bytes_written"] > 0
    (two,) = document("state", "q", "--history", "--limit", "2", cwd=root).values()
    assert two == runs[:2]
    assert [run["effort"] for run in runs] == [None, effort, None]
    listed = persist("state", "--history", cwd=root).stdout
    assert (listed.count(upto), listed.count("append"), listed.count("whole")) == (2, 1, 2)
    log = root / ".persist" / "warehouse" / built["table"].rpartition("/")[2] / "_delta_log"
    commits = [json.loads(line) for line in (log / f"{2:020}.json").read_text().splitlines()]
    assert sum("remove" in commit for commit in commits) == sum(
        "add" in json.loads(line)
        for n in (0, 1)
        for line in (log / f"{n:020}.json").read_text().splitlines()
    )
    # Rows without a time are counted, whichever build added them.
    put(root, 2, (None, "d"), (None, "e"))
    document("build", cwd=root)
    put(root, 3, (6, "f"))
    document("build", cwd=root)
    state = document("state", cwd=root)["q@sources/m.sql"]
    assert (state["rows"], state["timeless"]) == (7, 2)
    assert "2024-01-07T00:00:00Z, 2 without" in persist("state", cwd=root).stdout


@pytest.mark.slow
@pytest.mark.proves("T6", "T7")
def test_a_strict_source_is_computed_in_full_only_with_full_refresh(
    make_shared_project: Callable[..., Path],
) -> None:
    text = ONE + "--@ persist refresh={}\nCREATE VIEW q AS SELECT ts, x FROM t;"
    root = make_shared_project({"m.sql": text.format("full")})
    put(root, 0, (0, "a"))
    put(root, 1, (1, "b"))
    done = persist("build", "--json", cwd=root)
    assert "`refresh=full` is now called `refresh=whole` [annotation-renamed]" in done.stderr
    (root / "sources" / "m.sql").write_text(text.format("strict"))
    (root / "raw" / "1.parquet").unlink()
    why = "the changes in t are unknown"
    planned = persist("plan", "--json", cwd=root)
    (step,) = json.loads(planned.stdout)["steps"]
    assert [r["code"] for r in step["reasons"]] == ["input", "whole", "strict"]
    assert (step["maintenance"], step["why"]) == ("whole", why)
    warning = (
        f"sources/m.sql:3:13: warning: `q` cannot be built: refresh=strict, but {why} [strict]"
    )
    assert warning in planned.stderr
    assert "build m/q (whole) " in persist("plan", cwd=root).stdout
    failed = persist("build", "--json", cwd=root)
    assert failed.returncode == 1
    (build,) = json.loads(failed.stdout)["builds"]
    assert (build["action"], build["rows"]) == ("failed", None)
    message = f"`q` would be computed in full, which refresh=strict forbids: {why}"
    assert message in build["error"]
    assert "run persist build m/q --full-refresh once, or write refresh=auto" in build["error"]
    (built,) = document("build", "q", "--full-refresh", cwd=root)["builds"]
    assert (built["action"], built["rows"]) == ("built", 1)
    (root / "sources" / "m.sql").write_text(text.format("incremental"))
    (root / "raw" / "0.parquet").unlink()
    put(root, 2, (2, "c"))
    why = "rows of t changed or were removed, and its files keep no earlier version"
    planned = persist("plan", cwd=root)
    assert f"warning: all rows of `q` will be computed: {why} [whole]" in planned.stderr
    done = persist("build", cwd=root)
    assert f"`m/q` is computed in full: {why}" in done.stderr


@pytest.mark.slow
@pytest.mark.proves("P20", "P21")
def test_full_refresh_rebuilds_only_the_selected_sources(
    make_shared_project: Callable[..., Path],
) -> None:
    more = """
    --@ persist tags=nightly
    CREATE VIEW r AS SELECT *, 1 AS one FROM q;
    --@ persist
    CREATE VIEW s AS SELECT *, 2 AS two FROM r;
    """
    root = make_shared_project({"m.sql": PLAIN, "more.sql": more})
    put(root, 0, (0, "a"))

    def built(*arguments: str) -> dict[str, tuple[str, int]]:
        return {
            b["source_id"][0]: (b["action"], b["version"])
            for b in document("build", *arguments, cwd=root)["builds"]
        }

    def states(state: str) -> list[str]:
        return [s["source_id"][0] for s in document("plan", f"state:{state}", cwd=root)["steps"]]

    assert states("missing") == ["q", "r", "s"]
    assert built("+tag:nightly") == {"q": ("built", 0), "r": ("built", 0)}
    assert (states("current"), states("missing")) == (["q", "r"], ["s"])
    assert built("--full-refresh", "--select", "r") == {"r": ("built", 1)}
    assert document("build", "state:stale", cwd=root) == {
        "run_id": None,
        "published": True,
        "builds": [],
    }
    put(root, 1, (1, "b"))
    assert (states("stale"), states("missing")) == (["q", "r"], ["s"])
    failed = persist("build", "tag:nightli and state:stale", "--json", cwd=root)
    assert failed.returncode == 4
    assert json.loads(failed.stdout)["error"]["hint"] == "did you mean `nightly`?"


READERS = """
--@ persist
CREATE VIEW r AS SELECT count(*) AS n FROM q;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-08"
CREATE VIEW d AS SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM q GROUP BY 1;
"""
AGAIN = """
from datetime import datetime
import persist_assets
done = persist_assets.rerun("q", datetime(2024, 1, 2), "2024-01-04", cascade=True)
print(done.success)
try:
    persist_assets.rerun("q", 5, "2024-01-04")
except TypeError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.proves("P13", "P14")
def test_rerun_recomputes_a_window_and_with_cascade_its_downstream_sources(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": PLAIN + READERS})
    put(root, 0, (0, "a"), (3, "b"), (5, "c"))
    document("build", cwd=root)

    def again(*more: str) -> dict[str, tuple[str, Any]]:
        told = document("rerun", "q", "--from", "2024-01-02", "--to", "2024-01-04", *more, cwd=root)
        return {b["source_id"][0]: (b["action"], b["partitions"]) for b in told["builds"]}

    assert again() == {"q": ("built", None)}
    days = [["2024-01-01", "2024-01-07"]]  # q has no partitions: all days may depend on it
    both = {"q": ("built", None), "r": ("built", None), "d": ("built", days)}
    assert again("--cascade") == both
    (state,) = (s for i, s in document("state", cwd=root).items() if i[0] == "q")
    assert (state["last_max_value"], state["rows"]) == ("2024-01-06T00:00:00Z", 3)
    done = subprocess.run(
        [sys.executable, "-c", AGAIN],
        cwd=root,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout.splitlines()[-2:] == ["True", "5 is neither a string nor a date"], (
        done.stderr
    )
    (runs,) = (h for i, h in document("state", "--history", cwd=root).items() if i[0] == "r")
    assert [run["action"] for run in runs] == ["built"] * 3
    for source, first, last, said in (
        ("q", "2024-01-04", "2024-01-02", "2024-01-02"),
        ("q", "soon", "2024-01-02", "soon"),
        ("r", "2024-01-01", "2024-01-02", "r"),
    ):
        refused = persist("rerun", source, "--from", first, "--to", last, cwd=root)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


@pytest.mark.slow
@pytest.mark.proves("P13")
def test_rerun_cascades_from_a_window_only_to_its_partitions(
    make_shared_project: Callable[..., Path],
) -> None:
    assumed = PLAIN.replace("watermark=ts", "watermark=ts assume=exact")
    root = make_shared_project({"m.sql": assumed + READERS})
    put(root, 0, (0, "a"), (3, "b"), (5, "c"))
    document("build", cwd=root)
    window = ("--from", "2024-01-02", "--to", "2024-01-04", "--cascade")
    told = document("rerun", "q", *window, cwd=root)["builds"]
    assert {b["source_id"][0]: (b["action"], b["partitions"]) for b in told} == {
        "q": ("built", None),
        "r": ("built", None),
        "d": ("built", [["2024-01-02", "2024-01-04"]]),
    }
    assert [s["action"] for s in document("plan", cwd=root)["steps"]] == ["reuse"] * 3
    asked = "SELECT count(*) AS days, sum(n) AS n FROM d"
    assert document("query", asked, cwd=root)["rows"] == [[3, 3]]
    shown = persist("query", "SELECT sum(n) * 411522.63033333D AS x FROM d", cwd=root)
    assert "1234567.89" in shown.stdout
    refused = persist("rerun", "d", "--from", "2020-01-01", "--to", "2020-01-02", cwd=root)
    assert refused.returncode == 2
    assert "`m/d` has no partition from 2020-01-01 to 2020-01-02" in refused.stderr


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_build_options_select_the_partitions_to_build(
    make_shared_project: Callable[..., Path],
) -> None:
    root = make_shared_project({"m.sql": PLAIN + READERS})
    put(root, 0, (0, "a"), (3, "b"), (5, "c"))

    def some(*options: str) -> Any:
        found = document("build", "d", *options, cwd=root)["builds"]
        return [b["partitions"] for b in found if b["source_id"][0] == "d"]

    document("build", "q", cwd=root)
    assert some("--partition", "2024-01-04") == [[["2024-01-04", "2024-01-04"]]]
    assert some("--from", "2024-01-06") == [[["2024-01-06", "2024-01-07"]]]
    assert some("--partition-range", "2024-01-01...2024-01-02") == [[["2024-01-01", "2024-01-02"]]]
    assert some() == [[["2024-01-03", "2024-01-03"], ["2024-01-05", "2024-01-05"]]]
    for options, code, said in (
        (("--partition", "2024-01-09"), 4, "2024-01-09"),
        (("--partition-range", "2024-01-01"), 2, "is not a partition range"),
        (("--partition", "2024-01-01", "--from", "2024-01-02"), 2, "cannot be combined"),
    ):
        refused = persist("build", "d", *options, cwd=root)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr


@pytest.mark.slow
@pytest.mark.proves("K8", "P22")
def test_partition_ranges_are_correct_across_a_daylight_saving_change(
    make_shared_project: Callable[..., Path],
) -> None:
    zone = 'timezone="Europe/Berlin"'
    text = f"""{ONE}
    --@ persist partition=daily time_column=ts start="2024-03-25" end="2024-04-05" {zone}
    CREATE VIEW d AS SELECT ts, x FROM t;
    --@ persist partition=hourly time_column=ts start="2024-03-30" end="2024-04-02"
    CREATE VIEW h AS SELECT ts, x FROM t;
    --@ persist partition=monthly time_column=ts start="2024-02-01" end="2024-06-01" {zone}
    CREATE VIEW m AS SELECT ts, x FROM t;
    """
    root = make_shared_project({"m.sql": text})
    moments = {
        "a": "2024-03-30T22:59:59.999999+00:00",
        "b": "2024-03-30T23:00:00+00:00",
        "c": "2024-03-31T00:59:59+00:00",
        "d": "2024-03-31T01:00:00+00:00",
        "e": "2024-03-31T21:59:59.999999+00:00",
        "f": "2024-03-31T22:00:00+00:00",
    }
    stamps = pa.array(
        [datetime.fromisoformat(m) for m in moments.values()], pa.timestamp("us", "UTC")
    )
    (root / "raw").mkdir(exist_ok=True)
    pq.write_table(pa.table({"ts": stamps, "x": [*moments]}), root / "raw" / "p.parquet")

    def rows(name: str, between: str) -> tuple[Any, str]:
        (built,) = document("build", name, "--partition-range", between, cwd=root)["builds"]
        asked = f"SELECT array_join(sort_array(collect_list(x)), '') AS x FROM {name}"
        return built["partitions"], document("query", asked, cwd=root)["rows"][0][0]

    alone, days = "2024-03-31...2024-03-31", "2024-03-30...2024-04-01"
    assert rows("d", alone) == ([["2024-03-31", "2024-03-31"]], "bcde")
    others = [["2024-03-30", "2024-03-30"], ["2024-04-01", "2024-04-01"]]
    assert rows("d", days) == (others, "abcdef")
    hours = "2024-03-31-00:00...2024-03-31-01:00"
    assert rows("h", hours) == ([["2024-03-31-00:00", "2024-03-31-01:00"]], "cd")
    assert rows("m", "2024-03-01...2024-03-01") == ([["2024-03-01", "2024-03-01"]], "abcde")
    assert rows("m", "2024-04-01...2024-05-01")[1] == "abcdef"
