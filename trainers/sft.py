"""Warm start: supervised learning on trajectories through TRL's own trainer, on the agent's tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_envs.chat import ChatCodec
from llm_envs.data import sft_rows
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies.scripted import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.trainers.settings import check_env_kwargs, load_training_tokenizer, with_split
from llm_envs.types import Trajectory

try:
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["EnvSFTConfig", "EnvSFTTrainer", "oracle_trajectories"]


@dataclass
class EnvSFTConfig(SFTConfig):
    """TRL's `SFTConfig` and what an environment needs."""

    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Arguments of gym.make, such as {'difficulty': 'easy'} (a JSON object)."}
    )
    num_episodes: int = field(default=1000, metadata={"help": "Episodes that the oracle plays on the train split."})
    thinking: bool | None = field(
        default=None, metadata={"help": "Passed to the chat template as enable_thinking; None: the template's default."}
    )

    max_length: int | None = field(
        default=None,
        metadata={"help": "Longest row in tokens; TRL cuts what is longer. None: nothing is cut."},
    )

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "env_kwargs"]

    def __post_init__(self) -> None:
        """On a machine without an accelerator, leave bf16 off."""
        if self.bf16 is None and not torch.accelerator.is_available():
            self.bf16 = False
        self.env_kwargs = check_env_kwargs(self.env_kwargs)
        super().__post_init__()


class EnvSFTTrainer(SFTTrainer):
    """Train a language model to write what the agent wrote in trajectories.

    Args:
        model: A folder, a name on a hub, or a loaded model.
        env: Id of an environment whose oracle plays `args.num_episodes`; or give `trajectories`.
        args: Settings; None takes the defaults.
        trajectories: Scored trajectories with token rows, from any policy.
        processing_class: The tokenizer; None loads the model's.
        **kwargs: TRL's other arguments.

    Raises:
        InvalidConfigError: If both or neither of `env` and `trajectories` are given, or nothing is left to train on.
    """

    _tag_names = ["trl", "sft", "llm-envs"]

    def __init__(
        self,
        model: str | PreTrainedModel,
        env: str | None = None,
        args: EnvSFTConfig | None = None,
        *,
        trajectories: Sequence[Trajectory] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if (env is None) == (trajectories is None):
            raise InvalidConfigError(
                "EnvSFTTrainer takes either env= (its oracle plays) or trajectories=, and just one."
            )
        args = args or EnvSFTConfig(output_dir="llm-envs-SFT")
        processing_class = load_training_tokenizer(model, processing_class, thinking=args.thinking)
        if trajectories is None:
            codec = ChatCodec(processing_class, thinking=args.thinking)
            kwargs_of_env = check_env_kwargs(args.env_kwargs)
            trajectories = oracle_trajectories(
                str(env), codec, args.num_episodes, env_kwargs=kwargs_of_env, seed=args.seed
            )
        rows = sft_rows(trajectories)
        if not rows:
            raise InvalidConfigError(
                f"none of {len(trajectories)} trajectories is scored and has token rows to train on."
            )
        super().__init__(
            model, args=args, train_dataset=Dataset.from_list(rows), processing_class=processing_class, **kwargs
        )


def oracle_trajectories(
    env: str, codec: ChatCodec, n_episodes: int, *, env_kwargs: dict[str, Any] | None = None, seed: int = 0
) -> list[Trajectory]:
    """Let the environment's oracle play `n_episodes` of the train split, as token rows of `codec`.

    Raises:
        InvalidConfigError: If an episode fails: an oracle that fails teaches the wrong thing.
    """
    kwargs = with_split("train", env_kwargs or {})
    with Collector(env, OraclePolicy(), codec=codec, env_kwargs=kwargs, seed=seed, progress=False) as collector:
        played = [trajectory for group in collector.collect(n_episodes) for trajectory in group]
    failed = [t.error for t in played if t.error is not None]
    if failed:
        raise InvalidConfigError(
            f"{len(failed)} of {len(played)} episodes of the oracle of {env} failed; the first: {failed[0].where}: "
            f"{failed[0].kind}: {failed[0].message}"
        )
    return played
