"""PPO settings: those of GRPO and those of the critic."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.grpo.config import EnvGRPOConfig

__all__ = ["EnvPPOConfig"]


@dataclass
class EnvPPOConfig(EnvGRPOConfig):
    """`EnvGRPOConfig` and the critic's settings. The default is one sample per prompt; `epsilon` clips the ratio.

    `scale_rewards` and `multi_objective_aggregation` compare the members of a group and are refused here, because the
    critic computes the advantages. For several passes over a generation set `num_iterations`. For several optimizer
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
            "and nothing of its own values."
        },
    )
    discount: str = field(
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
        default=1e-5, metadata={"help": "Learning rate of the critic: of the head, and of a trunk of its own."}
    )
    value_warmup_steps: int = field(
        default=0,
        metadata={"help": "First steps in which the critic alone learns (of a shared trunk its head) and no policy."},
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
        self._check_values()
        if self.num_generations != 1:
            super().__post_init__()
            return
        # TRL's check wants two or more, which only its baseline needs: it sees a local batch as one group.
        stand_in = self.per_device_train_batch_size * int(self.steps_per_generation or self._default_steps())
        if stand_in < 2:
            raise InvalidConfigError(
                "one episode a generation on each process is nothing to learn from: raise "
                "per_device_train_batch_size or steps_per_generation."
            )
        self.num_generations_eval = self.num_generations_eval or 1
        self.num_generations = stand_in
        try:
            super().__post_init__()
        finally:
            self.num_generations = 1
        if self.num_train_seeds < int(self.generation_batch_size or 1):
            raise InvalidConfigError(
                f"num_train_seeds={self.num_train_seeds} does not fill one generation of {self.generation_batch_size} "
                "episodes: raise it."
            )

    def _default_steps(self) -> int:
        """Return the micro-batches of a generation if `steps_per_generation` is not set."""
        if self.generation_batch_size is None:
            return self.gradient_accumulation_steps
        return 1 if self.per_device_train_batch_size > 1 else 2

    def _check_values(self) -> None:
        for name, low, high in (("gamma", 0.0, 1.0), ("lam", 0.0, 1.0), ("value_lam", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise InvalidConfigError(f"{name}={getattr(self, name)}; it must lie between {low:g} and {high:g}.")
        if self.lam_alpha is not None and not self.lam_alpha > 0:
            raise InvalidConfigError(f"lam_alpha={self.lam_alpha}; it must be above 0, or None for lam.")
        if self.share_prompts or self.packing:
            raise InvalidConfigError(
                f"share_prompts={self.share_prompts}, packing={self.packing}: a critic reads the hidden states of "
                "padded, whole rows; leave both out."
            )
        if self.discount not in ("token", "turn"):
            raise InvalidConfigError(f"discount={self.discount!r}; it must be token or turn.")
        if self.bootstrap_truncated and self.history == "template":
            raise InvalidConfigError(
                'bootstrap_truncated values the prompt of a turn that is not played, which history="template" writes '
                'anew: leave bootstrap_truncated off, or set history="append".'
            )
        if self.value_clip is not None and not self.value_clip > 0:
            raise InvalidConfigError(f"value_clip={self.value_clip}; it must be above 0, or None for no clip.")
        if not self.value_coef > 0 or not self.value_learning_rate >= 0 or self.value_warmup_steps < 0:
            raise InvalidConfigError(
                f"value_coef={self.value_coef} must be above 0, and value_learning_rate={self.value_learning_rate} "
                f"and value_warmup_steps={self.value_warmup_steps} not below 0."
            )
        if self.fp16:
            raise InvalidConfigError("fp16 scales the loss, which the critic's own optimizer cannot undo: set bf16.")
