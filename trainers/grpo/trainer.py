"""GRPO on environments on one page: play episodes, make their batch, compute advantages, compute the loss.

TRL's trainer has the training loop, and calls the methods of this class back, in this order:

    _generate_and_score_completions  for each generation: `_play` plays it, `_scored_rows` makes its rows and scores
                                     their tokens, and `_make_advantages` decides what they earn
    _prepare_inputs                  for each micro-batch
    _compute_loss                    for each micro-batch: `_algorithm_loss`
    _end_step                        for each optimizer step

Two further files complete the path from episode to loss: `episodes/batches.py` (the batch: episodes as token rows, a
mask, an advantage for each token, the shares of micro-batches) and `functional/algorithm.py` (what is learned:
`algorithm_loss`).

Invariants:
1. Training uses exactly the sampled tokens. Ids are never decoded and re-encoded. On the first batch, a guard compares
   the log-probabilities from sampling with the trainer's.
2. The loss covers only the policy's tokens: `env_mask` is 0 on every token from the environment or the template.
3. A failed episode is never scored as 0: its reward is NaN, its tokens are masked, and no baseline includes it.
4. All members of a group play the same seed, on the same process.
5. Each sampled token is trained in exactly one row. If an episode's history forks, the episode has several rows: all
   share its advantage, and the first carries its reward.
6. The gradient of an optimizer step is `algorithm_loss`'s on the step's rows of all processes, however the rows
   are split into micro-batches. If a generation has several steps, tokens and pairs are counted over all of them.
7. The algorithm and its coefficient change only between generations; checkpoints store them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.policies.inference.positions import check_positions, pass_positions
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rewards import RewardFns
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import ContextFn
from llm_envs.rollout.filters import GroupFilter, TrajectoryFilter
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.source import Envs
from llm_envs.trainers.engines.engines import trainer_policy
from llm_envs.trainers.episodes.advantages import create_state_fn, with_advantages
from llm_envs.trainers.episodes.batches import batch_from_trl, rollout_output
from llm_envs.trainers.episodes.generation import GenerationPlayer
from llm_envs.trainers.episodes.items import index_datasets
from llm_envs.trainers.episodes.nothing_learned import LearningCount
from llm_envs.trainers.episodes.rewards import (
    EpisodeRewards,
    RewardSettings,
    checked_weights,
    score_episodes,
    warn_of_absent,
    with_overlong,
)
from llm_envs.trainers.forward.filtered import without_filters
from llm_envs.trainers.forward.kept import KeptRows
from llm_envs.trainers.forward.teacher import NO_TEACHER, ServedTeacher
from llm_envs.trainers.forward.tree_rows import TreeRows, reads_tree
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm, algorithm_loss
from llm_envs.trainers.functional.importance import ImportanceMode, importance_weights
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.losses import entropy_floor
from llm_envs.trainers.functional.masking import trim_padding
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.grpo.algorithms import Algorithms, AlgorithmState
from llm_envs.trainers.grpo.base import EpisodeTrainer
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.grpo.from_trl import rewards_from_trl
from llm_envs.trainers.grpo.generation import Generation
from llm_envs.trainers.grpo.pairs import PairedRows, keep_groups_together
from llm_envs.trainers.grpo.setup import check_arguments, make_splits, no_reward, temporarily
from llm_envs.trainers.reference import Reference, StepEnd, keeping_base, reference_of
from llm_envs.trainers.run.ranks import function_limit, raise_on_all_ranks
from llm_envs.trainers.settings.checks import check_scorable, load_training_tokenizer
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


__all__ = ["EnvGRPOConfig", "EnvGRPOTrainer"]


class EnvGRPOTrainer(EpisodeTrainer):
    """Train a language model by GRPO on an environment.

    The path from episode to loss is in four files: this one, `episodes/batches.py`, `episodes/advantages.py` and
    `functional/algorithm.py`.

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: Id of a registered environment, such as "llm/Calculator-v0"; a factory; a weighted mixture (see
            `llm_envs.rollout.Envs`); or a data set of episodes with the columns `env` and `seed`, optionally `options`
            and `env_kwargs` (see `llm_envs.trainers.episodes.items.ListedItems`).
        args: Settings; None takes the defaults.
        eval_env: The episodes for evaluation, in the same forms; None: the test split of `env`, or no evaluation if
            that is a data set.
        curriculum: Chooses arguments of the training episodes by measured success; in a mixture `{env_id: Curriculum}`.
        context_fn: Chooses which messages the model sees (`llm_envs.rollout.create_window`); None: all of them.
        rewards: Your reward functions, shaping, weights and aggregate, such as
            `RewardSettings(reward_fns=brief, shaping_fns=create_step_cost(0.01))`; a function, a list or a mapping of
            names to functions are its `reward_fns`; None: the task's reward.
        group_filter: Keeps the groups to train on (`llm_envs.rollout.filters`). Dropped groups are replaced by new
            ones; at most `args.max_refills` are played for each place.
        trajectory_filter: Keeps the episodes to train on (`llm_envs.rollout.filters`). Rewards of the others still
            count in baselines.
        algorithm: Sets advantages, loss, KL and pairs: a name in `functional.algorithm.ALGORITHMS`, or a value such
            as `replace(GRPO, kl_fn=k2, kl_coef=0.04)`. A mapping
            `{0: "grpo", 100: "pairwise"}` or a function `(generation) -> algorithm` changes it between generations.
            None: `algorithm_from_trl(args)`, the objective of TRL's settings (`loss_type`, `beta`, ...).
        ref_model_fn: `(policy) -> reference`, in place of the initial weights: a copy
            (`functional.references.frozen_copy`), or another model of the same vocabulary, such as a teacher.
        reference_update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step
            (`functional.references`: EMA, periodic, triggered by the KL); under PEFT it moves an adapter.
        **kwargs: TRL's other arguments (`processing_class`, `peft_config`, `callbacks`, ...). The environment provides
            rewards, prompts and rollouts, so `reward_funcs`, datasets, `tools` and `rollout_func` are not accepted.

    With `args.use_vllm`, a vLLM engine in this process samples; otherwise the trainer's model does. Call `close` at the
    end.

    Raises:
        InvalidConfigError: If settings contradict one another.
        ModelError: If the model cannot be trained on conversations (no chat template, no end-of-turn token).
    """

    _tag_names = ["trl", "grpo", "llm-envs"]
    _kind = "grpo"
    _known_algorithms: Mapping[str, Algorithm] = ALGORITHMS

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: Envs | Dataset,
        args: EnvGRPOConfig | None = None,
        *,
        eval_env: Envs | Dataset | None = None,
        curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
        context_fn: ContextFn | None = None,
        rewards: RewardSettings | RewardFns | None = None,
        group_filter: GroupFilter | None = None,
        trajectory_filter: TrajectoryFilter | None = None,
        algorithm: Algorithms | None = None,
        ref_model_fn: RefModelFn | None = None,
        reference_update_fn: ReferenceUpdateFn | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(env, args, kwargs)  # like all checks, before `_start_trl`, where TRL loads the model
        args = args or EnvGRPOConfig(output_dir=f"{env.split('/')[-1] if isinstance(env, str) else 'llm-envs'}-GRPO")
        kwargs["processing_class"] = load_training_tokenizer(
            model, kwargs.get("processing_class"), thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        given = RewardSettings.of(rewards).limited(function_limit(args))
        self._reward_settings = rewards_from_trl(args, given)
        self._reference = Reference(ref_model_fn, reference_update_fn)
        self.items = make_splits(env, eval_env, args, curriculum)
        choices = self.items["train"].source.choices
        may_fork = context_fn is not None or any(getattr(choice.factory, "may_fork", False) for choice in choices)
        self.algorithms = AlgorithmState(
            args,
            algorithm,
            known=self._known_algorithms,
            n_items=len(self.items["train"]),
            has_critic=self._kind == "ppo",
            may_fork=may_fork,
        )
        self._has_reference = self._needs_reference(args)
        self._context_fn, self._trajectory_filter = context_fn, trajectory_filter
        self._task_weights = checked_weights(self._reward_settings, self.items["train"].source)
        self.env_ids = list(dict.fromkeys(choice.env_id for choice in choices))
        self.generations, self.last_trajectories = {"train": Generation(), "eval": Generation()}, []
        self.learning = LearningCount()
        self._guarded = args.logps_tolerance is None
        # Only now are there the model, its device and the processes, which all that follows needs.
        self._start_trl(model, args, kwargs)
        self.shuffle_dataset &= all(choice.n_seats == 1 for choice in choices)  # type: ignore[operator]  # or torn games
        self._reference.start(self)
        self._policy = self._start_vllm() if args.use_vllm else trainer_policy(self)
        folder = Path(args.output_dir or ".") / "trajectories" / f"process-{self.accelerator.process_index}"
        self._player = GenerationPlayer(
            self._start_collector(self._policy),
            self.items,
            process_index=self.accelerator.process_index,
            folder=folder if args.save_trajectories else None,
            settings={"envs": self.env_ids, "seed": args.seed},
            group_filter=self.algorithms.group_filter(limited(group_filter, function_limit(args), "the group_filter")),
            max_refills=args.max_refills,
            seed=args.seed,
            is_ahead=args.async_generations > 0,
        )

    # For each generation: play, rows, advantages.

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play an episode for each of TRL's items; return their rows, scored, with advantages."""
        if self._mode == "train":
            self.algorithms.begin_generation(self.state.global_step, self.state.max_steps)
            self.beta = self.algorithms.coefficient
        self._prepare_policy()
        generation = self._play(inputs)
        n_forks = sum(max(len(t.rows) - 1, 0) for t in generation.episodes.trajectories)
        output = self._scored_rows(generation, len(inputs) + self._n_further_rows(n_forks))
        self._make_advantages(self._algorithm, generation, output)
        if self._keeps_groups:  # TRL shuffles rows next; this keeps track of them
            output["row"] = torch.arange(len(output["prompt_ids"]), device=output["prompt_ids"].device)
        # Only now: the guard compares tokens as the loss will see them.
        self._guard(output, self._score_without_gradient, self._unfiltered)
        self._log_episodes(output)
        return output

    def _play(self, inputs: list[dict[str, Any]]) -> Generation:
        """Play one episode for each of TRL's items, and score them by the rewards."""
        mode, algorithm = self._mode, self._algorithm
        size, step = self._shares.group_size, self.state.global_step
        after = self._upcoming(inputs)
        branch_at = limited(algorithm.branch_at, function_limit(self.args), f"branch_at of {algorithm.name!r}")
        algorithm = replace(algorithm, branch_at=branch_at)
        rows = self._player.play(inputs, mode=mode, step=step, group_size=size, upcoming=after, algorithm=algorithm)
        if mode == "train":
            self._player.learn()
        episodes = self._rewarded(rows, algorithm)
        self.last_trajectories = list(episodes.trajectories)
        kept = KeptRows(episodes.trajectories) if self.args.keep_sampling_mask else KeptRows()
        self.generations[mode] = Generation(episodes, kept)
        return self.generations[mode]

    def reward_episodes(self, trajectories: Sequence[Trajectory]) -> EpisodeRewards:
        """Return episodes with the rewards that the training would learn from, by column; warn of absent ones."""
        episodes = self._rewarded(trajectories, self._algorithm)
        if episodes.columns:  # some episode is scored
            warn_of_absent(self._reward_settings, episodes.columns)
        return episodes

    def _rewarded(self, trajectories: Sequence[Trajectory], algorithm: Algorithm) -> EpisodeRewards:
        """Return episodes with their rewards. An algorithm may punish length: that is one more column."""
        rewards = with_overlong(self._reward_settings, algorithm.overlong, self.max_completion_length)
        # Reward functions are user code. If one fails here only, the other processes would wait at the next collective.
        with raise_on_all_ranks():
            return score_episodes(trajectories, rewards, self._task_weights)

    def _episode_rows(self, episodes: EpisodeRewards, n_rows: int) -> dict[str, Any]:
        """Return the rows of episodes under TRL's names."""
        keeps, limit_s = self._trajectory_filter, function_limit(self.args)
        with raise_on_all_ranks():  # the filter is user code
            rows = rollout_output(
                episodes.trajectories,
                pad_id=int(self.processing_class.pad_token_id),
                mask_truncated=self.mask_truncated_completions,
                trajectory_filter=limited(keeps, limit_s, "the trajectory_filter"),
                n_rows=n_rows,
            )
        return self._padded(rows)

    def _scored_rows(self, generation: Generation, n_rows: int) -> dict[str, Any]:
        """Return the rows of a generation under TRL's names, with what policy and reference make of their tokens."""
        args, output = self.args, self._episode_rows(generation.episodes, n_rows)
        is_weighted = args.use_vllm and self.vllm_importance_sampling_correction
        if is_weighted or not self._guarded:
            output = self._unfiltered(output)
        mask_BT = batch_from_trl(output).mask_BT
        output["num_items_in_batch"] = self.accelerator.reduce(mask_BT.sum(), reduction="sum")
        size = args.per_device_train_batch_size if self._mode == "train" else args.per_device_eval_batch_size
        # Without vLLM and with one step a generation, the weights that learn are those that sampled.
        if args.gradient_accumulation_steps % self._uses["uses"] or is_weighted:
            output["old_per_token_logps"] = self._score_without_gradient(output, batch_size=size)
        if is_weighted:
            output["importance_sampling_ratio"] = importance_weights(
                output["old_per_token_logps"],
                output["sampling_per_token_logps"],
                mask_BT,
                mode=cast("ImportanceMode", self.vllm_importance_sampling_mode),
                maximum=self.vllm_importance_sampling_clip_max,
                minimum=self.vllm_importance_sampling_clip_min,
            )
        if self._has_reference:
            with torch.no_grad(), self._whole_activations(), reference_of(self) as reference:
                output["ref_per_token_logps"] = self._score(reference, output, batch_size=size)[0]
        return output

    def _unfiltered(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return rows without the sampling filters, whose distribution the sampler's log-probabilities are of."""
        sampling, model = self.collector.sampling, cast("torch.nn.Module", self.model)
        if sampling.keep_mask or not has_filters(sampling):
            return output
        with self._whole_activations():
            batch = without_filters(model, replace(batch_from_trl(output), sampling=sampling))
        return output | {"sampling_per_token_logps": batch.sampled_logps_BT}

    @torch.no_grad()
    def _make_advantages(self, algorithm: Algorithm, generation: Generation, output: dict[str, Any]) -> None:
        """Add the advantages, and the loss's other inputs; a critic's advantages follow later."""
        # TRL shuffles and splits all that is in `output`, and hands it to `_compute_loss`: write results there.
        batch = batch_from_trl(output)
        if algorithm.has_paid_kl:
            # TRL scores the policy if a generation is learned from several times, or if importance weights need it.
            logps_BT = batch.old_logps_BT
            if logps_BT is None:
                is_training, args = self._mode == "train", self.args
                size = args.per_device_train_batch_size if is_training else args.per_device_eval_batch_size
                logps_BT = self._score_without_gradient(output, batch_size=size)
            batch = replace(batch, policy_logps_BT=logps_BT)
        batch, scored = with_advantages(
            batch,
            algorithm,
            generation.episodes,
            kl_coef=self.beta,
            state_fn=create_state_fn(self.items["train"].source.factories),
            limit_s=function_limit(self.args),
            gather=gather_object,
            process_index=self.accelerator.process_index,
        )
        if scored.kl_BT is not None:
            output["kl_penalties"] = self.beta * scored.kl_BT
            self._add_means(batch.mask_BT.sum(), {"kl": mean_kl(scored.kl_BT, batch.mask_BT)})
        if batch.group_tokens_B is not None:
            output["group_tokens"] = batch.group_tokens_B
        if batch.advantages is not None:
            output["advantages"] = batch.advantages
        self._log_rows(output)
        self._log_rewards(generation.episodes, output)
        if algorithm.pair_loss_fn is not None:
            with raise_on_all_ranks():  # the selector is user code
                limit_s = function_limit(self.args)
                generation.pairs = PairedRows.choose(algorithm, scored, len(output["prompt_ids"]), limit_s=limit_s)
            self._metrics[self._mode]["pairs/count"].append(float(generation.pairs.n_pairs))

    # For each micro-batch: the loss.

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return TRL's micro-batch. With pairs or a prefix tree, keep the rows of each group together."""
        # TRL's method plays a new generation if the last one is used up, by `_generate_and_score_completions`.
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._mode != "train" or not self._keeps_groups:
            return inputs
        buffer: Any = self._buffered_inputs
        group_size, generation = self._shares.group_size, self.generation
        if not generation.is_arranged:  # TRL has just shuffled a new generation into its buffer
            buffer = keep_groups_together(buffer, group_size)
            self._buffered_inputs, generation.is_arranged = buffer, True
        place = self._step % len(buffer)
        paired = generation.pairs
        if paired is not None and self.args.per_device_train_batch_size % group_size:  # micro-batches split groups
            of_this_step = buffer[place : place + self.current_gradient_accumulation_steps]
            paired.score(of_this_step, self._score_without_gradient, self.state.global_step)
        ready: dict[str, Any] = buffer[place]
        return ready

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a micro-batch, without its shared padding; measure its KL."""
        # TRL pads all micro-batches to the longest row of the generation. Drop the columns that this one does not need.
        inputs, algorithm = trim_padding(inputs), self._algorithm
        loss, logps_BT = self._algorithm_loss(algorithm, model, inputs)
        if self._mode == "train" and (self._reference.update_fn or self.algorithms.is_steered):
            batch = batch_from_trl(inputs)
            self._reference.meter.add(logps_BT, batch.need("ref_logps_BT"), batch.mask_BT, algorithm.kl_fn)
        return loss

    def _algorithm_loss(
        self, algorithm: Algorithm, model: Any, inputs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a micro-batch's share of the step's `algorithm_loss`, and its log-probabilities; log statistics.

        The sampled tokens enter the loss here: the batch has the sampled ids, its mask is True on them, and `_score`
        returns their log-probabilities under the trained model.
        """
        batch, shares = batch_from_trl(inputs), self._shares
        logps_BT, entropies_BT, aux_loss = self._score(
            model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        mask_BT, n_tokens = batch.mask_BT, inputs["num_items_in_batch"]
        constant = algorithm.constant if algorithm.constant is not None else self.max_completion_length
        denominator = shares.denominator(algorithm.normalisation, mask_BT, n_tokens, constant=constant)
        batch = replace(batch, logps_BT=logps_BT, entropies_BT=entropies_BT, denominator=denominator)
        if algorithm.top_entropy_quantile < 1.0:  # as TRL does, of the micro-batches of all processes
            entropies_N = self._gathered(entropies_BT[mask_BT].detach())
            batch = replace(batch, entropy_floor=entropy_floor(entropies_N, algorithm.top_entropy_quantile))
        if (paired := self.generation.pairs) is not None:
            losses_B, slopes_B, n_right, n_pairs = paired.slopes(logps_BT, inputs, shares.group_size)
            weight = shares.pair_weight(paired.n_pairs)
            batch = replace(batch, pair_losses_B=weight * losses_B, pair_slopes_B=weight * slopes_B)
            self._add_totals({"pairs/accuracy": (n_right, n_pairs)})
        # The entropy bonus is a mean over the tokens of the step, so weight this micro-batch by its tokens.
        present = algorithm.at(self.beta)
        if present.entropy_coef:
            share = mask_BT.sum() / shares.denominator("token", mask_BT, n_tokens, constant=1.0)
            present = replace(present, entropy_coef=present.entropy_coef * float(share))
        loss, stats = algorithm_loss(present, batch)
        self._log_policy(algorithm, batch, stats)
        if aux_loss is not None:  # load balancing of a mixture of experts, as in TRL
            self._add_means(torch.tensor(float(len(mask_BT)), device=aux_loss.device), {"aux_loss": aux_loss})
            loss = loss + self.router_aux_loss_coef * aux_loss / shares.n_accumulated
        return loss, logps_BT

    def _score(self, model: Any, inputs: Mapping[str, Any], **kwargs: Any) -> tuple[torch.Tensor, Any, Any]:
        """Return TRL's log-probabilities, entropies and auxiliary loss of a batch's completions."""
        result: tuple[torch.Tensor, Any, Any] = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            **kwargs,
        )
        return result

    @torch.no_grad()
    def _score_without_gradient(self, inputs: Mapping[str, Any], **kwargs: Any) -> torch.Tensor:
        """Return the trained model's log-probabilities of a batch's completions."""
        with self._whole_activations():
            return self._score(self.model, inputs, **kwargs)[0]

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's result, with position ids that start at each row's first token; or a served teacher's answer."""
        if isinstance(model, ServedTeacher):
            return model.logps(*args[:3], temperature=self.temperature), None, None
        causal, is_tree = self._causal_and_layout(model)
        if self.args.keep_sampling_mask:
            own: dict[str, Any] = {"temperature": self.temperature, "accelerator": self.accelerator}
            return self.generation.kept.scores(model, *args, **kwargs | own, causal=causal, is_tree=is_tree)
        if is_tree:
            model = TreeRows(model, causal)
        return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    def _causal_and_layout(self, model: Any) -> tuple[Any, bool]:
        """Return the language model inside, which takes positions from now on, and whether rows are a prefix tree."""
        causal, device = pass_positions(self.accelerator.unwrap_model(model)), self.accelerator.device
        return causal, reads_tree(self.args.forward, model, causal, device, has_router_loss=self.aux_loss_enabled)

    @property
    def _keeps_groups(self) -> bool:
        args, forward = self.args, self.args.forward
        # TRL's quantile is of a micro-batch, which then depends on the order of rows.
        is_tree = self.accelerator.device.type == "cpu" and args.top_entropy_quantile == 1.0
        return forward == "prefix_tree" or (forward == "auto" and is_tree) or self.generation.pairs is not None

    # For each optimizer step.

    def _end_step(self) -> None:
        """After an optimizer step, log algorithm and coefficient, adjust the coefficient, update the reference."""
        # A callback (`StepEnd`) calls this: transformers has no method of the trainer that runs after the optimizer.
        self._record_step()
        kl = self._reference.meter.take(self.accelerator)
        metrics = self._metrics["train"]
        if self._is_skipped:  # its KL may be NaN
            kl = None
        if kl is not None:
            metrics["reference/kl"].append(kl)
        if self._has_reference:
            metrics["kl_coef"].append(self.beta)
        for name, value in self.algorithms.end_step(kl).items():
            metrics[name].append(value)
        if not self._is_skipped:
            self._reference.end_step(self, kl)

    # Once, before training.

    def _needs_reference(self, args: EnvGRPOConfig) -> bool:
        """Return whether the run needs a reference; reject settings that would then have no effect.

        Pairs use a reference only if the user creates or updates one; otherwise they use the sampling policy.
        """
        algorithms, is_ours = self.algorithms, self._reference.is_ours
        needed = algorithms.has_kl or (algorithms.has_pairs and is_ours)
        for algorithm in algorithms.known if self._reference.ref_model_fn is None else ():
            if algorithm.needs_teacher:
                raise InvalidConfigError(NO_TEACHER.format(name=algorithm.name))
        how = "set beta above 0, or give an algorithm with a kl_coef"
        self._reference.check(args, is_used=needed, how=how)
        return needed

    def _start_trl(self, model: Any, args: EnvGRPOConfig, kwargs: dict[str, Any]) -> None:
        """Let TRL make its trainer.

        TRL loads a reference only if `beta` is above 0 now, so a schedule that starts at 0 needs another value here.
        TRL's vLLM engine ignores our dtype and seed and cannot run on CPUs, so we start ours afterwards.
        """
        beta = self.algorithms.coefficient or float(self._has_reference)
        if self._reference.ref_model_fn is not None:
            beta = 0.0
        with temporarily(args, use_vllm=False, beta=beta), keeping_base(model):
            # TRL wants a reward function, which nothing asks: `score_episodes` has the rewards.
            super().__init__(model, reward_funcs=[no_reward], args=args, **kwargs | index_datasets(self.items))
        copy_single_heads()
        check_scorable(self.accelerator.unwrap_model(self.model))
        check_positions(self.accelerator.unwrap_model(self.model))
        self._check_parts()
        # TRL copied the changed value from `args`.
        self.beta = self.algorithms.coefficient
        self.add_callback(StepEnd(self._end_step))
        self._start_evaluation()
