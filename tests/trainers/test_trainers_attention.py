"""Multi-query models, as the tiny one is: no trainer gives a kernel one view of keys and values beside a mask."""

import pytest
from attention_calls import masked_attention
from dense_env import DenseEnv

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice
from llm_envs.trainers import (
    EnvDPOConfig,
    EnvDPOTrainer,
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
    EnvSFTConfig,
    EnvSFTTrainer,
)
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]

ENV = EnvChoice("dense", factory=DenseEnv)
SHARED = ("output_dir", "max_steps", "gradient_checkpointing", "bf16", "save_strategy", "report_to", "disable_tqdm")


@pytest.fixture(scope="module")
def played(tiny_folder):
    """Eight groups of four episodes: replies of several lengths."""
    tokenizer = load_tokenizer(tiny_folder)
    policy, sampling = TransformersPolicy(load_model(tiny_folder), tokenizer), SamplingParams(max_new_tokens=8)
    with Collector(ENV, policy, codec=ChatCodec(tokenizer), sampling=sampling, progress=False) as collector:
        return [trajectory for group in collector.collect(8, 4) for trajectory in group]


def shared(config, *more):
    settings = config()
    return {name: getattr(settings, name) for name in (*SHARED, *more)}


MADE = {
    "grpo": lambda folder, config, played: EnvGRPOTrainer(folder, ENV, config()),
    "ppo": lambda folder, config, played: EnvPPOTrainer(
        folder, ENV, EnvPPOConfig(**shared(config, "max_completion_length", "max_turn_tokens", "num_train_seeds"))
    ),
    "dpo": lambda folder, config, played: EnvDPOTrainer(folder, args=EnvDPOConfig(**shared(config)), source=played),
    "sft": lambda folder, config, played: EnvSFTTrainer(folder, args=EnvSFTConfig(**shared(config)), source=played),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_step_copies_single_heads(tiny_folder, config, played, kind):
    with masked_attention() as calls:
        trainer = MADE[kind](tiny_folder, config, played)
        trainer.train()
        if kind in ("grpo", "ppo"):
            trainer.close()
    assert calls and not any(calls)
