"""Forbidden effects of source functions: writing, changing the session, reading other inputs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import (
    UNSEEN,
    Module,
    chain_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.core.errors import Location, Severity


EFFECTS: Mapping[str, tuple[str, Severity, str, str]] = {
    "write": (
        "python-writes",
        "warning",
        "{name} writes data itself each time it is computed",
        "return the rows instead: persist writes them for you",
    ),
    "read": (
        "python-reads",
        "warning",
        "{name} reads data that persist does not track: changes to it cause no rebuild",
        "read it in a function with @source, and take that as a parameter",
    ),
    "unseen": (
        "python-unseen",
        "warning",
        "persist cannot see the code that {name} runs here: changes to it cause no rebuild",
        "import by name: import …, from … import …",
    ),
    "name": (
        "python-session",
        "warning",
        "{name} creates a name in the session, which all functions share",
        "pass frames as values: spark.sql('… {x}', x=frame)",
    ),
    "conf": (
        "python-session",
        "error",
        "{name} changes a session setting, which affects other sources",
        'set it for all sources: [spark] "…" = "…" in persist.toml',
    ),
}
"""Effects of functions that persist cannot follow, each with its message and hint."""


def effects_of(root: ast.AST, module: Module) -> Iterator[tuple[str, Location]]:
    """Yield the effects of a piece of code besides returning rows, with their locations."""
    for node in _nodes(root, module):
        dotted = _dotted(node, module)
        effect = _session_change(node)
        if not effect and _is_write(node, dotted):
            effect = "write"
        elif not effect and _is_read(node, dotted):
            effect = "read"
        elif not effect and dotted and (dotted[0] in UNSEEN or dotted[-1] in UNSEEN):
            effect = "unseen"
        if effect:
            yield effect, module.place(node)


_CALLED = re.compile(
    r"\b[a-z_]\w*(?=\s*\()|\b(?:current_(?:date|time|timestamp|user|path)|localtime|session_user)\b"
)


_CLOCK_WORD = re.compile(r"'\s*(now|today|tomorrow|yesterday)\b")


def call_of(text: str) -> Iterator[str]:
    """Yield the functions that a text calls, if it is SQL.

    Clock words count as calls: Spark reads the clock where it casts them to times.

    Examples
    --------
    >>> [*call_of("day >= 'today' - INTERVAL 1 DAY AND abs(n) > 1")]
    ['abs', 'current_date']
    """
    text = text.lower()
    yield from _CALLED.findall(text)
    for word in _CLOCK_WORD.findall(text):
        yield "now" if word == "now" else "current_date"


def _nodes(root: ast.AST, module: Module) -> Iterator[ast.AST]:
    """Yield the nodes of a piece of code that are executed, except our decorators."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.expr) and module.ours(child)):
                stack.append(child)


def _dotted(node: ast.AST, module: Module) -> tuple[str, ...]:
    """Return the full name of an object of a library, or of a builtin, or nothing."""
    called = node.func if isinstance(node, ast.Call) else node
    chain = chain_of(called)
    if not chain or chain[0] in module.bindings:
        return ()
    imports = module.imports.get(chain[0])
    return (*imports[0].dotted, *chain[1:]) if imports else chain


_WRITING = frozenset(
    """
    saveAsTable insertInto writeTo writeStream write_text write_bytes to_csv to_parquet to_json
    to_excel to_sql to_feather to_pickle to_orc write_csv write_parquet write_delta sink_parquet
    write_deltalake
    """.split()
)

_CHANGING = re.compile(
    r"\s*(insert|create|drop|alter|merge|delete|update|truncate|replace)\s", re.IGNORECASE
)

_REMOVING = frozenset(
    ("os", n) for n in "remove unlink rename replace mkdir makedirs rmdir removedirs".split()
) | frozenset(("shutil", n) for n in "rmtree copy copy2 copyfile copytree move".split())


_OPENING = frozenset(
    (("open",), *((m, "open") for m in "bz2 codecs gzip io lzma os tarfile".split()))
)
"""Functions that open a file."""


