"""One pass over the prefix tree of a micro-batch: each distinct token is computed once, with gradients.

Rows that begin alike share what they have in common, whatever that is: a prompt, a conversation that forks, an earlier
turn. A causal model's states of a token do not depend on what follows, so log-probabilities, entropies and gradients
equal a padded pass over the rows, up to rounding. `check_tree` tries that on the model, and refuses it otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers.utils import ModelOutput

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import accepts_positions
from llm_envs.trainers.forward.dropout import describe_dropout
from llm_envs.trainers.forward.prefix_tree import PrefixTree, build_tree
from llm_envs.trainers.forward.tree_attention import register_tree_attention, tree_masks
from llm_envs.trainers.forward.trunk import trunk_of

__all__ = ["FORWARDS", "Forward", "TreeRows", "check_tree", "reads_tree", "tree_inputs"]

Forward = Literal["auto", "padded", "prefix_tree"]
FORWARDS: tuple[Forward, ...] = ("auto", "padded", "prefix_tree")
_PROBLEMS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""The result of `check_tree` by model, "" if nothing: it costs six passes over short rows."""

_IGNORED = -100
_MAX_GAP = {torch.float32: 0.001, torch.float64: 0.001}
"""Largest share of another row's effect that may be rounding. In float32 that is below .0001."""
_MAX_COARSE_GAP = 0.2
"""The same in bfloat16, below .02."""
_ROWS = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 4, 15, 16, 17, 18), (0, 1, 2, 3, 4, 15, 16, 27, 28), (30, 31, 32))
"""Rows that the check compares, as places in a list of random tokens: two forks and a row that shares nothing."""


def reads_tree(
    forward: Forward, model: Any, causal: Any, device: torch.device, *, has_router_loss: bool = False
) -> bool:
    """Return whether a model's rows are computed as a prefix tree; warn once if dropout rules it out.

    Args:
        forward: The setting. "auto": on a CPU, if the model is exact in a tree.
        model: A causal language model, perhaps wrapped for several processes, which all call this.
        causal: The language model inside, without adapter or wrapper.
        device: The device of the model's inputs.
        has_router_loss: Whether the router's loss of a mixture of experts is computed, which counts padded rows.

    Raises:
        ModelError: If the setting is "prefix_tree" and `check_tree` refuses the model.
    """
    is_asked = forward == "prefix_tree"
    if forward == "padded" or (not is_asked and (device.type != "cpu" or has_router_loss)):
        return False
    if causal not in _PROBLEMS:
        _PROBLEMS[causal] = ""
        try:
            check_tree(model, causal, device)
        except ModelError as error:
            _PROBLEMS[causal] = str(error)
    if problem := _PROBLEMS[causal]:
        if is_asked:
            raise ModelError(problem)
        return False
    if model.training and (dropout := describe_dropout(model)):
        # A mask of a shared token would be one for all rows that have it.
        warnings.warn(
            f"the model has dropout ({dropout}), so its rows are padded: set disable_dropout=True.", stacklevel=2
        )
        return False
    return True


def tree_inputs(tree: PrefixTree, causal: Any) -> dict[str, Any]:
    """Return the arguments of a model's forward for a tree, as one row of N tokens.

    Raises:
        ModelError: If no mask can be made for the model's layers.
    """
    register_tree_attention()
    masks = tree_masks(tree, causal.config.get_text_config(), causal.dtype)
    return {"input_ids": tree.ids_N[None], "position_ids": tree.depth_N[None], "attention_mask": masks}


class TreeRows:
    """A model for TRL's `_get_per_token_logps_and_entropies` to call, with TRL's fused head.

    Args:
        model: A causal language model, perhaps with a PEFT adapter or wrapped for several processes.
        causal: The language model inside, without adapter or wrapper.
    """

    def __init__(self, model: Any, causal: Any) -> None:
        self.model, self.causal = model, causal

    def __call__(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **kwargs: Any
    ) -> ModelOutput:
        """Return the model's output for each token but the first, as for padded rows; 0 where nothing is scored.

        Args:
            input_ids: Shape (B, L).
            attention_mask: Shape (B, L).
            labels: Shape (B, L); -100 for tokens that are not scored.
            **kwargs: Further arguments of the model's forward.

        Raises:
            ModelError: For a router's loss.
        """
        if kwargs.get("output_router_logits"):
            raise ModelError('forward="prefix_tree": the router\'s loss of a mixture of experts counts padded rows.')
        tree = build_tree(input_ids, attention_mask)
        if not len(tree):  # rows that only fill up a batch: the other processes wait for this pass
            is_first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
            tree = build_tree(input_ids, is_first.expand_as(input_ids))
        # A first token has no token that predicts it.
        is_scored_BL = (labels != _IGNORED) & (tree.rows_of(tree.depth_N) > 0)
        scored_M = tree.node_BL[is_scored_BL].unique()
        place_N = torch.zeros_like(tree.ids_N).scatter_(0, scored_M, torch.arange(len(scored_M)).to(scored_M))
        if not len(scored_M):
            scored_M = scored_M.new_zeros(1)
        with _read_at(self.causal, tree.parent_N[scored_M].clamp(min=0)):
            outputs = self.model(**tree_inputs(tree, self.causal), shift_labels=tree.ids_N[scored_M][None], **kwargs)

        def rows_of(value_1M: torch.Tensor) -> torch.Tensor:
            value_BL = value_1M[0][place_N[tree.node_BL.clamp(min=0)]]
            return value_BL.masked_fill(~is_scored_BL, 0)[:, 1:]

        per_token = {
            name: rows_of(value)
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor) and value.shape == (1, len(scored_M))
        }
        return ModelOutput(per_token)


