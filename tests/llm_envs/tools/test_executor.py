"""Running the calls of a turn; toolsets; budgets."""

import asyncio
import contextvars
import inspect
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from machine import until

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tools import (
    BUDGET_EXCEEDED,
    INVALID_ARGUMENTS,
    TOOL_TIMEOUT,
    UNKNOWN_TOOL,
    Budget,
    Tool,
    Toolbox,
    Toolset,
    arun_calls,
    budgeted,
    run_calls,
    tool,
)
from llm_envs.tools import background_loop as background
from llm_envs.types import ToolCall


async def sleep(s: float, say: str = "slept") -> str:
    """Sleep."""
    await asyncio.sleep(s)
    return say


async def fail(s: float = 0.0) -> str:
    """Fail."""
    await asyncio.sleep(s)
    raise InvalidActionError("no")


async def leave() -> str:
    """Exit."""
    raise SystemExit(1)


def nap(s: float, say: str = "napped") -> str:
    """Sleep in a thread."""
    time.sleep(s)
    return say


def where() -> str:
    """Name the thread."""
    return threading.current_thread().name


def tools(*given):
    return {made.name: made for made in (one if isinstance(one, Tool) else Tool(one) for one in given)}


def calls(*given):
    return [ToolCall(name, arguments) for name, arguments in given]


def outputs(results):
    return [result.output for result in results]


def timed(function, *args, **kwargs):
    started = time.perf_counter()
    return function(*args, **kwargs), time.perf_counter() - started


# Side by side.


def test_coroutines_run_side_by_side_and_keep_their_order():
    ended = []

    async def last_first(n: int) -> str:
        """End after all calls behind this one: one after another, the first would give up."""
        is_turn = await until(lambda: len(ended) == 2 - n)
        ended.append(n)
        return f"{n}, {is_turn}"

    results = run_calls(tools(last_first), calls(*[("last_first", {"n": n}) for n in range(3)]))
    assert outputs(results) == ["0, True", "1, True", "2, True"] and ended == [2, 1, 0]
    slept, seconds = timed(run_calls, tools(sleep), calls(("sleep", {"s": 0.1}), ("sleep", {"s": 0.05})))
    assert seconds >= 0.1
    assert [result.seconds >= s for result, s in zip(slept, (0.1, 0.05), strict=True)] == [True] * 2


def test_plain_functions_run_side_by_side_where_they_may():
    """Each waits for the others: one after another, they would give up."""
    three, two = threading.Barrier(3, timeout=120), threading.Event()

    def meet(say: str) -> str:
        """Wait for all three."""
        three.wait()
        return say

    def wait() -> bool:
        """Wait for the coroutine."""
        return two.wait(120)

    async def come() -> str:
        """Come."""
        two.set()
        return "came"

    results = run_calls(tools(Tool(meet, parallel=True)), calls(*[("meet", {"say": str(i)}) for i in range(3)]))
    assert outputs(results) == ["0", "1", "2"]
    assert outputs(run_calls(tools(come, Tool(wait, parallel=True)), calls(("wait", {}), ("come", {})))) == [
        "true",
        "came",
    ]


