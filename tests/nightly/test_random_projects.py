"""Random projects: a source's meaning does not depend on project layout or compilation.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed. No Spark.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from conftest import compiled
from random_queries import Writer
from soundness import RAW

from persist_assets.compiler.compile import compile_project
from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.compiler.names import Keys, source_id
from persist_assets.compiler.state import Memory, RawFacts

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

Texts = Mapping[str, str]
"""Queries by the names of their sources, `q` the last; they read other sources as `@name@`."""


class Reader(Writer):
    """Writes queries that read other sources too."""

    def __init__(self, draw: random.Random, sources: Mapping[str, Sequence[str]], n: int) -> None:
        super().__init__(draw)
        self.sources, self.n = sources, n

    def relation(self, depth: int) -> tuple[str, Sequence[str]]:
        if self.sources and self.draw.random() < 0.5:
            name, columns = self.draw.choice([*self.sources.items()])
            return f"@{name}@", columns
        return super().relation(depth)

    def expression(self, names: Mapping[str, Sequence[str]]) -> str:
        if self.draw.random() < 0.02:
            return self.one_of("rand()", "(SELECT max(r) FROM (SELECT rand() AS r FROM w))")
        return super().expression(names)


def written(seed: int) -> Texts:
    """Return a project in which `q` reads every other source, directly or indirectly."""
    draw = random.Random(seed)
    texts: dict[str, str] = {}
    columns: dict[str, Sequence[str]] = {}
    n = 0
    for name in (*(f"src{i}" for i in range(draw.choice((1, 2, 3)))), "q"):
        reader = Reader(draw, dict(columns), n)
        texts[name], columns[name] = reader.query(draw.choice((0, 1, 1, 2)))
        n = reader.n
    needed = {"q"}
    for name in reversed(texts):
        if name in needed:
            needed.update(re.findall(r"@(\w+)@", texts[name]))
    return {name: text for name, text in texts.items() if name in needed}


def view(name: str, text: str, persisted: bool = False) -> str:
    return f"{'--@ persist' if persisted else ''}\nCREATE VIEW {name} AS {text.replace('@', '')};"


def project(texts: Texts, persisted: frozenset[str] = frozenset()) -> Project:
    views = {f"{n}.sql": view(n, text, n in persisted) for n, text in texts.items()}
    return compiled({"raw.sql": RAW, **views})


def remembering(text: str, memory: Memory) -> Project:
    declarations, _ = parse_sql(text, "sources/all.sql")
    raws = {source_id(d): RawFacts(d.name, d.columns) for d in declarations if d.raw}
    return compile_project(
        declarations, keys=Keys("sources"), connection="", raws=raws, memory=memory
    ).project


def meant(source: Source) -> object:
    return source.build_id, source.volatile, source.columns, source.marks


def named(made: Project) -> dict[str, Source]:
    assert not made.errors, [str(p) for p in made.errors]
    return {s.name: s for s in made.sources}


def inlined(texts: Texts) -> tuple[str, str]:
    """Return `q` with everything it reads as common table expressions, and as subqueries."""
    *others, _ = texts
    ctes = ", ".join(f"{n} AS ({texts[n].replace('@', '')})" for n in others)
    whole: dict[str, str] = {}
    for name, text in texts.items():
        whole[name] = re.sub(r"@(\w+)@", lambda m: f"({whole[m[1]]})", text)
    return (f"WITH {ctes} " if ctes else "") + texts["q"].replace("@", ""), whole["q"]


def test_the_meaning_of_sources_is_independent_of_project_layout_and_compilation() -> None:
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120")) / 4
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", "1"))
    started, n, n_wrong = time.monotonic(), 0, 0
    while time.monotonic() - started < budget_s:
        seed += 1
        draw, texts = random.Random(seed), written(seed)
        made = project(texts)
        if made.errors:  # the grammar also names missing columns, to test name resolution
            n_wrong += 1
            continue
        n, base = n + 1, named(made)
        persisted = frozenset(s for s in texts if draw.random() < 0.5 and not base[s].volatile)
        stored = named(project(texts, persisted))
        for made in (base, stored):
            known = {(s.source_id, c.name) for s in made.values() for c in s.columns}
            for edge in (e for s in made.values() for e in s.lineage):
                assert (edge.upstream.source_id, edge.upstream.column) in known, seed
        assert [base[s].notes for s in texts] == [stored[s].notes for s in texts], seed
        assert {s: meant(base[s]) for s in texts} == {s: meant(stored[s]) for s in texts}, seed
        whole = any("as a whole" in note for s in base.values() for note in s.notes)
        for text in inlined(texts):
            if len(text) < 3000 and not whole:  # a larger query may be a leaf in one form only
                assert meant(named(project({"q": text}))["q"]) == meant(base["q"]), (seed, text)
        everything = RAW + "".join(view(s, text, s in persisted) for s, text in texts.items())
        cold = Memory()
        said = remembering(everything, cold).sources
        kept = {
            key: pickle.loads(pickle.dumps(meaning.packed()))
            for key, meaning in cold.used.items()
            if draw.random() < 0.5
        }
        assert remembering(everything, Memory(kept)).sources == said, seed
    print(f"\n{n} projects, and {n_wrong} with errors")
    assert n > budget_s / 2
