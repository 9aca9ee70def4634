r"""KL divergence between the policy pi and a reference rho: estimators from sampled tokens, and exact.

With `d = log pi(a) - log rho(a)` at a token a that was *sampled from pi* (never from the reference):

| name | per token | expectation | gradient in expectation, in the loss |
|---|---|---|---|
| `k1` | `d` | KL(pi‖rho) | 0: useless in a loss, right in the reward |
| `k2` | `d^2 / 2` | close to KL(pi‖rho) near pi = rho | of KL(pi‖rho) |
| `k3` | `exp(-d) - 1 + d` | KL(pi‖rho) | of KL(rho‖pi) |
| `absolute` | `\|d\|` | at least KL(pi‖rho) | that of `sum_a \|pi - rho\|`, twice the total variation |
| `k1_weighted`, `k3_weighted` | `w k1`, `w k3` | KL(pi‖rho) | of KL(pi‖rho) |

`w = pi(a) / stopgrad(pi(a))` is 1 and carries the gradient of sampling; `importance_weighted_kl` has the general
form, for tokens sampled from an older policy. Gradients are of the token's own distribution given what came
before it.

In the reward and in the advantages (`kl_in_reward`) the estimate is a number without a gradient. Use `k1` there:
subtracting the coefficient times `k1` gives exactly the gradient of KL(pi‖rho). `k3` gives that of KL(pi‖rho) -
KL(rho‖pi), which cancels near pi = rho and pushes the policy away from the reference. `k2` and `absolute` do not give
the gradient of any KL. `check_reward_estimator` rejects these three.

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
"""`(step, n_steps, kl) -> coefficient`. The arguments are optimizer steps done, steps of the run, and the mean KL
per token in nats over the steps since the last call (None before the first)."""

KLFn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`(logps_BT, ref_logps_BT, mask_BT) -> kl_BT`: the signature of every estimator from sampled log-probabilities.

`logps_BT` are the policy's, freshly computed; `ref_logps_BT` are the reference's for the same tokens, without a
gradient; `mask_BT` is bool or 0/1. Masked places of the inputs may hold anything; in `kl_BT` (float32 or float64) they
hold 0.
"""

MAX_LOG_RATIO = 20.0
"""Bound on log-ratios before `exp`. Ratios of e^20 are beyond every clip range, and float32 overflows at e^88."""


