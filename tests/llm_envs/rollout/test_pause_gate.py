"""The gate, and turns that go on from their tokens: in pieces, under several weights, else as if never held."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_envs.policies import with_latency
from llm_envs.policies.base import InterruptiblePolicy
from llm_envs.policies.scripted import before_turn
from llm_envs.rollout import EpisodeSpec, RolloutLimits, play_episode
from llm_envs.rollout import pause_gate as gates
from llm_envs.rollout.pause_gate import PauseGate, Stopwatch
from llm_envs.rollout.sync import SyncRunner
from llm_envs.rollout.turn import join_pieces
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import FinishReason, Sampled, SamplingParams, StopReason, Trajectory, validate_batch

CODEC = ByteCodec()
SPEC = EpisodeSpec("Numbers", {}, seed=7, group_id="g", member=1)
EOT = 256


class Typist(HashingTokenPolicy):
    """Takes several turns of the event loop over each of its own, and remembers what it gave."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.given: list[tuple[np.ndarray, SamplingParams, Sampled]] = []

    async def sample(self, prompt_ids: Any, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        sampled = await super().sample(prompt_ids, params, seed=seed, session=session)
        self.given.append((prompt_ids.copy(), params, sampled))
        return sampled

    async def _wait(self, seconds: float, interrupt: asyncio.Event) -> None:
        for _ in range(4):
            if not interrupt.is_set():
                await asyncio.sleep(0)


def said(prompt_ids: np.ndarray, random: Any) -> str:
    """The digit that is asked for, or another one, and some words."""
    digit = CODEC.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0]
    return (digit if random.random() < 0.5 else "x") + " " * random.randrange(30)


def held(policy: Any, pauses: list[int], env: Any = None, **settings: Any) -> Trajectory:
    """Play an episode at a gate that closes after so many turns of the event loop, each time for new weights."""

    async def main() -> Trajectory:
        gate = PauseGate()
        episode = asyncio.create_task(
            play_episode(env or NumbersEnv(3), SPEC, policy, codec=CODEC, gate=gate, **settings)
        )
        for version, wait in enumerate(pauses, 1):
            for _ in range(wait):
                await asyncio.sleep(0)
            await gate.close()
            assert getattr(policy, "running", 0) == 0  # `close` waits
            if hasattr(policy, "update_weights"):
                policy.update_weights([], version)
            gate.open()
        return await episode

    runner = SyncRunner()
    trajectory = runner.run(lambda: asyncio.wait_for(main(), 300))
    runner.close()
    assert validate_batch([trajectory]) == []
    return trajectory


def pieces_of(policy: Typist) -> list[list[tuple[np.ndarray, SamplingParams, Sampled]]]:
    """What the policy gave, by turn."""
    turns: list[list[Any]] = [[]]
    for piece in policy.given:
        turns[-1].append(piece)
        if piece[2].finish_reason is not FinishReason.ABORT:
            turns.append([])
    return turns[:-1]


@settings(max_examples=200, deadline=None)
@given(
    pauses=st.lists(st.integers(0, 12), max_size=8),
    budget=st.integers(3, 40),
    seed=st.integers(0, 10**6),
    history=st.sampled_from(["append", "template"]),
)
def test_a_turn_goes_on_from_its_tokens(pauses: list[int], budget: int, seed: int, history: Any) -> None:
    """Interrupted anywhere and any number of times, an episode is the one that nobody interrupted, piece by piece."""
    limits = RolloutLimits(max_turn_tokens=budget)
    plain = held(Typist(CODEC, said), [], limits=limits, run_seed=seed, history=history)
    policy = Typist(CODEC, said)
    trajectory = held(policy, pauses, limits=limits, run_seed=seed, history=history)
    assert trajectory.status == "ok" and trajectory.messages == plain.messages
    assert [row.ids.tolist() for row in trajectory.rows] == [row.ids.tolist() for row in plain.rows]
    assert [(t.reward, t.finish_reason, t.span) for t in trajectory.turns] == [
        (t.reward, t.finish_reason, t.span) for t in plain.turns
    ]
    turns = pieces_of(policy)
    assert len(turns) == len(trajectory.turns)
    for turn, pieces in zip(trajectory.turns, turns, strict=True):
        row = trajectory.rows[turn.row]
        start, stop = row.spans[turn.span]
        logps = np.concatenate([sampled.logps for _, _, sampled in pieces])
        assert row.logps[start:stop].tolist() == logps.tolist()  # each piece has its own
        spans, done = [], 0
        for prompt_ids, params, sampled in pieces:
            assert prompt_ids.tolist() == row.ids[: start + done].tolist()  # the very ids before it
            assert params.max_new_tokens == budget - done
            if len(sampled.token_ids):
                spans.append((done, done + len(sampled.token_ids), sampled.weight_version))
            done += len(sampled.token_ids)
        assert [(s.start, s.stop, s.version) for s in turn.weight_versions] == spans
        for span in turn.weight_versions:  # this policy's log-probabilities lie in (-version - 1.001, -version)
            assert set(np.floor(-logps[span.start : span.stop] - 1e-3)) == {span.version}
    seeds = [seed for _, seed, _ in policy.calls]
    empty = sum(len(sampled.token_ids) == 0 for _, _, sampled in policy.given)
    assert len(set(seeds)) == len(seeds) - empty  # what had no token yet is asked for anew


