"""Finds the checkpoint to resume from, and the trainer that wrote it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch.serialization import get_unsafe_globals_in_checkpoint
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput

from llm_envs.data.files import regular
from llm_envs.data.json_files import NO_JSON, problem_of, read_json
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.trainers.callbacks import follow_training, guard_trackers, step_spans
from llm_envs.trainers.run.live import shown_live

__all__ = [
    "ChecksCheckpoint",
    "check_checkpoint",
    "check_files",
    "check_unused",
    "find_checkpoints",
    "make_base_absolute",
    "resume_point",
    "trainer_of",
]

TRAINERS = ("GRPO", "PPO", "DPO", "SFT")
"""Trainers whose checkpoints we recognise, by the class name of their settings (`EnvGRPOConfig`, `GRPOConfig`)."""
_ARGUMENTS_FILE, _STATE_FILE = "training_args.bin", "trainer_state.json"
_CHECKED = (".json", ".safetensors", ".bin", ".pkl", ".pt", ".pth")
"""Ends of the names of files whose form is checked."""


def find_checkpoints(folder: str | Path) -> list[Path]:
    """Return the complete checkpoints of a trainer's output folder, oldest first."""
    # transformers writes its state file last, so a folder that has it is complete.
    places = [path.parent for path in Path(folder).glob(f"checkpoint-*/{_STATE_FILE}")]
    return sorted((place for place in places if _step(place) is not None), key=lambda place: _step(place) or 0)


def trainer_of(checkpoint: str | Path) -> str | None:
    """Return which of `TRAINERS` wrote a checkpoint, or None if unknown.

    Only the class name of the saved settings is read; no code in the file is executed.
    """
    path = Path(checkpoint) / _ARGUMENTS_FILE
    if not path.is_file():
        return None
    try:
        names = [name.rpartition(".") for name in get_unsafe_globals_in_checkpoint(path)]
    except (RuntimeError, OSError, ValueError):
        return None
    # The file also names other classes, such as accelerate's `AcceleratorConfig`: look at ours first.
    ours_first = sorted(names, key=lambda name: not name[0].startswith("llm_envs."))
    kinds = (name.removeprefix("Env").removesuffix("Config") for _, _, name in ours_first if name.endswith("Config"))
    return next((name for name in kinds if name in TRAINERS), None)


def check_checkpoint(checkpoint: str | Path, trainer: str) -> None:
    """Reject another trainer's checkpoint: its optimizer state and step count belong to another run.

    Raises:
        InvalidConfigError: If another trainer wrote the checkpoint.
    """
    writer = trainer_of(checkpoint)
    if writer is not None and writer != trainer:
        raise InvalidConfigError(
            f"{checkpoint} is a checkpoint of {writer}, and this is {trainer}: begin a new run with its weights "
            f"(as --model, or the trainer's model, without resume_from_checkpoint; another output_dir)."
        )


def check_files(checkpoint: str | Path) -> None:
    """Check that a checkpoint's files are complete, as far as their form tells: JSON, safetensors, torch's archives.

    Without this, a damaged file is an error of its parser that does not name it, and a link to nothing is skipped.

    Raises:
        StoreError: If a file is damaged; names it, and the earlier checkpoints beside it.
    """
    folder = Path(checkpoint)
    for path in sorted(folder.rglob("*")):
        if path.suffix not in _CHECKED:
            continue
        if path.exists() and not os.access(path, os.R_OK):
            raise StoreError(f"{path} cannot be read by this user, so {folder} cannot be resumed: make it readable.")
        if (problem := _problem(path)) is not None:
            kind = folder.name.rpartition("-")[0]
            beside = sorted(other.name for other in folder.parent.glob(f"{kind}-*") if other.name != folder.name)
            others = f" Beside it: {', '.join(beside)}." if beside else ""
            raise StoreError(
                f"{path} is damaged ({problem}), so {folder} cannot be resumed. Move this checkpoint elsewhere, and "
                f"resume from an earlier one or begin again.{others}"
            )


class ChecksCheckpoint:
    """Checks a checkpoint before a TRL trainer resumes from it, and lets `llm-envs watch` follow the training."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does; if the checkpoint has all `max_steps`, only load it.

        By transformers, a training that is resumed when it is complete takes one more step.
        """
        trainer = cast("Any", self)
        follow_training(trainer)
        make_base_absolute(trainer.model)
        guard_trackers(trainer.callback_handler.callbacks)
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = next((str(path) for path in reversed(find_checkpoints(trainer.args.output_dir))), True)
        is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled  # loaded by transformers' loop only
        if isinstance(checkpoint, str | Path) and not is_sharded and _is_complete(Path(checkpoint), trainer.args):
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.create_optimizer_and_scheduler(trainer.args.max_steps)
            trainer._load_optimizer_and_scheduler(str(checkpoint))  # with the checks and the state of ours
            trainer.state = TrainerState.load_from_json(str(Path(checkpoint) / _STATE_FILE))
            return TrainOutput(trainer.state.global_step, 0.0, {})
        with shown_live(trainer), step_spans(trainer):
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _save_before_failure(self) -> str:
        """Save a checkpoint between two steps, on all processes, and return how to resume from it.

        Nothing is saved before the first step, if the step has a checkpoint, or with `save_strategy="no"`.
        """
        trainer = cast("Any", self)
        args, step = trainer.args, trainer.state.global_step
        if not step:
            return "No step is done, so nothing is lost: repeat the run to begin again."
        if args.save_strategy == "no":
            return f"save_strategy='no', so the {step} steps are not saved."
        folder = Path(args.output_dir) / f"checkpoint-{step}"
        if folder not in find_checkpoints(args.output_dir):
            trainer._save_checkpoint(trainer.model, trial=None)
            trainer.control = trainer.callback_handler.on_save(args, trainer.state, trainer.control)
        how = "train(resume_from_checkpoint=True), or the command's --resume"
        return f"{folder} has the {step} steps: resume with {how}."

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        check_files(resume_from_checkpoint)
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]


