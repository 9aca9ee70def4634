"""Environments whose tools wait, keep state, or cost."""

import asyncio
import pickle
import threading
import time

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call, parse_reply
from llm_envs.policies import ConstantPolicy, OraclePolicy
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits, play_episode
from llm_envs.sandbox import MontySandbox, PythonTool
from llm_envs.tools import BUDGET_EXCEEDED, Budget, Tool, Toolset, budgeted, tool
from llm_envs.types import ToolResult
from tests.llm_envs.test_env import Vault, started


class Library(Vault):
    """Tools of every kind."""

    tool_timeout_s = 1.0

    def make_tools(self):
        self.drawer = Drawer()
        return [self.ask, self.search, self.drawer]

    async def search(self, delay_s: float) -> str:
        """Search for the code."""
        await asyncio.sleep(delay_s)
        return f"{self.problem['code']} after {delay_s}"


class Drawer(Toolset):
    """A code that can be put away."""

    def __init__(self):
        self.kept = None
        self.n_closed = 0

    def reset(self, problem, rng):
        self.kept = problem["code"]

    def close(self):
        self.n_closed += 1

    @tool
    def put(self, code: int) -> str:
        """Put a code away."""
        old, self.kept = self.kept, code
        return f"{old} was there"


def test_calls_of_a_turn_run_side_by_side_within_their_limit():
    env = started(Library())
    turn = "".join(
        [
            format_tool_call("search", delay_s=0.1),
            format_tool_call("search", delay_s=0.05),
            format_tool_call("search", delay_s=3600),
            format_tool_call("put", code=3),
            format_tool_call("put", code=4),
        ]
    )
    begun = time.perf_counter()
    observation, reward, _, _, info = env.step(turn)
    assert time.perf_counter() - begun < 300
    assert observation.splitlines() == [
        "7 after 0.1",
        "7 after 0.05",
        "Error: search took longer than 1 s and was stopped",
        "7 was there",
        "3 was there",
    ]
    assert reward == 0.0  # a call that takes too long is not malformed
    assert [message["content"] for message in info["messages"]] == observation.splitlines()


def test_a_step_with_waiting_tools_works_where_a_loop_is_running():
    async def main():
        return started(Library()).step(format_tool_call("search", delay_s=0) * 2)[0]

    assert asyncio.run(main()) == "7 after 0.0\n7 after 0.0"


class Meeting(Vault):
    """An asynchronous tool and two plain ones; each waits until `N_MEETING` calls are there."""

    def make_tools(self):
        return [self.meet, Tool(self.meet_in_threads, parallel=True), Tool(self.meet_in_time, timeout_s=600)]

    async def meet(self) -> str:
        """Meet the others on the loop."""
        await self.barrier.wait()
        return "met"

    def meet_in_threads(self) -> str:
        """Meet the others in a thread."""
        self.barrier.wait()
        return "met"

    def meet_in_time(self) -> str:
        """Meet the others in a thread, or give up."""
        self.barrier.wait()
        return "met"


N_MEETING = 24


@pytest.mark.parametrize(
    ("tool_name", "make_barrier", "n_threads"),
    [
        ("meet", lambda: asyncio.Barrier(N_MEETING), 1),
        ("meet_in_threads", lambda: threading.Barrier(N_MEETING, timeout=300), N_MEETING),
        ("meet_in_time", lambda: threading.Barrier(N_MEETING, timeout=300), N_MEETING),
    ],
)
def test_a_tool_that_waits_holds_up_its_own_episode_only(tool_name, make_barrier, n_threads):
    """If one call held up the event loop of the episodes, none of them would end."""
    Meeting.barrier = make_barrier()

    async def play_all():
        spec, policy = EpisodeSpec("Meeting", {}, seed=7), ConstantPolicy(format_tool_call(tool_name))
        limits = RolloutLimits(max_turns=1)
        return await asyncio.gather(*(play_episode(Meeting(), spec, policy, limits=limits) for _ in range(N_MEETING)))

    before = threading.active_count()
    trajectories = asyncio.run(asyncio.wait_for(play_all(), 600))
    assert [trajectory.turns[0].tool_results[0].output for trajectory in trajectories] == ["met"] * N_MEETING
    assert threading.active_count() - before <= n_threads
    assert not Meeting().blocking


def test_a_cancelled_episode_cancels_its_tool():
    ended = threading.Event()

    class Waits(Vault):
        def make_tools(self):
            return [self.wait]

        async def wait(self) -> str:
            """Wait for ever."""
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def play_and_cancel():
        spec, policy = EpisodeSpec("Waits", {}, seed=7), ConstantPolicy(format_tool_call("wait"))
        playing = asyncio.ensure_future(play_episode(Waits(), spec, policy))
        await asyncio.sleep(0.05)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(play_and_cancel())
    assert ended.wait(120)


