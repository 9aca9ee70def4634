"""DPO on environments: a thin subclass of TRL's trainer whose pairs are episodes of one seed.

TRL provides all losses, the reference model, logging and checkpoints. This module provides the pairs (sampled token
ids, with the environment's tokens masked), and the online rounds: play, pair, train.

Invariants:
1. Training uses exactly the sampled tokens: ids are never decoded and re-encoded.
2. The loss covers only the agent's tokens: the collator's `completion_mask` is 0 on all others.
3. Online, an epoch has the fixed number of steps of a full round, and one learning-rate schedule runs through all
   rounds. A round with few pairs is shorter: no pair is trained more than `max_pair_uses` times.
4. A round is played with the weights after the last step of the previous round.
5. All processes have the same list of pairs and train on equal parts of it, so all have the same number of batches.
   Nothing is gathered while episodes run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import DPOTrainer

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.datasets import Selector, to_groups
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout import Collector
from llm_envs.rollout.filters import GroupFilter
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.source import Envs
from llm_envs.trainers.bridge.checkpoints import ChecksCheckpoint, check_checkpoint
from llm_envs.trainers.bridge.checks import check_scorable, load_training_tokenizer, longest_row
from llm_envs.trainers.bridge.engines import own_engine, own_policy
from llm_envs.trainers.bridge.finite import ChecksNumbers
from llm_envs.trainers.bridge.generation import STATE_FILE, GenerationPlayer, close_player, make_collector
from llm_envs.trainers.bridge.items import EpisodeDataset, index_datasets
from llm_envs.trainers.bridge.means import LogsMeans
from llm_envs.trainers.bridge.model_card import EnvironmentCard
from llm_envs.trainers.bridge.ranks import check_same_rows, function_limit, raise_on_all_ranks
from llm_envs.trainers.bridge.unused_settings import dpo_cases, refuse_unused
from llm_envs.trainers.dpo.config import EnvDPOConfig, check_arguments
from llm_envs.trainers.dpo.pairs import (
    MASKS,
    PairCollator,
    as_dataset,
    fit_pairs,
    load_pairs,
    make_selector,
    pair_metrics,
    pair_rows,
)
from llm_envs.trainers.dpo.record import RecordsPairs
from llm_envs.trainers.dpo.rounds import RoundRows, items_of_play, share_of_round, shortened_round, too_few_pairs
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.grpo.setup import make_splits, temporarily
from llm_envs.trainers.reference import Reference, StepEnd, captured_log_probs, drop_reference_adapter, keeping_base
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["EnvDPOConfig", "EnvDPOTrainer"]

logger = logging.getLogger(__name__)

MEANS_OF_PAIRS = (
    *("logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"),
    "aux_loss",
)
"""TRL's names whose means are over pairs."""

MAX_EMPTY_ROUNDS = 3
"""If a round gives too few pairs for a step, play more items. After this many attempts, training ends."""


