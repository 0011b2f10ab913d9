"""Named selections in `persist.toml`, and the sources that they select."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import compiled

from persist_assets.compiler.remarks import useless_selectors
from persist_assets.core.errors import NotFoundError, PersistError, SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Selector
from persist_assets.planning.selection import State, select

PROJECT = compiled(
    {
        "a.sql": """
        CREATE TABLE t (a INT) USING parquet LOCATION 't';
        --@ persist tags=nightly
        CREATE VIEW p AS SELECT a FROM t;
        --@ persist
        CREATE VIEW q AS SELECT a FROM p;
        --@ persist group=late
        CREATE VIEW r AS SELECT a FROM q;
        CREATE VIEW v AS SELECT a FROM t;
        """,
    }
)
STATES: dict[str, frozenset[State]] = {"r@sources/a.sql": frozenset(("stale",))}

SELECTORS = """
[selectors]
nightly = "tag:nightly+1"
ends = ["p", "group:late"]
"two words" = "selector:ends and not p"
stale_ends = "selector:ends and state:stale"
missing = "state:missing"
typo = "tag:nightl"
deep = "selector:typo or p"
broken = "(p"
none = "p and r"
view = "v"
a = "selector:b"
b = "p or selector:a"
"""


@pytest.fixture(scope="module")
def selectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Selector, ...]:
    root = tmp_path_factory.mktemp("selectors")
    (root / "persist.toml").write_text(SELECTORS)
    return load_settings(root, environment="dev").selectors


@pytest.mark.proves("W13")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("selector:nightly", "p q"),
        ("selector:ends", "p r"),
        ('selector:"two words"', "r"),
        ("+selector:nightly", "p q"),
        ("selector:nightly+", "p q r"),
        ("not selector:ends", "q"),
        ("sinks(selector:nightly)", "q"),
        ("selector:stale_ends", "r"),
        ("selector:missing", ""),
        ("selector:missing or q", "q"),
    ],
)
def test_a_selector_expands_to_its_selections(
    selectors: tuple[Selector, ...], pattern: str, expected: str
) -> None:
    chosen = select(PROJECT, [pattern], lambda: STATES, selectors)
    assert {s.partition("@")[0] for s in chosen} == set(expected.split())


@pytest.mark.proves("W13")
@pytest.mark.parametrize(
    ("pattern", "kind", "says"),
    [
        (
            "selector:nigtly",
            NotFoundError,
            "unknown selector `nigtly`\n    hint: did you mean `nightly`?",
        ),
        ("selector:x1", NotFoundError, "hint: known selectors: nightly, ends"),
        ("selector:typo", NotFoundError, "persist.toml:8:1: unknown tag `nightl`"),
        ("selector:deep", NotFoundError, "persist.toml:8:1: unknown tag `nightl`"),
        ("selector:broken", NotFoundError, "persist.toml:10:1: `(p` is not a selection"),
        ("selector:none", NotFoundError, "persist.toml:11:1: `selector:none` selects no persisted"),
        ("selector:view", NotFoundError, "persist.toml:12:1: `selector:view` selects no persisted"),
        ("selector:a", SettingsError, "selectors name each other in a cycle: a → b → a"),
        ("selector:a", SettingsError, "persist.toml:1"),
    ],
)
def test_an_invalid_selector_is_an_error_at_its_key(
    selectors: tuple[Selector, ...], pattern: str, kind: type[PersistError], says: str
) -> None:
    with pytest.raises(kind) as error:
        select(PROJECT, [pattern], lambda: STATES, selectors)
    assert says in str(error.value)


def test_an_unknown_selector_error_says_where_selectors_are_defined() -> None:
    with pytest.raises(NotFoundError, match=r"hint: .*\[selectors\] in persist.toml"):
        select(PROJECT, ["selector:nightly"])


@pytest.mark.proves("W13")
@pytest.mark.parametrize("value", ["1", "[]", '[""]', "[1]", "{ select = 'p' }"])
def test_a_selector_must_be_a_selection_or_a_list(tmp_path: Path, value: str) -> None:
    (tmp_path / "persist.toml").write_text(f"[selectors]\nx = {value}\n")
    with pytest.raises(SettingsError, match=r"persist.toml:2:1: `\[selectors\] x` must be"):
        load_settings(tmp_path, environment="dev")


@pytest.mark.proves("W13")
def test_check_warns_of_selectors_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "persist.toml").write_text(SELECTORS)
    problems = [*useless_selectors(load_settings(tmp_path, environment="dev"), PROJECT)]
    assert [p.location.line for p in problems] == [8, 10, 11, 12, 13, 14]
    assert {p.severity for p in problems} == {"warning"}


@pytest.mark.proves("W13")
def test_check_warns_of_a_part_of_a_selector_that_selects_nothing(tmp_path: Path) -> None:
    (tmp_path / "persist.toml").write_text('[selectors]\nx = ["p", "v"]\ny = ["p and r", "q"]\n')
    problems = [*useless_selectors(load_settings(tmp_path, environment="dev"), PROJECT)]
    assert [(p.location.line, p.message) for p in problems] == [
        (2, "`v` is not persisted"),
        (3, "`p and r` selects no persisted source"),
    ]
