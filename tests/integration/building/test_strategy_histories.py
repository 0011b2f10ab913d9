"""Random changes of data and code, and killed builds, give the same tables as a full build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import SPARK_TOML, draws
from histories import Zygote
from strategies import Histories, Tally, explore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("strategies")
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.proves("P8", "P9", "P15", "P23", "P34", "K8")
def test_random_histories_of_every_strategy_equal_a_build_from_scratch(
    spark: Any, zygote: Zygote
) -> None:
    tally = explore(draws(6, 50), spark, zygote, SPARK_TOML, shrink=False)
    print(tally)
    assert tally.histories >= 6
    for kind in ("whole", "partitions", "reused"):
        assert tally.builds[kind] > 0, kind
    assert tally.killed.total() > 0


@pytest.mark.slow
@pytest.mark.proves("T8")
@pytest.mark.parametrize("kind", ["ranked", "absent", "several"])
def test_random_histories_of_tables_maintained_by_deltas_equal_a_full_build(
    spark: Any, zygote: Zygote, kind: str
) -> None:
    tally = explore(draws(3, 20), spark, zygote, SPARK_TOML, shrink=False, only=kind)
    print(tally)
    assert tally.builds["keys"] > 0


@pytest.mark.slow
@pytest.mark.proves("P23")
# The fourth transaction publishes; for a table with versions, the fifth.
@pytest.mark.parametrize(
    "place",
    [
        ("files", 0),
        ("files", 1),
        ("delta", 0),
        ("delta", 1),
        ("commit", 3),
        ("commit", 4),
        ("after a transaction", 3),
        ("after a transaction", 4),
        ("export", 0),
        ("export", 1),
    ],
    ids=lambda place: f"{place[0]} {place[1]}",
)
@pytest.mark.parametrize(
    "kind", ["windows", "added", "latest", "daily", "kept", "grouped", "matched"]
)
def test_a_build_recovers_from_a_kill_at_every_commit_point(
    spark: Any, zygote: Zygote, kind: str, place: tuple[str, int]
) -> None:
    given = {"spark": spark, "zygote": zygote, "toml": SPARK_TOML}
    made: Any = type("Killed", (Histories,), {**given, "tally": Tally(), "contents": {}})
    history = made()
    history.start(chosen={kind}, rows=[(0, 0, 1, 2), (3, 0, 1, 2)], built=True)
    # A newer row of an existing key, and a row of a new key on a past day.
    history.happen([("append", 0, [(0, 1, 1, 4), (1, 0, 2, 2)], 0)])
    history.do_kill(5, place)
    history.teardown()
    assert history.tally.killed.total() == 1
