"""Column lineage through all sources."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.core.errors import NotFoundError
from persist_assets.core.model.columns import ColumnRef
from persist_assets.planning.lineage import edges, find_columns, trace

FILES = {
    "m.sql": """
CREATE TABLE t (a INT, b INT, k INT) USING parquet LOCATION 't';
--@ persist
CREATE VIEW p AS SELECT a + b AS s, k FROM t;
CREATE VIEW v AS SELECT s * 2 AS d, k FROM p;
--@ persist
CREATE VIEW q AS SELECT k, sum(d) AS total FROM v GROUP BY k;
--@ persist
CREATE VIEW r AS SELECT max(total) AS most FROM q;
""",
    "deep/m.sql": "CREATE VIEW alone AS SELECT 1 AS s;",
}


def edges_of(*columns: str) -> list[str]:
    """Return the lineage edges of columns of `m.sql`, abbreviated."""
    refs = [ColumnRef(f"{n}@sources/m.sql", c) for n, _, c in (x.partition(".") for x in columns)]
    return [
        " ".join(f"{c.source_id.partition('@')[0]}.{c.column}" for c in edge)
        for edge in trace(compiled(FILES), refs)
    ]


@pytest.mark.proves("P29")
def test_a_column_is_traced_to_raw_data_and_to_all_downstream_columns() -> None:
    assert edges_of("p.s") == [
        "p.s q.total",
        "p.s v.d",
        "q.total r.most",
        "t.a p.s",
        "t.b p.s",
    ]
    assert edges_of("r.most") == ["p.s q.total", "q.total r.most", "t.a p.s", "t.b p.s"]
    # Without the other columns of sources in between.
    assert edges_of("q.k") == ["p.k q.k", "t.k p.k"]
    assert edges_of("v.d") == ["p.s v.d", "t.a p.s", "t.b p.s"]
    assert set(edges_of("t.a", "t.b", "t.k")) == {
        " ".join(f"{c.source_id.partition('@')[0]}.{c.column}" for c in edge)
        for edge in edges(compiled(FILES))
    }


def test_a_source_or_a_column_is_found_by_its_name() -> None:
    project = compiled(FILES)

    def column_of(text: str) -> tuple[str, str | None]:
        source, column = find_columns(project, text)
        return source.key, column

    assert column_of("q") == ("m/q", None)
    assert column_of("q.TOTAL") == ("m/q", "total")
    assert column_of("m.q") == ("m/q", None)
    assert column_of("m/q.k") == ("m/q", "k")
    assert column_of("deep.m.alone.s") == ("deep/m/alone", "s")
    assert column_of("q@sources/m.sql") == ("m/q", None)
    assert column_of("q@sources/m.sql.k") == ("m/q", "k")
    for asked, says, hint in (
        ("q.totl", "no column `totl`", "total"),
        ("q.zzzzzz", "no column `zzzzzz`", "known columns: k, total"),
        ("nothing", "unknown source `nothing`", ""),
        ("nothing.k", "unknown source `nothing.k`", ""),
    ):
        with pytest.raises(NotFoundError, match=says) as refused:
            find_columns(project, asked)
        assert hint in (refused.value.hint or "")
