"""Clauses about a task's declarations, its docstring, and its use by Gymnasium.

Each clause takes the subject and returns its findings. If the clause does not hold, it raises `BrokenClause`
with the fault and the remedy.
"""

from __future__ import annotations

import inspect
import json
import math
import pickle
import time
import warnings
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

from llm_envs.checker.episodes import problem_of, unwrap
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import EXCUSABLE, BrokenClause, require
from llm_envs.errors import InvalidConfigError
from llm_envs.spaces import TextSpace

__all__ = [
    "checks_its_arguments",
    "declares_its_numbers",
    "documents_its_difficulties",
    "has_a_json_spec",
    "has_docstring_headings",
    "is_made",
    "is_vectorized",
    "passes_gymnasium_check",
    "pickles",
    "plays_given_problems",
    "resets_quickly",
]

DOCSTRING_HEADINGS = ("Description", "Observation", "Action", "Reward", "Episode End", "Arguments", "Version History")
_MIN_RESETS_PER_S = 1_000
_MIN_STEPS_PER_S = 500
_FEWEST_WORDS = 5
"""Least number of words in a sentence that gives a reason."""


def is_made(subject: Subject) -> str:
    """`gymnasium.make` gives a `TextEnv` with the shared text spaces."""
    require(
        subject.is_task,
        f"{type(subject.env.unwrapped).__name__} is not an llm_envs.TextEnv: subclass it or one of its subclasses, or "
        "examine it with `llm-envs certify`",
    )
    task = subject.task
    for name in ("observation_space", "action_space"):
        space = getattr(task, name)
        require(
            space == TextSpace(),
            f"{name} is {space}: leave it as TextEnv sets it, or the task cannot share vector environments",
        )
    return type(task).__name__


def passes_gymnasium_check(subject: Subject) -> str:
    """Gymnasium's `check_env` finds nothing, with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(subject.make().unwrapped)
    return "check_env without a warning"


def declares_its_numbers(subject: Subject) -> str:
    """Weights, chance rate, number of problems, and reasons against clauses are declared with the right types."""
    task = subject.task
    weights = task.reward_weights
    require(
        weights and all(isinstance(w, float) and math.isfinite(w) for w in weights.values()),
        f"reward_weights is {weights}: declare each component's weight as a finite float",
    )
    require(0 <= task.chance_rate <= 1, f"chance_rate is {task.chance_rate!r}: it must be in [0, 1]")
    require(
        task.n_problems is None or (isinstance(task.n_problems, int) and task.n_problems >= 1),
        f"n_problems is {task.n_problems!r}: it must be an integer of at least 1, or None",
    )
    for name, reason in task.clause_reasons.items():
        require(name in EXCUSABLE, f"clause_reasons names {name!r}: a reason is allowed for {', '.join(EXCUSABLE)}")
        require(
            isinstance(reason, str) and len(reason.split()) >= _FEWEST_WORDS,
            f"clause_reasons[{name!r}] is {reason!r}: explain in a sentence why the clause does not apply",
        )
    return f"chance_rate {task.chance_rate:g}, n_problems {task.n_problems}"


def documents_its_difficulties(subject: Subject) -> str:
    """Each level has a description, is named in the docstring, and can be played."""
    task = subject.task
    require(task.difficulties, "difficulties is empty: declare at least one level")
    for name, level in task.difficulties.items():
        require(level.description.strip(), f"the level {name!r} has no description: describe its problems")
        reason = level.expected_hard
        require(
            reason is None or (isinstance(reason, str) and len(reason.split()) >= _FEWEST_WORDS),
            f"expected_hard of the level {name!r} is {reason!r}: explain in a sentence why a frontier model is "
            "expected to fail half of the episodes, or leave it None",
        )
        require(f'"{name}"' in (inspect.getdoc(type(task)) or ""), f'the docstring does not name the level "{name}"')
        subject.make(difficulty=name).reset(seed=0)
    return ", ".join(task.difficulties)


def has_docstring_headings(subject: Subject) -> str:
    """The class docstring has Gymnasium's headings."""
    lines = (inspect.getdoc(type(subject.task)) or "").splitlines()
    found = [line.strip().lstrip("# ") for line in lines if line.strip().startswith("#")]
    missing = [heading for heading in DOCSTRING_HEADINGS if heading not in found]
    require(not missing, f"the class docstring lacks the headings {missing}: write each as '## Heading'")
    return f"{len(DOCSTRING_HEADINGS)} headings"


