"""Plain calls that wait in an event loop without blocking it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from llm_envs.processes.suspension import call_suspendable, can_suspend, has_suspended, start_suspendable, suspend

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="unset")


def test_the_loop_plays_others_while_one_waits() -> None:
    """Each call waits for the next one's event: if one of them blocked the loop, none would end."""

    async def main() -> list[int]:
        events = [asyncio.Event() for _ in range(100)]

        def play(number: int) -> int:
            if number + 1 < len(events):
                suspend(events[number + 1].wait())
            events[number].set()
            return number

        return await asyncio.wait_for(asyncio.gather(*(call_suspendable(lambda n=n: play(n)) for n in range(100))), 120)

    before = threading.active_count()
    assert asyncio.run(main()) == list(range(100))
    assert threading.active_count() == before


def test_exceptions_of_both_sides() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("inside")

    def catch() -> str:
        try:
            suspend(fail())
        except KeyError as error:
            return f"caught {error.args[0]}"
        return "not raised"

    def leave() -> None:
        suspend(asyncio.sleep(0))
        raise SystemExit(3)

    assert asyncio.run(call_suspendable(catch)) == "caught inside"
    with pytest.raises(KeyError, match="inside"):
        asyncio.run(call_suspendable(lambda: suspend(fail())))
    with pytest.raises(SystemExit):
        asyncio.run(call_suspendable(leave))


def test_a_cancellation_is_raised_where_the_call_waits() -> None:
    seen: list[str] = []

    def play() -> None:
        try:
            suspend(asyncio.Event().wait())
        except asyncio.CancelledError:
            seen.append("cancelled")
            suspend(asyncio.sleep(0))  # as cleaning up may
            seen.append("cleaned up")
            raise

    async def main() -> None:
        task = asyncio.ensure_future(call_suspendable(play))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled", "cleaned up"]


def test_each_call_keeps_the_context_of_its_task() -> None:
    def play(name: str) -> list[str]:
        NAME.set(name)
        names = []
        for _ in range(3):
            suspend(asyncio.sleep(0))
            names.append(NAME.get())
        return names

    async def main() -> list[Any]:
        NAME.set("caller")
        played = await asyncio.gather(*(call_suspendable(lambda n=n: play(n)) for n in ("a", "b")))
        return [*played, NAME.get(), await call_suspendable(NAME.get)]

    assert asyncio.run(main()) == [["a"] * 3, ["b"] * 3, "caller", "caller"]


def test_who_can_suspend() -> None:
    async def main() -> list[bool]:
        in_thread: list[bool] = []

        def play() -> tuple[bool, bool, bool]:
            thread = threading.Thread(target=lambda: in_thread.append(can_suspend()))
            thread.start()
            thread.join()
            before = has_suspended()
            suspend(asyncio.sleep(0))
            return can_suspend(), before, has_suspended()

        played = await call_suspendable(play)
        again = await call_suspendable(has_suspended)  # in the same greenlet
        return [can_suspend(), *in_thread, *played, again]

    assert asyncio.run(main()) == [False, False, True, False, True, False]


def test_one_that_is_only_started_runs_to_its_first_wait_at_once_and_to_its_end_in_a_task() -> None:
    async def main() -> list[str]:
        done, ended = [], asyncio.Event()

        def play() -> None:
            done.append("begun")
            suspend(asyncio.sleep(0))
            done.append("ended")
            ended.set()

        start_suspendable(play)
        done.append("returned")
        start_suspendable(lambda: done.append("without a wait"))
        await asyncio.wait_for(ended.wait(), 120)
        return done

    assert asyncio.run(main()) == ["begun", "returned", "without a wait", "ended"]
    done: list[bool] = []
    start_suspendable(lambda: done.append(can_suspend()))
    assert done == [False]
