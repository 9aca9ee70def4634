"""The state of the functional loop, and its checkpoints, from which a killed run resumes.

A `TrainingState` is a value that each step replaces by a new one. Its model, optimizer, scheduler and reference are
torch objects that change in place, so the state before a step shares them with the state after it.
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from llm_envs.errors import InvalidConfigError, MissingExtraError, StoreError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("training needs torch: pip install 'llm-envs[train]'.") from error

from llm_envs.policies.inference.positions import check_positions
from llm_envs.trainers.functional.references import RefModelFn

__all__ = [
    "CheckpointFn",
    "OptimizerStepFn",
    "Schedule",
    "TrainingState",
    "best_checkpoint",
    "constant_schedule",
    "create_checkpoint_fn",
    "create_optimizer_step",
    "create_training_state",
    "create_warmup_cosine",
    "latest_checkpoint",
    "load_training_state",
    "moving_average",
    "save_training_state",
    "training_device",
]

STATE_FILE, VALUES_FILE, MODEL_FOLDER = "training.pt", "state.json", "model"
_CHECKPOINT = re.compile(r"iteration-(\d+)")

Schedule = Callable[[int], float]
"""`(optimizer steps done) -> factor` of the learning rate."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """The state of a training run between two iterations."""

    model: torch.nn.Module
    """The trained model."""
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    """Stepped after each optimizer step."""
    reference: torch.nn.Module | None = None
    """The model that a KL is measured against."""
    seed: int = 0
    """Decides the order of minibatches."""
    step: int = 0
    """Optimizer steps done."""
    iteration: int = 0
    """Generations trained on."""
    n_episodes: int = 0
    """Episodes trained on."""
    n_tokens: int = 0
    """Tokens trained on."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Moving averages of the metrics."""
    source_state: Mapping[str, Any] = field(default_factory=dict)
    """Other state that a resumed run needs, as JSON types: of the episode source, the prompts, the reference update."""
    best: tuple[float, int] | None = None
    """The best evaluation result so far, and its iteration."""


OptimizerStepFn = Callable[[TrainingState], Mapping[str, float]]
"""Called after the backward passes: takes the optimizer step and returns metrics."""


class CheckpointFn(Protocol):
    """`(state, *, is_best) -> None`."""

    def __call__(self, state: TrainingState, *, is_best: bool) -> None:
        """Save a state.

        Args:
            state: Between two iterations.
            is_best: Whether it is the best so far.
        """
        ...


