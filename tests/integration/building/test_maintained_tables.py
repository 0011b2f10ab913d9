"""Tables maintained by deltas on Spark: what computing everything gives, and only what can differ."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from maintained import QUERIES, Data, methods, sources

from persist_assets.building.builder import Builder

if TYPE_CHECKING:
    from persist_assets.building.stages import PendingBuild

Enter = Callable[..., Builder]
ONE = ("named", "by_user", "absent")


def build(builder: Builder, name: str, **how: Any) -> PendingBuild:
    source = builder.project.by_id[f"{name}@sources/m.sql"]
    with builder.work(source, **how) as work:
        builder.publish(work)
    return work


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_each_change_of_the_data_is_followed(
    make_project: Callable[..., Path], enter: Enter
) -> None:
    root = make_project({"m.sql": sources()})
    data = Data(root, random.Random(3))
    assert {*methods(enter(root), "first").values()} == {"whole"}
    of_events = {n for n in QUERIES if n not in ("weeks", "total")}
    rest = {"weeks": "reused", "total": "whole"}

    data.put("ev", data.events(4))
    by_method = methods(enter(root), "append")
    added = {"kept": "append", "named": "append", "inner_named": "append", "tagged": "append"}
    assert by_method == dict.fromkeys(of_events, "keys") | added | rest

    data.table("ev").update({"amt": "amt + 1"}, predicate="id in (3, 50)")
    by_method = methods(enter(root), "update")
    unread = {"averages", "kinds", "absent", "counts", "upper", "user_names", "full_names"}
    unread |= {"sets", "both", "tagged"}
    print(by_method)

    data.table("ev").delete("usr = 4 and id < 40")
    print(methods(enter(root), "delete"))

    data.table("dim").update({"name": "'n9'"}, predicate="usr = 2")
    by_method = methods(enter(root), "dimension")
    print(by_method)

    data.table("dim").update({"note": "'y'"}, predicate="usr = 1")
    by_method = methods(enter(root), "unused column")
    print(by_method)

    data.table("ev").delete("usr = 5 and id < 40")
    data.put("dim", [(8, "n1", "x"), (None, "n0", "x")])
    print(methods(enter(root), "both"))
    nothing = methods(enter(root), "nothing")
    assert {*nothing.values()} == {"reused"}

    builder, scratch = enter(root), enter(root, environment="scratch")
    for source in scratch.project.persisted:
        with scratch.work(source, force=True) as work:
            scratch.publish(work)
        assert work.maintenance == "whole"
        ours = builder.ledger.manifests.fetch("dev")[source.build_id]
        theirs = work.snapshot
        assert theirs is not None
        assert ours.build_uid != theirs.build_uid
        assert (ours.rows, ours.content) == (theirs.rows, theirs.content), source.name
