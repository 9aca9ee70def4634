"""Tries whether a model keeps packed rows apart: rows of one sequence whose positions begin again at 0."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from llm_envs.errors import ModelError
from llm_envs.policies.inference.positions import accepts_positions

__all__ = ["check_packing"]

_MAX_MIXED = 0.2
"""Largest share of another row's effect that may be rounding: in bfloat16 that is below .01; a model that does not look
at positions has 1."""


def check_packing(model: Any, causal: Any, device: torch.device, *, setting: str) -> None:
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
