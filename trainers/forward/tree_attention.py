"""Attention over a prefix tree: each token sees the tokens before it in its rows, and no others.

A mask of the tree replaces the model's own, so that windows, sinks, soft caps and grouped heads stay as the model has
them. It states what a token sees, and is enough on its own. transformers' attention functions over PyTorch's SDPA also
find the tree's runs on it and compute each run against its path only: the cost is then the sum of the rows' new tokens
times their lengths, and not the square of the tree. On a CUDA card with `flash_attention_3`, TRL's attention over trees
takes the same runs in one call of its kernel.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from transformers import AttentionInterface

from llm_envs.errors import ModelError
from llm_envs.trainers.forward.prefix_tree import PrefixTree

__all__ = ["flash_inputs", "register_tree_attention", "tree_masks", "tree_of"]

logger = logging.getLogger(__name__)

_KINDS = {"full_attention": "", "sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Layers that a mask can be made for, and the setting that limits what they see."""

_KNOWN_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern")


def tree_masks(tree: PrefixTree, config: Any, dtype: torch.dtype) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the `attention_mask` of a tree for a model: shape (1, 1, N, N), or one by kind of layer.

    It is bool; for a model that computes attention itself ("eager"), it holds 0 or the lowest number, and is added.

    Args:
        tree: The tree.
        config: The model's text config.
        dtype: The model's.

    Raises:
        ModelError: If a layer is recurrent, or limits its sight in a way that is not known here.
    """
    kinds = _kinds(config)
    masks = {kind: _mask(tree, kind, config, dtype) for kind in kinds}
    return masks if len(masks) > 1 else masks[kinds[0]]


def tree_of(attention_mask: Any) -> PrefixTree | None:
    """Return the tree that a mask from `tree_masks` is of, or None for any other mask."""
    mask = next(iter(attention_mask.values())) if isinstance(attention_mask, dict) else attention_mask
    return getattr(mask, "prefix_tree", None)


def register_tree_attention() -> None:
    """Have transformers' attention functions compute a tree by its runs. Other masks are left to them.

    It holds for all models of this process. A second call changes nothing.
    """
    functions = AttentionInterface()
    sdpa = functions["sdpa"]
    sdpa = sdpa.args[1] if _is_ours(sdpa) else sdpa
    # Under the names that exist: the backward pass with gradient checkpointing looks the function up again. A kernel
    # from a hub has its name from the first model on that loads it.
    for name in list(functions.valid_keys()):
        if (name == "sdpa" or "flash" in name) and not name.startswith("paged|") and not _is_ours(functions[name]):
            AttentionInterface.register(name, partial(_attend, functions[name], sdpa))


def _is_ours(function: Any) -> bool:
    return isinstance(function, partial) and function.func is _attend


def flash_inputs(tree: PrefixTree) -> dict[str, Any]:
    """Return the runs of a tree as arguments of `trl.experimental.async_grpo.packing.tree_attention`.

    Args:
        tree: The tree. Each of its runs is one sequence of queries, whose keys are the run's path.
    """
    queries, keys = [run.stop - run.start for run in tree.runs], [len(run.path) for run in tree.runs]
    device = tree.ids_N.device
    return {
        "tree_kv_index": torch.cat([run.path for run in tree.runs]),
        "tree_cu_seqlens_q": torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device),
        "tree_cu_seqlens_k": torch.tensor([0, *accumulate(keys)], dtype=torch.int32, device=device),
        "tree_max_seqlen_q": max(queries),
        "tree_max_seqlen_k": max(keys),
    }


@cache
def _trls_attention() -> Callable[..., Any] | None:
    """Return TRL's attention over trees, or None where its kernel does not load."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that it is experimental
            from trl.experimental.async_grpo import packing
        packing._flash_attn()
    except Exception as error:  # whatever is missing: TRL's module, the package `kernels`, a hub, a kernel for the card
        logger.info("TRL's attention over trees is not used: %s: %s", type(error).__name__, error)
        return None
    return packing.tree_attention


def _attend(
    original: Any,
    sdpa: Any,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    tree = tree_of(attention_mask)
    if tree is None:
        return original(module, query, key, value, attention_mask, *args, **kwargs)
    inputs = getattr(attention_mask, "flash_inputs", None)
    if inputs is not None and kwargs.get("s_aux") is None and (trls := _trls_attention()) is not None:
        return trls(module, query, key, value, None, *args, **kwargs, **inputs)
    outputs = []
    masks: Any = getattr(attention_mask, "by_run")  # noqa: B009  # tensors declare no attributes
    # Cut once and put together: gradients add up by part, where an index would write as much as all nodes each time.
    queries = query.split([run.stop - run.start for run in tree.runs], dim=2)
    keys, values = (states.split(tree.part_sizes, dim=2) for states in (key, value))
    for run, own, mask in zip(tree.runs, queries, masks, strict=True):
        seen = (_joined([parts[number] for number in run.parts]) for parts in (keys, values))
        outputs.append(sdpa(module, own, *seen, mask, *args, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _kinds(config: Any) -> list[str]:
    """Return the kinds of a model's layers.

    Raises:
        ModelError: If one of them is not known here.
    """
    listed = getattr(config, "layer_types", None)
    has_window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    kinds = sorted(set(listed or ["sliding_attention" if has_window else "full_attention"]))
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise ModelError(f"its layers of kind {', '.join(unknown)} read one token after the other")
    windows = [
        name
        for name, value in vars(config).items()
        if "window" in name and value and name.lstrip("_") not in _KNOWN_WINDOWS
    ]
    if windows:
        raise ModelError(f"its {windows[0]} counts columns, which are not positions in a tree")
    return kinds


def _mask(tree: PrefixTree, kind: str, config: Any, dtype: torch.dtype) -> torch.Tensor:
    limit, device = getattr(config, _KINDS[kind], None) if _KINDS[kind] else None, tree.ids_N.device
    seen = torch.zeros(1, 1, len(tree), len(tree), dtype=torch.bool, device=device)
    by_run: list[torch.Tensor | None] = []
    for run in tree.runs:
        end = len(run.path)
        own = torch.arange(end - run.stop + run.start, end, device=device)[:, None]
        before = torch.arange(end, device=device)
        mask = before <= own
        if limit is not None:
            mask &= before > own - limit if kind == "sliding_attention" else before // limit == own // limit
        seen[0, 0, run.start : run.stop, run.path] = mask
        # Without a mask, SDPA takes its faster causal kernel.
        is_causal = run.stop - run.start == end and (limit is None or end <= limit)
        by_run.append(None if is_causal else mask[None, None])
    if config._attn_implementation == "eager":
        seen = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    # "flash_attention_3", or "kernels-community/vllm-flash-attn3", which transformers makes of it.
    has_flash = "flash" in (name := config._attn_implementation) and name.endswith("3") and device.type == "cuda"
    flash = flash_inputs(tree) if has_flash and kind != "chunked_attention" else None
    vars(seen).update(prefix_tree=tree, by_run=tuple(by_run), flash_inputs=flash)
    return seen
