"""Our environments in TRL's own, unmodified `GRPOTrainer`, through the two interfaces that it offers.

`rollout_func` plays episodes with the collector; `environment_factory` lets TRL's tool loop play.
docs/guides/trl.md compares both with `EnvGRPOTrainer`.

    GRPOTrainer(model, env_reward, args, episode_dataset(ENV, n), rollout_func=rollout_func(ENV))
    GRPOTrainer(model, env_reward, args, prompt_dataset(ENV, n), environment_factory=environment_factory(ENV))
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.policies.vllm.engine import VLLMEnginePolicy
from llm_envs.registration import task_spec
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits
from llm_envs.sources.source import Envs, group_specs
from llm_envs.trainers.engines.engines import tokenizer_of, trainer_policy
from llm_envs.trainers.episodes.advantages import with_advantages
from llm_envs.trainers.episodes.batches import REWARD_FIELD, batch_from_trl, rollout_output
from llm_envs.trainers.episodes.generation import check_room, close_policy, sampling_of
from llm_envs.trainers.episodes.items import EpisodeDataset, index_dataset, make_items, name_of
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.stock_trl.tool_loop import TOOL_LOOP_STOPS, ToolLoopEpisode
from llm_envs.types import StopReason, Trajectory

if TYPE_CHECKING:
    import torch
    from trl import GRPOTrainer

__all__ = [
    "EnvRollout",
    "algorithm_advantages",
    "component_reward",
    "env_reward",
    "episode_dataset",
    "rollout_func",
]


class _OurReason(logging.Filter):
    """Says in a line what TRL tells in a paragraph of all columns: an episode has no reward."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("All reward functions returned None"):
            record.msg = (
                "An episode failed, so it has no reward and is not trained on. env/errored is the share of such "
                "episodes, and env_reward's warning has the reasons."
            )
        return True


logging.getLogger("trl.trainer.grpo_trainer").addFilter(_OurReason())
logger = logging.getLogger(__name__)

_PROMPT = re.compile(r"(?P<name>.+) (?P<split>\S+) #(?P<index>\d+)")


def episode_dataset(env: Envs, n: int, *, split: str = "train") -> Dataset:
    """Return the data set for `rollout_func`: `n` numbered episodes, with their names as prompts.

    TRL passes only the prompts to a `rollout_func`, so each prompt names its episode: "llm/X-v0 train #7".

    Args:
        env: The same environments as for `rollout_func`.
        n: Distinct episodes: the rows of one epoch.
        split: Split of the environments.

    Returns:
        A data set with the columns `prompt`, `index` and `split`.
    """
    return index_dataset(make_items(env, split, n, seed=0, env_kwargs={}), split)


def algorithm_advantages(
    trajectories: Sequence[Trajectory], algorithm: Algorithm, generation: Mapping[str, Any]
) -> torch.Tensor:
    """Return an algorithm's advantages for TRL's rows, which TRL computes by itself from one number per episode.

    For a subclass of TRL's trainer, whose loss takes them by row or by token.

    Args:
        trajectories: The episodes of the rows, in their order: `EnvRollout.last_trajectories`.
        algorithm: Only its `advantage_fn` and `by_state` are used.
        generation: The result of TRL's `_generate_and_score_completions`.

    Returns:
        Shape (B,), or (B, T) over the completions; 0 outside the policy's tokens.
    """
    episodes = score_episodes(trajectories, RewardSettings(), {})
    batch, _ = with_advantages(batch_from_trl(generation), algorithm, episodes)
    assert batch.advantages is not None
    return batch.advantages