def test_the_property_is_not_empty() -> None:
    policy = Typist(CODEC, said)
    trajectory = held(policy, [2, 3, 2, 3, 2, 3], run_seed=3)
    assert policy.interrupted >= 3
    assert any(len(turn.weight_versions) > 1 for turn in trajectory.turns)


@pytest.mark.parametrize("wrap", [lambda p: with_latency(p, 0.0), lambda p: with_failures(p, 0.0)])
def test_a_wrapped_policy_can_be_interrupted_too(wrap: Any) -> None:
    assert isinstance(wrap(HashingTokenPolicy(CODEC, said)), InterruptiblePolicy)
    inner = HashingTokenPolicy(CODEC, said, latency_s=0.2)  # longer than the turns of the event loop up to a pause
    assert held(wrap(inner), [*range(12)]).messages == held(HashingTokenPolicy(CODEC, said), []).messages
    assert inner.aborted == 0 and inner.interrupted > 0


def test_a_hook_that_takes_long_is_interrupted() -> None:
    n_ahead = 0

    async def takes_long_at_first(_: Any) -> None:
        nonlocal n_ahead
        n_ahead += 1
        await asyncio.sleep(3600 if n_ahead == 1 else 0)

    policy = before_turn(HashingTokenPolicy(CODEC, said), takes_long_at_first)

    async def main() -> None:
        gate = PauseGate()
        episode = asyncio.create_task(play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, gate=gate))
        while not n_ahead:
            await asyncio.sleep(0)
        await asyncio.wait_for(gate.close(), 300)
        gate.open()
        assert (await episode).status == "ok" and n_ahead == 2

    asyncio.run(main())


class Scripted:
    """Gives prepared pieces."""

    def __init__(self, *pieces: Sampled | Exception) -> None:
        self.pieces, self.budgets = list(pieces), list[int]()

    async def sample(self, prompt_ids: Any, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        self.budgets.append(params.max_new_tokens)
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def interrupt(self, session: str) -> None:
        raise AssertionError("nobody closed a gate")


def piece(text: str, reason: FinishReason = FinishReason.ABORT, version: int = 0, end: bool = False) -> Sampled:
    ids = np.array([*text.encode(), *[EOT] * end], np.int32)
    return Sampled(ids, np.full(len(ids), -1.0 - version, np.float32), reason, version)


class TestPieces:
    def test_by_hand(self) -> None:
        policy = Scripted(
            piece("1"), piece("", version=1), piece("2", version=2), piece("3", FinishReason.STOP, 3, True)
        )
        trajectory = asyncio.run(
            play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, sampling=SamplingParams(max_new_tokens=9))
        )
        # The second is an abort that nobody asked for, without a token: no progress, so a failure.
        assert trajectory.error is not None and "aborted the turn" in trajectory.error.message
        policy = Scripted(piece("1"), piece("2", version=2), piece("3", FinishReason.STOP, 3, True))
        trajectory = asyncio.run(
            play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, sampling=SamplingParams(max_new_tokens=9))
        )
        (turn,), (row,) = trajectory.turns, trajectory.rows
        assert [(s.start, s.stop, s.version) for s in turn.weight_versions] == [(0, 1, 0), (1, 2, 2), (2, 4, 3)]
        assert row.logps[row.mask].tolist() == [-1, -3, -4, -4]
        assert trajectory.messages[-1].content == "123" and turn.finish_reason is FinishReason.STOP
        assert policy.budgets == [9, 8, 7]

    def test_a_context_that_is_full_at_a_seam_ends_the_turn_as_its_length(self) -> None:
        from llm_envs.errors import ContextFullError

        full = Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.CONTEXT_FULL)
        for last in (ContextFullError("full"), full):
            trajectory = asyncio.run(play_episode(NumbersEnv(1), SPEC, Scripted(piece("12"), last), codec=CODEC))
            (turn,) = trajectory.turns
            assert turn.finish_reason is FinishReason.LENGTH and trajectory.status == "ok"
            assert [(s.start, s.stop) for s in turn.weight_versions] == [(0, 2)]

    def test_an_interrupt_at_the_last_token_of_the_budget_ends_the_turn(self) -> None:
        policy = Scripted(piece("123"))
        trajectory = asyncio.run(
            play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, limits=RolloutLimits(max_turn_tokens=3))
        )
        assert trajectory.turns[0].finish_reason is FinishReason.LENGTH

    def test_a_policy_that_cannot_be_interrupted_must_not_abort(self) -> None:
        class Plain(Scripted):
            interrupt = property()  # type: ignore[assignment]

        trajectory = asyncio.run(play_episode(NumbersEnv(1), SPEC, Plain(piece("12")), codec=CODEC))
        assert trajectory.error is not None and "aborted the turn" in trajectory.error.message

    @pytest.mark.parametrize(
        ("pieces", "expected", "reason"),
        [
            ([piece("ab</an"), piece("swer>cd", FinishReason.STOP, end=True)], "ab</answer>", "stop_string"),
            ([piece("ab</an"), piece("swer>", FinishReason.LENGTH)], "ab</answer>", "stop_string"),
            ([piece("</"), piece("ans"), piece("wer>c", FinishReason.LENGTH)], "</answer>", "stop_string"),
            ([piece("ab"), piece("c</answer>", FinishReason.STOP_STRING)], "abc</answer>", "stop_string"),
            ([piece("ab"), piece("cd", FinishReason.LENGTH)], "abcd", "length"),
            ([piece(""), piece("ü</answer>", FinishReason.STOP_STRING)], "ü</answer>", "stop_string"),
        ],
    )
    def test_stop_strings_across_a_seam(self, pieces: list[Sampled], expected: str, reason: str) -> None:
        whole = join_pieces(pieces, ["</answer>", "never"], CODEC.decode_reply)
        assert CODEC.decode_reply(whole.token_ids) == expected and whole.finish_reason == reason
        assert len(whole.logps) == len(whole.token_ids) == len(expected.encode())

    def test_what_is_dropped_behind_a_stop_string_has_no_version_span(self) -> None:
        policy = Scripted(piece("1</an"), piece("swer>dropped", FinishReason.STOP, 1, True))
        trajectory = asyncio.run(
            play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, sampling=SamplingParams(stop_strings=("</answer>",)))
        )
        assert [(s.start, s.stop, s.version) for s in trajectory.turns[0].weight_versions] == [(0, 5, 0), (5, 10, 1)]
        assert trajectory.messages[-1].content == "1</answer>"