def test_how_many_run_at_once_is_bounded():
    running, most = 0, 0

    async def count() -> str:
        """Count; the first ones wait until there are three, and a moment longer for a fourth."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most >= 3)
        await asyncio.sleep(0.02)
        running -= 1
        return "ok"

    results = run_calls(tools(count), calls(*[("count", {})] * 7), max_parallel=3)
    assert outputs(results) == ["ok"] * 7
    assert most == 3
    with pytest.raises(InvalidConfigError, match="max_parallel is 0"):
        run_calls(tools(count), calls(("count", {}), ("count", {})), max_parallel=0)


def test_a_call_that_may_not_waits_for_those_before_it_and_those_behind_wait_for_it():
    log = []

    async def later(name: str, beside: str = "") -> None:
        """Log twice; wait in between until another one has begun, and a moment longer."""
        log.append(f"{name} begins")
        await until(lambda: not beside or f"{beside} begins" in log)
        await asyncio.sleep(0.03)
        log.append(f"{name} ends")

    def alone(name: str) -> None:
        """Log."""
        log.append(name)

    two = calls(("later", {"name": "a", "beside": "b"}), ("later", {"name": "b", "beside": "a"}))
    run_calls(tools(later, alone), two + calls(("alone", {"name": "c"}), ("later", {"name": "d"})))
    assert log[:2] == ["a begins", "b begins"] and sorted(log[2:4]) == ["a ends", "b ends"]
    assert log[4:] == ["c", "d begins", "d ends"]
    log.clear()
    run_calls(tools(Tool(later, parallel=False)), calls(("later", {"name": "a"}), ("later", {"name": "b"})))
    assert log == ["a begins", "a ends", "b begins", "b ends"]


def test_where_calls_run():
    here = threading.current_thread().name
    two = calls(("where", {}), ("where", {}))
    assert outputs(run_calls(tools(where), two)) == [here, here]
    assert outputs(run_calls(tools(Tool(where, parallel=True)), two[:1])) == [here]
    assert outputs(run_calls(tools(Tool(where, parallel=True)), two)) == ["llm-envs-call"] * 2
    assert outputs(run_calls(tools(where), two, timeout_s=9)) == ["llm-envs-call"] * 2
    assert outputs(asyncio.run(arun_calls(tools(where), two))) == [here, here]
    assert outputs(asyncio.run(arun_calls(tools(Tool(where, parallel=True)), two[:1]))) == ["llm-envs-call"]


def test_a_failure_touches_no_other_call():
    turn = calls(
        ("sleep", {"s": 0.05}),
        ("fail", {"s": 0}),
        ("leave", {}),
        ("sleep", {"s": "x"}),
        ("nope", {}),
        ("sleep", {"s": 0}),
    )
    results = run_calls(tools(sleep, fail, leave), turn)
    errors = [None, "InvalidActionError", "SystemExit", INVALID_ARGUMENTS, UNKNOWN_TOOL, None]
    assert [result.error for result in results] == errors
    assert results[1].output == "Error: no"
    assert [result.name for result in results] == ["sleep", "fail", "leave", "sleep", "nope", "sleep"]


def test_no_calls():
    assert run_calls({}, []) == ()
    assert asyncio.run(arun_calls({}, [])) == ()


def test_context_variables_are_seen():
    variable = contextvars.ContextVar("variable", default="unset")

    def read() -> str:
        """Read."""
        return variable.get()

    async def aread() -> str:
        """Read."""
        return variable.get()

    variable.set("set")
    turn = calls(("read", {}), ("aread", {}))
    assert outputs(run_calls(tools(Tool(read, parallel=True), aread), turn)) == ["set", "set"]
    assert outputs(run_calls(tools(read), turn[:1], timeout_s=9)) == ["set"]


# Limits and interruptions.


def test_a_limit_stops_one_call_and_not_its_neighbours():
    ended = threading.Event()

    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return "never"

    turn = calls(("hang", {}), ("sleep", {"s": 0.05}), ("nap", {"s": 3600}), ("fail", {}))
    (hung, slept, napped, failed), seconds = timed(
        run_calls, tools(hang, sleep, fail, Tool(nap, parallel=True)), turn, timeout_s=1.0
    )
    assert seconds < 300
    assert hung.output == "Error: hang took longer than 1 s and was stopped"
    assert (hung.error, napped.error) == (TOOL_TIMEOUT, TOOL_TIMEOUT)
    assert (slept.output, failed.output) == ("slept", "Error: no")
    assert ended.is_set()


def test_arun_calls_is_cancelled_with_its_calls():
    begun, ended = [], []

    async def hang(n: int) -> str:
        """Hang."""
        begun.append(n)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(n)
        return "never"

    async def main():
        task = asyncio.create_task(arun_calls(tools(hang), calls(("hang", {"n": 1}), ("hang", {"n": 2}))))
        assert await until(lambda: len(begun) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until(lambda: len(ended) == 2)

    asyncio.run(main())
    assert sorted(ended) == [1, 2]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interruption_inside_a_call_gets_through(asynchronous):
    async def interrupted() -> str:
        """Stop."""
        raise KeyboardInterrupt

    def interrupt() -> str:
        """Stop."""
        raise KeyboardInterrupt

    name, made = ("interrupted", Tool(interrupted)) if asynchronous else ("interrupt", Tool(interrupt, parallel=True))
    turn = calls((name, {}), ("sleep", {"s": 0}))
    with pytest.raises(KeyboardInterrupt):
        run_calls(tools(made, sleep), turn)
    assert outputs(run_calls(tools(sleep), turn[1:] * 2)) == ["slept", "slept"]  # the loop lives


@pytest.mark.parametrize("awaited", [False, True])
def test_a_blocked_loop_is_given_up_and_what_it_had_ends_on_it(monkeypatch, awaited):
    monkeypatch.setattr(background, "_PING_S", 0.2)
    monkeypatch.setattr(background, "CLEANUP_S", 0.1)
    release = threading.Event()

    async def block() -> str:
        """Block the loop."""
        release.wait(600)
        return "late"

    first = background.event_loop()
    two = calls(("sleep", {"s": 0}), ("block", {}))
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(run_calls, tools(sleep), calls(("sleep", {"s": 0.3}), ("sleep", {"s": 0.2})))
        time.sleep(0.1)
        box = tools(block, sleep)
        results = asyncio.run(arun_calls(box, two, timeout_s=0.05)) if awaited else run_calls(box, two, timeout_s=0.05)
        assert results[1].error == TOOL_TIMEOUT
        assert background.event_loop() is not first
        assert outputs(run_calls(tools(sleep), calls(("sleep", {"s": 0}), ("sleep", {"s": 0})))) == ["slept"] * 2
        release.set()
        assert outputs(patient.result(120)) == ["slept", "slept"]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="interrupts itself by a signal")
def test_an_interruption_from_outside_cancels_what_runs():
    begun, ended = [], threading.Event()

    async def hang() -> str:
        """Hang."""
        begun.append(1)
        try:
            if len(begun) == 2:  # once: a second signal would come when nobody expects it
                signal.setitimer(signal.ITIMER_REAL, 0.1)  # the main thread waits for this call by now, or will soon
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return "never"

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_calls(tools(hang), calls(("hang", {}), ("hang", {})))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended.wait(60)


# Threads, loops, processes.


def meeting(n):
    """Return a tool whose calls wait for one another: `n` at once, or they give up."""
    arrived, all_here = [], threading.Event()

    async def meet(say: str = "met") -> str:
        """Wait for the others."""
        arrived.append(say)
        if len(arrived) == n:
            all_here.set()
        return say if await until(all_here.is_set) else "alone"

    return meet


def test_in_a_running_loop():
    two = calls(("meet", {}), ("meet", {}))

    async def main():
        waited = run_calls(tools(meeting(2)), two)
        return waited, await arun_calls(tools(meeting(2)), two)

    waited, awaited = asyncio.run(main())
    assert outputs(waited) == outputs(awaited) == ["met", "met"]


def test_from_several_threads_at_once():
    meet = meeting(24)

    def one(number):
        return outputs(run_calls(tools(meet), calls(*[("meet", {"say": f"{number}.{i}"}) for i in range(3)])))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert found == [[f"{number}.{i}" for i in range(3)] for number in range(8)]


def in_child():
    return [os.getpid(), *outputs(run_calls(tools(sleep), calls(*[("sleep", {"s": 0.01})] * 2)))]


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_child_process(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    in_child()  # so that there is a loop to be inherited
    with multiprocessing.get_context(method).Pool(1) as pool:
        pid, *rest = pool.apply_async(in_child).get(120)
    assert pid != os.getpid()
    assert rest == ["slept", "slept"]


@pytest.mark.filterwarnings("error")
def test_what_is_cancelled_before_it_began_is_closed():
    async def never() -> None:
        raise AssertionError("it ran")

    async def main(coroutine):
        waiting = asyncio.ensure_future(background.wait_async(coroutine))
        await asyncio.sleep(0)  # handed over
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        free.set()
        await background.wait_async(asyncio.sleep(0))

    free = threading.Event()
    background.event_loop().call_soon_threadsafe(free.wait, 60)
    coroutine = never()
    asyncio.run(main(coroutine))
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_nothing_keeps_the_interpreter_from_exiting():
    """It ends in minutes, though a thread sleeps for an hour."""
    code = """
