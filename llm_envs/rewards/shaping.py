"""Shaping: additions to each turn's reward for learning, while the task's own reward stays unchanged.

A shaping function takes the trajectory and returns one addition per turn. `shape` collects them beside the task's
rewards and changes no trajectory: filters, logs and evaluation still see the task's rewards.

    ShapingFn = (Trajectory) -> additions (n_turns,)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.functions import named_functions
from llm_envs.rewards.normalize import FloatArray
from llm_envs.rewards.words import own_messages
from llm_envs.types import Message, Trajectory

__all__ = [
    "Potential",
    "Shaped",
    "ShapingFn",
    "ShapingFns",
    "create_clipping",
    "create_entropy_bonus",
    "create_kl_penalty",
    "create_length_bonus",
    "create_potential_shaping",
    "create_step_cost",
    "create_success_bonus",
    "named_shaping",
    "shape",
    "turn_lengths",
    "turn_sums",
]

ShapingFn = Callable[[Trajectory], npt.ArrayLike]
"""A trajectory -> the additions to the rewards of its turns, shape (n_turns,)."""
ShapingFns = ShapingFn | Mapping[str, ShapingFn] | Sequence[ShapingFn]
"""One function, or several by name. In a list, each has the name of its factory or function."""
Potential = Callable[[Sequence[Message]], float]
"""Φ: the conversation so far -> how promising it is."""
TokenArrays = Sequence[npt.ArrayLike]
"""One array (T,) for each of a trajectory's rows, aligned with its ids."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """The rewards of one trajectory's turns: the task's rewards and the additions."""

    task: FloatArray
    """Shape (n_turns,): the task's rewards."""
    additions: Mapping[str, FloatArray]
    """By the name of the shaping function, each of shape (n_turns,)."""

    @property
    def rewards(self) -> FloatArray:
        """Shape (n_turns,): the task's rewards with all additions."""
        return self.task + sum(self.additions.values(), np.zeros(len(self.task)))

    @property
    def totals(self) -> dict[str, float]:
        """Sum of each addition over the turns."""
        return {name: float(values.sum()) for name, values in self.additions.items()}


def named_shaping(shaping_fns: ShapingFns) -> dict[str, ShapingFn]:
    """Return shaping functions by name.

    Raises:
        InvalidConfigError: If two have the same name, or one is not callable.
    """
    return named_functions(shaping_fns, "shaping function")


def shape(trajectory: Trajectory, shaping_fns: ShapingFns) -> Shaped:
    """Return the rewards of a trajectory's turns and what the shaping functions add to them.

    Args:
        trajectory: Any; it is not changed.
        shaping_fns: One or several.

    Raises:
        InvalidConfigError: If a function does not return one finite number per turn.
    """
    n_turns, additions = len(trajectory.turns), {}
    for name, function in named_shaping(shaping_fns).items():
        values = np.asarray(function(trajectory), dtype=np.float64)
        if values.shape != (n_turns,) or not np.isfinite(values).all():
            raise InvalidConfigError(
                f"the shaping function {name!r} returned {values!r:.120} for {n_turns} turns; it must be one finite "
                "number for each."
            )
        additions[name] = values
    return Shaped(np.array([turn.reward for turn in trajectory.turns], dtype=np.float64), additions)


def _named(name: str, function: Callable[..., FloatArray], *arguments: object) -> ShapingFn:
    made = functools.partial(function, *arguments)
    made.__dict__["__name__"] = name
    return made


# ----------------------------------------------------------------------------------------------------------------------
# Of turns
# ----------------------------------------------------------------------------------------------------------------------


def create_step_cost(cost: float) -> ShapingFn:
    """Subtract `cost` from every turn's reward."""
    return _named("step_cost", _step_cost, _finite("create_step_cost", "cost", cost))


def _step_cost(cost: float, trajectory: Trajectory) -> FloatArray:
    return np.array([0.0 if turn.is_summary else -cost for turn in trajectory.turns])


def create_success_bonus(bonus: float) -> ShapingFn:
    """Add `bonus` to the last turn of an episode that succeeded (`is_success`)."""
    return _named("success_bonus", _success_bonus, _finite("create_success_bonus", "bonus", bonus))


def _success_bonus(bonus: float, trajectory: Trajectory) -> FloatArray:
    additions = np.zeros(len(trajectory.turns))
    if trajectory.is_success and len(additions):
        additions[-1] = bonus
    return additions


