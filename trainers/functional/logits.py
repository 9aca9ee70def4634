"""From logits to log-probabilities of given tokens, and entropies."""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.masking import as_float, zero_masked

__all__ = ["entropies_from_logits", "logps_from_logits"]


def logps_from_logits(logits_BTV: torch.Tensor, ids_BT: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Return `log softmax(z / temperature)` at the given tokens.

    Args:
        logits_BTV: Shape (B, T, V): those that *predict* token t, so a causal model's output moved by one.
        ids_BT: Shape (B, T), ints from 0 to V - 1.
        temperature: Of sampling; log-probabilities of another than the sampler's are those of another policy.

    Returns:
        Shape (B, T), float32 or float64.
    """
    scaled_BTV = as_float(logits_BTV) / temperature
    chosen_BT = scaled_BTV.gather(-1, ids_BT.long()[..., None]).squeeze(-1)
    return chosen_BT - scaled_BTV.logsumexp(-1)


def entropies_from_logits(logits_BTV: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Return `H = -sum_v p_v log p_v` of each token's distribution, in nats, shape (B, T), float32 or float64.

    Args:
        logits_BTV: Shape (B, T, V), unnormalised; -inf forbids a token.
        temperature: Divides the logits.
    """
    logps_BTV = torch.log_softmax(as_float(logits_BTV) / temperature, dim=-1)
    return -(logps_BTV.exp() * zero_masked(logps_BTV, logps_BTV != -torch.inf)).sum(-1)
