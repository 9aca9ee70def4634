"""DPO settings: TRL's, those of choosing pairs, and those of online rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trl import DPOConfig

from llm_envs.data.datasets import OVERLONG
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.transfer import TRANSPORTS
from llm_envs.registration import task_spec
from llm_envs.trainers.bridge.checks import check_async_generations, check_engine, check_env_kwargs, check_loss_types
from llm_envs.trainers.bridge.ranks import set_for_machine
from llm_envs.trainers.bridge.servers import ServerSettings, WorkerSettings

__all__ = ["PAIR_SELECTORS", "EnvDPOConfig", "check_arguments"]

PAIR_SELECTORS = ("best_worst", "all", "random", "length")
"""The values of `pair_selector`."""


@dataclass
class EnvDPOConfig(WorkerSettings, ServerSettings, DPOConfig):
    """TRL's `DPOConfig` with settings for pairs of episodes. TRL's fields keep their meaning, except `max_length`.

    Online, an epoch is a full round of `steps_per_round` steps, and `num_train_epochs` counts those, unless `max_steps`
    is given.
    """

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

    # Online.
    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of gym.make, such as {'difficulty': 'easy'} (a JSON object)."}
    )
    groups_per_round: int = field(
        default=64, metadata={"help": "Groups played at the beginning of a round, over all processes."}
    )
    num_generations: int = field(default=8, metadata={"help": "Episodes of a group: one seed, at least 2."})
    steps_per_round: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps of a round. If its pairs do not fill them, they are used again in a new order, at "
            "most max_pair_uses times; pairs beyond are left out. None: as many as take one pair of each group."
        },
    )
    max_pair_uses: int = field(
        default=4,
        metadata={
            "help": "How often a pair is trained in its round at most. A round with few pairs ends early, and the next "
            "one is played."
        },
    )
    num_train_seeds: int = field(default=10_000, metadata={"help": "Distinct seeds of the train split."})
    num_eval_seeds: int = field(
        default=64,
        metadata={"help": "Distinct seeds of the test split that an evaluation plays, if eval_strategy asks."},
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Of sampling; above 0, so that a group's episodes differ."}
    )
    top_p: float = field(default=1.0, metadata={"help": "Of sampling."})
    top_k: int = field(default=0, metadata={"help": "Of sampling; 0 is off."})
    min_p: float = field(default=0.0, metadata={"help": "Of sampling."})
    repetition_penalty: float = field(default=1.0, metadata={"help": "Of sampling."})
    max_completion_length: int = field(
        default=256,
        metadata={"help": "Tokens of an episode behind its first prompt, the environment's words included."},
    )
    max_turns: int | None = field(default=None, metadata={"help": "Turns of an episode; None: the environment's."})
    max_turn_tokens: int | None = field(
        default=None, metadata={"help": "Tokens one turn may have; None: max_completion_length."}
    )
    max_episode_s: float | None = field(default=None, metadata={"help": "Seconds an episode may take in all."})
    max_step_s: float | None = field(default=None, metadata={"help": "Seconds one step of the environment may take."})
    max_function_s: float | None = field(
        default=None,
        metadata={
            "help": "Seconds that one call of a function of yours (reward, filter, context, advantages) may take, then "
            "the run ends. None: half of ddp_timeout."
        },
    )
    max_concurrency: int | str = field(
        default=128,
        metadata={"help": "Episodes played at once on each process. auto: as many as raise the throughput."},
    )
    async_generations: int = field(
        default=0,
        metadata={
            "help": "Rounds that are played while the trainer steps on an earlier one, under weights of up to as many "
            "rounds ago. Needs use_vllm."
        },
    )
    max_refills: int = field(
        default=10, metadata={"help": "Groups played for each one wanted, where a group_filter drops some."}
    )
    save_trajectories: bool = field(
        default=True, metadata={"help": "Whether every episode is written to output_dir/trajectories."}
    )
    use_vllm: bool = field(default=False, metadata={"help": "Whether vLLM samples: see vllm_mode."})
    vllm_mode: str = field(default="colocate", metadata={"help": "colocate: an engine in each process; or server."})
    vllm_gpu_memory_utilization: float = field(default=0.3, metadata={"help": "Share of the device for vLLM."})
    vllm_max_model_length: int | None = field(default=None, metadata={"help": "Context of vLLM; None: the model's."})
    vllm_tensor_parallel_size: int = field(
        default=1, metadata={"help": "Number of processes that share an engine, each with a part of every layer."}
    )
    vllm_enable_sleep_mode: bool = field(
        default=False, metadata={"help": "Whether the engine gives its memory to the trainer while it does not play."}
    )
    vllm_model_impl: str = field(default="vllm", metadata={"help": "vllm, or transformers."})

    _VALID_DICT_FIELDS = [*DPOConfig._VALID_DICT_FIELDS, "env_kwargs"]

    def __post_init__(self) -> None:
        """Set the defaults of this machine, then check our fields."""
        set_for_machine(self)
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        super().__post_init__()
        checks: list[tuple[str, bool, str]] = [
            ("pair_selector", self.pair_selector in PAIR_SELECTORS, f"one of {', '.join(PAIR_SELECTORS)}"),
            ("pair_margin", self.pair_margin >= 0, "at least 0"),
            ("pairs_per_group", self.pairs_per_group >= 1, "at least 1"),
            ("pair_length_ratio", self.pair_length_ratio >= 1, "at least 1"),
            ("overlong", self.overlong in OVERLONG, f"one of {', '.join(OVERLONG)}"),
            ("groups_per_round", self.groups_per_round >= 1, "at least 1"),
            ("num_generations", self.num_generations >= 2, "at least 2: a pair is two episodes of one seed"),
            ("steps_per_round", self.steps_per_round is None or self.steps_per_round >= 1, "at least 1, or None"),
            ("max_pair_uses", self.max_pair_uses >= 1, "at least 1"),
            ("vllm_mode", self.vllm_mode in ("colocate", "server"), "colocate or server"),
            ("vllm_transport", self.vllm_transport in TRANSPORTS, f"one of {', '.join(TRANSPORTS)}"),
            ("temperature", self.temperature > 0, "above 0, so that episodes of one seed differ"),
            ("max_refills", self.max_refills >= 1, "at least 1"),
        ]
        for name, holds, expected in checks:
            if not holds:
                raise InvalidConfigError(f"{name}={getattr(self, name)!r}; it must be {expected}.")
        check_loss_types(self.loss_type, "DPO")
        check_async_generations(self)
        check_engine(self)

    @property
    def n_steps_per_round(self) -> int:
        """Optimizer steps of a round with enough pairs."""
        if self.steps_per_round is not None:
            return self.steps_per_round
        return math.ceil(self.groups_per_round / self.n_pairs_per_step)

    @property
    def n_pairs_per_step(self) -> int:
        """Pairs of an optimizer step, over all processes."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    def steps_with(self, n_pairs: int) -> int:
        """Return the optimizer steps of a round with `n_pairs` pairs, so that no pair is used too often."""
        return min(self.n_steps_per_round, self.max_pair_uses * n_pairs // self.n_pairs_per_step)

    def check_online(self) -> None:
        """Check the settings of online training.

        Raises:
            InvalidConfigError: If settings contradict one another.
        """
        if self.sync_ref_model and self.precompute_ref_log_probs:
            raise InvalidConfigError(
                "sync_ref_model changes the reference while precompute_ref_log_probs keeps a round's: leave one out."
            )
        if self.groups_per_round % self.world_size:
            raise InvalidConfigError(
                f"groups_per_round={self.groups_per_round} is no multiple of the {self.world_size} processes: a group "
                "is played on one."
            )
        if self.dataloader_num_workers:
            raise InvalidConfigError("dataloader_num_workers: rounds are played in this process; leave it at 0.")


def check_arguments(env: Any, source: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Reject wrong arguments of `EnvDPOTrainer` before a model is loaded."""
    if (env is None) == (source is None):
        raise InvalidConfigError(
            "EnvDPOTrainer takes env= (online) or source= (trajectories, or a saved data set): give one."
        )
    if isinstance(env, str):
        task_spec(env)
    if not isinstance(args, EnvDPOConfig):
        raise InvalidConfigError(f"args is a {type(args).__name__}; use EnvDPOConfig, a DPOConfig with what we need.")
    if taken := sorted({"train_dataset", "eval_dataset", "data_collator"} & kwargs.keys()):
        raise InvalidConfigError(f"{', '.join(taken)}: EnvDPOTrainer makes these itself: give source=, eval_source=.")
