"""Load a model and its tokenizer, optionally with a custom loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError, ModelError, extra_needed
from llm_envs.policies.inference.cpu import cpu_dtype
from llm_envs.policies.inference.names import check_hub, name_problem

with extra_needed("loading a model needs torch: pip install 'llm-envs[train]'."):
    import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["context_length", "eos_token_ids", "load_model", "load_tokenizer"]

# Configuration names of the context length. Model types without one (ALiBi, recurrent ones) have unlimited context.
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len")
_NO_LIMIT = 1_000_000
_PLACED = ("quantization_config", "distributed_config", "tp_plan")
"""Settings with which transformers itself places the model."""


def load_tokenizer(
    name_or_path: str | Path,
    *,
    loader: Callable[..., PreTrainedTokenizerBase] | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer; one without a pad token pads with its end-of-sequence token.

    (Our code does not use the pad token: masks come from lengths. It is set for callers that pad with the tokenizer.)

    Args:
        name_or_path: A folder, or a name on a model hub.
        loader: Replaces `transformers.AutoTokenizer.from_pretrained`.
        trust_remote_code: Whether code from the tokenizer's repository may run.

    Raises:
        ModelError: If it cannot be loaded.
    """
    from transformers import AutoTokenizer

    load = loader or AutoTokenizer.from_pretrained
    tokenizer = load_part("tokenizer", load, name_or_path, is_real=loader is None, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    adapter: str | Path | None = None,
    merge_adapter: bool = False,
    loader: Callable[..., PreTrainedModel] | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """Load a causal language model for inference, in eval mode.

    Args:
        name_or_path: A folder, or a name on a model hub.
        dtype: Data type of the weights; "auto" takes the checkpoint's, or float32 for a bfloat16 checkpoint on a CPU
            without bfloat16 instructions.
        device: The single device for the model; None takes a GPU if there is one. Not together with `device_map`.
        device_map: Spreads the layers over devices ("auto", or module name -> device; needs accelerate).
        adapter: A LoRA adapter to apply to the model (a folder that peft wrote, or a name on a hub).
        merge_adapter: Merge the adapter into the weights: faster, and the result is not a peft model.
        loader: Replaces `transformers.AutoModelForCausalLM.from_pretrained`; it gets the settings under their names in
            transformers.
        trust_remote_code: Whether code from the model's repository may run.
        **kwargs: Passed to the loader unchanged: `attn_implementation`, `quantization_config`, `tp_plan`, ...

    Returns:
        The model; with an unmerged adapter, a `peft.PeftModel` of it.

    Raises:
        InvalidConfigError: If two settings exclude each other.
        MissingExtraError: If an adapter needs peft, which is not installed.
        ModelError: If the model cannot be loaded, or the adapter does not fit.
    """
    from transformers import AutoModelForCausalLM

    placed = kwargs.keys() & _PLACED
    if device is not None and (device_map is not None or placed - {"quantization_config"}):
        others = sorted(placed) if device_map is None else [f"device_map={device_map!r}"]
        raise InvalidConfigError(f"device={device!r} and {', '.join(others)} exclude each other: give one of them.")
    if merge_adapter and adapter is None:
        raise InvalidConfigError("merge_adapter=True without an adapter: give adapter=FOLDER.")
    if device is not None and "quantization_config" in kwargs:
        device_map = {"": device}  # quantised weights cannot be moved afterwards
    settings: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code} | kwargs
    if device_map is not None:
        settings["device_map"] = device_map
    model = load_part(
        "model", loader or AutoModelForCausalLM.from_pretrained, name_or_path, is_real=loader is None, **settings
    )
    if adapter is not None:
        model = _put_adapter(model, adapter, merge_adapter)
    if device_map is None and not placed:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if dtype == "auto" and model.dtype == torch.bfloat16 and model.device.type == "cpu" and cpu_dtype() is not None:
        model = model.float()
    return model.eval()


def context_length(model: PreTrainedModel | PretrainedConfig) -> int:
    """Return how many tokens the positions of a model, or of its configuration, allow; 1,000,000 if unlimited."""
    own: Any = getattr(model, "config", model)
    config = own.get_text_config()
    lengths = [int(value) for name in _CONTEXT_NAMES if (value := getattr(config, name, None))]
    return lengths[0] if lengths else _NO_LIMIT


def eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the ids that end a text in the model's own generation settings; empty if it has none."""
    for settings in (getattr(model, "generation_config", None), model.config.get_text_config()):
        ids = getattr(settings, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
    return ()


def _put_adapter(model: PreTrainedModel, adapter: str | Path, merge: bool) -> Any:
    with extra_needed("a LoRA adapter needs peft: pip install 'llm-envs[train]'."):
        from peft import PeftModel

    def load(name: str) -> Any:
        try:
            return PeftModel.from_pretrained(model, name)
        except RuntimeError as error:  # shapes that do not fit
            raise ValueError(str(error)) from error

    adapted = load_part("adapter", load, adapter)
    return adapted.merge_and_unload() if merge else adapted


def load_part(
    what: str, load: Callable[..., Any], name_or_path: str | Path, *, is_real: bool = False, **kwargs: Any
) -> Any:
    """Load a part of a model; an error of transformers becomes a `ModelError` that names the part and the folder."""
    if (problem := name_problem(str(name_or_path))) is not None:
        raise ModelError(
            f"no {what} could be loaded from {str(name_or_path)!r}: {problem}. Give a folder that `save_pretrained` "
            "wrote, or a name on a model hub."
        )
    if is_real:
        check_hub(str(name_or_path))
    try:
        return load(str(name_or_path), **kwargs)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if reason.rstrip().endswith(":"):  # a list follows
            reason = f"{' '.join(str(error).split()).rstrip('.')}."
        raise ModelError(
            f"no {what} could be loaded from {str(name_or_path)!r}: {reason} "
            "Give a folder that `save_pretrained` wrote, or a name on a model hub."
        ) from error
