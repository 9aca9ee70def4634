"""Audits the folder of a training: every part, in the order of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from llm_envs.chat.codec import ChatCodec
from llm_envs.errors import InvalidConfigError, LLMEnvsError
from llm_envs.policies.inference.loading import load_model, load_tokenizer
from llm_envs.tracking.metrics import trajectory_metrics
from llm_envs.trainers.cli.audit.credit import Recomputed, audit_generation
from llm_envs.trainers.cli.audit.episodes import audit_groups, audit_replay, audit_rows, weight_version
from llm_envs.trainers.cli.audit.model import audit_logps, audit_loss
from llm_envs.trainers.cli.audit.parts import Audit
from llm_envs.trainers.cli.audit.stored import Started, StoredTraining, read_training
from llm_envs.trainers.episodes.rewards import RewardSettings
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.settings.checks import training_template
from llm_envs.types import Trajectory

__all__ = ["audit_training"]

_PLAYED_AT = re.compile(r"train-(\d+)-")
"""The group id of an episode that a trainer played: the step comes first."""


def audit_training(
    folder: str | Path,
    *,
    model: str | Path | None = None,
    rewards: RewardSettings | None = None,
    algorithm: Algorithm | None = None,
    tolerance: float | None = None,
) -> Audit:
    """Compute again what a training stored, and compare.

    Args:
        folder: The training's output folder.
        model: The folder of the weights that the training began with; None: the one that the training named.
        rewards: The training's reward functions and shaping, which are not stored.
        algorithm: The training's algorithm, if it has functions of yours.
        tolerance: See `model.audit_logps`.

    Raises:
        InvalidConfigError: If the folder does not belong to a training that stored its episodes.
    """
    stored, audit = read_training(folder), Audit()
    for start in stored.starts:
        audit_groups(audit, start)
        if start.run is None:
            audit.lack(f"{start.record_file} is missing")
            continue
        if start.damage is not None:
            audit.lack(f"{start.episodes_file} cannot be read to its end")
            continue
        _audit_generations_named(audit, start)
        initial = _initial(start.run, model)
        codec = _codec(start.run, stored.tokenizer or (None if initial is None else Path(initial)))
        for trajectory in start.trajectories.values():
            audit_replay(audit, start, trajectory)
            audit_rows(audit, start, trajectory, codec)
        generations: dict[int, list[Recomputed | None]] = {}
        for record in start.generations:
            made = audit_generation(audit, start, record, rewards, algorithm)
            generations.setdefault(record["step"], []).append(made)
        _audit_weights(audit, stored, start, initial, generations, tolerance)
    _audit_steps_named(audit, stored)
    _audit_metrics(audit, stored)
    return audit


def _audit_generations_named(audit: Audit, start: Started) -> None:
    """Find generations that a trainer's episodes name in their group ids, and that the record lacks."""
    named = {int(found[1]) for group, _ in start.trajectories if (found := _PLAYED_AT.match(group))}
    recorded = {int(record["step"]) for record in start.generations}
    where: dict[str, Any] = {"file": start.record_file, "what": "a generation whose episodes are stored"}
    for step in sorted(named - recorded):
        audit.compare("advantages", None, step, by=_audit_generations_named, step=step, **where)


def _audit_steps_named(audit: Audit, stored: StoredTraining) -> None:
    """Find steps before the latest checkpoint that the record lacks."""
    if any(start.run is None for start in stored.starts):
        return
    recorded = {step for start in stored.starts for step in start.steps}
    where: dict[str, Any] = {"file": stored.starts[0].record_file, "what": "the loss of a step before a checkpoint"}
    for step in sorted(set(range(1, max(stored.models, default=0) + 1)) - recorded):
        audit.compare("loss", None, step, by=_audit_steps_named, step=step, **where)


