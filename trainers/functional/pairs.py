"""Preferences between episodes: selectors of pairs, and losses on pairs.

A pair is (chosen, rejected): two rows of one group, where the first has the greater reward. Ties and episodes without
a score give no pair.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from llm_envs.trainers.functional.groups import check_rewards, group_index
from llm_envs.trainers.functional.masking import as_float, masked_mean, masked_sum, zero_masked

__all__ = [
    "PairLossFn",
    "PairSelector",
    "all_pairs",
    "best_worst_pairs",
    "create_margin_pairs",
    "dpo_loss",
    "hinge_loss",
    "ipo_loss",
    "pair_log_ratios",
    "pair_slopes",
    "random_pairs",
    "sequence_log_ratios",
    "similar_length_pairs",
]

PairSelector = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`(rewards_B, group_ids_B) -> pairs_P2`: int64 rows (chosen, rejected); P may be 0. Rewards may be NaN."""

PairLossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`(chosen_log_ratios_P, rejected_log_ratios_P) -> loss_P`, float32 or float64. A log-ratio is a sequence's
`log pi - log rho`, a sum over its tokens."""


def all_pairs(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return every pair of rows of one group with different rewards.

    Args:
        rewards_B: Shape (B,); NaN for a missing score.
        group_ids_B: Shape (B,), ints.

    Returns:
        int64 of shape (P, 2), ordered by chosen and then by rejected row.
    """
    return _pairs_above(rewards_B, group_ids_B, 0.0)


