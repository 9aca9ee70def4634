"""Checks of `certify` about sameness: the interface, determinism, seeds, splits, and isolation between episodes.

Each check takes the candidate and returns its findings; `Inapplicable` if there is nothing to examine. If the check
does not hold, it raises `BrokenClause` with the fault and the remedy.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing

import gymnasium as gym
import numpy as np

from llm_envs.checker.candidate import Candidate, Trace, difference, global_random_state
from llm_envs.checker.play_clauses import expected_distinct
from llm_envs.checker.subject import Inapplicable, Step, repeat, require
from llm_envs.errors import InvalidConfigError

__all__ = [
    "differs_by_seed",
    "draws_anew_without_a_seed",
    "has_separate_splits",
    "keeps_the_interface",
    "leaves_randomness_alone",
    "plays_each_episode_alike",
    "plays_side_by_side",
    "repeats_its_episodes",
]

_N_SEEDS = 40
_FEWEST_DISTINCT = 0.25
"""Least share of different problems among `_N_SEEDS` seeds, if the number of problems is not declared."""
_N_UNSEEDED = 8
_N_DRAWS = 150
"""Episodes that are begun in each split."""
_MOSTLY_NEW = 0.5
"""From this share of different first observations in a split, the same one in both splits is a leak."""


def keeps_the_interface(candidate: Candidate) -> str:
    """`reset` and `step` return what Gymnasium prescribes, with texts that can be encoded as UTF-8."""
    env = candidate.env
    returned = env.reset(seed=0)
    require(
        isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict),
        f"reset returned {returned!r:.100}: return (observation, info), with a dict as info",
    )
    _require_text(returned[0], "reset")
    n_steps = 0
    for seed in range(len(candidate.references)):
        env.reset(seed=seed)
        for action in candidate.references[seed].tried:
            try:
                answered = env.step(action)
            except Exception:  # the check of crashes reports it
                break
            require(
                isinstance(answered, tuple) and len(answered) == 5,
                f"step returned {answered!r:.100}: return (observation, reward, terminated, truncated, info)",
            )
            observation, reward, terminated, truncated, info = answered
            _require_text(observation, "step")
            require(
                isinstance(reward, int | float | np.number) and not isinstance(reward, bool),
                f"the reward {reward!r:.60} is not a number: return a float",
            )
            for name, value in (("terminated", terminated), ("truncated", truncated)):
                require(isinstance(value, bool | np.bool_), f"{name} is {value!r:.60}: return a bool")
            require(isinstance(info, dict), f"info is {info!r:.60}: return a dict")
            n_steps += 1
            if terminated or truncated:
                break
    return f"{n_steps} steps"


def _require_text(observation: object, method: str) -> None:
    require(isinstance(observation, str), f"the observation of {method} is {observation!r:.60}: return a str")
    try:
        str(observation).encode()
    except UnicodeEncodeError as error:
        require(False, f"the observation of {method} cannot be encoded ({error.reason}): leave lone surrogates out")


def repeats_its_episodes(candidate: Candidate) -> str:
    """One seed and the same actions give one episode in two fresh environments, whatever the global random state."""
    require(
        not candidate.repeats,
        f"{candidate.repeats}: draw only from self.np_random after super().reset(seed=seed), not from time, ids, sets "
        "or the modules random and numpy.random",
    )
    return f"{sum(len(trace.steps) for trace in candidate.references)} steps repeat"


def leaves_randomness_alone(candidate: Candidate) -> str:
    """No episode draws from or seeds `random` and `numpy.random`."""
    with global_random_state(789):
        before = random.getstate(), str(np.random.get_state())
        candidate.play_fresh(0, candidate.player(0))
        after = random.getstate(), str(np.random.get_state())
    require(before == after, "an episode changes the state of random or numpy.random: draw only from self.np_random")
    return "random and numpy.random are unchanged"


def differs_by_seed(candidate: Candidate) -> str:
    """Different seeds give different problems."""
    declared = candidate.n_problems
    if declared == 1:
        return Inapplicable("one problem is declared")
    found = len(set(_openings(candidate)))
    if found == 1:  # it begins always alike: look at what follows
        found = len({str(_later(candidate, seed)) for seed in range(_N_SEEDS)})
    least = _FEWEST_DISTINCT * _N_SEEDS if declared is None else expected_distinct(declared, _N_SEEDS) / 2
    require(
        found >= least,
        f"{_N_SEEDS} seeds gave {found} different episodes, at least {least:.0f} expected: draw the problem from "
        "self.np_random after super().reset(seed=seed), or declare n_problems",
    )
    return f"{found} different episodes from {_N_SEEDS} seeds"


def _openings(candidate: Candidate) -> list[str]:
    return [candidate.play(candidate.env, seed, repeat([]), most=0).opening for seed in range(_N_SEEDS)]


def _later(candidate: Candidate, seed: int) -> list[tuple[str, str]]:
    trace = candidate.play(candidate.env, seed, candidate.player(0), most=10)
    return [(step.observation, repr(step.reward)) for step in trace.steps]


def draws_anew_without_a_seed(candidate: Candidate) -> str:
    """After a reset with a seed, resets without one give other problems."""
    if candidate.n_problems == 1 or len(set(_openings(candidate))) < _FEWEST_DISTINCT * _N_SEEDS:
        return Inapplicable("episodes begin alike")
    with closing(candidate.make()) as env:
        env.reset(seed=0)
        found = len({env.reset()[0] for _ in range(_N_UNSEEDED)})
    require(
        found > 1,
        f"after reset(seed=0), {_N_UNSEEDED} resets without a seed gave one problem: seed only if a seed is given",
    )
    return f"{found} different problems in {_N_UNSEEDED} resets"


def has_separate_splits(candidate: Candidate) -> str:
    """The splits train and test share no first observation, under equal seeds or others."""
    shown: dict[str, list[str]] = {}
    for split in ("train", "test"):
        try:
            env = candidate.make(split=split)
        except (TypeError, InvalidConfigError, ValueError):
            return Inapplicable("it takes no argument split with the values train and test")
        with closing(env):
            shown[split] = [env.reset(seed=seed)[0] for seed in range(_N_DRAWS)]
    if any(len(set(openings)) < _MOSTLY_NEW * _N_DRAWS for openings in shown.values()):
        return Inapplicable("too few problems, or episodes that begin alike")
    again = [opening for opening in shown["test"] if opening in set(shown["train"])]
    require(
        not again,
        f"{len(again)} of {_N_DRAWS} test episodes begin as one of train does, such as {again[:1]!r:.120}: divide the "
        "problems by a hash of what they ask",
    )
    return f"{_N_DRAWS} episodes of each split begin differently"


def plays_each_episode_alike(candidate: Candidate) -> str:
    """An episode is the same after others, also after one that was left in the middle, as in a fresh environment."""
    if candidate.repeats:
        return Inapplicable("episodes do not even repeat in fresh environments")
    actions = candidate.references[1].actions
    with closing(candidate.make()) as env:
        for seed in (0, 0, *range(1, len(candidate.references))):
            _require_alike(candidate, env, seed, "after other episodes")
        candidate.play(env, 1, repeat(actions), most=len(actions) // 2)
        _require_alike(candidate, env, 0, "after an episode that was left in the middle")
    return f"{len(candidate.references) + 2} episodes in one environment"


def _require_alike(candidate: Candidate, env: gym.Env[str, str], seed: int, when: str) -> None:
    trace = candidate.references[seed]
    found = difference(trace, candidate.play(env, seed, repeat(trace.tried), most=len(trace.tried)))
    require(not found, f"seed {seed}, {when}: in a fresh environment {found}: set all state in reset()")


def plays_side_by_side(candidate: Candidate) -> str:
    """Two environments that are stepped in turns, play as each does by itself, also after one is closed."""
    if candidate.repeats:
        return Inapplicable("episodes do not even repeat in fresh environments")
    first, second = candidate.make(), candidate.make()
    for seed, other in ((0, 1), (2, 3)):
        wanted = candidate.references[seed], candidate.references[other]
        played = _in_turns((first, second), (seed, other), wanted)
        for trace, got in zip(wanted, played, strict=True):
            found = difference(trace, got)
            require(not found, f"seeds {seed} and {other} in turns: {found}: keep no state in the class or the module")
    first.close()
    _require_alike(candidate, second, 0, "after another environment was closed")
    second.close()
    return "2 pairs of episodes in turns"


def _in_turns(envs: Iterable[gym.Env[str, str]], seeds: Iterable[int], wanted: Iterable[Trace]) -> list[Trace]:
    """Play several episodes step by step in turns."""
    playing = [
        (env, Trace(env.reset(seed=seed)[0]), trace) for env, seed, trace in zip(envs, seeds, wanted, strict=True)
    ]
    traces = {id(env): trace for env, trace, _ in playing}
    for turn in range(max(len(trace.tried) for *_, trace in playing)):
        for env, _, whole in playing:
            trace = traces[id(env)]
            if turn >= len(whole.tried) or trace.is_over or trace.error is not None:
                continue
            action = whole.tried[turn]
            try:
                trace.steps.append(Step(action, *env.step(action)))
            except Exception as error:
                traces[id(env)] = Trace(trace.opening, trace.steps, error, action)
    return [traces[id(env)] for env, *_ in playing]
