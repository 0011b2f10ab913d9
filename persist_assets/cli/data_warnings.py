"""Spark's warnings about the data that it reads, found in its log."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from persist_assets.core.settings.values import Settings

_READERS = (
    rb"CSV\w+|Univocity\w+|Jackson\w+|JSON\w+|Xml\w+|Parquet\w+|Orc\w+|Avro\w+"
    rb"|FailureSafeParser|FileScanRDD|\w*FileIndex|PartitioningUtils"
)
_DATA_WARNING = re.compile(
    rb"^\S+ \S+ WARN (?P<message>(?:" + _READERS + rb"): .*\n(?:(?!\S+ \S+ [A-Z]+ ).*\n)*)",
    re.MULTILINE,
)
"""A warning that Spark logs about the data that it reads, including its continuation lines."""
_MOST_WARNINGS = 5


def data_warnings(log: bytes) -> list[str]:
    r"""Return Spark's warnings in its log about the data that it read, each once and on one line.

    Examples
    --------
    >>> data_warnings(b"26/11/23 13:41:05 WARN CSVHeaderChecker: 2 columns\n Header: a\n")
    ['CSVHeaderChecker: 2 columns Header: a']
    """
    texts = (match["message"].decode(errors="replace") for match in _DATA_WARNING.finditer(log))
    return [*dict.fromkeys(" ".join(text.split()) for text in texts)]


@contextmanager
def showing_data_warnings(console: Console, name: str, settings: Settings) -> Generator[None]:
    """Print Spark's warnings about data within the block.

    Parameters
    ----------
    name
        The name of Spark's log below `.persist`.
    """
    from persist_assets.engine.server import SERVER_LOG, server_directory

    logs = [settings.state_dir / name]
    if settings.shared:
        logs.append(server_directory(settings) / SERVER_LOG)
    ends = [log.stat().st_size if log.exists() else 0 for log in logs]
    try:
        yield
    finally:
        for log, end in zip(logs, ends, strict=True):
            _show_data_warnings(console, log, end)


def _show_data_warnings(console: Console, log: Path, since: int) -> None:
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(since if log.stat().st_size >= since else 0)  # else it is another server
        warnings = data_warnings(file.read())
    for text in warnings[:_MOST_WARNINGS]:
        console.print(f"[yellow]warning[/]: Spark: {escape(text)}", soft_wrap=True)
    if len(warnings) > _MOST_WARNINGS:
        more = len(warnings) - _MOST_WARNINGS
        console.print(f"[yellow]warning[/]: {more} more in {log}", soft_wrap=True)
