"""Commands about the tokens of the service: token create, list, revoke."""

import getpass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    app,
    command,
    err,
    in_local_time,
    out,
    print_json,
    table_of,
)
from persist_assets.core.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from persist_assets.web.tokens import TokenFile

token_app = typer.Typer(help="The tokens of the service.", no_args_is_help=True)
app.add_typer(token_app, name="token")


@command("create", token_app)
def token_create(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(help="The name of the token, which events record.")],
    role: Annotated[
        str, typer.Option("--role", help="`read`, `write` or a role from persist.toml.")
    ] = "read",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="For example, 90d.")
    ] = None,
) -> None:
    """Create a token and print it, once. Running services accept it at once."""
    from persist_assets.core.settings.durations import parse_duration
    from persist_assets.core.settings.service import BUILT_IN

    known = (*BUILT_IN, *(r.name for r in invocation.settings.roles))
    if role not in known:
        hint = did_you_mean(role, known) or f"known roles: {', '.join(known)}"
        raise SettingsError(f"unknown role `{role}`", hint=hint)
    seconds = parse_duration(expires) if expires is not None else None
    if expires is not None and seconds is None:
        raise SettingsError(f"`--expires {expires}` is not a duration", hint="for example, 90d")
    now = datetime.now(UTC)
    until = now + timedelta(seconds=seconds) if seconds else None
    secret = _file(invocation).create(name, role, now, until)
    expiry = until.isoformat() if until else None
    data = {"name": name, "role": role, "expires_at": expiry, "by": getpass.getuser()}
    invocation.ledger.events.note("token-created", data)
    if invocation.as_json:
        print_json({"name": name, "role": role, "token": secret, "expires_at": expiry})
    else:
        out.print(secret, soft_wrap=True)
        err.print("it will not be shown again; send it as `Authorization: Bearer TOKEN`")


@command("list", token_app)
def token_list(invocation: Invocation) -> None:
    """List the tokens, without their secrets."""
    tokens, now = _file(invocation).read(), datetime.now(UTC)
    if invocation.as_json:
        rows = [
            {
                "name": t.name,
                "role": t.role,
                "created_at": t.created_at.isoformat(),
                "expires_at": t.expires_at.isoformat() if t.expires_at else None,
                "expired": t.is_expired(now),
            }
            for t in tokens
        ]
        print_json({"tokens": rows})
        return
    table = table_of("name", "role", "created", "expires")
    for t in tokens:
        until = in_local_time(t.expires_at.isoformat()) if t.expires_at else "never"
        until = f"{until} [red]expired[/]" if t.is_expired(now) else until
        table.add_row(
            escape(t.name), escape(t.role), in_local_time(t.created_at.isoformat()), until
        )
    if tokens:
        out.print(table)
    else:
        out.print("there are no tokens")


@command("revoke", token_app)
def token_revoke(
    invocation: Invocation, name: Annotated[str, typer.Argument(help="The name of the token.")]
) -> None:
    """Revoke a token: running services reject it and end its sessions at once."""
    token = _file(invocation).revoke(name)
    data = {"name": name, "role": token.role, "by": getpass.getuser()}
    invocation.ledger.events.note("token-revoked", data)
    if invocation.as_json:
        print_json({"revoked": name})
    else:
        out.print(f"revoked {escape(name)}")


def _file(invocation: Invocation) -> "TokenFile":
    from persist_assets.web.tokens import TOKEN_FILE, TokenFile

    return TokenFile(invocation.settings.state_dir / TOKEN_FILE)
