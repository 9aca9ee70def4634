"""What the numbered examples start from: a tiny model that has seen good and bad play of a task alike.

It has 0.14 M parameters, is made in 20 seconds on one CPU core, and is kept in `runs/examples/`, where the next example
finds it; nothing is downloaded. `--model` takes another in its place: a folder, or a name on a hub.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import transformers

from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy, TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer
from llm_envs.types import SamplingParams

GUESS = "llm/GuessNumber-v0"
"""What most examples play, at its easy level: a number from 1 to 10, four guesses."""
OUT = Path("runs/examples")
QUIET = {"gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
"""Settings of a short training whose results are printed by the example itself."""
SHORT = {"max_completion_length": 96, "max_turn_tokens": 16}
"""How long the episodes and the turns of these tasks may get."""
GRPO: dict[str, Any] = {
    "per_device_train_batch_size": 64,
    "num_generations": 8,
    "learning_rate": 6e-4,
    "lr_scheduler_type": "constant",
    **SHORT,
    **QUIET,
}
"""The settings of `06_grpo.py`, for examples that change something else: 8 groups of 8 episodes a step."""

Play = Callable[[gym.Env[str, str], random.Random], str]


def options(doc: str | None, **settings: int) -> argparse.Namespace:
    """Read the command line: `--model`, `--seed`, and a number for each of `settings`, such as `--steps`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a name on a hub; default: a tiny model, made here")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in settings.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return parser.parse_args()


def guess_blindly(env: gym.Env[str, str], chance: random.Random) -> str:
    """Play the guessing game badly."""
    return format_answer(1)


class CoinPolicy:
    """Plays as the oracle does, or in another way: a coin decides for each episode."""

    def __init__(self, other: Play, seed: int = 0) -> None:
        self.other, self._chance = other, random.Random(seed)
        self._plays_well = self._chance.random() < 0.5

    def for_episode(self, seed: int) -> CoinPolicy:
        """Return the policy of one episode."""
        return CoinPolicy(self.other, seed)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Return the next action."""
        return OraclePolicy().act(env, observation) if self._plays_well else self.other(env, self._chance)


def warm_model(env: Any = GUESS, *, name: str = "guess", other: Play = guess_blindly, steps: int = 300) -> str:
    """Return the folder of a model warmed up on `env`, half by its oracle and half by `other`; make it if need be."""
    folder = OUT / f"warm-{name}"
    if (folder / "model.safetensors").exists():
        return str(folder)
    print(f"Making the warm model {folder}, once.", flush=True)
    plain = collect(env, CoinPolicy(other), ChatCodec(tiny_tokenizer()), 100)
    tokenizer = tiny_tokenizer([tiny_tokenizer().decode(t.rows[0].ids) for t in plain], vocab_size=640)
    traces = collect(env, CoinPolicy(other), ChatCodec(tokenizer), 16 * steps)
    args = EnvSFTConfig(
        output_dir=str(folder / "sft"),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        **QUIET,
    )
    trainer = EnvSFTTrainer(
        tiny_model(tokenizer, hidden_size=64, n_layers=3, n_heads=2),
        args=args,
        source=traces,
        processing_class=tokenizer,
    )
    train(trainer)
    trainer.save_model(str(folder))
    shutil.rmtree(folder / "sft", ignore_errors=True)
    return str(folder)


def collect(env: Any, policy: Any, codec: ChatCodec, n: int) -> list[Any]:
    """Play `n` episodes of the train split."""
    with Collector(env, policy, codec=codec, env_kwargs={"split": "train"}, progress=False) as collector:
        return [trajectory for group in collector.collect(n) for trajectory in group]


def train(trainer: Any) -> Mapping[str, list[float]]:
    """Train without a line for every step; return what was logged, by name."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    history = trainer.state.log_history
    return {key: [entry[key] for entry in history if key in entry] for entry in history for key in entry}


def success(trainer: Any, env: Any = GUESS, *, n: int = 200, **env_kwargs: Any) -> float:
    """Return the success of a trainer's model on `n` episodes of the test split, sampled as in training."""
    policy = TransformersPolicy(trainer.model, trainer.processing_class)
    sampling = SamplingParams(max_new_tokens=SHORT["max_turn_tokens"])
    settings: dict[str, Any] = {"sampling": sampling, "max_concurrency": 128, "progress": False}
    return evaluate(env, policy, n=n, codec=policy.codec, seed=1, env_kwargs=env_kwargs, **settings).success_rate
