"""GRPO on environments: a thin subclass of TRL's trainer that trains an `Algorithm` on the episodes it plays.

`playing.py` plays episodes and turns them into TRL's rows. This module has the learning: the algorithm of each
generation, its advantages, its loss on a micro-batch, its KL and reference. Without an algorithm, TRL's loss is used.

Invariants:
1. A failed episode is never scored as 0: its reward is NaN, its tokens are masked, and no baseline includes it.
2. The gradient of an optimizer step is that of `algorithm_loss` on the step's rows of all processes, however the rows
   are split into micro-batches.
3. The algorithm and its coefficient change only between generations; checkpoints store them.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import gather_object, send_to_device
from datasets import Dataset

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.positions import check_positions
from llm_envs.rollout import ContextFn
from llm_envs.rollout.filters import GroupFilter, TrajectoryFilter
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.source import Envs
from llm_envs.trainers.bridge.batches import with_advantages
from llm_envs.trainers.bridge.checks import check_forks, load_training_tokenizer
from llm_envs.trainers.bridge.credit import RewardSettings, declared_weights, with_overlong
from llm_envs.trainers.bridge.generation import STATE_FILE, GenerationPlayer, own_policy
from llm_envs.trainers.bridge.items import index_dataset
from llm_envs.trainers.bridge.trl_rows import fork_owners, reward_from_field
from llm_envs.trainers.bridge.unused_settings import refuse_unused
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.masking import masked_mean, trim_padding
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.grpo.algorithms import Algorithms, AlgorithmState
from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.grpo.generation import Generation
from llm_envs.trainers.grpo.pairs import PairedRows, keep_groups_together
from llm_envs.trainers.grpo.playing import PlayingTrainer
from llm_envs.trainers.grpo.setup import (
    check_arguments,
    check_generation,
    check_origin,
    make_splits,
    temporarily,
)
from llm_envs.trainers.grpo.step import (
    OWN_IMPORTANCE_MODES,
    reweighed,
    silence_missing_reward_warning,
)
from llm_envs.trainers.reference import Reference, StepEnd, drop_reference_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


__all__ = ["EnvGRPOConfig", "EnvGRPOTrainer"]

logger = logging.getLogger(__name__)


class EnvGRPOTrainer(PlayingTrainer):
    """Train a language model by GRPO on an environment.

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: Id of a registered environment, such as "llm/Calculator-v0"; a factory; a weighted mixture (see
            `llm_envs.rollout.Envs`); or a data set of episodes with the columns `env` and `seed`, optionally `options`
            and `env_kwargs` (see `llm_envs.trainers.bridge.items.ListedItems`).
        args: Settings; None takes the defaults.
        processing_class: The tokenizer; None loads the model's.
        eval_env: The episodes for evaluation, in the same forms; None: the test split of `env`. A data set has no test
            split.
        curriculum: Chooses arguments of the training episodes by measured success; in a mixture `{env_id: Curriculum}`.
        context_fn: Chooses which messages the model sees (`llm_envs.rollout.create_window`); None: all of them.
        rewards: Your reward functions, shaping, weights and aggregate, such as
            `RewardSettings(reward_fns=brief, shaping_fns=create_step_cost(0.01))`; None: the task's reward.
        group_filter: Keeps the groups to train on (`llm_envs.rollout.filters`). Dropped groups are replaced by new
            ones; at most `args.max_refills` are played for each place.
        trajectory_filter: Keeps the episodes to train on (`llm_envs.rollout.filters`). Rewards of the others still
            count in baselines.
        algorithm: Sets advantages, loss, KL and pairs: a name in `functional.algorithm.ALGORITHMS`, or a value such
            as `replace(GRPO, kl_fn=k2, kl_coef=0.04)`. A mapping
            `{0: "grpo", 100: "pairwise"}` or a function `(generation) -> algorithm` changes it between generations.
            None: TRL's own loss, configured by `args`.
        ref_model_fn: `(policy) -> reference`, in place of the initial weights: a copy
            (`functional.references.frozen_copy`), or another model of the same vocabulary, such as a teacher.
        reference_update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step
            (`functional.references`: EMA, periodic, triggered by the KL); under PEFT it moves an adapter.
        **kwargs: TRL's other arguments (`peft_config`, `callbacks`, `optimizers`, ...). The environment provides
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
    args: EnvGRPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: Envs | Dataset,
        args: EnvGRPOConfig | None = None,
        *,
        processing_class: PreTrainedTokenizerBase | None = None,
        eval_env: Envs | Dataset | None = None,
        curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
        context_fn: ContextFn | None = None,
        rewards: RewardSettings | None = None,
        group_filter: GroupFilter | None = None,
        trajectory_filter: TrajectoryFilter | None = None,
        algorithm: Algorithms | None = None,
        ref_model_fn: RefModelFn | None = None,
        reference_update_fn: ReferenceUpdateFn | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(env, args, kwargs)
        args = args or EnvGRPOConfig(output_dir=f"{env.split('/')[-1] if isinstance(env, str) else 'llm-envs'}-GRPO")
        processing_class = load_training_tokenizer(
            model, processing_class, thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        rewards = rewards or RewardSettings()
        self._pays_for = replace(rewards, components=rewards.components or args.reward_components)
        self._reference = Reference(ref_model_fn, reference_update_fn)
        self.algorithms = self._make_algorithms(algorithm, args, may_fork=context_fn is not None)
        """The algorithms of the run; None: TRL's own loss."""
        self._has_reference = self._needs_reference(args)
        self._context_fn, self._trajectory_filter = context_fn, trajectory_filter
        self.items = make_splits(env, eval_env, args, curriculum)
        if context_fn is not None:
            check_forks(args.loss_type)
        self.env_ids = list(dict.fromkeys(choice.env_id for choice in self.items["train"].source.choices))
        self.generations, self.last_trajectories = {"train": Generation(), "eval": Generation()}, []
        self._guarded = args.logps_tolerance is None
        self._start_trl(model, args, processing_class, kwargs)
        self._reference.start(self)
        self.fresh_logps = None
        # TRL judges truncation by the last token, the environment's in a multi-turn row: we carry our own flag.
        self._mask_truncated, self.mask_truncated_completions = self.mask_truncated_completions, False
        self._policy = self._start_vllm() if args.use_vllm else own_policy(self)
        folder = Path(args.output_dir or ".") / "trajectories" / f"process-{self.accelerator.process_index}"
        self._player = GenerationPlayer(
            self._start_collector(),
            self.items,
            process_index=self.accelerator.process_index,
            folder=folder if args.save_trajectories else None,
            settings={"envs": self.env_ids, "seed": args.seed},
            group_filter=group_filter if self.algorithms is None else self.algorithms.group_filter(group_filter),
            max_refills=args.max_refills,
            seed=args.seed,
        )
        self._task_weights = declared_weights(self.items["train"].source) if self._pays_for.components else {}

    def _make_algorithms(
        self, given: Algorithms | None, args: EnvGRPOConfig, *, may_fork: bool
    ) -> AlgorithmState | None:
        """Return the algorithms of the run; None: TRL's own loss."""
        if given is None:
            return None
        may_fork = may_fork or args.history == "template"
        return AlgorithmState(
            args, given, known=self._known_algorithms, has_critic=self._kind == "ppo", may_fork=may_fork
        )

    def _needs_reference(self, args: EnvGRPOConfig) -> bool:
        """Return whether the run needs a reference; reject settings that would then have no effect.

        Pairs use a reference only if the user creates or updates one; otherwise they use the sampling policy.
        """
        algorithms, is_ours = self.algorithms, self._reference.is_ours
        needed = bool(args.beta)
        if algorithms is not None:
            needed = algorithms.has_kl or (algorithms.has_pairs and is_ours)
        refuse_unused(args, [(not needed, "there is no KL", ("use_bias_correction_kl",))])
        how = "set beta above 0, or give an algorithm with a kl_coef"
        self._reference.check(args, is_used=needed, how=how)
        return needed

    @property
    def _algorithm(self) -> Algorithm | None:
        """The algorithm of the present generation; None: TRL's own loss."""
        return None if self.algorithms is None else self.algorithms.algorithm

    def _start_trl(self, model: Any, args: EnvGRPOConfig, tokenizer: Any, kwargs: dict[str, Any]) -> None:
        """Let TRL make its trainer.

        TRL loads a reference only if `beta` is above 0 now, so a schedule that starts at 0 needs another value here.
        TRL's vLLM engine ignores our dtype and seed and cannot run on CPUs, so we start ours afterwards.
        """
        beta = self._kl_coefficient(args) or float(self._has_reference)
        if self._reference.ref_model_fn is not None:
            beta = 0.0
        with temporarily(args, use_vllm=False, beta=beta), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
            super().__init__(
                model,
                reward_funcs=[reward_from_field],
                args=args,
                train_dataset=index_dataset(self.items["train"], "train"),
                eval_dataset=index_dataset(self.items["test"], "test") if "test" in self.items else None,
                processing_class=tokenizer,
                # TRL checks that there is one. `_trl_settings` replaces it for each generation.
                rollout_func=lambda prompts, trainer: self._rows(self.generation, len(prompts)),
                **kwargs,
            )
        check_positions(self.accelerator.unwrap_model(self.model))
        self.beta = self._kl_coefficient(args)
        self.add_callback(StepEnd(self._end_step))

    def _kl_coefficient(self, args: EnvGRPOConfig) -> float:
        """Return the current KL coefficient: the algorithm's, or `beta` for TRL's loss."""
        return float(cast("Any", args.beta) or 0.0) if self.algorithms is None else self.algorithms.coefficient

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play episodes, let TRL score their tokens, and compute the advantages.

        The order matters. We first sync the weights to the engine and play. Then TRL's method runs: it calls `_rows`
        to get the episodes and scores them with the trained model and the reference.
        """
        algorithms = self.algorithms
        if self._mode == "train" and algorithms is not None:
            algorithms.begin_generation(self.state.global_step, self.state.max_steps)
            self.beta = algorithms.coefficient
        if self.use_vllm and self.state.global_step != self._last_loaded_step:  # TRL then skips its sync
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        generation = self._play(inputs)
        owners = fork_owners(generation.episodes.trajectories)
        further_rows = [dict(inputs[0]) for _ in range(self._n_further_rows(len(owners)))]
        # TRL scores the reference only if beta is not 0, and a schedule may pass through 0.
        changed = {"beta": self.beta or float(self._has_reference)} | self._trl_settings(generation)
        mode = self.vllm_importance_sampling_mode
        if mode.startswith(OWN_IMPORTANCE_MODES):  # one that TRL knows; we replace its weights below
            changed["vllm_importance_sampling_mode"] = "token_mask"
        with silence_missing_reward_warning(bool(further_rows)), temporarily(self, **changed):
            output: dict[str, Any] = super()._generate_and_score_completions([*inputs, *further_rows])
        bounds = self.vllm_importance_sampling_clip_max, self.vllm_importance_sampling_clip_min
        output = reweighed(output, mode=mode, maximum=bounds[0], minimum=bounds[1])
        if further_rows:  # they have no reward, and TRL counts their groups as having different rewards
            mean = self._metrics[self._mode]["frac_reward_zero_std"]
            mean[-1] *= (len(inputs) + len(further_rows)) / len(inputs)
        if (algorithm := self._algorithm) is not None:
            self._make_advantages(algorithm, generation, output)
        elif owners:  # all rows of a forked episode share its advantage
            first = len(inputs)
            output["advantages"][first : first + len(owners)] = output["advantages"][owners]
        if not self._guarded:  # only now: the guard compares tokens as the loss will see them, in TRL's batch
            self._guarded = self._guard(output)
        self._log_episodes()
        return output

    @torch.no_grad()
    def _make_advantages(self, algorithm: Algorithm, generation: Generation, output: dict[str, Any]) -> None:
        """Replace TRL's advantages by the algorithm's and add its loss's inputs; a critic's advantages follow later."""
        batch = Batch.from_trl(output)
        if algorithm.kl_in == "reward" and algorithm.kl_coef:
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
            gather=gather_object,
            process_index=self.accelerator.process_index,
        )
        if scored.kl_BT is not None:
            output["kl_penalties"] = self.beta * scored.kl_BT
            self._log_mean("kl", mean_kl(scored.kl_BT, batch.mask_BT))
        if batch.group_tokens_B is not None:
            output["group_tokens"] = batch.group_tokens_B
        if algorithm.advantage_fn is not None:
            output["advantages"] = batch.advantages
        if algorithm.pair_loss_fn is not None:
            n_rows, device = len(output["prompt_ids"]), output["prompt_ids"].device
            generation.pairs = PairedRows.choose(algorithm, scored, n_rows)
            output["row"] = torch.arange(n_rows, device=device)  # TRL shuffles rows next; this keeps track of them
            self._metrics[self._mode]["pairs/count"].append(float(generation.pairs.n_pairs))

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return TRL's micro-batch; if the generation has pairs, keep the rows of each group together."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._mode != "train" or (paired := self.generation.pairs) is None:
            return inputs
        buffer: Any = self._buffered_inputs
        group_size = self._shares.group_size
        if not paired.is_arranged:  # TRL has just shuffled a new generation into its buffer
            buffer = keep_groups_together(buffer, group_size)
            self._buffered_inputs, paired.is_arranged = buffer, True
        place = self._step % len(buffer)
        if self.args.per_device_train_batch_size % group_size:  # micro-batches split groups
            of_this_step = buffer[place : place + self.current_gradient_accumulation_steps]
            paired.score(of_this_step, self._score_without_gradient, self.state.global_step)
        ready: dict[str, Any] = buffer[place]
        return ready

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss of a micro-batch, without its shared padding; measure its KL."""
        # TRL pads all micro-batches to the longest row of the generation. Drop the columns that this one does not need.
        inputs, algorithm = trim_padding(inputs), self._algorithm
        try:
            if algorithm is None:
                loss: torch.Tensor = super()._compute_loss(model, inputs)
            else:
                loss = self._algorithm_loss(algorithm, model, inputs)
            is_steered = self._reference.update_fn is not None or (self.algorithms and self.algorithms.is_steered)
            if self._mode == "train" and is_steered:
                kl_fn = None if algorithm is None else algorithm.kl_fn
                assert self.fresh_logps is not None
                batch = Batch.from_trl(inputs)
                self._reference.meter.add(self.fresh_logps, batch.need("ref_logps_BT"), batch.mask_BT, kl_fn)
        finally:
            self.fresh_logps = None
        return loss

    def _algorithm_loss(self, algorithm: Algorithm, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return a micro-batch's share of the step's `algorithm_loss`; log its statistics.

        The sampled tokens enter the loss here: the batch has the sampled ids, its mask is True on them, and `_score`
        returns their log-probabilities under the trained model.
        """
        batch, shares = Batch.from_trl(inputs), self._shares
        logps_BT, entropies_BT, aux_loss = self._score(
            model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        mask_BT, n_tokens = batch.mask_BT, inputs["num_items_in_batch"]
        constant = algorithm.constant if algorithm.constant is not None else float(self.max_completion_length or 0)
        denominator = shares.denominator(algorithm.normalisation, mask_BT, n_tokens, constant=constant)
        batch = replace(batch, logps_BT=logps_BT, entropies_BT=entropies_BT, denominator=denominator)
        if (paired := self.generation.pairs) is not None:
            losses_B, slopes_B, accuracy = paired.slopes(logps_BT, inputs, shares.group_size)
            weight = shares.pair_weight(paired.n_pairs)
            batch = replace(batch, pair_losses_B=weight * losses_B, pair_slopes_B=weight * slopes_B)
            self._log_mean("pairs/accuracy", torch.tensor(accuracy, device=logps_BT.device))
        # The entropy bonus is a mean over the tokens of the whole step, so weight this micro-batch by its tokens.
        share = mask_BT.sum() / shares.denominator("token", mask_BT, n_tokens, constant=1.0)
        # A schedule may pass through 0, and an algorithm with a `kl_fn` and no coefficient is refused.
        kl_fn = algorithm.kl_fn if self.beta else None
        present = replace(algorithm, kl_coef=self.beta, kl_fn=kl_fn, entropy_coef=algorithm.entropy_coef * float(share))
        loss, stats = algorithm_loss(present, batch)
        self._log_mean("entropy", masked_mean(entropies_BT, mask_BT))
        if "kl" in stats:
            self._log_mean("kl", stats["kl"])
        if aux_loss is not None:  # load balancing of a mixture of experts, as in TRL
            loss = loss + self.router_aux_loss_coef * aux_loss / shares.n_accumulated
        return loss

    def _end_step(self) -> None:
        """After an optimizer step, log algorithm and coefficient, adjust the coefficient, update the reference."""
        kl = self._reference.meter.take(self.accelerator)
        metrics = self._metrics["train"]
        if kl is not None:
            metrics["reference/kl"].append(kl)
        if self._has_reference:
            metrics["kl_coef"].append(self.beta)
        for name, value in self.algorithms.end_step(kl).items() if self.algorithms is not None else ():
            metrics[name].append(value)
        self._reference.end_step(self, kl)

    def _reward_settings(self) -> RewardSettings:
        """Return the user's reward settings, with the algorithm's overlong penalty added."""
        share = 0.0 if self._algorithm is None else self._algorithm.overlong
        return with_overlong(self._pays_for, share, int(self.args.max_completion_length or 256))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as TRL does, but leave out an adapter that only serves as the reference."""
        super()._save(output_dir, state_dict)
        drop_reference_adapter(self, output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save TRL's checkpoint, the unused part of the generation, and the state that the next generation needs."""
        # Ours first: a checkpoint counts as complete once transformers has written its state, the last file of `super`.
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        uses = self._uses
        taken = self._step % uses["uses"]
        if taken:  # every process writes its own rows
            micro_batches: Any = self._buffered_inputs
            self.generations["train"].save(self._rest_path(folder), micro_batches)
        if self.args.should_save:
            state = self._player.state_dict() | {"trainer": self._kind, "generation": {"taken": taken} | uses}
            state |= {} if self.algorithms is None else self.algorithms.state_dict()
            state["reference"] = self._reference.save(self, folder)
            (folder / STATE_FILE).write_text(json.dumps(state) + "\n")
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's checkpoint and the parts that `_save_checkpoint` added."""
        path = Path(checkpoint or "") / STATE_FILE
        state = json.loads(path.read_text()) if checkpoint is not None and path.exists() else None
        if checkpoint is not None:
            check_origin(checkpoint, state, self._kind)
            present = None if self.algorithms is None else self.algorithms.name_at(state or {})
            check_generation(checkpoint, (state or {}).get("learned_by"), present)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and state is not None:
            self._player.load_state_dict(state)
            self._reference.load(self, Path(checkpoint), state.get("reference"))
            # Before the generation, whose pairs take the current algorithm.
            if self.algorithms is not None:
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
        taken = state["taken"]
        if not taken:
            return
        saved, uses = {name: value for name, value in state.items() if name != "taken"}, self._uses
        if saved != uses:
            raise InvalidConfigError(
                f"{folder} lies inside a generation ({taken} of {state['uses']} micro-batches were taken), and its "
                f"batches have another shape: saved {saved}, now {uses} (uses: steps_per_generation * num_iterations). "
                "Resume with the settings and number of processes of the run, or from a checkpoint at the end of a "
                "generation."
            )
        self.generations["train"], rest = Generation.load(self._rest_path(folder), self._algorithm)
        # TRL plays a new generation if `_step` is a multiple of `uses`. Otherwise it takes the next from its buffer.
        self._step, self._buffered_inputs = taken, send_to_device(rest, self.accelerator.device)
