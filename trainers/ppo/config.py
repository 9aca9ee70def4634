"""PPO settings: GRPO's and the critic's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llm_envs.trainers.grpo.config import EnvGRPOConfig
from llm_envs.trainers.settings.checks import check_values
from llm_envs.trainers.settings.unused import refuse_unused, without

__all__ = ["EnvPPOConfig"]


@dataclass
@without("it compares the members of a group", "scale_rewards", "multi_objective_aggregation")
class EnvPPOConfig(EnvGRPOConfig):
    """`EnvGRPOConfig` and the critic's settings. The default is one sample per prompt; `epsilon` clips the ratio.

    For several passes over a generation set `num_iterations`. For several optimizer
    steps per pass set `steps_per_generation` above `gradient_accumulation_steps`.
    """

    num_generations: int | None = field(
        default=1, metadata={"help": "Episodes of one seed. One is enough: the baseline is the critic's value."}
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount, of a turn or of a token (see discount)."})
    lam: float = field(
        default=0.95, metadata={"help": "Lambda of the policy's generalised advantages, of a turn or of a token."}
    )
    lam_alpha: float | None = field(
        default=None,
        metadata={
            "help": "In place of lam, 1 - 1 / (lam_alpha * length) for each episode, its length in turns or tokens "
            "(see discount). VAPO takes 0.05 with discount token. None: lam."
        },
    )
    value_lam: float = field(
        default=1.0,
        metadata={
            "help": "Lambda of the critic's targets, of a turn or of a token. 1: it learns the returns as they were, "
            "and nothing of the critic's values."
        },
    )
    discount: Literal["turn", "token"] = field(
        default="turn",
        metadata={
            "help": "What gamma, lam and value_lam count: turn, only from a turn to the next (inside a turn they are "
            "1); or token, every token that the policy writes."
        },
    )
    whiten_advantages: bool = field(
        default=True,
        metadata={
            "help": "Whether advantages get mean 0 and variance 1 over the tokens of a generation, of all ranks."
        },
    )
    value_coef: float = field(
        default=0.5,
        metadata={"help": "Weight of the critic's loss beside the policy's, in the gradient of what both share."},
    )
    value_clip: float | None = field(
        default=0.2,
        metadata={
            "help": "How far a value may move from that at sampling before its loss stops pulling; in units of the "
            "return. None: no clip."
        },
    )
    value_learning_rate: float = field(
        default=1e-5, metadata={"help": "Learning rate of the critic: of the head, and of a separate trunk."}
    )
    value_warmup_steps: int = field(
        default=0,
        metadata={"help": "First steps in which only the critic learns (of a shared trunk its head) and no policy."},
    )
    value_trains_trunk: bool = field(
        default=True,
        metadata={
            "help": "Whether the critic's loss trains a trunk that it shares with the policy; else its head only."
        },
    )
    bootstrap_truncated: bool = field(
        default=False,
        metadata={
            "help": "Whether the critic's value of the next turn follows an episode that a limit of turns or time cut. "
            "False: a limit ends the task as termination does. A limit of tokens always does."
        },
    )

    def __post_init__(self) -> None:
        """Check our fields."""
        super().__post_init__()
        refuse_unused(self, [(self.lam_alpha is not None, "lam_alpha makes lambda of each episode's length", ("lam",))])
        check_values(
            self,
            *((name, 0 <= getattr(self, name) <= 1, "from 0 to 1") for name in ("gamma", "lam", "value_lam")),
            ("lam_alpha", self.lam_alpha is None or self.lam_alpha > 0, "above 0, or None for lam"),
            ("value_clip", self.value_clip is None or self.value_clip > 0, "above 0, or None for no clip"),
            ("value_coef", self.value_coef > 0, "above 0"),
            ("value_learning_rate", self.value_learning_rate >= 0, "0 or more"),
            ("value_warmup_steps", self.value_warmup_steps >= 0, "0 or more"),
            ("fp16", not self.fp16, "False: it scales the loss, which the critic's optimizer cannot undo; set bf16"),
            (
                "bootstrap_truncated",
                not self.bootstrap_truncated or self.history == "append",
                'False, or history="append": history="template" writes the prompt of a turn that is not played anew',
            ),
        )

    def _start_trl(self) -> None:
        if self.num_generations != 1:
            super()._start_trl()
            return
        # TRL's check wants two or more, which only its baseline needs: it sees a generation as one group.
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        n_episodes = int(self.generation_batch_size or self.per_device_train_batch_size * steps)
        check_values(
            self, ("per_device_train_batch_size", n_episodes > 1, "above 1: one episode a generation teaches nothing")
        )
        self.num_generations, self.num_generations_eval = n_episodes, self.num_generations_eval or 1
        try:
            super()._start_trl()
        finally:
            self.num_generations = 1
