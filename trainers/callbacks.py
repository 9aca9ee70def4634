"""Callbacks for any of the trainers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from llm_envs.errors import counted
from llm_envs.tracking.describing import describing
from llm_envs.tracking.loggers import jsonl_logger
from llm_envs.tracking.progress import can_draw
from llm_envs.tracking.spans import step_span, tracing

__all__ = [
    "LoggerCallback",
    "MetricsFileCallback",
    "ProgressLineCallback",
    "follow_training",
    "guard_trackers",
    "planned",
    "step_spans",
]


class LoggerCallback(TrainerCallback):
    """Pass a trainer's metrics to a logger: any function of (step, metrics).

    Args:
        logger: Called on the main process with the numbers of each logging step.
    """

    def __init__(self, logger: Callable[[int, Mapping[str, float]], None]) -> None:
        self.logger = logger

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Call the logger on the main process."""
        if state.is_world_process_zero and logs:
            # Logs may contain other values than numbers, which a logger does not take.
            numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
            self.logger(state.global_step, numbers)


class MetricsFileCallback(LoggerCallback):
    """Append all numbers of each logging step to `metrics.jsonl` in a folder. A new run replaces the file."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        super().__init__(jsonl_logger(self.path))

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Remove the file of an earlier run; a resumed run appends."""
        if state.is_world_process_zero and state.global_step == 0:
            self.path.unlink(missing_ok=True)


SHOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "reward": ("reward", ".3g"),
        "env/success": ("success", ".0%"),
        "env/turns": ("turns", ".1f"),
        "kl": ("kl", ".1g"),
        "loss": ("loss", ".3g"),
        "mean_token_accuracy": ("accuracy", ".0%"),
        "rewards/accuracies": ("accuracy", ".0%"),
        "rewards/margins": ("margin", ".3g"),
    }
)
"""Metric -> its name and format in a line of progress. Where there is a reward, the loss is left out."""


def planned(args: Any, n_steps: int) -> str:
    """Return the extent of a training in words: its optimizer steps, and the episodes or rows that they learn from."""
    n = n_steps * args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    played = n // int(args.num_iterations) if hasattr(args, "num_iterations") else None
    of = counted(n, "row") if played is None else counted(played, "episode")
    return f"{counted(n_steps, 'optimizer step')}, {of}"


