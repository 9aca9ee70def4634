"""Checkpoints inside a generation: save its unused rest, so that a resumed run trains on that too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

try:
    import torch
    from accelerate.utils import send_to_device
except ImportError as error:
    raise MissingExtraError(f"training needs {error.name}: pip install 'llm-envs[train]'.") from error

from llm_envs.trainers.grpo.pairs import PairedRows

__all__ = ["load_generation", "save_generation"]


def save_generation(trainer: Any, folder: Path) -> dict[str, int]:
    """Write this process's micro-batches if the generation is not used up.

    Args:
        trainer: TRL's trainer, between two optimizer steps.
        folder: The checkpoint's folder.

    Returns:
        The number of micro-batches taken from the generation (0: used up), and the batch sizes.
    """
    geometry = _geometry(trainer)
    taken = trainer._step % geometry["uses"]
    if taken:
        paired = trainer._paired.get("train")
        content = {
            "inputs": trainer._buffered_inputs,
            "pairs": None if paired is None else paired.state_dict(),
            "kept": trainer.kept_rows["train"].state(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(content, _path(folder, trainer))
    return {"taken": taken} | geometry


def load_generation(trainer: Any, folder: Path, state: Mapping[str, int]) -> None:
    """Restore a partly used generation that `save_generation` wrote; do nothing if it was used up.

    Args:
        trainer: TRL's trainer, with that generation's algorithm already active.
        folder: The checkpoint's folder.
        state: The result of `save_generation`.

    Raises:
        InvalidConfigError: If the batch sizes of the run differ, or the file is missing.
    """
    taken = state["taken"]
    if not taken:
        return
    saved, present = {name: value for name, value in state.items() if name != "taken"}, _geometry(trainer)
    if saved != present:
        raise InvalidConfigError(
            f"{folder} lies inside a generation ({taken} of {state['uses']} micro-batches were taken), and its batches "
            f"have another shape: saved {saved}, now {present} (uses: steps_per_generation * num_iterations). Resume "
            "with the settings and number of processes of the run, or from a checkpoint at the end of a generation."
        )
    path = _path(folder, trainer)
    if not path.is_file():
        raise InvalidConfigError(
            f"{folder} lies inside a generation, and {path.name}, with the rest of it, is missing: copy the whole "
            "folder, or resume from an earlier checkpoint."
        )
    # The file has only tensors and numbers, so loading it need not be able to run code.
    content = torch.load(path, map_location="cpu", weights_only=True)
    # TRL plays a new generation when `_step` is a multiple of `uses`. Any other value makes it take from the buffer.
    trainer._step = taken
    trainer._buffered_inputs = send_to_device(content["inputs"], trainer.accelerator.device)
    trainer.kept_rows["train"].load(content.get("kept", ()))
    if content["pairs"] is not None:
        trainer._paired["train"] = PairedRows(trainer._algorithm, **content["pairs"])


def _geometry(trainer: Any) -> dict[str, int]:
    args = trainer.args
    return {
        "uses": int(args.steps_per_generation) * trainer.num_iterations,
        "steps_per_generation": int(args.steps_per_generation),
        "per_device_train_batch_size": int(args.per_device_train_batch_size),
        "gradient_accumulation_steps": int(args.gradient_accumulation_steps),
        "processes": trainer.accelerator.num_processes,
    }


def _path(folder: Path, trainer: Any) -> Path:
    return folder / f"generation-{trainer.accelerator.process_index}.pt"
