"""Warm start: supervised learning on trajectories with TRL's trainer, on the agent's tokens only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from llm_envs.chat.codec import ChatCodec
from llm_envs.data.datasets import fit_rows
from llm_envs.errors import InvalidConfigError, counted
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.policies.inference.positions import pass_positions
from llm_envs.policies.scripted import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.rollout.token_transcript import History
from llm_envs.sources.source import EnvChoice
from llm_envs.trainers.run.checkpoints import ChecksCheckpoint, check_checkpoint
from llm_envs.trainers.run.finite import ChecksNumbers
from llm_envs.trainers.run.means import LogsMeans
from llm_envs.trainers.run.model_card import EnvironmentCard
from llm_envs.trainers.run.ranks import check_same_rows, raise_on_all_ranks, set_for_machine
from llm_envs.trainers.settings.checks import (
    check_env_kwargs,
    check_values,
    load_training_tokenizer,
    longest_row,
    read_numbers,
    with_split,
)
from llm_envs.trainers.settings.unused import NamedSettings, refuse_unused, without
from llm_envs.trainers.sft.packing import check_packing
from llm_envs.trainers.sft.source import is_trajectories, load_source, rows_of
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["EnvSFTConfig", "EnvSFTTrainer", "oracle_trajectories"]

logger = logging.getLogger(__name__)


@dataclass
@without(
    "rows are encoded, masked and cut before TRL sees them",
    *("dataset_text_field", "completion_only_loss", "chat_template_path", "truncation_mode"),
)
class EnvSFTConfig(NamedSettings, SFTConfig):
    """TRL's `SFTConfig` with settings for environments."""

    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of gym.make, such as {'difficulty': 'easy'} (a JSON object)."}
    )
    num_episodes: int = field(default=1000, metadata={"help": "Episodes that the oracle plays on the train split."})
    thinking: bool | None = field(
        default=None, metadata={"help": "Passed to the chat template as enable_thinking; None: the template's default."}
    )
    best_of: int | None = field(
        default=None, metadata={"help": "Learn from so many episodes of each group, the best; None: from all."}
    )
    min_reward: float | None = field(
        default=None, metadata={"help": "Leave out episodes that earned less; None: learn from all that were scored."}
    )
    history: Literal["append", "template"] = field(
        default="append",
        metadata={
            "help": "How conversations are encoded: append, each turn as it was written, one row; template, in further "
            "rows where the chat template shows earlier turns otherwise."
        },
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Longest row in tokens; see overlong. None: the model's context."}
    )
    overlong: Literal["drop", "cut", "error"] = field(
        default="drop",
        metadata={"help": "What becomes of longer rows: drop; cut, behind the last turn that fits; error."},
    )

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "env_kwargs"]

    def __post_init__(self) -> None:
        """Set the defaults of this machine, then check our fields."""
        read_numbers(self)
        set_for_machine(self)
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        super().__post_init__()
        if self.packing_strategy == "wrapped":
            raise InvalidConfigError(
                "packing_strategy='wrapped' cuts rows anywhere and mixes them: a token reads the rows before its own. "
                "Leave it out, for 'bfd'."
            )
        check_values(
            self,
            ("best_of", self.best_of is None or self.best_of >= 1, "at least 1, or None"),
            ("learning_rate", self.learning_rate >= 0, "0 or more"),
            ("num_episodes", self.num_episodes >= 1, "at least 1"),
        )


