"""Score given tokens: their log-probabilities, or the full distributions they were drawn from.

The scores of a sequence do not depend on the rest of its batch (up to rounding in the model's kernels). There is one
exception: the rotary embedding of some models depends on the longest sequence of a batch (`rope_type` "longrope", as in
Phi-3). If only some sequences exceed the original context of such a model, use `micro_batch_size=1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llm_envs.errors import ContextFullError, InvalidConfigError, extra_needed
from llm_envs.policies.inference.loading import context_length
from llm_envs.policies.inference.padding import IdArray, PaddedBatch, check_token_ids
from llm_envs.policies.inference.positions import check_positions
from llm_envs.policies.inference.sampling import logits_processor
from llm_envs.types import SamplingParams

with extra_needed("scoring tokens needs torch: pip install 'llm-envs[train]'."):
    import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["filter_shifts", "token_logits", "token_logps"]

_PER_PASS = 64
"""Tokens whose distributions are filtered in one step: 40 MB at a vocabulary of 150,000."""


@torch.no_grad()
def token_logps(
    model: PreTrainedModel,
    sequences: Sequence[IdArray],
    *,
    temperature: float = 1.0,
    micro_batch_size: int = 16,
) -> list[npt.NDArray[np.float32]]:
    """Score given tokens: the log-probability of each under the model, given those before it.

    These are the log-probabilities that sampling reports at the same temperature without filters (`top_k`, `top_p`,
    `min_p`, a repetition penalty).

    Args:
        model: A causal language model in eval mode.
        sequences: B arrays of token ids, each of shape (T_b,).
        temperature: Divides the logits first; 1 is the model's own distribution, and so is 0 (as for greedy sampling).
        micro_batch_size: Sequences per forward pass. Memory grows with it times the longest sequence times the
            vocabulary; the result does not depend on it.

    Returns:
        B arrays of shape (T_b,). The first token, which has no predecessor, gets 0.

    Raises:
        InvalidConfigError: If a sequence has ids that the model does not have, or an argument is out of range.
        ContextFullError: If a sequence is longer than the model's context.
        ModelError: If several share a forward pass and the model's log-probabilities depend on the padding of a batch.
    """
    if not temperature >= 0:
        raise InvalidConfigError(f"temperature={temperature!r}: it must be at least 0.")
    out = [np.zeros(len(sequence), np.float32) for sequence in sequences]
    for places, batch in _micro_batches(model, sequences, micro_batch_size):
        logits = batch.score(model)
        for row, place in enumerate(places):
            n = len(sequences[place])
            scores = logits[row, -n:-1].float() / (temperature or 1.0)
            chosen = batch.input_ids[row, 1 - n :, None].to(scores.device)
            out[place][1:] = (scores.gather(-1, chosen)[:, 0] - scores.logsumexp(-1)).cpu().numpy()
    return out


def token_logits(
    model: PreTrainedModel,
    sequences: Sequence[IdArray],
    *,
    masks: Sequence[npt.NDArray[np.bool_]] | None = None,
    micro_batch_size: int = 4,
    device: str | torch.device | None = None,
    requires_grad: bool = False,
) -> list[torch.Tensor]:
    """Return the logits of the distributions of given tokens, for an exact KL over the vocabulary.

    Row n of a result belongs to the n-th token that its mask selects: its `log_softmax`, gathered at that token, is the
    token's entry in `token_logps`.

    Args:
        model: A causal language model in eval mode.
        sequences: B arrays of token ids, each of shape (T_b,).
        masks: B arrays of shape (T_b,), True at the selected tokens (the mask of a `Row`). None selects all except the
            first, which has no predecessor.
        micro_batch_size: Sequences per forward pass; the result does not depend on it.
        device: Device of the results; None leaves them on the model's.
        requires_grad: Whether gradients flow through them. Then the graph of every micro-batch stays in memory.

    Returns:
        B tensors of shape (N_b, V), float32, N_b the number of selected tokens. Memory: 4 bytes × V per token (600 kB
        at a vocabulary of 150,000), so compare two models' logits a few sequences at a time.

    Raises:
        InvalidConfigError: If a mask does not fit its sequence, a sequence has ids that the model does not have, or an
            argument is out of range.
        ContextFullError: If a sequence is longer than the model's context.
        ModelError: If several share a forward pass and the model's log-probabilities depend on the padding of a batch.
    """
    chosen = _check_masks(sequences, masks)
    out: dict[int, torch.Tensor] = {}
    with torch.set_grad_enabled(requires_grad):
        for places, batch in _micro_batches(model, sequences, micro_batch_size):
            # The place before a token has its logits. No logits are computed before the first selected token.
            ends = [len(sequences[place]) - chosen[place] for place in places]
            n_last = max((int(end.max()) for end in ends if end.size), default=0) + 1
            logits = batch.score(model, n_last)
            for row, (place, end) in enumerate(zip(places, ends, strict=True)):
                index = torch.from_numpy(n_last - 1 - end).to(logits.device)
                out[place] = logits[row, index].float().to(device)
    n_vocabulary = int(model.config.get_text_config().vocab_size)
    empty = torch.zeros(0, n_vocabulary, device=device or model.device)
    return [out.get(place, empty) for place in range(len(sequences))]


@torch.no_grad()
def filter_shifts(model: Any, ids: IdArray, places: Sequence[int], params: SamplingParams) -> npt.NDArray[np.float32]:
    """Return how much sampling filters raise the log-probabilities of tokens of one sequence.

    With `top_p`, `top_k` and `min_p` that is `-log Z`, where Z is the probability of all kept tokens. Subtracting it
    from a sampler's log-probability gives the policy's own at the same temperature, over the full vocabulary.

    Args:
        model: A causal language model, or an object with the same call.
        ids: Shape (T,).
        places: Indices of the tokens, each at least 1.
        params: How they were sampled.

    Returns:
        Shape (len(places),). A token that the filters drop here (rounding at their edge) counts as kept.
    """
    at = torch.tensor(places, dtype=torch.int64)
    device = next(model.parameters()).device
    row = torch.from_numpy(np.asarray(ids, np.int64)).to(device)
    logits = model(
        input_ids=row[None],
        attention_mask=torch.ones_like(row)[None],
        position_ids=torch.arange(len(row), device=device)[None],
        use_cache=False,
        logits_to_keep=at.to(device) - 1,
    ).logits[0]
    if len(logits) != len(at):  # from model types without `logits_to_keep`
        logits = logits[at.to(logits.device) - 1]
    process = logits_processor(params)
    unfiltered = replace(params, top_p=1.0, top_k=0, min_p=0.0)
    penalise, plain = logits_processor(unfiltered), logits_processor(replace(unfiltered, repetition_penalty=1.0))
    parts = []
    for start in range(0, len(at), _PER_PASS):
        some = at[start : start + _PER_PASS].to(logits.device)
        scores, chosen = logits[start : start + _PER_PASS].float(), row[some, None]
        # Each token's own past: later ids are replaced by the first one, which leaves the set of seen tokens the same.
        past = torch.where(torch.arange(len(row), device=row.device) < some[:, None], row, row[0])
        filtered = process(past, scores.clone())
        filtered = filtered.scatter(-1, chosen, penalise(past, scores.clone()).gather(-1, chosen))
        logps, own = (x.log_softmax(-1).gather(-1, chosen)[:, 0] for x in (filtered, plain(past, scores.clone())))
        parts.append(logps - own)
    return torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.float32)


def _micro_batches(
    model: PreTrainedModel, sequences: Sequence[IdArray], size: int
) -> Iterator[tuple[list[int], PaddedBatch]]:
    """Check the sequences and yield batches of those with anything to score, each with its indices."""
    if size < 1:
        raise InvalidConfigError(f"micro_batch_size={size!r}: it must be at least 1.")
    limit = context_length(model)
    checked = [check_token_ids(model, ids, f"sequence {place}") for place, ids in enumerate(sequences)]
    for place, ids in enumerate(checked):
        if len(ids) > limit:
            raise ContextFullError(f"sequence {place} has {len(ids)} tokens, the model's context {limit}.")
    scorable = [place for place, ids in enumerate(checked) if len(ids) > 1]
    if min(size, len(scorable)) > 1:
        check_positions(model)
    for start in range(0, len(scorable), size):
        places = scorable[start : start + size]
        yield places, PaddedBatch([checked[place] for place in places], model.device)


def _check_masks(
    sequences: Sequence[IdArray], masks: Sequence[npt.NDArray[np.bool_]] | None
) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the chosen tokens of each sequence."""
    if masks is None:
        return [np.arange(1, len(sequence)) for sequence in sequences]
    if len(masks) != len(sequences):
        raise InvalidConfigError(f"{len(masks)} masks for {len(sequences)} sequences.")
    for place, (ids, mask) in enumerate(zip(sequences, masks, strict=True)):
        if np.shape(mask) != np.shape(ids) or np.asarray(mask).dtype != np.bool_:
            raise InvalidConfigError(
                f"mask {place} has shape {np.shape(mask)} and dtype {np.asarray(mask).dtype}; its sequence has shape "
                f"{np.shape(ids)}: give one bool per token."
            )
        if len(mask) and mask[0]:
            raise InvalidConfigError(f"mask {place} selects the first token, which has no predecessor.")
    return [np.flatnonzero(mask) for mask in masks]
