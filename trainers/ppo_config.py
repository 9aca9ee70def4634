"""Settings of PPO on environments: those of GRPO, and what a critic needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.grpo_config import EnvGRPOConfig

__all__ = ["EnvPPOConfig"]


@dataclass
class EnvPPOConfig(EnvGRPOConfig):
    """`EnvGRPOConfig` and what a critic needs. One sample a prompt is the default, and `epsilon` clips the ratio.

    `scale_rewards`, and what else TRL has for comparing the members of a group, counts for nothing here: advantages
    are the critic's. Several passes over a generation are `num_iterations`, its cut into several steps is
    `steps_per_generation` above `gradient_accumulation_steps`.
    """

    num_generations: int | None = field(
        default=1, metadata={"help": "Episodes of one seed. One is enough: the baseline is the critic's value."}
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount, of a token or of a turn (see discount)."})
    lam: float = field(default=0.95, metadata={"help": "Lambda of generalised advantages, of a token or of a turn."})
    discount: str = field(
        default="token",
        metadata={
            "help": "What gamma and lam count: token, every token that the policy writes; or turn, only from a turn to "
            "the next (inside a turn they are 1)."
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
        default=True,
        metadata={
            "help": "Whether the value of the final state follows the last token of a truncated episode. False says "
            "that a limit ends the task as termination does."
        },
    )

    def __post_init__(self) -> None:
        """Check what is ours."""
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
        """Return the micro-batches of a generation where only TRL's defaults or the whole batch's size say it."""
        if self.generation_batch_size is None:
            return self.gradient_accumulation_steps
        return 1 if self.per_device_train_batch_size > 1 else 2

    def _check_values(self) -> None:
        for name, low, high in (("gamma", 0.0, 1.0), ("lam", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise InvalidConfigError(f"{name}={getattr(self, name)}; it must lie between {low:g} and {high:g}.")
        if self.discount not in ("token", "turn"):
            raise InvalidConfigError(f"discount={self.discount!r}; it must be token or turn.")
        if self.value_clip is not None and not self.value_clip > 0:
            raise InvalidConfigError(f"value_clip={self.value_clip}; it must be above 0, or None for no clip.")
        if not self.value_coef > 0 or not self.value_learning_rate >= 0 or self.value_warmup_steps < 0:
            raise InvalidConfigError(
                f"value_coef={self.value_coef} must be above 0, and value_learning_rate={self.value_learning_rate} "
                f"and value_warmup_steps={self.value_warmup_steps} not below 0."
            )
        if self.fp16:
            raise InvalidConfigError("fp16 scales the loss, which the critic's own optimizer cannot undo: set bf16.")
