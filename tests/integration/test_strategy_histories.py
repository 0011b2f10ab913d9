"""Whatever happens to raw data, code and builders: tables of every strategy are as from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import SPARK_TOML
from histories import Zygote
from strategies import explore


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("strategies")
    yield made
    made.close()


@pytest.mark.proves("P8", "P9", "P15", "P23", "P34", "K8")
def test_random_histories_of_every_strategy_equal_a_build_from_scratch(
    spark: Any, zygote: Zygote
) -> None:
    tally = explore(50, spark, zygote, SPARK_TOML, shrink=False)
    print(tally)
    for kind in ("whole", "added", "windows", "partitions", "reused"):
        assert tally.builds[kind] > 5, kind
    assert tally.killed.total() > 10
    assert tally.halted.total() > 3
