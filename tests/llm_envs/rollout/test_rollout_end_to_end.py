"""Real models play multi-turn tool episodes; their rows are scored again and have the sampled log-probabilities.

In float32 to 1e-4, at temperature 1 and 0.7 (at 1 a mistake in the temperature cannot be seen), with transformers and
with vLLM, for templates of several families, for both histories, with turns that were cut.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from tool_model import ENV, make_tool_model

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.base import TokenPolicy
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.rollout import Collector, RolloutLimits, create_window
from llm_envs.types import FinishReason, SamplingParams, Trajectory, validate_batch

pytestmark = pytest.mark.transformers


class Witness:
    """Lets a policy sample, and remembers what it was given and what it said, turn by turn."""

    def __init__(self, policy: TokenPolicy) -> None:
        self.policy, self.max_model_len = policy, policy.max_model_len
        self.turns: dict[str, list] = {}

    async def sample(self, prompt_ids, params, *, seed, session):
        sampled = await self.policy.sample(prompt_ids, params, seed=seed, session=session)
        self.turns.setdefault(session, []).append((prompt_ids.copy(), sampled))
        return sampled


def play(policy, codec, *, temperature, n=24, max_turn_tokens=48, **settings) -> tuple[list[Trajectory], Witness]:
    witness = Witness(policy)
    with Collector(
        ENV,
        witness,
        codec=codec,
        env_kwargs={"difficulty": "easy"},
        sampling=SamplingParams(temperature=temperature, max_new_tokens=max_turn_tokens),
        limits=RolloutLimits(max_episode_tokens=1500),
        progress=False,
        **settings,
    ) as collector:
        return [t for group in collector.collect(n) for t in group], witness


def check(trajectories: list[Trajectory], witness: Witness, codec: ChatCodec, model, temperature: float) -> None:
    """Check every row against what the witness saw, and against the model itself."""
    assert validate_batch(trajectories) == []
    assert {t.status for t in trajectories} == {"ok"}
    for trajectory in trajectories:
        seen = witness.turns[f"{trajectory.group_id}/{trajectory.member}"]
        assert len(seen) == len(trajectory.turns)
        assert all(len(row) <= witness.max_model_len for row in trajectory.rows)
        covered = [np.zeros(len(row), dtype=bool) for row in trajectory.rows]
        for turn, (prompt, sampled) in zip(trajectory.turns, seen, strict=True):
            row = trajectory.rows[turn.row]
            start, stop = row.spans[turn.span]
            assert np.array_equal(row.ids[:start], prompt)  # what the model was given is what stands before its words
            assert np.array_equal(row.ids[start:stop], sampled.token_ids)
            assert np.array_equal(row.logps[start:stop], sampled.logps)
            covered[turn.row][start:stop] = True
            if sampled.finish_reason is FinishReason.LENGTH and stop < len(row):
                assert not row.mask[stop] and int(row.ids[stop]) in special_ids(codec)
        for row, sampled_there in zip(trajectory.rows, covered, strict=True):
            assert np.array_equal(row.mask, sampled_there)
            assert len(row.ids) == len(row.mask) == len(row.logps)
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    scores = token_logps(model, [row.ids for row in rows], temperature=temperature)
    gap = max(np.abs(scored - row.logps)[row.mask].max() for row, scored in zip(rows, scores, strict=True))
    assert gap < 1e-4


def special_ids(codec: ChatCodec) -> set[int]:
    return {id_ for id_, token in codec.tokenizer.added_tokens_decoder.items() if token.special}


def n_calls(trajectories: list[Trajectory]) -> int:
    return sum(result.success for t in trajectories for result in t.tool_results)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made: dict[str | None, Path] = {}

    def make(template: str | None) -> Path:
        if template not in made:
            made[template] = tmp_path_factory.mktemp("tool_model")
            make_tool_model(made[template], template, steps=100)
        return made[template]

    return make


@pytest.mark.parametrize(
    ("template", "temperature"),
    [
        *[(None, 1.0), ("llama3_1", 0.7), ("gptoss", 0.7)],
        *(
            pytest.param(*case, marks=pytest.mark.trainings)
            for case in ((None, 0.7), ("glm4moe", 0.7), ("gemma4", 1.0))
        ),
    ],
)
def test_transformers(folder_of, template, temperature):
    folder = folder_of(template)
    policy = TransformersPolicy.from_pretrained(str(folder))
    codec = ChatCodec(policy.tokenizer)
    trajectories, witness = play(policy, codec, temperature=temperature)
    assert n_calls(trajectories) > 4 and sum(len(t.turns) > 1 for t in trajectories) > 12
    check(trajectories, witness, codec, load_model(folder, dtype=torch.float32), temperature)


def test_transformers_with_turns_that_are_cut(folder_of):
    folder = folder_of("llama3_1")
    policy = TransformersPolicy.from_pretrained(str(folder))
    codec = ChatCodec(policy.tokenizer)
    trajectories, witness = play(policy, codec, temperature=1.0, max_turn_tokens=6)
    reasons = [turn.finish_reason for t in trajectories for turn in t.turns]
    assert reasons.count(FinishReason.LENGTH) > 20
    check(trajectories, witness, codec, load_model(folder, dtype=torch.float32), 1.0)


@pytest.mark.parametrize(
    "settings", [{"history": "template"}, {"context_fn": create_window(1)}], ids=["template", "window"]
)
def test_transformers_with_forks(folder_of, settings):
    """GPT-OSS shows an answer otherwise once something follows it; a window drops earlier turns."""
    folder = folder_of("gptoss")
    policy = TransformersPolicy.from_pretrained(str(folder))
    codec = ChatCodec(policy.tokenizer)
    trajectories, witness = play(policy, codec, temperature=1.0, n=48, **settings)
    assert sum(t.n_forks for t in trajectories) > 5
    check(trajectories, witness, codec, load_model(folder, dtype=torch.float32), 1.0)


@pytest.fixture(scope="module")
def engine(folder_of):
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
    from llm_envs.policies import load_engine

    return load_engine(folder_of("llama3_1"), dtype="float32", max_model_len=512, max_num_seqs=64)


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("temperature", "settings"),
    [(1.0, {}), (0.7, {}), (1.0, {"max_turn_tokens": 6}), (1.0, {"context_fn": create_window(1)})],
    ids=["1.0", "0.7", "cut", "window"],
)
def test_vllm(engine, folder_of, temperature, settings):
    from llm_envs.policies import VLLMEnginePolicy

    policy = VLLMEnginePolicy(engine, engine.get_tokenizer())
    try:
        codec = ChatCodec(policy.tokenizer)
        trajectories, witness = play(policy, codec, temperature=temperature, **settings)
        if not settings:
            assert n_calls(trajectories) > 4 and sum(len(t.turns) > 1 for t in trajectories) > 12
        check(trajectories, witness, codec, load_model(folder_of("llama3_1"), dtype=torch.float32), temperature)
    finally:
        asyncio.run(policy.aclose())
