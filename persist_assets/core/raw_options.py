"""The options of formats of raw tables. Pure.

Spark ignores unknown options, so `haeder true` has no effect. The invariant: for a format that is
listed here, only options that Spark uses are accepted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.core.errors import did_you_mean
from persist_assets.core.spark_versions import is_in_use, only_since, spark_in_use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.columns import Column

OF_LISTINGS = (
    "archivePathFilter",
    "ignoreCorruptFiles",
    "ignoreInvalidPartitionPaths",
    "ignoreMissingFiles",
    "modifiedAfter",
    "modifiedBefore",
    "pathGlobFilter",
    "recursiveFileLookup",
)
"""The options of all formats of files: which files are read, and which are skipped."""

_TEXTS = (
    "charset",
    "columnNameOfCorruptRecord",
    "compression",
    "dateFormat",
    "encoding",
    "lineSep",
    "locale",
    "mode",
    "multiLine",
    "samplingRatio",
    "singleVariantColumn",
    "timeFormat",
    "timeZone",
    "timestampFormat",
    "timestampNTZFormat",
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "parquet": (*OF_LISTINGS, "datetimeRebaseMode", "int96RebaseMode", "mergeSchema"),
    "orc": (*OF_LISTINGS, "mergeSchema"),
    "text": (*OF_LISTINGS, "compression", "encoding", "lineSep", "wholetext"),
    "delta": (),
    "catalog": ("table",),
    "csv": (
        *OF_LISTINGS,
        *_TEXTS,
        "charToEscapeQuoteEscaping",
        "codec",
        "columnPruning",
        "comment",
        "delimiter",
        "emptyValue",
        "enableDateTimeParsingFallback",
        "enforceSchema",
        "escape",
        "extension",
        "header",
        "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace",
        "inferSchema",
        "inputBufferSize",
        "maxCharsPerColumn",
        "maxColumns",
        "nanValue",
        "negativeInf",
        "nullValue",
        "positiveInf",
        "preferDate",
        "quote",
        "sep",
        "unescapedQuoteHandling",
    ),
    "json": (
        *OF_LISTINGS,
        *_TEXTS,
        "allowBackslashEscapingAnyCharacter",
        "allowComments",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        "dropFieldIfAllNull",
        "enableDateTimeParsingFallback",
        "inferTimestamp",
        "maxNestingDepth",
        "maxNumLen",
        "maxStringLen",
        "prefersDecimal",
        "primitivesAsString",
        "useUnsafeRow",
    ),
    "xml": (
        *OF_LISTINGS,
        *_TEXTS,
        "attributePrefix",
        "excludeAttribute",
        "ignoreNamespace",
        "ignoreSurroundingSpaces",
        "inferSchema",
        "nullValue",
        "preferDate",
        "prefersDecimal",
        "rootTag",
        "rowTag",
        "rowValidationXSDPath",
        "useLegacyXMLParser",
        "valueTag",
        "wildcardColName",
    ),
    "avro": (
        *OF_LISTINGS,
        "avroSchema",
        "avroSchemaUrl",
        "datetimeRebaseMode",
        "enableStableIdentifiersForUnionType",
        "ignoreExtension",
        "mode",
        "positionalFieldMatching",
        "recursiveFieldMaxDepth",
        "stableIdentifierPrefixForUnionType",
    ),
    "iceberg": (
        "as-of-timestamp",
        "batch-size",
        "branch",
        "end-snapshot-id",
        "end-timestamp",
        "file-open-cost",
        "locality",
        "lookback",
        "snapshot-id",
        "split-size",
        "start-snapshot-id",
        "start-timestamp",
        "tag",
        "vectorization-enabled",
        "versionAsOf",
        "timestampAsOf",
    ),
}
"""The read options of each format in Spark 4.3, from its classes of options."""

_SINCE = {
    "archivepathfilter": "4.3",
    "prefertimestampnanos": "4.3",
    "timeformat": "4.2",
}
"""The options that older supported versions of Spark ignore, in lower case."""

_UNSUPPORTED = {
    "ignoredpathsegmentregex": "names that begin with `_` or `.` are ignored; leave out"
    " other files with `pathGlobFilter`",
}
"""Options of Spark that tables cannot have here, with hints."""

_JDBC = (
    "connectionProvider",
    "customSchema",
    "dbtable",
    "driver",
    "fetchsize",
    "hint",
    "isolationLevel",
    "keytab",
    "lowerBound",
    "numPartitions",
    "partitionColumn",
    "password",
    "preferTimestampNTZ",
    "preferTimestampNanos",
    "prepareQuery",
    "principal",
    "pushDownAggregate",
    "pushDownJoin",
    "pushDownLimit",
    "pushDownOffset",
    "pushDownPredicate",
    "pushDownTableSample",
    "query",
    "queryTimeout",
    "refreshKrb5Config",
    "sessionInitStatement",
    "upperBound",
    "url",
    "user",
)
"""Spark's own options; others are for the driver, but misspellings of these are refused."""

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
PARSED = ("csv", "json", "xml")
"""Formats whose records may be malformed."""
CORRUPT = "columnnameofcorruptrecord"