def make_base_absolute(model: Any) -> None:
    """Let a model's adapters name a base that is a folder by its absolute path: they then load from every folder."""
    for config in getattr(model, "peft_config", {}).values():
        base = config.base_model_name_or_path
        if base and Path(base).is_dir():
            config.base_model_name_or_path = str(Path(base).resolve())


def resume_point(args: Any, trainer: str, lora_r: int | None = None) -> str | None:
    """Return the checkpoint named by `args.resume_from_checkpoint`; "true" means the newest in the output folder.

    Args:
        args: The trainer's settings.
        trainer: One of `TRAINERS`.
        lora_r: Rank of the trained adapter; None: the full model is trained.

    Raises:
        InvalidConfigError: If the checkpoint is missing or incomplete, or does not match the trainer or adapter.
    """
    requested = args.resume_from_checkpoint
    if requested is None or str(requested).lower() in ("false", "no", ""):
        return None
    there = find_checkpoints(args.output_dir)
    named = (
        f"{args.output_dir} has {', '.join(place.name for place in there)}" if there else f"{args.output_dir} has none"
    )
    if str(requested).lower() in ("true", "yes"):
        if not there:
            raise InvalidConfigError(
                f"resume_from_checkpoint: {args.output_dir} has no checkpoint that was written to its end: leave it "
                "out to begin, or name the checkpoint's folder."
            )
        checkpoint = there[-1]
    else:
        checkpoint = Path(str(requested))
        if not checkpoint.is_dir():
            raise InvalidConfigError(
                f"resume_from_checkpoint: the folder {checkpoint} does not exist; {named} (true takes the newest)."
            )
        if not (checkpoint / _STATE_FILE).is_file():
            raise InvalidConfigError(
                f"resume_from_checkpoint: {checkpoint} is not complete, it lacks {_STATE_FILE}; {named} (true "
                "takes the newest). To begin with a model's weights give it as --model."
            )
    # All of this happens before a model is loaded, which may take minutes.
    check_checkpoint(checkpoint, trainer)
    _check_adapter(checkpoint, lora_r)
    return str(checkpoint)


def check_unused(output_dir: str | Path) -> None:
    """Reject a folder with another run's checkpoints for a new run.

    Raises:
        InvalidConfigError: If the folder has checkpoints, or the path is a file.
    """
    if Path(output_dir).is_file():
        raise InvalidConfigError(f"output_dir {output_dir} is a file: give a folder, which need not exist.")
    there = find_checkpoints(output_dir)
    if there:
        raise InvalidConfigError(
            f"output_dir {output_dir} holds a run already ({', '.join(place.name for place in there)}): resume it "
            "(--resume), or give another folder."
        )


def _check_adapter(checkpoint: Path, lora_r: int | None) -> None:
    """Check that a checkpoint has an adapter exactly if this run trains one, and of the same rank."""
    path = checkpoint / "adapter_config.json"
    if path.is_file() != (lora_r is not None):
        there, here = ("an adapter", "give") if path.is_file() else ("full weights", "leave out")
        raise InvalidConfigError(f"resume_from_checkpoint: {checkpoint} has {there}: {here} --use-peft.")
    rank = json.loads(path.read_text(encoding="utf-8")).get("r") if path.is_file() else None
    if rank is not None and rank != lora_r:
        raise InvalidConfigError(
            f"resume_from_checkpoint: the adapter in {checkpoint} has rank {rank}, this run's {lora_r}: set --lora-r "
            f"{rank}."
        )


def _is_complete(checkpoint: Path, args: Any) -> bool:
    """Return whether a checkpoint is one of this trainer and has all its steps."""
    kind = type(args).__name__.removeprefix("Env").removesuffix("Config")
    if args.max_steps < 1 or not (checkpoint / _STATE_FILE).exists() or trainer_of(checkpoint) != kind:
        return False  # transformers or the trainer refuses it, where it must be refused
    check_files(checkpoint)
    return int(TrainerState.load_from_json(str(checkpoint / _STATE_FILE)).global_step) >= args.max_steps


def _problem(path: Path) -> str | None:
    """Return what is wrong with a file, as far as its form tells; None: it seems complete."""
    try:
        if path.suffix == ".json":
            read_json(path)
            return None
        with open(path, "rb", opener=regular) as file:
            if path.suffix == ".safetensors":
                with safe_open(path, "pt"):  # reads the header, and compares the file's length with it
                    return None
            # The end of an archive of `torch.save` is written last.
            return None if zipfile.is_zipfile(file) else "it has been cut off, or cannot be read"
    except (OSError, SafetensorError, *NO_JSON) as error:
        return problem_of(error)


def _step(checkpoint: Path) -> int | None:
    number = checkpoint.name.partition("-")[2]
    return int(number) if number.isdigit() else None
