"""Spark's functions: which aggregate, generate rows, are nondeterministic or read the clock.

Names are lower case. The list of functions is read from Spark's own registry (`SPARKS`). A name in
none of the sets is a function of one row; a name that Spark itself does not know (a user's
function) is opaque.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets._paths import SPARK_FUNCTIONS
from persist_assets.core.spark_versions import KNOWN_SPARKS, spark_in_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AGGREGATES = frozenset(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg
    bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set collect_union
    corr count count_if count_min_sketch covar_pop covar_samp every first first_value
    histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
    kurtosis last last_value listagg max max_by mean measure median min min_by mode percentile
    percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness
    some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance vector_avg
    vector_sum
    """.split()
)

ORDER_SENSITIVE = frozenset(
    """
    any_value approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine array_agg
    collect_list collect_set collect_union first first_value histogram_numeric hll_sketch_agg
    hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float last last_value listagg max_by
    min_by mode percentile_approx string_agg
    """.split()
)
"""Aggregates whose result may depend on the order of the rows."""

TIE_SENSITIVE = frozenset(("row_number", "ntile", "lag", "lead", "nth_value", "counter_diff"))
"""Window functions that depend on the order of rows that tie in the window's order."""

GENERATORS = frozenset(
    """
    explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple
    """.split()
)

TIME_WINDOWS = frozenset(("window", "session_window"))
"""Functions that drop or duplicate rows: they are allowed as grouping keys only."""

TABLE_FUNCTIONS = GENERATORS | {"range", "variant_explode", "variant_explode_outer"}

VOLATILE = frozenset(
    """
    aes_encrypt from_protobuf input_file_block_length input_file_block_start input_file_name
    java_method monotonically_increasing_id python_worker_logs rand randn random randstr reflect
    shuffle spark_partition_id to_protobuf try_reflect uniform uuid
    """.split()
)
"""Functions whose results vary: random numbers, placement of rows, the outside world."""

CLOCK = frozenset(
    """
    curdate current_date current_time current_timestamp localtime localtimestamp now
    unix_timestamp
    """.split()
)
"""Functions that read the clock, once per query (`unix_timestamp` only without arguments)."""

DAY_CLOCK = frozenset(("curdate", "current_date"))
"""Clock functions whose result changes once a day."""

SPECIAL_DATETIMES = ("now", "today", "tomorrow", "yesterday")
"""Prefixes of texts that read the clock when they are cast to a date or timestamp."""

SESSION = frozenset(
    """
    current_user session_user user version current_catalog current_database current_schema
    current_path
    """.split()
)
"""Functions of the session, not of the data."""

SYNONYMS = {
    "any": "bool_or",
    "any_value": "first",
    "some": "bool_or",
    "every": "bool_and",
    "approx_percentile": "percentile_approx",
    "array_agg": "collect_list",
    "cardinality": "size",
    "ceiling": "ceil",
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "curdate": "current_date",
    "date_diff": "datediff",
    "dateadd": "date_add",
    "datepart": "date_part",
    "day": "dayofmonth",
    "first_value": "first",
    "getbit": "bit_get",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "last_value": "last",
    "lcase": "lower",
    "ucase": "upper",
    "mean": "avg",
    "now": "current_timestamp",
    "pow": "power",
    "printf": "format_string",
    "random": "rand",
    "reduce": "aggregate",
    "regexp": "rlike",
    "regexp_like": "rlike",
    "sha": "sha1",
    "sign": "signum",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "string_agg": "listagg",
    "to_varchar": "to_char",
}
"""Names that Spark registers for the same expression."""

MISSING = "-"
"""Stands for the numbers of arguments of a function that a version of Spark lacks."""


def functions_of(spark: str, text: str) -> dict[str, tuple[str, str]]:
    r"""Return the functions of a version of Spark: kinds, and numbers of arguments as text.

    Parameters
    ----------
    text
        Lines of a name, a kind and the numbers in the newest Spark, `*` for any number; then, for
        each older version that differs, the version with its numbers, or with `-`.

    Examples
    --------
    >>> text = "hmac scalar 2,3 4.1:-\ninstr scalar 2,3,4 4.1:2\n"
    >>> functions_of("4.1", text), functions_of("4.3", text)["instr"]
    ({'instr': ('scalar', '2')}, ('scalar', '2,3,4'))
    """
    functions: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        name, kind, counts, *older = line.split()
        counts = dict(part.split(":") for part in older).get(spark, counts)
        if counts != MISSING:
            functions[name] = (kind, counts)
    return functions


_TEXT = SPARK_FUNCTIONS.read_text(encoding="utf-8")
_IN_USE = functions_of(spark_in_use(), _TEXT)

SPARKS: Mapping[str, str] = {name: kind for name, (kind, _) in _IN_USE.items()}
"""Functions of the Spark in use, each with its kind; written by `scripts/spark_functions.py`."""

