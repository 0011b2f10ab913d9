"""Persistent sources for Dagster on Spark.

`load_sources`, or `PersistedSourcesComponent` in a `defs.yaml`, turns a directory of annotated
queries into Dagster assets. `source`, `model`, `table` and `incremental_table` decorate Python
functions that are sources, `udf` functions that queries call; see docs/python.md.
Importing this package is cheap: Dagster, Spark and Delta are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist_assets.decorators import (
        incremental_filter,
        incremental_table,
        model,
        source,
        table,
        udf,
    )
    from persist_assets.plugin.assets import load_sources
    from persist_assets.plugin.component import PersistedSourcesComponent
    from persist_assets.plugin.runs import rerun
    from persist_assets.plugin.translator import AssetTranslator

__all__ = [
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
]

__version__ = "0.1.0"

_HOMES = {
    "AssetTranslator": "persist_assets.plugin.translator",
    "PersistedSourcesComponent": "persist_assets.plugin.component",
    "incremental_filter": "persist_assets.decorators",
    "incremental_table": "persist_assets.decorators",
    "load_sources": "persist_assets.plugin.assets",
    "model": "persist_assets.decorators",
    "rerun": "persist_assets.plugin.runs",
    "source": "persist_assets.decorators",
    "table": "persist_assets.decorators",
    "udf": "persist_assets.decorators",
}


def __getattr__(name: str) -> Any:
    """Import a public name of the package on first use."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names of the package; Dagster looks for components among them."""
    return [*__all__]
