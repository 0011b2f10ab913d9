"""Work that builds of one run share: each counts its share, whichever of them did it."""

from __future__ import annotations

import pytest

from persist_assets.building.held_relations import SharedWork


def test_each_build_counts_its_share_of_a_relation_once() -> None:
    first, second = SharedWork(), SharedWork()
    first.count("probe", spent=6.0, seconds=6.0, n_users=3)
    assert first.seconds == pytest.approx(4.0)
    for _ in range(2):
        second.count("probe", spent=0.5, seconds=6.0, n_users=3)  # it waited for half a second
        assert second.seconds == pytest.approx(-1.5)


def test_what_nobody_else_uses_is_not_shared() -> None:
    work = SharedWork()
    work.count("keys", spent=6.0, seconds=6.0, n_users=1)
    assert work.seconds == 0
