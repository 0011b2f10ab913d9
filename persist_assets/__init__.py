"""Persistent sources for Dagster on Spark.

`load_sources` turns a directory of annotated queries into Dagster assets; see the README.
Importing this package is cheap: Dagster, Spark and Delta are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist_assets.plugin.assets import load_sources
    from persist_assets.plugin.translator import AssetTranslator

__all__ = ["AssetTranslator", "load_sources"]

__version__ = "0.1.0"

_HOMES = {
    "AssetTranslator": "persist_assets.plugin.translator",
    "load_sources": "persist_assets.plugin.assets",
}


def __getattr__(name: str) -> Any:
    """Import a name of the package's face when it is first used."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
