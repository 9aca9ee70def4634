"""Settings of GRPO on environments: TRL's, and what an environment needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    from trl import GRPOConfig
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.processes import set_for_cpu
from llm_envs.trainers.schedules import parse_kl_schedule
from llm_envs.trainers.settings import check_env_kwargs, check_forks, check_loss_types

__all__ = ["EnvGRPOConfig"]


@dataclass
class EnvGRPOConfig(GRPOConfig):
    """TRL's `GRPOConfig` and what an environment needs. All of TRL's fields mean what they mean there."""

    env_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Arguments of gym.make, such as {'difficulty': 'easy'} (a JSON object). An environment that has no "
            "splits wants {'split': None}."
        },
    )
    num_train_seeds: int = field(
        default=10_000, metadata={"help": "Distinct seeds of the train split: the rows of one epoch."}
    )
    num_eval_seeds: int = field(
        default=64,
        metadata={"help": "Distinct seeds of the test split that an evaluation plays, if eval_strategy asks."},
    )
    max_turns: int | None = field(
        default=None, metadata={"help": "Turns an episode may have; None: the environment's."}
    )
    max_turn_tokens: int | None = field(
        default=None, metadata={"help": "Tokens one turn may have; None: max_completion_length."}
    )
    max_episode_s: float | None = field(default=None, metadata={"help": "Seconds an episode may take in all."})
    max_step_s: float | None = field(default=None, metadata={"help": "Seconds one step of the environment may take."})
    max_concurrency: int = field(default=128, metadata={"help": "Episodes played at once on each process."})
    thinking: bool | None = field(
        default=None, metadata={"help": "Passed to the chat template as enable_thinking; None: the template's default."}
    )
    history: str = field(
        default="append",
        metadata={
            "help": "What the model sees of its earlier turns: append, its own words as it wrote them, one row an "
            "episode; template, what the chat template makes of them, a new row where that differs."
        },
    )
    use_training_template: bool = field(
        default=False, metadata={"help": "Whether TRL's training version of the chat template is used."}
    )
    reward_components: bool = field(
        default=False,
        metadata={
            "help": "Whether the task's reward components are columns of their own, with the weights that the task "
            "declares; else its reward is one. See also multi_objective_aggregation."
        },
    )
    kl_in: str = field(
        default="loss",
        metadata={
            "help": "Where beta times the KL from the reference counts: loss, or reward, where it is taken from each "
            "turn's reward before advantages."
        },
    )
    kl_schedule: str | None = field(
        default=None,
        metadata={
            "help": "In place of beta, a coefficient that changes: constant:COEFFICIENT, linear:FIRST:LAST, "
            "cosine:FIRST:LAST, or adaptive:INITIAL:TARGET (nats a token). Asked before each generation."
        },
    )
    max_refills: int = field(
        default=10,
        metadata={
            "help": "Groups played for each one wanted, where a group_filter drops some; then its place is empty."
        },
    )
    logps_tolerance: float | None = field(
        default=0.1,
        metadata={
            "help": "Largest mean gap in nats between sampled and recomputed log-probabilities of the first batch; "
            "above it training stops. Masking and template bugs cost whole nats, bf16 about 0.01. None: no guard."
        },
    )
    save_trajectories: bool = field(
        default=True, metadata={"help": "Whether every episode is written to output_dir/trajectories."}
    )
    # TRL's default masks whole long episodes as off-policy; truncating each token's ratio does not.
    vllm_importance_sampling_mode: str = field(
        default="token_truncate", metadata={"help": "See TRL; multi-turn episodes want the default of this class."}
    )

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "env_kwargs"]

    def __post_init__(self) -> None:
        """Check what is ours; on a machine without an accelerator, say so."""
        set_for_cpu(self)
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        super().__post_init__()
        check_loss_types(self.loss_type, "GRPO")
        if not self.temperature > 0:
            raise InvalidConfigError(f"temperature={self.temperature}; GRPO needs samples that differ: set it above 0.")
        local_rows = self.per_device_train_batch_size * int(self.steps_per_generation or 1)  # set by TRL just now
        group_size = int(self.num_generations or 1)
        n_groups = int(self.generation_batch_size or 1) // group_size
        if local_rows % group_size:
            raise InvalidConfigError(
                f"each process plays per_device_train_batch_size * steps_per_generation = {local_rows} episodes a "
                f"generation, which is no multiple of num_generations = {self.num_generations}: a group would be torn "
                f"between processes. Make it one, for example per_device_train_batch_size={self.num_generations}."
            )
        self._check_save_steps()
        if self.kl_in not in ("loss", "reward"):
            raise InvalidConfigError(f"kl_in={self.kl_in!r}; it must be loss or reward.")
        if self.kl_schedule is not None:
            parse_kl_schedule(self.kl_schedule)
        if self.max_refills < 1:
            raise InvalidConfigError(f"max_refills={self.max_refills}; it must be at least 1.")
        if self.reward_weights is not None:
            raise InvalidConfigError(
                "reward_weights is a list by position, and columns have names here: give the trainer "
                "reward_weights={name: weight}."
            )
        if self.history not in ("append", "template"):
            raise InvalidConfigError(f"history={self.history!r}; it must be append or template.")
        if self.history == "template":
            check_forks(self.loss_type)
        if self.num_train_seeds < n_groups:
            raise InvalidConfigError(
                f"num_train_seeds={self.num_train_seeds} does not fill one generation of {n_groups} groups: raise it."
            )

    def _check_save_steps(self) -> None:
        """Refuse checkpoints in the middle of a generation: what is resumed from one would play other episodes."""
        if self.save_strategy != "steps" or not self.save_steps >= 1:  # below 1 it is a share of all steps
            return
        uses = int(self.steps_per_generation or 1) * self.num_iterations
        period = math.lcm(uses, self.gradient_accumulation_steps) // self.gradient_accumulation_steps
        if self.save_steps % period:
            fitting = -(-int(self.save_steps) // period) * period
            raise InvalidConfigError(
                f"save_steps={self.save_steps} saves in the middle of a generation, which begins every {period} steps "
                f"(steps_per_generation * num_iterations / gradient_accumulation_steps): a resumed run would not play "
                f"what the whole one plays. Make it a multiple, for example save_steps={fitting}."
            )
