"""Views of real projects return the same rows when computed from only the needed rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from condition_trees import hunt_conditions
from conftest import drawn_seed
from pushed_views import REAL, VIEWS
from pushing import NOWS, ZONES, OnSpark, Program, check

NUMBERED = list(enumerate(VIEWS.items()))
PARTS = 4


@pytest.mark.slow
@pytest.mark.proves("V3")
@pytest.mark.parametrize("part", range(PARTS))
def test_views_return_the_same_rows_when_given_only_the_needed_rows(spark: Any, part: int) -> None:
    engine, seed = OnSpark(spark), drawn_seed()
    narrowed = 0
    for number, (title, query) in NUMBERED[part::PARTS]:
        draw = Random(f"{seed} {number}")
        if number // PARTS % 25 == 0:
            engine.fill(REAL, draw, 40)
        program = Program([("q", query)], ["q"], REAL)
        try:
            _, _, less = check(engine, program, draw.choice(NOWS), draw.choice(ZONES))
        except BaseException as error:
            error.add_note(f"{title}, from seed {seed}")
            raise
        narrowed += less > 0
    assert narrowed > len(NUMBERED) // PARTS // 2


@pytest.mark.slow
@pytest.mark.proves("V3")
def test_all_rows_that_meet_random_conditions_are_needed_rows(spark: Any) -> None:
    counts = hunt_conditions(OnSpark(spark), drawn_seed(), 200)
    assert counts["with rows"] > 50, counts
    assert counts["narrowed"] > 100, counts
