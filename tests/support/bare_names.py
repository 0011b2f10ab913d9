"""Names that Spark takes for functions without parentheses unless a column is called so.

Each query returns one value, ``'column'`` where Spark takes the name for the column of `c`. Their
answers are Spark's: `integration/test_bare_names_on_spark.py` asks it, `unit/test_bare_names.py` does not.
"""

from __future__ import annotations

NAMES = (
    *("current_date", "current_time", "current_timestamp", "current_user", "localtime"),
    *("session_user", "user"),
)
"""The names."""

RAW = f"""
CREATE TABLE c (a INT, {", ".join(f"{name} STRING" for name in NAMES)}, current_path STRING)
USING parquet LOCATION 'c';
CREATE TABLE other (a INT, w STRING) USING parquet LOCATION 'other';
"""
ROWS = {
    "c": ", ".join(f"({a}{f', {word!r}' * (len(NAMES) + 1)})" for a, word in ((1, "z"), (2, "column"))),
    "other": "(1, 'z'), (2, 'column')",
}  # fmt: skip
COLUMNS = {"c": f"a, {', '.join(NAMES)}, current_path", "other": "a, w"}

OF_COLUMNS = (
    "SELECT {} AS x FROM c WHERE a = 2",
    "SELECT `{}` AS x FROM c WHERE a = 2",
    "SELECT c.{} AS x FROM c WHERE a = 2",
    "SELECT min({}) AS x FROM c",
    "SELECT {0} AS x FROM (SELECT {0}, a FROM c ORDER BY {0} LIMIT 1) WHERE a = 2",
    "SELECT x FROM (SELECT {0} AS x, a FROM c ORDER BY c.{0} LIMIT 1) WHERE a = 2",
    "SELECT w AS x FROM other JOIN c ON c.a = other.a AND {} = 'column'",
    "SELECT w AS x FROM other WHERE EXISTS (SELECT 1 FROM c WHERE {} = 'column' AND c.a = other.a)",
    "SELECT max(other.w) AS x FROM c JOIN other USING (a) WHERE a = 2 GROUP BY {0} HAVING {0} = 'column'",
    "SELECT w AS x FROM other JOIN c USING (a) QUALIFY row_number() OVER (ORDER BY {}) = 1",
    "SELECT e AS x FROM c LATERAL VIEW explode(array({})) v AS e WHERE a = 2",
    "SELECT element_at(transform(array('column'), {0} -> {0}), 1) AS x FROM other WHERE a = 1",
    "SELECT {0}.x AS x FROM (SELECT named_struct('x', w) AS `{0}` FROM other WHERE a = 2)",
    "SELECT {0} AS x FROM c JOIN (SELECT {0} FROM c WHERE a = 2) USING ({0})",
)  # fmt: skip
"""Queries in which such a name is a column."""

OF_FUNCTIONS = (
    "SELECT string({}()) AS x FROM c WHERE a = 2",
    "SELECT string({}) AS x FROM other WHERE a = 2",
    "SELECT string(`{}`) AS x FROM other WHERE a = 2",
    "SELECT x FROM (SELECT 'column' AS {0}, string({0}) AS x FROM other WHERE a = 2)",
    "SELECT (SELECT string(max({})) FROM other) AS x FROM c WHERE a = 2",
    "SELECT w AS x FROM c JOIN other USING (a) ORDER BY {} LIMIT 1",
    "SELECT w AS x FROM c JOIN other USING (a) SORT BY upper(string({})) LIMIT 1",
    "SELECT x FROM (SELECT {0} AS x, a FROM c ORDER BY {0} LIMIT 1)",
    "SELECT string(e) AS x FROM c, LATERAL explode(array({})) v(e) WHERE a = 2",
)
"""Queries in which it is the function, though it seems to be a column."""

PATHS = (
    ("SELECT current_path AS x FROM c WHERE a = 2", False),
    ("SELECT transform(array('column'), current_path -> current_path)[0] AS x FROM other WHERE a = 2", False),
    ("SELECT `current_path` AS x FROM c WHERE a = 2", True),
    ("SELECT c.current_path AS x FROM c WHERE a = 2", True),
)  # fmt: skip
"""`current_path` without quotes is the function everywhere."""

CASES = (
    *((query.format(name), True) for query in OF_COLUMNS for name in NAMES),
    *((query.format(name), False) for query in OF_FUNCTIONS for name in NAMES),
    *PATHS,
)
"""Queries, and whether the name is a column in them."""