def checks_its_arguments(subject: Subject) -> str:
    """The task refuses unknown arguments, splits, levels and options with `InvalidConfigError`."""
    for kwargs in ({"split": "nonsense"}, {"difficulty": "nonsense"}, {"no_such_argument": 1}):
        try:
            subject.make(**kwargs)
        except InvalidConfigError:
            continue
        raise BrokenClause(
            f"{kwargs} was accepted: pass split, difficulty and render_mode to super().__init__, take no **kwargs"
        )
    for options in ({"nonsense": 1}, {"problem": {"nonsense": 1}}):
        try:
            subject.make().reset(options=options)
        except InvalidConfigError:
            continue
        raise BrokenClause(f"reset(options={options}) was accepted: pass options to super().reset")
    return "unknown names are refused"


def plays_given_problems(subject: Subject) -> str:
    """`reset(options={"problem": ...})` plays that problem, from any split."""
    for split in subject.splits:
        source, target = subject.make(split=split), subject.make(split=subject.splits[0])
        for seed in range(3):
            wanted, _ = source.reset(seed=seed)
            problem = json.loads(problem_of(source))
            got, _ = target.reset(seed=seed + 100, options={"problem": problem})
            require(
                got == wanted, f"the problem {problem} gives {got[:80]!r} when given, but {wanted[:80]!r} when drawn"
            )
    return "given problems give the same observation"


def is_vectorized(subject: Subject) -> str:
    """`make_vec`, sync and async, returns the environment's strings unchanged, emoji and line breaks included.

    The oracle's first action is stepped here first, so that anything that this process caches for it (a sandbox, a
    pool) exists when the asynchronous environments are forked.
    """
    seeds: Any = [1, 2]  # `VectorEnv.reset` is typed for one number; sync and async both take a list
    for action in ("🙂\nnonsense", subject.oracle_episodes[seeds[0]][0].action):
        expected = []
        for seed in seeds:
            env = _Decorated(subject.make())
            observation, _ = env.reset(seed=seed)
            expected.append((observation, env.step(action)[0]))
        for mode in ("sync", "async"):
            vector = gym.make_vec(subject.env_id, 2, vectorization_mode=mode, wrappers=[_Decorated], **subject.kwargs)
            try:
                first, _ = vector.reset(seed=seeds)
                second, *_ = vector.step((action, action))
                got = list(zip(first, second, strict=True))
            finally:
                vector.close()
            require(got == expected, f"{mode}: {got} instead of {expected}: instances must not share anything")
    return "sync and async"


def pickles(subject: Subject) -> str:
    """An environment that is pickled in the middle of an episode continues like the original."""
    env = subject.make()
    env.reset(seed=3)
    if subject.task.max_turns > 1 and any(env.step("nonsense")[2:4]):
        env.reset(seed=3)  # a word may end an episode: a user who is satisfied leaves
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(subject.task.max_turns):
        action = unwrap(env).oracle()
        require(unwrap(copy).oracle() == action, "the pickled copy's oracle differs from the original's")
        original, copied = env.step(action), copy.step(action)
        require(
            data_equivalence(original, copied, exact=True),
            f"the pickled copy answers {copied}, the original {original}",
        )
        if original[2] or original[3]:
            break
    return "in the middle of an episode"


def has_a_json_spec(subject: Subject) -> str:
    """The spec survives JSON, and makes the same environment."""
    spec = EnvSpec.from_json(subject.make().spec.to_json())  # type: ignore[union-attr]
    first, _ = gym.make(spec).reset(seed=11)
    second, _ = subject.env.reset(seed=11)
    require(first == second, "the environment made from the spec's JSON gives another observation")
    return "to JSON and back"


def resets_quickly(subject: Subject) -> str:
    """The task does at least 1,000 resets, or 500 steps, in a second of computing time, unless it gives a reason."""
    resets = steps = 0.0
    env, reason = subject.env, subject.task.slow_reset_reason
    if reason:  # nothing to measure, and many slow resets
        return reason
    actions = {seed: steps[0].action for seed, steps in enumerate(subject.oracle_episodes[:10])}
    for _ in range(10):  # a busy machine computes slowly too
        if resets >= _MIN_RESETS_PER_S and steps >= _MIN_STEPS_PER_S:
            break
        started = time.process_time()
        for _ in range(50):
            env.reset()
        resets = max(resets, 50 / (time.process_time() - started))
        taken = 0.0
        for seed, action in actions.items():
            env.reset(seed=seed)
            started = time.process_time()
            env.step(action)
            taken += time.process_time() - started
        steps = max(steps, len(actions) / max(taken, 1e-6))
    for what, rate, least, method in (
        ("resets", resets, _MIN_RESETS_PER_S, "generate()"),
        ("steps", steps, _MIN_STEPS_PER_S, "play()"),
    ):
        require(
            rate >= least,
            f"{rate:,.0f} {what} a second, {least:,} required: make {method} cheaper, or give a slow_reset_reason",
        )
    return "fast enough"


class _Decorated(gym.ObservationWrapper[str, str, str]):
    """Adds characters that a careless buffer would lose."""

    def observation(self, observation: str) -> str:
        return f"{observation}\n🙂 ÿ\0"
