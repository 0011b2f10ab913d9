"""Data arrives for a minute while `persist follow` is killed repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from following import SOURCES, kill_while_data_grows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.proves("P28")
@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_is_in_the_table_exactly_once_after_a_minute_of_kills(
    make_project: Callable[..., Path], seed: int
) -> None:
    kill_while_data_grows(make_project({"m.sql": SOURCES}), seconds=60, kills=4, seed=seed)
