r"""KL divergence between the policy pi and a reference rho: estimators from sampled tokens, and exact.

With `d = log pi(a) - log rho(a)` at a token a that was *sampled from pi* (never one that the reference wrote):

| name | per token | expectation | gradient in expectation, in the loss |
|---|---|---|---|
| `k1` | `d` | KL(pi‖rho) | 0: of no use in a loss; fits in the reward |
| `k2` | `d^2 / 2` | close to KL(pi‖rho) near pi = rho | that of KL(pi‖rho) |
| `k3` | `exp(-d) - 1 + d` | KL(pi‖rho) | that of KL(rho‖pi) |
| `absolute` | `\|d\|` | at least KL(pi‖rho) | that of `sum_a \|pi - rho\|`, twice the total variation |
| `k1_weighted`, `k3_weighted` | `w k1`, `w k3` | KL(pi‖rho) | that of KL(pi‖rho) |

`w = pi(a) / stopgrad(pi(a))` is 1 and carries the gradient of sampling; `importance_weighted_kl` has the general
form, for tokens sampled from an older policy. Gradients are those of the token's own distribution given what came
before it.

In the reward (`kl_in_reward`) the estimate is a number without a gradient. There `k1` is the right one: minus the
coefficient times `k1` gives the gradient of KL(pi‖rho) exactly. `k3` gives that of KL(pi‖rho) - KL(rho‖pi), which
cancels near pi = rho and pushes the policy away from the reference; `k2` and `absolute` give the gradient of no KL.
`check_reward_estimator` refuses these three.

Papers: J. Schulman, "Approximating KL Divergence" (2020), for the names; "On the Design of KL-Regularized Policy
Gradient Algorithms for LLM Reasoning" (arXiv 2505.17508), for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from llm_envs.trainers.functional.masking import as_float, masked_mean, masked_sum, zero_masked

__all__ = [
    "KL_ESTIMATORS",
    "MAX_LOG_RATIO",
    "KLFn",
    "KLSchedule",
    "absolute",
    "check_reward_estimator",
    "create_confident_kl",
    "create_thresholded_kl",
    "create_truncated_kl",
    "create_weighted_kl",
    "exact_kl",
    "importance_weighted_kl",
    "k1",
    "k1_weighted",
    "k2",
    "k3",
    "k3_weighted",
    "kl_in_reward",
    "kl_per_sequence",
    "mean_kl",
]

KLSchedule = Callable[[int, int, float | None], float]
"""`(step, n_steps, kl) -> coefficient`: optimizer steps done, those of the whole run, and the mean KL per token in nats
of the steps since the last call (None before the first)."""

KLFn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(logps_BT, ref_logps_BT, mask_BT) -> kl_BT`: the one form of every estimate from sampled log-probabilities.

`logps_BT` are the policy's, freshly computed; `ref_logps_BT` the reference's of the same tokens, through which no
gradient flows; `mask_BT` is bool or 0/1. Masked places may hold anything in; in `kl_BT` (float32 or float64) they
hold 0.
"""

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before `exp`: beyond e^20 no clipping range reaches, and float32 overflows at e^88."""


def k1(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `log pi - log rho`: unbiased for KL(pi‖rho), of either sign, high variance.

    For the reward. In a loss its expected gradient is zero (`E_pi[grad log pi] = 0`): pure noise.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        ref_logps_BT: Shape (B, T), taken as constants.
        mask_BT: Shape (B, T), bool or 0/1.

    Returns:
        Shape (B, T); 0 at masked places. So for every estimator here.
    """
    return zero_masked(logps_BT, mask_BT) - zero_masked(ref_logps_BT, mask_BT).detach()


