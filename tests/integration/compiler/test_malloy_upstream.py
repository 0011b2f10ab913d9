"""Malloy's own test cases for persistence, run against our bridge and loader.

The cases are those of Malloy's tests `test/src/core/persist.spec.ts`,
`packages/malloy/src/api/foundation/build-targets.spec.ts` and `persist-source-sql.spec.ts`, version
0.0.433-dev (MIT, Copyright Contributors to the Malloy project). The models and checks are rewritten
here. `docs/malloy.md` lists the cases that do not apply.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, need_node
from malloy import Told, compiler, malloy

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from persist_assets.compiler.malloy.bridge import Session

FLAG = "##! experimental.persistence\n"
ORDERS = "source: orders is spark.table('orders')\n"
STATS = "#@ persist\nsource: stats is orders -> { group_by: shop; aggregate: n is count() }\n"
HEAD = FLAG + ORDERS + STATS
TYPED = "##! experimental { persistence virtual_source }\n"


@dataclass(frozen=True)
class Case:
    """Malloy files, and the tables and dependencies that are expected of them.

    Attributes
    ----------
    main
        The file that is compiled.
    others
        The files that it imports.
    reads
        The persisted sources of all files, each with the persisted ones directly upstream of it.
    same
        Groups of sources with one BuildID, and so one table; all others have their own.
    queries
        Queries over the main file, with the tables that they read.
    """

    main: str
    reads: Mapping[str, set[str]]
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    same: tuple[tuple[str, ...], ...] = ()
    queries: Mapping[str, set[str]] = field(default_factory=dict[str, set[str]])

    def one_table(self, names: set[str]) -> set[str]:
        """Replace each source by the first one that shares its table."""
        first = {name: group[0] for group in self.same for name in group}
        return {first.get(name, name) for name in names}


def union(a: str, b: str) -> str:
    return f'spark.sql("""SELECT * FROM %{{ {a} }} UNION ALL SELECT * FROM %{{ {b} }}""")'


def taken(names: str) -> str:
    return "".join(
        f"#@ persist\nsource: {new} is {old} -> {{ select: * }}\n"
        for new, old in (pair.split("=") for pair in names.split())
    )


CASES = {
    "sources of other rows have other BuildIDs": Case(
        f"{HEAD}#@ persist\nsource: b is orders -> {{ group_by: customer; aggregate: n is count() }}\n",
        {"stats": set(), "b": set()},
        queries={"run: stats -> { select: * }": {"stats"}, "run: b -> { select: * }": {"b"}},
    ),
    "a model without persist has no tables": Case(
        f"{FLAG}{ORDERS}source: a is orders -> {{ group_by: shop }}\n# other\nsource: b is a\n",
        {},
        queries={"run: b -> { select: * }": set()},
    ),
    "only what says persist is a table": Case(
        f"{HEAD}source: live is orders -> {{ group_by: customer }}\n", {"stats": set()}
    ),
    "a chain": Case(
        HEAD + taken("b=stats c=b"),
        {"stats": set(), "b": {"stats"}, "c": {"b"}},
        queries={"run: c -> { select: * }": {"c"}},
    ),
    "a chain through extended sources": Case(
        f"""{HEAD}
        #@ persist
        source: b is stats extend {{ dimension: x is 'b' }} -> {{ select: * }}
        #@ persist
        source: c is b extend {{ dimension: y is 'c' }} -> {{ select: * }}
        """,
        {"stats": set(), "b": {"stats"}, "c": {"b", "stats"}},
    ),
    "a diamond": Case(
        f"{HEAD}{taken('b=stats')}#@ persist\nsource: c is stats -> {{ select: shop, n; where: n > 1 }}\n"
        f"#@ persist\nsource: d is {union('b', 'c')}\n",
        {"stats": set(), "b": {"stats"}, "c": {"stats"}, "d": {"b", "c"}},
    ),
    "a diamond of extended sources": Case(
        f"""{HEAD}
        #@ persist
        source: low is stats extend {{ dimension: side is 'low' }} -> {{ select: * }}
        #@ persist
        source: high is stats extend {{ dimension: side is 'high' }} -> {{ select: * }}
        #@ persist
        source: both is {union("low", "high")}
        """,
        {"stats": set(), "low": {"stats"}, "high": {"stats"}, "both": {"low", "high"}},
    ),
    "SQL over a source": Case(
        f'{HEAD}#@ persist\nsource: b is spark.sql("""SELECT * FROM %{{ stats }} WHERE n > 1""")\n',
        {"stats": set(), "b": {"stats"}},
        queries={"run: b -> { select: * }": {"b"}},
    ),
    "SQL over a query": Case(
        f"{HEAD}#@ persist\nsource: b is "
        'spark.sql("""SELECT * FROM %{ stats -> { select: *; where: n > 1 } }""")\n',
        {"stats": set(), "b": {"stats"}},
    ),
    "SQL alone": Case(
        f'{FLAG}#@ persist\nsource: a is spark.sql("""SELECT shop, count(*) AS n FROM orders GROUP BY shop""")\n'
        'source: live is spark.sql("""SELECT * FROM %{ a }""")\n',
        {"a": set()},
        queries={"run: a -> { select: * }": {"a"}, "run: live -> { select: * }": {"a"}},
    ),
    "through a source that is no table": Case(
        f"""{HEAD}source: live is stats -> {{ select: * }}
        #@ persist
        source: b is live -> {{ select: *; where: n > 1 }}
        #@ persist
        source: c is spark.sql(\"\"\"SELECT * FROM %{{ live }} WHERE n > 2\"\"\")
        """,
        {"stats": set(), "b": {"stats"}, "c": {"stats"}},
    ),
    "a join of a table": Case(
        f"""{HEAD}source: joined is orders extend {{ join_one: stats on stats.shop = shop }}
        query: in_query is orders -> {{ extend: {{ join_one: stats on stats.shop = shop }} select: customer, stats.n }}
        """,
        {"stats": set()},
        queries={
            "run: joined -> { select: customer, stats.n }": {"stats"},
            "run: joined -> { select: customer }": set(),
            "run: in_query": {"stats"},
        },
    ),
    "a join of both kinds": Case(
        f"""{HEAD}
        #@ persist
        source: s is spark.sql(\"\"\"SELECT shop, max(customer) AS last FROM orders GROUP BY shop\"\"\")
        source: joined is orders extend {{
          join_one: q is stats on shop = q.shop
          join_one: s on shop = s.shop
        }}
        """,
        {"stats": set(), "s": set()},
        queries={"run: joined -> { group_by: shop, s.last, q.n }": {"stats", "s"}},
    ),
    "chains of their own": Case(
        f"{HEAD}{taken('b=stats')}#@ persist\nsource: c is orders -> {{ group_by: customer }}\n"
        + taken("d=c"),
        {"stats": set(), "b": {"stats"}, "c": set(), "d": {"c"}},
    ),
    "what extends a table is that table": Case(
        f"""{HEAD}source: more is stats extend {{ dimension: loud is upper(shop) }}
        source: same is stats
        """,
        {"stats": set(), "more": set(), "same": set()},
        same=(("stats", "more", "same"),),
        queries={
            "run: more -> { group_by: loud; aggregate: m is n.sum() }": {"stats"},
            "run: same -> { select: * }": {"stats"},
            "run: stats extend { dimension: x is upper(shop) } -> { group_by: x }": {"stats"},
        },
    ),
    "a join beside a table is no dependency of it": Case(
        f"""{HEAD}
        #@ persist
        source: mid is stats -> {{ group_by: shop; aggregate: t is n.sum() }}
        source: alias is stats extend {{ join_one: mid on shop = mid.shop }}
        """,
        {"stats": set(), "mid": {"stats"}, "alias": {"mid"}},
        same=(("stats", "alias"),),
        queries={"run: alias -> { select: shop, mid.t }": {"stats", "mid"}},
    ),
    "a dependency by another name": Case(
        f"""{HEAD}source: alias is stats extend {{ dimension: loud is upper(shop) }}
        #@ persist
        source: top is alias -> {{ group_by: loud; aggregate: t is n.sum() }}
        """,
        {"stats": set(), "alias": set(), "top": {"alias"}},
        same=(("stats", "alias"),),
    ),
    "an imported table that is extended": Case(
        f"""{FLAG}import "one.malloy"
        #@ persist
        source: b is stats extend {{ dimension: x is 'x' }} -> {{ select: * }}
        """,
        {"stats": set(), "b": {"stats"}},
        {"one.malloy": HEAD},
        queries={"run: stats -> { select: * }": {"stats"}, "run: b -> { select: * }": {"b"}},
    ),
    "an imported table with a view": Case(
        f'{FLAG}import "one.malloy"\nsource: more is stats extend {{ view: some is {{ select: shop }} }}\n',
        {"stats": set(), "more": set()},
        {"one.malloy": HEAD.rstrip() + " extend { view: all_rows is { select: * } }\n"},
        same=(("stats", "more"),),
        queries={"run: stats -> all_rows": {"stats"}, "run: more -> some": {"stats"}},
    ),
    "persist is inherited through imports": Case(
        f'{FLAG}import "two.malloy"\nsource: c is b extend {{ dimension: y is 1 }}\n',
        {"stats": set(), "b": set(), "c": set()},
        {
            "one.malloy": HEAD,
            "two.malloy": f'{FLAG}import "one.malloy"\nsource: b is stats extend {{ dimension: x is 1 }}\n',
        },
        same=(("stats", "b", "c"),),
        queries={"run: c -> { select: shop }": {"stats"}},
    ),
    "persist is taken back": Case(
        f'{FLAG}import "two.malloy"\nsource: c is b extend {{ dimension: y is 1 }}\n',
        {"stats": set()},
        {
            "one.malloy": HEAD,
            "two.malloy": f'{FLAG}import "one.malloy"\n'
            "#@ -persist\nsource: b is stats extend { dimension: x is 1 }\n",
        },
        queries={"run: c -> { select: shop }": set()},
    ),
    "through a wrapper that is no table": Case(
        f'{FLAG}import "one.malloy"\nsource: again is report\n',
        {"stats": set(), "b": set(), "report": {"stats", "b"}, "again": {"stats", "b"}},
        {
            "one.malloy": f"""{HEAD}
            #@ persist
            source: b is orders -> {{ group_by: shop; aggregate: m is count(customer) }}
            #@ -persist
            source: joined is stats extend {{ join_one: b on shop = b.shop }}
            #@ persist
            source: report is joined -> {{ group_by: shop, b.m, n }}
            """
        },
        same=(("report", "again"),),
    ),
    "a join of imported tables with types": Case(
        f"""{TYPED}import "one.malloy"
        source: people is stats::kind extend {{ primary_key: shop }}
        source: all_of_it is principals extend {{ join_one: people with shop }}
        """,
        {
            "stats": set(),
            "principals": {"stats"},
            "people": set(),
            "all_of_it": {"stats", "people"},
        },
        {
            "one.malloy": f"""{TYPED}{ORDERS}
            type: kind is {{ shop :: string, n :: number }}
            #@ persist
            source: stats is orders -> {{ group_by: shop; aggregate: n is count() }}::kind
            #@ persist
            source: principals is orders -> {{
              extend: {{ join_one: stats on stats.shop = shop }}
              group_by: shop, stats.n
            }}
            """
        },
        same=(("stats", "people"), ("principals", "all_of_it")),
        queries={"run: all_of_it -> { select: shop, people.n }": {"principals", "stats"}},
    ),
    "joins of sources that are no tables": Case(
        f"""{HEAD}query: shops is orders -> {{ group_by: shop }}
        source: summary is orders -> {{ group_by: shop }}
        source: more is stats extend {{
          join_many: shops on shop = shops.shop
          join_many: summary on shop = summary.shop
        }}
        """,
        {"stats": set(), "more": set()},
        same=(("stats", "more"),),
        queries={"run: more -> { select: shop; where: shops.shop = 'a' }": {"stats"}},
    ),
}

RAW = (
    "CREATE TABLE orders (customer STRING, shop STRING, amount BIGINT) USING parquet LOCATION 'o';"
)
TABLES = {"orders": [("customer", "string"), ("shop", "string"), ("amount", "bigint")]}
SELECTED = [("shop", "string"), ("n", "bigint"), ("last", "string")]


def directory(title: str) -> str:
    return f"c{[*CASES].index(title):02}"


def files_of(title: str) -> dict[str, str]:
    case, place = CASES[title], directory(title)
    return {f"{place}/{p}": t for p, t in {"main.malloy": case.main, **case.others}.items()}


EVERY_FILE = {path: text for title in CASES for path, text in files_of(title).items()}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with malloy(Told(EVERY_FILE, TABLES, SELECTED)) as session:
        yield session


def tables_in(sql: str, place: str) -> set[str]:
    """Return the persisted sources of a directory that SQL reads by their SourceIDs."""
    parts = sql.split("`")[1::2]
    return {p.partition("@")[0] for p in parts if p.partition("@")[2].startswith(f"{place}/")}


@pytest.mark.proves("V37")
@pytest.mark.parametrize("title", CASES)
def test_malloys_cases_have_the_expected_tables_dependencies_and_build_ids(
    session: Session, title: str
) -> None:
    case, place = CASES[title], directory(title)
    models = [session.compile_model(path) for path in files_of(title)]
    assert [p.message for m in models for p in m.problems] == []
    by_name = {s.name: s for m in models for s in m.sources if s.build_id is not None}
    assert {n: {r.partition("@")[0] for r in s.reads} for n, s in by_name.items()} == case.reads
    ids = {n: s.build_id for n, s in by_name.items()}
    assert all(len({ids[n] for n in group}) == 1 for group in case.same)
    assert len({*ids.values()}) == len(case.one_table({*ids}))
    for text, tables in case.queries.items():
        query = session.compile_query(f"{place}/main.malloy", text=text)
        assert query.sql is not None, query.problems
        assert case.one_table(tables_in(query.sql, place)) == case.one_table(tables), text


@pytest.mark.slow
@pytest.mark.proves("V37")
def test_the_loader_finds_the_expected_tables_in_malloys_cases(
    make_project: Callable[..., Path],
) -> None:
    compiler()
    root = make_project({"raw.sql": RAW, **EVERY_FILE})
    project = load_project(load_settings(root, environ={}))
    assert [str(p) for p in project.problems] == []
    for title, case in CASES.items():
        place = f"sources/{directory(title)}/"
        sources = [s for s in project.sources if s.location.path.startswith(place)]
        tables = {s.name: s for s in sources if s.persisted}
        assert tables.keys() == case.reads.keys(), title
        for group in case.same:
            assert len({tables[n].build_id for n in group}) == 1, title
        for name, source in tables.items():
            read = {b.partition("@")[0] for b in source.bindings if "malloy" in b}
            assert case.one_table(read) <= case.one_table(case.reads[name]), (title, name)


@pytest.mark.slow
@pytest.mark.proves("V37")
def test_malloys_own_runtime_finds_tables_by_our_build_ids(session: Session) -> None:
    asked: list[dict[str, Any]] = []
    titles = [title for title, case in CASES.items() if case.queries and case.reads]
    for title in titles:
        files = files_of(title)
        entries: dict[str, dict[str, str]] = {}
        for source in (s for path in files for s in session.compile_model(path).sources):
            for build_id in filter(None, (source.build_id, source.runtime_id)):
                entries.setdefault(build_id, {"tableName": f"cached.{source.name}"})
        asked.append(
            {
                "files": files,
                "model": f"{directory(title)}/main.malloy",
                "tables": {**TABLES, "": SELECTED},
                "digest": "digest",
                "manifest": json.dumps({"entries": entries}),
                "strict": True,
                "queries": [*CASES[title].queries],
            }
        )
    done = subprocess.run(
        [need_node(), str(ROOT / "tests" / "node" / "runtime.js")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    for title, answer in zip(titles, json.loads(done.stdout), strict=True):
        case = CASES[title]
        for (text, tables), query in zip(case.queries.items(), answer["queries"], strict=True):
            assert "error" not in query, (text, query)
            found = {*re.findall(r"\bcached\.(\w+)", query["sql"])}
            assert case.one_table(found) == case.one_table(tables), (title, text)


TEXTS = {
    "SELECT * FROM orders WHERE amount > 1": ["customer", "shop", "amount"],
    "SELECT * FROM (SELECT shop FROM orders)": ["shop"],
    "SELECT * FROM (SELECT shop FROM orders UNION ALL SELECT customer FROM orders)": ["shop"],
    "SELECT * FROM orders LATERAL VIEW explode(array(1)) t AS k": [
        *("customer", "shop", "amount", "k")
    ],
}


@pytest.mark.proves("V37")
def test_sql_that_begins_with_select_star_has_its_own_columns(
    make_project: Callable[..., Path],
) -> None:
    """Upstream's case: SQL with only ``SELECT * FROM`` before the interpolated part."""
    compiler()
    lines = [f'source: s{n} is spark.sql("""{text}""")' for n, text in enumerate(TEXTS)]
    root = make_project({"raw.sql": RAW, "m.malloy": "\n".join([FLAG, *lines])})
    project = load_project(load_settings(root, environ={}))
    columns = {s.name: [c.name for c in s.columns] for s in project.sources}
    assert [columns[f"s{n}"] for n in range(len(TEXTS))] == [*TEXTS.values()]
