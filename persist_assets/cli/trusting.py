"""Commands about places outside the project: trust."""

import os
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import Invocation, command, out, print_json, table_of
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError
from persist_assets.core.object_stores import is_local
from persist_assets.core.settings.load import environments_of, load_settings
from persist_assets.core.settings.values import Settings
from persist_assets.core.trust import (
    ALL,
    Confinement,
    add_trusted,
    confined,
    place_named,
    place_of,
    trusted_places,
)
from persist_assets.external.connectors.access import servers_of


@command("trust")
def trust(
    invocation: Invocation,
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[PLACE]...", help="Places to trust.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Trust all places that the project currently names.")
    ] = False,
) -> None:
    """List the places outside the project that it names, or trust them."""
    inside = Confinement(invocation.root, ())
    names_by_place: dict[str, list[str]] = {}
    for location, by in _named_locations(invocation):
        place = place_of(location)
        if not inside.allows(place) and by not in names_by_place.setdefault(place, []):
            names_by_place[place].append(by)
    places_to_trust = [place_named(place) for place in places or ()]
    for place in places_to_trust:
        if place != ALL and inside.allows(place):
            raise SettingsError(
                f"{place} is in the project and needs no trust",
                hint="name a path outside it, or a URL such as https://minio.example.com:9000",
            )
    if every:
        places_to_trust += names_by_place
    if places_to_trust:
        add_trusted(invocation.root, places_to_trust)
    confinement = Confinement(invocation.root, trusted_places(invocation.root))
    rows = [(p, by, confinement.allows(p)) for p, by in names_by_place.items()]
    rows += [(p, [], confinement.allows(p)) for p in places_to_trust if p not in names_by_place]
    if invocation.as_json:
        print_json({"places": [{"place": p, "named_by": b, "trusted": t} for p, b, t in rows]})
        return
    if not rows:
        out.print("the project names no places outside itself")
        return
    table = table_of("place", "named by", "trusted")
    for place, by, is_trusted in rows:
        table.add_row(escape(place), escape(", ".join(by)), "yes" if is_trusted else "no")
    out.print(table)


def _named_locations(invocation: Invocation) -> Iterator[tuple[str, str]]:
    """Yield the locations that a project names, and where each is named.

    Local raw tables are left out: they are only read.
    """
    names = [*environments_of(invocation.root)]
    if invocation.env is not None and invocation.env not in names:
        names.append(invocation.env)
    for environment in names:
        settings = load_settings(invocation.root, environment=environment)
        yield settings.ledger, "ledger"
        yield settings.warehouse, "warehouse"
        if settings.publish is not None and settings.publish.path:
            yield settings.publish.path, f"[env.{environment}.publish]"
        yield from _named_stores(settings)
        for upstream in settings.upstreams:
            yield upstream.url, f"[upstream.{upstream.name}]"


def _named_stores(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the stores and servers that an environment names, and where each is named."""
    for store in settings.stores:
        yield f"s3://{store.bucket}", f'[store."s3://{store.bucket}"]'
        if store.endpoint:
            yield store.endpoint, f'[store."s3://{store.bucket}"]'
    with confined(settings.root) as bounds:
        try:
            sources = load_project(settings).sources
        except SettingsError:  # `persist check` reports it
            sources = ()
    for source in sources:
        if source.raw is None:
            continue
        location = settings.resolve(source.raw.location or "")
        if source.raw.format == "postgres":
            location = location.rpartition("#")[0]  # the URL of the database, without the table
        if not is_local(location):
            yield location, source.source_id
        external = source.raw.external
        for server in servers_of(external, os.environ) if external else ():
            yield server, source.source_id
    for place in bounds.refused:  # of sources whose columns are therefore unknown
        yield place, "raw table"
