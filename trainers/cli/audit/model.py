"""Audits what needs the weights: log-probabilities of sampled tokens, and the loss of the step that followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from llm_envs.policies.inference.sampling import has_filters
from llm_envs.policies.inference.scoring import filter_shifts, token_logps
from llm_envs.trainers.cli.audit.credit import Recomputed, per_token
from llm_envs.trainers.cli.audit.episodes import weight_version
from llm_envs.trainers.cli.audit.noise import Noise, spread
from llm_envs.trainers.cli.audit.parts import Audit
from llm_envs.trainers.cli.audit.stored import Started
from llm_envs.trainers.episodes.guard import noise_limit, rounding_of
from llm_envs.trainers.functional.algorithm import algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.losses import value_loss
from llm_envs.trainers.functional.masking import aggregate_loss
from llm_envs.trainers.loop.batch import score_batch, score_rows
from llm_envs.types import SamplingParams, Trajectory

__all__ = ["audit_logps", "audit_loss"]


def audit_logps(
    audit: Audit, start: Started, trajectories: Sequence[Trajectory], model: Any, tolerance: float | None
) -> Noise | None:
    """Compare the stored log-probabilities of sampled tokens with the sampling model's.

    Each token is compared, the mean of each episode, and the median difference of all tokens. The first two tolerances
    come from the differences themselves (`noise`).

    Args:
        audit: The result so far.
        start: Where the episodes are stored.
        trajectories: Episodes of this model's weights.
        model: The model.
        tolerance: Greatest difference of a token in nats; None: what the noise of these episodes explains.

    Returns:
        The noise; None without a sampled token.
    """
    compared = [(t, pieces) for t in trajectories if len((pieces := _compared(start, t, model))[0])]
    if not compared:
        return None
    run = start.run or {}
    rounding = rounding_of(run["dtype"], is_separate_engine=bool(run["settings"].get("use_vllm")))
    differences, logps = (np.concatenate([pieces[k] for _, pieces in compared]) for k in (1, 2))
    noise = Noise.of(differences, logps)
    sums = np.array([pieces[1].sum() / len(pieces[1]) ** 0.5 for _, pieces in compared])
    mean_limit = noise_limit(sums, rounding)
    part = audit.parts["log-probabilities"]
    compare = partial(audit.compare, "log-probabilities", file=start.episodes_file, unit="tokens", by=token_logps)
    for trajectory, (tokens, gaps, own) in compared:
        name = f"{trajectory.group_id}/{trajectory.member}"
        compare_own = partial(compare, episode=name, step=weight_version(trajectory))
        limits = noise.limits(own, rounding) if tolerance is None else np.full(len(own), tolerance)
        wrong = ~(np.abs(gaps) <= limits)
        place = int(np.argmax(wrong)) if wrong.any() else int(np.argmax(limits))
        shown: dict[str, Any] = {"token": int(tokens[place]), "tolerance": (0.0, float(limits[place]))}
        compare_own(float(own[place] + gaps[place]), float(own[place]), what="log-probability", **shown)
        part.n += len(tokens) - 1
        part.could_find("a token's log-probability", float(limits.max()), "nats")
        if tolerance is None and not wrong.any():
            limit = mean_limit / len(tokens) ** 0.5
            shown = {"what": "mean log-probability of an episode", "tolerance": (0.0, limit)}
            compare_own(float((own + gaps).mean()), float(own.mean()), **shown)
            part.n -= 1
            part.could_find("an episode's mean log-probability", limit, "nats")
    median = float(np.median(np.abs(differences)))
    if tolerance is None and median > rounding.median:
        what = "median difference of all log-probabilities"
        compare(0.0, median, what=what, step=weight_version(compared[0][0]))
    return noise


def _compared(start: Started, trajectory: Trajectory, model: Any) -> tuple[Any, Any, Any]:
    """Return an episode's sampled tokens: places in their rows, stored minus recomputed, recomputed; each (N,)."""
    run = start.run or {}
    params = SamplingParams(**run["sampling"])
    rows = [row for row in trajectory.rows if len(row) <= (run["max_model_len"] or len(row))]
    scored = token_logps(model, [row.ids for row in rows], temperature=params.temperature)
    tokens, gaps, own = [np.zeros(0, dtype=int)], [np.zeros(0)], [np.zeros(0)]
    for row, logps in zip(rows, scored, strict=True):
        places = np.flatnonzero(row.mask & ~np.isnan(row.logps))
        if has_filters(params):
            logps = logps.copy()
            logps[places] += filter_shifts(model, row.ids, places.tolist(), params)
        tokens.append(places)
        own.append(logps[places].astype(np.float64))
        gaps.append(row.logps[places] - own[-1])
    return np.concatenate(tokens), np.concatenate(gaps), np.concatenate(own)