def create_training_state(
    model: torch.nn.Module,
    *,
    learning_rate: float = 1e-5,
    weight_decay: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
    schedule: Schedule | None = None,
    ref_model_fn: RefModelFn | None = None,
    device: torch.device | str | None = None,
    gradient_checkpointing: bool = False,
    disable_dropout: bool = True,
    seed: int = 0,
) -> TrainingState:
    """Return the state before the first step.

    Args:
        model: The model to train, in place. Parameters without `requires_grad` do not change.
        learning_rate: AdamW's, if no optimizer is given.
        weight_decay: AdamW's, if no optimizer is given.
        optimizer: An existing optimizer of this model's parameters, on their device.
        schedule: `create_warmup_cosine(...)`, `constant_schedule`, or yours; None: constant.
        ref_model_fn: Makes the reference (`functional.references.frozen_copy`); None: no reference.
        device: Device to move the model to; None: do not move it.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of storing them.
        disable_dropout: Whether to switch dropout off. With dropout, the trained policy differs from the sampling one.
        seed: Seed of the order of minibatches.

    Raises:
        InvalidConfigError: If the model does not support an option, or has no trainable parameter.
        ModelError: If its log-probabilities would depend on the padding of a batch.
    """
    check_positions(model)
    if device is not None:
        if optimizer is not None:
            raise InvalidConfigError("the optimizer is made already: move the model before it, and leave device out.")
        model.to(device)
    if disable_dropout:
        _disable_dropout(model)
    if gradient_checkpointing:
        _checkpoint_activations(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidConfigError("no parameter of the model requires a gradient: there is nothing to train.")
    optimizer = optimizer or torch.optim.AdamW(trained, lr=learning_rate, weight_decay=weight_decay)
    scheduler = None if schedule is None else torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    # Last, so that a copy of the model is on its device and without dropout.
    reference = None if ref_model_fn is None else ref_model_fn(model)
    return TrainingState(model, optimizer, scheduler, reference, seed)


def training_device(state: TrainingState) -> torch.device:
    """Return the device for batches: that of the model's first parameter."""
    return next(state.model.parameters()).device


def constant_schedule(step: int) -> float:
    """Return 1: the learning rate stays constant."""
    return 1.0


def create_warmup_cosine(n_steps: int, *, warmup_steps: int = 0, final: float = 0.0) -> Schedule:
    """Return a schedule that rises to 1 and falls along half a cosine.

    `(s + 1) / (w + 1)` for the first w steps, then `final + (1 - final) (1 + cos(pi p)) / 2` with
    `p = (s - w) / (n - w)`, at most 1. The factor of the first step is above 0.

    Args:
        n_steps: The n: total number of optimizer steps.
        warmup_steps: The w.
        final: Factor at the end.

    Raises:
        InvalidConfigError: If the warm-up is not shorter than the whole.
    """
    if not 0 <= warmup_steps < n_steps:
        raise InvalidConfigError(f"{warmup_steps=} of {n_steps=}: it must be at least 0, and fewer than all.")

    def schedule(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = min((step - warmup_steps) / (n_steps - warmup_steps), 1.0)
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return schedule


def create_optimizer_step(max_grad_norm: float | None = 1.0) -> OptimizerStepFn:
    """Return the usual step: clip the gradients' norm, step the optimizer, step the scheduler.

    If the norm is not finite, nothing changes and `skipped` is 1.

    Args:
        max_grad_norm: Greatest norm of all gradients together; None: any.

    Returns:
        A function that logs `grad_norm` (before clipping), `learning_rate` (of this step) and `skipped`.
    """

    def optimizer_step(state: TrainingState) -> Mapping[str, float]:
        parameters = [p for group in state.optimizer.param_groups for p in group["params"] if p.grad is not None]
        bound = math.inf if max_grad_norm is None else max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, bound))
        stats = {"grad_norm": norm, "learning_rate": float(state.optimizer.param_groups[0]["lr"]), "skipped": 0.0}
        if not math.isfinite(norm):
            return {**stats, "skipped": 1.0}
        state.optimizer.step()
        if state.scheduler is not None:
            state.scheduler.step()
        return stats

    return optimizer_step


def moving_average(statistics: Mapping[str, float], metrics: Mapping[str, float], *, decay: float) -> dict[str, float]:
    """Return `s <- decay s + (1 - decay) x` for each metric. A new metric begins at its value; NaN is ignored.

    Args:
        statistics: The averages so far.
        metrics: New values. If a metric is missing, its average does not change.
        decay: From 0 (the latest value) to below 1.
    """
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    averages = {
        name: value if name not in statistics else decay * statistics[name] + (1.0 - decay) * value
        for name, value in finite.items()
    }
    return {**statistics, **averages}


def save_training_state(folder: str | Path, state: TrainingState, *, tokenizer: Any = None) -> Path:
    """Save everything: weights, optimizer, scheduler, reference, random numbers, sources, statistics.

    An existing folder is replaced. The files are first written under another name, so a killed process never leaves a
    partial checkpoint.

    Args:
        folder: The folder to write.
        state: The state between two iterations.
        tokenizer: If given, also write a subfolder `model` that transformers and vLLM can load.

    Returns:
        The folder.
    """
    target = Path(folder)
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    tensors = {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scheduler": None if state.scheduler is None else state.scheduler.state_dict(),
        "reference": None if state.reference is None else state.reference.state_dict(),
        "random": _random_state(),
    }
    torch.save(tensors, scratch / STATE_FILE)
    values = {name: getattr(state, name) for name in _VALUES}
    # NaN is not valid JSON. `moving_average` keeps it out of the statistics.
    (scratch / VALUES_FILE).write_text(json.dumps(values, allow_nan=False) + "\n", encoding="utf-8")
    if tokenizer is not None:
        model: Any = state.model
        model.save_pretrained(scratch / MODEL_FOLDER)
        tokenizer.save_pretrained(scratch / MODEL_FOLDER)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    return target