def create_clipping(low: float, high: float, shaping_fns: ShapingFns = ()) -> ShapingFn:
    """Keep each turn's reward within [low, high]: add clip(r + Σ f, low, high) − r.

    Args:
        low: Lowest reward of a turn.
        high: Highest reward of a turn.
        shaping_fns: f: shaping whose additions are included in the clipped reward. Pass these functions only here.
    """
    if not low <= high:
        raise InvalidConfigError(f"create_clipping: {low=}, {high=}; expected low <= high.")
    return _named("clipping", _clipping, low, high, named_shaping(shaping_fns))


def _clipping(low: float, high: float, shaping_fns: Mapping[str, ShapingFn], trajectory: Trajectory) -> FloatArray:
    shaped = shape(trajectory, shaping_fns)
    return np.clip(shaped.rewards, low, high) - shaped.task


def create_potential_shaping(
    potential: Potential, *, gamma: float = 1.0, scale: float = 1.0, bootstraps_truncated: bool = False
) -> ShapingFn:
    """Add γΦ(s′) − Φ(s) to each turn, which does not change the best behaviour.

    The state before turn t is the conversation so far; the state after the last turn is the end, with potential 0. So
    Σ_t γ^t f_t = −Φ(s_0) for any behaviour: the discounted returns of all episodes from one start shift by the same
    number, and their order stays. Ng, Harada & Russell, "Policy invariance under reward transformations" (ICML 1999).

    Args:
        potential: Φ(messages so far), a number.
        gamma: γ, the discount of the returns used for learning: 1 if the turns' rewards are summed.
        scale: Factor of the potential.
        bootstraps_truncated: Whether a value function estimates the rest of a truncated episode. Then its last state
            keeps its potential, and the additions sum to γ^n Φ(s_n) − Φ(s_0).
    """
    if not 0 <= gamma <= 1:
        raise InvalidConfigError(f"create_potential_shaping: gamma is {gamma!r}; it must be in [0, 1].")
    return _named("potential", _potential_shaping, potential, gamma, scale, bootstraps_truncated)


def _potential_shaping(
    potential: Potential, gamma: float, scale: float, bootstraps_truncated: bool, trajectory: Trajectory
) -> FloatArray:
    own, n_turns = own_messages(trajectory), len(trajectory.turns)
    if len(own) < n_turns:
        raise InvalidConfigError(f"{n_turns} turns, but {len(own)} messages are known to be the agent's: if an "
                                 "environment writes assistant messages, states cannot be identified.")  # fmt: skip
    # A failed step may leave a message without a turn at the end; it belongs to no state.
    values = np.array([scale * potential(trajectory.messages[:place]) for place in own[:n_turns]] + [0.0])
    if bootstraps_truncated and trajectory.truncated:
        values[-1] = scale * potential(trajectory.messages)
    return gamma * values[1:] - values[:-1]


# ----------------------------------------------------------------------------------------------------------------------
# Of tokens
# ----------------------------------------------------------------------------------------------------------------------


def turn_lengths(trajectory: Trajectory) -> npt.NDArray[np.int64]:
    """Return the number of tokens that the agent wrote in each turn, shape (n_turns,); 0 for a turn without tokens."""
    lengths = np.zeros(len(trajectory.turns), dtype=np.int64)
    for index, (start, stop) in _spans(trajectory).items():
        lengths[index] = stop - start
    return lengths


def turn_sums(trajectory: Trajectory, values: TokenArrays) -> FloatArray:
    """Return, for each turn, the sum of one value per token over the agent's tokens: shape (n_turns,).

    Args:
        trajectory: The episode.
        values: For each row an array (T,), aligned with its ids. Values at other tokens are ignored.

    Raises:
        InvalidConfigError: If the shapes differ from the rows' shapes.
    """
    arrays = [np.asarray(row, dtype=np.float64) for row in values]
    given, rows = [array.shape for array in arrays], [(len(row),) for row in trajectory.rows]
    if given != rows:
        raise InvalidConfigError(f"values of shapes {given} for rows of shapes {rows}: pass one for each token.")
    sums = np.zeros(len(trajectory.turns))
    for index, (start, stop) in _spans(trajectory).items():
        sums[index] = arrays[trajectory.turns[index].row][start:stop].sum()
    return sums


def _spans(trajectory: Trajectory) -> dict[int, tuple[int, int]]:
    return {
        index: trajectory.rows[turn.row].spans[turn.span]
        for index, turn in enumerate(trajectory.turns)
        if turn.row >= 0
    }


