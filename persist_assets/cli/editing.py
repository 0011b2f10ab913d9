"""`lsp`."""

import gc

from persist_assets.cli.application import Invocation, command
from persist_assets.core.errors import SettingsError


@command("lsp")
def lsp(invocation: Invocation) -> None:
    """Serve an editor with diagnostics, completion and more, over stdin and stdout."""
    try:
        from persist_assets.lsp.server import create_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise SettingsError(
            "the language server needs pygls, which is not installed",
            hint="pip install 'persist-assets[lsp]'",
        ) from error
    gc.enable()
    create_server(invocation.root, invocation.env).start_io()
