"""The same seed and a deterministic policy give the same trajectories, to the byte, at concurrency 1, 7 and 64.

Locked here, for every registered `llm/` task (wall times are outside the compared record):

- env policies: the oracle, and random actions;
- token policies without a model, with a codec of bytes and with a real tokenizer, log-probabilities included;
- a transformers model that samples one request at a time (`max_batch_size=1`), log-probabilities included;
- a chat API whose answers depend on the seed that it is sent.

A transformers model that samples in batches is not bit-deterministic: how many rows a matrix product has decides in
which order it is summed. Its ids are the same here and its log-probabilities agree to 1e-4; that is tested too, for a
tiny greedy model, and is no promise for a large one, where a difference of the last bit may turn a close choice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from fake_server import Answer, Asked, fake_server

from llm_envs.chat import ChatCodec
from llm_envs.checker.catalogue import suite_ids
from llm_envs.data.records import to_record
from llm_envs.policies import ChatAPIPolicy, OraclePolicy, RandomPolicy, TransformersPolicy
from llm_envs.policies.base import Policy
from llm_envs.policies.scripted import before_turn
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams, Trajectory, validate_batch

TASKS = suite_ids()
CONCURRENCIES = (1, 7, 64)
REPLIES = [
    "<answer>5</answer>",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>',
    "a long reply that no task asked for",
    "",
]


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec(tiny_tokenizer())


def serialised(trajectories: Sequence[Trajectory]) -> bytes:
    """Return all that is recorded, but the times: as JSON, and as the records of a table with their arrays' bytes."""
    lines = []
    for trajectory in trajectories:
        data = trajectory.to_dict(timings=False)
        record = to_record(Trajectory.from_dict(data | {"timings": {}}))
        arrays = [row.pop(name).tobytes().hex() for row in record["rows"] for name in ("ids", "mask", "logps")]
        for turn in record["turns"]:
            del turn["seconds"], turn["tool_results"]  # the results are in the first part, without their times
        lines += [json.dumps(data, allow_nan=False), json.dumps(record), *arrays]
    return "\n".join(lines).encode()


def shuffled(policy: Policy) -> Policy:
    """Return the policy, with turns that take a random number of turns of the event loop: any order of finishing."""
    clock = Random()

    async def wait(random: Random) -> None:
        for _ in range(clock.randrange(4)):
            await asyncio.sleep(0)

    return before_turn(policy, wait)


def collected(env: Any, policy: Policy, concurrency: int, n: int = 4, group_size: int = 3, **settings: Any) -> bytes:
    settings = {"limits": RolloutLimits(max_turn_tokens=40, max_turns=4)} | settings
    with Collector(env, policy, max_concurrency=concurrency, progress=False, **settings) as collector:
        trajectories = [t for group in collector.collect(n, group_size) for t in group]
    assert len(trajectories) == n * group_size and {t.status for t in trajectories} == {"ok"}
    assert validate_batch(trajectories) == []
    return serialised(trajectories)


@pytest.mark.levels
@pytest.mark.parametrize(
    "env_id", [pytest.param(name, marks=pytest.mark.smoke) if n % 12 == 0 else name for n, name in enumerate(TASKS)]
)
def test_every_task_with_every_policy_without_a_model(env_id: str, codec: ChatCodec) -> None:
    plays: list[tuple[Policy, Any]] = [
        (OraclePolicy(), None),
        (OraclePolicy(), codec),
        (RandomPolicy(REPLIES), ByteCodec()),
        (HashingTokenPolicy(ByteCodec(), REPLIES), ByteCodec()),
        (HashingTokenPolicy(codec, REPLIES), codec),
    ]
    for policy, its_codec in plays:
        found = [
            collected(env_id, shuffled(policy), concurrency, codec=its_codec, seed=5) for concurrency in CONCURRENCIES
        ]
        for concurrency, other in zip(CONCURRENCIES[1:], found[1:], strict=True):
            assert other == found[0], f"{type(policy).__name__}, {concurrency}: {first_difference(found[0], other)}"


def first_difference(one: bytes, other: bytes) -> str:
    """Return the texts around the first byte that differs; the whole of them would be megabytes."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    return f"{one[max(0, place - 200) : place + 200]!r} became {other[max(0, place - 200) : place + 200]!r}"


def test_another_seed_is_another_run() -> None:
    """And what is compared has what would differ: a test that could not fail would be none."""
    policy = HashingTokenPolicy(ByteCodec(), REPLIES)
    runs = [collected(TASKS[0], policy, 7, codec=ByteCodec(), seed=seed) for seed in (5, 6)]
    policy.version = 1
    runs.append(collected(TASKS[0], policy, 7, codec=ByteCodec(), seed=5))  # only versions and log-probabilities
    assert len(set(runs)) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_model_that_samples_one_request_at_a_time(codec: ChatCodec, temperature: float) -> None:
    model = tiny_model(codec.tokenizer, hidden_size=32, max_length=2048)
    settings: dict[str, Any] = {"sampling": SamplingParams(temperature=temperature), "codec": codec}
    found = []
    for concurrency in CONCURRENCIES:
        policy = TransformersPolicy(model, codec.tokenizer, max_batch_size=1, gather_s=0.0)
        limits = RolloutLimits(max_turn_tokens=6, max_turns=2)
        found.append(collected("llm/Calculator-v0", policy, concurrency, 3, 3, limits=limits, **settings))
    assert found[0] == found[1] == found[2]


def test_a_greedy_model_in_batches_writes_the_same_ids(codec: ChatCodec) -> None:
    model = tiny_model(codec.tokenizer, hidden_size=32, max_length=2048)
    runs = []
    for concurrency in CONCURRENCIES:
        with Collector(
            "llm/Calculator-v0", TransformersPolicy(model, codec.tokenizer), codec=codec, progress=False,
            max_concurrency=concurrency, sampling=SamplingParams(temperature=0.0),
            limits=RolloutLimits(max_turn_tokens=6, max_turns=2),
        ) as collector:  # fmt: skip
            runs.append([t for group in collector.collect(3, 3) for t in group])
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert one.messages == other.messages and one.turns == other.turns
            assert one.rows[0].ids.tolist() == other.rows[0].ids.tolist()
            assert np.abs(one.rows[0].logps - other.rows[0].logps).max() < 1e-4


def answer(asked: Asked, n_before: int) -> Answer:
    """A chat API that is reproducible by its seed: what it says is a hash of the request."""
    digest = hashlib.blake2b(json.dumps(asked.body, sort_keys=True).encode(), digest_size=4).digest()
    said = {"role": "assistant", "content": str(digest[0] % 10)}
    return Answer(body={"choices": [{"message": said, "finish_reason": "stop"}]}, delay_s=0.001 * (digest[1] % 5))


def test_a_chat_api_that_knows_seeds() -> None:
    def run(url: str, concurrency: int, seed: int) -> bytes:
        policy = ChatAPIPolicy(url, "m")
        return collected(NumbersEnv, policy, concurrency, env_kwargs={"n_turns": 2}, seed=seed)

    with fake_server(answer) as server:
        found = [run(server.url, concurrency, 5) for concurrency in CONCURRENCIES]
        assert found[0] == found[1] == found[2]
        seeds = [asked.body["seed"] for asked in server.asked]
        assert len(set(seeds)) == 24 and sorted(seeds[:24]) == sorted(seeds[24:48])  # one a turn, the same in each run
        assert run(server.url, 7, 6) != found[0]
        assert set(seeds).isdisjoint(asked.body["seed"] for asked in server.asked[72:])