def corrupt_column(options: Mapping[str, str]) -> str:
    """Return the name of the column for bad records, if it is declared."""
    return options.get(CORRUPT, "_corrupt_record")


def read_mode(options: Mapping[str, str], columns: Sequence[Column]) -> str:
    """Return Spark's mode for bad records: an error, unless declared otherwise.

    Examples
    --------
    >>> from persist_assets.core.model.columns import Column
    >>> read_mode({}, [Column("a", "int")]), read_mode({}, [Column("_corrupt_record", "string")])
    ('FAILFAST', 'PERMISSIVE')
    """
    keeps = corrupt_column(options).lower() in {c.name.lower() for c in columns}
    return options.get("mode", "PERMISSIVE" if keeps else "FAILFAST").upper()


_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})+")
"""The name of a table in a catalog. One without a schema could mean a view of the session."""


def wrong_option(
    form: str, options: Mapping[str, str], columns: Sequence[Column]
) -> tuple[str, str | None] | None:
    """Return the problem with the options of a raw table, and a hint; None if they are correct.

    Parameters
    ----------
    form
        The format, in lower case.
    options
        The options, with lower-case names.
    columns
        The declared columns.

    Examples
    --------
    >>> wrong_option("csv", {"haeder": "true"}, [])
    ('csv has no option `haeder`', 'did you mean `header`?')
    """
    known_options = OPTIONS.get(form)
    for name in sorted(options):
        if known_options and name in _UNSUPPORTED:
            return f"the option `{name}` is not supported", _UNSUPPORTED[name]
        since = _SINCE.get(name)
        if since is not None and (known_options or form == "jdbc") and not is_in_use(since):
            return f"{form} has no option `{name}` in Spark {spark_in_use()}", only_since(since)
        if form == "jdbc" and name not in {k.lower() for k in _JDBC}:
            hint = did_you_mean(name, _JDBC)
            if hint is not None:
                return f"jdbc has no option `{name}`", hint
        elif known_options and "." in name:
            pass  # of Hadoop or the format's library, which get all options: fs.s3a.endpoint
        elif known_options is not None and name not in {k.lower() for k in known_options}:
            hint = (
                did_you_mean(name, known_options)
                or f"known options: {', '.join(sorted(known_options))}"
            )
            return f"{form} has no option `{name}`", hint
    if form == "csv" and options.get("header", "true").lower() not in ("true", "false"):
        return "`header` must be true or false", None
    for name in ("quote", "escape", "comment") if form == "csv" else ():
        if len(options.get(name, "")) > 1:
            return f"`{name}` must be one character", None
    if form == "catalog" and not _TABLE.fullmatch(options.get("table", "")):
        return (
            "catalog needs the name of a table, with its schema",
            "OPTIONS (table 'sales.orders')",
        )
    return _wrong_mode(options, columns) if form in PARSED else None


def _wrong_mode(
    options: Mapping[str, str], columns: Sequence[Column]
) -> tuple[str, str | None] | None:
    mode, name = read_mode(options, columns), corrupt_column(options)
    if mode not in MODES:
        hint = did_you_mean(mode, MODES) or f"known modes: {', '.join(MODES)}"
        return f"unknown mode `{options['mode']}`", hint
    column = next((c for c in columns if c.name.lower() == name.lower()), None)
    if column is not None and (column.type or "").lower() != "string":
        return f"`{name}` keeps bad records, so it must be a STRING column", f"{name} STRING"
    if column is None and columns and (mode == "PERMISSIVE" or CORRUPT in options):
        return (
            f"bad records would become NULLs: no column `{name}` keeps them",
            f"declare `{name} STRING`, or remove `mode` to make bad records an error",
        )
    return None
