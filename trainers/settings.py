"""What the configs and trainers check before anything heavy is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.grammar import nearest

__all__ = [
    "LOSS_TYPES",
    "check_env_kwargs",
    "check_forks",
    "check_loss_types",
    "load_training_tokenizer",
    "training_template",
    "with_split",
]

LOSS_TYPES = {
    "SFT": ("nll", "dft"),
    "GRPO": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "DPO": (
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
        *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    ),
}
"""Algorithm -> the values of `loss_type` that TRL knows. It has no list of them: a test compares what it documents."""


def check_env_kwargs(value: Any) -> dict[str, Any]:
    """Return `env_kwargs` as a dict; a command line gives it as a JSON object.

    Raises:
        InvalidConfigError: If it is neither.
    """
    parsed = value or {}
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
    if not isinstance(parsed, dict):
        raise InvalidConfigError(
            f"env_kwargs is {value!r}; it must be a dict or a JSON object: '{{\"difficulty\": 1}}'."
        )
    return parsed


def with_split(split: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `gym.make` for a split; the user's win, and a split of None leaves it out."""
    kwargs = {"split": split} | dict(env_kwargs)
    return kwargs if kwargs["split"] is not None else {key: value for key, value in kwargs.items() if key != "split"}


def load_training_tokenizer(model: Any, tokenizer: Any, *, thinking: bool | None, **kwargs: Any) -> Any:
    """Return the tokenizer that a trainer uses: the given one, or the model's; one without a pad token gets one.

    Args:
        model: A folder, a name on a hub, or a loaded model.
        tokenizer: What the user gave, or None.
        thinking: Passed to the chat template.
        **kwargs: For `AutoTokenizer.from_pretrained`.

    Raises:
        ModelError: If it has no chat template or its template no end-of-turn token.
    """
    from transformers import AutoTokenizer

    if tokenizer is None:
        name = model if isinstance(model, str) else model.config.get_text_config()._name_or_path
        if not name:
            raise ModelError(
                "the model has no name or folder to load a tokenizer from: give processing_class=tokenizer."
            )
        tokenizer = AutoTokenizer.from_pretrained(name, truncation_side="left", padding_side="left", **kwargs)
    codec = ChatCodec(tokenizer, thinking=thinking)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or codec.end_of_turn_text
    return tokenizer


def training_template(tokenizer: Any) -> str:
    """Return the training version of a tokenizer's chat template that TRL ships; it keeps more of earlier turns.

    Raises:
        InvalidConfigError: If TRL has none for it.
    """
    from trl.chat_template_utils import get_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise InvalidConfigError(
            f"use_training_template: TRL has no training version of this model's chat template ({error}). Leave it "
            "out; llm-envs doctor says what the template itself does with earlier turns."
        ) from error
    return str(template or tokenizer.chat_template)


def check_loss_types(given: str | Sequence[str], algorithm: str) -> None:
    """Check losses by name before training; TRL finds a wrong one in the first step.

    Args:
        given: One, or several that are summed.
        algorithm: Of `LOSS_TYPES`.

    Raises:
        InvalidConfigError: If TRL knows none of that name.
    """
    known = LOSS_TYPES[algorithm]
    for name in [given] if isinstance(given, str) else given:
        if name not in known:
            raise InvalidConfigError(f"loss_type={name!r}; it must be one of {', '.join(known)}.{nearest(name, known)}")


def check_forks(loss_type: str) -> None:
    """Check that a loss can take rows beyond one an episode: it must be normalised by tokens.

    Raises:
        InvalidConfigError: If it is not.
    """
    if loss_type not in ("dapo", "bnpo", "cispo"):
        raise InvalidConfigError(
            f'loss_type={loss_type!r} weighs each row alike, and with history="template" or a context function an '
            "episode may have several: take one that is normalised by tokens (dapo, bnpo, cispo)."
        )