ARGUMENTS: Mapping[str, frozenset[int]] = {
    name: frozenset(map(int, counts.split(",")))
    for name, (_, counts) in _IN_USE.items()
    if counts != "*"
}
"""The numbers of arguments that functions of the Spark in use take; others take any number."""


def since(name: str, n_arguments: int | None = None) -> str | None:
    """Return the first known Spark with a function that takes this many arguments, or None."""
    for spark in KNOWN_SPARKS:
        _, counts = functions_of(spark, _TEXT).get(name, ("", None))
        if counts and (n_arguments is None or {"*", str(n_arguments)} & {*counts.split(",")}):
            return spark
    return None


_OPERATORS = frozenset("and between case cast in not or when".split())

KNOWN = frozenset(
    {name for name, kind in SPARKS.items() if kind != "table"} - _OPERATORS
    | {"timediff", "timestampadd", "timestampdiff"}
    | VOLATILE
)
"""Functions of known properties; the three literal names exist in Spark's grammar only."""

UNIT_FIRST = frozenset(
    ("date_add", "dateadd", "date_diff", "datediff", "timediff", "timestampadd", "timestampdiff")
)
"""Functions whose first of three arguments is a unit, not a column: ``dateadd(day, 1, ts)``."""

COMMUTATIVE = frozenset(("=", "<>", "<=>", "+", "*", "and", "or", "&", "|", "^"))
"""Operators with the same result and result type for any order of their operands."""

INTEGRAL = ("tinyint", "smallint", "int", "bigint")


# ----------------------------------------------------------------------------------- of Python

_PYTHON_CLOCK = re.compile(
    r"(?:datetime\.)?(?:datetime|date)\.(?:now|utcnow|today)"
    r"|(?:pandas\.)?Timestamp\.(?:now|utcnow|today)"
    r"|time\.(?:time|time_ns|localtime|gmtime|ctime|strftime|asctime)"
    r"|(?:pendulum|arrow)\.(?:now|utcnow|today|get)"
)
_PYTHON_LOTS = re.compile(
    r"(?:random|secrets|tempfile|numpy\.random)\..*|uuid\.uuid[14678]|hash|id|sys\.argv.*"
    r"|os\.(?:urandom|getpid|getppid|cpu_count|environ|getenv).*|threading\.get_\w*ident"
    r"|time\.(?:perf_counter|monotonic|process_time|thread_time)(?:_ns)?|platform\..*"
    r"|socket\.gethostname"
)
_LOTS_OF_FRAMES = frozenset(
    """
    sample sampleBy randomSplit limit head take tail first dropDuplicates drop_duplicates
    dropDuplicatesWithinWatermark shuffle offset
    """.split()
)
"""Methods of frames that pick rows in no defined order."""
_CALLS_OF_SPARK = re.compile(r"pyspark\.sql\.(?:connect\.)?functions(?:\.builtin)?\.(\w+)")
_TIME_OF_DAY = re.compile(r"[\x00-\x20]*(?:T\d|\d{1,2}:)")


def is_special_datetime_text(text: str) -> bool:
    """Whether Spark reads the clock to cast a text: it is a clock word, or a time without a day.

    Examples
    --------
    >>> is_special_datetime_text(" Today"), is_special_datetime_text("00:01:52")
    (True, True)
    >>> is_special_datetime_text("2024-01-10 00:01:52")
    False
    """
    return text.strip().lower().startswith(SPECIAL_DATETIMES) or bool(_TIME_OF_DAY.match(text))


def drawn_by(
    names: Iterable[str], methods: Iterable[str], calls: Iterable[str]
) -> tuple[set[str], set[str], set[str]]:
    """Return the nondeterministic names in Python code, those that read the day, and the instant.

    Parameters
    ----------
    names
        Dotted names from libraries.
    methods
        Names of methods of any object.
    calls
        Functions called in its texts, which may be SQL; lower case.
    """
    lots, days, instants = set[str](), set[str](), set[str]()
    sparks = {name: m[1].lower() for name in names if (m := _CALLS_OF_SPARK.fullmatch(name))}
    for name in names:
        if name in sparks:
            continue
        if _PYTHON_CLOCK.fullmatch(name):
            instants.add(name)
        elif _PYTHON_LOTS.fullmatch(name):
            lots.add(name)
    for function in {*sparks.values(), *calls}:
        if function in VOLATILE | SESSION:
            lots.add(function)
        elif function in DAY_CLOCK:
            days.add(function)
        elif function in CLOCK:
            instants.add(function)
    lots |= _LOTS_OF_FRAMES.intersection(methods)
    instants |= {"now", "utcnow", "today"}.intersection(methods) if not instants else set[str]()
    return lots, days, instants


PYTHON = re.compile(r"(\w+)__py[0-9a-f]{16}")
"""The names in inlined queries of the functions that a project defines in Python."""


def python_function(text: str) -> str | None:
    """Return a function of Python that an inlined query calls, by its name in files, or None.

    Examples
    --------
    >>> python_function("SELECT 1 + net__py0123456789abcdef(x)")
    'net'
    """
    match = PYTHON.search(text)
    return match[1] if match else None
