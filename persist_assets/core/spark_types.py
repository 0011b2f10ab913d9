"""Names of Spark's types, as users write them and as `DataType.simpleString` does. Pure.

This is Spark's own grammar of types. sqlglot's takes names of other databases too (``UUID``,
``INT4``), and reads ``TIMESTAMP WITHOUT TIME ZONE`` as ``TIMESTAMP``.

The invariant: two types have one name only if they are the same type in Spark.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.core.errors import did_you_mean
from persist_assets.core.spark_versions import is_in_use, only_since, spark_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOSE = ("float", "double", "collate", "variant")
"""Types with such words have values that are equal and differ."""
_SIMPLE = {
    **{
        name: name
        for name in (
            *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"),
            *("date", "timestamp", "timestamp_ntz", "binary", "void", "variant"),
        )
    },
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
"""Types of one word, with Spark's names."""

_NAMES = (*_SIMPLE, "decimal", "char", "varchar", "time", "interval", "array", "map", "struct")

_ELSEWHERE = {
    **dict.fromkeys(("text", "uuid", "nvarchar", "nchar", "json", "jsonb", "enum"), "string"),
    **dict.fromkeys(("int4", "int32", "mediumint", "signed"), "int"),
    **dict.fromkeys(("int8", "int64", "serial", "bigserial", "unsigned"), "bigint"),
    **dict.fromkeys(("int2", "int16"), "smallint"),
    **dict.fromkeys(("datetime", "timestamptz", "datetime2"), "timestamp"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("float8", "float64"), "double"),
    **dict.fromkeys(("float4", "float32"), "float"),
    **dict.fromkeys(("number", "money", "bignumeric"), "decimal(38, 10)"),
    "bool": "boolean",
    "hugeint": "decimal(38, 0)",
    "null": "void",
}
"""Names of types of other databases, and what to write for Spark."""

_ANY = ["(", "any", ")"]
_INTERVALS = ("year", "month", "day", "hour", "minute", "second")
_MAX_DEPTH = 100