def k1(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `log pi - log rho`: unbiased for KL(pi‖rho), of either sign, high variance.

    For the reward. In a loss its expected gradient is zero (`E_pi[grad log pi] = 0`): pure noise.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        ref_logps_BT: Shape (B, T), taken as constants.
        mask_BT: Shape (B, T), bool or 0/1.

    Returns:
        Shape (B, T); 0 at masked places. The same holds for every estimator here.
    """
    return zero_masked(logps_BT, mask_BT) - zero_masked(ref_logps_BT, mask_BT).detach()


def k2(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `(log pi - log rho)^2 / 2`: biased for KL(pi‖rho), never negative.

    For the loss, not for the reward: its expected gradient is KL(pi‖rho)'s, exactly. Arguments as in `k1`.
    """
    return 0.5 * k1(logps_BT, ref_logps_BT, mask_BT) ** 2


def k3(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `exp(log rho - log pi) - 1 - (log rho - log pi)`: unbiased for KL(pi‖rho), never negative, low variance.

    For the loss, as in GRPO (arXiv 2402.03300): its expected gradient is KL(rho‖pi)'s, the other direction. It is
    the best estimator for logging. Not for the reward. Arguments as in `k1`.
    """
    difference_BT = -k1(logps_BT, ref_logps_BT, mask_BT)
    return torch.exp(difference_BT.clamp(max=MAX_LOG_RATIO)) - 1.0 - difference_BT


def absolute(logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `|log pi - log rho|`: not an estimate but, in expectation, an upper bound of the KL; robust to outliers.

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
    # `k1` detaches its second argument, so the ratio's gradient flows only through `logps_BT`.
    weights_BT = torch.exp(k1(logps_BT, old_logps_BT, mask_BT).clamp(max=MAX_LOG_RATIO))
    return weights_BT * kl_fn(logps_BT, ref_logps_BT, mask_BT)


def create_weighted_kl(kl_fn: KLFn) -> KLFn:
    """Return the estimator times `pi / stopgrad(pi)`: the same value, with the gradient of sampling too.

    For the loss, if the tokens were sampled from the present policy: the expected gradient is then that of the
    estimator's expectation, which is KL(pi‖rho) for k1 and k3. The weight is part of the function; code that takes a
    `KLFn` does not add another.
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
    """Return `min(k, threshold)`: a token's divergence counts up to a threshold.

    In the loss, a token above the threshold has no gradient. In the reward (with `kl_fn=k1`), its penalty is the
    threshold. Biased downwards wherever it cuts.

    Args:
        threshold: In nats, above 0.
        kl_fn: The estimator.

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
    """Return `k [k > threshold]`: the divergence if it exceeds a threshold, else 0, in value and gradient.

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
    """Return `k [pi(a) >= min_probability]`: the divergence at tokens that are likely under the policy; elsewhere 0.

    For the loss, or with `kl_fn=k1` for the reward: unlikely tokens, where exploration happens, are not penalised. No
    gradient flows through the condition.

    Args:
        min_probability: Between 0 and 1.
        kl_fn: The estimator.

    Raises:
        ValueError: If `min_probability` is not between 0 and 1.
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
"""The estimators by name. Your own function works wherever one of these does."""


def exact_kl(
    logits_p_BTV: torch.Tensor, logits_q_BTV: torch.Tensor, mask_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `KL(p‖q) = sum_v p_v (log p_v - log q_v)` over the vocabulary, in the order of the arguments.

    For the loss, or for diagnosis. Gradients flow into both arguments: detach the reference's. In expectation, k2 and
    the weighted estimators have the gradient of `exact_kl(policy, reference)`, and k3 has
    the one of `exact_kl(reference, policy)`.

    Args:
        logits_p_BTV: Shape (..., V), unnormalised; -inf forbids a token.
        logits_q_BTV: Same shape. If q forbids a token that p allows, the divergence is infinite.
        mask_BT: Shape (...), bool or 0/1; None: every place counts. Masked places may hold anything.

    Returns:
        Shape (...), float32 or float64; 0 at masked places.
    """
    if mask_BT is not None:  # mask the inputs, not the result: a NaN in the graph would spoil the gradient
        logits_p_BTV, logits_q_BTV = (zero_masked(x, mask_BT[..., None]) for x in (logits_p_BTV, logits_q_BTV))
    logps_BTV = torch.log_softmax(as_float(logits_p_BTV), dim=-1)
    logqs_BTV = torch.log_softmax(as_float(logits_q_BTV), dim=-1)
    differences_BTV = zero_masked(logps_BTV - logqs_BTV, logps_BTV != -torch.inf)
    return (logps_BTV.exp() * differences_BTV).sum(-1)


def kl_per_sequence(kl_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return `sum_t m_t k_t`, the estimate for each sequence, shape (B,); 0 for a fully masked row."""
    return masked_sum(kl_BT, mask_BT, dim=1)


def mean_kl(kl_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the batch's mean per token, `sum m k / max(sum m, 1)`, a scalar, for logs and adaptive schedules."""
    return masked_mean(kl_BT, mask_BT)


def kl_in_reward(rewards: torch.Tensor, kl_BT: torch.Tensor, mask_BT: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """Return rewards minus the KL penalty, `r - beta k`, without gradient (PPO for language models, arXiv 1909.08593).

    With advantages in place of rewards, shape (B, T), it is the KL in the advantages.

    Use `k1`: a policy gradient of `E[r - beta k1]` maximises `E[r] - beta KL(pi‖rho)` exactly.

    Args:
        rewards: Shape (B,): subtract the sequence's penalty; or (B, T): subtract each token's penalty. A
            row without a score stays NaN.
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
    """Reject an estimator of this module that is the wrong penalty in the reward.

    `k1` is accepted, also inside `create_truncated_kl` and the others, and so is a user's own function.

    Raises:
        ValueError: If it is `k2`, `k3` or `absolute`, also if weighted or cut.
    """
    base: KLFn = kl_fn
    # The factories return partials and not closures, so that the estimator inside can be found here.
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
