"""Write docs/reference/: settings, annotations, commands, API, events, metrics and errors.

Everything comes from the tables that the code itself uses. With `--check`, say whether the pages
are up to date instead.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from persist_assets.cli import EXIT_CODES, app
from persist_assets.compiler.frontends import annotation_keys
from persist_assets.core import errors
from persist_assets.core.logs import ACTIONS, LIBRARY
from persist_assets.core.settings import keys
from persist_assets.ledger.log import KINDS
from persist_assets.web.api import STATUS, description
from persist_assets.web.metrics import METRICS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference"
TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "table",
    list: "list",
}
SECTIONS: Sequence[tuple[str, str, Mapping[str, keys.Key]]] = (
    ("", "Every key is optional; an unknown key is an error.", keys.KEYS),
    (
        "[env.NAME]",
        "One [environment](../settings.md#environments); its keys override the project's.",
        keys.ENV_KEYS,
    ),
    (
        "[env.NAME.publish]",
        "Where an environment [publishes its tables](../publishing.md) under fixed names.",
        keys.PUBLISH_KEYS,
    ),
    ("[malloy]", "How [Malloy files](../settings.md#malloy) are compiled.", keys.MALLOY_KEYS),
    (
        "[spark]",
        'All other keys are settings of the Spark session: `"spark.driver.memory" = "4g"`.',
        keys.SPARK_KEYS,
    ),
    (
        '[store."s3://BUCKET"]',
        "How a bucket is reached; see [object stores](../settings.md#object-stores).",
        keys.STORE_KEYS,
    ),
    (
        "[upstream.NAME]",
        "[Another graph](../settings.md#other-graphs) that wants wait for.",
        keys.UPSTREAM_KEYS,
    ),
    ("[sla]", "What happens when a deadline is missed.", keys.SLA_KEYS),
    (
        "[alerts.NAME]",
        "A channel for [alerts](../operations.md#alerts).",
        keys.ALERT_KEYS,
    ),
    ("[cost]", "Prices, for [`persist cost`](../operations.md#cost).", keys.COST_KEYS),
    (
        "[service]",
        "Who is who in [the service](../service.md#users-of-a-proxy).",
        keys.SERVICE_KEYS,
    ),
    ("[roles.NAME]", "[Who may do what](../service.md#roles) in the service.", keys.ROLE_KEYS),
    (
        "[retention]",
        "How long [events](../settings.md#housekeeping) are kept.",
        keys.RETENTION_KEYS,
    ),
)


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def up(text: str) -> str:
    """Return Markdown with links that were relative to docs/, for a page in docs/reference/."""
    return re.sub(r"\]\((?!\w+:)([^)]+)\)", r"](../\1)", text)


def cell(text: str) -> str:
    """Return text that may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def settings() -> str:
    """Return the page of the keys of persist.toml."""
    parts = ["# Keys of persist.toml\n\nThe guide is [Settings](../settings.md).\n"]
    for name, about, rows in SECTIONS:
        title = f"## `{name}`\n\n" if name else ""
        lines = (
            (f"`{k}`", TYPES[key.type], f"`{key.default}`" if key.default else "", up(key.meaning))
            for k, key in rows.items()
        )
        parts.append(f"{title}{about}\n\n" + table(("key", "type", "default", "meaning"), lines))
    return "\n".join(parts)


def annotations() -> str:
    """Return the page of the keys of annotations."""
    rows = (
        ("" if n else f"`{name}`", up(form), up(meaning))
        for name, key in annotation_keys.KEYS.items()
        for n, (form, meaning) in enumerate(key.forms)
    )
    head = "# Keys of annotations\n\nThe guide is [Annotations](../annotations.md).\n\n"
    return head + table(("key", "value", "meaning"), rows)