import asyncio, time
from llm_envs.tools import background_loop as background
from llm_envs.tools import run_calls
from llm_envs.tools import Tool
from llm_envs.types import ToolCall

background.EXIT_S = background.CLEANUP_S = 1.0

def hang(x: int) -> str:
    "Hang."
    time.sleep(3600)

async def ahang(x: int) -> str:
    "Hang."
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("cleaned up", flush=True)
            if x: raise

turn = [ToolCall("hang", {"x": 1}), ToolCall("ahang", {"x": 1}), ToolCall("ahang", {"x": 0})]
results = run_calls({"hang": Tool(hang, parallel=True), "ahang": Tool(ahang)}, turn, timeout_s=0.5)
print([result.error for result in results])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "['ToolTimeoutError', 'ToolTimeoutError', 'ToolTimeoutError']" in done.stdout
    assert done.stdout.count("cleaned up") == 3  # the stubborn one twice: at its limit, and at exit


# Toolsets.


class Shop(Toolset):
    def __init__(self, stock=3):
        self.stock = stock
        self.log = []

    def reset(self, problem, rng):
        self.stock = problem["stock"]

    def close(self):
        self.log.append("closed")

    @tool
    def sell(self, n: int = 1) -> int:
        """Sell."""
        left = self.stock
        time.sleep(0.01)
        self.stock = left - n
        return self.stock

    @tool(name="look_up", cost=2, timeout_s=5, description="Look.")
    async def look(self, delay_s: float) -> int:
        """Not shown."""
        await asyncio.sleep(delay_s)
        return self.stock

    @tool(parallel=True)
    def wait(self, s: float) -> str:
        """Wait."""
        time.sleep(s)
        return "waited"

    def count(self) -> int:
        """Not a tool."""
        return self.stock