def create_margin_pairs(margin: float) -> PairSelector:
    """Return a selector of every pair of a group whose rewards differ by more than `margin`.

    Raises:
        ValueError: If the margin is below 0: ties make no pairs.
    """
    if not margin >= 0.0:
        raise ValueError(f"margin is {margin}; it must be at least 0.")

    def margin_pairs(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
        return _pairs_above(rewards_B, group_ids_B, margin)

    return margin_pairs


def best_worst_pairs(rewards_B: torch.Tensor, group_ids_B: torch.Tensor) -> torch.Tensor:
    """Return each group's best and worst row as a pair (the first row among equals), ordered by group id.

    A group whose rewards are all equal has no pair.
    """
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    pairs = []
    for rows in _scored_groups(scored_B, group_ids_B):
        best, worst = rows[values_B[rows].argmax()], rows[values_B[rows].argmin()]
        if values_B[best] > values_B[worst]:
            pairs.append(torch.stack([best, worst]))
    return torch.stack(pairs) if pairs else group_ids_B.new_zeros((0, 2), dtype=torch.long)


def random_pairs(
    rewards_B: torch.Tensor, group_ids_B: torch.Tensor, *, seed: int, n_per_group: int = 1, margin: float = 0.0
) -> torch.Tensor:
    """Return up to `n_per_group` different pairs of each group, drawn uniformly from those above the margin.

    Args:
        rewards_B: Shape (B,); NaN for a missing score.
        group_ids_B: Shape (B,), ints. A group's draw depends only on the seed, its id and its number of pairs.
        seed: Not negative. Use another seed for each batch with the same ids.
        n_per_group: At least 1.
        margin: The rewards differ by more than this; at least 0.

    Returns:
        int64 of shape (P, 2), ordered by group id.
    """
    if n_per_group < 1 or seed < 0:
        raise ValueError(f"{n_per_group=} must be at least 1 and {seed=} at least 0.")
    candidates_P2 = create_margin_pairs(margin)(rewards_B, group_ids_B)
    ids_P = group_ids_B[candidates_P2[:, 0]]
    drawn = []
    for group_id in torch.unique(ids_P).tolist():
        places = torch.nonzero(ids_P == group_id).flatten()
        # One generator per group, so a group's draw does not depend on which other groups are in the batch.
        generator = torch.Generator().manual_seed((seed * 1_000_003 + group_id) % 2**63)
        order = torch.randperm(len(places), generator=generator)[:n_per_group].to(places.device)
        drawn.append(candidates_P2[places[order]])
    return torch.cat(drawn) if drawn else candidates_P2


def similar_length_pairs(
    rewards_B: torch.Tensor,
    group_ids_B: torch.Tensor,
    lengths_B: torch.Tensor,
    *,
    max_ratio: float = 1.25,
    margin: float = 0.0,
) -> torch.Tensor:
    """Return each group's pair of greatest difference in reward among those of similar length, if any.

    DPO picks up length as a shortcut if the chosen episodes are systematically longer or shorter. Ties are broken by
    closeness in length, then by order.

    Args:
        rewards_B: Shape (B,); NaN for a missing score.
        group_ids_B: Shape (B,), ints.
        lengths_B: Shape (B,), sampled tokens.
        max_ratio: Neither row has more tokens than this many times the other's.
        margin: The rewards differ by more than this; at least 0.

    Returns:
        int64 of shape (P, 2), ordered by group id.
    """
    candidates_P2 = create_margin_pairs(margin)(rewards_B, group_ids_B)
    short_P, long_P = lengths_B[candidates_P2].aminmax(dim=1)
    best: dict[int, tuple[tuple[float, int], list[int]]] = {}
    for place in torch.nonzero(long_P <= max_ratio * short_P).flatten().tolist():
        one, other = candidates_P2[place].tolist()
        key = float(rewards_B[other] - rewards_B[one]), int(long_P[place] - short_P[place])
        group_id = int(group_ids_B[one])
        if group_id not in best or key < best[group_id][0]:
            best[group_id] = key, [one, other]
    return candidates_P2.new_tensor([best[group_id][1] for group_id in sorted(best)]).reshape(-1, 2)


def sequence_log_ratios(
    logps_BT: torch.Tensor, ref_logps_BT: torch.Tensor, mask_BT: torch.Tensor, *, average: bool = False
) -> torch.Tensor:
    """Return `sum_t m (log pi - log rho)` of each row, shape (B,), or its mean over the row's tokens.

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        ref_logps_BT: Shape (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.
        average: Whether to divide by the number of tokens, as IPO wants it.
    """
    differences_BT = zero_masked(logps_BT, mask_BT) - zero_masked(ref_logps_BT, mask_BT).detach()
    return (masked_mean if average else masked_sum)(differences_BT, mask_BT, 1)


def pair_log_ratios(
    logps_BT: torch.Tensor,
    ref_logps_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    pairs_P2: torch.Tensor,
    *,
    average: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `sequence_log_ratios` of the chosen and of the rejected rows, each of shape (P,).

    Args:
        logps_BT: Shape (B, T), with gradient; masked places may hold anything.
        ref_logps_BT: Shape (B, T), constants.
        mask_BT: Shape (B, T), bool or 0/1.
        pairs_P2: Shape (P, 2), from a `PairSelector`.
        average: Whether to divide by the number of tokens.
    """
    ratios_B = sequence_log_ratios(logps_BT, ref_logps_BT, mask_BT, average=average)
    return ratios_B[pairs_P2[:, 0]], ratios_B[pairs_P2[:, 1]]


def pair_slopes(
    log_ratios_B: torch.Tensor, pairs_P2: torch.Tensor, pair_loss_fn: PairLossFn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half of the losses of each row's pairs, and the derivative of the summed pair loss by its log-ratio.

    At the present weights, `sum_b slopes_b r_b(theta)` has the same gradient as `sum_p loss_p(theta)`. Each row's term
    needs only that row, so the rows of a pair may go through the model in different micro-batches.

    Args:
        log_ratios_B: Shape (B,), at the present weights, from `sequence_log_ratios`; no gradient is needed.
        pairs_P2: Shape (P, 2), from a `PairSelector`.
        pair_loss_fn: The loss.

    Returns:
        Two tensors of shape (B,), without gradient.
    """
    leaf_B = log_ratios_B.detach().clone().requires_grad_()
    losses_B = torch.zeros_like(leaf_B.detach())
    if not len(pairs_P2):
        return losses_B, losses_B.clone()
    # The caller may be inside no_grad. The small graph here has only log-ratios, not the model.
    with torch.enable_grad():
        losses_P = pair_loss_fn(leaf_B[pairs_P2[:, 0]], leaf_B[pairs_P2[:, 1]])
        (slopes_B,) = torch.autograd.grad(losses_P.sum(), leaf_B)
    # Each of a pair's two rows reports half of its loss, so the sum over rows counts every pair once.
    halves_P = 0.5 * losses_P.detach().to(losses_B.dtype)
    return losses_B.index_add(0, pairs_P2[:, 0], halves_P).index_add(0, pairs_P2[:, 1], halves_P), slopes_B


def dpo_loss(
    chosen_log_ratios_P: torch.Tensor,
    rejected_log_ratios_P: torch.Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Return `-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)` with `d = chosen - rejected`.

    DPO ("Direct Preference Optimization", arXiv 2305.18290); with e > 0 conservative DPO, for labels with errors.

    Args:
        chosen_log_ratios_P: Shape (P,), sums over tokens.
        rejected_log_ratios_P: Shape (P,).
        beta: Strength of the regularisation towards the reference.
        label_smoothing: The e, from 0 to below 1/2.

    Returns:
        Shape (P,), float32 or float64.
    """
    margins_P = beta * (as_float(chosen_log_ratios_P) - as_float(rejected_log_ratios_P))
    return -(1.0 - label_smoothing) * F.logsigmoid(margins_P) - label_smoothing * F.logsigmoid(-margins_P)


def ipo_loss(
    chosen_log_ratios_P: torch.Tensor, rejected_log_ratios_P: torch.Tensor, *, beta: float = 0.1
) -> torch.Tensor:
    """Return `(chosen - rejected - 1 / (2 beta))^2`: IPO ("A General Theoretical Paradigm ...", arXiv 2310.12036).

    Args:
        chosen_log_ratios_P: Shape (P,), means over tokens (`average=True`), as its authors and TRL do; an `Algorithm`
            with this loss gives it means.
        rejected_log_ratios_P: Shape (P,).
        beta: The paper's tau.

    Returns:
        Shape (P,), float32 or float64.
    """
    return (as_float(chosen_log_ratios_P) - as_float(rejected_log_ratios_P) - 1.0 / (2.0 * beta)) ** 2


def hinge_loss(
    chosen_log_ratios_P: torch.Tensor, rejected_log_ratios_P: torch.Tensor, *, beta: float = 0.1
) -> torch.Tensor:
    """Return `max(0, 1 - beta (chosen - rejected))`: the loss of SLiC-HF (arXiv 2305.10425) on log-ratios.

    Args:
        chosen_log_ratios_P: Shape (P,), sums over tokens.
        rejected_log_ratios_P: Shape (P,).
        beta: 1 divided by the margin.

    Returns:
        Shape (P,), float32 or float64.
    """
    return torch.relu(1.0 - beta * (as_float(chosen_log_ratios_P) - as_float(rejected_log_ratios_P)))


def _pairs_above(rewards_B: torch.Tensor, group_ids_B: torch.Tensor, margin: float) -> torch.Tensor:
    values_B, scored_B = check_rewards(rewards_B, group_ids_B)
    gaps_BB = values_B[:, None] - values_B
    together_BB = (group_ids_B[:, None] == group_ids_B) & scored_B[:, None] & scored_B
    return torch.nonzero(together_BB & (gaps_BB > margin))


def _scored_groups(scored_B: torch.Tensor, group_ids_B: torch.Tensor) -> list[torch.Tensor]:
    """Return the scored rows of each group with at least two of them, ordered by group id."""
    index_B, n_groups = group_index(group_ids_B)
    groups = [torch.nonzero((index_B == group) & scored_B).flatten() for group in range(n_groups)]
    return [rows for rows in groups if len(rows) > 1]
