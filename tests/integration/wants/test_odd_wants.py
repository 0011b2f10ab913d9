"""Invalid wants are rejected with a hint; suspicious ones cause warnings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from commands import persist
from serving import SOURCES, write_data

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import NotFoundError, PersistError, SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Upstream
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.wants.requests import LONGEST_S, check_want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = datetime(2024, 1, 5, tzinfo=UTC)
WEST, EAST = (timezone(timedelta(hours=h)) for h in (-12, 14))


@pytest.fixture
def observer(make_project: Callable[..., Path]) -> Iterator[Observer]:
    root = make_project({"m.sql": SOURCES})
    write_data(root)
    settings = load_settings(root)
    settings = replace(settings, upstreams=(Upstream("users", "http://127.0.0.1:1", ("**",)),))
    ledger = Ledger(settings.ledger)
    project = require(load_project(settings))
    yield Observer(settings, project, ledger, clock=lambda: NOW)
    ledger.close()


def a_want(**how: Any) -> Want:
    given = {"want_id": "w", "partition_ref": "m/total", "environment": "dev", "created_at": NOW}
    return Want(**{**given, **how})


REFUSED: list[tuple[dict[str, Any], type[PersistError], str]] = [
    ({"partition_ref": "m/totl"}, NotFoundError, "did you mean `m/total`?"),
    ({"partition_ref": "m/dayly/2024-01-02"}, NotFoundError, "did you mean `m/daily`?"),
    ({"partition_ref": "m/daily/2024-01-99"}, NotFoundError, "did you mean"),
    ({"partition_ref": "m/total/2024-01-01"}, NotFoundError, "use m/total"),
    ({"partition_ref": "m/\udce9"}, SettingsError, "UTF-8"),
    ({"sla_s": -1}, SettingsError, "sla: -1 seconds"),
    ({"ttl_s": -60}, SettingsError, "ttl: -60 seconds"),
    ({"ttl_s": LONGEST_S + 1}, SettingsError, "a hundred years"),
    ({"sla_s": 10**30}, SettingsError, "a hundred years"),
    (
        {"data_timestamp": datetime(9999, 12, 31, tzinfo=UTC), "sla_s": 86_400},
        SettingsError,
        "2999",
    ),
    ({"data_timestamp": datetime(9999, 12, 31, 23, tzinfo=WEST)}, SettingsError, "2999"),
    ({"data_timestamp": datetime(1, 1, 1, tzinfo=EAST)}, SettingsError, "1900"),
    ({"external_dependencies": ("data/users",)}, SettingsError, "does not name a graph"),
    ({"external_dependencies": ("users:a\0",)}, SettingsError, "invalid characters"),
    ({"comment": "a\ud800"}, SettingsError, "invalid characters"),
    ({"comment": "x" * 2001}, SettingsError, "more than 2,000 characters"),
    ({"want_id": "x" * 256}, SettingsError, "more than 255 characters"),
]


def test_invalid_wants_are_rejected_with_a_hint(observer: Observer) -> None:
    for how, kind, told in REFUSED:
        with pytest.raises(kind) as caught:
            check_want(observer, a_want(**how))
        assert told in f"{caught.value} {caught.value.hint}", how


def test_suspicious_wants_cause_warnings(observer: Observer) -> None:
    def warnings(**how: Any) -> list[str]:
        return check_want(observer, a_want(**how))[1]

    assert warnings(sla_s=0, ttl_s=0) == warnings(sla_s=LONGEST_S) == []
    assert warnings(sla_s=3600, ttl_s=60) == ["it expires (ttl) before it is late (sla)"]
    assert warnings(external_dependencies=("users:x",)) == []
    (unknown,) = warnings(external_dependencies=("usrs:x",))
    assert "did you mean `users`?" in unknown


@pytest.mark.proves("S21")
def test_an_annotation_that_needs_an_unknown_graph_causes_a_warning(
    make_project: Callable[..., Path],
) -> None:
    text = """
--@ persist want { every=daily needs=["usrs:data/users", "other:x"] }
CREATE VIEW total AS SELECT 1 AS n;
"""
    declared = '[upstream.users]\nurl = "http://127.0.0.1:1"\n'
    root = make_project({"m.sql": text}, declared)
    for _ in range(2):  # also from the compilation cache
        found = load_project(load_settings(root)).problems
        assert [(p.code, p.severity, str(p.location)) for p in found] == [
            ("unknown-graph", "warning", "sources/m.sql:3:13")
        ] * 2
        assert "unknown graph `other`" in found[0].message
        assert "did you mean `users`?" in f"{found[1].hint}"
    (root / "persist.toml").write_text(
        (root / "persist.toml").read_text().replace("upstream.users", "upstream.usrs")
    )
    (left,) = load_project(load_settings(root)).problems
    assert "`other`" in left.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "9999-12-31", "--sla", "10y"], "`10y` is not a duration"),
        (["--at", "9999-12-31T23:00-05:00", "--sla", "none"], "is out of range"),
        (["--ttl", "9" * 400 + "s"], "is not a duration"),
    ],
    ids=["10y", "9999", "infinite"],
)
def test_invalid_options_are_rejected_before_a_want_is_recorded(
    make_project: Callable[..., Path], arguments: list[str], message: str
) -> None:
    root = make_project({"m.sql": SOURCES})
    write_data(root)
    done = persist("want", "add", "m/total", "--no-wait", *arguments, cwd=root)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "hint:" in done.stderr
    ledger = Ledger(load_settings(root).ledger)
    assert ledger.events.position() == 0
    ledger.close()
