"""The state of the functional loop, and its checkpoints, from which a killed run resumes.

A `TrainingState` is a value that each step replaces by a new one. Its model, optimizer, scheduler and reference are
torch objects that change in place, so the state before a step shares them with the state after it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from accelerate import PartialState
from accelerate.checkpointing import load_accelerator_state, save_accelerator_state
from accelerate.utils import MODEL_NAME, SCHEDULER_NAME

from llm_envs.data.files import read_text, remove
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.policies.inference.attention import copy_single_heads
from llm_envs.policies.inference.positions import check_positions
from llm_envs.trainers.forward import dropout
from llm_envs.trainers.functional.references import RefModelFn
from llm_envs.trainers.run.checkpoints import check_files
from llm_envs.trainers.run.finite import check_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "CheckpointFn",
    "OptimizerStepFn",
    "ScheduleFn",
    "TrainingState",
    "best_checkpoint",
    "create_checkpoint_fn",
    "create_optimizer_step",
    "create_training_state",
    "latest_checkpoint",
    "load_training_state",
    "save_training_state",
]

VALUES_FILE, MODEL_FOLDER = "state.json", "model"
_CHECKPOINT = re.compile(r"iteration-(\d+)")

ScheduleFn = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
"""`(optimizer) -> scheduler` of the learning rate. It is stepped after each optimizer step."""


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
    """Episodes trained on: those with a trained token in a step that was taken."""
    n_tokens: int = 0
    """Tokens trained on, counted once a generation."""
    n_skipped: int = 0
    """Latest steps in a row whose gradient was not finite, so that they changed nothing."""
    source_state: Mapping[str, Any] = field(default_factory=dict)
    """Other state that a resumed run needs, as JSON types: of the episode source, the prompts, the reference update."""
    best: tuple[float, int] | None = None
    """The best evaluation result so far, and its iteration."""

    @property
    def device(self) -> torch.device:
        """The device for batches, on which the model's first parameter is."""
        return next(self.model.parameters()).device