def check_tree(model: Any, causal: Any, device: torch.device) -> None:
    """Refuse a model that is not exact in a tree: compare short forked rows with one pass for each.

    Args:
        model: A causal language model, perhaps wrapped for several processes, which all call this.
        causal: The language model inside, without adapter or wrapper.
        device: The device of the model's inputs.

    Raises:
        ModelError: If it takes no positions, if its layers read one token after the other, or if its logits or
            gradients depend on the other rows of the tree.
    """
    name = type(causal).__name__
    if not hasattr(causal, "config"):
        raise ModelError(
            f'forward="prefix_tree": {name} comes from another package than transformers. Set forward="padded".'
        )
    config = causal.config.get_text_config()
    trunk_of(causal)
    begin = f'forward="prefix_tree": {name} ({config._attn_implementation} attention)'
    if not accepts_positions(type(causal)):
        raise ModelError(f'{begin} takes no position_ids, which a tree needs. Set forward="padded".')
    if isinstance(model, DistributedDataParallel):
        model = causal  # a pass through the wrapper would wait for the gradients of all weights
    tokens = torch.randint(config.vocab_size, (40,), generator=torch.Generator().manual_seed(0))
    rows = [tokens[list(row)][None].to(device) for row in _ROWS]
    length = max(row.shape[1] for row in rows)
    ids = torch.cat([torch.nn.functional.pad(row, (0, length - row.shape[1])) for row in rows])
    mask = torch.arange(length, device=device) < torch.tensor([[row.shape[1]] for row in rows], device=device)
    tree, was_training = build_tree(ids, mask), model.training
    model.eval()  # without dropout
    try:
        found, slope = _with_slope(model, causal, tree)
        with torch.no_grad():
            # A mask of ones in place of the tree's: all tokens of the tree as one row.
            mixed = _logits(model, tree.ids_N[None], torch.ones_like(tree.ids_N)[None], tree.depth_N[None])
            single = [_logits(model, row, torch.ones_like(row), None) for row in rows]
    except (ModelError, TypeError, AttributeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        raise ModelError(f'{begin} takes no tree: {error}. Set forward="padded".') from error
    finally:
        model.train(was_training)
    own = [tree.node_BL[row][mask[row]] for row in range(len(rows))]
    gaps, effects = (
        torch.cat([(logits[nodes] - row).abs().mean(-1) for nodes, row in zip(own, single, strict=True)])
        for logits in (found, mixed)
    )
    is_fine = causal.dtype in _MAX_GAP
    gap, effect = (gaps.max() if is_fine else gaps.median()), effects.max()
    # Logits do not suffice: rounding may hide what a recurrent layer carries over. The right slope is exactly 0.
    if slope != 0 or not gap <= _MAX_GAP.get(causal.dtype, _MAX_COARSE_GAP) * effect:
        raise ModelError(
            f"{begin} is not exact in a tree: the logits of short forked rows move by {gap:.2g} (if each token reads "
            f"all before it, by {effect:.2g}), and their slope in other rows is {slope:.2g} instead of 0. Set "
            'forward="padded".'
        )


@contextmanager
def _read_at(causal: Any, nodes_M: torch.Tensor) -> Iterator[None]:
    """Hand only the states at some tokens to the head, in this order; a token that forks is read more than once."""

    def select(module: torch.nn.Module, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, nodes_M]
        return output

    handle = trunk_of(causal).register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


def _logits(model: Any, ids: torch.Tensor, mask: Any, positions: torch.Tensor | None) -> torch.Tensor:
    """Return the logits of one row, shape (T, V), float32."""
    positions = torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions
    logits: torch.Tensor = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[0].float()


def _with_slope(model: Any, causal: Any, tree: PrefixTree) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a tree, and the largest slope of a row's log-probabilities in tokens that it has not."""
    read: list[torch.Tensor] = []

    def begin_here(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        read.append(output.detach().requires_grad_())
        return read[-1].clone()  # a model may write into it

    inputs, slopes = tree_inputs(tree, causal), []
    with torch.enable_grad(), causal.get_input_embeddings().register_forward_hook(begin_here):
        logits = _logits(model, inputs["input_ids"], inputs["attention_mask"], inputs["position_ids"])
        for row in tree.node_BL:
            own = row[row >= 0]
            chosen = logits[own].log_softmax(-1)[:, 0].sum()
            (slope,) = torch.autograd.grad(chosen, read, retain_graph=True)
            slopes.append(slope[0].index_fill(0, own, 0).abs().max())
    return logits.detach(), torch.stack(slopes).max()
