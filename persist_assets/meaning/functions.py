"""What is known of Spark's functions: which aggregate, generate, draw lots or read the clock.

Names are lower case. The sets were read from Spark 4.3's own function registry. A name in none
of them is a function of one row; one that Spark itself does not know (a user's) is opaque.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance
    """.split()
)

ORDER_SENSITIVE = frozenset(
    """
    any_value approx_percentile approx_top_k approx_top_k_accumulate array_agg collect_list
    collect_set first first_value histogram_numeric last last_value listagg max_by min_by mode
    percentile_approx string_agg
    """.split()
)
"""Aggregates whose result may depend on the order in which they see the rows."""

TIE_SENSITIVE = frozenset(("row_number", "ntile", "lag", "lead", "nth_value"))
"""Window functions that look at the order of the rows where their own order has ties."""

GENERATORS = frozenset(
    """
    explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple
    """.split()
)

TABLE_FUNCTIONS = GENERATORS | {"range"}

VOLATILE = frozenset(
    """
    aes_encrypt input_file_block_length input_file_block_start input_file_name java_method
    monotonically_increasing_id python_worker_logs rand randn random randstr reflect shuffle
    spark_partition_id try_reflect uniform uuid
    """.split()
)
"""Functions that answer differently each time: lots, placement of rows, the outside world."""

CLOCK = frozenset(
    """
    curdate current_date current_time current_timestamp localtime localtimestamp now
    unix_timestamp
    """.split()
)
"""Functions that read the clock, the same within one query (`unix_timestamp` without arguments)."""

DAY_CLOCK = frozenset(("curdate", "current_date"))
"""Those that answer the same all day long."""

SPECIAL_DATETIMES = ("now", "today", "tomorrow", "yesterday")
"""What texts begin with that read the clock where they are cast to a date or timestamp."""

SESSION = frozenset(
    """
    current_user session_user user version current_catalog current_database current_schema
    current_path
    """.split()
)
"""Functions that answer for the session, not for the data."""

SYNONYMS = {
    "any": "bool_or",
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
"""Names that Spark registers for one and the same expression."""

SCALARS = frozenset(
    """
    abs acos acosh add_months aes_decrypt aggregate array array_append array_compact
    array_contains array_distinct array_except array_insert array_intersect array_join array_max
    array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh base64
    bigint bin binary bit_count bit_get bit_length bitmap_bit_position bitmap_bucket_number
    bitmap_count boolean bround btrim cardinality cbrt ceil ceiling char char_length
    character_length chr coalesce collate collation concat concat_ws contains conv
    convert_timezone cos cosh cot crc32 csc cume_dist current_timezone date date_add date_diff
    date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day
    dayname dayofmonth dayofweek dayofyear decimal decode degrees dense_rank div double e
    element_at elt encode endswith equal_null exists exp expm1 extract factorial filter
    find_in_set flatten float floor forall format_number format_string from_csv from_json
    from_unixtime from_utc_timestamp from_xml get get_json_object getbit greatest grouping
    grouping_id hash hex hll_sketch_estimate hll_union hmac hour hypot if ifnull ilike initcap
    instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
    jaro_winkler_similarity json_array_length json_object_keys lag last_day lcase lead least
    left len length levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check
    make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key
    map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    mask md5 minute mod month monthname months_between named_struct nanvl negative next_day
    nth_value ntile nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url
    percent_rank pi pmod position positive pow power printf quarter quote radians raise_error
    rank reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
    regexp_replace regexp_substr repeat replace reverse right rint rlike round row_number rpad
    rtrim schema_of_csv schema_of_json schema_of_variant schema_of_xml sec second sentences
    sequence session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum
    sin sinh size slice smallint sort_array soundex space split split_part sqrt startswith
    str_to_map string struct substr substring substring_index tan tanh time time_bucket
    time_diff time_trunc timestamp timestamp_micros timestamp_millis timestamp_nanos
    timestamp_seconds timestampadd timestampdiff tinyint to_binary to_char to_csv to_date
    to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
    to_utc_timestamp to_varchar to_variant_object to_xml transform transform_keys
    transform_values translate trim trunc try_add try_aes_decrypt try_divide try_element_at
    try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod
    try_multiply try_parse_json try_parse_url try_subtract try_to_binary try_to_date
    try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8 try_variant_get
    typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos unix_seconds upper
    url_decode url_encode validate_utf8 variant_get weekday weekofyear width_bucket window
    window_time xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
    xpath_short xpath_string xxhash64 year zeroifnull zip_with
    """.split()
)

KNOWN = SCALARS | AGGREGATES | GENERATORS | VOLATILE | CLOCK | SESSION
"""Every function whose nature is known here."""

UNIT_FIRST = frozenset(
    ("date_add", "dateadd", "date_diff", "datediff", "timestampadd", "timestampdiff")
)
"""Functions whose first of three arguments is a unit, not a column: ``dateadd(day, 1, ts)``."""

COMMUTATIVE = frozenset(("=", "<>", "<=>", "+", "*", "and", "or", "&", "|", "^"))
"""Operators that give the same result, of the same type, with their operands in any order."""

INTEGRAL = ("tinyint", "smallint", "int", "bigint")


# ----------------------------------------------------------------------------------- of Python

_PYTHON_CLOCK = re.compile(
    r"(?:datetime\.)?(?:datetime|date)\.(?:now|utcnow|today)"
    r"|(?:pandas\.)?Timestamp\.(?:now|utcnow|today)"
    r"|time\.(?:time|time_ns|localtime|gmtime|ctime|strftime|asctime)"
    r"|(?:pendulum|arrow)\.(?:now|utcnow|today|get)"
)
_PYTHON_LOTS = re.compile(
    r"(?:random|secrets|numpy\.random)\..*|uuid\.uuid[14]|os\.(?:urandom|getpid|environ|getenv).*"
    r"|time\.(?:perf_counter|monotonic|process_time|thread_time)(?:_ns)?|platform\..*"
    r"|socket\.gethostname"
)
_LOTS_OF_FRAMES = frozenset(
    """
    sample sampleBy randomSplit limit head take tail first dropDuplicates drop_duplicates
    dropDuplicatesWithinWatermark shuffle offset
    """.split()
)
"""Methods of frames that take some rows, of no order that is known."""
_CALLS_OF_SPARK = re.compile(r"pyspark\.sql\.(?:connect\.)?functions(?:\.builtin)?\.(\w+)")


def is_special_datetime_text(text: str) -> bool:
    """Whether a text is one that Spark takes for a time by the clock where a time is wanted."""
    return text.strip().lower().startswith(SPECIAL_DATETIMES)


def drawn_by(
    names: Iterable[str], methods: Iterable[str], calls: Iterable[str]
) -> tuple[set[str], set[str], set[str]]:
    """Return what of Python code draws lots, what reads the day, and what reads the instant.

    Parameters
    ----------
    names
        Dotted names of what belongs to libraries.
    methods
        Names of methods of anything.
    calls
        Functions that are called in its texts, which may be SQL; lower case.
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