OptimizerStepFn = Callable[[TrainingState], Mapping[str, float]]
"""Called after the backward passes: takes the optimizer step and returns metrics. A function that takes no step must
return `skipped` as 1, or the step counts as taken: in `TrainingState.step` and for the reference."""


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
    schedule: ScheduleFn | None = None,
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
        schedule: Makes the scheduler, such as `partial(get_scheduler, "cosine", num_warmup_steps=10,
            num_training_steps=100)` of transformers; None: a constant rate.
        ref_model_fn: Makes the reference (`functional.references.frozen_copy`); None: no reference.
        device: Device to move the model to; None: do not move it.
        gradient_checkpointing: Whether to recompute activations in the backward pass instead of storing them.
        disable_dropout: Whether to switch dropout off (`forward.dropout`).
        seed: Seed of the order of minibatches.

    Raises:
        InvalidConfigError: If the model does not support an option, or has no trainable parameter.
        ModelError: If its log-probabilities would depend on the padding of a batch.
    """
    copy_single_heads()
    check_positions(model)
    if device is not None:
        if optimizer is not None:
            raise InvalidConfigError("the optimizer is made already: move the model before it, and leave device out.")
        model.to(device)
    if disable_dropout:
        dropout.disable_dropout(model)
    if gradient_checkpointing:
        _checkpoint_activations(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidConfigError("no parameter of the model requires a gradient: there is nothing to train.")
    optimizer = optimizer or torch.optim.AdamW(trained, lr=learning_rate, weight_decay=weight_decay)
    scheduler = None if schedule is None else schedule(optimizer)
    # Last, so that a copy of the model is on its device and without dropout.
    reference = None if ref_model_fn is None else ref_model_fn(model)
    return TrainingState(model, optimizer, scheduler, reference, seed)


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


def save_training_state(
    folder: str | Path, state: TrainingState, *, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """Save everything, by accelerate: weights, optimizer, scheduler, reference, random numbers; and `state.json`.

    An existing folder is replaced. The files are first written under another name, so a killed process never leaves a
    partial checkpoint.

    Args:
        folder: The folder to write.
        state: The state between two iterations.
        tokenizer: If given, also write a subfolder `model` that transformers and vLLM can load.

    Returns:
        The folder.

    Raises:
        ModelError: If a trained weight is not finite; nothing is written.
    """
    check_weights({"the model": state.model}, state.step)
    target = Path(folder)
    scratch = target.with_name(f".{target.name}.partial")
    remove(scratch)
    scratch.mkdir(parents=True)
    PartialState()  # accelerate's functions ask it for the rank
    # The functions behind `Accelerator.save_state`. An `Accelerator` would wrap the model and the optimizer first.
    save_accelerator_state(
        str(scratch),
        [model.state_dict() for model in _models(state)],
        safe_serialization=False,  # safetensors would warn of tied weights at each save
        **_parts(state),
        step=state.step,
    )
    values = {name: getattr(state, name) for name in _VALUES}
    (scratch / VALUES_FILE).write_text(json.dumps(values, allow_nan=False) + "\n", encoding="utf-8")
    if tokenizer is not None:
        cast("PreTrainedModel", state.model).save_pretrained(scratch / MODEL_FOLDER)
        tokenizer.save_pretrained(scratch / MODEL_FOLDER)
    remove(target)
    scratch.rename(target)
    return target


def load_training_state(folder: str | Path, state: TrainingState) -> TrainingState:
    """Return a saved state, loaded into the model, optimizer, scheduler and reference of the given one.

    This also restores the random states of torch, NumPy and Python in this process (of GPUs only if there are as
    many as before). `train` passes `source_state` on to the episode source, the prompts and the reference update.

    Args:
        folder: A folder that `save_training_state` wrote.
        state: A new state from `create_training_state`, with the settings of the saved run.

    Raises:
        StoreError: If the folder has no saved state or one of another version, or if a file is damaged or does not fit.
    """
    path = Path(folder)
    check_files(path)
    try:
        values = json.loads(read_text(path / VALUES_FILE))
    except OSError as error:
        raise StoreError(f"{str(path)!r} has no saved training state: {error.strerror or error}.") from error
    if unknown := sorted(values.keys() - {field.name for field in fields(state)}):
        raise StoreError(f"{str(path)!r} is of another version: {', '.join(unknown)}. Start from its model.")
    for name, part, file in (
        ("scheduler", state.scheduler, f"{SCHEDULER_NAME}.bin"),
        ("reference", state.reference, f"{MODEL_NAME}_1.bin"),
    ):
        if (part is None) == (path / file).exists():
            has, lacks = ("saved", "given") if part is None else ("given", "saved")
            raise StoreError(f"{str(path)!r}: the {has} state has a {name}, the {lacks} one has none.")
    if values["seed"] != state.seed:
        raise StoreError(f"{str(path)!r}: the saved state has seed {values['seed']}, the given one {state.seed}.")
    PartialState()
    try:
        load_accelerator_state(str(path), _models(state), **_parts(state))
    except (OSError, RuntimeError, ValueError, UnpicklingError) as error:
        first = str(error).strip().splitlines()[0]
        raise StoreError(f"{str(path)!r} does not fit this model and optimizer: {first}") from error
    best = values.pop("best")
    return replace(state, **values, best=None if best is None else (float(best[0]), int(best[1])))


def create_checkpoint_fn(
    folder: str | Path, *, keep: int = 2, tokenizer: PreTrainedTokenizerBase | None = None
) -> CheckpointFn:
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
                remove(old)

    return checkpoint


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, or None."""
    checkpoints = _checkpoints(Path(folder))
    return checkpoints[-1] if checkpoints else None


def best_checkpoint(folder: str | Path) -> Path | None:
    """Return the best checkpoint of a run, or None without one in the folder: a run may have resumed from another."""
    latest = latest_checkpoint(folder)
    if latest is None:
        return None
    best = json.loads(read_text(latest / VALUES_FILE))["best"]
    path = None if best is None else Path(folder) / _name(int(best[1]))
    return path if path is not None and path.is_dir() else None


_VALUES = ("seed", "step", "iteration", "n_episodes", "n_tokens", "n_skipped", "source_state", "best")


def _models(state: TrainingState) -> list[torch.nn.Module]:
    return [state.model] if state.reference is None else [state.model, state.reference]


def _parts(state: TrainingState) -> dict[str, Any]:
    """Return the arguments that accelerate's functions for saving and loading have in common."""
    schedulers = [] if state.scheduler is None else [state.scheduler]
    return {"optimizers": [state.optimizer], "schedulers": schedulers, "dataloaders": [], "process_index": 0}


def _name(iteration: int) -> str:
    return f"iteration-{iteration:06d}"


def _checkpoints(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("iteration-*") if _CHECKPOINT.fullmatch(path.name))


def _checkpoint_activations(model: torch.nn.Module) -> None:
    # transformers has renamed the method: "gradient" is the older name.
    for name in ("activation", "gradient"):
        enable = getattr(model, f"{name}_checkpointing_enable", None)
        if enable is not None:
            enable(**{f"{name}_checkpointing_kwargs": {"use_reentrant": False}})
            return
    raise InvalidConfigError(f"{type(model).__name__} has no gradient checkpointing: leave it out.")