def test_toolsets_begin_with_the_episode_end_with_the_environment_and_are_not_shared():
    env, other = started(Library(), code=1), started(Library(), code=2)
    copy = pickle.loads(pickle.dumps(env))
    assert env.step(format_tool_call("put", code=9))[0] == "1 was there"
    assert other.step(format_tool_call("put", code=9))[0] == "2 was there"
    assert copy.step(format_tool_call("put", code=8))[0] == "1 was there"
    assert (env.drawer.kept, copy.drawer.kept) == (9, 8)
    started(env, code=5)
    assert env.step(format_tool_call("put", code=9))[0] == "5 was there"
    env.close()
    assert (env.drawer.n_closed, other.drawer.n_closed, copy.drawer.n_closed) == (1, 0, 0)

    drawer = Drawer()

    class Sharing(Library):
        def make_tools(self):
            return [drawer]

    first = Sharing()
    with pytest.raises(InvalidConfigError, match="Sharing: its Drawer already belongs to another environment"):
        Sharing()
    del first


def test_how_calls_are_run_can_be_replaced():
    class Dry(Vault):
        def run_calls(self, calls):
            return tuple(ToolResult(call.name, call.arguments, f"{call.name}!", True) for call in calls)

    env = started(Dry())
    assert env.step(format_tool_call("ask") * 2)[0] == "ask!\nask!"
    assert [result.output for result in env.tool_results] == ["ask!", "ask!"]


class Checked(Vault):
    """Say the code: a guess can be checked, for a price, while the budget lasts."""

    default_max_turns = 3
    reward_weights = {"correct": 1.0, "cost": -0.1}

    def make_tools(self):
        self.budget = Budget(4)
        return budgeted([Tool(self.check, cost=3), Tool(self.parity, cost=0.5)], self.budget)

    async def check(self, code: int) -> bool:
        """Check a code."""
        await asyncio.sleep(0.01)
        return code == self.problem["code"]

    def parity(self) -> str:
        """Tell whether the code is odd."""
        return "odd" if self.problem["code"] % 2 else "even"

    def score(self, reply, results, *, correct, malformed):
        return {"correct": float(correct), "cost": self.budget.collect()}


def test_quality_against_the_cost_of_checks():
    env = started(Checked())
    for _ in range(2):  # the second episode has the whole budget again
        twice = format_tool_call("check", code=6) + format_tool_call("check", code=7)
        observation, reward, _, _, info = env.step(twice + format_tool_call("parity"))
        assert observation.splitlines() == ["false", "Error: check costs 3; 1 of the budget of 4 is left", "odd"]
        assert [result.error for result in env.tool_results] == [None, BUDGET_EXCEEDED, None]
        assert info["reward_components"] == {"correct": 0.0, "cost": 3.5}
        assert reward == pytest.approx(-0.35)
        assert (env.budget.spent, env.budget.remaining) == (3.5, 0.5)
        _, reward, terminated, _, info = env.step("<answer>7</answer>")
        assert (reward, terminated) == (1.0, True)
        assert info["reward_components"] == {"correct": 1.0, "cost": 0.0}
        started(env)
    assert pickle.loads(pickle.dumps(env)).budget.remaining == 4


def test_episodes_of_waiting_tools_are_collected_beside_each_other():
    """Each call waits for those of all other episodes: one after another, they would reach their limit."""
    arrived, n_calls = [], 12 * 2

    class Slow(Library):
        tool_timeout_s = 120.0

        async def search(self, delay_s: float) -> str:
            """Wait for the others."""
            arrived.append(1)
            while len(arrived) < n_calls:
                await asyncio.sleep(delay_s)
            return "found"

        def next_action(self):
            if self.tool_results:
                return format_answer(self.problem["code"])
            return format_tool_call("search", delay_s=0.01) * 2

    with Collector(Slow, OraclePolicy(), progress=False) as collector:
        groups = collector.collect(12)
    assert all(group.trajectories[0].is_success for group in groups)
    results = [result for group in groups for result in group.trajectories[0].tool_results]
    assert [result.output for result in results] == ["found"] * n_calls


def test_make_tools_may_return_a_toolset_alone_or_one_tool():
    class Alone(Library):
        def make_tools(self):
            self.drawer = Drawer()
            return self.drawer

    class OneFunction(Vault):
        def make_tools(self):
            return self.ask

    env = started(Alone(), code=3)
    assert env.step(format_tool_call("put", code=9))[0] == "3 was there"
    env.close()
    assert env.drawer.n_closed == 1
    assert started(OneFunction()).step(format_tool_call("ask"))[0] == "7 "


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "Odd.make_tools: tools are None; give a list of typed functions"),
        ({"ask": Vault.ask}, "Odd.make_tools: tools are a value of type dict; give a list"),
        ("ask", "Odd.make_tools: tools are 'ask'; give a list"),
        (["ask"], "Odd.make_tools: 'ask' is not a tool; give a typed function, a Tool, a Toolset or a PythonTool"),
        ([Drawer], "Odd.make_tools: <class .*Drawer'> is not a tool"),
        ([[]], "Odd.make_tools: a value of type list is not a tool"),
    ],
)
def test_what_is_no_tool_is_refused_by_name(given, complaint):
    class Odd(Vault):
        def make_tools(self):
            return given

    with pytest.raises(InvalidConfigError, match=complaint):
        Odd()


