"""Slow and greedy clients do not affect ordinary ones."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, SPARK_TOML
from serving import READ, SOURCES, TOKENS, Served, serving, write_data

from persist_assets.web.connections import HEAD_S, LARGEST_HEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS = tuple[str, int]
_SLOW, _GREEDY, _ORDINARY = 2000, 200, 50
_SECONDS = 12.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("service") / "project"
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text(SPARK_TOML)
    (root / "sources" / "m.sql").write_text(SOURCES)
    write_data(root)
    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as service:
        yield service


def address_of(served: Served) -> ADDRESS:
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    return host, int(port)


@pytest.mark.proves("S9")
@pytest.mark.parametrize("greed", ["one header", "many headers", "address"])
def test_an_endless_request_head_is_rejected_in_bounded_memory(served: Served, greed: str) -> None:
    part, between = {
        "one header": (b"GET / HTTP/1.1\r\nX: ", b"a" * 65536),
        "many headers": (b"GET / HTTP/1.1\r\n", b"X: a\r\n" * 10_000),
        "address": (b"GET /", b"a" * 65536),
    }[greed]
    too_large = (part + 2 * between)[: LARGEST_HEAD + 1]
    with socket.create_connection(address_of(served), 10) as connection:
        connection.sendall(too_large)  # the server reads all of it, so its answer arrives
        assert _rest(connection).startswith(b"HTTP/1.1 400")
    before, sent = served.memory(), 0
    with socket.create_connection(address_of(served), 10) as connection:
        connection.sendall(part)
        with suppress(ConnectionError):
            while sent < 100 * LARGEST_HEAD:
                sent += connection.send(between)
        answer = _rest(connection)  # a connection with unread data may lose it
        assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert sent < 100 * LARGEST_HEAD
    assert served.memory() - before < 20 << 20
    with served.client(READ) as client:
        assert client.get("/health").status_code == 200


def _rest(connection: socket.socket) -> bytes:
    """Return everything that arrives until the other end closes the connection or resets it."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(4096):
            received += part
    return received


@pytest.mark.slow
@pytest.mark.proves("S9")
def test_a_connection_without_a_complete_request_head_is_closed(served: Served) -> None:
    began = time.monotonic()
    with (
        socket.create_connection(address_of(served), 3 * HEAD_S) as silent,
        socket.create_connection(address_of(served), 3 * HEAD_S) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            assert silent.recv(1) == b""
        with suppress(ConnectionError):
            assert slow.recv(1) == b""
    assert HEAD_S / 2 < time.monotonic() - began < 3 * HEAD_S
    with served.client(READ) as client:
        assert client.get("/health").status_code == 200


@pytest.mark.slow
@pytest.mark.proves("S9")
def test_ordinary_clients_get_prompt_answers_beside_slow_and_greedy_ones(served: Served) -> None:
    host, port = address_of(served)
    alone, _, _ = asyncio.run(_measure(served, 3.0))
    attackers = subprocess.Popen(
        [
            sys.executable,
            ROOT / "tests" / "support" / "attackers.py",
            host,
            str(port),
            *map(str, (_SLOW, _GREEDY)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert attackers.stdout is not None and attackers.stdout.readline() == "begun\n"
        slowest, n, memory = asyncio.run(_measure(served, _SECONDS))
        slowness = _slowness()
        assert attackers.poll() is None
    finally:
        attackers.kill()
        attackers.communicate()
    print(
        f"\n{n} requests of {_ORDINARY} clients: slowest {slowest:.2f} s beside {_SLOW} slow and"
        f" {_GREEDY} greedy connections, {alone:.2f} s alone; memory {memory >> 20} MiB at most; the machine is {slowness:.1f} times as slow as idle"
    )
    assert slowest < max(1.0, slowness), "the machine is busy with other things"
    assert memory < 400 << 20


def _slowness() -> float:
    """Return the time that a loop takes now, relative to an idle processor."""
    began, number = time.monotonic(), 0
    for step in range(4_000_000):
        number += step * step % 7
    return (time.monotonic() - began) / 0.2


async def _measure(served: Served, seconds: float) -> tuple[float, int, int]:
    """Return the slowest answer to ordinary clients, the number of answers, and the peak memory."""
    clock = asyncio.get_running_loop().time
    over, address = clock() + seconds, address_of(served)
    asked = (
        "GET /api/v1/requests HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {READ}\r\n\r\n"
    ).encode()
    took: list[float] = []

    async def ask(n: int) -> None:
        await asyncio.sleep(2 * n / _ORDINARY)
        while clock() < over:
            began = clock()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(asked)
            answer = await reader.read()
            took.append(clock() - began)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
            await asyncio.sleep(2)

    most, ordinary = 0, asyncio.gather(*map(ask, range(_ORDINARY)))
    while not ordinary.done():
        most = max(most, served.memory())
        await asyncio.sleep(0.2)
    await ordinary
    return max(took), len(took), most
