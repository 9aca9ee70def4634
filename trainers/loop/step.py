"""One optimizer step of the functional loop: the loss of a batch, with gradients summed over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.trainers.forward.tree_rows import FORWARDS, Forward
from llm_envs.trainers.functional.algorithm import GRPO, Algorithm, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.importance import importance_weights
from llm_envs.trainers.functional.masking import masked_sum
from llm_envs.trainers.loop.batch import autocast, micro_batch_rows, score_rows
from llm_envs.trainers.loop.state import OptimizerStepFn, TrainingState, create_optimizer_step
from llm_envs.trainers.run.finite import count_skipped

__all__ = ["LoopSettings", "share_of_generation", "training_step"]


TOKEN_MEANS = ("ratio", "clip_fraction", "kl", "entropy", "sampling_gap")
"""Statistics of a step that are means over its tokens."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of the training loop. The algorithm sets the loss, and the collector the episodes."""

    n_epochs: int = 1
    """Passes over each generation."""
    n_minibatches: int = 1
    """Optimizer steps per epoch, each on a part of the groups."""
    micro_batch_size: int | None = None
    """Rows of one forward and backward pass; None: a full minibatch. It affects memory, not the gradient."""
    forward: Forward = "auto"
    """How rows are computed: "padded"; "prefix_tree", each token that rows share once (`forward.tree_rows`); "auto":
    prefix_tree on a CPU if it is exact for the model, else padded. It affects time and memory, not the gradient."""
    autocast_dtype: torch.dtype | None = None
    """The dtype of matrix products in training (`torch.bfloat16`); None: the weights' dtype."""
    old_logps: Literal["sampled", "recomputed"] = "sampled"
    """Denominators of the ratios, without sampling filters (`forward.filtered`). "sampled": the log-probabilities from
    sampling, for a policy that shares the trained model. "recomputed": the trained model's own before the first step,
    with importance weights for their difference from the sampler's, for a separate engine such as vLLM."""
    importance_fn: Callable[..., torch.Tensor] | None = importance_weights
    """`(logps_BT, sampled_logps_BT, mask_BT) -> weights` of recomputed log-probabilities, such as
    `partial(importance_weights, mode="turn_truncate", maximum=2.0)`; None: no weights."""
    mask_truncated: bool = False
    """Whether to leave episodes that a token limit cut out of the loss (not out of baselines). Episodes that reached a
    limit of turns or time are trained on."""
    trajectory_filter: TrajectoryFilter | None = None
    """Keeps the episodes to train on, such as `rollout.filters.create_void_turn_filter()`. The others are left out of
    the loss, not out of baselines. None: all."""
    max_length: float | None = None
    """Greatest completion length of an episode in tokens, all turns and observations: the constant of
    `normalisation="constant"` (`dr_grpo`), and where the punishment of `Algorithm.overlong` (`dapo`) is full. None: in
    `train`, `max_completion_tokens` of the collector's limits; without it, a turn's limit times `max_turns`, which an
    overlong punishment takes only for one turn."""
    logps_tolerance: float | None = 0.1
    """Largest mean gap in nats between sampled and recomputed log-probabilities at the first step. Above it training
    stops, because masks, templates or weights do not match. None: no guard."""
    max_function_s: float | None = 900.0
    """Seconds that one call of a function of yours (reward, filter, context, advantages) may take before the run ends.
    None: any time."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("n_epochs", "n_minibatches", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfigError(f"LoopSettings.{name} is {value!r}; it must be at least 1.")
        if self.forward not in FORWARDS:
            raise InvalidConfigError(f"LoopSettings.forward is {self.forward!r}; it must be one of {FORWARDS}.")
        if self.old_logps not in ("sampled", "recomputed"):
            raise InvalidConfigError(f"old_logps is {self.old_logps!r}; it must be 'sampled' or 'recomputed'.")
        if self.old_logps == "sampled" and self.importance_fn is not importance_weights:
            raise InvalidConfigError(
                f"importance_fn={self.importance_fn!r} has no effect with old_logps='sampled', where ratios are "
                "against the sampler's log-probabilities: set old_logps='recomputed', or leave it out."
            )
        try:
            if self.importance_fn is not None:
                self.importance_fn(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
        except ValueError as error:
            raise InvalidConfigError(f"importance_fn={self.importance_fn!r}: {error}") from error


def training_step(
    state: TrainingState,
    batch: Batch,
    *,
    algorithm: Algorithm = GRPO,
    optimizer_step_fn: OptimizerStepFn | None = None,
    settings: LoopSettings | None = None,
) -> tuple[TrainingState, dict[str, float]]:
    """Take one optimizer step on a batch, with gradients summed over micro-batches.

    Args:
        state: The state before the step; model and optimizer are changed in place.
        batch: The rows with advantages and the algorithm's other inputs (`with_advantages`, `ref_logps_BT`). Its
            `denominator`, if given, replaces its own.
        algorithm: The algorithm with the loss.
        optimizer_step_fn: Takes the step on the gradients; None: `create_optimizer_step()`.
        settings: Only `micro_batch_size`, `forward`, `autocast_dtype` and `max_length` are used.

    Returns:
        The state after the step; and `loss`, `ratio`, `ratio_max`, `sampling_gap` (mean difference from the sampled
        log-probabilities in nats), `clip_fraction`, `kl`, `entropy`, `pairs` and `pair_accuracy` if the algorithm has
        them, and the step function's metrics. A batch without trained tokens changes nothing, and `skipped` is 1.

    Raises:
        InvalidConfigError: If the batch lacks what the algorithm needs.
        ModelError: If too many steps in a row had a gradient that is not finite (`run.finite`).
    """
    settings = settings or LoopSettings()
    if not batch.n_tokens:
        return state, {"skipped": 1.0}
    if batch.old_logps_BT is None:
        _check_sampled_logps(batch)
        batch = replace(batch, old_logps_BT=batch.sampled_logps_BT)
    # transformers recomputes activations (gradient checkpointing) only in training mode.
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    # Divisor, group sizes and pairs come from the full batch, so that micro-batches do not change the gradient.
    denominator = batch.denominator
    if denominator is None:
        denominator = _denominator(algorithm, batch, settings.max_length)
    pairs_P2 = None
    if algorithm.pair_selector is not None:
        pairs_P2 = algorithm.pair_selector(batch.need("rewards_B"), batch.need("group_ids_B"))
    n_sampled = int((batch.mask_BT.bool() & ~batch.need("sampled_logps_BT").isnan()).sum())
    sums: dict[str, float] = {}
    ratio_max = 0.0
    for rows in micro_batch_rows(batch, settings.micro_batch_size, whole_groups=pairs_P2 is not None):
        part = batch.select(rows)
        # A micro-batch's mean over tokens, times its share of the tokens, is its part of the batch's mean.
        share = part.n_tokens / batch.n_tokens
        own = _share(algorithm, rows, pairs_P2, share)
        with autocast(part.mask_BT.device, settings.autocast_dtype):
            logps_BT, entropies_BT = score_rows(
                state.model, part, with_entropies=algorithm.needs_entropies, forward=settings.forward
            )
        part = replace(part, logps_BT=logps_BT, entropies_BT=entropies_BT, denominator=denominator)
        loss, stats = algorithm_loss(own, part)
        loss.backward()
        own_sums, own_max = _additive(stats, share, logps_BT, part, n_sampled)
        for name, value in own_sums.items():
            sums[name] = sums.get(name, 0.0) + value
        ratio_max = max(ratio_max, own_max)
    if "pair_hits" in sums:
        sums["pair_accuracy"] = sums.pop("pair_hits") / max(sums["pairs"], 1.0)
    sums["ratio_max"] = ratio_max
    sums |= (optimizer_step_fn or create_optimizer_step())(state)
    state.optimizer.zero_grad(set_to_none=True)
    if not sums.get("skipped"):
        return replace(state, step=state.step + 1, n_skipped=0), sums
    if math.isfinite(norm := sums.get("grad_norm", 0.0)):  # a step function may skip for other reasons
        return state, sums
    return replace(state, n_skipped=count_skipped(state.n_skipped, state.step + 1, norm)), sums


def _check_sampled_logps(batch: Batch) -> None:
    """Raise if ratios cannot be against the log-probabilities from sampling."""
    if batch.sampling is not None and has_filters(batch.sampling):
        raise InvalidConfigError(
            f"the batch was sampled with filters ({batch.sampling}), and its log-probabilities are from the "
            "filtered distribution: call `forward.filtered.without_filters` first, or ratios would not be 1."
        )
    if bool(batch.need("sampled_logps_BT")[batch.mask_BT].isnan().any()):
        raise InvalidConfigError(
            "tokens of the batch were not sampled from a model (an oracle's?), so there is nothing that ratios could "
            "be against: set old_logps='recomputed', or learn from them by supervised fine-tuning."
        )


def _denominator(algorithm: Algorithm, batch: Batch, max_length: float | None) -> float:
    """Return the divisor of the sum over all micro-batches. For "constant", the rows of an episode count once."""
    if algorithm.normalisation == "token":
        return float(batch.n_tokens)
    if algorithm.normalisation == "prompt":
        return float(len(batch.need("group_ids_B").unique()))
    if algorithm.normalisation == "sequence":
        return float(len(batch))
    constant = algorithm.constant if algorithm.constant is not None else max_length
    if constant is None:
        raise InvalidConfigError(f"{algorithm.name!r} divides by a constant: set LoopSettings.max_length.")
    return batch.n_episodes * constant


def share_of_generation(
    algorithm: Algorithm, whole: Batch, rows: torch.Tensor, n_parts: int
) -> tuple[Algorithm, Batch]:
    """Return the algorithm and a minibatch, normalised as in `EnvGRPOTrainer`: by the generation's counts.

    Args:
        algorithm: The algorithm.
        whole: The full generation.
        rows: The rows of the minibatch.
        n_parts: Minibatches of the generation. Each divides by this share of the generation's tokens and pairs.
    """
    part = whole.select(rows)
    if n_parts == 1:
        return algorithm, part
    pairs_P2 = None
    if algorithm.pair_selector is not None:
        pairs_P2 = algorithm.pair_selector(whole.need("rewards_B"), whole.need("group_ids_B"))
    share = part.n_tokens / max(whole.n_tokens, 1)
    if algorithm.normalisation == "token":
        part = replace(part, denominator=whole.n_tokens / n_parts)
    return _share(algorithm, rows, pairs_P2, share, n_parts), part


def _share(
    algorithm: Algorithm, rows: torch.Tensor, pairs_P2: torch.Tensor | None, share: float, scale: float = 1.0
) -> Algorithm:
    """Return the algorithm with terms scaled so that the means of parts add up to `scale` times the batch's."""
    share *= scale
    algorithm = replace(algorithm, entropy_coef=algorithm.entropy_coef * share)
    if pairs_P2 is None or algorithm.pair_loss_fn is None:
        return algorithm
    places = torch.full((int(rows.max()) + 1,), -1, dtype=torch.long)  # each row's place in this micro-batch
    places[rows] = torch.arange(len(rows))
    listed = pairs_P2.cpu()
    own_P2 = listed[torch.isin(listed, rows).all(1)]
    here_P2 = places[own_P2].to(pairs_P2.device)
    # `algorithm_loss` takes the mean over the pairs here, so weight it by their share of all pairs.
    pair_loss_fn, part = algorithm.pair_loss_fn, scale * len(own_P2) / max(len(listed), 1)
    return replace(
        algorithm,
        # The pairs were selected on the full batch. Here they only get the micro-batch's row numbers.
        pair_selector=lambda rewards_B, group_ids_B: here_P2,
        pair_loss_fn=lambda chosen_P, rejected_P: part * pair_loss_fn(chosen_P, rejected_P),
    )


def _additive(
    stats: Mapping[str, torch.Tensor], share: float, logps_BT: torch.Tensor, part: Batch, n_sampled: int
) -> tuple[dict[str, float], float]:
    """Return a micro-batch's statistics, scaled so that their sums are the batch's, and its largest ratio."""
    sampled_BT = part.need("sampled_logps_BT")
    gap = masked_sum((logps_BT.detach() - sampled_BT).abs(), part.mask_BT & ~sampled_BT.isnan())
    means = [name for name in ("ratio", "clip_fraction", "kl", "entropy") if name in stats]
    others = [name for name in ("loss", "pairs", "pair_accuracy") if name in stats]
    names = [*means, *others, "ratio_max"]
    parts = [*(stats[name].detach().to(gap) for name in names), gap]
    *values, gap_sum = torch.stack(parts).tolist()  # one wait for a card
    found = dict(zip(names, values, strict=True))
    out = {name: found[name] * share for name in means} | {"loss": found["loss"]}
    if "pairs" in found:
        out |= {"pairs": found["pairs"], "pair_hits": found["pair_accuracy"] * found["pairs"]}
    out["sampling_gap"] = gap_sum / max(n_sampled, 1)  # an oracle's tokens were not sampled
    return out, found["ratio_max"]
