"""Audits what needs the weights: log-probabilities of sampled tokens, and the loss of the step that followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm_envs.policies.inference.loading import load_model
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.policies.inference.scoring import filter_shifts, token_logps
from llm_envs.sources.mixture import derive_seed
from llm_envs.trainers.cli.audit.credit import Recomputed, per_token
from llm_envs.trainers.cli.audit.episodes import weight_version
from llm_envs.trainers.cli.audit.parts import Audit
from llm_envs.trainers.cli.audit.stored import Started
from llm_envs.trainers.dpo.rounds import share_of_round
from llm_envs.trainers.functional.algorithm import algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import mean_kl
from llm_envs.trainers.functional.losses import value_loss
from llm_envs.trainers.functional.masking import aggregate_loss
from llm_envs.trainers.functional.pairs import dpo_loss
from llm_envs.trainers.loop.batch import score_batch, score_rows
from llm_envs.types import SamplingParams, Trajectory

__all__ = ["audit_logps", "audit_loss", "audit_pair_loss", "load_weights"]

_HALF = ("bfloat16", "float16")


def load_weights(folder: Path, base: str | None) -> Any:
    """Return a stored model: whole weights, or an adapter on the model that the training named.

    Args:
        folder: A checkpoint, or a model.
        base: The model that the training named.

    Raises:
        ModelError: If it cannot be loaded.
    """
    if not (folder / "adapter_config.json").is_file():
        return load_model(folder)
    return load_model(base or "", adapter=folder)


def audit_logps(
    audit: Audit, start: Started, trajectories: Sequence[Trajectory], model: Any, tolerance: float | None
) -> None:
    """Compare the stored log-probabilities of sampled tokens with those of the model that sampled them.

    Args:
        audit: The result so far.
        start: Where the episodes are stored.
        trajectories: Episodes of this model's weights.
        model: The model.
        tolerance: Greatest difference of a token in nats; None: 0.02, or 0.5 for weights in half precision or vLLM.
    """
    run = start.run or {}
    params = SamplingParams(**run["sampling"])
    is_rough = run["dtype"] in _HALF or bool(run["settings"].get("use_vllm"))
    most = tolerance if tolerance is not None else 0.5 if is_rough else 0.02
    for trajectory in trajectories:
        rows = [row for row in trajectory.rows if len(row) <= (run["max_model_len"] or len(row))]
        scored = token_logps(model, [row.ids for row in rows], temperature=params.temperature)
        for row, logps in zip(rows, scored, strict=True):
            places = np.flatnonzero(row.mask & ~np.isnan(row.logps))
            if has_filters(params):
                logps = logps.copy()
                logps[places] += filter_shifts(model, row.ids, places.tolist(), params)
            gaps = np.abs(row.logps[places] - logps[places])
            token = int(places[gaps > most][0]) if (gaps > most).any() else None
            shown = (0.0, 0.0) if token is None else (float(row.logps[token]), float(logps[token]))
            where: dict[str, Any] = {
                "file": start.episodes_file,
                "episode": f"{trajectory.group_id}/{trajectory.member}",
            }
            version = weight_version(trajectory)
            where |= {"what": "log-probability", "step": version, "token": token, "unit": "tokens"}
            audit.compare("log-probabilities", *shown, by=token_logps, tolerance=(0.0, most), **where)
            audit.parts["log-probabilities"].n += len(places) - 1


@torch.no_grad()
def audit_loss(audit: Audit, start: Started, made: Recomputed, model: Any, reference: Any) -> None:
    """Compare the stored loss of the first step on a generation with that of the model that sampled it.

    Args:
        audit: The result so far.
        start: Where the loss is stored.
        made: The generation.
        model: The weights before the step.
        reference: The initial weights; None: they are not there.
    """
    run, step = start.run or {}, made.record["step"] + 1
    stored, algorithm, part = start.steps.get(step), made.algorithm, audit.parts["loss"]
    why = _no_loss(run, made, reference) if stored is not None else "the loss of a step is not stored"
    if why is not None:
        part.lack(why)
        return
    sampling = SamplingParams(temperature=run["sampling"]["temperature"])
    batch = replace(made.batch, sampling=sampling)
    logps_BT = _scored(model, batch)
    if algorithm.entropy_coef:
        _, entropies_BT = score_rows(model, _moved(batch, model.device), with_entropies=True)
        batch = replace(batch, entropies_BT=None if entropies_BT is None else entropies_BT.cpu())
    old_BT = batch.sampled_logps_BT if run["trainer"] == "loop" and run["old_logps"] == "sampled" else logps_BT
    ref_BT = None
    if algorithm.kl_coef or (algorithm.pair_loss_fn is not None and run["trainer"] == "loop"):
        ref_BT = _scored(reference, batch) if algorithm.kl_coef else logps_BT
    n_rows = len(made.record["rows"]) if algorithm.normalisation == "constant" and run["trainer"] != "loop" else None
    max_length = made.record.get("max_length") or run["settings"].get("max_completion_length")
    batch = replace(batch, logps_BT=logps_BT, old_logps_BT=old_BT, ref_logps_BT=ref_BT, max_length=max_length)
    if n_rows is not None and n_rows != len(batch):
        part.lack("forked episodes with a constant divisor")
        return
    loss, _ = algorithm_loss(algorithm, batch)
    if made.estimates is not None:
        loss = _with_critic(run, made, loss, step)
    tolerance = (2e-2, 2e-2) if run["dtype"] in _HALF else (1e-3, 1e-4)
    where: dict[str, Any] = {"file": start.record_file, "step": step, "unit": "steps"}
    audit.compare("loss", stored, float(loss), by=algorithm_loss, what="loss", tolerance=tolerance, **where)
    _audit_paid_kl(audit, start, made, logps_BT, ref_BT, tolerance)


def _moved(batch: Batch, device: torch.device) -> Batch:
    tensors: dict[str, Any] = {name: tensor.to(device) for name, tensor in batch.tensors().items()}
    return replace(batch, **tensors)


def _scored(model: Any, batch: Batch) -> torch.Tensor:
    return score_batch(model, _moved(batch, model.device), micro_batch_size=8).cpu()


def _audit_paid_kl(
    audit: Audit,
    start: Started,
    made: Recomputed,
    logps_BT: torch.Tensor,
    ref_BT: torch.Tensor | None,
    tolerance: tuple[float, float],
) -> None:
    """Compare the stored penalties of a KL that counts in the reward or the advantages with the models' KL."""
    if not made.algorithm.has_paid_kl or ref_BT is None:
        return
    kl_BT = made.record["kl_coef"] * made.algorithm.kl_estimator(logps_BT, ref_BT, made.batch.mask_BT)
    for row, stored in enumerate(made.record["kl_penalties"][: len(kl_BT)]):
        own = kl_BT[row][made.batch.mask_BT[row].bool()].tolist()
        t = made.credit.trajectories[row] if row < len(made.credit.trajectories) else None
        where: dict[str, Any] = {"file": start.record_file, "step": made.record["step"], "unit": "steps"}
        where |= {"what": "penalties of the KL", "episode": None if t is None else f"{t.group_id}/{t.member}"}
        audit.compare("loss", stored, own, by=mean_kl, tolerance=(tolerance[0], 1e-3), **where)