class EnvRollout:
    """A `rollout_func` for TRL's `GRPOTrainer` that plays environments with the collector.

    The policy is the trainer's own model, or with `use_vllm` TRL's colocated engine. `trainer.args` has the sampling
    settings (temperature, filters, `max_completion_length`; `chat_template_kwargs["enable_thinking"]`). Consecutive
    equal prompts are the members of a group: they play the same seed.

    It returns TRL's fields and, for reward functions, the columns `trajectory_reward`, `reward_components`,
    `is_success` (None if the episode failed), `stop_reason` and `n_turns`.

    Args:
        env: An environment id, a factory or a weighted mixture (see `llm_envs.rollout.Envs`).
        env_kwargs: Keyword arguments of every environment.
        seed: Run seed, which maps numbers to problems. None: `trainer.args.seed`; `EnvGRPOTrainer` then plays the same
            episodes.
        limits: Limits of an episode; `max_completion_tokens` is `trainer.args.max_completion_length`.
        max_concurrency: Concurrent episodes.
        **collecting: Other arguments of `Collector`, such as `workers` or `on_trajectory=TrajectoryWriter(...).write`.

    Raises:
        InvalidConfigError: If a setting is wrong.
        UnknownTaskError: If no environment has the id.
    """

    last_trajectories: list[Trajectory]
    """The episodes of the latest generation on this process, in the order of TRL's rows."""

    def __init__(
        self,
        env: Envs,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        limits: RolloutLimits | None = None,
        max_concurrency: int = 128,
        **collecting: Any,
    ) -> None:
        self._env, self._env_kwargs, self._seed = env, dict(env_kwargs or {}), seed
        self._limits, self._collecting = limits or RolloutLimits(), {"max_concurrency": max_concurrency} | collecting
        self._items: dict[str, EpisodeDataset] = {}
        self._trainer: GRPOTrainer | None = None
        self._policy: TransformersPolicy | VLLMEnginePolicy
        self._collector: Collector
        self._last_generation = {"train": (-1, -1), "eval": (-1, -1)}  # (step, how many before it in that step)
        self.last_trajectories = []
        for choice in make_items(env, "train", 1, seed=0, env_kwargs=self._env_kwargs).source.choices:
            if choice.factory is None:
                task_spec(choice.env_id)  # reject a wrong id before training

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play one episode for each prompt, and return the fields that TRL expects.

        Raises:
            InvalidConfigError: If the prompts are not from `episode_dataset`, or the trainer's sampling is unsupported.
        """
        if trainer is not self._trainer:
            self._start(trainer)
        # TRL has synced its engine before it calls us; the transformers policy reads the trained model itself.
        self._policy.weight_version = trainer.state.global_step
        groups = self._collector.play(self._specs(prompts, trainer))
        self.last_trajectories = played = [trajectory for group in groups for trajectory in group]
        pad_id: Any = tokenizer_of(trainer).pad_token_id
        output = rollout_output(played, pad_id=int(pad_id), mask_truncated=trainer.mask_truncated_completions)
        return output | _columns(played)

    def close(self) -> None:
        """End the collector's and the policy's threads. The next call starts new ones."""
        if self._trainer is None:
            return
        self._trainer = None
        self._collector.close()
        close_policy(self._policy)

    def _start(self, trainer: GRPOTrainer) -> None:
        # A collector samples with one trainer's policy, so end the threads of the previous trainer's.
        self.close()
        args: Any = trainer.args
        seed = args.seed if self._seed is None else self._seed
        self._items = {}
        self._policy = _policy(trainer, self._collecting["max_concurrency"])
        max_completion = int(args.max_completion_length or 256)
        check_room(max_completion, self._policy)
        thinking = (args.chat_template_kwargs or {}).get("enable_thinking")
        self._collector = Collector(
            self._items_of("train", seed).source,
            self._policy,
            codec=ChatCodec(tokenizer_of(trainer), thinking=thinking),
            sampling=sampling_of(args, self._limits.max_turn_tokens or max_completion, thinking=thinking),
            limits=replace(self._limits, max_completion_tokens=max_completion),
            seed=seed,
            progress=False,
            **self._collecting,
        )
        self._trainer, self._run_seed = trainer, seed

    def _items_of(self, split: str, seed: int) -> EpisodeDataset:
        if split not in self._items:
            # The number of items does not matter: the prompt has the index, and every index is a valid item.
            self._items[split] = make_items(self._env, split, 1, seed=seed, env_kwargs=self._env_kwargs)
        return self._items[split]

    def _specs(self, prompts: Sequence[str], trainer: GRPOTrainer) -> list[tuple[EpisodeSpec, ...]]:
        """Return the episodes of this generation; consecutive equal prompts are the members of one group."""
        model: Any = trainer.model
        mode, step = "train" if model.training else "eval", trainer.state.global_step
        last_step, before = self._last_generation[mode]
        self._last_generation[mode] = (step, before + 1 if step == last_step else 0)
        # Sampling seeds are derived from the group id, so it must be the same in a resumed run.
        prefix = f"{mode}-{step}-{self._last_generation[mode][1]}-{trainer.accelerator.process_index}"
        # TRL may draw the same item for two groups in a row, so equal prompts are cut into groups of this size.
        most = int((trainer.num_generations if mode == "train" else trainer.num_generations_eval) or 1)
        specs, start = [], 0
        for prompt, members in groupby(prompts):
            n_left = sum(1 for _ in members)
            while n_left:
                size = min(n_left, most)
                specs.append(group_specs(self._spec(prompt, f"{prefix}-{start}"), size))
                start, n_left = start + size, n_left - size
        return specs

    def _spec(self, prompt: Any, group_id: str) -> EpisodeSpec:
        parts = _PROMPT.fullmatch(prompt) if isinstance(prompt, str) else None
        items = None if parts is None else self._items_of(parts["split"], self._run_seed)
        if parts is None or items is None or name_of(items) != parts["name"]:
            name = name_of(self._items_of("train", self._run_seed))
            raise InvalidConfigError(
                f"the prompt {prompt!r:.200} is of no episode of {name}: give the trainer "
                f"train_dataset=episode_dataset({name!r}, n), and rollout_func the same environments."
            )
        return items.spec(int(parts["index"]), group_id)


rollout_func = EnvRollout
"""The class, under TRL's name of the argument."""