def load_training_state(folder: str | Path, state: TrainingState) -> TrainingState:
    """Return a saved state, loaded into the model, optimizer, scheduler and reference of the given one.

    This also restores the random states of torch, NumPy and Python in this process. `train` passes `source_state` on
    to the episode source, the prompts and the reference update.

    Args:
        folder: A folder that `save_training_state` wrote.
        state: A new state from `create_training_state`, with the settings of the saved run.

    Raises:
        StoreError: If the folder has no saved state, or it does not fit.
    """
    path = Path(folder)
    device = training_device(state)
    try:
        tensors = torch.load(path / STATE_FILE, map_location=device, weights_only=True)
        values = json.loads((path / VALUES_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"{str(path)!r} has no saved training state: {error.strerror or error}.") from error
    parts: dict[str, Any] = {"scheduler": state.scheduler, "reference": state.reference}
    for name, part in parts.items():
        if (part is None) != (tensors[name] is None):
            has, lacks = ("saved", "given") if part is None else ("given", "saved")
            raise StoreError(f"{str(path)!r}: the {has} state has a {name}, the {lacks} one has none.")
    if values["seed"] != state.seed:
        raise StoreError(f"{str(path)!r}: the saved state has seed {values['seed']}, the given one {state.seed}.")
    try:
        state.model.load_state_dict(tensors["model"])
        state.optimizer.load_state_dict(tensors["optimizer"])
        for name, part in parts.items():
            if part is not None:
                part.load_state_dict(tensors[name])
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise StoreError(f"{str(path)!r} does not fit this model and optimizer: {first}") from error
    _set_random_state(tensors["random"])
    best = values.pop("best")
    return replace(state, **values, best=None if best is None else (float(best[0]), int(best[1])))


def create_checkpoint_fn(folder: str | Path, *, keep: int = 2, tokenizer: Any = None) -> CheckpointFn:
    """Return a function that saves states into `folder/iteration-000012` and deletes old ones.

    Args:
        folder: Folder of the run.
        keep: Number of latest checkpoints to keep, in addition to the best.
        tokenizer: See `save_training_state`.

    Raises:
        InvalidConfigError: If `keep` is below 1.
    """
    root = Path(folder)
    if keep < 1:
        raise InvalidConfigError(f"keep is {keep}; it must be at least 1.")

    def checkpoint(state: TrainingState, *, is_best: bool) -> None:
        save_training_state(root / _name(state.iteration), state, tokenizer=tokenizer)
        # The best one may be older than the last `keep`, so it is kept in addition.
        best = best_checkpoint(root)
        for old in _checkpoints(root)[:-keep]:
            if old != best:
                shutil.rmtree(old)

    return checkpoint


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, or None."""
    found = _checkpoints(Path(folder))
    return found[-1] if found else None


def best_checkpoint(folder: str | Path) -> Path | None:
    """Return the best checkpoint of a run, or None without an evaluation."""
    latest = latest_checkpoint(folder)
    if latest is None:
        return None
    best = json.loads((latest / VALUES_FILE).read_text(encoding="utf-8"))["best"]
    return None if best is None else Path(folder) / _name(int(best[1]))


_VALUES = ("seed", "step", "iteration", "n_episodes", "n_tokens", "statistics", "source_state", "best")


def _name(iteration: int) -> str:
    return f"iteration-{iteration:06d}"


def _checkpoints(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("iteration-*") if _CHECKPOINT.fullmatch(path.name))


def _checkpoint_activations(model: Any) -> None:
    # transformers has renamed the method: "gradient" is the older name.
    for name in ("activation", "gradient"):
        enable = getattr(model, f"{name}_checkpointing_enable", None)
        if enable is not None:
            enable(**{f"{name}_checkpointing_kwargs": {"use_reentrant": False}})
            return
    raise InvalidConfigError(f"{type(model).__name__} has no gradient checkpointing: leave it out.")


def _disable_dropout(model: torch.nn.Module) -> None:
    """Switch off dropout layers, and attention dropout that modules store as a number."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _random_state() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        # As a tensor: loading with weights_only does not accept NumPy arrays.
        "numpy": (str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "python": random.getstate(),
    }


def _set_random_state(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(saved["torch"].cpu())
    # On another number of GPUs the saved random states do not fit.
    if saved["cuda"] and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in saved["cuda"]])
    name, keys, *rest = saved["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