def k2(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `(log pi - log rho)^2 / 2`: biased for KL(pi‖rho), never negative.

    For the loss, not for the reward: its expected gradient is that of KL(pi‖rho), exactly. Arguments as in `k1`.
    """
    return 0.5 * k1(logps_BT, ref_logps_BT, mask_BT) ** 2


def k3(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `exp(log rho - log pi) - 1 - (log rho - log pi)`: unbiased for KL(pi‖rho), never negative, low variance.

    For the loss, as in GRPO (arXiv 2402.03300): its expected gradient is that of KL(rho‖pi), the other direction. For
    logging it is the best of the estimators. Not for the reward. Arguments as in `k1`.
    """
    difference_BT = -k1(logps_BT, ref_logps_BT, mask_BT)
    return torch.exp(difference_BT.clamp(max=MAX_LOG_RATIO)) - 1.0 - difference_BT


def absolute(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `|log pi - log rho|`: no estimate of a KL, an upper bound of one in expectation, robust to outliers.

    For the loss, not for the reward: its expected gradient is that of `sum_a |pi(a) - rho(a)|`, twice the total
    variation. Arguments as in `k1`.
    """
    return k1(logps_BT, ref_logps_BT, mask_BT).abs()


def importance_weighted_kl(
    kl_fn: KLFn,
    logps_BT: torch.Tensor,
    ref_logps_BT: torch.Tensor,
    old_logps_BT: torch.Tensor,
    mask_BT: torch.Tensor,
) -> torch.Tensor:
    """Return `(pi / pi_old) k(pi, rho)` for tokens sampled from pi_old, with the gradient of the ratio.

    For the loss. With k1 or k3 it is unbiased for KL(pi‖rho) under pi_old, and so is its gradient ("DeepSeek-V3.2",
    arXiv 2512.02556; TRL's `use_bias_correction_kl`).

    Args:
        kl_fn: The estimator, in the form of `KLFn`.
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        ref_logps_BT: Shape (B, T), constants.
        old_logps_BT: Shape (B, T), constants: log-probabilities at sampling.
        mask_BT: Shape (B, T), bool or 0/1.
    """
    weights_BT = torch.exp(k1(logps_BT, old_logps_BT, mask_BT).clamp(max=MAX_LOG_RATIO))
    return weights_BT * kl_fn(logps_BT, ref_logps_BT, mask_BT)


def create_weighted_kl(kl_fn: KLFn) -> KLFn:
    """Return the estimator times `pi / stopgrad(pi)`: the same value, with the gradient of sampling too.

    For the loss, where the tokens were sampled from the policy as it is now: the expected gradient becomes that of
    the estimator's expectation, so that of KL(pi‖rho) for k1 and k3. The weight is part of the function: nothing that
    takes a `KLFn` adds another.
    """
    return partial(_weighted_kl, kl_fn=kl_fn)


def _weighted_kl(
    logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, kl_fn: KLFn
) -> torch.Tensor:
    return importance_weighted_kl(kl_fn, logps_BT, ref_logps_BT, logps_BT.detach(), mask_BT)


k1_weighted: KLFn = create_weighted_kl(k1)
"""`k1` with the gradient of sampling: for the loss, gradient of KL(pi‖rho), as of `k1` in the reward."""
k3_weighted: KLFn = create_weighted_kl(k3)
"""`k3` with the gradient of sampling: for the loss, gradient of KL(pi‖rho)."""


def create_truncated_kl(threshold: float, kl_fn: KLFn = k3) -> KLFn:
    """Return `min(k, threshold)`: one token's divergence counts up to a threshold.

    In the loss a token above the threshold has no gradient. In the reward, where it needs `kl_fn=k1`, such a token
    costs the threshold and no more. Biased downwards wherever it cuts.

    Args:
        threshold: In nats, above 0.
        kl_fn: The estimator that is cut.

    Raises:
        ValueError: If the threshold is not above 0.
    """
    _check_threshold(threshold)
    return partial(_truncated_kl, threshold=threshold, kl_fn=kl_fn)


def _truncated_kl(
    logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, threshold: float, kl_fn: KLFn
) -> torch.Tensor:
    return kl_fn(logps_BT, ref_logps_BT, mask_BT).clamp(max=threshold)


def create_thresholded_kl(threshold: float, kl_fn: KLFn = k3) -> KLFn:
    """Return `k [k > threshold]`: only where the divergence exceeds a threshold; elsewhere 0, in value and gradient.

    For the loss, or with `kl_fn=k1` for the reward: the policy is free within the threshold.

    Args:
        threshold: In nats, above 0.
        kl_fn: The estimator.

    Raises:
        ValueError: If the threshold is not above 0.
    """
    _check_threshold(threshold)
    return partial(_thresholded_kl, threshold=threshold, kl_fn=kl_fn)


def _thresholded_kl(
    logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, threshold: float, kl_fn: KLFn
) -> torch.Tensor:
    kl_BT = kl_fn(logps_BT, ref_logps_BT, mask_BT)
    return zero_masked(kl_BT, kl_BT.detach() > threshold)


def create_confident_kl(min_probability: float, kl_fn: KLFn = k3) -> KLFn:
    """Return `k [pi(a) >= min_probability]`: only tokens of which the policy is confident; elsewhere 0.

    For the loss, or with `kl_fn=k1` for the reward: unlikely tokens, where exploration happens, cost nothing. No
    gradient flows through the condition.

    Args:
        min_probability: Between 0 and 1.
        kl_fn: The estimator.

    Raises:
        ValueError: If the probability is not one.
    """
    if not 0.0 <= min_probability <= 1.0:
        raise ValueError(f"min_probability is {min_probability}; it must lie between 0 and 1.")
    return partial(_confident_kl, min_probability=min_probability, kl_fn=kl_fn)


def _confident_kl(
    logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, min_probability: float, kl_fn: KLFn
) -> torch.Tensor:
    confident_BT = zero_masked(logps_BT, mask_BT).detach().exp() >= min_probability
    return kl_fn(logps_BT, ref_logps_BT, mask_BT.bool() & confident_BT)


KL_ESTIMATORS: Mapping[str, KLFn] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3, "absolute": absolute, "k1_weighted": k1_weighted, "k3_weighted": k3_weighted}
)
"""The estimators by name; a function of one's own goes wherever one of these does."""


def exact_kl(
    logits_p_BTV: torch.Tensor, logits_q_BTV: torch.Tensor, mask_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `KL(p‖q) = sum_v p_v (log p_v - log q_v)` over the vocabulary, in the order of the arguments.

    For the loss, or to look at. Gradients flow into both arguments: detach the reference's. `exact_kl(policy,
    reference)` is what k2 and the weighted estimators follow, `exact_kl(reference, policy)` what k3 follows.

    Args:
        logits_p_BTV: Shape (..., V), unnormalised; -inf forbids a token.
        logits_q_BTV: Same shape. A token that q forbids and p does not makes the divergence infinite.
        mask_BT: Shape (...), bool or 0/1; None: every place counts. Masked places may hold anything.

    Returns:
        Shape (...), float32 or float64; 0 at masked places.
    """
    if mask_BT is not None:  # before anything is computed: no NaN enters a gradient
        logits_p_BTV, logits_q_BTV = (zero_masked(x, mask_BT[..., None]) for x in (logits_p_BTV, logits_q_BTV))
    logps_BTV = torch.log_softmax(as_float(logits_p_BTV), dim=-1)
    logqs_BTV = torch.log_softmax(as_float(logits_q_BTV), dim=-1)
    differences_BTV = zero_masked(logps_BTV - logqs_BTV, logps_BTV != -torch.inf)
    return (logps_BTV.exp() * differences_BTV).sum(-1)


def kl_per_sequence(kl_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `sum_t m_t k_t`, the estimate for each whole sequence, shape (B,); 0 for a row that is masked whole."""
    return masked_sum(kl_BT, mask_BT, dim=1)


def mean_kl(kl_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the batch's mean per token, `sum m k / max(sum m, 1)`, a scalar: what is logged and what adapts."""
    return masked_mean(kl_BT, mask_BT)


def kl_in_reward(rewards: torch.Tensor, kl_BT: torch.Tensor, mask_BT: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """Return rewards less the KL penalty, `r - beta k`, without gradient (PPO for language models, arXiv 1909.08593).

    Use `k1`: maximising `E[r - beta k1]` by a policy gradient is exactly minimising `beta KL(pi‖rho)` beside the
    reward.

    Args:
        rewards: Shape (B,): the penalty is that of the whole sequence; or (B, T): each token pays its own. A row
            without a score keeps its NaN.
        kl_BT: Shape (B, T); masked places may hold anything.
        mask_BT: Shape (B, T), bool or 0/1.
        kl_coef: The coefficient beta.

    Returns:
        Shape of `rewards`, float32 or float64.
    """
    penalty = kl_per_sequence(kl_BT, mask_BT) if rewards.ndim == 1 else zero_masked(kl_BT, mask_BT)
    if penalty.shape != rewards.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} fit neither (B,) nor (B, T) of a KL {tuple(kl_BT.shape)}.")
    return (as_float(rewards) - kl_coef * penalty).detach()


def check_reward_estimator(kl_fn: KLFn) -> None:
    """Refuse an estimator of this module that is the wrong penalty in the reward.

    `k1` passes, also inside `create_truncated_kl` and the others; so does a function of the user's own.

    Raises:
        ValueError: If it is `k2`, `k3` or `absolute`, or one of them weighted or cut.
    """
    base: KLFn = kl_fn
    while isinstance(base, partial) and "kl_fn" in base.keywords:
        base = base.keywords["kl_fn"]
    if base in (k2, k3, absolute):
        raise ValueError(
            f"kl_fn is made of {base.__name__}, which in the reward does not keep the policy near the reference: its "
            "penalty has another gradient than KL(pi‖rho). Leave kl_fn out for k1, take kl_in='loss', or give a "
            "function of your own."
        )


def _check_threshold(threshold: float) -> None:
    if not threshold > 0.0:
        raise ValueError(f"threshold is {threshold}; it must be above 0 nats.")
