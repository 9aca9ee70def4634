"""Checks of configs and trainers, before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from accelerate.utils import is_peft_model

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError, ModelError, did_you_mean
from llm_envs.parsers.json_calls import strict_json
from llm_envs.policies.inference.loading import load_part
from llm_envs.policies.inference.names import check_hub, name_problem
from llm_envs.trainers.engines.engine_weights import check_mergeable
from llm_envs.trainers.functional.algorithm import ALGORITHMS, Algorithm

__all__ = [
    "as_algorithm",
    "check_engine",
    "check_env_kwargs",
    "check_scorable",
    "check_values",
    "load_training_tokenizer",
    "read_numbers",
    "training_template",
    "with_split",
]


def check_scorable(model: Any) -> None:
    """Reject a model or an adapter whose tokens TRL cannot score, or scores otherwise than they are sampled.

    Raises:
        InvalidConfigError: If an adapter changes the prompt, or the layers' code.
        ModelError: If transformers finds no part below the output layer, whose hidden states TRL takes (Llama 4).
    """
    check_mergeable(model)
    base = model.get_base_model() if is_peft_model(model) else model
    if getattr(base, "base_model", base).get_output_embeddings() is not None:
        raise ModelError(
            f"{type(base).__name__}: TRL's GRPO, PPO and DPO cannot score it, because transformers names no part of it "
            "that ends before the output layer. Take another model."
        )
    head = base.get_output_embeddings()
    if type(head).__name__ == "TrainableTokensWrapper" and not hasattr(head, "bias"):
        head.bias = None  # TRL reads it, and PEFT's wrapper of an output layer only has its weight


def read_numbers(args: Any) -> None:
    """Replace texts in a config's fields of numbers, such as the "1e-5" of a YAML file, by the numbers.

    Raises:
        InvalidConfigError: If a text shows no number.
    """
    for field in fields(args):
        value, kinds = getattr(args, field.name), getattr(field.type, "__name__", str(field.type)).split(" | ")
        if not isinstance(value, str) or not {"int", "float"} & set(kinds) or "str" in kinds:
            continue
        try:
            number = float(value) if "float" in kinds else int(value)
        except ValueError as error:
            raise InvalidConfigError(f"{field.name}={value!r}; it must be a number.") from error
        setattr(args, field.name, number)


def as_algorithm(value: Any, known: Mapping[str, Algorithm] = ALGORITHMS) -> Algorithm:
    """Return an algorithm, given as such or by name.

    Raises:
        InvalidConfigError: If it is neither an algorithm nor a known name.
    """
    if isinstance(value, Algorithm):
        return value
    if not isinstance(value, str) or value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise InvalidConfigError(
            f"algorithm={value!r} is not known; give an Algorithm or one of {', '.join(known)}.{near}"
        )
    return known[value]


def check_values(args: Any, *rows: tuple[str, bool, str | Collection[str]]) -> None:
    """Reject values that a field's `Literal` lacks, and those for which a row `(name, holds, expected)` does not hold.

    `expected` is a phrase, or the names to choose from.

    Raises:
        InvalidConfigError: If there is one.
    """
    choices = {name: get_args(hint) for name, hint in get_type_hints(type(args)).items() if get_origin(hint) is Literal}
    listed = [(name, getattr(args, name) in known, known) for name, known in choices.items()]
    for name, holds, expected in (*listed, *rows):
        if not holds:
            value, near = getattr(args, name), ""
            if not isinstance(expected, str):
                near, expected = did_you_mean(str(value), expected), f"one of {', '.join(expected)}"
            raise InvalidConfigError(f"{name}={value!r}; it must be {expected}.{near}")


def check_engine(args: Any) -> None:
    """Reject settings of a vLLM engine in the trainer's process that do not fit together."""
    n_shards, is_server, n_ahead = args.vllm_tensor_parallel_size, args.vllm_mode == "server", args.async_generations
    is_shared = n_shards >= 1 and args.world_size % n_shards == 0 and not is_server
    divisor = f"a divisor of the {args.world_size} processes, which share engines; servers have server_args instead"
    alone = "False, unless one process has an engine to itself, with nothing to play while it trains"
    is_alone = not n_ahead and not is_server and n_shards == 1
    check_values(
        args,
        ("vllm_tensor_parallel_size", n_shards == 1 or is_shared, divisor),
        ("max_concurrency", args.ray is None or args.max_concurrency != "auto", f"a number with ray={args.ray!r}"),
        ("vllm_enable_sleep_mode", not args.vllm_enable_sleep_mode or is_alone, alone),
    )


def check_env_kwargs(value: Any) -> dict[str, Any]:
    """Return `env_kwargs` as a dict; a command line gives it as a JSON object.

    Raises:
        InvalidConfigError: If it is neither a dict nor a JSON object.
    """
    parsed = value or {}
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = strict_json(value)
    if not isinstance(parsed, dict):
        raise InvalidConfigError(
            f"env_kwargs is {value!r:.200}; it must be a dict or a JSON object: '{{\"difficulty\": 1}}'."
        )
    return parsed


def with_split(split: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `gym.make` for a split. The user's `split` takes precedence; None omits the argument."""
    kwargs = {"split": split} | dict(env_kwargs)
    return kwargs if kwargs["split"] is not None else {key: value for key, value in kwargs.items() if key != "split"}


def load_training_tokenizer(model: Any, tokenizer: Any, *, thinking: bool | None, **kwargs: Any) -> Any:
    """Return the given tokenizer, or the model's. If it has no pad token, set one.

    Args:
        model: A folder, a name on a hub, or a loaded model.
        tokenizer: The user's tokenizer, or None.
        thinking: Passed to the chat template.
        **kwargs: For `AutoTokenizer.from_pretrained`.

    Raises:
        ModelError: If the tokenizer has no chat template, or the template has no end-of-turn token.
    """
    from transformers import AutoTokenizer

    if tokenizer is None:
        name = model if isinstance(model, str) else model.config.get_text_config()._name_or_path
        if not name:
            raise ModelError(
                "the model has no name or folder to load a tokenizer from: give processing_class=tokenizer."
            )
        if (problem := name_problem(name)) is not None:
            raise ModelError(f"the model {name!r}: {problem}.")
        check_hub(name)
        # With the same sides as TRL uses when it loads the tokenizer itself.
        load = partial(AutoTokenizer.from_pretrained, truncation_side="left", padding_side="left")
        tokenizer = load_part("tokenizer", load, name, **kwargs)
    codec = ChatCodec(tokenizer, thinking=thinking)
    # Padded places are masked, so the choice of token does not affect training.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or codec.end_of_turn_text
    return tokenizer


def longest_row(model: Any, args: Any) -> int:
    """Return the most tokens that a row of training may have: `args.max_length`, at most the model's context."""
    from transformers import AutoConfig

    from llm_envs.policies.inference.loading import context_length

    if isinstance(model, str):
        model = AutoConfig.from_pretrained(model, trust_remote_code=args.trust_remote_code)
    return min(args.max_length or context_length(model), context_length(model))


def training_template(tokenizer: Any) -> str:
    """Return the training version of a tokenizer's chat template that TRL ships; it keeps more of earlier turns.

    Raises:
        InvalidConfigError: If TRL has none for this tokenizer.
    """
    from trl import get_training_chat_template

    try:
        template = get_training_chat_template(tokenizer)
    except ValueError as error:
        raise InvalidConfigError(
            f"use_training_template: TRL has no training version of this model's chat template ({error}). Leave it "
            "out; llm-envs doctor shows what the template itself does with earlier turns."
        ) from error
    return str(template or tokenizer.chat_template)
