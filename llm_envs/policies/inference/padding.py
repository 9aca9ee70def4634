"""Sequences of different lengths in one batch, with their key-value cache during sampling.

Masks and positions come from lengths. No pad token is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.policies.inference.caches import (
    Prefix,
    cache_of,
    has_all_tokens,
    join_caches,
    join_problem,
    make_room,
    take_prefix,
    widen_cache,
)
from llm_envs.policies.inference.positions import cache_argument, output_cache, position_ids
from llm_envs.types import IdArray

with extra_needed("a batch for a model needs torch: pip install 'llm-envs[train]'."):
    import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["IdArray", "PaddedBatch", "check_token_ids"]


_COLUMNS = ("input_ids", "attention_mask", "position_ids")


def check_token_ids(model: PreTrainedModel, ids: Sequence[int] | IdArray, what: str) -> IdArray:
    """Return token ids as an array, checked: one axis, each an id of the model's vocabulary.

    (An id outside the vocabulary makes the process's CUDA context unusable.)

    Args:
        model: The model that gets the ids.
        ids: Shape (T,); may be empty.
        what: Their name in the error ("prompt 3").

    Raises:
        InvalidConfigError: If they are not valid ids.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidConfigError(f"{what} has shape {array.shape} and dtype {array.dtype}: give token ids, shape (T,).")
    n_vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    if array.size and (array.min() < 0 or (n_vocabulary is not None and array.max() >= n_vocabulary)):
        raise InvalidConfigError(
            f"{what} has token ids from {array.min()} to {array.max()}; the model's vocabulary has {n_vocabulary}: is "
            "this the model's own tokenizer?"
        )
    return array.astype(np.int32)


class PaddedBatch:
    """Left-padded sequences with their key-value cache. Rows can be added and removed between two forward passes.

    A row is padded with its own first token, masked out. The model would accept any id, but a repetition penalty looks
    at the ids and must not see one that is not in the row.

    Args:
        sequences: B arrays of token ids, each of shape (T_b,), T_b at least 1.
        device: Device of the tensors.

    Attributes:
        input_ids: Shape (B, T), int64.
        attention_mask: Shape (B, T), int64: 0 on the padding.
        position_ids: Shape (B, T), int64: each row counts its own tokens from 0.
    """

    def __init__(self, sequences: Sequence[IdArray], device: torch.device) -> None:
        copy_single_heads()
        width = max(len(sequence) for sequence in sequences)
        ids = np.zeros((len(sequences), width), dtype=np.int64)
        mask = np.zeros((len(sequences), width), dtype=np.int64)
        for row, sequence in enumerate(sequences):
            ids[row] = sequence[0]
            ids[row, width - len(sequence) :] = sequence
            mask[row, width - len(sequence) :] = 1
        self.input_ids = torch.from_numpy(ids).to(device)
        self.attention_mask = torch.from_numpy(mask).to(device)
        self.position_ids = position_ids(self.attention_mask)
        self._cache: Any = None

    def forward(self, model: PreTrainedModel) -> torch.Tensor:
        """Return the next token's logits in float32, shape (B, V), and keep the keys and values.

        Without a key-value cache (a purely recurrent model) it reads the full sequence again each time.
        """
        new = slice(None) if self._cache is None else slice(-1, None)
        return self._forward(model, self.input_ids[:, new], self.attention_mask, self.position_ids[:, new])

    def read_on(self, model: PreTrainedModel, prefixes: Sequence[Prefix | None]) -> torch.Tensor:
        """Do the first `forward` from what is known of each row: B prefixes that leave at least one token to read.

        All rows read as many tokens as the least known one.
        """
        # Every row reads as many tokens as the least known one, because padding inside a row would be wrong for types
        # of model that count columns (MPT, GPT-Neo).
        lengths = self.attention_mask.sum(1).tolist()
        n_new = max(n - (len(prefix.ids) if prefix else 0) for n, prefix in zip(lengths, prefixes, strict=True))
        used = [
            prefix.first(n - n_new) if prefix and n > n_new else None
            for n, prefix in zip(lengths, prefixes, strict=True)
        ]
        if not any(used):
            return self.forward(model)
        self._cache = cache_of(used)
        return self._forward(model, self.input_ids[:, -n_new:], self.attention_mask, self.position_ids[:, -n_new:])

    def prefix(self, place: int, n_tokens: int) -> Prefix | None:
        """Copy the last `n_tokens` columns of a row that the model has read; None if its cache has something else."""
        if not has_all_tokens(self._cache):
            return None
        n_read = self._cache.get_seq_length()
        ids = self.input_ids[place, n_read - n_tokens : n_read].cpu().numpy().astype(np.int32)
        return take_prefix(self._cache, place, ids)

    def _forward(
        self, model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **cache_argument(model, self._cache),
            **_without_router_loss(model),
        )
        self._cache = output_cache(output)
        make_room(self._cache)
        return output.logits[:, -1].float()

    def score(self, model: PreTrainedModel, n_last: int = 0) -> torch.Tensor:
        """Return the logits of the last `n_last` places (0: all), in the model's dtype, shape (B, n, V)."""
        logits = model(
            input_ids=self.input_ids,
            attention_mask=self.attention_mask,
            position_ids=self.position_ids,
            use_cache=False,
            logits_to_keep=n_last,
            **_without_router_loss(model),
        ).logits
        return logits[:, -n_last:]  # for model types without `logits_to_keep`

    @property
    def width(self) -> int:
        """T: tokens of the longest row, and of padding in front of all rows, if longer rows have left."""
        return self.input_ids.shape[1]

    @property
    def join_problem(self) -> str | None:
        """Why no rows can join this batch and no columns can be dropped, or None. Known after the first forward."""
        return join_problem(self._cache)

    def extend(self, next_ids: torch.Tensor, is_running: Sequence[bool]) -> None:
        """Append one token to each row.

        Args:
            next_ids: Shape (B,).
            is_running: B flags. The position of an ended row stays the same, so that it does not leave the context.
        """
        self.input_ids = torch.cat([self.input_ids, next_ids[:, None].to(self.input_ids.device)], dim=1)
        ones = self.attention_mask.new_ones(len(self.attention_mask), 1)
        self.attention_mask = torch.cat([self.attention_mask, ones], dim=1)
        steps = torch.tensor(is_running, dtype=torch.int64, device=self.position_ids.device)[:, None]
        self.position_ids = torch.cat([self.position_ids, self.position_ids[:, -1:] + steps], dim=1)

    def select(self, places: Sequence[int], width: int) -> None:
        """Keep the rows at `places` and their last `width` columns.

        Args:
            places: Indices of rows, at least one. An index that occurs twice makes two equal rows.
            width: At least the length of the longest of these rows. Ignored if the cache has a `join_problem`.
        """
        n_dropped = self.width - width if self.join_problem is None else 0
        index = torch.tensor(places, device=self.input_ids.device)
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[index, n_dropped:])
        if self._cache is not None:
            # Not `batch_select_indices`: layers with a recurrent state (Qwen3.5, Qwen3-Next) only have `reorder_cache`.
            self._cache.reorder_cache(index)
            widen_cache(self._cache, -n_dropped)

    def join(self, other: PaddedBatch) -> None:
        """Append the rows of another batch of this model, which must not be used afterwards."""
        width = max(self.width, other.width)
        for batch in (self, other):
            batch._widen(width - batch.width)
        for name in _COLUMNS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        if self._cache is not None:
            join_caches(self._cache, other._cache)

    def _widen(self, n_columns: int) -> None:
        """Add columns of padding at the left."""
        if not n_columns:
            return
        first = self.input_ids[:, :1].expand(-1, n_columns)  # a row's own first token, as in its other padding
        self.input_ids = torch.cat([first, self.input_ids], dim=1)
        self.attention_mask = torch.nn.functional.pad(self.attention_mask, (n_columns, 0))
        self.position_ids = torch.nn.functional.pad(self.position_ids, (n_columns, 0))
        if self._cache is not None:
            widen_cache(self._cache, n_columns)


def _without_router_loss(model: PreTrainedModel) -> dict[str, Any]:
    """Return arguments that keep a mixture of experts from computing its router loss, which fails for one token."""
    return {"output_router_logits": False} if getattr(model.config, "output_router_logits", False) else {}
