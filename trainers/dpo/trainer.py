"""DPO on environments: a thin subclass of TRL's trainer whose pairs are collected episodes of one seed.

TRL provides all losses, the reference model, logging and checkpoints. This module provides the pairs: sampled token
ids, with the environment's tokens masked. Pairs from play are `algorithm="pairwise"` of `EnvGRPOTrainer`.

Invariants:
1. Training uses exactly the sampled tokens: ids are never decoded and re-encoded.
2. The loss covers only the agent's tokens: the collator's `completion_mask` is 0 on all others.
3. All processes have the same list of pairs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset
from trl import DPOTrainer

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.rewards.time_limit import limited
from llm_envs.trainers.dpo.config import PAIRS_FROM_PLAY, EnvDPOConfig, check_arguments
from llm_envs.trainers.dpo.pairs import MASKS, PairCollator, as_dataset, fit_pairs, load_pairs
from llm_envs.trainers.episodes.generation import STATE_FILE
from llm_envs.trainers.functional.pairs import PairSelector
from llm_envs.trainers.functional.references import ReferenceUpdateFn, RefModelFn
from llm_envs.trainers.grpo.setup import temporarily
from llm_envs.trainers.reference import Reference, StepEnd, captured_log_probs, drop_reference_adapter, keeping_base
from llm_envs.trainers.run.checkpoints import ChecksCheckpoint, check_checkpoint
from llm_envs.trainers.run.finite import ChecksNumbers
from llm_envs.trainers.run.means import LogsMeans
from llm_envs.trainers.run.model_card import EnvironmentCard
from llm_envs.trainers.run.ranks import check_same_rows, function_limit, raise_on_all_ranks
from llm_envs.trainers.settings.checks import check_scorable, load_training_tokenizer, longest_row
from llm_envs.trainers.settings.unused import dpo_cases, refuse_unused
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


class EnvDPOTrainer(LogsMeans, EnvironmentCard, ChecksNumbers, ChecksCheckpoint, DPOTrainer):
    """Train a language model by DPO on pairs of collected episodes.

    Args:
        model: A folder, a name on a hub, or a loaded model (a PEFT model too).
        args: Settings; None takes the defaults.
        source: Scored trajectories, with the tokens of this model, or a saved data set: the folder of a run, exported
            pairs, pairs of messages, ... (`dpo.pairs.load_pairs`).
        eval_source: The same, for TRL's evaluation: loss, accuracy and margins on pairs that are not trained.
        selector: Chooses the pairs of a group: `(rewards_B, group_ids_B) -> pairs_P2` (`functional.pairs`). None: the
            selector of `args.pair_selector`. Ties, and pairs within `args.pair_margin`, are removed from its result.
        ref_model_fn: `(policy) -> reference`, in place of TRL's `ref_model`. With neither, the reference is the initial
            model (with PEFT, without its adapter).
        reference_update_fn: `(reference, policy, *, step, kl) -> reference`, after each optimizer step
            (`functional.references`); under PEFT it moves an adapter. `kl` is the mean of k3 over the pairs' tokens,
            which the policy did not sample: no estimate of its KL.
        **kwargs: TRL's other arguments (`processing_class`, `ref_model`, `peft_config`, `callbacks`, ...).

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
    """All pairs, as token rows."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        args: EnvDPOConfig | None = None,
        *,
        source: str | Path | Dataset | Sequence[Trajectory] | None = None,
        eval_source: str | Path | Dataset | Sequence[Trajectory] | None = None,
        selector: PairSelector | None = None,
        ref_model_fn: RefModelFn | None = None,
        reference_update_fn: ReferenceUpdateFn | None = None,
        **kwargs: Any,
    ) -> None:
        args = args or EnvDPOConfig(output_dir="llm-envs-DPO")
        check_arguments(source, args, kwargs)
        refuse_unused(args, dpo_cases(args, has_selector=selector is not None))
        self._reference = Reference(ref_model_fn, reference_update_fn)
        self._reference.check(args, ref_model=kwargs.get("ref_model"))
        tokenizer = load_training_tokenizer(
            model, kwargs.get("processing_class"), thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        self._codec = ChatCodec(tokenizer, thinking=args.thinking)
        self._selector = limited(selector, function_limit(args), "the selector")
        self._longest = longest_row(model, args)
        self.overlong_pairs = {"overlong": 0, "dropped": 0, "cut": 0}
        datasets = self._load_pairs(source, eval_source, args)
        copy_single_heads()
        # With precompute_ref_log_probs=True, TRL loads no reference: ours is made afterwards.
        self._makes_reference_later = ref_model_fn is not None
        precompute = args.precompute_ref_log_probs or self._makes_reference_later
        with temporarily(args, precompute_ref_log_probs=precompute), keeping_base(model):
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

    def _load_pairs(self, source: Any, eval_source: Any, args: EnvDPOConfig) -> dict[str, Dataset]:
        """Load all pairs; return TRL's arguments for them."""
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
            fitting, counts = fit_pairs(rows, self._longest, args.overlong)
            if not fitting:
                raise InvalidConfigError(
                    f"no preference pair is left: all {len(rows)} are longer than {self._longest} tokens (max_length="
                    f"{args.max_length}, and at most the model's context), or equal up to their cut. Raise max_length, "
                    "set overlong='cut', take a model with a longer context, or shorter episodes."
                )
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
        """Return token rows unchanged; convert other data sets to token rows."""
        # TRL would encode messages anew here. Our rows have the sampled ids already.
        if {"prompt_ids", *MASKS} <= set(getattr(dataset, "column_names", None) or ()):
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
        kl = self._reference.meter.take(self.accelerator)
        if self._is_skipped:  # its KL may be NaN
            return
        if kl is not None:
            self._metrics["train"]["reference/kl"].append(kl)
        self._reference.end_step(self, kl)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as TRL does, but leave out an adapter that only serves as the reference."""
        super()._save(output_dir, state_dict)
        drop_reference_adapter(self, output_dir)

    def _save_own(self, folder: Path) -> None:
        """Save what a checkpoint needs besides TRL's: the reference."""
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            state = {"online": False, "reference": self._reference.save(self, folder)}
            (folder / STATE_FILE).write_text(json.dumps(state) + "\n")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's checkpoint and the parts that `_save_own` added."""
        if checkpoint is None:
            return
        check_checkpoint(checkpoint, "DPO")
        path = Path(checkpoint) / STATE_FILE
        state = json.loads(path.read_text()) if path.exists() else {}
        if state.get("online", bool(state)):  # its first checkpoints lacked the key
            raise InvalidConfigError(
                f"{checkpoint} is one of online DPO, which this version does not have: start from its weights as a "
                f"model. {PAIRS_FROM_PLAY}."
            )
        super()._load_optimizer_and_scheduler(checkpoint)
        self._reference.load(self, Path(checkpoint), state.get("reference"))