def _is_write(node: ast.AST, dotted: tuple[str, ...]) -> bool:
    """Whether a call writes something, as far as its text shows."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "write":
            return True
        return node.attr in ("writeTo", "writeStream")
    if not isinstance(node, ast.Call):
        return False
    if dotted in _REMOVING:
        return True
    if dotted == ("open",) or (isinstance(node.func, ast.Attribute) and node.func.attr == "open"):
        # A function gets a path first, and the method of a path the mode.
        positional = node.args[1:2] if dotted in _OPENING else node.args[:2]
        modes = [*positional, *(k.value for k in node.keywords)]
        return any(
            isinstance(m, ast.Constant) and re.fullmatch(r"(?=.*[wax+])[rwaxbt+]+", str(m.value))
            for m in modes
        )
    if not isinstance(node.func, ast.Attribute):
        return False
    name, first = node.func.attr, node.args[0] if node.args else None
    if name == "sql" and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return _CHANGING.match(first.value) is not None
    # Without a place to write to, they return a text.
    return name in _WRITING and bool(node.args or node.keywords or name == "insertInto")


_NAMING = frozenset(
    """
    createTempView createOrReplaceTempView createGlobalTempView createOrReplaceGlobalTempView
    registerTempTable
    """.split()
)


def _session_change(node: ast.AST) -> str:
    """Return the part of the session that is changed: ``conf``, a ``name``, or nothing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    name, of = node.func.attr, node.func.value
    if isinstance(of, ast.Attribute) and (of.attr, name) in (("conf", "set"), ("conf", "unset")):
        return "conf"
    if name == "sql" and node.args and _SETTING.match(_first_text(node.args[0])):
        return "conf"
    registers = isinstance(of, ast.Attribute) and (of.attr, name) == ("udf", "register")
    return "name" if name in _NAMING or registers else ""


_SETTING = re.compile(r"\s*(set|reset|use|declare)\b", re.IGNORECASE)


def _first_text(node: ast.expr) -> str:
    """Return the constant text with which an expression begins; empty if there is none."""
    if isinstance(node, ast.BinOp):
        return _first_text(node.left)
    if isinstance(node, ast.JoinedStr) and node.values:
        return _first_text(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


_FROM = re.compile(r"\b(?:from|join)\s+[\w`]", re.IGNORECASE)

_READING = re.compile(
    r"(?:pandas|polars|narwhals|geopandas|pyreadstat|xarray)\.(?:read|scan|open)_\w+"
    r"|numpy\.(?:load\w*|fromfile|genfromtxt|memmap)|(?:joblib|torch|pickle)\.load"
    r"|pyarrow\.(?:csv|json|feather|orc|parquet|dataset|fs)\.\w+|deltalake\.DeltaTable"
    r"|(?:requests|httpx|aiohttp|boto3|fsspec|s3fs|gcsfs|socket|urllib\.request)\.\w+"
    r"|sqlite3\.connect|psycopg2?\.connect|sqlalchemy\.create_engine|duckdb\.\w+|subprocess\.\w+"
    r"|(?:io|os|codecs|gzip|bz2|lzma|tarfile)\.open|zipfile\.ZipFile|openpyxl\.load_workbook"
    r"|os\.(?:environ|getenv|listdir|scandir|walk|stat)(?:\.\w+)?|glob\.\w+"
    r"|os\.path\.(?:exists|getmtime|getsize|isdir|isfile)|importlib\.resources\.\w+"
)
"""Functions of libraries that read files, databases, networks or the environment."""

_READING_METHODS = frozenset("open read_text read_bytes iterdir rglob".split())
"""Methods of paths, and of file systems, that read."""


def _is_read(node: ast.AST, dotted: tuple[str, ...]) -> bool:
    """Whether a call reads something besides the parameters, as far as its text shows."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
        return node.value.attr in ("read", "readStream") or dotted[:2] == ("os", "environ")
    if isinstance(node, ast.Call):
        if dotted == ("open",):
            return True
        if isinstance(node.func, ast.Attribute):
            first = node.args[0] if node.args else None
            text = first.value if isinstance(first, ast.Constant) else None
            if node.func.attr in _READING_METHODS:
                return True
            if isinstance(text, str) and node.func.attr == "table":
                return True
            if isinstance(text, str) and node.func.attr == "sql" and _FROM.search(text):
                return True
        return bool(_READING.fullmatch(".".join(dotted)))
    return isinstance(node, ast.Subscript) and chain_of(node.value)[-2:] == ("os", "environ")
