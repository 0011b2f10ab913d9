"""The tutorial runs exactly as written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import need
from tutorial import environ_of, follow, matches


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a  b\n…\n", "a b  \nanything\n", True),
        ("run … failed\n", "run 17 failed\n", True),
        ("run … failed\n", "run 17 succeeded\n", False),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("a\nb\n", "a\n", False),
    ],
)
def test_expected_output_is_compared_line_by_line(shown: str, printed: str, same: bool) -> None:
    assert bool(matches(shown, printed)) == same


@pytest.mark.proves("H7")
@pytest.mark.slow
def test_the_tutorial_runs_exactly_as_written(tmp_path: Path, servers: None) -> None:
    programs = Path(sys.executable).parent
    need(str(programs / "persist") if (programs / "persist").exists() else None, "make setup")
    follow(tmp_path, environ_of(programs))
