"""Rollbacks undo runs one by one, as far as the history reaches, which stays readable."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from conftest import drawn_seed

from persist_assets.core.errors import ConflictError, NotFoundError
from persist_assets.core.model.snapshots import Build, Snapshot, View
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import manifest_moves
from persist_assets.operations.environments import roll_back, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.core.settings.values import Settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Life:
    """An environment in which runs publish tables, and its expected manifest."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.ledger = settings, Ledger(settings.ledger)
        self.n = 0
        self.standing: list[tuple[str, str, str]] = []  # run, entry, build

    def manifest(self) -> dict[str, str]:
        found = self.ledger.manifests.fetch("dev")
        return {build_id: s.build_uid for build_id, s in found.items()}

    def expected(self) -> dict[str, str]:
        return {entry: uid for _, entry, uid in self.standing}

    def publish(self, run: str, *entries: str) -> None:
        for entry in entries:
            build = self._begin(run, entry)
            no_table = View("SELECT 1", ())  # so that no table has to exist
            snapshot = Snapshot(
                build.build_uid, build.source_id, entry, "t", 0, (), "1:a", 1, 1, NOW, view=no_table
            )
            self.ledger.builds.publish(Publication(build, snapshot, ()))
            self.standing.append((run, entry, build.build_uid))

    def reuse(self, run: str, entry: str) -> None:
        snapshot = self.ledger.manifests.fetch("dev").get(entry)
        if snapshot is not None:
            build = replace(self._begin(run, entry), action="reused")
            self.ledger.builds.publish(Publication(build, snapshot, ()))

    def _begin(self, run: str, entry: str) -> Build:
        self.n += 1
        at = NOW + timedelta(seconds=self.n)
        build = Build(
            f"{self.n:04}", f"{entry}@s.sql", entry, "d", "dev", run, "started", "built", at
        )
        self.ledger.builds.record_started(build, "t")
        return build

    def take_back(self, *runs: str) -> None:
        self.standing = [one for one in self.standing if one[0] not in runs]


@pytest.fixture
def life(make_project: Callable[..., Path]) -> Iterator[Life]:
    life = Life(load_settings(make_project({})))
    yield life
    life.ledger.close()


def back(life: Life, **options: object) -> None:
    roll_back(life.settings, life.ledger, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.proves("S12")
def test_each_rollback_undoes_one_more_run(life: Life) -> None:
    life.publish("one", "a", "b")
    life.publish("two", "a", "b", "c")
    life.reuse("three", "a")
    life.reuse("three", "b")
    life.publish("four", "c")
    for run in ("four", "two", "one"):
        back(life)
        life.take_back(run)
        assert life.manifest() == life.expected()
    assert life.manifest() == {}
    with pytest.raises(NotFoundError, match="dev has 0 steps to roll back, not 1"):
        back(life)
    history = life.ledger.manifests.fetch_history("dev")
    assert [c.kind for c in history[:3]] == ["rollback"] * 3
    assert all(m.source_id for c in history for m in c.moves)
    # A rollback to the number of an earlier change undoes later rollbacks.
    back(life, to=history[3].change_id)
    assert life.manifest().keys() == {"a", "b", "c"}
    back(life, steps=3)
    assert life.manifest() == {}


@pytest.mark.proves("S12")
def test_a_change_number_is_not_mistaken_for_a_prefix_of_a_run_id(life: Life) -> None:
    life.publish("first", "a")
    number = life.ledger.manifests.fetch_history("dev")[0].change_id
    life.publish(f"{number}-other", "b")
    back(life, run=str(number))
    life.take_back("first")
    assert life.manifest() == life.expected()
    rollback = life.ledger.manifests.fetch_history("dev")[0].change_id
    life.publish(f"{rollback}-another", "c")
    with pytest.raises(NotFoundError, match=f"change {rollback} of dev is a rollback"):
        back(life, run=str(rollback))
    assert life.manifest() == life.expected()


@pytest.mark.proves("S12")
def test_a_rollback_of_one_run_keeps_the_tables_of_later_runs(life: Life) -> None:
    life.publish("first", "a", "b", "c")
    life.publish("second", "a", "b")
    life.publish("third", "c")
    with pytest.raises(ConflictError, match="run second published tables of run first again"):
        back(life, run="first")
    with pytest.raises(NotFoundError, match="dev has no run zeroth"):
        back(life, run="zeroth")
    with pytest.raises(NotFoundError, match="dev has no run"):
        back(life, run="")  # from an unset variable of a shell
    back(life, run="sec")
    life.take_back("second")
    assert life.manifest() == life.expected()
    with pytest.raises(ConflictError, match="no longer has anything of run second"):
        back(life, run="second")
    life.publish("fourth", "a")
    back(life, steps=2)
    life.take_back("third", "fourth")
    assert life.manifest() == life.expected()
    assert [c.run_id for c in steps_of(life.ledger.manifests.fetch_history("dev"))[0]] == [
        "first"
    ] * 3


@pytest.mark.proves("S12")
def test_a_history_with_an_empty_move_of_an_earlier_release_is_readable(life: Life) -> None:
    life.publish("one", "a")
    back(life)
    change = life.ledger.manifests.fetch_history("dev")[0]
    engine = sa.create_engine(life.settings.ledger)
    with engine.begin() as connection:  # as earlier releases did
        values = {"change_id": change.change_id, "build_id": "b", "before": None, "after": None}
        connection.execute(manifest_moves.insert().values(**values))
    engine.dispose()
    (again, _) = life.ledger.manifests.fetch_history("dev")
    assert [m.source_id for m in again.moves] == ["a@s.sql"]
    life.publish("two", "a")
    back(life)
    assert life.manifest() == {}


@pytest.mark.slow
@pytest.mark.proves("S12")
def test_random_rollbacks_leave_exactly_the_tables_of_remaining_runs(
    make_project: Callable[..., Path],
) -> None:
    rng = random.Random(drawn_seed())
    for number in range(2):
        life = Life(load_settings(make_project({}, name=str(number))))
        for step in range(40):
            runs = list(dict.fromkeys(run for run, *_ in life.standing))
            match rng.choices(["publish", "reuse", "back", "run"], [5, 2, 2, 2])[0]:
                case "publish":
                    life.publish(f"run{step}.", *rng.sample("abcde", rng.randrange(1, 4)))
                case "reuse":
                    life.reuse(f"reuse{step}", rng.choice("abcde"))
                case "back" if runs:
                    n = rng.randrange(1, min(3, len(runs)) + 1)
                    back(life, steps=n)
                    life.take_back(*runs[-n:])
                case "run" if runs:
                    run = rng.choice(runs)
                    own = {e for r, e, _ in life.standing if r == run}
                    later = {e for r, e, _ in life.standing if runs.index(r) > runs.index(run)}
                    if own & later:
                        with pytest.raises(ConflictError, match="published tables of"):
                            back(life, run=run)
                    else:
                        back(life, run=run)
                        life.take_back(run)
                case _:
                    continue
            assert life.manifest() == life.expected(), step
            history = life.ledger.manifests.fetch_history("dev")
            assert all(m.source_id for c in history for m in c.moves)
        life.ledger.close()
