"""An algorithm as a value: `Algorithm` has advantages, loss and KL, and `algorithm_loss` combines them.

`ALGORITHMS` has the published algorithms by name. `dataclasses.replace(GRPO, kl_fn=k2, kl_coef=0.04)` makes a variant;
a field may also hold your own function. Every driver (`EnvGRPOTrainer`, the plain loop, the quick start, the command
line) takes the same value and computes the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch

from llm_envs.trainers.functional.advantages import (
    AdvantageFn,
    batch_leave_one_out_baseline,
    group_centred,
    group_normalised,
    ignore_reward,
    leave_one_out,
    reinforce,
)
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import KL_ESTIMATORS, KLFn, KLSchedule, check_reward_estimator, k1, k2, k3, mean_kl
from llm_envs.trainers.functional.losses import (
    LossFn,
    RatioLevel,
    cispo,
    clip_settings,
    clipped_surrogate,
    clipped_tokens,
    entropy_bonus,
    entropy_floor,
    log_ratios,
    policy_gradient,
)
from llm_envs.trainers.functional.masking import Normalisation, aggregate_loss, masked_mean, zero_masked
from llm_envs.trainers.functional.pairs import (
    PairLossFn,
    PairSelector,
    best_worst_pairs,
    dpo_loss,
    ipo_loss,
    pair_log_ratios,
    sequence_log_ratios,
)
from llm_envs.trainers.functional.state_advantages import state_groups
from llm_envs.trainers.functional.turn_advantages import per_turn

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "DISTILL",
    "DISTILL_LOSS",
    "DR_GRPO",
    "GIGPO",
    "GRPO",
    "GSPO",
    "PAIRWISE",
    "PER_TURN",
    "PPO",
    "REINFORCE",
    "RLOO",
    "Algorithm",
    "AlgorithmSchedule",
    "algorithm_loss",
    "create_algorithm_schedule",
]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """All choices that decide the gradient of a batch of episodes.

    Raises:
        ValueError: If the fields contradict one another.
    """

    name: str
    """Name in logs and checkpoints."""
    advantage_fn: AdvantageFn | None = group_normalised
    """`(rewards_B, group_ids_B, turn_rewards_BK) -> advantages`, shape (B,) or (B, K); None: a critic's advantages."""
    by_state: bool | Callable[[Any], Sequence[Hashable]] = False
    """Whether `advantage_fn` also takes `states_BK`, the states that turns began in (`state_advantages`).

    True: they are named by the environment's `state_key`, for which each episode's actions are played again
    (`rollout.state_keys`). A function `trajectory -> a key for each turn` names them in another way."""
    loss_fn: LossFn | None = clipped_surrogate
    """`(logps_BT, old_logps_BT, advantages, mask_BT) -> loss_BT`; None: no loss on tokens."""
    normalisation: Normalisation = "token"
    """The divisor of the sum over tokens, for loss and KL (`masking.aggregate_loss`)."""
    constant: float | None = None
    """The constant of `normalisation="constant"`; None: the greatest completion length, `Batch.max_length`."""
    kl_fn: KLFn | None = None
    """`(logps_BT, ref_logps_BT, mask_BT) -> kl_BT`, against the reference, or its name in `KL_ESTIMATORS`. None: `k3`
    in the loss, `k1` elsewhere, where `k2`, `k3` and `absolute` are refused."""
    kl_coef: float | KLSchedule = 0.0
    """Coefficient of the KL; 0: no reference is needed. A schedule `(step, n_steps, kl) -> coefficient`
    (`trainers.schedules`) works in the trainers."""
    kl_in: Literal["loss", "reward", "advantage"] = "loss"
    """Where the KL counts. "reward": it is subtracted from each turn's reward before advantages. "advantage": each
    token's KL is subtracted from its own advantage; no baseline or other token is involved."""
    kl_ratio: RatioLevel | None = None
    """With `kl_in="loss"`: the tokens that share the ratio pi / pi_old by which the KL is multiplied (`log_ratios`), so
    that its gradient is KL(pi||rho)'s for tokens of older weights too; None: no ratio."""
    entropy_coef: float = 0.0
    """Coefficient of the mean entropy per token, which is subtracted from the loss."""
    top_entropy_quantile: float = 1.0
    """Share of a micro-batch's tokens, with the highest entropy, whose loss counts ("Beyond the 80/20 Rule", arXiv
    2506.01939). The KL, the entropy bonus and the divisor are of all tokens."""
    pair_selector: PairSelector | None = None
    """`(rewards_B, group_ids_B) -> pairs_P2`; together with `pair_loss_fn` it adds a loss on pairs."""
    pair_loss_fn: PairLossFn | None = None
    """`(chosen_log_ratios_P, rejected_log_ratios_P) -> loss_P`."""
    pair_average: bool | None = None
    """Whether log-ratios of pairs are means over tokens instead of sums; None: they are for `ipo_loss` only."""
    dynamic_sampling: bool = False
    """Whether groups whose rewards are all equal are replaced by others (`rollout.filters.create_spread_filter`)."""
    branches: float = 0.0
    """Share of each group's episodes that continue from turns of the others (`rollout.tree`); 0: all start fresh. At
    least two do."""
    branch_at: Literal["every_turn", "least_sure", "disagreement"] | Callable[..., Any] = "every_turn"
    """Where branches begin: a function of `rollout.tree` by name, or `(roots, n) -> n pairs (root, turn)`."""
    overlong: float = 0.0
    """Share of the greatest completion length, at its end, over which an episode's reward falls by up to 1 (DAPO's soft
    overlong punishment, `rewards.create_overlong_penalty`); 0: no punishment."""

    def __post_init__(self) -> None:
        """Check what can be checked without a batch. A KL may be named."""
        if isinstance(self.kl_fn, str):
            if self.kl_fn not in KL_ESTIMATORS:
                known = ", ".join(KL_ESTIMATORS)
                raise ValueError(f"kl_fn={self.kl_fn!r} is not known; give a function or one of {known}.")
            object.__setattr__(self, "kl_fn", KL_ESTIMATORS[self.kl_fn])
        choices = {
            "normalisation": get_args(Normalisation),
            "kl_in": ("loss", "reward", "advantage"),
            "branch_at": ("every_turn", "least_sure", "disagreement"),
            "kl_ratio": (None, *get_args(RatioLevel)),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known and not (name == "branch_at" and callable(value)):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, known))}.")
        for name in ("advantage_fn", "loss_fn", "kl_fn", "pair_selector", "pair_loss_fn"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise ValueError(f"{name} is {value!r}; it must be a function, such as cispo or k2.")
        if (self.pair_selector is None) != (self.pair_loss_fn is None):
            raise ValueError("pair_selector and pair_loss_fn go together: give both or neither.")
        if self.loss_fn is None and self.pair_loss_fn is None:
            raise ValueError("an algorithm needs a loss_fn or a pair_loss_fn.")
        if self.by_state and self.advantage_fn is None:
            raise ValueError("by_state needs an advantage_fn, which takes the states.")
        if self.constant is not None and not self.constant > 0:
            raise ValueError(f"constant is {self.constant}; it must be above 0, or None.")
        if not 0.0 <= self.branches < 1.0:
            raise ValueError(
                f"branches is {self.branches}; it must be from 0 to below 1, as some episodes start fresh."
            )
        if self.branches and self.pair_loss_fn is not None:
            raise ValueError(
                f"branches is {self.branches}, and the algorithm learns from pairs: a branch and its root would be a "
                "pair, and the branch has only the tokens from the branching point on. Set branches=0."
            )
        if not 0.0 <= self.overlong <= 1.0:
            raise ValueError(f"overlong is {self.overlong}; it must be from 0 to 1.")
        if self.overlong and self.needs_teacher:
            raise ValueError(
                f"overlong is {self.overlong}, which lowers the reward, and ignore_reward reads none: set overlong=0."
            )
        if not 0.0 < self.top_entropy_quantile <= 1.0:
            raise ValueError(f"top_entropy_quantile is {self.top_entropy_quantile}; it must be above 0, and at most 1.")
        if not math.isfinite(self.entropy_coef):
            raise ValueError(f"entropy_coef is {self.entropy_coef}; it must be a finite number.")
        if not callable(self.kl_coef) and not 0.0 <= self.kl_coef < float("inf"):
            raise ValueError(f"kl_coef is {self.kl_coef}; it must be a number of at least 0, or a schedule.")
        if self.kl_in != "loss":
            check_reward_estimator(self.kl_estimator)
        if self.kl_fn is not None and not self.kl_coef:
            raise ValueError("kl_fn is given, but kl_coef=0, so it would have no effect: set kl_coef above 0.")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Raise for a field that was changed and has no effect."""
        changed_kl_in = self.kl_in != "loss"
        unused = (
            ("constant", self.constant is not None and self.normalisation != "constant", "normalisation='constant'"),
            ("pair_average", self.pair_average and self.pair_loss_fn is None, "a pair_loss_fn"),
            ("branch_at", self.branch_at != "every_turn" and not self.branches, "branches above 0"),
            ("kl_in", changed_kl_in and not self.kl_coef, "a kl_coef above 0"),
            ("kl_ratio", self.kl_ratio and (not self.kl_coef or changed_kl_in), "a kl_coef above 0 and kl_in='loss'"),
            ("top_entropy_quantile", self.top_entropy_quantile < 1 and self.loss_fn is None, "a loss_fn"),
            ("kl_in", self.kl_in == "advantage" and self.loss_fn is None, "a loss_fn, which reads the advantages"),
            ("kl_in", self.kl_in == "reward" and self.needs_teacher, "an advantage_fn that reads the reward"),
        )
        for name, has_no_effect, condition in unused:
            if has_no_effect:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, which has no effect without {condition}: leave it out."
                )

    def at(self, kl_coef: float) -> Algorithm:
        """Return the algorithm with the present coefficient of a schedule; without a KL where that is 0."""
        if not kl_coef:
            return replace(self, kl_coef=0.0, kl_fn=None, kl_in="loss", kl_ratio=None)
        return replace(self, kl_coef=kl_coef)

    @property
    def averages_pairs(self) -> bool:
        """Whether log-ratios of pairs are means over tokens: `pair_average`, or as the loss is defined."""
        if self.pair_average is not None:
            return self.pair_average
        return getattr(self.pair_loss_fn, "func", self.pair_loss_fn) is ipo_loss

    @property
    def kl_estimator(self) -> KLFn:
        """`kl_fn`, or the default estimator for `kl_in`."""
        return self.kl_fn or (k3 if self.kl_in == "loss" else k1)

    @property
    def has_paid_kl(self) -> bool:
        """Whether a KL counts as a number before the loss: in the reward or in the advantages."""
        return self.kl_in != "loss" and bool(self.kl_coef)

    @property
    def needs_entropies(self) -> bool:
        """Whether the loss reads the entropies of the policy's distributions."""
        return bool(self.entropy_coef) or self.top_entropy_quantile < 1.0

    @property
    def needs_teacher(self) -> bool:
        """Whether the KL is all that is learned from, so that the reference must be another model than the policy."""
        return self.advantage_fn is ignore_reward


def algorithm_loss(algorithm: Algorithm, batch: Batch) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Return the loss of a batch, `N(w l + kl_coef k) + mean pair loss - entropy_coef H`, and statistics.

    N is the algorithm's normalisation, w the importance weights, l the loss per token, k the KL per token (only with
    `kl_in="loss"`). Terms that the algorithm does not have are left out. Gradients flow only through `logps_BT` and
    `entropies_BT`. A batch without an unmasked token gives 0, with a gradient of 0.

    Args:
        algorithm: The algorithm.
        batch: The rows, with all inputs that the algorithm needs.

    Returns:
        A scalar; and detached scalars: `loss`, `ratio` and `ratio_max` (mean and maximum of pi / pi_old per token),
        `clip_fraction` (share of tokens that the clip cuts off, if the loss is `clipped_surrogate` or `cispo`), and if
        the loss has the term: `kl`, `entropy`, `pairs` (their number) and `pair_accuracy` (share of pairs whose chosen
        row has the greater log-ratio). With `pair_slopes_B` the last two are missing.

    Raises:
        ValueError: If the batch lacks what the algorithm needs.
    """
    logps_BT, mask_BT = _needed(batch.logps_BT, "logps_BT", algorithm), batch.mask_BT
    old_logps_BT = logps_BT.detach() if batch.old_logps_BT is None else batch.old_logps_BT
    # Times 0 keeps the graph, so backward works, with gradients of 0, even if no token is trained.
    loss_BT = 0.0 * zero_masked(logps_BT, mask_BT)
    loss = loss_BT.sum()
    ratios_BT = zero_masked(log_ratios(logps_BT.detach(), old_logps_BT, mask_BT).exp(), mask_BT)
    stats = {"ratio": masked_mean(ratios_BT, mask_BT), "ratio_max": ratios_BT.max()}
    if algorithm.loss_fn is not None:
        advantages = _needed(batch.advantages, "advantages", algorithm)
        if (clip := clip_settings(algorithm.loss_fn)) is not None:
            below_BT, above_BT = clipped_tokens(logps_BT, old_logps_BT, advantages, mask_BT, **clip)
            stats["clip_fraction"] = masked_mean(below_BT | above_BT, mask_BT)
        loss_BT = loss_BT + zero_masked(algorithm.loss_fn(logps_BT, old_logps_BT, advantages, mask_BT), mask_BT)
        if batch.weights is not None:
            loss_BT = loss_BT * zero_masked(batch.weights.expand(mask_BT.shape), mask_BT).detach()
        if algorithm.top_entropy_quantile < 1.0:
            entropies_BT = _needed(batch.entropies_BT, "entropies_BT", algorithm).detach()
            floor = batch.entropy_floor
            if floor is None:
                floor = entropy_floor(entropies_BT[mask_BT.bool()], algorithm.top_entropy_quantile)
            loss_BT = loss_BT * (entropies_BT >= floor)
    if algorithm.kl_coef and algorithm.kl_in == "loss":
        if callable(algorithm.kl_coef):
            raise ValueError(f"the kl_coef of {algorithm.name!r} is a schedule: replace it by the coefficient of now.")
        ref_logps_BT = _needed(batch.ref_logps_BT, "ref_logps_BT", algorithm)
        kl_BT = algorithm.kl_estimator(logps_BT, ref_logps_BT.detach(), mask_BT)
        if algorithm.kl_ratio is not None:
            kl_BT = kl_BT * log_ratios(logps_BT, old_logps_BT, mask_BT, level=algorithm.kl_ratio).exp()
        loss_BT = loss_BT + algorithm.kl_coef * zero_masked(kl_BT, mask_BT)
        stats["kl"] = mean_kl(kl_BT, mask_BT).detach()
    constant = algorithm.constant if algorithm.constant is not None else batch.max_length
    # Without such a term, do not call it: "constant" would demand a constant that pairs do not use.
    if algorithm.loss_fn is not None or "kl" in stats:
        loss = loss + aggregate_loss(
            loss_BT,
            mask_BT,
            algorithm.normalisation,
            constant=constant,
            denominator=batch.denominator,
            group_ids_B=batch.group_ids_B,
            group_tokens_B=batch.group_tokens_B,
        )
    if algorithm.pair_loss_fn is not None:
        reference_BT = old_logps_BT if batch.ref_logps_BT is None else batch.ref_logps_BT
        pair_loss, pair_stats = _pair_term(algorithm, batch, logps_BT, reference_BT)
        loss, stats = loss + pair_loss, stats | pair_stats
    if algorithm.entropy_coef:
        entropy = entropy_bonus(_needed(batch.entropies_BT, "entropies_BT", algorithm), mask_BT)
        loss, stats["entropy"] = loss - algorithm.entropy_coef * entropy, entropy.detach()
    return loss, stats | {"loss": loss.detach()}


def _pair_term(
    algorithm: Algorithm, batch: Batch, logps_BT: torch.Tensor, reference_BT: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss of the batch's pairs, 0 without pairs, and its statistics."""
    assert algorithm.pair_selector is not None and algorithm.pair_loss_fn is not None
    if batch.pair_slopes_B is not None:
        ratios_B = sequence_log_ratios(logps_BT, reference_BT, batch.mask_BT, average=algorithm.averages_pairs)
        losses_B = _needed(batch.pair_losses_B, "pair_losses_B", algorithm)
        # The difference is 0 in value, so the loss is exact, and its gradient is slope times the row's own gradient.
        return (losses_B + batch.pair_slopes_B * (ratios_B - ratios_B.detach())).sum(), {}
    rewards_B = _needed(batch.rewards_B, "rewards_B", algorithm)
    pairs_P2 = algorithm.pair_selector(rewards_B, _needed(batch.group_ids_B, "group_ids_B", algorithm))
    chosen_P, rejected_P = pair_log_ratios(
        logps_BT, reference_BT, batch.mask_BT, pairs_P2, average=algorithm.averages_pairs
    )
    losses_P = algorithm.pair_loss_fn(chosen_P, rejected_P)
    n_pairs = losses_P.new_tensor(float(len(pairs_P2)))
    right_P = (chosen_P > rejected_P).to(n_pairs.dtype)
    n_at_least_1 = n_pairs.clamp(min=1)
    return losses_P.sum() / n_at_least_1, {"pairs": n_pairs, "pair_accuracy": right_P.sum() / n_at_least_1}


