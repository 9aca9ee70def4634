"""Conversations from functions alone: what is said, run, tracked, rewarded and trained; and what goes wrong."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import numpy as np
import pytest
from families import family_tokenizer

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import PARSERS, format_tool_call
from llm_envs.policies import ConstantPolicy, ReplayPolicy
from llm_envs.rollout import (
    RolloutLimits,
    ToolTracker,
    aconverse,
    aconverse_batch,
    converse,
    converse_batch,
    create_window,
)
from llm_envs.rollout.converse import CONTINUE, DEFAULT_MAX_TURNS
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.tools import Toolset, tool
from llm_envs.types import Message, StopReason, ToolCall, ToolResult, Trajectory, validate_batch

CODEC = ByteCodec()
ASK = "What is 3 * 4?"
CALL = format_tool_call("multiply", a=3, b=4)
TOOL_TOKEN = 260


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a * b


def calls_then_answers(ids, random) -> str:
    return "It is 12." if TOOL_TOKEN in ids.tolist() else CALL


def texts(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in trajectory.messages]


class ChatScript:
    """A chat policy that says given messages."""

    def __init__(self, *replies: Message) -> None:
        self.replies, self.seen = list(replies), []

    async def reply(self, messages, tools, params):
        self.seen.append((tuple(messages), tuple(tools)))
        return self.replies.pop(0)


class TestPlay:
    def test_a_token_policy_calls_and_answers(self) -> None:
        policy = HashingTokenPolicy(CODEC, calls_then_answers)
        trajectory = converse(policy, ASK, codec=CODEC, tools=[multiply], seed=5)
        assert texts(trajectory) == [("user", ASK), ("assistant", CALL), ("tool", "12"), ("assistant", "It is 12.")]
        assert (trajectory.terminated, trajectory.stop_reason) == (True, StopReason.TERMINATED)
        assert [schema["function"]["name"] for schema in trajectory.tools] == ["multiply"]
        (row,) = trajectory.rows
        prompt = CODEC.encode_prompt([Message("user", ASK)], trajectory.tools)
        delta = [TOOL_TOKEN, *b"12", 256, 259]
        said = [CODEC.encode_reply(text).tolist() for text in (CALL, "It is 12.")]
        assert row.ids.tolist() == [*prompt.tolist(), *said[0], *delta, *said[1]]
        assert row.spans == tuple(
            (start, start + len(ids))
            for start, ids in zip((len(prompt), len(prompt) + len(said[0]) + len(delta)), said, strict=True)
        )
        assert np.isfinite(row.logps[row.mask]).all()
        assert [result.output for result in trajectory.turns[0].tool_results] == ["12"]
        assert validate_batch([trajectory]) == []

    def test_a_real_template(self) -> None:
        codec = ChatCodec(family_tokenizer("qwen3"))

        def say(ids, random) -> str:
            return "It is 12." if "tool_response" in codec.decode(ids) else CALL

        trajectory = converse(HashingTokenPolicy(codec, say), ASK, codec=codec, tools=[multiply])
        assert codec.decode(trajectory.rows[0].ids).count("<tool_response>\n12\n</tool_response>") == 1
        assert len(trajectory.turns) == 2 and len(trajectory.rows) == 1

    def test_a_chat_policy_gets_its_call_ids_back(self) -> None:
        policy = ChatScript(
            Message("assistant", "", (ToolCall("multiply", {"a": 3, "b": 4}, "call_1"),)), Message("assistant", "12")
        )
        trajectory = converse(policy, [{"role": "developer", "content": "Hm"}, {"role": "user", "content": ASK}],
                              tools=[multiply])  # fmt: skip
        assert [m.role for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert policy.seen[1][0][-1].tool_call_id == "call_1"
        assert trajectory.rows == ()

    def test_the_same_seed_is_the_same_conversation(self) -> None:
        policy = HashingTokenPolicy(CODEC, [CALL, "a", "b", "c", "d"])
        one, again, other = (converse(policy, ASK, codec=CODEC, tools=[multiply], seed=s) for s in (1, 1, 2))
        assert one == again and one.turns and one.seed != other.seed
        batch = converse_batch(policy, [ASK] * 20, codec=CODEC, tools=[multiply], seed=1, max_concurrency=3)
        assert batch[0] == one
        assert len({tuple(texts(t)) for t in batch}) > 3

    def test_forks_are_those_of_any_episode(self) -> None:
        policy = ReplayPolicy([CALL, CALL, "Done."])
        trajectory = converse(policy, ASK, codec=CODEC, tools=[multiply], context_fn=create_window(1))
        assert len(trajectory.rows) == 2 and validate_batch([trajectory]) == []

    def test_a_conversation_so_far_is_context(self) -> None:
        so_far = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho"},
            {"role": "user", "content": ASK},
        ]
        trajectory = converse(ConstantPolicy("12"), so_far, codec=CODEC, reward_fn=lambda t: 1.0)
        assert [(turn.row, turn.reward) for turn in trajectory.turns] == [(-1, 0.0), (0, 1.0)]
        assert validate_batch([trajectory]) == [] and trajectory.n_sampled_tokens == 3


class TestStop:
    def test_without_limits_it_ends_all_the_same(self) -> None:
        trajectory = converse(ConstantPolicy(CALL), ASK, tools=[multiply])
        assert len(trajectory.turns) == DEFAULT_MAX_TURNS and trajectory.stop_reason is StopReason.MAX_TURNS

    def test_a_condition_ends_it_before_the_calls_are_run(self) -> None:
        seen = []

        def submitted(messages, reply) -> bool:
            seen.append(messages[-1])
            return any(call.name == "submit" for call in reply.tool_calls)

        policy = ReplayPolicy(["Let me think.", CALL, format_tool_call("submit", x=12)])
        trajectory = converse(policy, ASK, tools=[multiply], stop_condition=submitted)
        assert [text for role, text in texts(trajectory) if role != "assistant"] == [ASK, CONTINUE, "12"]
        assert [len(turn.tool_results) for turn in trajectory.turns] == [0, 1, 0]
        assert [message.content for message in seen] == list(policy.actions)

    def test_what_is_broken_is_said_and_does_not_end_it(self) -> None:
        trajectory = converse(ReplayPolicy(["<tool_call>", "12"]), ASK, tools=[multiply])
        (complaint,) = [text for role, text in texts(trajectory)[1:] if role == "user"]
        assert complaint.startswith("Error: the reply cannot be read: ") and len(trajectory.turns) == 2

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_user_answers(self, is_async) -> None:
        def user(messages, reply) -> str:
            return f"{len(messages)}: {reply.content}?"

        async def user_async(messages, reply) -> str:
            await asyncio.sleep(0)
            return user(messages, reply)

        trajectory = converse(
            ReplayPolicy(["a", "b", "bye"]),
            ASK,
            user=user_async if is_async else user,
            stop_condition=lambda messages, reply: reply.content == "bye",
        )
        assert [text for role, text in texts(trajectory) if role == "user"] == [ASK, "2: a?", "4: b?"]

    def test_limits_cut_it_with_the_last_words_in_the_row(self) -> None:
        trajectory = converse(
            ConstantPolicy(CALL), ASK, codec=CODEC, tools=[multiply], limits=RolloutLimits(max_turns=1)
        )
        row = trajectory.rows[0]
        assert trajectory.truncated and row.ids[row.spans[0][1] :].tolist() == [TOOL_TOKEN, *b"12", 256]

    def test_another_parser(self) -> None:
        calls = []

        def execute(given):
            calls.extend(given)
            return ["12"]

        policy = ReplayPolicy(['Action: python\nAction Input: {"code": "3 * 4"}', "Final Answer: 12"])
        schema = {"type": "function", "function": {"name": "python", "parameters": {}}}
        trajectory = converse(policy, ASK, parser=PARSERS["react"], executor=execute, tools=[schema])
        assert (
            calls == [ToolCall("python", {"code": "3 * 4"})]
            and texts(trajectory)[2] == ("tool", "12")
            and trajectory.tools == (schema,)
        )


class TestExecutor:
    def test_texts_and_results(self) -> None:
        def execute(calls):
            return ["fine", ToolResult("b", {}, "no", False, "KeyError")]

        both = f"{format_tool_call('a')}\n{format_tool_call('b')}"
        trajectory = converse(ReplayPolicy([both, "ok"]), ASK, executor=execute)
        assert [(r.name, r.output, r.success) for r in trajectory.tool_results] == [
            ("a", "fine", True),
            ("b", "no", False),
        ]

    def test_an_asynchronous_one_runs_in_the_callers_loop(self) -> None:
        loops = []

        async def execute(calls):
            await asyncio.sleep(0.01)
            loops.append((asyncio.get_running_loop(), threading.current_thread()))
            return ["x" for _ in calls]

        async def main() -> Trajectory:
            trajectory = await aconverse(ReplayPolicy([CALL, "ok"]), ASK, executor=execute)
            assert loops == [(asyncio.get_running_loop(), threading.current_thread())]
            return trajectory

        assert [r.output for r in asyncio.run(main()).tool_results] == ["x"]

    def test_blocking_tools_of_several_conversations_run_side_by_side(self) -> None:
        """Each waits for the others: one after another they would wait for ever, and give up."""
        together = threading.Barrier(4)

        def meet() -> str:
            """Wait for all."""
            together.wait(timeout=120)
            return "met"

        batch = converse_batch(ReplayPolicy([format_tool_call("meet"), "ok"]), [ASK] * 4, tools=[meet])
        assert [t.tool_results[0].output for t in batch] == ["met"] * 4

    @pytest.mark.parametrize(
        ("executor", "says"),
        [
            (lambda calls: [], "0 results for 1 calls"),
            (lambda calls: "12", "it must be a list of results"),
            (lambda calls: [12], "it must be a ToolResult, or the output as a str"),
            (lambda calls: 1 / 0, "division by zero"),
        ],
    )
    def test_a_failure_is_an_errored_conversation(self, executor, says) -> None:
        trajectory = converse(ConstantPolicy(CALL), ASK, executor=executor, codec=CODEC, reward_fn=lambda t: 1.0)
        assert trajectory.status == "errored" and says in trajectory.error.message
        assert trajectory.error.where == "env.step" and trajectory.reward == 0

    def test_a_request_that_died_is_a_failure_and_no_cancellation(self) -> None:
        async def execute(calls):
            raise asyncio.CancelledError

        trajectory = converse(ConstantPolicy(CALL), ASK, executor=execute)
        assert trajectory.status == "errored" and "was cancelled" in trajectory.error.message

    @pytest.mark.parametrize("how", ["limit", "cancelled"])
    def test_nothing_is_left_running(self, how) -> None:
        begun, ended = [], []

        async def execute(calls):
            begun.append(True)
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(True)

        async def main() -> None:
            limits = RolloutLimits(max_step_s=1.0) if how == "limit" else None
            task = asyncio.create_task(aconverse(ConstantPolicy(CALL), ASK, executor=execute, limits=limits))
            if how == "limit":
                assert (await task).error.kind == "TimeoutError"
            else:
                while not begun:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            deadline = time.monotonic() + 120
            while not ended and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert ended == [True]
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    def test_a_toolset_keeps_its_state_for_one_conversation(self) -> None:
        class Counter(Toolset):
            closed = 0

            def reset(self, problem, rng) -> None:
                self.n = 0

            def close(self) -> None:
                Counter.closed += 1

            @tool
            def count(self) -> int:
                """Count."""
                self.n += 1
                return self.n

        call = format_tool_call("count")
        counter = Counter()
        for _ in range(2):
            trajectory = converse(ReplayPolicy([call, call, "ok"]), ASK, tools=[counter])
            assert [r.output for r in trajectory.tool_results] == ["1", "2"]
        assert Counter.closed == 2
        with pytest.raises(InvalidConfigError, match="make_tools"):
            converse_batch(ReplayPolicy([call, "ok"]), [ASK, ASK], tools=[counter])


async def cancelled(trajectory: Trajectory) -> float:
    raise asyncio.CancelledError


class TestReward:
    def score(self, reward_fn, **settings) -> Trajectory:
        return converse(ReplayPolicy([CALL, "12"]), ASK, tools=[multiply], reward_fn=reward_fn, **settings)

    def test_without_one_it_is_unscored(self) -> None:
        trajectory = self.score(None)
        assert (trajectory.status, trajectory.is_success) == ("unscored", None)
        assert trajectory.metadata["unscored_because"] == "there is no reward_fn"

    def test_it_stands_on_the_last_turn(self) -> None:
        trajectory = self.score(lambda t: float(t.messages[-1].content == "12"))
        assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
        assert (trajectory.status, trajectory.is_success) == ("ok", True)
        assert self.score(lambda t: 0.5).is_success is False
        assert self.score(lambda t: 0.5, success_at=0.5).is_success is True

    def test_it_may_have_components_and_be_asynchronous(self) -> None:
        async def judge(trajectory):
            await asyncio.sleep(0)
            return {"right": 1.0, "calls": -0.25 * len(trajectory.tool_results)}

        trajectory = self.score(judge)
        assert [dict(turn.components) for turn in trajectory.turns] == [
            {"right": 0.0, "calls": 0.0}, {"right": 1.0, "calls": -0.25},
        ]  # fmt: skip
        assert trajectory.reward == 0.75

    def test_one_that_was_cut_is_rewarded_too(self) -> None:
        trajectory = self.score(lambda t: 0.25, limits=RolloutLimits(max_turns=1))
        assert trajectory.truncated and trajectory.reward == 0.25

    @pytest.mark.parametrize(
        ("reward_fn", "says"),
        [
            (lambda t: None, "reward_fn gave None"),
            (lambda t: float("nan"), "reward_fn failed: TypeError: it gave reward as nan; it must be finite"),
            (lambda t: "1.0", "reward_fn failed: TypeError: it gave reward as '1.0'"),
            (lambda t: 1 / 0, "reward_fn failed: ZeroDivisionError: division by zero"),
            (lambda t: sys.exit(3), "reward_fn failed: SystemExit: 3"),
            (cancelled, "reward_fn failed: CancelledError"),
        ],
    )
    def test_a_judge_that_fails_gives_unscored_and_never_0(self, reward_fn, says) -> None:
        trajectory = self.score(reward_fn)
        assert trajectory.status == "unscored" and trajectory.metadata["unscored_because"].startswith(says)

    def test_a_conversation_that_is_cancelled_while_it_is_judged_ends(self) -> None:
        async def run() -> None:
            began = asyncio.Event()

            async def judge(trajectory: Trajectory) -> float:
                began.set()
                await asyncio.Event().wait()
                return 1.0

            task = asyncio.create_task(aconverse(ConstantPolicy("12"), ASK, reward_fn=judge))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(run())


class TestTracker:
    def test_calls_are_counted_turn_by_turn(self) -> None:
        tracker = ToolTracker()
        both = f"{CALL}\n{format_tool_call('divide', a=1)}"
        script = ReplayPolicy([both, CALL, "12"])
        trajectory = converse(script, ASK, tools=[multiply], tool_tracker=tracker)
        assert tracker.n_calls == 3 and tracker.kinds == {"multiply": 2, "divide": 1}
        assert tracker.success_rate == pytest.approx(2 / 3) and tracker.errors == {"UnknownToolError": 1}
        table = [(r["turn"], r["calls"], r["kinds"], r["success_rate"]) for r in tracker.table()]
        assert table == [(0, 2, {"multiply": 1, "divide": 1}, 0.5), (1, 1, {"multiply": 1}, 1.0), (2, 0, {}, None)]
        assert ToolTracker.of([trajectory]).table() == tracker.table()

    def test_one_for_a_batch_and_one_without_calls(self) -> None:
        tracker = ToolTracker()
        converse_batch(ReplayPolicy([CALL, "12"]), [ASK] * 8, tools=[multiply], tool_tracker=tracker)
        assert [(r["turn"], r["calls"]) for r in tracker.table()] == [(0, 8), (1, 0)]
        assert (ToolTracker().success_rate, ToolTracker().table()) == (None, [])

    def test_any_function_will_do(self) -> None:
        told = []
        converse(ReplayPolicy([CALL, "12"]), ASK, tools=[multiply], tool_tracker=lambda n, r: told.append((n, len(r))))
        assert told == [(0, 1), (1, 0)]


class TestRefused:
    @pytest.mark.parametrize(
        ("messages", "settings", "says"),
        [
            ([], {}, "the conversation is empty"),
            (
                [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                {},
                "the last one is the assistant's",
            ),
            (ASK, {"tools": [{"type": "function"}]}, "need an executor"),
            (ASK, {"tools": [{"type": "function"}, multiply], "executor": lambda c: []}, "no functions among them"),
            (ASK, {"tools": [multiply, multiply]}, "two tools have one name"),
        ],
    )
    def test_wrong_arguments(self, messages, settings, says) -> None:
        with pytest.raises(InvalidConfigError, match=says):
            converse(ConstantPolicy("x"), messages, **settings)

    def test_a_token_policy_needs_a_codec(self) -> None:
        with pytest.raises(InvalidConfigError, match="pass codec"):
            converse(HashingTokenPolicy(CODEC, ["x"]), ASK)

    def test_a_batch_says_what_went_wrong(self) -> None:
        with pytest.raises(InvalidConfigError, match="empty"):
            asyncio.run(aconverse_batch(ConstantPolicy("x"), [ASK, []]))
        with pytest.raises(InvalidConfigError, match="max_concurrency is 0"):
            converse_batch(ConstantPolicy("x"), [], max_concurrency=0)
