"""Templates of pages: everything is escaped, and a missing value is an error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from persist_assets._paths import WEB

if TYPE_CHECKING:
    from pathlib import Path

STYLE = WEB / "static" / "style.css"


def templates(*directories: Path) -> Environment:
    """Return the templates of some directories, followed by those that all pages share."""
    environment = Environment(
        loader=FileSystemLoader([*directories, WEB / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["when"] = _when
    return environment


def _when(instant: str | datetime | None) -> Markup:
    """Return an instant as HTML."""
    if instant is None:
        return Markup()
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    at = at.astimezone(UTC)
    shown = at.strftime("%Y-%m-%d %H:%M:%SZ")
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), shown)