def _needed(tensor: torch.Tensor | None, name: str, algorithm: Algorithm) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"the algorithm {algorithm.name!r} needs Batch.{name}.")
    return tensor


GRPO = Algorithm("grpo", normalisation="sequence")
"""Group-normalised advantages, clipped ratio of tokens, mean over sequences ("DeepSeekMath", arXiv 2402.03300)."""
DR_GRPO = Algorithm("dr_grpo", advantage_fn=group_centred, normalisation="constant")
"""GRPO without its biases by length and standard deviation ("... R1-Zero-Like Training", arXiv 2503.20783)."""
DAPO = Algorithm(
    "dapo",
    loss_fn=partial(clipped_surrogate, clip_low=0.2, clip_high=0.28),
    normalisation="token",
    dynamic_sampling=True,
    overlong=0.2,
)
"""Decoupled clip, dynamic sampling, loss over tokens, soft overlong punishment ("DAPO", arXiv 2503.14476)."""
RLOO = Algorithm("rloo", advantage_fn=leave_one_out, loss_fn=policy_gradient, normalisation="constant", constant=1.0)
"""REINFORCE on sequences, with the mean of the group's others as baseline ("Back to Basics", arXiv 2402.14740);
on-policy."""
REINFORCE = Algorithm(
    "reinforce",
    advantage_fn=partial(reinforce, baseline_fn=batch_leave_one_out_baseline),
    loss_fn=policy_gradient,
    normalisation="constant",
    constant=1.0,
)
"""The policy gradient of sequences, with the mean of the batch's others as baseline (R. Williams, 1992);
on-policy."""
GSPO = Algorithm(
    "gspo",
    loss_fn=partial(clipped_surrogate, clip_low=3e-4, clip_high=4e-4, level="geometric_token"),
    normalisation="sequence",
)
"""One ratio per sequence, with the paper's narrow clip ("Group Sequence Policy Optimization", arXiv 2507.18071)."""
CISPO = Algorithm("cispo", loss_fn=partial(cispo, max_ratio=5.0), normalisation="token")
"""Clipped importance weights, no clipped updates ("MiniMax-M1", arXiv 2506.13585)."""
PAIRWISE = Algorithm(
    "pairwise",
    advantage_fn=group_centred,
    loss_fn=None,
    pair_selector=best_worst_pairs,
    pair_loss_fn=partial(dpo_loss, beta=0.1),
)
"""DPO's loss on the best and the worst rollout of each group. Some call this DAPO, but DAPO is another algorithm."""
PER_TURN = Algorithm("per_turn", advantage_fn=partial(per_turn, scale=True), normalisation="token")
"""Each turn's return-to-go, with the mean of the group's others at that turn as baseline (arXiv 2505.11821); loss over
tokens."""
GIGPO = Algorithm("gigpo", advantage_fn=partial(state_groups, scale=True), by_state=True)
"""The episode's advantage, and each turn's among the turns of its group that began in the same state ("Group-in-Group
Policy Optimization", arXiv 2505.10978); loss over tokens."""
DISTILL = Algorithm("distill", advantage_fn=ignore_reward, normalisation="token", kl_coef=1.0, kl_in="advantage")
"""Reverse KL to a teacher, the reference: each sampled token earns `log teacher - log pi`, with no baseline and no
discount, and the task's reward does not count ("On-Policy Distillation of Language Models", arXiv 2306.13649)."""
DISTILL_LOSS = Algorithm("distill_loss", advantage_fn=ignore_reward, normalisation="token", kl_fn=k2, kl_coef=1.0)
"""`DISTILL` by a loss, `k2`, which is recomputed at each step: no clip applies. Equal on-policy."""
PPO = Algorithm("ppo", advantage_fn=None, normalisation="token")
"""The policy's part of PPO (arXiv 1707.06347); the critic of `EnvPPOTrainer` computes the advantages."""

_LISTED = (GRPO, DR_GRPO, DAPO, RLOO, REINFORCE, GSPO, CISPO, PAIRWISE, PER_TURN, GIGPO, DISTILL, DISTILL_LOSS)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({algorithm.name: algorithm for algorithm in _LISTED})
"""The algorithms without a critic, by name."""

AlgorithmSchedule = Callable[[int], Algorithm]
"""`(iteration) -> algorithm`, called before each generation."""


def create_algorithm_schedule(starts: Mapping[int, Algorithm]) -> AlgorithmSchedule:
    """Return a schedule that switches at given iterations.

    Args:
        starts: First iteration of each algorithm; one of them must be 0.

    Raises:
        ValueError: If no algorithm starts at iteration 0.
    """
    ordered = sorted(starts.items(), key=lambda item: item[0])
    if not ordered or ordered[0][0] != 0:
        raise ValueError(f"iterations {[start for start, _ in ordered]}: an algorithm must hold from iteration 0.")

    def schedule(iteration: int) -> Algorithm:
        return next(algorithm for start, algorithm in reversed(ordered) if start <= iteration)

    return schedule