class UnknownTypeError(Exception):
    """A text is not a type of Spark.

    Attributes
    ----------
    at
        The index of the wrong word.
    message, hint
        The error, and what to write instead.
    """

    def __init__(self, at: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.at, self.message, self.hint = at, message, hint


def read_type(
    words: Sequence[str],
    at: int = 0,
    *,
    lengths: bool = True,
    bare_varchar: bool = False,
    depth: int = 0,
) -> tuple[str, int]:
    """Return Spark's name of the type that starts at a word, and the index after it.

    Parameters
    ----------
    words
        The words as written; each sign is a word, except ``<>``.
    lengths
        Whether ``CHAR(n)`` and ``VARCHAR(n)`` are types, as in a table; otherwise they are strings,
        as in a cast.
    bare_varchar
        Whether ``VARCHAR`` without a length is a string, as in Feldera's SQL.

    Raises
    ------
    UnknownTypeError
        Spark does not have this type.

    Examples
    --------
    >>> read_type(["TIMESTAMP", "WITHOUT", "TIME", "ZONE", ")"])
    ('timestamp_ntz', 4)
    >>> read_type(["VARCHAR", "(", "3", ")"]), read_type(["CHAR", "(", "3", ")"], lengths=False)
    (('varchar(3)', 4), ('string', 4))
    """
    word = _word(words, at)
    if depth > _MAX_DEPTH:
        raise UnknownTypeError(at, "the type is nested too deeply")
    if word in ("array", "map", "struct"):
        return _nested(word, words, at, lengths, bare_varchar, depth + 1)
    if word == "interval":
        return _interval(words, at + 1)
    sizes, end = _sizes(words, at + 1)
    match word, sizes:
        case (("decimal" | "dec" | "numeric"), _) if len(sizes) <= 2 and end != at + 3:
            digits, places = (*sizes, *(10, 0)[len(sizes) :])
            if places <= digits <= 38:
                return f"decimal({digits},{places})", end
        case (("char" | "character" | "varchar"), [size]):
            kind = "varchar" if word == "varchar" else "char"
            return (f"{kind}({size})" if lengths else "string"), end
        case "varchar", [] if bare_varchar:
            return "string", end
        case (("char" | "character" | "varchar"), []):
            raise UnknownTypeError(
                at, f"`{words[at]}` needs a length", "use string, or varchar(255)"
            )
        case "timestamp", []:
            return _timestamp(words, at, end)
        case (("timestamp" | "timestamp_ntz" | "timestamp_ltz"), [6]):
            if not is_in_use("4.3"):
                raise _too_new(at, f"{words[at]}(6)", "4.3")
            return _SIMPLE[word], end
        case "time", ([] | [_]):
            if [_word(words, end + i) for i in range(3)] == ["without", "time", "zone"]:
                end += 3
            return f"time({(*sizes, 6)[0]})", end
        case (("geometry" | "geography"), [size]):
            return f"{word}({size})", end
        case (("geometry" | "geography"), _) if [_word(words, at + i) for i in (1, 2, 3)] == _ANY:
            return f"{word}(any)", at + 4
        case "string", []:
            if _word(words, end) == "collate":
                return f"string collate {words[end + 1].upper()}", end + 2
            return word, end
        case _, [] if word in _SIMPLE and end == at + 1:
            return _SIMPLE[word], end
        case _:
            pass
    written = "".join(words[at:end]) or "nothing"
    raise UnknownTypeError(at, f"unknown type `{written}`", type_hint(word))


def _timestamp(words: Sequence[str], at: int, end: int) -> tuple[str, int]:
    zone = [_word(words, end + i) for i in range(4)]
    if zone[:3] == ["without", "time", "zone"]:
        return "timestamp_ntz", end + 3
    if zone == ["with", "local", "time", "zone"]:
        if not is_in_use("4.2"):
            raise _too_new(at, "TIMESTAMP WITH LOCAL TIME ZONE", "4.2")
        return "timestamp", end + 4
    if zone[:3] == ["with", "time", "zone"]:
        hint = "use timestamp, or timestamp_ntz for one without a time zone"
        raise UnknownTypeError(at, "unknown type `TIMESTAMP WITH TIME ZONE`", hint)
    return "timestamp", end


def _too_new(at: int, written: str, since: str) -> UnknownTypeError:
    return UnknownTypeError(
        at, f"Spark {spark_in_use()} has no type `{written}`", only_since(since)
    )


def parse_type(text: str, *, lengths: bool = True, bare_varchar: bool = False) -> str | None:
    """Return Spark's name of a type, or None if the text is not a type; see `read_type`.

    Examples
    --------
    >>> parse_type("STRUCT<a: INTEGER, `b c`: ARRAY<DEC(3)>>"), parse_type("bigintt")
    ('struct<a:int,`b c`:array<decimal(3,0)>>', None)
    """
    words = list(_words(text))
    try:
        name, end = read_type(words, lengths=lengths, bare_varchar=bare_varchar)
    except UnknownTypeError:
        return None
    return name if end == len(words) else None


def fields_of(struct: str) -> list[tuple[str, str]]:
    """Return the names and types of the fields of a struct.

    Examples
    --------
    >>> fields_of("struct<a:int,`b c`:array<string>>")
    [('a', 'int'), ('b c', 'array<string>')]
    """
    words = list(_words(struct))
    fields: list[tuple[str, str]] = []
    at = 1
    while at < len(words) - 1:
        kind, end = read_type(words, at + 3)
        fields.append((_unquoted(words[at + 1]), kind))
        at = end
    return fields


_QUOTED_OR_SIGN = re.compile(r"`(?:[^`]|``)*`|.")


def inner_types(kind: str | None, of: str) -> list[str]:
    """Return the types between the angle brackets of an array or a map, or nothing.

    Examples
    --------
    >>> inner_types("map<string,decimal(20,2)>", "map"), inner_types("int", "map")
    (['string', 'decimal(20,2)'], [])
    """
    if kind is None or not kind.startswith(f"{of}<"):
        return []
    parts, depth = [""], 0
    for word in _QUOTED_OR_SIGN.findall(kind[len(of) + 1 : -1]):
        depth += (word in "<(") - (word in ">)")
        if word == "," and not depth:
            parts.append("")
        else:
            parts[-1] += word
    return [part.strip() for part in parts]


def type_hint(text: str) -> str | None:
    """Return the type that was probably meant by an unknown one."""
    word = re.split(r"\W", text.strip().lower(), maxsplit=1)[0]
    return _ELSEWHERE.get(word) or did_you_mean(word, _NAMES)


def field_name(name: str) -> str:
    """Return the name of a struct's field as it appears in a type, quoted if necessary."""
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    return "`" + name.replace("`", "``") + "`"


_WORD = re.compile(r"`(?:[^`]|``)*`|\w+|\S")


def _words(text: str) -> Iterator[str]:
    yield from _WORD.findall(text)


def _word(words: Sequence[str], at: int) -> str:
    return words[at].lower() if at < len(words) else ""


def _unquoted(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word


def _sizes(words: Sequence[str], at: int) -> tuple[list[int], int]:
    """Return the numbers in parentheses after the name of a type, and the index after them."""
    sizes: list[int] = []
    if _word(words, at) != "(":
        return sizes, at
    end = at + 1
    while _word(words, end).isdecimal():
        sizes.append(int(words[end]))
        end += 1
        if _word(words, end) != ",":
            break
        end += 1
    return (sizes, end + 1) if _word(words, end) == ")" else ([-1, -1, -1], at)


def _interval(words: Sequence[str], at: int) -> tuple[str, int]:
    first = _word(words, at)
    if first not in _INTERVALS:
        return "interval", at
    if _word(words, at + 1) != "to":
        return f"interval {first}", at + 1
    last = _word(words, at + 2)
    months = ("year", "month")
    if (
        last not in _INTERVALS
        or _INTERVALS.index(last) <= _INTERVALS.index(first)
        or (first in months) != (last in months)
    ):
        written = f"INTERVAL {words[at]} TO {last.upper()}"
        raise UnknownTypeError(
            at, f"unknown type `{written}`", "for example, interval day to second"
        )
    return f"interval {first} to {last}", at + 3


def _nested(
    kind: str, words: Sequence[str], at: int, lengths: bool, bare_varchar: bool, depth: int
) -> tuple[str, int]:
    """Return the name of an array, a map or a struct, and the index after it."""
    if kind == "struct" and _word(words, at + 1) == "<>":
        return "struct<>", at + 2
    if _word(words, at + 1) != "<":
        example = {"array": "array<int>", "map": "map<string, int>"}.get(kind, "struct<a: int>")
        raise UnknownTypeError(
            at, f"`{words[at]}` needs the type of its elements", f"for example, {example}"
        )
    inner: list[str] = []
    end = at + 2
    while not (kind == "struct" and not inner and _word(words, end) == ">"):
        field = ""
        if kind == "struct":
            field = field_name(_unquoted(words[end])) + ":" if end < len(words) else ""
            end += 2 if _word(words, end + 1) == ":" else 1
        name, end = read_type(words, end, lengths=lengths, bare_varchar=bare_varchar, depth=depth)
        inner.append(field + name)
        if kind == "struct":
            end = _described(words, end)
        if _word(words, end) != ",":
            break
        end += 1
    counts = {"array": 1, "map": 2}
    if _word(words, end) != ">" or len(inner) != counts.get(kind, len(inner)):
        written = "".join(words[at : end + 1])
        raise UnknownTypeError(at, f"unknown type `{written}`")
    return f"{kind}<{','.join(inner)}>", end + 1


def _described(words: Sequence[str], at: int) -> int:
    """Return the index after the properties of a field that follow its type."""
    if [_word(words, at), _word(words, at + 1)] == ["not", "null"]:
        at += 2
    return at + 2 if _word(words, at) == "comment" else at


def is_loose(kind: str | None) -> bool:
    """Whether a type may have values that are equal and differ; None: the type is unknown."""
    return kind is None or any(word in kind.lower() for word in _LOOSE)