def create_length_bonus(bonus: float, max_tokens: int) -> ShapingFn:
    """Add bonus · min(n, L)/L to each turn of n tokens: longer turns get more, up to a length. Negative: a penalty.

    Args:
        bonus: The addition to a turn of L tokens or more.
        max_tokens: L.
    """
    if max_tokens < 1:
        raise InvalidConfigError(f"create_length_bonus: max_tokens is {max_tokens!r}; it must be at least 1.")
    return _named("length_bonus", _length_bonus, _finite("create_length_bonus", "bonus", bonus), max_tokens)


def _length_bonus(bonus: float, max_tokens: int, trajectory: Trajectory) -> FloatArray:
    return bonus * np.minimum(turn_lengths(trajectory), max_tokens) / max_tokens


def create_kl_penalty(
    coef: float,
    logps_fn: Callable[[Trajectory], TokenArrays],
    ref_logps_fn: Callable[[Trajectory], TokenArrays],
    *,
    kl_fn: Callable[[FloatArray, FloatArray], FloatArray] = np.subtract,
) -> ShapingFn:
    """Subtract coef · Σ_tokens kl(log π, log ρ) from each turn: the KL penalty in the reward.

    With k1 the penalty's expectation is coef · KL(π‖ρ) over the turn's tokens, and the policy gradient of the reward is
    the gradient of KL(π‖ρ) (Ziegler et al., "Fine-Tuning Language Models from Human Preferences", 1909.08593). Keep
    k1 unless you have a reason: as a reward, k2 and k3 do not keep the policy near the reference.

    Both functions must score at the same temperature (`llm_envs.policies.inference.token_logps`). Do not use the
    log-probabilities in the rows as π's: the sampler reports them for the distribution after top_p, top_k, min_p or a
    repetition penalty.

    Args:
        coef: Factor.
        logps_fn: The trajectory -> log π of its tokens: for each row an array (T,). Only the agent's tokens are used.
        ref_logps_fn: The same for ρ.
        kl_fn: (log π, log ρ), each (T,), -> (T,). The default is k1, log π − log ρ.

    Raises:
        InvalidConfigError: (When called) if a log-probability is missing.
    """
    coef = _finite("create_kl_penalty", "coef", coef)
    return _named("kl_penalty", _kl_penalty, coef, logps_fn, ref_logps_fn, kl_fn)


def _kl_penalty(
    coef: float,
    logps_fn: Callable[[Trajectory], TokenArrays],
    ref_logps_fn: Callable[[Trajectory], TokenArrays],
    kl_fn: Callable[[FloatArray, FloatArray], FloatArray],
    trajectory: Trajectory,
) -> FloatArray:
    scored = [[np.asarray(row, dtype=np.float64) for row in fn(trajectory)] for fn in (logps_fn, ref_logps_fn)]
    lengths = [len(row) for row in trajectory.rows]
    for name, rows in zip(("logps_fn", "ref_logps_fn"), scored, strict=True):
        if [len(row) for row in rows] != lengths:
            raise InvalidConfigError(f"{name} returned log-probabilities of {[len(row) for row in rows]} tokens for "
                                     f"rows of {lengths} tokens.")  # fmt: skip
    values = []
    for row, logps, ref_logps in zip(trajectory.rows, *scored, strict=True):
        kl = np.zeros(len(row))
        kl[row.mask] = kl_fn(logps[row.mask], ref_logps[row.mask])
        values.append(kl)
    return -coef * turn_sums(trajectory, values)


def create_entropy_bonus(coef: float, *, entropies_fn: Callable[[Trajectory], TokenArrays] | None = None) -> ShapingFn:
    """Add coef · (mean entropy of the tokens) to each turn; 0 for a turn without tokens.

    Args:
        coef: Factor.
        entropies_fn: The trajectory -> the entropy at each token, in nats: for each row an array (T,). None takes minus
            the log-probability at sampling, whose expectation is the entropy of the sampling distribution (after
            top_p, top_k, min_p or a repetition penalty).
    """
    coef = _finite("create_entropy_bonus", "coef", coef)
    return _named("entropy_bonus", _entropy_bonus, coef, entropies_fn or _surprisals)


def _surprisals(trajectory: Trajectory) -> list[FloatArray]:
    return [-row.logps.astype(np.float64) for row in trajectory.rows]


def _entropy_bonus(
    coef: float, entropies_fn: Callable[[Trajectory], TokenArrays], trajectory: Trajectory
) -> FloatArray:  # fmt: skip
    return coef * turn_sums(trajectory, entropies_fn(trajectory)) / np.maximum(turn_lengths(trajectory), 1)


def _finite(where: str, name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidConfigError(f"{where}: {name} is {value!r}; it must be a finite number.")
    return value