def test_the_tools_of_a_toolset_are_its_marked_methods():
    shop = Shop()
    made = shop.tools()
    assert [one.name for one in made] == ["sell", "look_up", "wait"]
    assert [one.parallel for one in made] == [False, True, True]
    assert (made[1].cost, made[1].timeout_s, made[1].description) == (2, 5, "Look.")
    assert all(one.toolset is shop for one in made)


def test_a_toolsets_calls_share_its_state_safely():
    shop = Shop()
    turn = calls(*[("sell", {})] * 2, ("look_up", {"delay_s": 0}), ("wait", {"s": 0}), ("sell", {}))
    results = run_calls(tools(*shop.tools()), turn)
    assert outputs(results) == ["2", "1", "1", "waited", "0"]
    assert Shop().tools()[0]({}).output == "2"


def test_toolsets_inherit():
    class Small(Shop):
        look = None

        def sell(self, n: int = 1) -> str:
            """Sell nothing."""
            return "closed today"

        @tool
        def leave(self) -> str:
            """Leave."""
            return "bye"

    made = tools(*Small().tools())
    assert list(made) == ["sell", "wait", "leave"]
    assert made["sell"]({}).output == "closed today"


def test_a_toolset_pickles_with_its_tools():
    shop = Shop()
    made = shop.tools()
    made[0]({})
    again, copied = pickle.loads(pickle.dumps((shop, made)))
    assert copied[0].toolset is again
    assert copied[0]({}).output == "1"
    assert (again.stock, shop.stock) == (1, 2)


def test_a_toolbox_gathers_resets_and_closes():
    class Env:
        pass

    shop, other, env = Shop(), Shop(), Env()
    budget = Budget(1)
    box = Toolbox([sleep, shop, *budgeted([Tool(nap, cost=1)], budget), Tool(other.sell, name="outsell")], env)
    assert list(box) == ["sleep", "sell", "look_up", "wait", "nap", "outsell"]
    assert (box.toolsets, box.budgets, box.keeps_state) == ([shop], [budget], True)
    budget.charge(1)
    box.reset({"stock": 9}, None)
    assert (shop.stock, budget.spent) == (9, 0)
    box.close()
    assert shop.log == ["closed"]
    with pytest.raises(InvalidConfigError, match="Env: its Shop already belongs to another environment"):
        Toolbox([shop], Env())
    Toolbox([shop], env)
    with pytest.raises(InvalidConfigError, match="Env: two tools have one name"):
        Toolbox([Shop(), Shop()], env)


def test_shared_toolsets_are_closed_by_whoever_made_them():
    class Shared(Shop):
        shared = True

    shop = Shared()
    for _ in range(2):
        Toolbox([shop], object()).close()
    assert shop.log == []


def test_every_toolset_is_closed_even_if_one_fails():
    class Sticky(Toolset):
        def close(self):
            raise OSError("stuck")

        @tool
        def push(self) -> str:
            """Push."""
            return ""

    class Env:
        pass

    shop = Shop()
    with pytest.raises(OSError, match="stuck"):
        Toolbox([shop, Sticky()], Env()).close()
    assert shop.log == ["closed"]


