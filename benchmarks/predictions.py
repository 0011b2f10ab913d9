"""Count how often a plan chooses the cheaper way to refresh a table of TPC-H.

    raw Delta tables ─► a project with refresh=auto: what its plans choose
                    ├─► the same with refresh=incremental: the seconds to maintain each table
                    └─► the same with refresh=whole: the seconds to compute all rows

The three projects share a session and the raw tables, which change in rounds (`maintenance.py`). A
choice is right if the chosen way took fewer seconds in its project. Work that several tables of a
run share is charged to each of them in part, as in the ledger: without the first one, the others
would have to do it. A table that the second project does not maintain leaves no choice, so it does
not count. Many ways take about the same time, and repeated measurements of one differ by a tenth;
so choices that cost at most a tenth more than the other way are counted, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import maintenance
import measuring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Refreshed = Mapping[str, measuring.Refresh]

CLOSE = 0.1
"""Choices that cost at most this share more than the other way are counted by themselves."""
WAYS = ("auto", "incremental", "whole")


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="of TPC-H's data")
    parser.add_argument("--rounds", type=int, default=6, help="of changes")
    parser.add_argument("--queries", default="", help="1,3,5; '': all")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args(arguments)


def measure(root: Path, settings: argparse.Namespace) -> list[dict[str, Refreshed]]:
    """Return what each project did in each round, by way and query; the first round builds."""
    queries = [int(q) for q in settings.queries.split(",") if q] or range(1, 23)
    places = [maintenance.make_project(root / way, queries, way) for way in WAYS]
    tables = maintenance.Tpch(places[0], settings.scale, feed=True)
    for place in places[1:]:
        (place / "raw").symlink_to(tables.raw)
    first = measuring.Bench(places[0])
    others = [measuring.Bench(place, spark=first.spark) for place in places[1:]]
    benches = dict(zip(WAYS, (first, *others), strict=True))
    rounds: list[dict[str, Refreshed]] = []
    for number in range(settings.rounds + 1):
        if number:
            tables.change(number, maintenance.CHANGES)
        # Either way of two is the later one as often, because the later one has warmer caches.
        order = WAYS if number % 2 else ("auto", "whole", "incremental")
        rounds.append({way: benches[way].refresh() for way in order})
    benches["auto"].spark.stop()
    return rounds


def print_choices(rounds: Sequence[Mapping[str, Refreshed]]) -> None:
    """Print each choice that was wrong, their number, and the seconds that they cost."""
    n_right = n_close = n_choices = 0
    chosen_s = best_s = 0.0
    for number, refreshed in enumerate(rounds[1:], 1):
        for name, auto in refreshed["auto"].items():
            delta = refreshed["incremental"][name]
            if delta.method in ("whole", "reuse"):
                continue
            delta_s, whole_s = delta.cost.wall - delta.shared_s, refreshed["whole"][name].cost.wall
            chose_whole = auto.method == "whole"
            seconds, other_s = (whole_s, delta_s) if chose_whole else (delta_s, whole_s)
            n_choices, chosen_s = n_choices + 1, chosen_s + seconds
            best_s += min(delta_s, whole_s)
            n_close += other_s < seconds <= other_s * (1 + CLOSE)
            if chose_whole == (whole_s < delta_s):
                n_right += 1
                continue
            print(
                f"  round {number}, {name}: {auto.method}; maintained in {delta_s:.2f} s,"
                f" whole in {whole_s:.2f} s; {auto.reason or auto.expected}"
            )
    print(f"plans chose the cheaper way in {n_right} of {n_choices} builds,")
    print(f"and one that took at most a tenth longer in {n_close} others")
    print(f"what they chose took {chosen_s:.1f} s, and the cheaper ways {best_s:.1f} s")


def main() -> None:
    """Print what was measured."""
    wanted = options()
    with tempfile.TemporaryDirectory() as temporary:
        rounds = measure(Path(temporary), wanted)
    print_choices(rounds)
    if wanted.json:
        wanted.json.write_text(json.dumps([measuring.as_json(r) for r in rounds], indent=1))


if __name__ == "__main__":
    main()