class EnvSFTTrainer(LogsMeans, EnvironmentCard, ChecksNumbers, ChecksCheckpoint, SFTTrainer):
    """Train a language model on the agent's tokens in trajectories.

    Give either `env` or `source`.

    Args:
        model: A folder, a name on a hub, or a loaded model.
        env: Id of an environment whose oracle plays `args.num_episodes`.
        args: Settings; None takes the defaults.
        source: Scored trajectories, from any policy, or a saved data set: the folder of a run, a JSONL file of
            conversations, ... (see `llm_envs.trainers.sft.source.load_source`). `args.best_of` and `args.min_reward`
            choose among scored episodes.
        processing_class: The tokenizer; None loads the model's.
        **kwargs: TRL's other arguments.

    Raises:
        InvalidConfigError: If not exactly one of the two is given, nothing is left to train on, or the rows differ
            between processes.
    """

    _tag_names = ["trl", "sft", "llm-envs"]

    overlong_rows: dict[str, int]
    """Counts of rows longer than `args.max_length`: `overlong`, and among them `dropped` and `cut`. Logged once."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: str | None = None,
        args: EnvSFTConfig | None = None,
        *,
        source: str | Path | Dataset | Sequence[Trajectory] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if (env is None) == (source is None):
            raise InvalidConfigError(
                "EnvSFTTrainer takes env= (its oracle plays) or source= (trajectories, or a saved data set): give one."
            )
        args = args or EnvSFTConfig(output_dir="llm-envs-SFT")
        refuse_unused(
            args,
            [
                (env is None, "no environment is played", ("num_episodes", "env_kwargs")),
                (is_trajectories(source), "trajectories are encoded already", ("history",)),
                (not args.packing, "packing is False", ("packing_strategy",)),
            ],
        )
        processing_class = load_training_tokenizer(
            model, processing_class, thinking=args.thinking, trust_remote_code=args.trust_remote_code
        )
        # We encode, mask and cut the rows ourselves, so that TRL takes them as they are.
        # Each rank plays or reads the data. If one fails, the others must not wait for it in check_same_rows.
        with raise_on_all_ranks():
            rows = _rows(args, ChatCodec(processing_class, thinking=args.thinking), env, source)
            limit = longest_row(model, args)
            rows, self.overlong_rows = fit_rows(rows, limit, args.overlong)
        check_same_rows(rows, "rows")
        if self.overlong_rows["overlong"]:
            logger.warning(
                f"{counted(self.overlong_rows['overlong'], 'row')} longer than max_length={limit}: "
                f"{self.overlong_rows['dropped']} were left out, {self.overlong_rows['cut']} cut behind a turn."
            )
        if not rows:
            raise InvalidConfigError(
                f"all {self.overlong_rows['dropped']} rows are longer than max_length={limit}: raise it, up to the "
                "model's context."
            )
        copy_single_heads()
        super().__init__(
            model, args=args, train_dataset=Dataset.from_list(rows), processing_class=processing_class, **kwargs
        )
        if env is not None:
            kwargs = with_split("train", check_env_kwargs(args.env_kwargs))
            self.card_environments = {"train, by the oracle": [EnvChoice(env, kwargs=kwargs)]}
        for name, count in self.overlong_rows.items():
            self._metrics["train"][f"rows/{name}"].append(float(count))
        self._is_packable = not self.padding_free  # which packing implies

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss of a micro-batch; log its statistics as exact means over the trained tokens.

        Raises:
            ModelError: If rows are packed, and the model does not keep them apart.
        """
        if not self._is_packable:
            causal, device = pass_positions(self.accelerator.unwrap_model(model)), inputs["input_ids"].device
            check_packing(model, causal, device, setting=f"packing={self.args.packing} (padding-free)")
            self._is_packable = True
        labels = inputs["labels"]
        with self._counting_all():
            result = super().compute_loss(model, inputs, *args, **kwargs)
        n_tokens, n_rows = (labels[..., 1:] != -100).sum(), torch.tensor(len(labels), device=labels.device)
        tokens = (n_tokens, n_tokens)
        self._weigh({"entropy": tokens, "mean_token_accuracy": tokens, "aux_loss": (n_rows, n_rows)})
        if self._mode == "eval":
            self._add_means(n_tokens, {"loss": result[0] if isinstance(result, tuple) else result})
        return result

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's checkpoint, after checking that SFT wrote it."""
        if checkpoint is not None:
            check_checkpoint(checkpoint, "SFT")
        super()._load_optimizer_and_scheduler(checkpoint)


def _rows(
    args: EnvSFTConfig,
    codec: ChatCodec,
    env: str | None,
    source: str | Path | Dataset | Sequence[Trajectory] | None,
) -> list[dict[str, Any]]:
    """Return the rows to train on, from whichever of the two is given."""
    loaded: Any = ()
    if env is not None:
        kwargs = check_env_kwargs(args.env_kwargs)
        loaded = oracle_trajectories(
            env, codec, args.num_episodes, env_kwargs=kwargs, seed=args.seed, history=args.history
        )
    elif source is not None:
        loaded = load_source(source, codec, history=args.history)
    rows = rows_of(loaded, codec, n_best=args.best_of, min_reward=args.min_reward)
    if not rows:
        chosen = "" if args.best_of is args.min_reward is None else f", {args.best_of=}, {args.min_reward=}"
        raise InvalidConfigError(f"none of {len(loaded)} trajectories is scored and has tokens to train on{chosen}.")
    return rows


def oracle_trajectories(
    env: str,
    codec: ChatCodec,
    n_episodes: int,
    *,
    env_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    history: History = "append",
) -> list[Trajectory]:
    """Let the environment's oracle play `n_episodes` of the train split, as token rows of `codec`.

    Raises:
        InvalidConfigError: If an episode fails: an oracle that fails teaches the wrong thing.
    """
    kwargs = with_split("train", env_kwargs or {})
    with Collector(
        env, OraclePolicy(), codec=codec, env_kwargs=kwargs, seed=seed, history=history, progress=False
    ) as collector:
        played = [trajectory for group in collector.collect(n_episodes) for trajectory in group]
    failed = [t.error for t in played if t.error is not None]
    if failed:
        raise InvalidConfigError(
            f"{len(failed)} of {len(played)} episodes of the oracle of {env} failed; the first: {failed[0].where}: "
            f"{failed[0].kind}: {failed[0].message}"
        )
    return played