def _no_loss(run: Mapping[str, Any], made: Recomputed, reference: Any) -> str | None:
    """Return why the loss of the first step on a generation cannot be recomputed; None if it can."""
    settings, algorithm = run["settings"], made.algorithm
    if run["processes"] > 1:
        return "the steps of several processes"
    steps = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps")
    if run.get("steps_per_iteration", 1) != 1 or steps[0] != steps[1]:
        return "several steps a generation, whose rows are shuffled"
    if settings.get("loss_type") == "bnpo" and steps[1] != 1 and made.record["algorithm"] is None:
        return "bnpo divides by the tokens of shuffled micro-batches"
    if settings.get("use_vllm") or run.get("old_logps") == "recomputed":
        return "importance weights of a separate engine"
    if settings.get("off_policy_mask_threshold") is not None or settings.get("top_entropy_quantile", 1.0) != 1.0:
        return "TRL's masks by entropy or by distance from the sampling policy"
    if made.record["algorithm"] is None and settings.get("entropy_coef"):
        return "TRL's entropy bonus"
    if has_filters(SamplingParams(**run["sampling"])):
        return "log-probabilities of filtered sampling"
    if algorithm.kl_coef and (reference is None or {"ref_model_fn", "reference_update_fn"} & set(run["unknown"])):
        return "the reference of the KL is not stored: give --model the initial weights"
    return None


