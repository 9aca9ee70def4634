"""Log-probabilities of tokens: the head reads hidden states in parts, so that logits of all tokens never exist.

`score_tokens` is the forward pass of the plain loop, and of training over kept tokens. The pass without either is
TRL's fused head, in the trainers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from llm_envs.policies.inference.positions import position_ids
from llm_envs.trainers.forward.prefix_tree import PrefixTree, build_tree
from llm_envs.trainers.forward.tree_rows import tree_inputs
from llm_envs.trainers.forward.trunk import captured_states, trunk_of
from llm_envs.trainers.functional.logits import entropies_from_logits, keep_tokens, logps_from_logits
from llm_envs.types import KeptTokens

__all__ = ["score_tokens"]

_CHUNK = 512
"""Tokens whose logits exist at the same time: 512 by a vocabulary of 150,000 are 300 MB in float32."""


def score_tokens(
    model: Any,
    causal: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    n_tokens: int,
    *,
    is_tree: bool = False,
    temperature: float = 1.0,
    mask_BT: torch.Tensor | None = None,
    kept: Sequence[KeptTokens | None] | None = None,
    compute_entropy: bool = False,
    **further: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
    """Return log-probabilities and entropies of each row's last tokens, and the model's output.

    Args:
        model: A causal language model, perhaps with an adapter or wrapped for several processes.
        causal: The language model inside.
        input_ids: Shape (B, L), int64.
        attention_mask: Shape (B, L).
        n_tokens: T, the number of columns to score, below L.
        is_tree: Whether to compute the rows as a prefix tree (`tree_rows`).
        temperature: The sampling temperature.
        mask_BT: Bool: the sampled tokens, if `kept` is given.
        kept: By row, the tokens that the sampling filters kept at each token of `mask_BT`; None: all tokens.
        compute_entropy: Whether to return entropies.
        **further: Further arguments of the model's forward.

    Returns:
        Shape (B, T), float32, 0 at padding; the same of the entropies, or None; and the output, whose logits are of
        one token.
    """
    tree = build_tree(input_ids, attention_mask) if is_tree else None
    if tree is not None and not len(tree):
        tree = None
    output, states = _pass(model, causal, tree, input_ids, attention_mask, n_tokens, further)
    scored_BT = attention_mask[:, -n_tokens:].bool()
    # The state at a token predicts the next one. Tokens that share a node are scored once.
    if tree is not None:
        scored_BT = scored_BT & (tree.rows_of(tree.depth_N)[:, -n_tokens:] > 0)
        nodes_M, place_S = tree.node_BL[:, -n_tokens:][scored_BT].unique(return_inverse=True)
        states_MH, ids_M = states[0, tree.parent_N[nodes_M]], tree.ids_N[nodes_M]
    else:
        place_S = torch.arange(int(scored_BT.sum()), device=input_ids.device)
        states_MH, ids_M = states[:, -n_tokens - 1 : -1][scored_BT], input_ids[:, -n_tokens:][scored_BT]
    own = [None] * len(ids_M) if kept is None or mask_BT is None else _by_token(mask_BT, kept, scored_BT, place_S)
    scored = [
        _scored(causal, states_MH[start : start + _CHUNK], ids_M[start : start + _CHUNK], own[start : start + _CHUNK],
                temperature, compute_entropy, is_only=len(ids_M) <= _CHUNK)
        for start in range(0, max(len(ids_M), 1), _CHUNK)
    ]  # fmt: skip

    def rows_of(values_M: torch.Tensor) -> torch.Tensor:
        return values_M.new_zeros(scored_BT.shape).masked_scatter(scored_BT, values_M[place_S])

    logps_BT, entropies_BT = (rows_of(torch.cat(parts)) for parts in zip(*scored, strict=True))
    return logps_BT, entropies_BT if compute_entropy else None, output


def _pass(
    model: Any,
    causal: Any,
    tree: PrefixTree | None,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    n_tokens: int,
    further: dict[str, Any],
) -> tuple[Any, torch.Tensor]:
    """Return the model's output, and the hidden states of a tree, (1, N, H), or of padded rows, (B, L, H)."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids(attention_mask)}
    if tree is not None:
        inputs = tree_inputs(tree, causal)
    if not _has_trunk(causal):
        output = model(**inputs, use_cache=False, logits_to_keep=n_tokens + 1, **further)
        return output, output.logits
    with captured_states(causal, as_rows=False) as states:
        output = model(**inputs, use_cache=False, logits_to_keep=1, **further)
    return output, states[0]


def _by_token(
    mask_BT: torch.Tensor, kept: Sequence[KeptTokens | None], scored_BT: torch.Tensor, place_S: torch.Tensor
) -> list[Any]:
    """Return what was kept at each scored token, as arrays of ids; None where nothing was left out.

    A node may be of a row that sampled it and of one that only read it, whose log-probability is not used.
    """
    out: list[Any] = [None] * (int(place_S.max()) + 1 if len(place_S) else 0)
    number_BT = torch.full(scored_BT.shape, -1, device=scored_BT.device).masked_scatter(scored_BT, place_S)
    for numbers, mask, part in zip(number_BT, mask_BT.bool(), kept, strict=True):
        if part is None:
            continue
        starts = [0, *part.stops[:-1].tolist()]
        for number, start, stop in zip(numbers[mask].tolist(), starts, part.stops.tolist(), strict=True):
            out[number] = part.ids[start:stop]
    return out


def _scored(
    causal: Any,
    states_MH: torch.Tensor,
    ids_M: torch.Tensor,
    kept: Sequence[Any],
    temperature: float,
    compute_entropy: bool,
    *,
    is_only: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities and entropies of one chunk, shape (M,).

    Its logits are computed again for gradients, unless it is the only one.
    """

    def score(states_MH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits_MV = _head(causal, states_MH)
        if places := [place for place, ids in enumerate(kept) if ids is not None]:
            sets = [torch.from_numpy(kept[place]).long() for place in places]
            stops_N = torch.tensor([len(ids) for ids in sets]).cumsum(0)
            places_N2 = torch.tensor([(0, place) for place in places])
            device = logits_MV.device
            where = (part.to(device) for part in (places_N2, torch.cat(sets), stops_N))
            logits_MV = keep_tokens(logits_MV.float()[None], *where)[0]
        logps_M = logps_from_logits(logits_MV, ids_M, temperature=temperature)
        return logps_M, entropies_from_logits(logits_MV, temperature=temperature) if compute_entropy else logps_M

    if is_only or not torch.is_grad_enabled():
        return score(states_MH)
    found: tuple[torch.Tensor, torch.Tensor] = checkpoint(
        score, states_MH, use_reentrant=False, preserve_rng_state=False
    )
    return found


def _head(causal: Any, states_MH: torch.Tensor) -> torch.Tensor:
    """Return the logits of hidden states, shape (M, V), by the model's own forward: it may scale or cap them."""
    if not _has_trunk(causal):
        return states_MH  # the logits: nothing else could be asked for
    output = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states_MH[None])
    with _answering(trunk_of(causal), output):
        logits: torch.Tensor = causal(inputs_embeds=states_MH[None], use_cache=False).logits
    return logits[0]


def _has_trunk(causal: Any) -> bool:
    return getattr(causal, "base_model", causal) is not causal


@contextmanager
def _answering(trunk: Any, output: Any) -> Iterator[None]:
    """Let a trunk return this output instead of computing its own."""
    before = vars(trunk).get("forward")
    trunk.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        del trunk.forward
        if before is not None:
            trunk.forward = before