@pytest.mark.parametrize(
    ("given", "timeout_s", "waits"),
    [
        ([where], None, False),
        ([where], 5.0, True),
        ([where], math.inf, False),
        ([Tool(where, timeout_s=1)], None, True),
        ([Tool(where, timeout_s=math.inf)], 5.0, False),
        ([Tool(where, parallel=True)], None, True),
        ([where, sleep], None, True),
    ],
)
def test_which_tools_wait(given, timeout_s, waits):
    assert Toolbox(given, object()).waits(timeout_s) is waits


# Budgets.


def test_a_budget_covers_calls_in_their_order_until_it_is_spent():
    budget = Budget(5)
    made = tools(*budgeted([Tool(sleep, cost=2), Tool(where, cost=0), Tool(nap, cost=1.0, parallel=True)], budget))
    # The first to be written is the slowest to end, and is the one that is covered.
    turn = calls(("sleep", {"s": 0.1}), ("sleep", {"s": 0.0}), ("where", {}), ("sleep", {"s": 0.0}), ("nap", {"s": 0}))
    results = run_calls(made, turn)
    assert [result.error for result in results] == [None, None, None, BUDGET_EXCEEDED, None]
    assert results[3].output == "Error: sleep costs 2; 1 of the budget of 5 is left"
    assert (budget.spent, budget.remaining) == (5, 0)
    assert made["nap"]({"s": 0}).output == "Error: nap costs 1; 0 of the budget of 5 is left"
    budget.reset()
    assert made["nap"]({"s": 0}).success
    assert budget.spent == 1


def test_what_is_charged():
    budget = Budget(10)
    made = tools(*budgeted([Tool(fail, cost=1), Tool(sleep, cost=1)], budget))
    assert made["sleep"]({"s": "x"}).error == INVALID_ARGUMENTS
    assert budget.spent == 0  # it was not run
    assert made["fail"]({}).error == "InvalidActionError"
    assert made["sleep"]({"s": 60}, 0.01).error == TOOL_TIMEOUT
    assert budget.spent == 2  # these were


def test_collect_is_what_was_spent_since():
    budget = Budget(math.inf)
    assert [budget.charge(1), budget.charge(2)] == [True, True]
    assert [budget.collect(), budget.collect()] == [3, 0]
    budget.charge(4)
    assert (budget.collect(), budget.spent, budget.remaining) == (4, 7, math.inf)
    budget.charge(1)
    budget.reset()
    assert (budget.collect(), budget.spent) == (0, 0)


def test_sums_of_fractions_do_not_miss_by_the_last_digit():
    budget = Budget(1)
    assert [budget.charge(0.1) for _ in range(11)] == [True] * 10 + [False]
    assert budget.remaining == pytest.approx(0)
    assert not Budget(0).charge(1e-3)
    assert Budget(0).charge(0)


def test_budgeted_tools_are_copies_and_pickle_with_their_budget():
    budget = Budget(2)
    made = Tool(where, cost=1)
    (copy,) = budgeted([made], budget)
    (plain,) = budgeted([where], budget)
    assert (made.budget, copy.budget, copy.cost, plain.cost) == (None, budget, 1, 1)
    again, its_budget = pickle.loads(pickle.dumps((copy, budget)))
    again({})
    assert (its_budget.spent, budget.spent) == (1, 0)


@pytest.mark.parametrize("total", [-1, math.nan, "3", None])
def test_bad_totals_are_refused(total):
    with pytest.raises(InvalidConfigError, match=r"Budget.total is"):
        Budget(total)


def test_what_tools_under_a_budget_may_be_given_as():
    """A plain function costs 1, a toolset's tools cost what they say; a toolset alone is one of several."""

    def plain() -> str:
        """Do."""
        return "done"

    budget = Budget(3.0)
    shop = Shop()
    alone = budgeted(shop, budget)
    assert [made.name for made in alone] == [made.name for made in shop.tools()]
    assert all(made.budget is budget and made.toolset is shop for made in alone)
    assert [made.cost for made in budgeted([plain, Tool(plain, name="other", cost=0.5)], budget)] == [1.0, 0.5]
    with pytest.raises(InvalidConfigError, match="budgeted: a value of type int is not a tool"):
        budgeted([3], budget)
