"""Names of modules of Python, and the files of a project that may be them. Pure."""

from __future__ import annotations

import sys

PACKAGE = "persist_assets"
EXPORTS = (
    "AssetTranslator",
    "PersistedSourcesComponent",
    "incremental_filter",
    "incremental_table",
    "load_sources",
    "model",
    "rerun",
    "source",
    "table",
    "udf",
)
"""The names that this package offers to the code of users."""

ROOTS = ("", "src/")
"""The directories that modules of a project are imported from, relative to its root."""


def files_of(name: str) -> tuple[str, ...]:
    """Return the possible files of a module, by its dotted name, the likelier one first."""
    base = name.replace(".", "/")
    return tuple(f"{root}{base}{end}" for root in ROOTS for end in ("/__init__.py", ".py"))


def name_of(path: str) -> str:
    """Return the dotted name of the module that a file is.

    Examples
    --------
    >>> name_of("src/shop/prices.py"), name_of("sources/shop/__init__.py")
    ('shop.prices', 'sources.shop')
    """
    if path == "src/__init__.py":
        return "src"
    plain = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    return plain.replace("/", ".")


def is_foreign(name: str) -> bool:
    """Whether a module is never one of a project's, whatever files there are."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top in (PACKAGE, "pyspark")


def absolute(module: str, level: int, package: str) -> str | None:
    """Return the absolute name of a relative import in a package; None if it is invalid."""
    if not level:
        return module
    parts = package.split(".") if package else []
    if level - 1 > len(parts) or not parts:
        return None
    parts = parts[: len(parts) - level + 1]
    return ".".join([*parts, module] if module else parts) or None