def env_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    environments: Sequence[Any] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the environment's reward of each episode; None if it failed. Works with both interfaces.

    Also logs this process's `env/success`, `env/errored`, `env/turns` and `env/stop/<reason>` with TRL's metrics.
    """
    episodes = _episodes(completions, environments, columns)
    if log_metric is not None and episodes:
        scored = [episode for episode in episodes if episode["reward"] is not None]
        log_metric("env/errored", 1.0 - len(scored) / len(episodes))
        if failed := Counter(str(e["stop_reason"]) for e in episodes if e["reward"] is None):
            reasons = ", ".join(f"{reason} x{count}" for reason, count in failed.most_common())
            logger.warning(f"{failed.total()} of {len(episodes)} episodes failed and are not trained on: {reasons}")
        if scored:
            log_metric("env/success", sum(bool(episode["is_success"]) for episode in scored) / len(scored))
            log_metric("env/turns", sum(episode["n_turns"] for episode in scored) / len(scored))
            stops = Counter(episode["stop_reason"] for episode in scored)
            for reason in TOOL_LOOP_STOPS if environments is not None else map(str, StopReason):
                log_metric(f"env/stop/{reason}", stops[reason] / len(scored))  # zeros too, since TRL takes the mean
    return [episode["reward"] for episode in episodes]


def component_reward(name: str) -> Callable[..., list[float | None]]:
    """Return a reward function for one of the environment's reward components, unweighted; TRL logs it by that name.

    Use it instead of `env_reward`: `reward_funcs=[component_reward("correct"), component_reward("malformed")]` with
    `GRPOConfig(reward_weights=[1.0, -0.1])` gives the environment's reward, combined in either of TRL's two ways. The
    reward is None if the episode failed or has no such component. Works with both interfaces.
    """

    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], *, environments: Any = None, **columns: Any
    ) -> list[float | None]:
        episodes = _episodes(completions, environments, columns)
        return [None if e["reward"] is None else e["components"].get(name) for e in episodes]

    reward.__name__ = name
    return reward


def _episodes(
    completions: Sequence[Any], environments: Sequence[Any] | None, columns: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the outcome of each episode, from the interface that played it."""
    if environments is not None:
        played: list[ToolLoopEpisode] = [environment._episode for environment in environments]
        for episode, completion in zip(played, completions, strict=True):
            episode.finish(completion)
        return [episode.outcome() for episode in played]
    if REWARD_FIELD not in columns:
        raise InvalidConfigError(
            "there are no episodes to reward: the trainer needs rollout_func=rollout_func(env) or "
            "environment_factory=environment_factory(env)."
        )
    names = {
        "reward": REWARD_FIELD,
        "components": "reward_components",
        "is_success": "is_success",
        "stop_reason": "stop_reason",
        "n_turns": "n_turns",
    }
    return [{name: columns[column][i] for name, column in names.items()} for i in range(len(completions))]


def _columns(trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    ok = [trajectory.status == "ok" for trajectory in trajectories]
    return {
        "reward_components": [dict(t.components) if is_ok else None for t, is_ok in zip(trajectories, ok, strict=True)],
        "is_success": [t.is_success for t in trajectories],
        "stop_reason": [t.stop_reason.value for t in trajectories],
        "n_turns": [len(t.turns) for t in trajectories],
    }


def _policy(trainer: GRPOTrainer, max_batch_size: int) -> TransformersPolicy | VLLMEnginePolicy:
    """Return the policy that samples with the trainer's present weights.

    Raises:
        InvalidConfigError: If the trainer's sampling is unsupported: a server, a sleeping or a sharded engine, or a
            sharded model.
    """
    args: Any = trainer.args
    if args.use_vllm:
        wanted = {"vllm_mode": "colocate", "vllm_enable_sleep_mode": False, "vllm_tensor_parallel_size": 1}
        for name, value in wanted.items():
            if getattr(args, name) != value:
                raise InvalidConfigError(f"{name}={getattr(args, name)!r} is not supported here: set {name}={value!r}.")
        return VLLMEnginePolicy(trainer.vllm_generation.llm, tokenizer_of(trainer))
    return trainer_policy(trainer, max_batch_size)