def _with_critic(run: Mapping[str, Any], made: Recomputed, loss: torch.Tensor, step: int) -> torch.Tensor:
    """Return PPO's loss: that of the policy, and that of the critic, whose values are those before the step."""
    settings, mask_BT = run["settings"], made.batch.mask_BT
    values_BT = per_token(made.record["values"], made.batch)
    assert made.estimates is not None and values_BT is not None
    of_values_BT = value_loss(values_BT, values_BT, made.estimates.returns_BT, mask_BT, clip=settings["value_clip"])
    policy = 0.0 if step - 1 < settings["value_warmup_steps"] else 1.0
    return policy * loss + settings["value_coef"] * aggregate_loss(of_values_BT, mask_BT, "token")


@torch.no_grad()
def audit_pair_loss(
    audit: Audit,
    start: Started,
    record: Mapping[str, Any],
    pairs: Sequence[dict[str, Any]],
    model: Any,
    reference: Any,
) -> None:
    """Compare the stored loss of the first step of a round of DPO with that of the models."""
    run, step = start.run or {}, record["step"] + 1
    settings, stored = run["settings"], start.steps.get(step)
    part = audit.parts["loss"]
    if stored is None or reference is None or {"ref_model_fn", "reference_update_fn"} & set(run["unknown"]):
        part.lack("the loss of a step or the reference is not stored: give --model the initial weights")
        return
    if list(settings["loss_type"]) != ["sigmoid"] or settings.get("label_smoothing"):
        part.lack(f"TRL's DPO loss_type={settings['loss_type']!r}")
        return
    n = run["pairs_per_step"]
    seed = derive_seed(settings["seed"], "pairs", record["round"])
    share = share_of_round(pairs, record["round_steps"] * n, process_index=0, n_processes=1, seed=seed)[:n]
    ratios = {name: torch.tensor([_log_ratio(pair, name, model, reference) for pair in share]) for name in _SIDES}
    loss = dpo_loss(ratios["chosen"], ratios["rejected"], beta=float(settings["beta"])).mean()
    tolerance = (2e-2, 2e-2) if run["dtype"] in _HALF else (1e-3, 1e-4)
    where: dict[str, Any] = {"file": start.record_file, "step": step, "unit": "steps", "what": "loss"}
    audit.compare("loss", stored, float(loss), by=dpo_loss, tolerance=tolerance, **where)


_SIDES = ("chosen", "rejected")


def _log_ratio(pair: Mapping[str, Any], side: str, model: Any, reference: Any) -> float:
    """Return the log-ratio of one side of a pair over the agent's tokens."""
    ids = np.array([*pair["prompt_ids"], *pair[f"{side}_ids"]], dtype=np.int32)
    mask = np.array([*[0] * len(pair["prompt_ids"]), *pair[f"{side}_mask"]], dtype=bool)
    ours, theirs = (token_logps(one, [ids])[0] for one in (model, reference))
    return float((ours - theirs)[mask].sum())
