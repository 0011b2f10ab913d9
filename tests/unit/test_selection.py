"""Names and graph → sources."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.errors import ConflictError, NotFoundError
from persist_assets.selection import find_source, is_simple, select

PROJECT = compiled(
    {
        "a.sql": """
        CREATE TABLE t (a INT) USING parquet LOCATION 't';
        --@ persist
        CREATE VIEW p AS SELECT a FROM t;
        CREATE VIEW v AS SELECT a FROM p;
        --@ persist
        CREATE VIEW q AS SELECT a FROM v;
        --@ persist
        CREATE VIEW r AS SELECT a FROM q;
        --@ persist
        CREATE VIEW other AS SELECT a FROM t;
        """,
        "d/b.sql": "CREATE VIEW p AS SELECT a FROM t",
    }
)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["a/p"], "p"),
        (["q", "a.p"], "pq"),
        (["+r"], "pqr"),
        (["2+q"], "pq"),
        (["1+q"], "q"),
        (["a/p+"], "pqr"),
        (["a/p+2"], "pq"),
        (["+q+"], "pqr"),
        (["v+"], "qr"),
        (["t+1"], ["p", "other"]),
        (["q@sources/a.sql"], "q"),
    ],
)
def test_patterns(patterns: list[str], expected: str | list[str]) -> None:
    assert [s.partition("@")[0] for s in select(PROJECT, patterns)] == list(expected)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("othr", "there is no source `othr`\n    hint: did you mean `other`?"),
        ("v", "`v` is not persisted\n    hint: annotate it"),
        ("t", "`t` is not persisted\n    hint: it is a raw table"),
    ],
)
def test_what_means_nothing(pattern: str, says: str) -> None:
    with pytest.raises(NotFoundError) as error:
        select(PROJECT, [pattern])
    assert says in str(error.value)


def test_a_name_of_several_sources() -> None:
    with pytest.raises(ConflictError, match="`p` may be any of a/p, d/b/p"):
        find_source(PROJECT, "p")


@pytest.mark.parametrize("pattern", ["tag:nightly", "a and b", "kind:sql+", "*"])
def test_the_rest_is_dagsters(pattern: str) -> None:
    assert not is_simple(pattern)
