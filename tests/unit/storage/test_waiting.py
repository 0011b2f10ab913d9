"""Which requests to a store are retried, and how many are concurrent; no store is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from persist_assets.storage.patient import patient
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_DOWN = "AWS Error SLOW_DOWN during HeadObject operation: Please reduce your request rate."
OF_KEY = "When reading information for key '{}' in bucket 'b': {}"


def failing(*errors: Exception) -> tuple[Callable[[], str], list[Exception]]:
    """Return a call that raises each error once and then succeeds, and the errors raised so far."""
    left, raised = [*errors], list[Exception]()

    def call() -> str:
        if left:
            raised.append(left.pop(0))
            raise raised[-1]
        return "answered"

    return call, raised


@pytest.mark.proves("S18")
@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("[Errno 2] Path does not exist 'b/logs/status=503/x'"),
        OSError(OF_KEY.format("logs/status: 503/x", "AWS Error ACCESS_DENIED")),
        OSError(OF_KEY.format("ThrottledCalls/SlowDown", "AWS Error UNKNOWN (HTTP status 500)")),
        OSError("Error performing GET http://host/b/Throttled?code=503: 500 Internal Server Error"),
        OSError("no log files in s3://b/Throttled/t, nor in /Throttled/t"),
    ],
)
def test_errors_that_only_look_like_throttling_are_not_retried(error: Exception) -> None:
    call, raised = failing(error)
    with pytest.raises(type(error)):
        ask("s3://b/Throttled/t", call)
    assert raised == [error]


@pytest.mark.proves("S18")
@pytest.mark.parametrize(
    "message",
    [
        OF_KEY.format("logs/x", SLOW_DOWN),
        "Error performing PUT http://host/b/x in 1s - Server returned non-2xx status code: 503",
        "(Service: Amazon S3; Status Code: 503; Error Code: SlowDown; Request ID: 1)",
        '{"error": {"code": "ServerBusy", "message": "The server is busy."}}',
    ],
)
def test_throttled_requests_are_retried(message: str) -> None:
    call, raised = failing(OSError(message))
    assert ask("s3://b/t", call, bounded=True) == "answered"
    assert len(raised) == 1


class Meeting(fs.FileSystemHandler):  # pyright: ignore[reportUntypedBaseClass]
    """Answers two requests only if both are made at the same time."""

    def __init__(self) -> None:
        self.met = threading.Barrier(2)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        (path,) = paths
        self.met.wait(20)
        return [fs.FileInfo(path, fs.FileType.File, size=len(path))]

    def _never(self, *_: object) -> None:
        raise NotImplementedError

    get_type_name = normalize_path = get_file_info_selector = create_dir = _never
    delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _never
    move = copy_file = open_input_stream = open_input_file = _never
    open_output_stream = open_append_stream = _never


@pytest.mark.proves("S24")
def test_many_files_are_looked_up_concurrently_with_one_request_each() -> None:
    system = patient(fs.PyFileSystem(Meeting()), "s3://b/t")
    paths = [f"b/{'x' * n}" for n in range(100)]
    found = system.get_file_info(paths)
    assert [(info.path, info.size) for info in found] == [(p, len(p)) for p in paths]
