"""GRPO on environments: a thin subclass of TRL's trainer whose completions are episodes.

What is TRL's stays TRL's: sampling of prompts, advantages, losses, logging, checkpoints. Ours is the rollout (the
collector plays the environment with the trainer's own weights) and the way back (sampled token ids, masks and rewards
as they were).

Invariants:
1. What is trained on is what was sampled: token ids are never decoded and encoded again, and a guard compares the
   sampled log-probabilities with the trainer's own on the first batch.
2. The loss sees the policy's tokens only: `env_mask` is 0 on every token that the environment or the template wrote.
3. All members of a group play one seed of the environment; a group lies on one process.
4. Each sampled token is trained in exactly one row: an episode whose history forks has several rows, which share its
   credit; the first carries its reward.
5. An episode that failed is no zero: its reward is NaN, its tokens are masked, the group's baseline does not count it.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llm_envs.chat import ChatCodec
from llm_envs.errors import MissingExtraError, ModelError
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rewards import RewardFns
from llm_envs.rollout import Collector, ContextFn
from llm_envs.rollout.curriculum import Curriculum
from llm_envs.rollout.filters import GroupFilter
from llm_envs.rollout.source import Envs, group_specs
from llm_envs.rollout.sync import SyncRunner
from llm_envs.shaping import ShapingFns

try:
    import torch
    from accelerate.utils import gather_object
    from datasets import Dataset
    from trl import GRPOTrainer
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.bridge import create_column_reader, fork_owners, reward_from_field, rollout_output
from llm_envs.trainers.credit import Aggregate, Credit, CreditSettings, declared_weights, pay
from llm_envs.trainers.functional.advantages import AdvantageFn
from llm_envs.trainers.functional.algorithm import AlgorithmConfig
from llm_envs.trainers.functional.kl import KLFn, k3
from llm_envs.trainers.functional.losses import LossFn
from llm_envs.trainers.functional.masking import trim_padding
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.generation import STATE_FILE, GenerationPlayer, make_collector, own_policy
from llm_envs.trainers.grpo_config import EnvGRPOConfig
from llm_envs.trainers.grpo_loss import (
    LossHooks,
    Scored,
    hooked_advantages,
    hooked_kl,
    hooked_policy_loss,
    quiet,
    rows_of,
    sampling_gap,
)
from llm_envs.trainers.grpo_setup import (
    as_engine,
    check_arguments,
    check_origin,
    lent,
    make_splits,
)
from llm_envs.trainers.in_force import InForce
from llm_envs.trainers.items import index_dataset
from llm_envs.trainers.processes import together
from llm_envs.trainers.reference import StepEnd, drop_reference_adapter
from llm_envs.trainers.schedules import KLSchedule
from llm_envs.trainers.settings import check_forks, load_training_tokenizer, training_template
from llm_envs.trainers.switching import Algorithms, PairedRows, arranged, switched_loss
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from llm_envs.rollout.tape import History

__all__ = ["EnvGRPOConfig", "EnvGRPOTrainer"]

logger = logging.getLogger(__name__)


class EnvGRPOTrainer(GRPOTrainer):
    """Train a language model by GRPO on an environment.

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: Id of a registered environment, such as "llm/Calculator-v0"; a factory; a weighted mixture (see
            `llm_envs.rollout.Envs`); or a data set of episodes with the columns `env` and `seed`, optionally `options`
            and `env_kwargs` (see `llm_envs.trainers.items.ListedItems`).
        args: Settings; None takes the defaults.
        processing_class: The tokenizer; None loads the model's.
        eval_env: What evaluation plays, in the same forms; None: the test split of `env`, and of a data set nothing.
        curriculum: Chooses arguments of the training episodes by measured success; in a mixture `{env_id: Curriculum}`.
        context_fn: Chooses which messages the model sees (`llm_envs.rollout.create_window`); None: all of them.
        reward_fns: What else an episode is paid for, beside the task's reward: functions of the trajectory, each a
            column of its own (`llm_envs.rewards`).
        reward_weights: By column; the task's are 1, or with `args.reward_components` those that it declares.
        aggregate: Makes one reward of the columns in place of their weighted sum: an aggregator of `llm_envs.rewards`,
            "pareto" or "relative".
        shaping_fns: Additions to each turn's reward (`llm_envs.shaping`).
        advantage_fn: `(rewards_B, group_ids_B, turn_rewards_BK) -> advantages` of shape (B,) or (B, K), in place of
            TRL's (`llm_envs.trainers.functional.advantages`, `turn_advantages`).
        kl_fn: `(logps_BT, ref_logps_BT, mask_BT) -> kl_BT`, in place of TRL's estimator, times `args.beta`
            (`llm_envs.trainers.functional.kl`).
        loss_fn: `(logps_BT, old_logps_BT, advantages, mask_BT) -> loss_BT`, in place of TRL's, normalised as
            `args.loss_type` says (`llm_envs.trainers.functional.losses`).
        group_filter: Which groups are worth training on (`llm_envs.rollout.filters`); the others are replaced by
            further ones, at most `args.max_refills` for each.
        algorithm: All of advantages, loss, KL and pairs as one value (`functional.algorithm`), or its name: "grpo",
            "dr_grpo", "dapo", "rloo", "reinforce", "gspo", "cispo", "pairwise". In place of the three hooks above and
            of what TRL's settings say of the loss.
        algorithm_schedule: `(generation) -> algorithm`, or `{0: "grpo", 100: "pairwise"}`: from which generation on
            each holds.
        kl_schedule: `(step, n_steps, kl) -> coefficient` of the KL, in place of `args.beta` (`trainers.schedules`);
            asked before each generation.
        ref_model_fn: `(policy) -> reference`, in place of the weights that the run began with: a copy
            (`functional.references.frozen_copy`), or another model of the same vocabulary, such as a teacher.
        reference_update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step
            (`functional.references`: EMA, periodic, triggered by the KL); under PEFT it moves an adapter.
        **kwargs: TRL's other arguments (`peft_config`, `callbacks`, `optimizers`, ...). Rewards, prompts and rollouts
            are the environment's: `reward_funcs`, datasets, `tools` and `rollout_func` are not accepted.

    With `args.use_vllm` a vLLM engine in this process samples, else the trainer's own model. Call `close` at the end.

    Raises:
        InvalidConfigError: If settings contradict one another.
        ModelError: If the model cannot be trained on conversations (no chat template, no end-of-turn token).
    """

    _tag_names = ["trl", "grpo", "llm-envs"]
    _kind = "grpo"
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
        reward_fns: RewardFns | None = None,
        reward_weights: Mapping[str, float] | None = None,
        aggregate: Aggregate | None = None,
        shaping_fns: ShapingFns | None = None,
        advantage_fn: AdvantageFn | None = None,
        kl_fn: KLFn | None = None,
        loss_fn: LossFn | None = None,
        group_filter: GroupFilter | None = None,
        algorithm: AlgorithmConfig | str | None = None,
        algorithm_schedule: Algorithms | None = None,
        kl_schedule: KLSchedule | None = None,
        ref_model_fn: RefModelFn | None = None,
        reference_update_fn: ReferenceUpdateFn | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(env, args, kwargs)
        args = args or EnvGRPOConfig(output_dir=f"{env.split('/')[-1] if isinstance(env, str) else 'llm-envs'}-GRPO")
        processing_class = load_training_tokenizer(
            model, processing_class, thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        self._pays_for = CreditSettings(reward_fns, shaping_fns, args.reward_components, aggregate, reward_weights)
        self._hooks = LossHooks(advantage_fn, kl_fn, loss_fn, args.kl_in)
        self._in_force = InForce(
            args,
            self._hooks,
            algorithm=algorithm,
            algorithm_schedule=algorithm_schedule,
            kl_schedule=kl_schedule,
            ref_model_fn=ref_model_fn,
            reference_update_fn=reference_update_fn,
            may_fork=args.history == "template" or context_fn is not None,
        )
        self._hooks = self._in_force.hooks
        self._paired: dict[str, PairedRows] = {}
        self._context_fn = context_fn
        self.items = make_splits(env, eval_env, args, curriculum)
        if context_fn is not None:
            check_forks(args.loss_type)
        self.env_ids = list(dict.fromkeys(choice.env_id for choice in self.items["train"].source.choices))
        self.last_trajectories: list[Trajectory] = []
        """The episodes of the latest generation on this process, in the order of TRL's rows."""
        self._inputs: list[dict[str, Any]] = []
        self._guarded = args.logps_tolerance is None
        self._start_trl(model, args, processing_class, kwargs)
        self._in_force.reference.start(self)
        self._credit = Credit({}, {}, (), ())
        self.fresh_logps: torch.Tensor | None = None
        """Of the latest forward pass, for a KL of the user's."""
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
            group_filter=self._in_force.switch.group_filter(group_filter) if self._in_force.switch else group_filter,
            max_refills=args.max_refills,
            seed=args.seed,
        )
        self._task_weights = declared_weights(self.items["train"].source) if args.reward_components else {}

    def _start_trl(self, model: Any, args: EnvGRPOConfig, tokenizer: Any, kwargs: dict[str, Any]) -> None:
        """Let TRL make its trainer.

        It makes a reference where beta is not 0, whatever a schedule says later. Its own engine has neither our dtype
        and seed nor CPUs.
        """
        with lent(args, use_vllm=False, beta=self._in_force.beta_for_trl), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
            super().__init__(
                model,
                reward_funcs=[reward_from_field],
                args=args,
                train_dataset=index_dataset(self.items["train"], "train"),
                eval_dataset=index_dataset(self.items["test"], "test") if "test" in self.items else None,
                processing_class=tokenizer,
                rollout_func=lambda prompts, trainer: self._rows(len(prompts)),
                **kwargs,
            )
        self.beta = self._in_force.kl.coefficient
        self.add_callback(StepEnd(lambda: self._in_force.end_step(self)))

    def _start_vllm(self) -> Any:
        self.vllm_generation = as_engine(self)
        self.use_vllm = True
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

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play, score (TRL's own way), guard, and log what the environment said."""
        self._inputs = inputs
        if self._mode == "train":
            self._in_force.begin_generation(self)
        if self.use_vllm and self.state.global_step != self._last_loaded_step:  # TRL will find it done
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        self._play()
        owners = fork_owners(self.last_trajectories)
        further_rows = [dict(inputs[0]) for _ in range(self._n_further_rows(len(owners)))]
        # TRL scores the reference where beta is not 0: a schedule may pass through it.
        with quiet(bool(further_rows)), lent(self, beta=self.beta or float(self._in_force.has_reference)):
            output: dict[str, Any] = super()._generate_and_score_completions([*inputs, *further_rows])
        if further_rows:  # they have no reward: TRL counts their groups as if theirs differed
            mean = self._metrics[self._mode]["frac_reward_zero_std"]
            mean[-1] *= (len(inputs) + len(further_rows)) / len(inputs)
        if self._hooks.make_advantages:
            scored = hooked_advantages(
                self._hooks,
                self._credit,
                output,
                beta=self.beta,
                scale_rewards=str(self.scale_rewards),
                process_index=self.accelerator.process_index,
            )
            output["advantages"] = scored.advantages
            if scored.kl is not None:
                self._metrics[self._mode]["kl"].append(scored.kl)
            self._pair_rows(scored, output)
        elif owners:  # a fork shares its trajectory's credit
            first = len(inputs)
            output["advantages"][first : first + len(owners)] = output["advantages"][owners]
        if not self._guarded:
            self._guarded = self._guard(output)
        self._log_episodes()
        return output

    def _pair_rows(self, scored: Scored, output: dict[str, Any]) -> None:
        """Choose the pairs of a generation, where the algorithm in force learns from any, and number its rows."""
        mode, algorithm = self._mode, self._hooks.algorithm
        self._paired.pop(mode, None)
        if algorithm is None or algorithm.pair_loss_fn is None:
            return
        n_rows, device = len(output["prompt_ids"]), output["prompt_ids"].device
        self._paired[mode] = PairedRows(algorithm, scored, n_rows)
        output["row"] = torch.arange(n_rows, device=device)
        self._metrics[mode]["pairs/count"].append(float(self._paired[mode].n_pairs))

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return TRL's micro-batch; of a generation with pairs, each group's rows are kept together."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._mode != "train" or (paired := self._paired.get("train")) is None:
            return inputs
        buffer: Any = self._buffered_inputs
        if not paired.is_arranged:
            buffer = arranged(buffer, int(self.num_generations or 1))
            self._buffered_inputs, paired.is_arranged = buffer, True
        place = self._step % len(buffer)
        paired.score(self, place)
        ready: dict[str, Any] = buffer[place]
        return ready

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of a micro-batch; one that forks made larger is taken in parts of the configured size.

        The losses that are normalised by the tokens of the whole batch (dapo, cispo) are sums over rows: the gradients
        of all parts but the last are added here, so that memory stays what it was.
        """
        size = self.args.per_device_train_batch_size
        n_rows = len(inputs["prompt_ids"]) if isinstance(inputs, dict) else 0
        is_whole = self.loss_type == "bnpo" or self.is_deepspeed_enabled  # its engine steps at every backward pass
        if n_rows <= size or self._mode != "train" or is_whole:
            loss: torch.Tensor = super().compute_loss(model, inputs, *args, **kwargs)
            return loss
        done = torch.zeros((), device=self.accelerator.device)
        for start in range(0, n_rows, size):
            part = {key: rows_of(value, start, start + size) for key, value in inputs.items()}
            if start + size >= n_rows:
                return super().compute_loss(model, part, *args, **kwargs) + done
            with self.accelerator.no_sync(model):
                loss = super().compute_loss(model, part, *args, **kwargs)
                self.accelerator.backward(loss)
            done = done + loss.detach()
        return done

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the loss on the micro-batch without the padding of the whole generation; measure its KL."""
        inputs = trim_padding(inputs)
        try:
            loss = self._hooked_loss(model, inputs) if self._hooks.make_loss else super()._compute_loss(model, inputs)
            if self._mode == "train":
                self._in_force.measure(self, self.fresh_logps, inputs)
        finally:
            self.fresh_logps = None
        return loss

    def _hooked_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Return TRL's loss, but for what the hooks replace: a part, or with an algorithm all of it."""
        if self._hooks.algorithm is not None:
            return switched_loss(self, model, inputs, self._hooks.algorithm, self._paired.get(self._mode))
        beta = self.beta
        with lent(self, beta=0.0):  # TRL's KL is left out
            if self._hooks.loss_fn is None:
                loss: torch.Tensor = super()._compute_loss(model, inputs)
            else:
                loss = hooked_policy_loss(self, model, inputs, self._hooks.loss_fn)
        if beta and self._hooks.kl_in == "loss":
            loss = loss + beta * hooked_kl(self, inputs, self._hooks.kl_fn or k3)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's, and keep the log-probabilities for a KL of ours."""
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.fresh_logps = result[0]
        return result

    def _n_further_rows(self, n_forks: int) -> int:
        """Return how many rows beyond one an episode the batch has: as many on every process, in whole groups."""
        if self.args.history == "append" and self._context_fn is None:
            return 0
        n_most = max(gather_object([n_forks]))
        is_training = self._mode == "train"
        group_size = int((self.num_generations if is_training else self.num_generations_eval) or 1)
        unit = math.lcm(group_size, int(self.args.steps_per_generation or 1)) if is_training else group_size
        return -(-n_most // unit) * unit

    def _play(self) -> None:
        """Play one episode for each row that TRL asks for."""
        if isinstance(self._policy, TransformersPolicy):
            self._policy.weight_version = self.state.global_step
        mode = self._mode
        group_size = int((self.num_generations if mode == "train" else self.num_generations_eval) or 1)
        rows = self._player.play(self._inputs, mode=mode, step=self.state.global_step, group_size=group_size)
        if mode == "train":
            self._player.learn()
        with together():
            self._credit = pay(rows, self._pays_for, self._task_weights)
        self.last_trajectories = list(self._credit.trajectories)
        self._set_columns()

    def _set_columns(self) -> None:
        """Let TRL read the columns of this generation, the same on all processes."""
        parts = gather_object([list(self._credit.weights.items())])
        weights = dict(item for part in parts for item in part) or {"reward": 1.0}
        self.reward_funcs = [create_column_reader(name) for name in weights]
        self.reward_func_names = list(weights)
        self.reward_processing_classes = [None] * len(weights)  # type: ignore[list-item]  # as TRL has it itself
        self.reward_weights = torch.tensor(list(weights.values()), dtype=torch.float32)

    def _rows(self, n_rows: int) -> dict[str, list[Any]]:
        """Return the episodes that were just played as rows; TRL's `rollout_func`."""
        return rollout_output(
            self.last_trajectories,
            pad_id=int(self._tokenizer.pad_token_id),
            mask_truncated=self._mask_truncated,
            n_rows=n_rows,
            columns=self._credit.columns,
        )

    def _guard(self, output: Mapping[str, Any]) -> bool:
        """Stop if the log-probabilities at sampling are not those of the model that is trained.

        Returns:
            Whether there was anything to compare, on any process.

        Raises:
            ModelError: If their mean gap exceeds `args.logps_tolerance`.
        """
        args = self.args
        if (args.top_p, args.top_k or 0, args.min_p or 0.0, args.repetition_penalty) != (1.0, 0, 0.0, 1.0):
            return True  # the sampled distribution was filtered: the two are meant to differ
        own_gap = sampling_gap(self, output, args.per_device_train_batch_size)
        gaps = [gap for gap in gather_object([own_gap]) if gap is not None]
        if not gaps:
            return False
        mean_gap = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)  # all processes stop, or none
        self._metrics["train"]["sampling/guard_logps_gap"].append(mean_gap)
        if args.logps_tolerance is not None and not mean_gap <= args.logps_tolerance:
            raise ModelError(
                f"the log-probabilities at sampling differ from the trainer's own by {mean_gap:.3g} nats a token on "
                f"the first batch (allowed: logps_tolerance={args.logps_tolerance}). Check that policy and trainer "
                "have the same weights, dtype, temperature and chat template, and that dropout is off."
            )
        return True

    def _log_episodes(self) -> None:
        """Log what the environment said of the latest episodes, over all processes."""
        mode = self._mode
        metrics = self._player.metrics(mode)
        for name, value in metrics.items():
            self._metrics[mode][f"env/{name}"].append(value)
        self._player.check_failures(self.last_trajectories)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as TRL does, without an adapter that is only the reference."""
        super()._save(output_dir, state_dict)
        drop_reference_adapter(self, output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save what TRL saves, and what the next generation depends on."""
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            state = self._player.state_dict() | self._in_force.save(self, folder)
            (folder / STATE_FILE).write_text(json.dumps(state) + "\n")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load what TRL loads, and what `_save_checkpoint` added."""
        path = Path(checkpoint or "") / STATE_FILE
        state = json.loads(path.read_text()) if checkpoint is not None and path.exists() else None
        if checkpoint is not None:
            check_origin(checkpoint, state, self._kind)
            self._in_force.check_state(checkpoint, state or {})
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and state is not None:
            self._player.load_state_dict(state)
            self._in_force.load(self, Path(checkpoint), state)

    @property
    def collector(self) -> Collector:
        """What plays the episodes."""
        return self._player.collector

    @property
    def policy(self) -> Any:
        """What samples: the trainer's own model, or a colocated engine."""
        return self._policy

    def play_sample(self, index: int = 0) -> list[Trajectory]:
        """Play one group of training item `index` with the weights of now; nothing is learned or written."""
        specs = group_specs(self.items["train"].spec(index, f"sample-{index}"), int(self.num_generations or 1))
        return list(self.collector.play([specs])[0].trajectories)

    def close(self) -> None:
        """Close the trajectories' log and end the collector's and the policy's threads."""
        self._player.close()
        runner = SyncRunner()  # in a notebook a loop is running already
        runner.run(self._policy.aclose)
        runner.close()
