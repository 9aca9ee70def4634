"""Learners for `certify`: whether a model improves on an environment within a small budget."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import gymnasium as gym
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llm_envs.chat import ChatCodec
from llm_envs.evaluation import evaluate
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.grpo.quickstart import quick_start_training
from llm_envs.trainers.sft import EnvSFTConfig, EnvSFTTrainer
from llm_envs.types import SamplingParams, Trajectory

__all__ = ["learn_by_reinforcement", "learn_from_oracle"]

Maker = Callable[..., gym.Env[str, str]]

_LONGEST = 1_024
"""Tokens of context of the tiny model; longer episodes are left out."""


def learn_from_oracle(
    make: Maker, *, n_episodes: int = 1_000, n_steps: int = 150, n_eval: int = 32, max_turn_tokens: int = 32
) -> tuple[float, float]:
    """Train a tiny model with random weights on the oracle's episodes; return its mean return before and after.

    Args:
        make: Makes the environment, which needs a method `oracle`.
        n_episodes: Episodes of the oracle to learn from.
        n_steps: Optimizer steps, each of 16 episodes.
        n_eval: Episodes of each evaluation, under seeds that the oracle did not play.
        max_turn_tokens: Most tokens of one reply.
    """

    def played(tokenizer: PreTrainedTokenizerBase, n: int) -> list[Trajectory]:
        with Collector(make, OraclePolicy(), codec=ChatCodec(tokenizer), progress=False) as collector:
            return [trajectory for group in collector.collect(n) for trajectory in group]

    plain = tiny_tokenizer()
    texts = [str(plain.decode(trajectory.rows[0].ids)) for trajectory in played(plain, 50)]
    tokenizer = tiny_tokenizer(texts, max_token_length=16)
    model = tiny_model(tokenizer, max_length=_LONGEST)
    before = mean_return(make, model, tokenizer, n=n_eval, max_turn_tokens=max_turn_tokens)
    with TemporaryDirectory() as folder:
        config = EnvSFTConfig(
            output_dir=folder,
            max_steps=n_steps,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            max_length=_LONGEST,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        EnvSFTTrainer(model, args=config, source=played(tokenizer, n_episodes), processing_class=tokenizer).train()
    return before, mean_return(make, model, tokenizer, n=n_eval, max_turn_tokens=max_turn_tokens)


def learn_by_reinforcement(
    make: Maker,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    num_iterations: int = 20,
    n_eval: int = 32,
    max_turn_tokens: int = 256,
    learning_rate: float = 1e-5,
) -> tuple[float, float]:
    """Train a given model with GRPO, in place; return its mean return before and after.

    Pass it to `certify` with the model bound: `partial(learn_by_reinforcement, model=model, tokenizer=tokenizer)`.
    """
    before = mean_return(make, model, tokenizer, n=n_eval, max_turn_tokens=max_turn_tokens)
    quick_start_training(
        model,
        env=make,
        env_kwargs={"split": None},
        tokenizer=tokenizer,
        num_iterations=num_iterations,
        max_turn_tokens=max_turn_tokens,
        learning_rate=learning_rate,
        logger=lambda step, metrics: None,
    )
    return before, mean_return(make, model, tokenizer, n=n_eval, max_turn_tokens=max_turn_tokens)


def mean_return(
    make: Maker, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, n: int, max_turn_tokens: int
) -> float:
    """Return a model's mean return over `n` problems; the same ones for each model."""
    policy = TransformersPolicy(model, tokenizer)
    sampling = SamplingParams(max_new_tokens=max_turn_tokens, temperature=1.0)
    played = evaluate(
        make, policy, n=n, split=None, seed=1, codec=policy.codec, sampling=sampling, max_concurrency=16, progress=False
    )
    return played.mean_reward
