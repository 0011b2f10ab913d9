"""`explain`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from persist_assets.cli.application import (
    Invocation,
    command,
    err,
    in_words,
    out,
    print_json,
    source_names,
    table_of,
)
from persist_assets.core.errors import LedgerError, NotFoundError
from persist_assets.core.model.sources import Source
from persist_assets.planning.selection import find_source


@command("explain")
def explain(
    invocation: Invocation,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="A source; or an asset key, `/` and the key of a partition.",
            autocompletion=source_names,
        ),
    ],
) -> None:
    """Explain how a source is kept up to date, how it was built, and what a build would do."""
    from persist_assets.operations.explain import explained, rules_of, unbuilt

    invocation.keep_going = True  # errors in other sources do not matter
    source, key = _named(invocation, ref)
    full = f"{source.key}/{key}" if key else source.key
    is_known = source.persisted and _has_ledger(invocation)
    rules = rules_of(invocation.project, source)
    if invocation.as_json:
        chain = explained(invocation.observer, full) if is_known else unbuilt(source, full)
        print_json({**chain, **rules})
        return
    if not key or not is_known:
        _print_rules(invocation, source, rules)
    if is_known:
        _print_origin(explained(invocation.observer, full))


def _named(invocation: Invocation, ref: str) -> tuple[Source, str]:
    """Return the source that a reference names, and the key of a partition of it, if any.

    Raises
    ------
    NotFoundError
        It names none, or raw data.
    """
    above = ref.rpartition("/")[0]
    with invocation.naming_errors(*filter(None, (ref, above))):
        named = invocation.project.find_named(ref)
        source, key = named or (find_source(invocation.project, ref), "")
    if source.raw is not None:
        readers = invocation.project.readers[source.source_id]
        names = ", ".join(invocation.project.by_id[r].name for r in readers)
        hint = f"explain a source that reads it: {names}" if names else None
        raise NotFoundError(f"`{source.name}` is raw data: no build computes it", hint=hint)
    return source, key


def _has_ledger(invocation: Invocation) -> bool:
    """Whether a ledger exists and responds; warns if it does not respond."""
    path = invocation.settings.ledger.removeprefix("sqlite:///")
    if path != invocation.settings.ledger and not Path(path).exists():
        return False
    try:
        return invocation.ledger.events.position() >= 0
    except LedgerError as error:
        message = f"builds are not shown, since the ledger does not answer: {error.message}"
        err.print(f"[yellow]warning[/]: {escape(message)}", soft_wrap=True)
        return False


# -------------------------------------------------------------------------------------------- rules


def _print_rules(invocation: Invocation, source: Source, rules: Mapping[str, Any]) -> None:
    out.print(f"[bold]{escape(source.key)}[/]  [dim]{source.location}[/]")
    how = f"refresh={rules['refresh']}: {rules['policy']}" if source.persisted else "not persisted"
    out.print(escape(how), soft_wrap=True)
    if rules["never"] is not None:
        out.print(f"[yellow]all rows are computed[/]: {escape(rules['never'])}", soft_wrap=True)
        _print_hint(rules["never_hint"])
    if rules["nodes"]:
        out.print("[bold]query[/]")
    for node in rules["nodes"]:
        _print_node(node)
    if rules["tables"]:
        out.print(_ways(invocation, rules))
    for why, hint in _obstacles(invocation, rules):
        out.print(f"  [yellow]whole[/] {escape(why)}", soft_wrap=True)
        _print_hint(hint)


def _print_node(node: Mapping[str, Any]) -> None:
    place = f" [dim]{escape(node['path'])}:{node['line']}[/]" if node["path"] else ""
    out.print(f"  {'  ' * node['depth']}{escape(node['node'])}{place}", soft_wrap=True)
    margin = "  " * (node["depth"] + 2)
    if node["rule"]:
        out.print(f"{margin}[cyan]{escape(node['rule'])}[/]", soft_wrap=True)
    if node["merged"]:
        text = f"a kept state merges {node['merged']}"
        out.print(f"{margin}[cyan]{escape(text)}[/]", soft_wrap=True)
    if node["not_merged"]:
        out.print(f"{margin}[dim]{escape(node['not_merged'])}[/]", soft_wrap=True)
    if node["obstacle"]:
        names = ", ".join(s.partition("@")[0] for s in node["when"])
        when = f" if {names} changes" if names else ""
        text = f"no rule{when} because {node['obstacle']}"
        out.print(f"{margin}[yellow]{escape(text)}[/]", soft_wrap=True)
        _print_hint(node["hint"], margin)


def _print_hint(hint: str | None, margin: str = "  ") -> None:
    if hint:
        out.print(f"{margin}[dim]hint: {escape(hint)}[/]", soft_wrap=True)


def _ways(invocation: Invocation, rules: Mapping[str, Any]) -> Table:
    """Return the table of the methods by which a build follows each table."""
    table = table_of("when this changes", "rows added", "rows changed or removed")
    for row in rules["tables"]:
        name = invocation.project.by_id[row["source_id"]].key
        cells = (_method(row[case]) for case in ("rows_added", "rows_changed"))
        table.add_row(escape(name), *map(escape, cells))
    return table


def _method(way: Mapping[str, Any]) -> str:
    text = way["maintenance"]
    if way["maintenance"] == "keys":
        text += f" ({', '.join(way['keys']) or 'row by row'})"
    if way["with_state"]:
        text = f"{way['with_state']}, or without a state {text}"
    return text


def _obstacles(
    invocation: Invocation, rules: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """Yield why changes require computing all rows, where no node explains it, and hints."""
    known = [rules["never"], *(node["obstacle"] for node in rules["nodes"])]
    reasons: dict[str, tuple[list[str], str | None]] = {}
    for row in rules["tables"]:
        for way in (row["rows_added"], row["rows_changed"]):
            if not way["why"] or any(k and k in way["why"] for k in known):
                continue
            names, _ = reasons.setdefault(way["why"], ([], way["hint"]))
            name = invocation.project.by_id[row["source_id"]].name
            names += [name] if name not in names else []
    for why, (names, hint) in reasons.items():
        yield f"if {' or '.join(names)} changes: {why}", hint


# ------------------------------------------------------------------------------------------- builds


def _print_origin(document: dict[str, Any]) -> None:
    """Print how a partition came to be, and what a build would do."""
    costs, stages = document.pop("costs"), document.pop("stages")
    for name, value in document.items():
        _print_chain(name, value)
    if costs:
        out.print("[bold]recent builds[/]")
    for cost in costs:
        figures = f"{cost['seconds']:.1f} s, {cost['rows_written']:,} rows written"
        out.print(f"  {cost['maintenance']:22}{figures}", soft_wrap=True)
    if stages:
        out.print("[bold]a build now[/]")
    for stage in stages:
        strategy = f"{stage['strategy']}: " if stage["strategy"] else ""
        out.print(f"  {stage['stage']:22}{escape(strategy + stage['description'])}", soft_wrap=True)


def _print_chain(name: str, value: Any) -> None:
    if isinstance(value, dict):
        out.print(f"[bold]{_title(name)}[/]")
        for key, below in value.items():  # pyright: ignore[reportUnknownVariableType]
            if below not in (None, [], {}):
                out.print(f"  {_title(key):22}{escape(in_words(below))}", soft_wrap=True)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for entry in value:  # pyright: ignore[reportUnknownVariableType]
            _print_chain(name.removesuffix("s"), entry)
    elif value is not None:
        out.print(f"[bold]{_title(name)}[/] {escape(in_words(value))}", soft_wrap=True)


def _title(key: str) -> str:
    """Return a key of a JSON document in words."""
    return key.removeprefix("is_").replace("_", " ")
