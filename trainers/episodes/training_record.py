"""The record of what a training learned from its episodes, which `llm-envs audit` recomputes.

A file `record/NAME.jsonl` beside the episodes in `trajectories/NAME`, one for each process and start of a run. Its
lines have a `kind`: "run" (settings, once), "generation" (rewards, masks, advantages) and "step" (the loss of an
optimizer step). It has about one number for each episode, and for each token only where advantages differ by token, so
it is small beside the episodes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from accelerate.utils import is_peft_model

from llm_envs.data.files import own
from llm_envs.data.writer import TrajectoryWriter
from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.base import named_rewards
from llm_envs.rewards.shaping import named_shaping
from llm_envs.tracking.describing import describing
from llm_envs.trainers.episodes.batches import batch_from_trl
from llm_envs.trainers.episodes.rewards import EpisodeRewards, RewardSettings, group_numbers
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.groups import group_mean

__all__ = [
    "FOLDER",
    "RecordsLearning",
    "TrainingRecord",
    "baselines",
    "describe",
    "pack",
    "precision",
    "restore",
    "reward_facts",
    "row_digest",
    "rows_of",
    "unpack",
]

FOLDER = "record"
_FUNCTIONS = "llm_envs.trainers.functional."
"""Only functions of these modules are called by a name from a file: another module could run any code."""
_SETTINGS = (
    *("loss_type", "beta", "epsilon", "epsilon_high", "scale_rewards", "multi_objective_aggregation"),
    *("importance_sampling_level", "num_iterations", "steps_per_generation", "gradient_accumulation_steps"),
    *("per_device_train_batch_size", "num_generations", "async_generations", "seed", "logging_steps"),
    *("max_completion_length", "mask_truncated_completions", "use_vllm", "thinking", "history"),
    *("use_training_template", "gamma", "lam", "value_lam", "lam_alpha", "discount", "whiten_advantages"),
    *("value_clip", "value_coef", "value_warmup_steps", "off_policy_mask_threshold", "top_entropy_quantile"),
    "entropy_coef",
)
"""The trainers' settings that advantages and losses depend on."""


class TrainingRecord:
    """Appends lines of a training's record, each handed to the operating system immediately.

    Args:
        stored: The writer of the episodes.
        run: The first line (`run_record`).
    """

    def __init__(self, stored: TrajectoryWriter, run: Mapping[str, Any]) -> None:
        folder = Path(stored.path)
        self.path = folder.parent.parent / FOLDER / f"{folder.name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write(run)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; NaN and infinity become null."""
        try:
            line = json.dumps(record, allow_nan=False, default=str)
        except ValueError:  # a number that is not finite; to look at each is slow
            line = json.dumps(_plain(record), allow_nan=False)
        with open(self.path, "a", encoding="utf-8", opener=own) as file:
            file.write(line + "\n")


class RecordsLearning:
    """Records what a trainer of TRL learns: a mixin before TRL's class."""

    _training_record: TrainingRecord | None = None
    _has_record = True
    """Whether the record could be written so far."""
    _step_loss: Any = 0.0
    state: Any

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Take the gradients of a micro-batch as transformers does, and add up the losses of the step."""
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        self._step_loss = self._step_loss + loss
        return loss

    def _record_generation(self: Any, output: Mapping[str, Any], **facts: Any) -> None:
        """Append the latest generation of training, and before the first one the run; nothing without a writer.

        Args:
            output: The generation's batch, by TRL's names.
            **facts: Further facts, as JSON types.
        """
        writer = self._player.writer
        if self._mode != "train" or writer is None or not self._has_record:
            return
        self._has_record = False
        with describing("the record of what is learned"):
            if self._training_record is None:
                self._training_record = TrainingRecord(writer, self._run_record())
            self._training_record.write(self._generation_record(output) | facts)
            self._has_record = True

    def _record_step(self) -> None:
        """Append the loss of the optimizer step that has just ended: the sum over this process's micro-batches."""
        step_loss, self._step_loss = self._step_loss, 0.0
        if self._training_record is None or not self._has_record:
            return
        self._has_record = False
        with describing("the record of what is learned"):
            self._training_record.write({"kind": "step", "step": self.state.global_step, "loss": float(step_loss)})
            self._has_record = True

    def _run_record(self: Any) -> dict[str, Any]:
        """Return the first line of the record."""
        args, model = self.args, self.accelerator.unwrap_model(self.model)
        codec, sampling = self.collector.codec, self.collector.sampling
        functions = {
            "context_fn": self._context_fn,
            "trajectory_filter": self._trajectory_filter,
            "ref_model_fn": self._reference.ref_model_fn,
            "reference_update_fn": self._reference.update_fn,
        }
        return {
            "kind": "run",
            "trainer": self._kind,
            "model": getattr(model, "name_or_path", None) or None,
            "is_new": _is_new(model),
            "dtype": precision(model, args),
            "settings": {name: getattr(args, name) for name in _SETTINGS if hasattr(args, name)},
            "sampling": {f.name: getattr(sampling, f.name) for f in fields(sampling) if f.name != "stop_strings"},
            "template": dict(getattr(codec.template, "kwargs", {})),
            "max_model_len": self._policy.max_model_len,
            "rewards": reward_facts(self._reward_settings),
            "unknown": [name for name, function in functions.items() if function is not None],
            "pad_id": int(self.processing_class.pad_token_id),
            "processes": self.accelerator.num_processes,
            "task_weights": self._task_weights,
        }

    def _generation_record(self: Any, output: Mapping[str, Any]) -> dict[str, Any]:
        """Return the line of the latest generation, with the advantages as the loss reads them."""
        episodes, batch = self.generation.episodes, batch_from_trl(output)
        record: dict[str, Any] = {
            "kind": "generation",
            "step": self.state.global_step,
            "episodes": [[t.group_id, t.member] for t in episodes.trajectories],
            "status": [t.status for t in episodes.trajectories],
            "columns": {name: list(values) for name, values in episodes.columns.items()},
            "weights": dict(episodes.weights),
            "turn_rewards": [part.tolist() for part in episodes.turn_rewards],
            "baselines": baselines(episodes),
            "rows": [row_digest(ids, mask) for ids, mask in rows_of(batch)],
            "algorithm": describe(self._algorithm),
            "kl_coef": self.beta,
        }
        names = {"kl_penalties": "kl_penalties", "values": "old_values"}
        tokens = {name: output[key] for name, key in names.items() if key in output}
        if batch.advantages is not None and batch.advantages.ndim == 1:
            record["advantages"] = batch.advantages.tolist()
        elif batch.advantages is not None:
            tokens["advantages"] = batch.advantages
        places = batch.mask_BT.bool()
        for name, values_BT in tokens.items():
            rows = zip(values_BT.expand(places.shape).cpu(), places.cpu(), strict=True)
            record[name] = [pack(row[own].numpy()) for row, own in rows]
        return record