class TestGate:
    def test_a_call_that_cannot_be_interrupted_is_cancelled_and_made_anew(self) -> None:
        class Plain(HashingTokenPolicy):
            interrupt = property()  # type: ignore[assignment]

        policy = Plain(CODEC, said, latency_s=0.2)  # longer than the turns of the event loop up to a pause
        assert held(policy, [3, 4]).messages == held(HashingTokenPolicy(CODEC, said), []).messages
        assert policy.aborted >= 1

    def test_an_interrupt_that_is_not_heeded_becomes_a_cancellation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Deaf(HashingTokenPolicy):
            def interrupt(self, session: str) -> None:
                asked.append(session)

        asked: list[str] = []
        monkeypatch.setattr(gates, "INTERRUPT_S", 1.0)
        monkeypatch.setattr(gates, "_AGAIN_S", 0.02)

        async def main() -> Trajectory:
            gate, policy = PauseGate(), Deaf(CODEC, said, latency_s=3600)
            episode = asyncio.create_task(play_episode(NumbersEnv(1), SPEC, policy, codec=CODEC, gate=gate))
            while not policy.running:
                await asyncio.sleep(0)
            await gate.close()
            assert policy.aborted == 1 and policy.running == 0
            policy.latency_s = 0
            gate.open()
            return await episode

        assert asyncio.run(main()).status == "ok"
        assert set(asked) == {"g/1"} and len(asked) >= 2

    def test_the_clock_of_an_episode_stands_while_it_is_held(self) -> None:
        async def main() -> Trajectory:
            gate, policy = PauseGate(), HashingTokenPolicy(CODEC, said, latency_s=0.02)
            limits = RolloutLimits(max_episode_s=600.0, max_policy_s=600.0)
            episode = asyncio.create_task(
                play_episode(NumbersEnv(2), SPEC, policy, codec=CODEC, gate=gate, limits=limits)
            )
            await asyncio.sleep(0.01)
            await gate.close()
            gate._closed_at -= 3600.0  # type: ignore[operator]  # an hour of training
            assert gate.closed_s > 3600
            gate.open()
            return await episode

        trajectory = asyncio.run(main())
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert trajectory.timings["policy"] < 3600

    def test_closing_twice_and_a_stopwatch_without_a_gate(self) -> None:
        async def main() -> None:
            gate = PauseGate()
            await gate.close()
            await gate.close()
            assert gate.n_closed == 1
            passed = asyncio.create_task(gate.call(lambda: asyncio.sleep(0, "through")))
            await asyncio.sleep(0.01)
            assert not passed.done() and gate.closed_s >= 0.009
            gate.open()
            assert await passed == "through"
            closed_s = gate.closed_s
            await asyncio.sleep(0.01)
            assert gate.closed_s == closed_s

        asyncio.run(main())
        watch = Stopwatch()
        time.sleep(0.01)
        assert watch.seconds >= 0.01
