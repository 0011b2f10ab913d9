"""File systems of pyarrow that wait for a store as `waiting.py` does, in all operations.

The invariant: reading and writing through them has the same results as without them.
"""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyarrow import PythonFile, fs

from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MOST_AT_ONCE = 8 << 20
"""The maximum number of bytes read with one request: few enough to arrive in time."""
_REQUESTS_AT_ONCE = 16


def patient(system: Any, location: str) -> Any:
    """Return a `pyarrow.fs.FileSystem` that sends requests to a location's store through `ask`."""
    return fs.PyFileSystem(_PatientHandler(system, location))


class _PatientHandler(fs.FileSystemHandler):  # pyright: ignore[reportUntypedBaseClass]
    """Calls a file system through `ask`; see `pyarrow.fs.FileSystemHandler` for its methods."""

    def __init__(self, system: Any, location: str) -> None:
        self.system, self.location = system, location

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PatientHandler) and self.system == other.system

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return str(self.system.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self.system.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        # Each is a request, which the system itself sends one after the other.
        def ask_of(path: str) -> Any:
            return self._ask_of(path, lambda: self.system.get_file_info([path])[0])

        if len(paths) == 1:
            return [ask_of(paths[0])]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return [*pool.map(ask_of, paths)]

    def _ask_of(self, path: str, call: Callable[[], T], *, bounded: bool = True) -> T:
        """Ask for a path, and for the reason if the store refuses without one."""
        try:
            return ask(self.location, call, bounded=bounded)
        except OSError as error:
            # S3 gives the reason in the body, which an answer to HEAD lacks and a listing has.
            if re.search(r"HTTP status 40[01].*No response body", str(error)):
                self.get_file_info_selector(fs.FileSelector(path, allow_not_found=True))
            raise

    def get_file_info_selector(self, selector: Any) -> Any:
        # A listing may be long; each request of it is short, and limited by the library.
        return ask(self.location, lambda: self.system.get_file_info(selector))

    # What changes something is limited by the library alone: given up, it could still be done after
    # others have gone on.

    def create_dir(self, path: str, recursive: bool) -> None:
        self._ask_of(path, lambda: self.system.create_dir(path, recursive=recursive), bounded=False)

    def delete_dir(self, path: str) -> None:
        ask(self.location, lambda: self.system.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        ask(
            self.location,
            lambda: self.system.delete_dir_contents(path, missing_dir_ok=missing_dir_ok),
        )

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._ask_of(path, lambda: self.system.delete_file(path), bounded=False)

    def move(self, src: str, dest: str) -> None:
        self._ask_of(src, lambda: self.system.move(src, dest), bounded=False)

    def copy_file(self, src: str, dest: str) -> None:
        ask(self.location, lambda: self.system.copy_file(src, dest))

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        file = self._ask_of(path, lambda: self.system.open_input_file(path))
        through = partial(ask, self.location, bounded=True)
        return PythonFile(_PatientInput(file, through), "r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        def write(content: bytes) -> None:
            with self.system.open_output_stream(path, metadata=metadata) as stream:
                stream.write(content)

        return PythonFile(
            _PatientOutput(lambda content: ask(self.location, lambda: write(content))), "w"
        )

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


class _PatientInput(io.RawIOBase):
    """A file that is read through `ask`."""

    def __init__(self, file: Any, through: Callable[[Callable[[], Any]], Any]) -> None:
        self._file, self._through, self._at = file, through, 0
        self._size = int(file.size())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        end = self._at + (left if size < 0 else min(size, left))
        pieces: list[bytes] = []
        while self._at < end:
            n, at = min(end - self._at, _MOST_AT_ONCE), self._at
            piece: bytes = self._through(lambda n=n, at=at: self._file.read_at(n, at))
            if not piece:
                break
            pieces.append(piece)
            self._at += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _PatientOutput(io.BytesIO):
    """Small content, which is written when the file is closed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._write(content)