def _audit_weights(
    audit: Audit,
    stored: StoredTraining,
    start: Started,
    initial: str | None,
    generations: Mapping[int, list[Recomputed | None]],
    tolerance: float | None,
) -> None:
    """Audit log-probabilities and losses of every version of the weights that is stored."""
    versions: dict[int | None, list[Trajectory]] = {}
    for trajectory in start.trajectories.values():
        if trajectory.status == "ok" and "fork" not in trajectory.metadata:
            versions.setdefault(weight_version(trajectory), []).append(trajectory)
    base, reference = (start.run or {})["model"], None
    for version in sorted({*(v for v in versions if v is not None), *generations}):
        folder = stored.models.get(version) or (None if version or initial is None else Path(initial))
        n = len(versions.get(version, []))
        if folder is None:
            why = "no checkpoint of these weights" if version else "the initial weights are not there: give --model"
            audit.lack(why, "log-probabilities", n=n)
            audit.lack(why, "loss", n=len(generations.get(version, [])))
            continue
        try:
            weights = _load_weights(folder, base)
            if reference is None and initial is not None:
                reference = _load_weights(Path(initial), base)
        except LLMEnvsError as error:
            audit.lack(" ".join(str(error).split()), "log-probabilities", n=n)
            continue
        noise = audit_logps(audit, start, versions.get(version, []), weights, tolerance)
        for made in generations.get(version, []):
            if made is not None:
                audit_loss(audit, start, made, weights, reference, noise)
    if None in versions:
        audit.lack("episodes of several versions of the weights", "log-probabilities", n=len(versions[None]))


def _load_weights(folder: Path, base: str | None) -> Any:
    """Return a stored model: full weights, or an adapter on the model `base` that the training named."""
    is_adapter = (folder / "adapter_config.json").is_file()
    return load_model(base or "", adapter=folder) if is_adapter else load_model(folder)


def _initial(run: Mapping[str, Any], model: str | Path | None) -> str | None:
    """Return the folder of the initial weights, if it is there. Nothing is downloaded."""
    if model is not None and not Path(model).is_dir():
        raise InvalidConfigError(f"--model {model}: the folder does not exist.")
    name = str(model) if model is not None else run["model"] if run["is_new"] else None
    return name if name is not None and Path(name).is_dir() else None


def _codec(run: Mapping[str, Any], folder: Path | None) -> ChatCodec | None:
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        return None
    tokenizer = load_tokenizer(folder)
    template = training_template(tokenizer) if run["settings"].get("use_training_template") else None
    return ChatCodec(tokenizer, chat_template=template, template_kwargs=run["template"])


def _audit_metrics(audit: Audit, stored: StoredTraining) -> None:
    """Compare logged losses with the steps' and logged rewards and success with the episodes'."""
    starts = [start for start in stored.starts if start.run is not None]
    if stored.metrics_file is None:
        audit.lack("no metrics are stored (save_state, or a checkpoint)", "metrics")
        return
    if len(starts) != 1 or (starts[0].run or {})["processes"] > 1:
        audit.lack("metrics of several processes, or of a run that was resumed", "metrics")
        return
    (start,) = starts
    if not (entries := [entry for entry in stored.metrics if "loss" in entry]):
        audit.lack(f"{stored.metrics_file} has no logged loss (logging_steps)", "metrics")
    recorded = {tuple(key) for generation in start.generations for key in generation["episodes"]}
    is_whole = all(key in recorded for key in start.trajectories if not key[0].startswith("eval"))
    compare = partial(audit.compare, "metrics", file=stored.metrics_file, unit="numbers")
    before = 0
    for entry in entries:
        _audit_entry(audit, partial(compare, step=entry["step"]), start, entry, before, is_whole)
        before = entry["step"]


def _audit_entry(
    audit: Audit, compare: Callable[..., bool], start: Started, entry: Mapping[str, Any], before: int, is_whole: bool
) -> None:
    """Audit one line of the log, of the steps after the step `before`."""
    losses = [start.steps.get(step) for step in range(before + 1, entry["step"] + 1)]
    known = [loss for loss in losses if loss is not None]
    if len(known) == len(losses) > 0:
        mean = sum(known) / len(known)
        compare(entry["loss"], mean, by=_audit_metrics, what="loss", tolerance=(1e-4, 1e-6))
    else:
        audit.lack("the losses of some steps are not stored", "metrics")
    played = [start.members(g) for g in start.generations if before <= g["step"] < entry["step"]]
    if not is_whole or not played or any(members is None for members in played):
        audit.lack("episodes that a filter dropped count in the log", "metrics")
        return
    # The branches of a tree do not count: they share turns with their root.
    parts = [trajectory_metrics(t for t in members if "fork" not in t.metadata) for members in played if members]
    for name in ("reward", "success"):
        values = [part[name] for part in parts if name in part]
        if f"env/{name}" in entry and values:
            mean = sum(values) / len(values)
            compare(entry[f"env/{name}"], mean, by=trajectory_metrics, what=f"env/{name}", tolerance=(1e-5, 1e-7))
