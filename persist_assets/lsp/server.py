"""The server: messages of an editor → compilations and answers.

One thread speaks the protocol, another one compiles, so that answers do not wait for a
compilation: they follow from the last one, and from the text as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from persist_assets.lsp.completion import complete
from persist_assets.lsp.definitions import find_definition
from persist_assets.lsp.diagnostics import diagnostics_of
from persist_assets.lsp.hover import describe
from persist_assets.lsp.names import find_mention
from persist_assets.lsp.positions import Text
from persist_assets.lsp.rename import RefusedError, applied, leftovers, renaming, verify
from persist_assets.lsp.workspace import State, SupersededError, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.errors import Problem
    from persist_assets.core.model.queries import SourceID

    Params = (
        types.HoverParams | types.DefinitionParams | types.PrepareRenameParams | types.RenameParams
    )

T = TypeVar("T")
log = logging.getLogger(__name__)

_BURST_S = 0.02
"""The time that an edit waits for the next one of the same key or paste, in seconds."""
_PAUSE_S = 0.5
"""The time without an edit before the remarks of `persist check` are computed, in seconds."""


class Server(LanguageServer):
    """A language server for one project.

    Parameters
    ----------
    root
        The project root.
    environment
        The environment; None: the default one.
    """

    def __init__(self, root: Path, environment: str | None = None) -> None:
        super().__init__(
            "persist",
            version("persist-assets"),
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
        )
        self._workspace = Workspace(root, environment)
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._texts: dict[str, str] = {}
        self._uris: dict[str, str] = {}
        self._versions: dict[str, int | None] = {}
        self._edited: set[str] = set()
        self._n_edits = 0
        self._dirty = asyncio.Event()
        self._current = asyncio.Event()
        self._published: dict[str, list[types.Diagnostic]] = {}
        self._remarks: tuple[Problem, ...] = ()
        self._loop: asyncio.Task[None] | None = None
        self.state: State | None = None

    # ------------------------------------------------------------------------------------ texts

    def path_of(self, uri: str) -> str | None:
        """Return the path of a document relative to the project root; None if it is outside."""
        file = to_fs_path(uri)
        for path in (Path(file), Path(file).resolve()) if file else ():
            if path.is_relative_to(self._workspace.root):
                return path.relative_to(self._workspace.root).as_posix()
        return None

    def uri_of(self, path: str) -> str:
        """Return the URI of a file of the project, as the editor names it."""
        return self._uris.get(path) or from_fs_path(str(self._workspace.root / path)) or ""

    def edit(self, uri: str, text: str | None, version: int | None = None) -> None:
        """Compile with another text of a document; None: with the text of its file."""
        path = self.path_of(uri)
        if path is None:
            return
        if text is None:
            self._texts.pop(path, None)
            self._versions.pop(path, None)
        else:
            self._texts[path], self._uris[path] = text, uri
            self._versions[path] = version
        self._edited.add(path)
        self.compile()

    def reread(self) -> None:
        """Compile with the files and the data as they are now."""
        self._compiler.submit(self._workspace.forget_data)
        self.compile()

    def compile(self) -> None:
        """Compile as soon as nothing older is being compiled."""
        self._n_edits += 1
        self._current.clear()
        self._dirty.set()
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._compile_always())

    async def settled(self) -> State | None:
        """Return the state that follows from the texts as they are now."""
        while not self._current.is_set():  # an edit may come before a waiting request goes on
            await self._current.wait()
        return self.state

    def text(self, path: str) -> Text:
        """Return the text of a file as it is now."""
        if path in self._texts:
            return Text(self._texts[path])
        return self.state.text(path) if self.state else Text("")

    async def place(self, params: Params) -> tuple[State, str, int] | None:
        """Return the state, the path and the offset that a request is about."""
        path, state = self.path_of(params.text_document.uri), await self.settled()
        if path is None or state is None or state.loaded is None:
            return None
        return state, path, state.text(path).offset_at(params.position)

    async def rename(self, state: State, source_id: SourceID, name: str) -> types.WorkspaceEdit:
        """Return the edits that give a source another name, and tell the user what follows.

        Raises
        ------
        RefusedError
            They are not certain to change names only.
        """
        n, edits = self._n_edits, renaming(state, source_id, name)
        texts = {**state.texts, **applied(state, edits)}
        after = await self._run(self._workspace.compile, texts, lambda: None)
        new_id = verify(state, after, source_id, name)
        if self._n_edits != n:
            raise RefusedError("the files changed in the meantime")
        assert state.loaded is not None
        assert after.loaded is not None
        former, source = state.loaded.project.by_id[source_id], after.loaded.project.by_id[new_id]
        message = f"The asset key `{former.key}` becomes `{source.key}`: the table stays"
        message += " what it is, but Dagster's history and wants belong to the former key."
        places = leftovers(
            self._workspace.root, {s.location.path for s in after.known.values()}, former.name
        )
        if places:
            message += f" Still named `{former.name}`: {', '.join(places)}"
        self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, message))
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in edits:
            span = state.text(edit.path).range(edit.start, edit.end)
            changes.setdefault(edit.path, []).append(types.TextEdit(span, edit.text))
        workspace = self.client_capabilities.workspace
        if not (workspace and (able := workspace.workspace_edit) and able.document_changes):
            return types.WorkspaceEdit(changes={self.uri_of(p): c for p, c in changes.items()})
        # The editor refuses edits of versions that it no longer has.
        documents = {
            p: types.OptionalVersionedTextDocumentIdentifier(self.uri_of(p), self._versions.get(p))
            for p in changes
        }
        return types.WorkspaceEdit(
            document_changes=[types.TextDocumentEdit(documents[p], c) for p, c in changes.items()]
        )

    # ------------------------------------------------------------------------------ compilation

    async def _compile_always(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(_BURST_S)
            self._dirty.clear()
            try:
                await self._compile_once()
            except SupersededError:
                continue
            except Exception as error:  # a bug; the next edit may be without it
                log.exception("action=compile")
                message = f"persist failed: {error}. This is a bug in persist: please report it"
                kind = types.MessageType.Error
                self.window_show_message(types.ShowMessageParams(kind, message))
            if not self._dirty.is_set():
                self._current.set()

    async def _compile_once(self) -> None:
        n, texts, edited = self._n_edits, dict(self._texts), {*self._edited}
        versions = dict(self._versions)

        def proceed() -> None:
            if self._n_edits != n:
                raise SupersededError

        for path, problems in (await self._run(self._workspace.glance, texts, edited)).items():
            if path in texts and self._n_edits == n:
                state = State(None, texts, ())
                self._publish(path, [*problems, *self._remarks_of(path)], state, versions)
        state = await self._run(self._workspace.compile, texts, proceed)
        proceed()
        self.state = state
        self._edited -= edited
        self._publish_all([*state.problems, *self._remarks], state, versions)
        self._current.set()
        try:
            await asyncio.wait_for(self._dirty.wait(), _PAUSE_S)
        except TimeoutError:
            remarked = await self._run(self._workspace.remark, state)
            known = {*state.problems}
            self._remarks = tuple(p for p in remarked.problems if p not in known)
            if self._n_edits == n:
                self._publish_all(remarked.problems, state, versions)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._compiler, work, *arguments)

    # ------------------------------------------------------------------------------ diagnostics

    def _remarks_of(self, path: str) -> Iterable[Problem]:
        return (p for p in self._remarks if p.location.path == path)

    def _publish_all(
        self, problems: Iterable[Problem], state: State, versions: Mapping[str, int | None]
    ) -> None:
        by_path: dict[str, list[Problem]] = {path: [] for path in (*self._published, *versions)}
        for problem in problems:
            by_path.setdefault(problem.location.path, []).append(problem)
        for path, some in by_path.items():
            self._publish(path, some, state, versions, only_news=True)

    def _publish(
        self,
        path: str,
        problems: Iterable[Problem],
        state: State,
        versions: Mapping[str, int | None],
        *,
        only_news: bool = False,
    ) -> None:
        diagnostics = diagnostics_of(problems, state.text(path))
        if only_news and self._published.get(path) == diagnostics:
            return
        self._published[path] = diagnostics
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(self.uri_of(path), diagnostics, versions.get(path))
        )


def create_server(root: Path, environment: str | None = None) -> Server:
    """Return a server that answers an editor about one project.

    Parameters
    ----------
    root
        The project root.
    environment
        The environment; None: the default one.
    """
    server = Server(root, environment)
    _follow_texts(server)
    _answer_about_places(server)
    _rename(server)
    return server


def _follow_texts(server: Server) -> None:
    @server.feature(types.INITIALIZED)
    def _(_: types.InitializedParams) -> None:
        server.compile()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def _(params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        server.edit(document.uri, document.text, document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def _(params: types.DidChangeTextDocumentParams) -> None:
        document = params.text_document
        server.edit(document.uri, params.content_changes[-1].text, document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def _(params: types.DidCloseTextDocumentParams) -> None:
        server.edit(params.text_document.uri, None)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def _(_: types.DidSaveTextDocumentParams) -> None:
        server.reread()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def _(_: types.DidChangeWatchedFilesParams) -> None:
        server.reread()


def _answer_about_places(server: Server) -> None:
    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[".", "@"])
    )
    def _(params: types.CompletionParams) -> list[types.CompletionItem]:
        path = server.path_of(params.text_document.uri)
        if server.state is None or path is None:
            return []
        text = server.text(path)
        return complete(server.state, path, text.text, text.offset_at(params.position))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def _(params: types.HoverParams) -> types.Hover | None:
        at = await server.place(params)
        text = describe(*at) if at else None
        if text is None:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    async def _(params: types.DefinitionParams) -> types.Location | None:
        at = await server.place(params)
        span = find_definition(*at) if at else None
        if at is None or span is None:
            return None
        path, start, end = span
        return types.Location(server.uri_of(path), at[0].text(path).range(start, end))


def _rename(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    async def _(params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
        at = await server.place(params)
        mention = find_mention(*at) if at else None
        if at is None or mention is None:
            return None
        span = at[0].text(mention.path).range(mention.start, mention.end)
        return types.PrepareRenamePlaceholder(span, mention.source_id.partition("@")[0])

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    async def _(params: types.RenameParams) -> types.WorkspaceEdit | None:
        at = await server.place(params)
        mention = find_mention(*at) if at else None
        if at is None or mention is None:
            return None
        try:
            return await server.rename(at[0], mention.source_id, params.new_name)
        except RefusedError as error:
            message = f"not renamed: {error}"
            raise JsonRpcException(message, types.LSPErrorCodes.RequestFailed) from error
