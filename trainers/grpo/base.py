"""TRL's GRPO trainer with everything that any loss on episodes needs and no loss depends on.

The sampling engine, the collector, the guard, splitting of large micro-batches, logs and checkpoints. `trainer.py` has
the way from episodes to the loss; its reader need not open this file.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from accelerate.utils import gather_object, send_to_device
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.files import remove_link
from llm_envs.errors import InvalidConfigError, RolloutFailedError
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import Collector, ContextFn
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.rollout.staleness import off_policy_statistics
from llm_envs.sources.source import group_specs
from llm_envs.tracking.describing import describing
from llm_envs.trainers.engines.engines import colocated_engine
from llm_envs.trainers.episodes.batches import (
    StepShares,
    batch_from_trl,
    pad_rows,
    rollout_output,
    slice_rows,
    take_rows,
)
from llm_envs.trainers.episodes.generation import STATE_FILE, GenerationPlayer, close_policy, make_collector
from llm_envs.trainers.episodes.guard import check_gaps, rounding_of, sampling_gaps
from llm_envs.trainers.episodes.items import EpisodeDataset, RecordedSampler, upcoming_rows
from llm_envs.trainers.episodes.nothing_learned import LearningCount, generation_yield, has_signal, why_nothing
from llm_envs.trainers.episodes.rewards import RewardSettings
from llm_envs.trainers.episodes.training_record import RecordsLearning, precision
from llm_envs.trainers.forward.token_parts import n_token_parts, token_parts
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.masking import trim_padding
from llm_envs.trainers.grpo.algorithms import AlgorithmState
from llm_envs.trainers.grpo.background_evaluation import EvaluatesInBackground
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.grpo.generation import Generation
from llm_envs.trainers.grpo.setup import check_generation
from llm_envs.trainers.reference import Reference, drop_reference_adapter
from llm_envs.trainers.run.checkpoints import ChecksCheckpoint, check_checkpoint
from llm_envs.trainers.run.finite import ChecksNumbers
from llm_envs.trainers.run.model_card import EnvironmentCard
from llm_envs.trainers.run.ranks import function_limit
from llm_envs.trainers.settings.checks import training_template
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from llm_envs.trainers.engines.weight_sync import ColocatedEngine

__all__ = ["EpisodeTrainer"]

logger = logging.getLogger(__name__)

UnfilterFn = Callable[[dict[str, Any]], dict[str, Any]]


class EpisodeTrainer(
    EvaluatesInBackground, RecordsLearning, EnvironmentCard, ChecksNumbers, ChecksCheckpoint, GRPOTrainer
):
    """Samples, guards, logs and saves for `EnvGRPOTrainer`, which adds what is learned."""

    args: EnvGRPOConfig
    items: Mapping[str, EpisodeDataset]
    algorithms: AlgorithmState
    """The algorithms of the run."""
    generations: dict[str, Generation]
    """The latest generation on this process, of training ("train") and of evaluation ("eval")."""
    last_trajectories: list[Trajectory]
    """The episodes that were played last, in the order of TRL's rows."""
    learning: LearningCount
    """The generations of the latest `train` that taught something, and those that did not."""
    max_completion_length: int  # TRL's may be None, which `EnvGRPOConfig` refuses
    _kind: ClassVar[str]
    _policy: Any
    _player: GenerationPlayer
    _reference: Reference
    _context_fn: ContextFn | None
    _guarded: bool
    _reward_settings: RewardSettings
    _task_weights: Mapping[str, float]
    _trajectory_filter: TrajectoryFilter | None
    _sampler: RecordedSampler

    def _start_vllm(self) -> Any:
        self.vllm_generation = colocated_engine(self)
        self.use_vllm = True
        self._synced_step = -1  # no step: the first generation gets the weights too
        return self.vllm_generation.policy

    def _start_collector(self, policy: Any) -> Collector:
        args = self.args
        template = training_template(self.processing_class) if args.use_training_template else None
        codec = ChatCodec(self.processing_class, thinking=args.thinking, chat_template=template)
        context_fn = limited(self._context_fn, function_limit(args), "the context_fn")
        return make_collector(self.items["train"], policy, codec, args, history=args.history, context_fn=context_fn)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._sampler = RecordedSampler(super()._get_train_sampler(dataset))
        return self._sampler

    def _upcoming(self, inputs: list[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
        """Return the steps and rows of the generations to play while the trainer steps on this one."""
        args, n = self.args, self.args.async_generations
        if not n or self._mode != "train":
            return []
        uses, step = self._uses["uses"], self.state.global_step
        coming = upcoming_rows(
            self._sampler.order,
            inputs,
            n=n,
            stride=int(args.generation_batch_size or 1) * uses,
            uses=uses,
            n_accumulated=int(args.gradient_accumulation_steps),
        )
        return [(step + after, rows) for after, rows in coming if step + after < self.state.max_steps]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does. Episodes that are still running at the end, or after an error, are dropped."""
        self.learning = LearningCount()
        try:
            output = super().train(*args, **kwargs)
            self._end_evaluation()  # if a callback ended the training
        finally:
            self._drop_evaluation()
            self._player.stop()
        if (summary := self.learning.summary()) is not None and self.accelerator.is_main_process:
            logger.warning(summary)
        return output

    def _prepare_policy(self) -> None:
        """Give the sampling policy the weights of now."""
        if isinstance(self._policy, TransformersPolicy):
            self._policy.weight_version = self.state.global_step
        if self.use_vllm and self.state.global_step != self._synced_step:
            self.vllm_generation.sync_weights()
            self._synced_step = self.state.global_step

    def _n_further_rows(self, n_forks: int) -> int:
        """Return how many rows to add for this process's `n_forks`: as many on every process, in full groups."""
        if self.args.history == "append" and self._context_fn is None:
            return 0
        # TRL reshapes rewards into groups and splits a generation evenly into micro-batches: round up to fit both.
        unit = group_size = self._shares.group_size
        if self._mode == "train":
            unit = math.lcm(group_size, int(self.args.steps_per_generation or 1))
        return -(-max(gather_object([n_forks])) // unit) * unit

    @property
    def _algorithm(self) -> Algorithm:
        """The algorithm of the present generation."""
        return self.algorithms.algorithm

    @property
    def generation(self) -> Generation:
        """The generation under way in the current mode."""
        return self.generations[self._mode]

    def _guard(
        self,
        output: Mapping[str, Any],
        score: Callable[[Mapping[str, Any]], torch.Tensor],
        unfilter: UnfilterFn,
    ) -> None:
        """On the first batch, raise if the log-probabilities from sampling differ from the trained model's.

        `score` returns the trained model's of a batch, and `unfilter` removes the sampling filters from a batch's.
        """
        args, n_rows = self.args, len(output["prompt_ids"])
        if self._guarded or args.logps_tolerance is None:
            return
        if any(gather_object([self._is_stale(self.last_trajectories)])):
            # A resumed run begins with episodes of older weights. Compare those that it has begun to play since.
            trajectories = self._player.newest()
            if any(gather_object([self._is_stale(trajectories)])):
                return
            output = self._padded_rows(trajectories, n_rows, unfilter)
        # In micro-batches trimmed as for the loss.
        starts, size = range(0, n_rows, args.per_device_train_batch_size), args.per_device_train_batch_size
        parts = [trim_padding({name: slice_rows(v, at, at + size) for name, v in output.items()}) for at in starts]
        own = [sampling_gaps(score(part), batch_from_trl(part)) for part in parts]
        gaps = np.concatenate([np.zeros(0, dtype=np.float32), *gather_object(own)])
        if not len(gaps):  # no process had a token to compare: try the next batch
            return
        self._metrics["train"]["sampling/guard_logps_gap"].append(float(gaps.mean(dtype=np.float64)))
        rounding = rounding_of(precision(self.model, args), is_separate_engine=args.use_vllm)
        # All processes stop, or none.
        check_gaps(gaps, args.logps_tolerance, rounding, self.accelerator.unwrap_model(self.model))
        self._guarded = True

    def _is_stale(self, trajectories: Sequence[Trajectory]) -> bool:
        return bool(off_policy_statistics(trajectories, self.state.global_step).get("off_policy_share"))

    def _padded_rows(
        self, trajectories: Sequence[Trajectory], n_rows: int, unfilter: UnfilterFn
    ) -> dict[str, torch.Tensor]:
        """Return the first `n_rows` rows of episodes, as many on every process, as TRL's batch has them."""
        rows = rollout_output(trajectories, pad_id=int(self.processing_class.pad_token_id), n_rows=n_rows)
        return unfilter(self._padded({name: values[:n_rows] for name, values in rows.items()}))

    def _padded(self, rows: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Return rows as tensors on the device of this process, under TRL's names."""
        pad_id, multiple = int(self.processing_class.pad_token_id), int(self.pad_to_multiple_of or 1)
        padded: dict[str, Any] = send_to_device(
            pad_rows(rows, pad_id=pad_id, multiple=multiple), self.accelerator.device
        )
        return padded

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does. A table of completions that cannot be written is left out from then on."""
        metrics = self._metrics[self._mode]
        if self.log_completions and self.accelerator.is_main_process:
            folder = Path(self.args.output_dir or ".") / "completions"
            remove_link(folder / f"completions_{self.state.global_step:05d}.parquet")
        try:
            super().log(logs, start_time)
        except Exception:
            # TRL clears its metrics after the callbacks and before the table: until then the error is a callback's.
            if metrics or not self.log_completions:
                raise
            self.log_completions = False
            with describing("the table of completions (log_completions)"):
                raise

    def _log_episodes(self, output: Mapping[str, Any]) -> None:
        """Log the environment's metrics of the latest episodes, over all processes, and record what is learned."""
        mode = self._mode
        for name, (total, n_items) in self._player.totals(mode).items():
            self._take(mode, f"env/{name}", total, n_items)
        if mode == "train":
            for name, value in self._player.use_metrics(self.last_trajectories, self.state.global_step).items():
                self._metrics[mode][name].append(value)
        try:
            self._player.check_failures(self.last_trajectories, mode)
        except RolloutFailedError as error:  # on all processes
            raise RolloutFailedError(f"{error} {self._save_before_failure()}") from error
        if mode == "train":
            self._count_learning(output)
        if self._kind != "ppo":  # a critic's advantages come later
            self._record_generation(output)

    def _count_learning(self, output: Mapping[str, Any]) -> None:
        """Count whether a generation teaches anything, over all processes; warn if not."""
        generation, algorithm = self.generation, self._algorithm
        n_pairs = None if generation.pairs is None else generation.pairs.n_pairs
        signal = has_signal(batch_from_trl(output), n_pairs, learns_without=algorithm.needs_teacher)
        warning = self.learning.add(why_nothing(gather_object([generation_yield(generation.episodes, signal)])))
        if warning is not None and self.accelerator.is_main_process:
            logger.warning(warning)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a micro-batch, in parts if it has too many rows, by forks, or too many tokens.

        Our losses are sums over rows, so parts can be added. Gradients of all parts but the last are accumulated here,
        which keeps memory use unchanged.
        """
        # transformers calls this for each micro-batch, and runs the backward pass of the loss that it returns.
        if self._mode == "eval":
            loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
            self._add_means(self._n_loss_items(inputs), {"loss": loss})
            return loss
        parts = self._parts(model, inputs)
        done = torch.zeros((), device=self.accelerator.device)
        for rows in parts[:-1]:
            with self.accelerator.no_sync(model):
                loss = super().compute_loss(model, take_rows(inputs, rows), *args, **kwargs)
                self.accelerator.backward(loss)
            done = done + loss.detach()
        # transformers runs the backward pass of the last part
        last = inputs if len(parts) == 1 else take_rows(inputs, parts[-1])
        return super().compute_loss(model, last, *args, **kwargs) + done

    def _parts(self, model: Any, inputs: dict[str, Any]) -> Sequence[torch.Tensor]:
        """Return the row numbers of a micro-batch's parts; as many on every process."""
        ids, size = inputs["prompt_ids"], self.args.per_device_train_batch_size
        most, numbers = self.args.max_tokens_per_micro_batch, torch.arange(len(ids), device=ids.device)
        if self._needs_one_part() is not None:
            return [numbers]
        if most is None:
            return numbers.split(size)
        rows = (
            torch.cat([ids, inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
        )
        is_tree = self._causal_and_layout(model)[1]
        n_parts = max(gather_object([n_token_parts(*rows, most, is_tree=is_tree)]))
        return token_parts(*rows, n_parts, is_tree=is_tree)

    def _needs_one_part(self) -> str | None:
        """Return why a micro-batch cannot be computed in parts, if so."""
        if self.aux_loss_enabled:
            return "a router's loss is a mean over the micro-batch, which parts would count several times"
        if self.is_deepspeed_enabled:
            return "DeepSpeed's engine steps at every backward pass"
        if any(algorithm.top_entropy_quantile < 1 for algorithm in self.algorithms.known):
            return "top_entropy_quantile compares the entropies of one micro-batch"
        return None

    def _check_parts(self) -> None:
        """Refuse a limit of tokens that could not be kept.

        Raises:
            InvalidConfigError: With what needs a micro-batch in one part.
        """
        most, reason = self.args.max_tokens_per_micro_batch, self._needs_one_part()
        if self.algorithms.has_pairs:
            reason = "the rows of a pair are in one micro-batch"
        if most is not None and reason is not None:
            raise InvalidConfigError(
                f"max_tokens_per_micro_batch={most}: {reason}. Set it to None, and a smaller "
                "per_device_train_batch_size."
            )

    def _causal_and_layout(self, model: Any) -> tuple[Any, bool]:
        """Return the language model inside, which takes positions from now on, and whether rows are a prefix tree."""
        raise NotImplementedError

    def _n_loss_items(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return how many tokens, prompts or rows the loss of an evaluation's batch is a mean over."""
        normalisation = self._algorithm.normalisation
        mask_BT, n_tokens = batch_from_trl(inputs).mask_BT, inputs["num_items_in_batch"]
        return torch.as_tensor(self._shares.denominator(normalisation, mask_BT, n_tokens, constant=1.0))

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

    @property
    def collector(self) -> Collector:
        """The collector that plays the episodes."""
        return self._player.collector

    @property
    def policy(self) -> Any:
        """The sampling policy: the trainer's own model, a colocated engine, or servers."""
        return self._policy

    def play_sample(self, index: int = 0) -> list[Trajectory]:
        """Play one group of training item `index` with the current weights. Nothing is trained or saved."""
        # Not through the player, whose count of generations decides the seeds of the run.
        specs = group_specs(self.items["train"].spec(index, f"sample-{index}"), int(self.num_generations or 1))
        return list(self.collector.play([specs])[0].trajectories)

    def close(self) -> None:
        """Close the trajectories' log, end the collector's and the policy's threads, and servers that were started."""
        self._close_evaluation()
        self._player.close()
        close_policy(self._policy)
        if self.use_vllm:
            cast("ColocatedEngine", self.vllm_generation).close()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as TRL does, but leave out an adapter that only serves as the reference."""
        super()._save(output_dir, state_dict)
        drop_reference_adapter(self, output_dir)

    def _save_own(self, folder: Path) -> None:
        """Save the unused part of the generation, and the state that the next generation needs."""
        folder.mkdir(parents=True, exist_ok=True)
        is_evaluated = self._settle_evaluation()
        uses = self._uses
        taken = self._step % uses["uses"]
        if taken:  # every process writes its own rows
            micro_batches: Any = self._buffered_inputs
            self.generations["train"].save(self._rest_path(folder), micro_batches)
        self._player.save_ahead(folder / "ahead")
        if self.args.should_save:
            begun = {"taken": taken, "ahead": self._player.n_ahead}
            state = self._player.state_dict() | {"generation": begun | uses, "owes_evaluation": is_evaluated}
            state |= self.algorithms.state_dict()
            state["reference"] = self._reference.save(self, folder)
            (folder / STATE_FILE).write_text(json.dumps(state) + "\n")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's checkpoint and the parts that `_save_own` added."""
        path = Path(checkpoint or "") / STATE_FILE
        state = json.loads(path.read_text()) if checkpoint is not None and path.exists() else None
        if checkpoint is not None:
            check_checkpoint(checkpoint, self._kind.upper())
            check_generation(checkpoint, (state or {}).get("learned_by"), self.algorithms.name_at(state or {}))
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and state is not None:
            self._player.load_state_dict(state)
            self._is_owed = state.get("owes_evaluation", False) and self.args.eval_strategy != "no"
            self._reference.load(self, Path(checkpoint), state.get("reference"))
            # Before the generation, whose pairs take the current algorithm.
            self.algorithms.load_state_dict(state)
            self.beta = self.algorithms.coefficient
            self._load_rest(Path(checkpoint), state.get("generation") or {"taken": 0})

    @property
    def _uses(self) -> dict[str, int]:
        """The number of micro-batches that a generation is used for, and the batch sizes that this depends on."""
        args, steps = self.args, int(self.args.steps_per_generation or 1)
        return {
            "uses": steps * self.num_iterations,
            "steps_per_generation": steps,
            "per_device_train_batch_size": int(args.per_device_train_batch_size),
            "gradient_accumulation_steps": int(args.gradient_accumulation_steps),
            "processes": self.accelerator.num_processes,
        }

    def _rest_path(self, folder: Path) -> Path:
        return folder / f"generation-{self.accelerator.process_index}.pt"

    def _load_rest(self, folder: Path, state: Mapping[str, int]) -> None:
        """Restore the generation of a checkpoint, if it was not used up.

        Raises:
            InvalidConfigError: If the batch sizes of the run differ, or the file is missing.
        """
        taken, n_ahead = state["taken"], state.get("ahead", 0)
        if not taken and not n_ahead:
            return
        saved, uses = {name: value for name, value in state.items() if name not in ("taken", "ahead")}, self._uses
        if saved != uses:
            raise InvalidConfigError(
                f"{folder} lies inside a generation ({taken} of {state['uses']} micro-batches were taken), and its "
                f"batches have another shape: saved {saved}, now {uses} (uses: steps_per_generation * num_iterations). "
                "Resume with the settings and number of processes of the run, or from a checkpoint at the end of a "
                "generation."
            )
        self._player.load_begun(folder / "ahead", n_ahead)
        if not taken:
            return
        self.generations["train"], rest = Generation.load(self._rest_path(folder), self._algorithm)
        # TRL plays a new generation if `_step` is a multiple of `uses`. Otherwise it takes the next from its buffer.
        self._step, self._buffered_inputs = taken, send_to_device(rest, self.accelerator.device)
