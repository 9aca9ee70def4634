"""Schedules of the KL coefficient: linear, cosine, or adaptive with a target KL.

A schedule is any function `(step, n_steps, kl) -> coefficient`, given as the `kl_coef` of an algorithm.
`EnvGRPOTrainer` and `EnvPPOTrainer` ask it before each generation, and the coefficient holds for all steps of that
generation, in the loss and in the reward. If a schedule has `state_dict` and `load_state_dict`, checkpoints save and
load it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.trainers.functional.kl import KLSchedule

__all__ = [
    "AdaptiveKL",
    "KLController",
    "KLSchedule",
    "create_cosine",
    "create_linear",
    "parse_kl_schedule",
]


def create_linear(first: float, last: float, *, n_steps: int | None = None) -> KLSchedule:
    """Return a schedule `first + p (last - first)` with `p = min(s / (n - 1), 1)` at step s of n.

    Args:
        first: Coefficient of the first step; 0 is allowed.
        last: Coefficient at step n - 1 and after it.
        n_steps: The n; None: the number of steps of the run.

    Raises:
        InvalidConfigError: If a coefficient is below 0 or there is no step.
    """
    _check_coefficients(first, last, n_steps=n_steps)
    return lambda step, n_run, kl: first + (last - first) * _progress(step, n_steps or n_run)


def create_cosine(first: float, last: float, *, n_steps: int | None = None) -> KLSchedule:
    """Return a schedule `last + (first - last) (1 + cos(pi p)) / 2`, with p and arguments as in `create_linear`."""
    _check_coefficients(first, last, n_steps=n_steps)

    def cosine(step: int, n_run: int, kl: float | None) -> float:
        return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * _progress(step, n_steps or n_run)))

    return cosine


class AdaptiveKL:
    """Adapts the coefficient to reach a target KL: `beta <- beta (1 + gain clip(KL / target - 1, -limit, limit))`.

    The controller of "Fine-Tuning Language Models from Human Preferences" (arXiv 1909.08593, section 2.2), but with the
    KL per token instead of per sequence. The coefficient is state: checkpoints store its `state_dict`.

    Args:
        initial: The first coefficient, above 0. The update multiplies, so a coefficient of 0 would never change.
        target: Mean KL per token in nats, above 0.
        gain: Factor of the relative error. One update changes the coefficient by at most the share `gain * limit`.
        limit: Bound on the relative error.

    Raises:
        InvalidConfigError: If an argument is not above 0, or `gain * limit` is not below 1.
    """

    def __init__(self, initial: float, target: float, *, gain: float = 0.1, limit: float = 0.2) -> None:
        for name, value in (("initial", initial), ("target", target), ("gain", gain), ("limit", limit)):
            if not (value > 0.0 and math.isfinite(value)):
                raise InvalidConfigError(f"{name}={value}; of an adaptive KL it must be above 0.")
        if gain * limit >= 1.0:
            raise InvalidConfigError(f"{gain=} times {limit=} must be below 1: the coefficient would become negative.")
        self.target, self.gain, self.limit = target, gain, limit
        self.coefficient = initial

    def __call__(self, step: int, n_steps: int, kl: float | None) -> float:
        """Update the coefficient from the measured KL, and return it."""
        if kl is not None:
            error = min(max(kl / self.target - 1.0, -self.limit), self.limit)
            self.coefficient *= 1.0 + self.gain * error
        return self.coefficient

    def state_dict(self) -> dict[str, float]:
        """Return the state to save in a checkpoint."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a saved state."""
        self.coefficient = float(state["coefficient"])


_FORMS: Mapping[str, Callable[..., KLSchedule]] = {
    "linear:FIRST:LAST": create_linear,
    "cosine:FIRST:LAST": create_cosine,
    "adaptive:INITIAL:TARGET": AdaptiveKL,
}


def parse_kl_schedule(text: str) -> KLSchedule:
    """Return the schedule that a text describes, such as "linear:0.1:0.0" or "adaptive:0.05:0.01".

    Raises:
        InvalidConfigError: If the text does not describe a schedule.
    """
    kind, *parts = str(text).split(":")
    form = next((form for form in _FORMS if form.split(":")[0] == kind.strip()), "")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not form or len(numbers) != form.count(":"):
        raise InvalidConfigError(f"the KL schedule {text!r} must be one of {', '.join(_FORMS)}.")
    return _FORMS[form](*numbers)


class KLController:
    """The current KL coefficient. The schedule computes it at each generation from the KL measured since the last one.

    Args:
        schedule: The schedule.
        coefficient: The value before the schedule's first call.
    """

    def __init__(self, schedule: KLSchedule, coefficient: float = 0.0) -> None:
        self.schedule, self.coefficient = schedule, coefficient
        self._measured: list[float] = []
        self._asked_at = -1

    def begin_generation(self, step: int, n_steps: int) -> None:
        """Call the schedule, at most once for the same step.

        Raises:
            InvalidConfigError: If it returns a number below 0 or not finite.
        """
        if step == self._asked_at:
            return
        # Several generations may start at the same step. Only the first calls the schedule: no step has measured a new
        # KL since.
        kl = sum(self._measured) / len(self._measured) if self._measured else None
        self._measured, self._asked_at = [], step
        self.coefficient = float(self.schedule(step, n_steps, kl))
        if not (self.coefficient >= 0.0 and math.isfinite(self.coefficient)):
            raise InvalidConfigError(
                f"the KL schedule returned {self.coefficient} at step {step}; it must return a number of at least 0."
            )

    def end_step(self, kl: float | None) -> None:
        """Record the mean KL per token of a step."""
        if kl is not None:
            self._measured.append(kl)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, as JSON types."""
        state_dict = getattr(self.schedule, "state_dict", None)
        state = None if state_dict is None else state_dict()
        return {"coefficient": self.coefficient, "measured": self._measured, "schedule": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.coefficient, self._measured = float(state["coefficient"]), [float(kl) for kl in state["measured"]]
        if state["schedule"] is not None and hasattr(self.schedule, "load_state_dict"):
            self.schedule.load_state_dict(state["schedule"])


def _progress(step: int, n_steps: int) -> float:
    # Step 0 has the first value and step n - 1 the last one: n - 1 intervals.
    return min(step / (n_steps - 1), 1.0) if n_steps > 1 else 1.0


def _check_coefficients(*coefficients: float, n_steps: int | None = None) -> None:
    for coefficient in coefficients:
        if not (coefficient >= 0.0 and math.isfinite(coefficient)):
            raise InvalidConfigError(f"a KL coefficient of {coefficient}; it must be at least 0.")
    if n_steps is not None and n_steps < 1:
        raise InvalidConfigError(f"n_steps={n_steps}; a schedule has at least one step.")
