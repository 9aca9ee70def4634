"""From logits to log-probabilities of given tokens, and entropies."""

from __future__ import annotations

import torch

from llm_envs.trainers.functional.masking import as_float, zero_masked

__all__ = ["entropies_from_logits", "keep_tokens", "logps_from_logits"]


def logps_from_logits(logits_BTV: torch.Tensor, ids_BT: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Return `log softmax(z / temperature)` at the given tokens.

    Args:
        logits_BTV: Shape (B, T, V): the logits that *predict* token t, that is a causal model's output shifted by one.
        ids_BT: Shape (B, T), ints from 0 to V - 1.
        temperature: The sampler's temperature. Any other gives the log-probabilities of another policy.

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
    # A forbidden token has probability 0 and log-probability -inf, whose product is NaN: 0 log 0 must be 0 here.
    return -(logps_BTV.exp() * zero_masked(logps_BTV, logps_BTV != -torch.inf)).sum(-1)


def keep_tokens(
    logits_BTV: torch.Tensor, places_N2: torch.Tensor, ids_M: torch.Tensor, stops_N: torch.Tensor
) -> torch.Tensor:
    """Return logits over the tokens that the sampling filters kept; the logits of all other tokens are -inf.

    The "Keep Sampling Mask" of DeepSeek-V3.2 (arXiv 2512.02556): the trained policy chooses among the same tokens as
    the sampling policy, so importance ratios compare distributions over the same tokens.

    Args:
        logits_BTV: Shape (B, T, V), with gradient.
        places_N2: Shape (N, 2), ints: row and column of each token that was sampled under a mask.
        ids_M: Shape (M,), ints: the kept tokens, concatenated over the N places.
        stops_N: Shape (N,), ints: the end of each place's kept tokens in `ids_M`.

    Returns:
        Shape (B, T, V); places that are not listed are unchanged.
    """
    counts_N = torch.diff(stops_N, prepend=stops_N.new_zeros(1))
    dropped_NV = torch.ones(len(stops_N), logits_BTV.shape[-1], dtype=torch.bool, device=logits_BTV.device)
    dropped_NV[torch.arange(len(stops_N), device=stops_N.device).repeat_interleave(counts_N), ids_M] = False
    dropped_BTV = torch.zeros(logits_BTV.shape, dtype=torch.bool, device=logits_BTV.device)
    dropped_BTV[places_N2[:, 0], places_N2[:, 1]] = dropped_NV
    return logits_BTV.masked_fill(dropped_BTV, -torch.inf)
