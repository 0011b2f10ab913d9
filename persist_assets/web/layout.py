"""Templates of pages: texts are escaped, without passwords, and a missing value is an error."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from persist_assets._paths import VENDORED, WEB
from persist_assets.storage.raw import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SHEETS = (VENDORED / "pico.min.css", VENDORED / "uPlot.min.css", WEB / "static" / "style.css")


def style(sheets: Sequence[Path] = SHEETS) -> str:
    """Return the style sheet of all pages; without the vendored sheets, it is our own only."""
    return read_present(sheets)


def read_present(files: Iterable[Path]) -> str:
    """Return the texts of the files that exist, one after the other."""
    texts: list[str] = []
    for path in files:
        with suppress(FileNotFoundError):
            texts.append(path.read_text(encoding="utf-8"))
    return "\n".join(texts)


def templates(*directories: Path) -> Environment:
    """Return the templates of some directories, followed by those that all pages share."""
    environment = Environment(
        loader=FileSystemLoader([*directories, WEB / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_public,
    )
    environment.filters["when"] = _when
    environment.filters["seconds"] = _duration
    return environment


def _public(value: Any) -> Any:
    """Return a value as pages show it: errors and code may quote addresses with passwords."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return without_secrets(value) if is_text else value


def _when(instant: str | datetime | None) -> Markup:
    """Return an instant as HTML; the browser shows it in the reader's time zone."""
    if instant is None:
        return Markup()
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    at = at.astimezone(UTC)
    shown = at.strftime("%Y-%m-%d %H:%M:%SZ")
    return Markup(f'<time datetime="{at.isoformat()}">{shown}</time>')


def _duration(seconds: float | None) -> str:
    """Return a duration in the two largest units that matter.

    Examples
    --------
    >>> [_duration(s) for s in (0.25, 61, 3725, 200_000, None)]
    ['0.2 s', '1 min 1 s', '1 h 2 min', '2 d 7 h', '']
    """
    if seconds is None:
        return ""
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    whole = round(abs(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    at = next(n for n, (_, size) in enumerate(units) if whole >= size)
    (large, size), (small, smaller) = units[at], units[at + 1]
    rest = whole % size // smaller
    text = f"{whole // size} {large}{f' {rest} {small}' if rest else ''}"
    return f"-{text}" if seconds < 0 else text