def precision(model: Any, settings: Any) -> str:
    """Return the dtype of a training's matrix products, such as float32."""
    if getattr(settings, "bf16", False) or getattr(settings, "fp16", False):
        return "bfloat16" if settings.bf16 else "float16"
    dtype = getattr(settings, "autocast_dtype", None) or next(model.parameters()).dtype
    return str(dtype).removeprefix("torch.")


def _is_new(model: Any) -> bool:
    """Return whether a model is the one of its name: it has no adapter, or one that does not change it yet."""
    if not is_peft_model(model):
        return True
    ups = [weight for name, weight in model.named_parameters() if ".lora_B." in name]
    return bool(ups) and not any(bool(weight.any()) for weight in ups)


def reward_facts(rewards: RewardSettings) -> dict[str, Any]:
    """Return what can be stored of reward settings: names of functions, weights, whether components are columns."""
    return {
        "reward_fns": [] if rewards.reward_fns is None else list(named_rewards(rewards.reward_fns)),
        "shaping_fns": list(named_shaping(rewards.shaping_fns or ())),
        "components": rewards.components,
        "aggregate": rewards.aggregate if isinstance(rewards.aggregate, str) else rewards.aggregate is not None,
        "weights": None if rewards.weights is None else dict(rewards.weights),
    }


def pack(values: Any) -> str:
    """Return numbers, shape (N,), as base64 of float32: a quarter of their size as text."""
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode()


def unpack(text: str) -> list[float]:
    """Return the numbers that `pack` packed."""
    values: list[float] = np.frombuffer(base64.b64decode(text), dtype="<f4").tolist()
    return values


def baselines(episodes: EpisodeRewards) -> list[float | None]:
    """Return the mean reward of each episode's group, over its scored members; None without one."""
    if not episodes.trajectories:
        return []
    rewards_E = torch.from_numpy(episodes.rewards)
    is_scored_E = ~rewards_E.isnan()
    means_E = group_mean(rewards_E.nan_to_num(0.0), is_scored_E, torch.tensor(group_numbers(episodes.trajectories)))
    return [mean if scored else None for mean, scored in zip(means_E.tolist(), is_scored_E.tolist(), strict=True)]


def rows_of(batch: Batch) -> list[tuple[Any, Any]]:
    """Return token ids and trained mask of each row of a batch without padding, arrays of shape (T,) each."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    prompts, is_prompt, completions, is_completion = (batch.need(name).cpu().numpy() for name in names)
    ids, is_token = (
        np.concatenate([prompts, completions], 1),
        np.concatenate([is_prompt, is_completion], 1).astype(bool),
    )
    trained = np.concatenate([np.zeros_like(is_prompt), batch.mask_BT.long().cpu().numpy()], 1)
    return [(row[own], mask[own]) for row, mask, own in zip(ids, trained, is_token, strict=True)]


def row_digest(ids: Any, mask: Any) -> list[int]:
    """Return [number of tokens, of trained ones, checksum of both] of a row; arrays of shape (T,)."""
    own = np.asarray(mask).astype(np.uint8)
    checksum = zlib.crc32(own.tobytes(), zlib.crc32(np.asarray(ids).astype(np.int32).tobytes()))
    return [len(own), int(own.sum()), checksum]


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm as JSON types, from which `restore` makes it again."""
    return {f.name: _described(getattr(algorithm, f.name)) for f in fields(algorithm)}


def restore(described: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm that `describe` described.

    Raises:
        InvalidConfigError: If it has a function that is not of `trainers.functional`.
    """
    values = {name: _restored(name, value) for name, value in described.items()}
    if not values["kl_coef"]:
        values |= {"kl_fn": None, "kl_in": "loss"}  # a schedule that is at 0 now
    return replace(Algorithm("restored"), **values)


def _described(value: Any) -> Any:
    if isinstance(value, partial):
        bound = {name: _described(part) for name, part in value.keywords.items()}
        return {"function": _described(value.func), "arguments": bound}
    if callable(value):
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        return {"function": f"{module}:{name}" if name and "<" not in name else repr(value)}
    return value


def _restored(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = value["function"]
    if isinstance(name, Mapping):
        name = name["function"]
    if not name.startswith(_FUNCTIONS) or "__" in name:
        raise InvalidConfigError(f"the algorithm's {field} is a function of yours ({name}): give the algorithm.")
    function: Callable[..., Any] = resolve_name(name)
    arguments = {key: _restored(field, part) for key, part in value.get("arguments", {}).items()}
    return partial(function, **arguments) if arguments else function


def _plain(value: Any) -> Any:
    """Return a value as strict JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
