"""Fourteen mistakes that others made in rollout engines, each with the test that we do not make it.

 1. Draining a queue and dropping what was scored.
 2. Blocking in a done-callback.
 3. Dropped groups that do not return capacity.
 4. Pinning the weight version at completion instead of dispatch.
 5. Aborting after pausing.
 6. Flushing the prefix cache instead of salting it.
 7. Counting errors as free capacity.
 8. Raising where a timeout leaves a gradeable prefix.
 9. Requeueing stale work while shutting down.
10. Swallowing `CancelledError`.
11. Losing references to tasks.
12. Pairing results with environments by completion order.
13. Re-applying the chat template to the whole history.
14. Collectives inside a rollout loop, which hang when ranks leave it at different turns.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import llm_envs
from llm_envs.policies import with_latency
from llm_envs.policies.scripted import before_turn
from llm_envs.policies.vllm.formats import TurnRequest, VLLMFormat
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits, group_specs, play_episode
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.rollout.staleness import admission_capacity
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import SamplingParams, StopReason, Trajectory

CODEC = ByteCodec()
DIGITS = [str(digit) for digit in range(10)]


def make(policy: Any = None, env: Any = NumbersEnv, **settings: Any) -> Collector:
    policy = policy or HashingTokenPolicy(CODEC, DIGITS)
    return Collector(env, policy, **{"codec": CODEC, "progress": False} | settings)


def coin(prompt_ids: np.ndarray, random: Random) -> str:
    """The digit that is asked for, every other time."""
    return CODEC.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0] if random.random() < 0.5 else "x"


def keys(groups: Any) -> list[tuple[str, int]]:
    return [(t.group_id, t.member) for group in groups for t in group]


def test_01_what_was_scored_is_returned_by_this_call_or_the_next() -> None:
    emitted: list[Trajectory] = []
    policy = with_latency(HashingTokenPolicy(CODEC, DIGITS), 0.002, jitter=1.0)
    with make(policy, over_sampling=2.0, max_concurrency=8, on_trajectory=emitted.append) as collector:
        calls = [collector.collect(3, 2) for _ in range(6)]
    returned = keys(group for call in calls for group in call)
    assert len(set(returned)) == len(returned) == 36
    scored = [(t.group_id, t.member) for t in emitted]
    assert set(returned) <= set(scored) and len(set(scored)) == len(scored)
    carry_over = make(HashingTokenPolicy(CODEC, DIGITS), over_sampling=2.0, max_concurrency=1)
    with carry_over:  # one after another, so what is finished beyond the first is known: nothing is played twice
        first, second = carry_over.collect(2, 1), carry_over.collect(2, 1)
        assert [g.group_id for g in first + second] == [f"0-{index:06d}" for index in range(4)]


def test_02_nothing_of_the_users_runs_in_a_done_callback() -> None:
    tasks: set[Any] = set()

    def look(*args: Any) -> bool:
        tasks.add(asyncio.current_task())  # None in a callback
        return True

    policy = with_failures(HashingTokenPolicy(CODEC, DIGITS), 0.2)
    make(policy, on_trajectory=look, group_filter=look, progress=look, max_concurrency=3).collect(5, 2)
    assert tasks and None not in tasks


def test_03_a_dropped_group_gives_its_place_back_at_once() -> None:
    policy = HashingTokenPolicy(CODEC, coin, latency_s=0.001)
    collector = make(policy, group_filter=create_spread_filter(), max_concurrency=4, max_refills=100)
    assert len(collector.collect(6, 2)) == 6
    assert collector.stats.rejected_groups > 0 and policy.most_running == 4
    groups = make(policy, group_filter=create_spread_filter()).stream(2, n_groups=6, max_open=1)
    assert len(list(groups)) == 6  # with room for one: a place that was lost would be the last


def test_04_the_version_is_that_of_the_dispatch() -> None:
    policy = HashingTokenPolicy(CODEC, DIGITS)
    policy.weight_version = 0  # type: ignore[attr-defined]

    async def train(random: Random) -> None:
        policy.weight_version = policy.version = policy.version + 1  # type: ignore[attr-defined]

    hooked: Any = before_turn(policy, train)
    hooked.weight_version = 0
    (group,) = make(hooked, max_concurrency=1, env_kwargs={"n_turns": 3}).collect(1, 2)
    assert [t.metadata["dispatch_version"] for t in group] == [0, 0]  # of the group, not of each member's end
    sampled = [s.version for t in group for turn in t.turns for s in turn.weight_versions]
    assert sampled == [1, 2, 3, 4, 5, 6]


def test_05_calls_are_interrupted_while_the_engine_runs_and_are_over_when_it_is_paused() -> None:
    async def main() -> None:
        policy = HashingTokenPolicy(CODEC, lambda prompt_ids, random: "a long reply", latency_s=3600)
        gate = PauseGate()
        spec = EpisodeSpec("Numbers", {}, seed=1)
        episode = asyncio.create_task(play_episode(NumbersEnv(1), spec, policy, codec=CODEC, gate=gate))
        while not policy.running:
            await asyncio.sleep(0)
        await gate.close()
        assert (policy.running, policy.interrupted, policy.aborted) == (0, 1, 0)
        policy.latency_s = 0
        gate.open()
        assert (await episode).messages[-1].content == "a long reply"  # the tokens were not thrown away

    asyncio.run(main())


def test_06_new_weights_have_a_salt_of_their_own() -> None:
    """In the prefix cache of a server; that of an engine in this process is tested with it (test_engine.py)."""
    turn = TurnRequest(np.arange(3, dtype=np.int32), SamplingParams(), max_tokens=4, seed=1, stop_ids=[2])
    requests = [VLLMFormat().request(turn, model="m", salt=salt) for salt in ("", "1", "2")]
    assert [request.get("cache_salt") for request in requests] == [None, "1", "2"]


def test_07_an_error_makes_no_room() -> None:
    state = {"version": 0, "max_staleness": 0, "batch_size": 4, "n_trained": 0, "n_accepted": 1}
    assert admission_capacity(**state, n_running=3) == 0  # whether or not one of the three has just errored
    policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.001)
    collector = make(with_failures(policy, 0.5), max_concurrency=3, max_retries=0)
    groups = collector.collect(10, 2)
    assert policy.most_running <= 3 and collector.stats.submitted == 20  # none was begun for one that failed
    assert collector.stats.errored > 0 and len(keys(groups)) == 20


def test_08_a_timeout_keeps_what_was_earned() -> None:
    class HangsInTheSecondTurn(HashingTokenPolicy):
        def latency_of(self, prompt_ids: Any, session: str) -> float:
            return 0 if CODEC.decode_reply(prompt_ids).count("Say") == 1 else 3600

    policy = HangsInTheSecondTurn(CODEC, lambda ids, random: CODEC.decode_reply(ids).rsplit("Say ", 1)[1][0])
    limits = RolloutLimits(max_episode_s=1.0)  # which the first turn must not reach
    collector = make(policy, env_kwargs={"n_turns": 2}, limits=limits)
    (group,) = collector.collect(1)
    (trajectory,) = group
    assert (trajectory.status, trajectory.stop_reason) == ("ok", StopReason.TIMEOUT)
    assert (trajectory.reward, len(trajectory.turns), trajectory.is_success) == (0.5, 1, False)


@pytest.mark.parametrize("over_sampling", [1.0, 1.5])
def test_09_nothing_begins_or_is_retried_once_a_call_ends(over_sampling: float) -> None:
    begun: list[int] = []

    async def fail(random: Random) -> None:
        begun.append(1)
        await asyncio.sleep(0.002)
        raise RuntimeError("down")

    policy = before_turn(HashingTokenPolicy(CODEC, DIGITS), fail)

    async def main() -> None:
        collector = make(policy, max_retries=10**6, max_concurrency=5, over_sampling=over_sampling)
        task = asyncio.create_task(collector.acollect(50))
        while len(begun) < 20:
            await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await collector.aclose()
        n_ahead = len(begun)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(0.02)
        assert len(begun) == n_ahead and collector.stats.dropped == collector.stats.submitted == 5

    asyncio.run(main())


def test_10_a_cancellation_goes_all_the_way_and_closes_the_environments() -> None:
    open_envs: list[NumbersEnv] = []

    def env(**settings: Any) -> NumbersEnv:
        open_envs.append(NumbersEnv(**settings))
        return open_envs[-1]

    policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=3600)

    async def main() -> None:
        task = asyncio.create_task(make(policy, env, max_concurrency=4).acollect(8))
        while policy.running < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert policy.aborted == 4 and policy.running == 0
    assert len(open_envs) == 5 and all(made.closed for made in open_envs)  # one was made to see that it can be


def test_11_tasks_survive_the_garbage_collector() -> None:
    async def collect_garbage(random: Random) -> None:
        await asyncio.sleep(0.001)
        gc.collect()

    policy = before_turn(HashingTokenPolicy(CODEC, DIGITS), collect_garbage)
    groups = make(policy, max_concurrency=2, limits=RolloutLimits(max_policy_s=60)).collect(2, 2)
    assert len(keys(groups)) == 4 and all(t.status == "ok" for group in groups for t in group)


def test_12_each_result_is_that_of_its_own_environment() -> None:
    seeds = [5, 3, 9, 1, 7, 2, 8]
    specs = [group_specs(EpisodeSpec("NumbersEnv", {"n_turns": 3}, seed, f"g{seed}"), 3) for seed in seeds]
    slow = with_latency(HashingTokenPolicy(CODEC, coin), 0.004, jitter=1.0)
    with make(slow, max_concurrency=16) as collector:
        together = collector.play(specs)
    with make(HashingTokenPolicy(CODEC, coin)) as collector:
        alone = [collector.play([group])[0] for group in specs]
    assert together == alone and [group.seed for group in together] == seeds
    assert keys(together) == [(f"g{seed}", member) for seed in seeds for member in range(3)]


def test_13_the_template_is_applied_once_and_words_are_never_encoded_again() -> None:
    prompts: list[list[int]] = []

    class Counts(ByteCodec):
        n_prompts = n_replies = 0

        def encode_prompt(self, *args: Any, **settings: Any) -> Any:
            self.n_prompts += 1
            return super().encode_prompt(*args, **settings)

        def encode_reply(self, text: str) -> Any:
            self.n_replies += 1
            return super().encode_reply(text)

    def odd(prompt_ids: np.ndarray, random: Random) -> str:
        prompts.append(prompt_ids.tolist())
        return "\udcff ü"  # what is decoded from its ids is another text

    codec = Counts()
    (group,) = make(HashingTokenPolicy(CODEC, odd), codec=codec, env_kwargs={"n_turns": 5}).collect(1)
    ((row,),) = [trajectory.rows for trajectory in group]
    assert (codec.n_prompts, codec.n_replies, len(prompts)) == (1, 0, 5)
    assert [row.ids[:start].tolist() for start, _ in row.spans] == prompts  # each prompt is a beginning of the row


def test_14_no_rollout_waits_for_another_rank() -> None:
    """Nothing that plays knows of other processes of a training, so there is nothing to leave at different turns.

    The shards of one engine step together. There a process without turns goes on stepping, until all are closed.
    `gloo.py` joins the process that sends weights and the servers' workers: no other process of the training is in it.
    """
    folder = Path(llm_envs.__file__).parent
    collectives = {"all_reduce", "all_gather", "all_gather_object", "gather_object", "broadcast", "barrier"}
    paths = {*(folder / "rollout").rglob("*.py"), *(folder / "policies").rglob("*.py")}
    for path in paths - {folder / "policies" / "vllm" / name for name in ("lockstep.py", "gloo.py")}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.startswith(("torch.distributed", "accelerate")) for module in modules), path
            assert not (isinstance(node, ast.Attribute) and node.attr in collectives), path
