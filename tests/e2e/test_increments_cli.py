"""Incremental sources on the command line: what is planned, built and told of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import document, persist
from growing import PLAIN, put


@pytest.mark.proves("P8", "P9", "P10", "P15", "P21")
def test_a_table_grows_and_says_up_to_where(make_shared_project: Callable[..., Path]) -> None:
    root = make_shared_project({"m.sql": PLAIN})
    put(root, 0, (0, "a"), (3, "b"))
    assert document("state", cwd=root) == {}
    document("build", cwd=root)
    put(root, 1, (1, "late"), (5, "c"))
    (step,) = document("plan", cwd=root)["steps"]
    assert [r["code"] for r in step["reasons"]] == ["input", "increment"]
    (built,) = document("build", cwd=root)["builds"]
    assert (built["rows"], built["version"]) == (4, 1)
    state = document("state", cwd=root)["q@sources/m.sql"]
    assert state.pop("last_run").endswith("+00:00")
    assert state == {"last_max_value": "2024-01-06T00:00:00Z", "type": "timestamp", "rows": 4}
    (again,) = document("build", cwd=root)["builds"]
    assert (again["action"], again["version"]) == ("reused", 1)
    (anew,) = document("build", "--full-refresh", cwd=root)["builds"]
    assert (anew["action"], anew["rows"], anew["version"]) == ("built", 4, 2)
    assert "2024-01-06T00:00:00Z" in persist("state", cwd=root).stdout
    (runs,) = document("state", "--history", cwd=root).values()
    upto = "2024-01-06T00:00:00Z"
    facts = ("action", "rows", "rows_written", "watermark_before", "watermark_after")
    assert [tuple(run[f] for f in facts) for run in runs] == [
        ("built", 4, 4, upto, upto),
        ("reused", 4, 0, upto, upto),
        ("built", 4, 2, "2024-01-04T00:00:00Z", upto),
        ("built", 2, 2, None, "2024-01-04T00:00:00Z"),
    ]
    assert len({run["run_id"] for run in runs}) == 4
    assert runs[2]["bytes"] > runs[2]["bytes_written"] > 0 == runs[1]["bytes_written"]
    (two,) = document("state", "q", "--history", "--limit", "2", cwd=root).values()
    assert two == runs[:2]
    assert persist("state", "--history", cwd=root).stdout.count(upto) == 3
    log = root / ".persist" / "warehouse" / built["table"].rpartition("/")[2] / "_delta_log"
    commits = [json.loads(line) for line in (log / f"{2:020}.json").read_text().splitlines()]
    assert sum("remove" in commit for commit in commits) == sum(
        "add" in json.loads(line)
        for n in (0, 1)
        for line in (log / f"{n:020}.json").read_text().splitlines()
    )


@pytest.mark.proves("P20", "P21")
def test_what_is_selected_is_built_from_scratch_and_nothing_else(
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
