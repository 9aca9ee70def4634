"""Scoring and splitting the functional loop's batches: log-probabilities under a model, minibatches, micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.positions import causal_of
from llm_envs.trainers.forward.head import score_tokens
from llm_envs.trainers.forward.teacher import ServedTeacher
from llm_envs.trainers.forward.tree_rows import Forward, reads_tree
from llm_envs.trainers.functional.batch import Batch

__all__ = [
    "autocast",
    "micro_batch_rows",
    "minibatch_rows",
    "score_batch",
    "score_rows",
]


def score_rows(
    model: torch.nn.Module, batch: Batch, *, with_entropies: bool = False, forward: Forward = "auto"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the model's log-probabilities of a batch's completion tokens, in one forward pass.

    The router loss of a mixture of experts is not computed here, so the plain loop trains without it; the trainers add
    it.

    Args:
        model: A causal language model of transformers, or one with the same call.
        batch: The rows.
        with_entropies: Whether to return entropies too.
        forward: How rows are computed (`LoopSettings.forward`).

    Returns:
        Shape (B, T), float32, with gradient if enabled; and entropies in nats of the same shape, or None.
    """
    ids = torch.cat([batch.need("prompt_ids"), batch.need("completion_ids")], dim=1)
    attention = torch.cat([batch.need("prompt_mask"), batch.need("completion_mask")], dim=1)
    causal: Any = causal_of(model)
    logps_BT, entropies_BT, _ = score_tokens(
        model,
        causal,
        ids,
        attention,
        batch.need("completion_ids").shape[1],
        is_tree=reads_tree(forward, model, causal, ids.device),
        temperature=batch.temperature,
        mask_BT=batch.mask_BT,
        kept=batch.kept,
        compute_entropy=with_entropies,
    )
    return logps_BT, entropies_BT


@torch.no_grad()
def score_batch(
    model: torch.nn.Module,
    batch: Batch,
    *,
    micro_batch_size: int | None = None,
    autocast_dtype: torch.dtype | None = None,
    forward: Forward = "auto",
) -> torch.Tensor:
    """Return the log-probabilities of all rows, without gradient, shape (B, T); 0 in trimmed padding.

    Args:
        model: As for `score_rows`, scored in eval mode; or a teacher on a server.
        batch: The rows.
        micro_batch_size: Rows per forward pass; None: all.
        autocast_dtype: See `autocast`.
        forward: As for `score_rows`.
    """
    if isinstance(model, ServedTeacher):
        ids = torch.cat([batch.need("prompt_ids"), batch.need("completion_ids")], dim=1)
        attention = torch.cat([batch.need("prompt_mask"), batch.need("completion_mask")], dim=1)
        n_tokens, has_kept = batch.mask_BT.shape[1], batch.kept is not None
        return model.logps(ids, attention, n_tokens, temperature=batch.temperature, keeps_mask=has_kept)
    out = torch.zeros(batch.mask_BT.shape, device=batch.mask_BT.device)
    was_training = model.training
    model.eval()
    try:
        for rows in micro_batch_rows(batch, micro_batch_size):
            part = batch.select(rows)
            with autocast(part.mask_BT.device, autocast_dtype):
                logps_BT, _ = score_rows(model, part, forward=forward)
            out[rows.to(out.device), : logps_BT.shape[1]] = logps_BT.float()
    finally:
        model.train(was_training)
    return out


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a context in which matrix products use `dtype`; None: the dtype of the weights.

    Raises:
        InvalidConfigError: If it is float16, whose gradients underflow without loss scaling.
    """
    if dtype is None:
        return nullcontext()
    if dtype == torch.float16:
        raise InvalidConfigError("autocast_dtype=float16 needs a scaled loss: use torch.bfloat16.")
    return torch.autocast(device.type, dtype)


def micro_batch_rows(batch: Batch, size: int | None, *, whole_groups: bool = False) -> Iterator[torch.Tensor]:
    """Yield the row numbers of a batch in parts, one per forward pass.

    Args:
        batch: The rows.
        size: Maximum rows of a part; None: all together.
        whole_groups: Whether to keep groups together (for losses on pairs). A part then has at least one group.
    """
    n_rows = len(batch)
    if size is None or size >= n_rows:
        yield torch.arange(n_rows)
        return
    if not whole_groups:
        yield from torch.arange(n_rows).split(size)
        return
    part = torch.zeros(0, dtype=torch.long)
    groups = batch.need("group_ids_B").cpu()
    for group in groups.unique():
        members = torch.nonzero(groups == group)[:, 0]
        if len(part) and len(part) + len(members) > size:
            yield part
            part = part[:0]
        part = torch.cat([part, members])
    yield part


def minibatch_rows(batch: Batch, n: int, *, seed: int) -> list[torch.Tensor]:
    """Divide a generation into `n` parts of full groups, in random order: one optimizer step each.

    Args:
        batch: The generation.
        n: Number of parts; 1 keeps the order.
        seed: Seed of the order.

    Raises:
        InvalidConfigError: If there are fewer groups than parts.
    """
    if n == 1:
        return [torch.arange(len(batch))]
    groups = batch.need("group_ids_B").cpu()
    ids = groups.unique().numpy()
    if n > len(ids):
        raise InvalidConfigError(f"n_minibatches={n} of {len(ids)} groups: lower it, or play more groups.")
    order = np.random.default_rng(seed).permutation(ids)
    parts = [torch.isin(groups, torch.from_numpy(chosen)) for chosen in np.array_split(order, n)]
    return [torch.nonzero(part)[:, 0] for part in parts]
