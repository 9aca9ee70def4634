"""DPO settings: TRL's, and those of choosing pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trl import DPOConfig

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.trainers.run.ranks import set_for_machine
from llm_envs.trainers.settings.checks import check_values, read_numbers
from llm_envs.trainers.settings.unused import NamedSettings, without

__all__ = ["LOSS_TYPES", "PAIRS_FROM_PLAY", "EnvDPOConfig", "check_arguments"]

LOSS_TYPES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""TRL's losses. It exports no list, and rejects a wrong name only in the first step."""
PAIRS_FROM_PLAY = 'For pairs from play use EnvGRPOTrainer(model, env, algorithm="pairwise")'
"""The last sentence of errors about online DPO, which earlier versions had."""


@dataclass
@without("pairs are encoded and cut before TRL sees them, see overlong", "truncation_mode", "dataset_num_proc")
class EnvDPOConfig(NamedSettings, DPOConfig):
    """TRL's `DPOConfig` with settings for pairs of episodes. TRL's fields keep their meaning, except `max_length`."""

    pair_selector: Literal["best_worst", "all", "random", "length"] = field(
        default="best_worst",
        metadata={
            "help": "Which episodes of a group are pairs: best_worst; all; random, pairs_per_group of them; length, "
            "the one of greatest difference in reward among those of similar length (pair_length_ratio)."
        },
    )
    pair_margin: float = field(
        default=0.0, metadata={"help": "Rewards of a pair differ by more than this; a tie is never a pair."}
    )
    pairs_per_group: int = field(default=1, metadata={"help": "Pairs of each group, with pair_selector=random."})
    pair_length_ratio: float = field(
        default=1.25,
        metadata={"help": "With pair_selector=length neither of a pair has more sampled tokens than this many times."},
    )
    encode_messages: bool = field(
        default=False,
        metadata={
            "help": "Whether episodes without tokens, or with those of another tokenizer, are encoded from their "
            "messages; else they are refused."
        },
    )
    max_length: int | None = field(
        default=None,
        metadata={"help": "Longest sequence (prompt and episode) in tokens; see overlong. None: the model's context."},
    )
    overlong: Literal["drop", "cut", "error"] = field(
        default="drop",
        metadata={"help": "What becomes of pairs with a longer sequence: drop; cut, behind the last turn; error."},
    )
    thinking: bool | None = field(
        default=None, metadata={"help": "Passed to the chat template as enable_thinking; None: the template's default."}
    )
    max_function_s: float | None = field(
        default=None,
        metadata={"help": "Seconds that one call of a selector of yours may take. None: half of ddp_timeout."},
    )

    def __post_init__(self) -> None:
        """Set the defaults of this machine, then check our fields."""
        read_numbers(self)
        set_for_machine(self)
        super().__post_init__()
        check_values(
            self,
            ("learning_rate", self.learning_rate >= 0, "0 or more"),
            ("pair_margin", self.pair_margin >= 0, "at least 0"),
            ("pairs_per_group", self.pairs_per_group >= 1, "at least 1"),
            ("pair_length_ratio", self.pair_length_ratio >= 1, "at least 1"),
        )
        for name in [self.loss_type] if isinstance(self.loss_type, str) else self.loss_type:
            if name not in LOSS_TYPES:
                known, near = ", ".join(LOSS_TYPES), did_you_mean(name, LOSS_TYPES)
                raise InvalidConfigError(f"loss_type={name!r}; it must be one of {known}.{near}")


def check_arguments(source: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Reject wrong arguments of `EnvDPOTrainer` before a model is loaded."""
    if not isinstance(args, EnvDPOConfig):
        raise InvalidConfigError(
            f"args is a {type(args).__name__}; use EnvDPOConfig, a DPOConfig with what we need. {PAIRS_FROM_PLAY}."
        )
    others = {"env", "eval_env", "curriculum", "group_filter", "train_dataset", "eval_dataset", "data_collator"}
    taken = sorted(others & kwargs.keys())
    if taken or source is None:
        raise InvalidConfigError(
            "EnvDPOTrainer learns from source= and eval_source=, trajectories or saved data sets"
            f"{', not from ' * bool(taken)}{', '.join(taken)}. {PAIRS_FROM_PLAY}."
        )
