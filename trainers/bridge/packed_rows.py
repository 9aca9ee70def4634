"""Rows of unequal length without their padding: several in one row of the forward pass.

The attention of transformers keeps apart rows whose positions begin again at 0. With flash attention all rows of a
micro-batch are one row, so the cost is that of their tokens. Other attention computes whole squares, so rows fill up to
the length of the longest, which costs no more than padding. Log-probabilities and gradients are those of padded rows,
up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.utils import ModelOutput

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import accepts_positions, position_ids

__all__ = ["PackedRows", "pack"]

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
_IGNORED = -100


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return which rows share a row: the longest first, each into the first with room for it.

    Args:
        lengths: Tokens of each row, none above the capacity.
        capacity: Tokens of a packed row.
    """
    packed: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place = next((i for i, left in enumerate(room) if left >= lengths[row]), len(room))
        if place == len(room):
            packed.append([])
            room.append(capacity)
        packed[place].append(row)
        room[place] -= lengths[row]
    return packed


class PackedRows:
    """A model for TRL's `_get_per_token_logps_and_entropies` to call.

    Args:
        model: A causal language model, perhaps wrapped for several processes.
        causal: The language model inside, without adapter or wrapper.

    Raises:
        ModelError: If a layer of the model would mix packed rows.
    """

    def __init__(self, model: Any, causal: Any) -> None:
        config = causal.config.get_text_config()
        layers = set(getattr(config, "layer_types", None) or ()) - _ATTENTION
        if layers or getattr(causal, "_is_stateful", False):
            raise ModelError(
                f"packing=True: {type(causal).__name__} has layers other than attention "
                f"({', '.join(sorted(layers)) or 'recurrent ones'}), which cannot keep packed rows apart. Set "
                "packing=False."
            )
        if not accepts_positions(type(causal)):
            raise ModelError(
                f"packing=True: {type(causal).__name__} takes no position_ids, which tell packed rows apart. Set "
                "packing=False."
            )
        self.model = model
        self._is_flash = "flash" in (config._attn_implementation or "")

    def __call__(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **kwargs: Any
    ) -> ModelOutput:
        """Return the model's output for each token but the first, as for padded rows; 0 for padding.

        Args:
            input_ids: Shape (B, L).
            attention_mask: Shape (B, L).
            labels: Shape (B, L); -100 for tokens that are not scored.
            **kwargs: Further arguments of the model's forward.

        Raises:
            ModelError: For a router's loss.
        """
        if kwargs.get("output_router_logits"):
            raise ModelError("packing=True: the router's loss of a mixture of experts counts padded rows.")
        mask, positions_BL = attention_mask.bool(), position_ids(attention_mask)
        lengths = mask.sum(1).tolist()
        packed = pack(lengths, sum(lengths) if self._is_flash else max(lengths))
        row_B, start_B = torch.zeros(2, len(lengths), dtype=torch.long, device=input_ids.device)
        ends = []
        for index, rows in enumerate(packed):
            end = 0
            for row in rows:
                row_B[row], start_B[row] = index, end
                end += lengths[row]
            ends.append(end)
        place = row_B[:, None].expand_as(positions_BL)[mask], (start_B[:, None] + positions_BL)[mask]
        shape = len(packed), max(ends)
        ids, targets = input_ids.new_zeros(shape), labels.new_full(shape, _IGNORED)
        # Padding at the end of a packed row counts as a further row: its positions begin at 0.
        positions = torch.arange(shape[1], device=ids.device) - torch.tensor(ends, device=ids.device)[:, None]
        ids[place], positions[place] = input_ids[mask], positions_BL[mask]
        # A row's first token follows the last one of another row.
        targets[place] = labels[mask].masked_fill(positions_BL[mask] == 0, _IGNORED)
        outputs = self.model(input_ids=ids, position_ids=positions, labels=targets, **kwargs)

        def unpack(value: torch.Tensor) -> torch.Tensor:
            found = value[place[0], (place[1] - 1).clamp(min=0)].masked_fill(targets[place] == _IGNORED, 0)
            return value.new_zeros(mask.shape).masked_scatter(mask, found)[:, 1:]

        per_token = {
            name: unpack(value)
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor) and value.shape == (shape[0], shape[1] - 1)
        }
        return ModelOutput(per_token)
