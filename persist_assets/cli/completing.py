"""Shells complete the names of sources without importing the commands, which takes longer."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from persist_assets.cli.application import ProjectOption, app, source_names

OF_SOURCES = frozenset(
    "build compile explain follow lineage ls plan rerun show state test verify".split()
)
"""The commands whose arguments are sources."""


def typed(environ: Mapping[str, str]) -> list[str]:
    """Return the words that a shell completes, the last of them perhaps empty."""
    text = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS", "")
    return text.split() + [""] * text.endswith((" ", "\n"))


def with_sources_only(words: Sequence[str]) -> typer.Typer | None:
    """Return an application that completes the last word; None if that is not a source.

    It has only one of the commands, without its options.
    """
    name = next((word for word in words[:-1] if word in OF_SOURCES), None)
    if name is None or any(word.startswith("-") for word in words[-2:]):
        return None

    def complete(
        selection: Annotated[list[str] | None, typer.Argument(autocompletion=source_names)] = None,
        project: ProjectOption = None,
    ) -> None: ...

    app.command(name, context_settings={"ignore_unknown_options": True})(complete)
    return app
