import asyncio
import threading
import time

import pytest

from shiplift.pipelines.page.asking import AnswerCache
from shiplift.runtime.base.errors import NotFound, ShipliftError, Temporary


def test_a_question_that_hangs_does_not_hang_the_page() -> None:
    asking, released = AnswerCache(fresh_s=0, patience_s=0.05), threading.Event()

    async def ask() -> None:
        with pytest.raises(Temporary, match="no answer for"):
            await asking.ask("registry", lambda: released.wait(60))

    try:
        asyncio.run(asyncio.wait_for(ask(), 30))
    finally:
        released.set()


def test_what_was_known_is_told_with_why_there_is_nothing_newer() -> None:
    asking = AnswerCache(fresh_s=0, patience_s=60)

    def fail() -> str:
        raise Temporary("the registry does not answer", do="Wait.")

    async def ask() -> None:
        known = await asking.ask("registry", lambda: "known")
        assert (known.value, known.problem) == ("known", "")
        stale = await asking.ask("registry", fail)
        assert (stale.value, stale.at) == ("known", known.at)
        assert "does not answer" in stale.problem
        assert (await asking.ask("registry", lambda: "newer")).problem == ""
        with pytest.raises(Temporary):
            await asking.ask("another", fail)

    asyncio.run(ask())


def test_what_does_not_exist_any_more_is_not_shown_from_memory() -> None:
    asking = AnswerCache(fresh_s=0, patience_s=60)

    def gone() -> str:
        raise NotFound("it was deleted", do="Go on.")

    async def ask() -> None:
        await asking.ask("model", lambda: "known")
        with pytest.raises(NotFound):
            await asking.ask("model", gone)

    asyncio.run(ask())


def test_many_pages_ask_once_and_a_change_makes_them_ask_again() -> None:
    asking, asked = AnswerCache(fresh_s=1000, patience_s=60), []

    async def ask() -> None:
        await asyncio.gather(*(asking.ask("models", lambda: asked.append(1)) for _ in range(100)))
        assert len(asked) == 1
        asking.forget()
        await asking.ask("models", lambda: asked.append(1))
        assert len(asked) == 2

    asyncio.run(ask())


def test_a_slow_question_is_asked_in_the_background_and_rests_longer_than_it_takes() -> None:
    asking, begun, go_on = AnswerCache(fresh_s=0, patience_s=60, slow_s=0.01), [0], threading.Event()

    def listed() -> int:
        begun[0] += 1
        if begun[0] == 1:
            time.sleep(0.05)
        elif begun[0] == 2:
            go_on.wait(60)
        return begun[0]

    async def value() -> int:
        told = await asking.ask("models", listed)
        assert told.problem == ""
        return told.value

    async def ask() -> None:
        assert await value() == 1
        assert [await value() for _ in range(20)] == [1] * 20
        assert begun == [1]  # it rests
        while begun == [1]:
            assert await value() == 1
            await asyncio.sleep(0.005)
        assert await value() == 1  # though it is being asked
        asking.forget()
        assert await value() == 3  # what was changed is waited for

    try:
        asyncio.run(asyncio.wait_for(ask(), 60))
    finally:
        go_on.set()


def test_a_bug_is_an_error_and_not_an_endless_wait() -> None:
    def broken() -> str:
        raise ValueError("why")

    with pytest.raises(ShipliftError, match="a bug in Shiplift: ValueError: why"):
        asyncio.run(AnswerCache().ask("x", broken))
