"""DPO settings: TRL's, and those of choosing pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl import DPOConfig

from llm_envs.data.datasets import OVERLONG
from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.run.ranks import set_for_machine
from llm_envs.trainers.settings.checks import check_loss_types

__all__ = ["PAIRS_FROM_PLAY", "PAIR_SELECTORS", "EnvDPOConfig", "check_arguments"]

PAIR_SELECTORS = ("best_worst", "all", "random", "length")
"""The values of `pair_selector`."""
PAIRS_FROM_PLAY = 'For pairs from play use EnvGRPOTrainer(model, env, algorithm="pairwise")'
"""The last sentence of errors about online DPO, which earlier versions had."""


@dataclass
class EnvDPOConfig(DPOConfig):
    """TRL's `DPOConfig` with settings for pairs of episodes. TRL's fields keep their meaning, except `max_length`."""

    pair_selector: str = field(
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
    overlong: str = field(
        default="drop",
        metadata={
            "help": "What becomes of pairs with a longer sequence: drop; cut, each behind its last turn that fits "
            "whole; error."
        },
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
        set_for_machine(self)
        super().__post_init__()
        checks: list[tuple[str, bool, str]] = [
            ("pair_selector", self.pair_selector in PAIR_SELECTORS, f"one of {', '.join(PAIR_SELECTORS)}"),
            ("pair_margin", self.pair_margin >= 0, "at least 0"),
            ("pairs_per_group", self.pairs_per_group >= 1, "at least 1"),
            ("pair_length_ratio", self.pair_length_ratio >= 1, "at least 1"),
            ("overlong", self.overlong in OVERLONG, f"one of {', '.join(OVERLONG)}"),
        ]
        for name, holds, expected in checks:
            if not holds:
                raise InvalidConfigError(f"{name}={getattr(self, name)!r}; it must be {expected}.")
        check_loss_types(self.loss_type, "DPO")


def check_arguments(source: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Reject wrong arguments of `EnvDPOTrainer` before a model is loaded."""
    if played := sorted({"env", "eval_env", "curriculum", "group_filter"} & kwargs.keys()):
        raise InvalidConfigError(
            f"{', '.join(played)}: EnvDPOTrainer learns from collected trajectories (source=). {PAIRS_FROM_PLAY}."
        )
    if not isinstance(args, EnvDPOConfig):
        raise InvalidConfigError(
            f"args is a {type(args).__name__}; use EnvDPOConfig, a DPOConfig with what we need. {PAIRS_FROM_PLAY}."
        )
    if source is None:
        raise InvalidConfigError(f"EnvDPOTrainer needs source=, trajectories or a saved data set. {PAIRS_FROM_PLAY}.")
    if taken := sorted({"train_dataset", "eval_dataset", "data_collator"} & kwargs.keys()):
        raise InvalidConfigError(f"{', '.join(taken)}: EnvDPOTrainer makes these itself: give source=, eval_source=.")
