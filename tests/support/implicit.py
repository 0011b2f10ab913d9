"""Expressions without an alias, and the names that Spark gives the columns that they are.

`python tests/support/implicit.py` asks Spark for the names and records them in `data/implicit_names.json`;
`unit/test_implicit_columns.py` compares the names with ours, `integration/test_implicit_names.py`
compares the record with the Spark in use.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RECORD = Path(__file__).parents[1] / "data" / "implicit_names.json"

COLUMNS = """
a INT, b STRING, k BIGINT, d DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, dbl DOUBLE, dec DECIMAL(10,2),
f BOOLEAN, bin BINARY, code STRING, Mixed INT, `odd name` INT, `dot.ted` INT, arr ARRAY<INT>,
aa ARRAY<ARRAY<INT>>, m MAP<STRING, INT>, ms MAP<STRING, STRUCT<x: INT>>, mi MAP<INT, STRING>,
s STRUCT<x: INT, Y: STRING, z: STRUCT<w: INT, arr: ARRAY<INT>>>, sa ARRAY<STRUCT<x: INT, y: STRING>>
""".replace("\n", " ").strip()
"""Of the table `n`, which all expressions are of."""

_TYPES = (
    "string int integer bigint long smallint short tinyint byte float real double decimal date"
    " timestamp timestamp_ntz timestamp_ltz boolean binary decimal(12,2) array<string>"
    " map<string,int> varchar(3) char(3)"
).split()
_CONVERSIONS = (
    "string int bigint smallint tinyint float double decimal date timestamp boolean binary"
).split()
_FIT = {
    "date": "d", "timestamp": "ts", "timestamp_ntz": "tn", "timestamp_ltz": "ts", "boolean": "f",
    "binary": "b", "array<string>": "arr", "map<string,int>": "m", "varchar(3)": "b",
    "char(3)": "b",
}  # fmt: skip
_LITERALS = """
'code'|'two words'|'a' 'b'|"double"|''|'it\\'s'|'it''s'|r'raw'|'ünï'|'a.b'|'count(1)'|'1'|'NULL'
1|007|-1|- 1|-(1)|+1|0|2147483648|-2147483649|9223372036854775808|1L|1S|1Y|-1L|1.5|1.50|.5|5.
-1.5|1e3|1E10|1.5e-7|1D|1.5D|1F|2.5F|1BD|1.50BD|1e3BD|-1BD|-1.5D
TRUE|false|NULL|DATE '2024-01-10'|date'2024-01-10'|TIMESTAMP '2024-01-10 00:00:00'
TIMESTAMP_NTZ '2024-01-10 00:00:00'|TIMESTAMP_LTZ '2024-01-10 00:00:00'|TIME '01:02:03'|X'41'|x'4a'
INTERVAL 1 DAY|INTERVAL '1' DAY|INTERVAL '1-2' YEAR TO MONTH|INTERVAL '1 day 2 hours'|INTERVAL a DAY
INTERVAL -1 MONTH|(1)|('code')|(NULL)
"""
_ROWS = """
a|A|`a`|`A`|(a)|((a))|n.a|N.A|(n.a)|Mixed|mixed|MIXED|n.mixed|`odd name`|n.`odd name`|`dot.ted`
s.x|s.X|s.y|S.x|n.s.x|n.s.y|s.z.w|s.z.W|n.s.z.w|s.z.arr|(s).x|(s.z).w|(n.s).x|((s)).z.w|`s`.`x`
sa.x|n.sa.x|sa.y|m.k|m.K|n.m.k|ms.k|ms.k.x|n.ms.k.x|(m).k|(ms.k).x
sa[0].x|n.sa[0].x|(sa[0]).x|sa[0].X|sa.x[0]|s.z.arr[0]|n.s.z.arr[0]|ms['k'].x|ms['k']|m['k']|m["k"]
n.m['k']|arr[0]|arr[a]|arr[0 + 1]|aa[0][1]|(aa[0])[1]|mi[1]|s['x']|s['z'].w|s['z']['w']|sa[a].x
element_at(sa, 1).x|element_at(m, 'k')|element_at(ms, 'k').x|struct(a).a|struct(a, b).b|struct(s.x).x
named_struct('x', a).x|(struct(a)).a|struct(sa[0].x).x|first(s).x|max(s).z.w|explode(sa).x
coalesce(s, s).x|if(f, s, s).x|CAST(s AS STRUCT<x: INT, Y: STRING, z: STRUCT<w: INT, arr: ARRAY<INT>>>).x
map('k', s)['k'].x|array(s)[0].x|filter(sa, e -> e.x > 1)[0].x|(SELECT first(s) FROM n).x
-a|- a|+a|+ a|~a|-(a)|-(-a)|+(+a)|-s.x|+s.x|- dbl|-a + 1|NOT f|!f|not s.x = 1
a + 1|a - 1|a * 2|a / 2|a % 2|a div 2|a DIV k|a & 1|a ¦ 1|a ^ 1|a << 1|a >> 1|a >>> 1|b ¦¦ code
a + k|a + dbl|a + dec|dec * 2|a + 1 + k|(a + 1) * 2|a + (1 * 2)|d + 1|d - 1|d - d|ts - ts|ts - d
d + INTERVAL 1 DAY|ts + INTERVAL 1 HOUR|INTERVAL 1 DAY * 2|d + INTERVAL a DAY|a + s.x|a + n.s.x|n.a + 1
a = 1|a == 1|a <> 1|a != 1|a < 1|a <= 1|a > 1|a >= 1|a <=> 1|a = '1'|b = 'x'|b = 1|d = '2024-01-01'
a IS NULL|a IS NOT NULL|f IS TRUE|f IS NOT FALSE|f IS UNKNOWN|a IS DISTINCT FROM 1|a IS NOT DISTINCT FROM 1
f AND a = 1|f OR a = 1|a BETWEEN 1 AND 2|a NOT BETWEEN 1 AND 2|a IN (1, 2)|a NOT IN (1, 2)|a IN (1)
b IN ('x', 'y')|b LIKE 'x%'|b NOT LIKE 'x%'|b LIKE 'x!%' ESCAPE '!'|b ILIKE 'X%'|b RLIKE 'x'|b REGEXP 'x'
b LIKE ANY ('x', 'y')|b LIKE ALL ('x', 'y')|b SIMILAR TO 'x'
CASE WHEN a = 1 THEN 'x' END|CASE WHEN f THEN a ELSE 0 END|CASE a WHEN 1 THEN 'x' ELSE 'y' END
if(f, a, 0)|iff(f, a, 0)|nvl(a, 0)|ifnull(a, 0)|nvl2(a, 1, 0)|nullif(a, 0)|coalesce(a, 0)|coalesce(a)
count(*)|count(1)|count(a)|COUNT(a)|count(DISTINCT a)|count(DISTINCT a, b)|count(n.*)|count_if(f)|sum(a)
sum(DISTINCT a)|avg(a)|mean(a)|min(a)|max(a)|max(n.a)|max(s.x)|first(a)|first(a) IGNORE NULLS|last(a, true)
any_value(a)|collect_list(a)|collect_set(a)|approx_count_distinct(a)|percentile(a, 0.5)|stddev(a)|every(f)
sum(a) FILTER (WHERE f)|percentile_cont(0.5) WITHIN GROUP (ORDER BY a)|listagg(b, ',')|max_by(a, k)|any(f)
sum(a + 1) + 1|max(a) - min(a)|max(a)::string|CAST(max(a) AS STRING)|string(max(a))|bool_or(f)|some(f)
row_number() OVER (ORDER BY a)|rank() OVER (PARTITION BY b ORDER BY a DESC)|sum(a) OVER (PARTITION BY b)
sum(a) OVER ()|lag(a) OVER (ORDER BY k)|lag(a, 1, 0) OVER (ORDER BY k)|lead(a, 2) OVER (ORDER BY k)
sum(a) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)|ntile(2) OVER (ORDER BY a)
first_value(a) OVER (ORDER BY k)|sum(a) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)
CAST(row_number() OVER (ORDER BY a) AS STRING)|string(sum(a) OVER ())
(SELECT 1)|(SELECT max(a) FROM n)|(SELECT max(x.a) FROM n x WHERE x.k = n.k)|EXISTS (SELECT 1 FROM n)
a IN (SELECT a FROM n)|a NOT IN (SELECT a FROM n)|(SELECT a FROM n LIMIT 1)::string|((SELECT 1))
CAST((SELECT max(a) AS a FROM n) AS STRING)|(SELECT 'code')
transform(arr, x -> x + 1)|transform(arr, (x, i) -> x + i)|filter(arr, x -> x > 1)|exists(arr, x -> x = 1)
aggregate(arr, 0, (acc, x) -> acc + x)|transform_values(m, (k, v) -> v + 1)|array_sort(arr)|forall(arr, x -> x > 0)
transform(sa, e -> e.x)|zip_with(arr, arr, (x, y) -> x + y)|map_filter(m, (k, v) -> v > 1)|size(filter(arr, x -> x > 1))
upper(b)|UPPER(b)|lower(n.b)|trim(b)|trim(BOTH 'x' FROM b)|ltrim(b)|rtrim(b)|btrim(b)|length(b)|char_length(b)
substring(b, 1, 2)|substr(b, 1, 2)|substring(b FROM 1 FOR 2)|left(b, 2)|right(b, 2)|concat(b, code)|concat_ws(',', b)
replace(b, 'x', 'y')|regexp_replace(b, 'x', 'y')|regexp_extract(b, 'x', 0)|split(b, ',')|split(b, ',')[0]|initcap(b)
position('x' IN b)|position('x', b)|locate('x', b)|instr(b, 'x')|lpad(b, 3, 'x')|overlay(b PLACING 'x' FROM 1)|repeat(b, 2)
year(d)|month(d)|day(d)|dayofmonth(d)|dayofweek(d)|hour(ts)|extract(YEAR FROM d)|extract(year from ts)
date_part('year', d)|date_trunc('month', ts)|trunc(d, 'MM')|date_add(d, 1)|dateadd(d, 1)|date_sub(d, 1)|dateadd(DAY, 1, ts)
datediff(d, d)|datediff(DAY, ts, ts)|timestampdiff(HOUR, ts, ts)|timestampadd(HOUR, 1, ts)|add_months(d, 1)|last_day(d)
to_date(b)|to_date(b, 'yyyy')|to_timestamp(b)|date_format(d, 'yyyy')|unix_timestamp(ts)|from_unixtime(k)|make_date(1, 2, 3)
current_date|current_date()|current_timestamp|current_timestamp()|now()|current_user|current_user()|user|user()|session_user
current_catalog()|current_database()|current_schema()|current_timezone()|localtimestamp|localtimestamp()|current_time|uuid()
abs(a)|round(dbl, 1)|round(dbl)|floor(dbl)|ceil(dbl)|ceiling(dbl)|sqrt(a)|power(a, 2)|pow(a, 2)|mod(a, 2)|pmod(a, 2)|sign(a)
greatest(a, k)|least(a, k)|negative(a)|positive(a)|rand()|rand(1)|pi()|e()|hash(a)|xxhash64(a)|md5(b)|bround(dbl, 1)
array(1, 2)|array(a, k)|array()|map('k', a)|map()|struct(a, b)|struct(a AS x)|named_struct('x', a)|(a, b)|struct(n.*)
size(arr)|cardinality(arr)|array_contains(arr, 1)|sequence(1, 3)|map_keys(m)|arrays_zip(arr, arr)|to_json(s)|flatten(aa)
from_json(b, 'x INT')|from_json(b, 'x INT').x|get_json_object(b, '$.x')|parse_json(b)|array_max(arr)|slice(arr, 1, 1)
get(arr, 0)|try_element_at(arr, 1)|try_add(a, 1)|try_divide(a, 2)|try_to_number(b, '99')|to_number(b, '99')|to_char(a, '99')
typeof(a)|version()|monotonically_increasing_id()|spark_partition_id()|input_file_name()|raise_error('x')|assert_true(f)
b COLLATE UTF8_LCASE|collate(b, 'UTF8_LCASE')|collation(b)|explode(arr)|explode(m)|posexplode(arr)|inline(sa)|stack(2, 1, 2)
_metadata|IDENTIFIER('a')|IDENTIFIER('n.a')|identifier('a')::string|decode(a, 1, 'x', 'y')|decode(bin, 'utf-8')|lit(1)
window(ts, '1 hour')|window(ts, '1 hour').start|session_window(ts, '5 minutes')|window(ts, '2 hours', '1 hour')
"""
_CAST_OPERANDS = """
a|n.a|A|`a`|(a)|n.Mixed|mixed|s.x|n.s.x|s.z.w|s.X|(s).x|`odd name`|sa[0].x|element_at(sa, 1).x
struct(a).a|a + 1|-a|+a|-1|1|'1'|'code'|NULL|TRUE|m['k']|m.k|ms.k.x|ms['k'].x|arr[0]|count(a)|upper(b)
a::int|CAST(a AS INT)|int(a)|DATE '2024-01-01'|1L|1.5|CASE WHEN f THEN a END|coalesce(a, 1)|a IS NULL
try_cast(a AS int)|string(a)|current_date|current_date()|(SELECT 1)|rand(1)|named_struct('x', a).x
"""


def _listed(text: str) -> Iterator[str]:
    for line in text.strip().splitlines():
        yield from (part.replace("¦", "|") for part in line.split("|"))


def expressions() -> list[str]:
    """Return all expressions, each once, in their order."""
    every = [*_listed(_LITERALS), *_listed(_ROWS)]
    for kind in _TYPES:
        operand = _FIT.get(kind, "a")
        every += [
            f"CAST({operand} AS {kind})",
            f"{operand}::{kind}",
            f"CAST(n.{operand} AS {kind.upper()})",
        ]
        every += [f"try_cast({operand} AS {kind})", f"TRY_CAST(({operand}) AS {kind})"]
    for function in _CONVERSIONS:
        operand = _FIT.get(function, "a")
        every += [f"{function}({operand})", f"{function.upper()}(n.{operand})", f"{function}('1')"]
    for operand in _listed(_CAST_OPERANDS):
        every += [
            f"CAST({operand} AS string)",
            f"try_cast({operand} AS STRING)",
            f"string({operand})",
        ]
        every += [f"({operand})::string", f"string(({operand}))"]
        if (operand[0] not in "-+(" and operand.isidentifier()) or operand.endswith(
            (")", "]", "'")
        ):
            every.append(f"{operand}::string")
    return list(dict.fromkeys(every))


def names(spark: Any, every: list[str]) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each expression and the names of its columns; None where Spark refuses it."""
    spark.createDataFrame([], COLUMNS).createOrReplaceTempView("n")
    for expression in every:
        try:
            yield expression, spark.sql(f"SELECT {expression} FROM n").schema.names
        except Exception:
            yield expression, None


def recorded() -> Mapping[str, str]:
    """Return the recorded names of expressions that are one column."""
    return json.loads(RECORD.read_text())["names"]


def record() -> None:
    """Ask a local Spark for the names, and record them."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    every = dict(names(spark, expressions()))
    made = {
        "about": "The name of the one column of `SELECT <expression> FROM n`, by tests/support/implicit.py.",
        "spark": spark.version,
        "table": f"CREATE TABLE n ({COLUMNS})",
        "names": {e: found[0] for e, found in every.items() if found and len(found) == 1},
    }
    RECORD.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    refused = [e for e, found in every.items() if not found or len(found) != 1]
    print(f"{len(made['names'])} names recorded; refused or several columns: {refused}")


if __name__ == "__main__":
    record()
