"""Rows of unequal length without their padding: several in one row of the forward pass.

The attention of most models of transformers keeps apart rows whose positions begin again at 0; `check_packing` refuses
the others. With flash attention all rows of a micro-batch are one row, so the cost grows with their tokens. Other
attention computes full squares, so rows fill up to the length of the longest, which costs no more than padding.
Log-probabilities and gradients equal those of padded rows, up to rounding.
"""

from __future__ import annotations

from collections.abc import MutableSet, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers.utils import ModelOutput

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import accepts_positions, position_ids

__all__ = ["PackedRows", "check_packing", "pack"]

_IGNORED = -100
_MAX_MIXED = 0.2
"""Largest share of another row's effect that may be rounding: in bfloat16 that is below .01; a model that does not look
at positions has 1."""


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


def check_packing(model: Any, causal: Any, device: torch.device, *, setting: str = "packing=True") -> None:
    """Refuse a model that mixes packed rows: compare a short row behind another one with the same row by itself.

    Args:
        model: A causal language model, perhaps wrapped for several processes, which all call this.
        causal: The language model inside, without adapter or wrapper.
        device: The device of the model's inputs.
        setting: The user's, for the message.

    Raises:
        ModelError: If it takes no positions, if what it predicts depends on the row before, or if its positions do not
            begin again.
    """
    name, config = type(causal).__name__, causal.config.get_text_config()
    if not accepts_positions(type(causal)):
        raise ModelError(f"{setting}: {name} takes no position_ids, which tell packed rows apart. Leave it out.")
    ids = torch.randint(config.vocab_size, (1, 20), generator=torch.Generator().manual_seed(0)).to(device)
    positions = torch.cat([torch.arange(12), torch.arange(8)])[None].to(device)
    if isinstance(model, DistributedDataParallel):
        model = causal  # a pass through the wrapper would wait for the gradients of all weights
    was_training = model.training
    model.eval()  # without dropout
    try:
        packed, slope = _with_slope(model, causal, ids, positions)
        with torch.no_grad():
            # A mask of ones overrides the positions.
            mixed = _logits(model, ids, positions, attention_mask=torch.ones_like(ids))
            alone = _logits(model, ids[:, 12:], positions[:, 12:], attention_mask=torch.ones_like(ids[:, 12:]))
    finally:
        model.train(was_training)
    gap, effect = ((logits - alone).abs().mean(-1).median() for logits in (packed, mixed))
    # Logits do not suffice: rounding may hide what a recurrent layer carries over. The right slope is exactly 0.
    if slope != 0 or not gap <= _MAX_MIXED * effect:
        raise ModelError(
            f"{setting}: {name} ({config._attn_implementation} attention) mixes packed rows. Behind another row, the "
            f"logits of a short row move by {gap:.2g} (if it reads all of that row, by {effect:.2g}), and their slope "
            f"in that row's embeddings is {slope:.2g} instead of 0. Leave it out."
        )


def _logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Return the logits of the last 8 tokens, shape (8, V), float32."""
    logits: torch.Tensor = model(input_ids=ids, position_ids=positions, use_cache=False, **kwargs).logits
    return logits[0, -8:].float()


def _with_slope(
    model: Any, causal: Any, ids: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `_logits`, and the largest slope of their log-probabilities in the embeddings of the tokens before."""
    read: list[torch.Tensor] = []

    def begin_here(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        read.append(output.detach().requires_grad_())
        return read[-1].clone()  # a model may write into it

    with torch.enable_grad(), causal.get_input_embeddings().register_forward_hook(begin_here):
        logits = _logits(model, ids, positions)
        slopes = torch.autograd.grad(logits.log_softmax(-1).gather(-1, ids[0, -8:, None]).sum(), read)
    return logits.detach(), slopes[0][0, :-8].abs().max()


class PackedRows:
    """A model for TRL's `_get_per_token_logps_and_entropies` to call.

    Args:
        model: A causal language model, perhaps wrapped for several processes.
        causal: The language model inside, without adapter or wrapper.
        checked: The models that `check_packing` has passed; the first pass checks `causal` and adds it.
        in_pairs: Whether each row shares a row with another one, however long that gets, so that the guard of the first
            batch compares packed rows.
    """

    def __init__(self, model: Any, causal: Any, checked: MutableSet[Any], *, in_pairs: bool = False) -> None:
        self.model, self.causal, self.checked, self.in_pairs = model, causal, checked, in_pairs

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
            ModelError: For a router's loss, or if the model mixes packed rows.
        """
        if kwargs.get("output_router_logits"):
            raise ModelError("packing=True: the router's loss of a mixture of experts counts padded rows.")
        if self.causal not in self.checked:
            check_packing(self.model, self.causal, input_ids.device)
            self.checked.add(self.causal)
        mask, positions_BL = attention_mask.bool(), position_ids(attention_mask)
        lengths = mask.sum(1).tolist()
        is_flash = "flash" in (self.causal.config.get_text_config()._attn_implementation or "")
        packed = pack(lengths, sum(lengths) if is_flash else sum(sorted(lengths)[-1 - self.in_pairs :]))
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
            unpacked = value[place[0], (place[1] - 1).clamp(min=0)].masked_fill(targets[place] == _IGNORED, 0)
            return value.new_zeros(mask.shape).masked_scatter(mask, unpacked)[:, 1:]

        per_token = {
            name: unpack(value)
            for name, value in outputs.items()
            if isinstance(value, torch.Tensor) and value.shape == (shape[0], shape[1] - 1)
        }
        return ModelOutput(per_token)
