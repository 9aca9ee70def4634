"""TRL's GRPO trainer with episodes in place of completions: rollout, rows, guard, and splitting of large micro-batches.

Invariants:
1. Training uses exactly the sampled tokens. Ids are never decoded and re-encoded. On the first batch, a guard compares
   the log-probabilities from sampling with the trainer's.
2. The loss covers only the policy's tokens: `env_mask` is 0 on every token from the environment or the template.
3. All members of a group play the same seed, on the same process.
4. Each sampled token is trained in exactly one row. If an episode's history forks, the episode has several rows: all
   share its advantage, and the first carries its reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from llm_envs.chat.codec import ChatCodec
from llm_envs.policies.inference.positions import pass_positions
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rollout import Collector, ContextFn
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.sources.source import group_specs
from llm_envs.trainers.bridge.checks import training_template
from llm_envs.trainers.bridge.credit import RewardSettings, score_episodes
from llm_envs.trainers.bridge.filtered import unfiltered_rows
from llm_envs.trainers.bridge.generation import GenerationPlayer, close_player, make_collector, own_engine
from llm_envs.trainers.bridge.guard import check_gap
from llm_envs.trainers.bridge.items import EpisodeDataset
from llm_envs.trainers.bridge.kept import KeptRows
from llm_envs.trainers.bridge.ranks import raise_on_all_ranks
from llm_envs.trainers.bridge.trl_rows import create_column_reader, rollout_output
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.grpo.generation import Generation
from llm_envs.trainers.grpo.step import StepShares, sampling_gap, slice_rows
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from llm_envs.rollout.token_transcript import History

__all__ = ["PlayingTrainer"]


class PlayingTrainer(GRPOTrainer):
    """Plays episodes for TRL's trainer and returns their tokens. `EnvGRPOTrainer` adds advantages and loss."""

    args: EnvGRPOConfig
    items: Mapping[str, EpisodeDataset]
    generations: dict[str, Generation]
    """The latest generation on this process, of training ("train") and of evaluation ("eval")."""
    last_trajectories: list[Trajectory]
    """The episodes that were played last, in the order of TRL's rows."""
    fresh_logps: torch.Tensor | None
    """Log-probabilities of the latest forward pass."""
    _policy: Any
    _player: GenerationPlayer
    _context_fn: ContextFn | None
    _trajectory_filter: TrajectoryFilter | None
    _task_weights: Mapping[str, float]
    _mask_truncated: bool
    _guarded: bool

    def _reward_settings(self) -> RewardSettings:
        """Return the reward settings of the current generation."""
        raise NotImplementedError

    def _start_vllm(self) -> Any:
        self.vllm_generation = own_engine(self)
        self.use_vllm = True
        # TRL syncs the weights when this differs from the step, so -1 makes it sync before the first rollout.
        self._last_loaded_step = -1
        return self.vllm_generation.policy

    def _start_collector(self) -> Collector:
        args = self.args
        template = training_template(self._tokenizer) if args.use_training_template else None
        codec = ChatCodec(self._tokenizer, thinking=args.thinking, chat_template=template)
        history = cast("History", args.history)
        return make_collector(
            self.items["train"], self._policy, codec, args, history=history, context_fn=self._context_fn
        )

    @property
    def _mode(self) -> str:
        model: Any = self.model
        return "train" if model.training else "eval"

    def _n_further_rows(self, n_forks: int) -> int:
        """Return how many rows to add for forked episodes: the same number on every process, in whole groups.

        Args:
            n_forks: Rows beyond the first of each episode, on this process.
        """
        if self.args.history == "append" and self._context_fn is None:
            return 0
        # TRL reshapes rewards into groups and splits a generation evenly into micro-batches: round up to fit both.
        unit = group_size = self._shares.group_size
        if self._mode == "train":
            unit = math.lcm(group_size, int(self.args.steps_per_generation or 1))
        return -(-max(gather_object([n_forks])) // unit) * unit

    @property
    def generation(self) -> Generation:
        """The generation under way in the current mode."""
        return self.generations[self._mode]

    def _play(self, inputs: list[dict[str, Any]]) -> Generation:
        """Play one episode for each of TRL's rows."""
        if isinstance(self._policy, TransformersPolicy):
            self._policy.weight_version = self.state.global_step
        mode = self._mode
        rows = self._player.play(inputs, mode=mode, step=self.state.global_step, group_size=self._shares.group_size)
        if mode == "train":
            self._player.learn()
        # Reward functions are user code. If one fails here only, the other processes would wait at the next collective.
        with raise_on_all_ranks():
            episodes = score_episodes(rows, self._reward_settings(), self._task_weights)
        self.last_trajectories = list(episodes.trajectories)
        kept = KeptRows(episodes.trajectories) if self.args.keep_sampling_mask else KeptRows()
        self.generations[mode] = Generation(inputs, episodes, kept)
        return self.generations[mode]

    def _trl_settings(self, generation: Generation) -> dict[str, Any]:
        """Return the attributes by which TRL's methods take the episodes and rewards of a generation."""
        # TRL gathers one tensor with a column for each function, so all processes need the same columns, whatever tasks
        # they played.
        parts = gather_object([list(generation.episodes.weights.items())])
        weights = dict(item for part in parts for item in part) or {"reward": 1.0}
        return {
            "rollout_func": lambda prompts, trainer: self._rows(generation, len(prompts)),
            "reward_funcs": [create_column_reader(name) for name in weights],
            "reward_func_names": list(weights),
            "reward_processing_classes": [None] * len(weights),  # as TRL sets it for functions
            "reward_weights": torch.tensor(list(weights.values()), dtype=torch.float32),
        }

    def _rows(self, generation: Generation, n_rows: int) -> dict[str, list[Any]]:
        """Return the episodes as TRL's rows. TRL calls this as its `rollout_func`, after `_play`."""
        rows = rollout_output(
            generation.episodes.trajectories,
            pad_id=int(self._tokenizer.pad_token_id),
            mask_truncated=self._mask_truncated,
            trajectory_filter=self._trajectory_filter,
            n_rows=n_rows,
            columns=generation.episodes.columns,
        )
        # The sampler's log-probabilities are of the filtered distribution. Correct them only if something reads them.
        sampling = self.collector.sampling
        is_weighted = self.use_vllm and self.vllm_importance_sampling_correction
        is_read = is_weighted or self.off_policy_mask_threshold is not None or not self._guarded
        if sampling.keep_mask or not has_filters(sampling) or not is_read:
            return rows
        with self._whole_activations():
            return rows | {"logprobs": unfiltered_rows(self.model, rows, sampling)}

    def _guard(self, output: Mapping[str, Any]) -> bool:
        """Raise if the log-probabilities from sampling differ from those of the trained model.

        Returns:
            Whether any process had tokens to compare.

        Raises:
            ModelError: If their mean gap exceeds `args.logps_tolerance`.
        """
        args = self.args
        own = sampling_gap(lambda batch: self._score(self.model, batch)[0], output, args.per_device_train_batch_size)
        gaps = [total / n for total, n in gather_object([own]) if n]
        if not gaps:
            return False
        mean_gap = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)  # all processes stop, or none
        self._metrics["train"]["sampling/guard_logps_gap"].append(mean_gap)
        check_gap(mean_gap, args.logps_tolerance)
        return True

    def _log_episodes(self) -> None:
        """Log the environment's metrics of the latest episodes, over all processes."""
        mode = self._mode
        metrics = self._player.metrics(mode)
        for name, value in metrics.items():
            self._metrics[mode][f"env/{name}"].append(value)
        self._player.check_failures(self.last_trajectories)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a micro-batch, in parts of the configured size if forks made the micro-batch larger.

        Losses normalised by the tokens of the whole batch (dapo, cispo) are sums over rows, so parts can be added.
        Gradients of all parts but the last are accumulated here, which keeps memory use unchanged.
        """
        size = self.args.per_device_train_batch_size
        n_rows = len(inputs["prompt_ids"]) if isinstance(inputs, dict) else 0
        # bnpo, TRL's entropy bonus and a router's loss are means over the micro-batch, which parts would count several
        # times. DeepSpeed's engine steps at every backward pass.
        has_means = self.loss_type == "bnpo" or self._entropy_bonus_enabled or self.aux_loss_enabled
        is_whole = has_means or self.is_deepspeed_enabled
        if n_rows <= size or self._mode != "train" or is_whole:
            loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
            return loss
        done = torch.zeros((), device=self.accelerator.device)
        for start in range(0, n_rows, size):
            part = {key: slice_rows(value, start, start + size) for key, value in inputs.items()}
            if start + size >= n_rows:  # transformers runs the backward pass of the last part
                return super().compute_loss(model, part, *args, **kwargs) + done
            with self.accelerator.no_sync(model):
                loss = super().compute_loss(model, part, *args, **kwargs)
                self.accelerator.backward(loss)
            done = done + loss.detach()
        return done

    def _score(self, model: Any, inputs: Mapping[str, Any], **asked: Any) -> tuple[torch.Tensor, Any, Any]:
        """Return TRL's log-probabilities, entropies and auxiliary loss of a batch's completions."""
        result: tuple[torch.Tensor, Any, Any] = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            **asked,
        )
        return result

    @torch.no_grad()
    def _score_without_gradient(self, inputs: Mapping[str, Any], **asked: Any) -> torch.Tensor:
        """Return the trained model's log-probabilities of a batch's completions."""
        with self._whole_activations():
            return self._score(self.model, inputs, **asked)[0]

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's result, with position ids that start at each row's first token; keep the log-probabilities."""
        # TRL's loss does not return them, and a KL measured for a moving reference or a schedule needs them.
        pass_positions(self.accelerator.unwrap_model(args[0]))
        if self.args.keep_sampling_mask:
            own: dict[str, Any] = {"temperature": self.temperature, "accelerator": self.accelerator}
            result: Any = self.generation.kept.scores(*args, **kwargs | own)
        else:
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.fresh_logps = result[0]
        return result

    @property
    def _shares(self) -> StepShares:
        """How micro-batches share an optimizer step, in the current mode."""
        n_processes = self.accelerator.num_processes
        if self._mode == "eval":
            return StepShares(n_processes, 1, 1, None, int(self.num_generations_eval or 1))
        return StepShares(
            n_processes,
            int(self.args.steps_per_generation or 1),
            int(self.current_gradient_accumulation_steps),
            int(self.args.per_device_train_batch_size),
            int(self.num_generations or 1),
        )

    def _whole_activations(self) -> AbstractContextManager[None]:
        """Return TRL's context that turns gradient checkpointing off, for passes without gradient."""
        model: Any = self.model
        kwargs: Any = self.args.gradient_checkpointing_kwargs
        context: AbstractContextManager[None] = disable_gradient_checkpointing(model, kwargs)
        return context

    def _log_mean(self, name: str, value: torch.Tensor) -> None:
        """Log the mean of a scalar over the processes, ignoring NaN (a process with nothing to report)."""
        self._metrics[self._mode][name].append(self.accelerator.gather(value.detach()).nanmean().item())

    @property
    def collector(self) -> Collector:
        """The collector that plays the episodes."""
        return self._player.collector

    @property
    def policy(self) -> Any:
        """The sampling policy: the trainer's own model, or a colocated engine."""
        return self._policy

    def play_sample(self, index: int = 0) -> list[Trajectory]:
        """Play one group of training item `index` with the current weights. Nothing is trained or saved."""
        specs = group_specs(self.items["train"].spec(index, f"sample-{index}"), int(self.num_generations or 1))
        return list(self.collector.play([specs])[0].trajectories)

    def close(self) -> None:
        """Close the trajectories' log and end the collector's and the policy's threads."""
        close_player(self._player, self._policy)
