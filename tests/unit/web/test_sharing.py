"""Concurrent requests share a result, and its computation never begins before they arrive."""

from __future__ import annotations

import asyncio

import pytest

from persist_assets.web.sharing import Shared


@pytest.mark.proves("Z6")
def test_requests_during_a_computation_share_the_next_one() -> None:
    async def run() -> None:
        shared, let, begun = Shared(), asyncio.Event(), list[int]()

        async def act() -> int:
            begun.append(len(begun))
            number = begun[-1]
            await let.wait()
            return number

        first = [asyncio.ensure_future(shared.get(act)) for _ in range(5)]
        while not begun:
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(shared.get(act)) for _ in range(50)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == [0], "one at a time"
        let.set()
        assert await asyncio.gather(*first) == [0] * 5
        assert await asyncio.gather(*later) == [1] * 50, "they asked after the first one began"
        assert await shared.get(act) == 2, "nothing is kept"

    asyncio.run(run())


@pytest.mark.proves("Z6")
def test_cancelled_and_failed_requests_do_not_block_others() -> None:
    async def run() -> None:
        shared, let = Shared(), asyncio.Event()

        async def fail() -> int:
            await let.wait()
            raise ValueError

        async def act() -> int:
            return 7

        leaving = asyncio.ensure_future(shared.get(fail))
        staying = asyncio.ensure_future(shared.get(fail))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        following = asyncio.ensure_future(shared.get(act))
        let.set()
        with pytest.raises(ValueError):
            await staying
        assert await following == 7

    asyncio.run(run())
