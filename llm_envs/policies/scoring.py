"""Score given tokens: their log-probabilities, or the whole distributions they were drawn from.

Each sequence is scored as if it were alone, whatever shares its batch (up to rounding in the model's own kernels). The
exception are models whose rotary embedding depends on the longest sequence of a batch (`rope_type` "longrope", as in
Phi-3), where some sequences of a batch exceed the original context and others do not: give those `micro_batch_size=1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llm_envs.errors import ContextFullError, InvalidConfigError, MissingExtraError
from llm_envs.policies.loading import context_length
from llm_envs.policies.padding import IdArray, PaddedBatch, check_token_ids

try:
    import torch
except ImportError as error:
    raise MissingExtraError("scoring tokens needs torch: pip install 'llm-envs[train]'.") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["token_logits", "token_logps"]


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
        micro_batch_size: Sequences a forward pass. Memory grows with it times the longest sequence times the
            vocabulary; the result does not depend on it.

    Returns:
        B arrays of shape (T_b,). The first token has nothing before it and gets 0.

    Raises:
        InvalidConfigError: If a sequence has ids that the model does not have, or an argument is out of range.
        ContextFullError: If a sequence is longer than the model's context.
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
    """Return the logits of the distributions that given tokens come from, for an exact KL over the vocabulary.

    Row n of a result belongs to the n-th token that its mask chooses, given the tokens before it: `log_softmax` of it,
    gathered at that token, is the token's entry in `token_logps`.

    Args:
        model: A causal language model in eval mode.
        sequences: B arrays of token ids, each of shape (T_b,).
        masks: B arrays of shape (T_b,), True at the tokens that are wanted (the mask of a `Row`). None takes all but
            the first, which has nothing before it.
        micro_batch_size: Sequences a forward pass; the result does not depend on it.
        device: Where the results go; None leaves them on the model's.
        requires_grad: Whether gradients flow through them. The graph of every micro-batch stays in memory then.

    Returns:
        B tensors of shape (N_b, V), float32, N_b the number of chosen tokens. Memory: 4 bytes × V a token (600 kB at a
        vocabulary of 150,000); two models' logits of a batch are best compared a few sequences at a time.

    Raises:
        InvalidConfigError: If a mask does not fit its sequence, a sequence has ids that the model does not have, or an
            argument is out of range.
        ContextFullError: If a sequence is longer than the model's context.
    """
    chosen = _check_masks(sequences, masks)
    out: dict[int, torch.Tensor] = {}
    with torch.set_grad_enabled(requires_grad):
        for places, batch in _micro_batches(model, sequences, micro_batch_size):
            # The place before a token has its logits. Of what stands before all chosen ones no logits are made.
            ends = [len(sequences[place]) - chosen[place] for place in places]
            n_last = max((int(end.max()) for end in ends if end.size), default=0) + 1
            logits = batch.score(model, n_last)
            for row, (place, end) in enumerate(zip(places, ends, strict=True)):
                index = torch.from_numpy(n_last - 1 - end).to(logits.device)
                out[place] = logits[row, index].float().to(device)
    n_vocabulary = int(model.config.get_text_config().vocab_size)
    empty = torch.zeros(0, n_vocabulary, device=device or model.device)
    return [out.get(place, empty) for place in range(len(sequences))]


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
                f"{np.shape(ids)}: give one bool a token."
            )
        if len(mask) and mask[0]:
            raise InvalidConfigError(f"mask {place} chooses the first token, which has nothing before it.")
    return [np.flatnonzero(mask) for mask in masks]