def commands(group: Any, prefix: str = "persist") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def command_line() -> str:
    """Return the page of the commands and their options."""
    group: Any = typer.main.get_command(app)
    everywhere = {p.name: p for p in group.commands["check"].params}  # it has no others
    parts = [
        "# Commands and options\n\nThe guide is [The command line](../cli.md), which also has the"
        " JSON that each command prints. Every command has these options:\n",
        table(("option", "meaning"), map(option, everywhere.values())),
    ]
    for name, command in commands(group):
        own = [p for p in command.params if p.name not in everywhere and not p.hidden]
        arguments = [p for p in own if p.param_type_name == "argument"]
        words = (p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
        usage = " ".join([name, *words, "[OPTIONS]"])
        about = inspect.cleandoc(command.help or "")
        parts.append(f"## `{name}`\n\n{about}\n\n    {usage}\n")
        if own:
            parts.append(table(("option", "meaning"), map(option, own)))
    return "\n".join(parts)


def option(parameter: Any) -> Sequence[str]:
    """Return the row of an option or argument."""
    if parameter.param_type_name == "argument":
        names = [parameter.name.upper()]
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name}`" for name in names), cell(parameter.help or "")


def api() -> str:
    """Return the page of the endpoints and their parameters."""
    document = description()
    parts = [
        "# HTTP API\n\nThe guide is [The service](../service.md)."
        " `GET /api/v1/openapi.json` also has the schemas of answers.\n"
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## `{method.upper()} {path}`\n\n{operation['summary']}\n")
            rows = (
                (f"`{p['name']}`", p["in"], shape(p["schema"]), cell(p.get("description", "")))
                for p in operation.get("parameters", ())
            )
            if operation.get("parameters"):
                parts.append(table(("parameter", "in", "type", "meaning"), rows))
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                fields = content["schema"]["properties"].items()
                rows = (
                    (f"`{name}`", shape(field), cell(field.get("description", "")))
                    for name, field in fields
                )
                parts.append(table(("key of the body", "type", "meaning"), rows))
    return "\n".join(parts)


def shape(schema: Mapping[str, Any]) -> str:
    """Return the type of a parameter in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    kinds = schema.get("anyOf", [schema])
    names = [k.get("type", "") for k in kinds if k.get("type") != "null"]
    if names == ["array"]:
        (array,) = (k for k in kinds if k.get("type") == "array")
        return f"list of {shape(array['items'])}s"
    return " or ".join(n for n in names if n)


def events() -> str:
    """Return the page of the kinds of events."""
    head = (
        "# Events\n\nEvery change appends an event to the ledger's log: `persist events`, and"
        " [`GET /api/v1/events`](../service.md#events).\n\n"
    )
    return head + table(("kind", "meaning"), ((f"`{k}`", text) for k, text in KINDS.items()))


def metrics() -> str:
    """Return the page of the metrics."""
    head = (
        "# Metrics\n\n`GET /metrics` of [the service](../service.md) has these in the format of"
        " Prometheus, with the label `environment`. Metrics of sources also have `source`, an asset"
        " key.\n\n"
    )
    rows = ((f"`persist_{name}`", kind, text) for name, (kind, text) in METRICS.items())
    return head + table(("metric", "type", "meaning"), rows)


def logs() -> str:
    """Return the page of the actions of log lines."""
    head = (
        "# Actions of log lines\n\nThe guide is [Operations](../operations.md#logs). Log lines in"
        " JSON have one of these as their `action`. None is ever renamed.\n\n"
    )
    rows = ((f"`{action}`", meaning) for action, meaning in ACTIONS.items())
    library = (f"`{LIBRARY}`", "a line of another package")
    return head + table(("action", "meaning"), iter((*rows, library)))


def error_classes() -> Iterator[type[errors.PersistError]]:
    """Yield the classes of errors, each after its base."""

    def below(base: type[errors.PersistError]) -> Iterator[type[errors.PersistError]]:
        yield base
        for lower in base.__subclasses__():
            yield from below(lower)

    return below(errors.PersistError)


def error_page() -> str:
    """Return the page of the errors."""
    head = (
        "# Errors\n\nA failure that you can cause or meet is one of these. Each message says where"
        " it is, what is wrong and what to do. Anything else is a defect of ours.\n\n"
    )

    def code(kind: type[errors.PersistError]) -> str:
        return next(str(code) for base, code in EXIT_CODES if issubclass(kind, base))

    def status(kind: type[errors.PersistError]) -> str:
        number, name = next((n, s) for base, n, s in STATUS if issubclass(kind, base))
        return f"{number} `urn:persist:{name}`"

    rows = (
        (
            f"`{kind.__name__}`",
            cell((kind.__doc__ or "").strip().split("\n\n")[0]),
            code(kind),
            status(kind),
        )
        for kind in error_classes()
    )
    return head + table(("error", "meaning", "exit code", "HTTP"), rows)


PAGES: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "annotations": annotations,
    "commands": command_line,
    "api": api,
    "events": events,
    "metrics": metrics,
    "logs": logs,
    "errors": error_page,
}


def main() -> None:
    """Write the pages, or compare them."""
    pages = {TARGET / f"{name}.md": page() for name, page in PAGES.items()}
    if "--check" in sys.argv:
        stale = [p.name for p, text in pages.items() if not p.exists() or p.read_text() != text]
        if stale:
            sys.exit(f"docs/reference is not up to date ({', '.join(stale)}): run `make reference`")
        return
    TARGET.mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
