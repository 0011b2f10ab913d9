"""An editor: it speaks the language server protocol with a real `persist lsp`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Message = dict[str, Any]
PATIENCE_S = 120.0
"""How long an answer is waited for: other tests run at the same time."""


class Editor:
    """A client of one server.

    Parameters
    ----------
    versioned
        Whether it accepts edits of certain versions of files.

    Attributes
    ----------
    diagnostics
        The last diagnostics of each file, by path.
    capabilities
        What the server can do.
    messages
        What it showed to the user.
    """

    def __init__(self, root: Path, *, versioned: bool) -> None:
        command = [sys.executable, "-m", "persist_assets.cli", "--project", str(root), "lsp"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
        )
        self._queue: Queue[Message | None] = Queue()
        self._root, self._n_requests = root, 0
        self._texts: dict[str, tuple[int, str]] = {}
        self.diagnostics: dict[str, list[Message]] = {}
        self.messages: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        answer = self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": root.as_uri(),
                "capabilities": {"workspace": {"workspaceEdit": {"documentChanges": versioned}}},
            },
        )
        self.capabilities: Message = answer["capabilities"]
        self.notify("initialized", {})

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while header := stdout.readline():
            size = int(header.partition(b":")[2]) if header.startswith(b"Content-Length") else 0
            while stdout.readline().strip():
                pass
            self._queue.put(json.loads(stdout.read(size)))
        self._queue.put(None)

    def _send(self, message: Message) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        """Return the result of a request; fail with its error."""
        answer = self.answer(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def answer(self, method: str, params: Any) -> Message:
        """Return the answer to a request."""
        self._n_requests += 1
        n = self._n_requests
        self._send({"id": n, "method": method, "params": params})
        return self.wait(lambda message: message.get("id") == n and "method" not in message)

    def wait(self, fits: Callable[[Message], bool]) -> Message:
        """Return the next message that fits; take note of those before it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                message = self._queue.get(timeout=max(deadline - time.monotonic(), 0))
            except Empty:
                raise AssertionError(f"no answer; diagnostics: {self.diagnostics}") from None
            assert message is not None, "the server has ended"
            params = message.get("params")
            if message.get("method") == "textDocument/publishDiagnostics":
                self.diagnostics[self.path(params["uri"])] = params["diagnostics"]
            if message.get("method") == "window/showMessage":
                self.messages.append(params["message"])
            if fits(message):
                return message

    def wait_until(self, path: str, fits: Callable[[list[str]], bool]) -> list[Message]:
        """Return the diagnostics of a file as soon as their messages fit."""

        def is_it(_: Message | None = None) -> bool:
            return path in self.diagnostics and fits([d["message"] for d in self.diagnostics[path]])

        if not is_it():
            self.wait(is_it)
        return self.diagnostics[path]

    # ------------------------------------------------------------------------------------ texts

    def uri(self, path: str) -> str:
        return (self._root / path).as_uri()

    def path(self, uri: str) -> str:
        return uri.removeprefix(f"{self._root.as_uri()}/")

    def open(self, path: str) -> str:
        """Open a file, and return its text."""
        text = (self._root / path).read_text()
        self._texts[path] = (1, text)
        document = {"uri": self.uri(path), "languageId": "sql", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})
        return text

    def change(self, path: str, text: str) -> int:
        """Replace the text of an open file; return its version."""
        version = self._texts[path][0] + 1
        self._texts[path] = (version, text)
        document = {"uri": self.uri(path), "version": version}
        changes = {"textDocument": document, "contentChanges": [{"text": text}]}
        self.notify("textDocument/didChange", changes)
        return version

    def close(self, path: str) -> None:
        self._texts.pop(path, None)
        self.notify("textDocument/didClose", {"textDocument": {"uri": self.uri(path)}})

    def close_all(self) -> None:
        for path in tuple(self._texts):
            self.close(path)

    def wait_for_version(self, path: str, version: int) -> None:
        """Wait for the diagnostics of a version of a file."""
        uri = self.uri(path)
        self.wait(
            lambda m: (
                m.get("method") == "textDocument/publishDiagnostics"
                and m["params"]["uri"] == uri
                and m["params"].get("version") == version
            )
        )

    def place(self, path: str, mark: str, into: int = 0, nth: int = 0) -> Message:
        """Return the parameters for a place in an open file: `into` characters after a mark."""
        text = self._texts[path][1]
        at = -1
        for _ in range(nth + 1):
            at = text.index(mark, at + 1)
        before = text[: at + into]
        line = before.rpartition("\n")[2]
        position = {
            "line": before.count("\n"),
            "character": len(line.encode("utf-16-le")) // 2,
        }
        return {"textDocument": {"uri": self.uri(path)}, "position": position}

    def end(self) -> int:
        """End the server; return its exit code."""
        self.request("shutdown", None)
        self.notify("exit", None)
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End the server at once, if it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._reader.join(PATIENCE_S)


@contextmanager
def editing(root: Path, *, versioned: bool = False) -> Iterator[Editor]:
    """Run an editor on a project."""
    editor = Editor(root, versioned=versioned)
    try:
        yield editor
        assert editor.end() == 0
    finally:
        editor.kill()
