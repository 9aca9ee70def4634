"""Multi-query models, as the tiny one is: no trainer gives a kernel one view of keys and values beside a mask."""

import pytest
from attention_calls import masked_attention
from trainings import DENSE, PLAYED, QUIET, TRAINERS

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]


@pytest.fixture(scope="module")
def played(tiny_folder):
    """Eight groups of four episodes: replies of several lengths."""
    tokenizer = load_tokenizer(tiny_folder)
    policy, sampling = TransformersPolicy(load_model(tiny_folder), tokenizer), SamplingParams(max_new_tokens=8)
    with Collector(DENSE, policy, codec=ChatCodec(tokenizer), sampling=sampling, progress=False) as collector:
        return [trajectory for group in collector.collect(8, 4) for trajectory in group]


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_step_copies_single_heads(tiny_folder, tmp_path, played, keep, kind):
    trainer, config = TRAINERS[kind]
    plays = kind in ("grpo", "ppo")
    args = config(str(tmp_path), max_steps=1, **QUIET, **PLAYED if plays else {})
    with masked_attention() as calls:
        keep(trainer(tiny_folder, args=args, **{"env": DENSE} if plays else {"source": played})).train()
    assert calls and not any(calls)
