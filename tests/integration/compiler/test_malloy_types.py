"""SQL columns have Spark's types in Malloy, and texts record which types were inferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from malloy import compiler

from persist_assets.compiler.load import load
from persist_assets.compiler.texts import Texts
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RAW = """
CREATE TABLE t (k STRING, m DECIMAL(10, 2), n TIMESTAMP_NTZ) USING parquet LOCATION 't';
CREATE VIEW spent AS SELECT k, sum(m) AS total, array(struct(m AS x)) AS l FROM t GROUP BY k, m;
"""
FLAG = "##! experimental.persistence\n"
INFERRED = f'''{FLAG}
source: joined is spark.sql("""SELECT k, m * 2 AS twice, localtimestamp() AS at, total FROM t JOIN spent USING (k)""")
#@ persist
source: a is joined -> {{ select: k, y is twice * 2, z is total + 1, mo is at.month }}
#@ persist
source: b is spark.table('spent') -> {{ group_by: w is l.x * 2; aggregate: s is total.sum() }}
'''
CERTAIN = f"{FLAG}\n#@ persist\nsource: c is spark.table('t') -> {{ group_by: k; aggregate: s is m.sum() }}\n"


@pytest.mark.proves("V36")
def test_malloy_gets_inferred_types_of_sql_columns(
    make_project: Callable[..., Path],
) -> None:
    compiler()
    files = {"raw.sql": RAW, "inferred.malloy": INFERRED, "certain.malloy": CERTAIN}
    root = make_project(files)
    loaded = load(load_settings(root, environ={}))
    assert not loaded.project.problems
    shown = {path: file.inferred for path, file in loaded.models.files.items()}
    assert shown["sources/certain.malloy"] == ()
    assert {*shown["sources/inferred.malloy"]} == {
        ("twice", "decimal(12,2)"),
        ("at", "timestamp_ntz"),
        ("total", "decimal(20,2)"),
        ("l", "array<struct<x:decimal(10,2)>>"),
    }
    # They do not affect BuildIDs: `Source.columns` does not have them.
    spent = loaded.project.by_id["spent@sources/raw.sql"]
    assert [c.type for c in spent.columns] == ["string", None, None]


@pytest.mark.proves("V36")
def test_inferred_types_change_only_the_texts_of_sources_that_use_them(
    make_project: Callable[..., Path],
) -> None:
    compiler()
    files = {"raw.sql": RAW, "inferred.malloy": INFERRED, "certain.malloy": CERTAIN}
    root = make_project(files)
    settings = load_settings(root, environ={})
    loaded = load(settings)

    def texts(inferred: dict[str, tuple[tuple[str, str], ...]]) -> dict[str, str]:
        compilation = loaded.compilation
        made = Texts(
            *(settings, loaded.project, compilation.raws, compilation.definitions),
            *({}, inferred, lambda path: (root / path).read_text()),
        )
        return {s.name: made.of(s.source_id) for s in loaded.project.sources}

    before = texts({})
    now = texts({path: file.inferred for path, file in loaded.models.files.items()})
    assert all(before.values())
    assert {name for name, text in now.items() if text != before[name]} == {"joined", "a", "b"}
    recorded = {s.name: loaded.project.text_of(s.source_id) for s in loaded.project.sources}
    assert recorded == now


@pytest.mark.proves("V36")
def test_a_changed_decimal_setting_makes_types_uncertain(
    make_project: Callable[..., Path],
) -> None:
    compiler()
    root = make_project({"raw.sql": RAW, "inferred.malloy": INFERRED})
    settings = root / "persist.toml"
    line = '"spark.sql.decimalOperations.allowPrecisionLoss" = "false"'
    settings.write_text(settings.read_text().replace("[spark]", f"[spark]\n{line}"))
    problems = load(load_settings(root, environ={})).project.errors
    assert {p.code for p in problems} >= {"uncertain-type"}