class ProgressLineCallback(TrainerCallback):
    """Show one line of progress with a few metrics, instead of a line of all metrics at each logging step.

    On a terminal the line is a bar, unless `disable_tqdm` is set; elsewhere a new line is written every few seconds.
    A trainer adds one in the place of transformers' own.

    Args:
        name: Text before the line.
        keys: Names of the metrics to show; None: all of `SHOWN`.
        every_s: Seconds between two lines, where no bar is drawn.
    """

    def __init__(self, name: str = "", keys: Sequence[str] | None = None, *, every_s: float = 5.0) -> None:
        self.name, self.keys, self.every_s = name, keys, every_s
        self._bar: tqdm[Any] | None = None
        self._shown: dict[str, str] = {}
        self._written_at, self._began_at, self._written_step = -math.inf, time.monotonic(), -1

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Say how long the training is, and open the bar, on the main process."""
        if state.is_world_process_zero:
            print(planned(args, state.max_steps), file=sys.stderr, flush=True)
        if state.is_world_process_zero and can_draw(sys.stderr) and not args.disable_tqdm:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.name, dynamic_ncols=True)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Note when the step began."""
        self._began_at = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Move to the current step."""
        self._shown["s"] = f"{time.monotonic() - self._began_at:.2g} s"
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)
        elif not control.should_log:  # else its numbers follow
            self._write(state)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the metrics of a step; an evaluation's in a separate line."""
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if evaluated := self._texts({name.removeprefix("eval_"): v for name, v in logs.items() if "eval_" in name}):
            tqdm.write(self._line(state, {"evaluation": ""} | evaluated), file=sys.stderr)
            return
        seconds = self._shown.pop("s", None)
        self._shown |= self._texts(logs)
        if seconds is not None:
            self._shown["s"] = seconds  # the last word of a line
        if self._bar is not None:
            self._bar.set_postfix_str(_words(self._shown))
        else:
            self._write(state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar, or write the last line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._written_step != state.global_step:
            self._write(state, is_last=True)

    def _texts(self, logs: Mapping[str, Any]) -> dict[str, str]:
        if self.keys is not None:
            named = {key: (key.split("/")[-1], ".3g") for key in self.keys}
        else:
            named = {key: how for key, how in SHOWN.items() if key != "loss" or "reward" not in logs}
        return {name: format(float(logs[key]), how) for key, (name, how) in named.items() if logs.get(key) is not None}

    def _line(self, state: TrainerState, shown: Mapping[str, str]) -> str:
        start = f"{self.name}: " if self.name else ""
        return f"{start}step {state.global_step}/{state.max_steps}  {_words(shown)}".rstrip()

    def _write(self, state: TrainerState, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if state.is_world_process_zero and (is_last or now - self._written_at >= self.every_s):
            self._written_at, self._written_step = now, state.global_step
            print(self._line(state, self._shown), file=sys.stderr, flush=True)


def _words(shown: Mapping[str, str]) -> str:
    return "  ".join(text if name == "s" else f"{name} {text}".rstrip() for name, text in shown.items())


class _StepSpanCallback(TrainerCallback):
    """Opens a span with each step, and closes it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._stack.enter_context(step_span(state.global_step + 1, args.process_index))

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._stack.close()


@contextmanager
def step_spans(trainer: Trainer) -> Iterator[None]:
    """While the block trains, write spans of the steps and of the episodes played in them, if `trace` is set."""
    if not getattr(trainer.args, "trace", False):
        yield
        return
    with tracing(), ExitStack() as stack:  # it also closes the span of a step that fails
        callback = _StepSpanCallback(stack)
        trainer.add_callback(callback)
        try:
            yield
        finally:
            trainer.remove_callback(callback)


def follow_training(trainer: Trainer) -> None:
    """Show a line a step in the place of transformers' dictionary of all metrics; write all to `metrics.jsonl`.

    Callbacks of the user's take precedence: a `ProgressLineCallback`, and none where transformers' was removed.

    Args:
        trainer: A trainer of TRL's, before it trains. A second call changes nothing.
    """
    there = trainer.callback_handler.callbacks
    has_line = any(isinstance(callback, ProgressLineCallback) for callback in there)
    for callback in [callback for callback in there if type(callback) in (PrinterCallback, ProgressCallback)]:
        trainer.remove_callback(callback)
        if not has_line:
            trainer.add_callback(ProgressLineCallback())
            has_line = True
    if trainer.args.output_dir and not any(isinstance(callback, MetricsFileCallback) for callback in there):
        trainer.add_callback(MetricsFileCallback(trainer.args.output_dir))


_TRACKERS = (*INTEGRATION_TO_CALLBACK.values(), PrinterCallback, ProgressCallback, LoggerCallback, ProgressLineCallback)
_STARTS = ("on_init_end", "on_train_begin")
"""Before the first step. An error there, such as a missing login, ends the run when nothing can be lost yet."""


def guard_trackers(callbacks: Iterable[TrainerCallback]) -> None:
    """Let trackers fail without ending a training: a failure while training is a warning, and disables the tracker.

    Args:
        callbacks: A trainer's. Only the trackers of transformers (`report_to`) and the callbacks of this module
            are changed.
    """
    for callback in callbacks:
        if isinstance(callback, _TRACKERS) and not isinstance(callback.on_log, _Guarded):
            failed: list[str] = []
            for event in dir(TrainerCallback):
                if event.startswith("on_") and event not in _STARTS:
                    setattr(callback, event, _Guarded(getattr(callback, event), type(callback).__name__, failed))


class _Guarded:
    """An event of a tracker. `failed` is shared by a tracker's events, and not empty once one has failed."""

    def __init__(self, call: Callable[..., Any], name: str, failed: list[str]) -> None:
        self._call, self._name, self._failed = call, name, failed

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if not self._failed:
            self._failed.append(self._name)
            with describing(f"the tracker {self._name}"):
                self._call(*args, **kwargs)
                self._failed.clear()