@torch.no_grad()
def audit_loss(audit: Audit, start: Started, made: Recomputed, model: Any, reference: Any, noise: Noise | None) -> None:
    """Compare the stored loss of the first step on a generation with the sampling model's.

    Args:
        audit: The result so far.
        start: Where the loss is stored.
        made: The generation.
        model: The weights before the step.
        reference: The initial weights; None: they are not there.
        noise: The noise of the log-probabilities, which the loss may inherit.
    """
    run, step = start.run or {}, made.record["step"] + 1
    stored, algorithm = start.steps.get(step), made.algorithm
    why = "the loss of a step is not stored" if stored is None else _no_loss(run, made, reference)
    if stored is None or why is not None:
        audit.lack(str(why), "loss")
        return
    sampling = SamplingParams(temperature=run["sampling"]["temperature"])
    batch = replace(made.batch, sampling=sampling)
    logps_BT = _scored(model, batch)
    if algorithm.needs_entropies:
        _, entropies_BT = score_rows(model, _moved(batch, model.device), with_entropies=True)
        batch = replace(batch, entropies_BT=None if entropies_BT is None else entropies_BT.cpu())
    ref_BT = _scored(reference, batch) if algorithm.kl_coef else None
    max_length = run["settings"].get("max_completion_length")
    batch = replace(batch, logps_BT=logps_BT, old_logps_BT=logps_BT, ref_logps_BT=ref_BT, max_length=max_length)
    loss, _ = algorithm_loss(algorithm, batch)
    if made.estimates is not None:
        loss = _with_critic(run, made, loss, step)
    moved = spread(lambda noisy: algorithm_loss(algorithm, _with_noise(batch, noisy))[0], noise)
    # A loss may differ by the rounding of its sums and by as much as noise moves it.
    tolerance = 1e-3 * abs(float(loss)) + 1e-4 + moved
    compare = partial(audit.compare, "loss", file=start.record_file, unit="steps")
    compare(stored, float(loss), by=algorithm_loss, step=step, what="loss", tolerance=(0.0, tolerance))
    audit.parts["loss"].could_find("a loss", tolerance, "")
    if algorithm.has_paid_kl and ref_BT is not None:
        _audit_paid_kl(compare, made, logps_BT, ref_BT, noise)


def _with_noise(batch: Batch, noisy: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return a batch whose log-probabilities and entropies pass through a function."""
    assert batch.logps_BT is not None
    logps_BT = noisy(batch.logps_BT)
    old_BT = logps_BT if batch.old_logps_BT is batch.logps_BT else batch.old_logps_BT
    ref_BT = None if batch.ref_logps_BT is None else noisy(batch.ref_logps_BT)
    entropies_BT = batch.entropies_BT
    if entropies_BT is not None:  # they are as uncertain as log-probabilities of their size
        entropies_BT = -noisy(-entropies_BT)
    return replace(batch, logps_BT=logps_BT, old_logps_BT=old_BT, ref_logps_BT=ref_BT, entropies_BT=entropies_BT)


def _moved(batch: Batch, device: torch.device) -> Batch:
    tensors: dict[str, Any] = {name: tensor.to(device) for name, tensor in batch.tensors().items()}
    return replace(batch, **tensors)


def _scored(model: Any, batch: Batch) -> torch.Tensor:
    return score_batch(model, _moved(batch, model.device), micro_batch_size=8).cpu()


def _audit_paid_kl(
    compare: Callable[..., bool], made: Recomputed, logps_BT: torch.Tensor, ref_BT: torch.Tensor, noise: Noise | None
) -> None:
    """Compare the stored penalties of a KL that counts in the reward or the advantages with the models' KL."""

    def paid_BT(noisy: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        kl_BT = made.algorithm.kl_estimator(noisy(logps_BT), noisy(ref_BT), made.batch.mask_BT)
        return torch.as_tensor(made.record["kl_coef"] * kl_BT * made.batch.mask_BT)

    kl_BT, tolerance = paid_BT(lambda logps: logps), (1e-3, 1e-3 + spread(paid_BT, noise))
    for row, stored in enumerate(made.record["kl_penalties"][: len(kl_BT)]):
        own = kl_BT[row][made.batch.mask_BT[row].bool()].tolist()
        t = made.episodes.trajectories[row] if row < len(made.episodes.trajectories) else None
        name = None if t is None else f"{t.group_id}/{t.member}"
        where: dict[str, Any] = {"step": made.record["step"], "what": "penalties of the KL", "episode": name}
        compare(stored, own, by=mean_kl, tolerance=tolerance, **where)


def _no_loss(run: Mapping[str, Any], made: Recomputed, reference: Any) -> str | None:
    """Return why the loss of the first step on a generation cannot be recomputed; None if it can."""
    settings, algorithm = run["settings"], made.algorithm
    if run["processes"] > 1:
        return "the steps of several processes"
    steps = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
    if steps[0] != steps[1]:
        return "several steps a generation, whose rows are shuffled"
    if settings.get("use_vllm"):
        return "importance weights of a separate engine"
    if has_filters(SamplingParams(**run["sampling"])):
        return "log-probabilities of filtered sampling"
    if algorithm.kl_coef and reference is None:
        return "the reference of the KL is not stored: give --model the initial weights"
    if algorithm.normalisation == "constant" and len(made.record["rows"]) != len(made.batch):
        return "forked episodes with a constant divisor"
    is_own = not {"ref_model_fn", "reference_update_fn"} & set(run["unknown"])
    if not is_own and (algorithm.kl_coef or algorithm.pair_loss_fn is not None):
        return "a function made or moved the reference, and functions are not stored"
    return None


def _with_critic(run: Mapping[str, Any], made: Recomputed, loss: torch.Tensor, step: int) -> torch.Tensor:
    """Return PPO's loss: the policy's, and the critic's with the values from before the step."""
    settings, mask_BT = run["settings"], made.batch.mask_BT
    values_BT = per_token(made.record["values"], made.batch)
    assert made.estimates is not None and values_BT is not None
    of_values_BT = value_loss(values_BT, values_BT, made.estimates.returns_BT, mask_BT, clip=settings["value_clip"])
    policy = 0.0 if step - 1 < settings["value_warmup_steps"] else 1.0
    return policy * loss + settings["value_coef"] * aggregate_loss(of_values_BT, mask_BT, "token")
