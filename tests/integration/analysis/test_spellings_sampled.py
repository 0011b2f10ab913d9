"""A few of the random spellings that `nightly/test_random_spellings.py` tries."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import drawn_seed
from spelling import Asked, Searched, search


@pytest.mark.slow
@pytest.mark.proves("S2")
def test_random_spellings_with_one_build_id_have_equal_types_and_rows(spark: Any) -> None:
    asked, into, seed = Asked(spark), Searched(), drawn_seed()
    for _ in range(5):
        search(asked, seed, into)
        seed += 1
    assert not into.wrong, "\n".join(into.wrong)
    assert into.n_spellings