class Coder(Vault):
    """A vault with a Python interpreter, which costs, beside a toolset, which costs what it says."""

    reward_weights = {"correct": 1.0, "malformed": -0.1, "cost": -0.25}
    max_return = 0.75

    def make_tools(self):
        self.budget = Budget(2.0)
        self.python_tool = PythonTool()
        return budgeted([self.python_tool, Drawer()], self.budget)

    def score(self, reply, results, *, correct, malformed):
        return {"correct": float(correct), "malformed": float(malformed), "cost": self.budget.collect()}


def test_a_python_tool_is_reset_and_closed_with_its_environment_and_may_be_under_a_budget():
    pytest.importorskip("pydantic_monty")
    env = started(Coder())
    assert env.step(format_tool_call("python", code="x = 6\nx * 7"))[:2] == ("42", -0.25)
    assert env.step(format_tool_call("put", code=1))[:2] == ("7 was there", 0.0)
    drawn = env.step(format_tool_call("python", code="import random\nrandom.random()"))[0]
    assert env.step(format_tool_call("python", code="1"))[0].startswith("Error: python costs 1; 0 of the budget of 2")
    copy = pickle.loads(pickle.dumps(started(env)))
    for again in (env, copy):
        assert "NameError" in again.step(format_tool_call("python", code="x"))[0]
        assert again.step(format_tool_call("python", code="import random\nrandom.random()"))[0] == drawn
    started(copy, code=8)
    assert copy.step(format_tool_call("python", code="import random\nrandom.random()"))[0] != drawn
    for used in (env, copy):
        assert used.python_tool.last_result is not None
        used.close()
        assert used.python_tool.last_result is None


def test_an_environment_with_an_interpreter_blocks_and_a_sandbox_that_fails_ends_the_episode_as_errored():
    pytest.importorskip("pydantic_monty")
    env = started(Coder())
    assert env.blocking
    with MontySandbox() as sandbox:
        env.python_tool._sandbox = sandbox
    spec = EpisodeSpec("Coder", {}, seed=7)
    trajectory = asyncio.run(play_episode(env, spec, ConstantPolicy(format_tool_call("python", code="1"))))
    assert (trajectory.status, trajectory.error.kind, trajectory.error.where) == ("errored", "SandboxError", "env.step")


@pytest.mark.parametrize("form", [lambda python: python.python, lambda python: Tool(python.python, cost=0.5)])
def test_the_method_of_a_python_tool_is_reset_and_closed_too(form):
    pytest.importorskip("pydantic_monty")

    class Bare(Coder):
        reward_weights = Vault.reward_weights
        score = Vault.score

        def make_tools(self):
            self.python_tool = PythonTool()
            return [form(self.python_tool)]

    env = started(Bare())
    assert env.step(format_tool_call("python", code="x = 1\nx"))[0] == "1"
    assert "NameError" in started(env).step(format_tool_call("python", code="x"))[0]
    env.close()
    assert env.python_tool.last_result is None


def test_a_string_in_tags_reaches_the_tool_as_it_was_written():
    """Tags have no quotes: whether `007` or `true` is text is for the tool's signature to say."""

    def look_up(name: str, n: int, flag: bool) -> str:
        return f"{name!r} {n!r} {flag!r}"

    schema = {"properties": {"name": {"type": "string"}}}

    for text in ("007", "true", "1.50", "1e3", '{"a": 1}', "None"):
        parameters = f"<parameter=name>\n{text}\n</parameter><parameter=n>3</parameter><parameter=flag>True</parameter>"
        (call,) = parse_reply(f"<tool_call><function=look_up>{parameters}</function></tool_call>").tool_calls
        assert Tool(look_up)(call.arguments).output == f"{text!r} 3 True"
        by_schema = Tool(lambda name, **rest: name, name="f", parameters=schema)
        assert by_schema(call.arguments).output == text


def test_a_call_that_cannot_be_read_beside_a_sound_one():
    """The sound one runs, the reply is malformed, and the trajectory counts what the parser tolerated."""
    reply = format_tool_call("put", code=5) + "<tool_call>{</tool_call>" + format_tool_call("put", code=6)[:-14] + ",}"
    env = started(Library())
    observation, _, _, _, info = env.step(reply + "\n</tool_call>")
    assert observation.splitlines()[-1].endswith("could not be read, and were not run: 1.")
    assert observation.splitlines()[1] == "5 was there"
    assert info["reward_components"]["malformed"] == 1.0
    assert info["quirks"] == {"dropped_call": 1, "trailing_comma": 1}
    spec = EpisodeSpec("Library", {}, seed=7)
    trajectory = asyncio.run(play_episode(Library(), spec, ConstantPolicy(reply + "\n</tool_call>")))
    assert trajectory.metadata["quirks"] == {"dropped_call": 4, "trailing_comma": 4}
