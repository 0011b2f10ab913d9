"""The keys of `persist.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


SETTINGS_FILE = "persist.toml"
KEEP_GOING = "PERSIST_KEEP_GOING"
"""The environment variable that, when ``true``, lets what is right be built in spite of errors."""

CACHE = "PERSIST_CACHE"
"""The environment variable that names the user's cache directory (`user_cache`)."""

OUT_OF_PROJECT = "it leads outside the project"
"""The reason why a link among the sources is not followed."""

STATE = ".persist"
"""The directory in the project root of everything that no setting puts elsewhere."""

KEYS: Mapping[str, type] = {
    "sources": str,
    "key_prefix": str,
    "environment": str,
    "warehouse": str,
    "ledger": str,
    "timezone": str,
    "strict": bool,
    "parallel": int,
    "approve_above": int,
    "keep": str,
    "store_timeout": str,
    "store_retry": str,
    "views": str,
    "spark": dict,
    "malloy": dict,
    "store": dict,
    "upstream": dict,
    "sla": dict,
    "env": dict,
}
"""The keys of `persist.toml` and the kinds of their values."""

ENV_KEYS: Mapping[str, type] = {
    "reads": str,
    "raw": dict,
    "warehouse": str,
    "strict": bool,
    "parallel": int,
    "views": str,
    "spark": dict,
    "malloy": dict,
}
"""The keys of `[env.NAME]`; those that the project has too are said otherwise there."""

MALLOY_KEYS: Mapping[str, type] = {"connection": str, "givens": dict, "virtual": dict}
"""The keys of `[malloy]` and the kinds of their values."""

UPSTREAM_KEYS: Mapping[str, type] = {
    "url": str,
    "dagster": str,
    "patterns": list,
    "token_env": str,
    "environment": str,
}
"""The keys of `[upstream.NAME]` and the kinds of their values."""

SLA_KEYS: Mapping[str, type] = {"webhook": str}
"""The keys of `[sla]` and the kinds of their values."""

SPARK_KEYS: Mapping[str, type] = {
    "shared": bool,
    "shared_port": int,
    "shared_idle": str,
    "harmless": list,
    "build_ids": dict,
}
"""The keys of `[spark]` that are no settings of Spark, and the kinds of their values."""