class EnvDPOTrainer(LogsMeans, RecordsPairs, EnvironmentCard, ChecksNumbers, ChecksCheckpoint, DPOTrainer):
    """Train a language model by DPO on pairs of episodes.

    Give either `env` (online: rounds of playing and training) or `source` (offline).

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        env: An environment id, a factory, a weighted mixture, or a data set of episodes, as for `EnvGRPOTrainer`.
        args: Settings; None takes the defaults.
        source: Scored trajectories, with the tokens of this model, or a saved data set: the folder of a run, exported
            pairs, pairs of messages, ... (`dpo.pairs.load_pairs`).
        eval_source: The same, for TRL's evaluation: loss, accuracy and margins on pairs that are not trained.
        selector: Chooses the pairs of a group: scored trajectories -> pairs (chosen, rejected). None: the selector of
            `args.pair_selector`. `dpo.pairs.lift_pairs` converts a selector on rewards (`functional.pairs`).
            Ties, and pairs within `args.pair_margin`, are removed from its result.
        ref_model_fn: `(policy) -> reference`, in place of TRL's `ref_model`. With neither, the reference is the initial
            model (with PEFT, without its adapter).
        reference_update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step
            (`functional.references`); under PEFT it moves an adapter. `kl` is the mean of k3 over the pairs' tokens. It
            estimates the policy's KL only online, where the policy has just sampled them.
        eval_env: Online, the episodes of `evaluate`; None: the test split of `env`. A data set has no test split.
        curriculum: Online, chooses arguments of the training episodes by measured success.
        group_filter: Online, keeps the groups to train on (`llm_envs.rollout.filters`; `create_spread_filter()` drops
            those without a pair). Dropped groups are replaced; at most `args.max_refills` are played for each place.
        **kwargs: TRL's other arguments (`processing_class`, `ref_model`, `peft_config`, `callbacks`, ...).

    Online, call `close` at the end.

    Raises:
        InvalidConfigError: If settings contradict one another, there is no pair, or a data set's tokens have no masks
            or are another tokenizer's.
        ModelError: If the model cannot be trained on conversations (no chat template, no end-of-turn token).
    """

    _tag_names = ["trl", "dpo", "llm-envs"]
    args: EnvDPOConfig

    overlong_pairs: dict[str, int]
    """Counts of pairs longer than `args.max_length`, or the context: `overlong`, and among them `dropped` and `cut`."""

    pairs: list[dict[str, Any]]
    """Online, the pairs of the current round, of all processes; offline, all pairs."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: Envs | Dataset | None = None,
        args: EnvDPOConfig | None = None,
        *,
        source: str | Path | Dataset | Sequence[Trajectory] | None = None,
        eval_source: str | Path | Dataset | Sequence[Trajectory] | None = None,
        selector: Selector | None = None,
        ref_model_fn: RefModelFn | None = None,
        reference_update_fn: ReferenceUpdateFn | None = None,
        eval_env: Envs | Dataset | None = None,
        curriculum: Curriculum | Mapping[str, Curriculum] | None = None,
        group_filter: GroupFilter | None = None,
        **kwargs: Any,
    ) -> None:
        args = args or EnvDPOConfig(output_dir="llm-envs-DPO")
        check_arguments(env, source, args, kwargs)
        refuse_unused(args, dpo_cases(args, is_online=env is not None, has_selector=selector is not None))
        self._reference = Reference(ref_model_fn, reference_update_fn)
        self._reference.check(args, ref_model=kwargs.get("ref_model"))
        tokenizer = load_training_tokenizer(
            model, kwargs.get("processing_class"), thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        self._codec = ChatCodec(tokenizer, thinking=args.thinking)
        self._selector = limited(selector, function_limit(args), "the selector") if selector else make_selector(args)
        self._has_own_selector = selector is not None
        self._longest = longest_row(model, args)
        self._is_online = env is not None
        self.overlong_pairs = {"overlong": 0, "dropped": 0, "cut": 0}
        self.pairs = []
        if self._is_online:
            args.check_online()
        self.items: dict[str, EpisodeDataset] = {} if env is None else make_splits(env, eval_env, args, curriculum)
        # Online, the pairs come later: TRL gets rows of numbers, and `get_train_dataloader` takes each round's pairs.
        datasets = index_datasets(self.items) if self._is_online else self._load_pairs(source, eval_source, args)
        # Online, TRL would precompute the reference before there are pairs, and then drop the model. Our own reference
        # is made afterwards: with precompute_ref_log_probs=True, TRL does not load one.
        copy_single_heads()
        precompute = args.precompute_ref_log_probs and env is None
        self._makes_reference_later = ref_model_fn is not None
        with temporarily(args, precompute_ref_log_probs=precompute or ref_model_fn is not None), keeping_base(model):
            super().__init__(
                model,
                args=args,
                data_collator=PairCollator(
                    int(tokenizer.pad_token_id),
                    max_length=self._longest,
                    pad_to_multiple_of=cast("int | None", args.pad_to_multiple_of),  # TRL has replaced "auto"
                ),
                **kwargs | datasets | {"processing_class": tokenizer},
            )
        self.precompute_ref_logps = args.precompute_ref_log_probs
        self._makes_reference_later = False
        check_scorable(self.accelerator.unwrap_model(self.model))
        self._reference.start(self)
        self.add_callback(StepEnd(self._end_step))
        self._metrics["train"] |= {f"pairs/{name}": [float(n)] for name, n in self.overlong_pairs.items()}
        if self._is_online:
            self._start_online(group_filter)

    def _load_pairs(self, source: Any, eval_source: Any, args: EnvDPOConfig) -> dict[str, Dataset]:
        """Offline, load all pairs; return TRL's arguments for them."""
        self.pairs = self._load(source, args)
        check_same_rows(self.pairs, "pairs")
        datasets = {"train_dataset": as_dataset(self.pairs, args)}
        if eval_source is not None:
            datasets["eval_dataset"] = as_dataset(self._load(eval_source, args), args)
        return datasets

    def _load(self, source: Any, args: EnvDPOConfig) -> list[dict[str, Any]]:
        """Return the pairs of a data set that fit `max_length` and the model's context."""
        # User code may select the pairs: an error on one process must stop the others too.
        with raise_on_all_ranks():
            rows = load_pairs(source, self._codec, args, self._selector)
            fitting = self._fit(rows, args.overlong)
            if not fitting:
                raise InvalidConfigError(
                    f"no preference pair is left: all {len(rows)} are longer than max_length={self._longest}, or "
                    "equal up to their cut. Raise it, up to the model's context."
                )
        return fitting

    def _fit(self, rows: list[dict[str, Any]], overlong: str) -> list[dict[str, Any]]:
        fitting, counts = fit_pairs(rows, self._longest, overlong)
        for name, count in counts.items():
            self.overlong_pairs[name] += count
        if counts["overlong"]:
            logger.warning(
                f"{counts['overlong']} of {len(rows)} pairs are longer than max_length={self._longest}: "
                f"{counts['dropped']} were left out, {counts['cut']} cut behind a turn."
            )
        return fitting

    # TRL's hooks for data sets, the loss and the step.

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        """Return token rows and episode indices unchanged; convert other data sets to token rows."""
        # TRL would encode messages anew here. Our rows have the sampled ids already.
        names = set(getattr(dataset, "column_names", None) or ())
        if {"index", "split"} <= names or {"prompt_ids", *MASKS} <= names:
            return dataset
        return as_dataset(self._load(dataset, args), args)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Return TRL's rows with the reference's log-probabilities; without them if our reference is made later."""
        if self._makes_reference_later:
            return dataset
        self._reference.check_start(self, is_asked_once=True)
        return super()._precompute_ref_logps(dataset, name, batch_size)

    def _set_signature_columns_if_needed(self) -> None:
        """Let the masks reach the collator: transformers drops columns that are not listed here."""
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        columns += [name for name in MASKS if name not in columns]

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        """Return TRL's loss; log its statistics as exact means, and measure the KL for a moving reference."""
        with self._counting_all():
            result = self._measured_loss(model, inputs, return_outputs)
        mask = inputs["completion_mask"][..., 1:]
        chosen, rejected = ((n, n) for n in mask.sum(1).view(2, -1).sum(1))
        both, pairs = mask.sum(), torch.tensor(len(mask) // 2, device=mask.device)
        weights = {"entropy": (both, both), "mean_token_accuracy": chosen}
        weights |= {"logits/chosen": chosen, "logits/rejected": rejected}
        self._weigh(weights | dict.fromkeys(MEANS_OF_PAIRS, (pairs, pairs)))
        if self._mode == "eval":
            self._add_means(pairs, {"loss": result[0] if isinstance(result, tuple) else result})
        return result

    def _measured_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        if self._reference.update_fn is None or self._mode == "eval":
            return super()._compute_loss(model, inputs, return_outputs)
        # TRL returns sums over rows, and the KL needs each token: read what the forward passes of both models return.
        modules = [self.accelerator.unwrap_model(part) for part in (model, self.ref_model) if part is not None]
        with captured_log_probs(modules) as scored:
            result = super()._compute_loss(model, inputs, return_outputs)
        mask = inputs["completion_mask"][:, 1:]
        logps, reference = (part[:, -mask.shape[1] :] for part in scored)
        self._reference.meter.add(logps, reference, mask)
        return result

    def _end_step(self) -> None:
        """After an optimizer step, log the KL and update the reference."""
        # A callback (`StepEnd`) calls this: transformers has no method of the trainer that runs after the optimizer.
        self._record_step()
        kl = self._reference.meter.take(self.accelerator)
        if self._is_skipped:  # its KL may be NaN
            return
        if kl is not None:
            self._metrics["train"]["reference/kl"].append(kl)
        self._reference.end_step(self, kl)

    # Online.

    def _start_online(self, group_filter: GroupFilter | None) -> None:
        args = self.args
        self._steps_per_round = args.n_steps_per_round
        self._n_played = 0  # how often groups were played: once a round, or more often if their pairs were too few
        self.local_pairs: list[dict[str, Any]] = []
        """This process's pairs of the current round, in training order."""
        self.last_trajectories: list[Trajectory] = []
        """The episodes of the latest round on this process."""
        self._has_warned, self._is_filtered = False, group_filter is not None  # a filter has already replaced groups
        self._engine: Any = own_engine(self) if args.use_vllm else None
        self._policy = own_policy(self) if self._engine is None else self._engine.policy
        folder = Path(args.output_dir or ".") / "trajectories" / f"process-{self.accelerator.process_index}"
        self._player = GenerationPlayer(
            make_collector(self.items["train"], self._policy, self._codec, args),
            self.items,
            process_index=self.accelerator.process_index,
            folder=folder if args.save_trajectories else None,
            settings={"envs": [choice.env_id for choice in self.items["train"].source.choices], "seed": args.seed},
            group_filter=limited(group_filter, function_limit(args), "the group_filter"),
            max_refills=args.max_refills,
            seed=args.seed,
            is_ahead=args.async_generations > 0,
        )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does. Online, episodes that are still running at the end, or after an error, are dropped."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if self._is_online:
                self._player.stop()

    def get_train_dataloader(self) -> Any:
        """Return TRL's data loader; online, one with the batches of the current round."""
        if not self._is_online:
            return super().get_train_dataloader()
        # Not prepared by accelerate, which fetches one batch ahead: it would ask for a round before it is played.
        self._round, self._round_start, self._n_round_steps = -1, 0, 0
        rows = RoundRows(self._steps_per_round * self._n_local_pairs_per_step, self._row_of_step)
        size = self.args.per_device_train_batch_size
        return DataLoader(rows, batch_size=size, shuffle=False, collate_fn=self.data_collator)

    @property
    def _n_local_pairs_per_step(self) -> int:
        return self.args.n_pairs_per_step // self.accelerator.num_processes

    def _row_of_step(self, place: int) -> dict[str, Any]:
        """Return a pair of the current optimizer step; `place` is its place in the epoch."""
        # `place` restarts with each epoch, but a short round may end inside one: count from the round's first step.
        n_taken = (self.state.global_step - self._round_start) * self._n_local_pairs_per_step
        return self.local_pairs[n_taken + place % self._n_local_pairs_per_step]

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return TRL's batches of the next optimizer step; online, first play a new round if one is due."""
        # transformers calls this before each optimizer step, so the weights are those after the previous step.
        if self._is_online and not self._begin_round():
            self.control.should_training_stop = True
            return [], None
        batches: tuple[list[Any], Any] = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batches

    def _begin_round(self) -> bool:
        """Play or restore the current round; return whether its pairs fill a step, the same on all processes."""
        step = self.state.global_step
        if step >= self._round_start + self._n_round_steps:
            self._round, self._round_start, self.local_pairs = self._round + 1, step, []
            n_played = self._n_played
            self._play_round()
            self._n_round_steps = self.args.steps_with(len(self.pairs))
            if self._n_round_steps:
                self._log_round((self._n_played - n_played) * self.args.groups_per_round)
                self._record_round()
        if self._n_round_steps and not self.local_pairs:  # a new round, or one that a checkpoint restored
            share = share_of_round(
                self.pairs,
                self._n_round_steps * self._n_local_pairs_per_step,
                process_index=self.accelerator.process_index,
                n_processes=self.accelerator.num_processes,
                seed=derive_seed(self.args.seed, "pairs", self._round),
            )
            self.local_pairs = self._with_reference(share)
        return self._n_round_steps > 0

    def _log_round(self, n_groups: int) -> None:
        """Log the pairs of a new round; warn once if they are too few for a full round."""
        args, n_pairs, n_steps = self.args, len(self.pairs), self._n_round_steps
        metrics = pair_metrics(self.pairs, n_groups)
        metrics |= {"steps": float(n_steps), "uses": n_steps * args.n_pairs_per_step / n_pairs}
        for name, value in metrics.items():
            self._metrics["train"][f"pairs/{name}"].append(value)
        if n_steps < self._steps_per_round and not self._has_warned:
            self._has_warned = True
            logger.warning(shortened_round(args, n_pairs, n_groups))

    def _play_round(self) -> None:
        """Play groups and pair them until the pairs of all processes fill a step."""
        step, self.pairs = self.state.global_step, []
        if self._engine is not None:
            self._engine.sync_weights()
        else:
            self._policy.weight_version = step
        n_tries = 1 if self._is_filtered else MAX_EMPTY_ROUNDS
        for _ in range(n_tries):
            (number, items), *coming = self._coming_plays()
            self._n_played += 1
            size = self.args.num_generations
            rows = self._player.play(items, mode="train", step=number, group_size=size, upcoming=coming)
            self._player.learn()
            self.last_trajectories = rows
            self._take_episodes("train", self._player.totals("train"))
            for name, value in self._player.use_metrics(rows, step).items():
                self._metrics["train"][name].append(value)
            self._player.check_failures([t for t in rows if t.error is None or t.error.where != "group_filter"])
            # Selectors are user code: an error on one process must not leave the others waiting in gather_object.
            with raise_on_all_ranks():
                made = pair_rows(to_groups(rows), self._selector, margin=self.args.pair_margin)
                own = self._fit(made, self.args.overlong)
            self.pairs += [pair for part in gather_object([own]) for pair in part]
            if self.args.steps_with(len(self.pairs)):
                return
            logger.warning(
                f"{len(self.pairs)} preference pairs at step {step} do not fill it, after {len(rows)} more episodes: "
                "other items are played too."
            )
        message = too_few_pairs(self.args, len(self.pairs), n_tries, is_filtered=self._is_filtered)
        if step == 0:
            raise InvalidConfigError(message + ".")
        logger.warning(f"training ends at step {step}: {message}; if all are solved, there is no more to learn.")

    def _coming_plays(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Return numbers and rows of the next play, and of those to begin while the trainer steps on it."""
        args, n_items = self.args, len(self.items["train"])
        ranks = {"process_index": self.accelerator.process_index, "n_processes": self.accelerator.num_processes}
        # Each play is a round, unless its pairs are too few.
        n_rounds = -(-(self.state.max_steps - self.state.global_step) // self._steps_per_round)
        numbers = range(self._n_played, self._n_played + max(min(args.async_generations + 1, n_rounds), 1))
        return [(number, items_of_play(number, n_items, args, **ranks)) for number in numbers]

    def _with_reference(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows with the reference's log-probabilities, if they are to be computed once per round."""
        if not self.precompute_ref_logps:
            return rows
        different = list({id(row): row for row in rows}.values())
        size = self.args.precompute_ref_batch_size or self.args.per_device_train_batch_size
        known: dict[int, dict[str, float]] = {}
        for start in range(0, len(different), size):
            part = different[start : start + size]
            batch = self._prepare_inputs(self.data_collator(part))
            scored = self.compute_ref_log_probs(self.ref_model or self.model, batch)
            for row, chosen, rejected in zip(part, *(logps.tolist() for logps in scored), strict=True):
                known[id(row)] = {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        return [row | known[id(row)] for row in rows]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return TRL's metrics on pairs; online, without a data set, the environment's metrics on the test split."""
        if not self._is_online or eval_dataset is not None:
            metrics: dict[str, float] = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            return metrics
        if "test" not in self.items:
            raise InvalidConfigError("there is nothing to evaluate on: give eval_env= (or eval_dataset=, pairs).")
        if self._engine is not None:
            self._engine.sync_weights()
        rank, size = self.accelerator.process_index, self.accelerator.num_processes
        rows = [{"index": index, "split": "test"} for index in range(rank, len(self.items["test"]), size)]
        self._player.play(rows, mode="eval", step=self.state.global_step, group_size=1)
        metrics = {f"{metric_key_prefix}_env/{k}": v for k, v in self._player.metrics("eval").items()}
        model: Any = self.model
        model.eval()  # TRL's `log` treats metrics as training metrics unless the model is in eval mode
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as TRL does, but leave out an adapter that only serves as the reference."""
        super()._save(output_dir, state_dict)
        drop_reference_adapter(self, output_dir)

    def _save_own(self, folder: Path) -> None:
        """Save the reference, and online the state of the current round and the player."""
        if self._is_online:
            self._player.save_begun(folder / "ahead")
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STATE_FILE).write_text(json.dumps(self._own_state(folder)) + "\n")

    def _own_state(self, folder: Path) -> dict[str, Any]:
        """Return the state that a checkpoint needs besides TRL's; write a moving reference's weights."""
        state: dict[str, Any] = {"trainer": "dpo", "online": self._is_online}
        state["reference"] = self._reference.save(self, folder)
        if self._is_online:
            is_in_round = self.state.global_step < self._round_start + self._n_round_steps
            state |= {"player": self._player.state_dict(), "n_played": self._n_played, "round": self._round}
            state |= {"ahead": self._player.n_begun, "steps_per_round": self._steps_per_round}
            state |= {"round_start": self._round_start, "round_steps": self._n_round_steps}
            state["pairs"] = self.pairs if is_in_round else []
        return state

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's checkpoint and the parts that `_save_own` added."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE_FILE
        state = json.loads(path.read_text()) if path.exists() else {}
        self._reference.load(self, Path(checkpoint), state.get("reference"))
        if not self._is_online:
            check_checkpoint(checkpoint, "DPO")
            if state.get("online", bool(state)):
                raise InvalidConfigError(f"{checkpoint} is one of online DPO: start from its weights as a model.")
            return
        if (state.get("trainer") or state.get("algorithm")) != "dpo" or not state.get("online", True):
            raise InvalidConfigError(f"{checkpoint} is no checkpoint of online DPO: start from its weights as a model.")
        if state["steps_per_round"] != self._steps_per_round:
            raise InvalidConfigError(
                f"the checkpoint's rounds have {state['steps_per_round']} steps, this run's {self._steps_per_round}: "
                f"set steps_per_round={state['steps_per_round']}, with the same batch sizes."
            )
        self._player.load_state_dict(state["player"])
        self._player.load_begun(Path(checkpoint) / "ahead", state.get("ahead", 0))
        self._n_played, self.pairs, self.local_pairs = state["n_played"], state["pairs"], []
        self._round, self._round_start = state["round"], state["round_start"]
        self._n_round_steps = state["round_steps"]

    @property
    def collector(self) -> Collector:
        """Online, the collector that plays the episodes."""
        return self._player.collector

    @property
    def policy(self) -> Any:
        """Online, the sampling policy: the trainer's own model, or a colocated engine."""
        return self._policy

    def close(self) -> None:
        """Online, close the trajectories' log and end the collector's and the policy's threads; offline, do nothing."""
        if self._is_online:
            close_player(self._player, self._policy)
            if self._engine is not None:
                self._engine.close()
