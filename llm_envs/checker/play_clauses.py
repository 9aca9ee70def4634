"""Clauses about episodes: their problems and states, the oracle, crashes and ends, and what `info` has.

Each clause takes the subject and returns its findings. If the clause does not hold, it raises `BrokenClause`
with the fault, its seed and the remedy.
"""

from __future__ import annotations

import json
import math
import random
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from llm_envs.checker.boards import canonical_board_text
from llm_envs.checker.episodes import Trace, play, repeat, split_key_of, unwrap, without_luck
from llm_envs.checker.sameness_clauses import expected_distinct
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import BrokenClause, Inapplicable, require
from llm_envs.env import SingleTurnEnv, TextEnv
from llm_envs.env.state import generators
from llm_envs.errors import InvalidConfigError, counted
from llm_envs.parsers import format_tool_call

__all__ = [
    "ends_its_episodes",
    "has_disjoint_splits",
    "has_honest_n_problems",
    "has_true_state_keys",
    "info_is_well_formed",
    "never_raises",
    "oracle_earns_the_maximum",
    "scores_only_the_agents_words",
    "withstands_fuzzing",
]

_N_MIXTURES, _MAX_PAIRS, _N_ONWARD = 6, 10, 6
"""Episodes that look for states, pairs of ways to one state by seed, and actions after each."""
_N_DISTINCT = 60
"""Number of seeds whose problems are counted."""
_SMALL_SPACE = 1_000
"""A task with more problems than this can be divided into splits."""
_MANY = 2_000
"""Least number of essentially different problems of a level that does not declare its number."""
_MOSTLY_DIFFERENT = 0.5
"""From this share of different first observations in a split, the same one in both splits is a leak."""
_MOSTLY_NEW = 0.9
"""From this share of new problems among the draws of a split, there are too many hidden states to memorize."""


def has_true_state_keys(subject: Subject) -> str:
    """Two ways to a state with one `state_key` have equal futures, and asking the oracle does not change the key."""
    if subject.task.max_turns == 1:
        return Inapplicable("one turn, one state")
    envs = subject.make(), subject.make()
    n_pairs = 0
    for seed in range(2):
        actions = [step.action for step in subject.oracle_episodes[seed]]
        rng = random.Random(seed)
        ways = _ways_to_states(envs[0], seed, actions, rng)
        pairs = [(key, first, way) for key, (first, *others) in ways.items() for way in others]
        for key, *pair in rng.sample(pairs, min(len(pairs), _MAX_PAIRS)):
            onward = [rng.choice(actions) for _ in range(_N_ONWARD)]
            futures = [_future(env, seed, way, onward) for env, way in zip(envs, pair, strict=True)]
            n_pairs += 1
            require(
                futures[0] == futures[1],
                f"seed {seed}: {pair[0]!r:.200} and {pair[1]!r:.200} lead to the state_key {key}; {onward!r:.80} then "
                f"gives {futures[0]!r:.200} and {futures[1]!r:.200}: state() must have all that later turns depend on",
            )
    return f"{n_pairs} pairs of ways to one state have equal futures"


def _ways_to_states(
    env: gym.Env[str, str], seed: int, actions: list[str], rng: random.Random
) -> dict[str, list[tuple[str, ...]]]:
    """Return the ways, as actions, to each state that random mixtures of an oracle's actions reach."""
    ways: dict[str, list[tuple[str, ...]]] = {}
    for episode in range(_N_MIXTURES):
        env.reset(seed=seed)
        way: tuple[str, ...] = ()
        has_ended = False
        while not has_ended:
            key = unwrap(env).state_key()
            known = ways.setdefault(key, [])
            known += [way] if way not in known else []
            action = unwrap(env).oracle() if episode == 0 or rng.random() < 0.3 else rng.choice([*actions, "hm"])
            require(
                unwrap(env).state_key() == key,
                f"seed {seed}: after {way!r:.200} the state_key changes when the oracle is asked: name in not_state "
                "what the oracle keeps for itself",
            )
            _, _, terminated, truncated, _ = env.step(action)
            way += (action,)
            has_ended = terminated or truncated
    return ways


def _future(env: gym.Env[str, str], seed: int, way: tuple[str, ...], onward: list[str]) -> list[object]:
    """Return what actions lead to after a way, with the same chance and as many turns left after every way."""
    env.reset(seed=seed)
    for action in way:
        env.step(action)
    task = unwrap(env)
    task.n_turns = 0
    for generator in [task.np_random, *generators(task.state())]:
        generator.bit_generator.state = np.random.default_rng(0).bit_generator.state
    out: list[object] = []
    for action in onward:
        observation, _, terminated, truncated, info = env.step(action)
        components = {
            name: value for name, value in info["reward_components"].items() if name not in task.component_limits
        }
        out.append((observation, components, terminated, truncated, info.get("is_success")))
        if terminated or truncated:
            break
    return out


def has_honest_n_problems(subject: Subject) -> str:
    """The draws agree with the declared number of problems, apart from luck; a level that declares none has many.

    Problems with the same split key count as one problem, because other names do not make another problem. So there are
    at most as many keys as declared problems. If many problems are declared, or no number is, keys seldom repeat.
    """
    task, n_draws = subject.task, len(subject.drawn_problems)
    declared, first = subject.n_problems, subject.splits[0]
    found = len({without_luck(task, problem) for problem in subject.drawn_problems})
    keys = {split: [split_key_of(task, draw.problem) for draw in subject.draws[split]] for split in subject.splits}
    n_keys = len({key for drawn in keys.values() for key in drawn})
    require(
        declared is None or n_keys <= declared,
        f"n_problems is {declared}, but {n_keys} different ones were drawn",
    )
    expected = n_draws if declared is None else expected_distinct(declared, n_draws)
    require(
        found >= expected / 2,
        f"n_problems is {declared}, so {n_draws} draws should give about {expected:.0f} different ones; "
        f"they gave {found}, not counting those that differ only in luck_fields: declare how many there are",
    )
    if declared is None or declared >= _MANY:
        n, distinct = len(keys[first]), len(set(keys[first]))
        most = n - expected_distinct(_MANY if not task.disjoint_splits else _MANY * 4 // 5, n)
        estimate = round(n * (n - 1) / 2 / max(1, n - distinct))
        require(
            n - distinct <= most + 5 * math.sqrt(most) + 5,
            f"n_problems is {declared}, but {n} draws of the {first} split gave only {distinct} different split keys, "
            f"as if there were about {estimate}: declare how many really differ, or make more",
        )
    return f"{found} different problems in {n_draws} draws, of {n_keys} split keys"


def has_disjoint_splits(subject: Subject) -> str:
    """The splits share no problem, split key or first observation, and no board under rotation or reflection.

    A level may declare that its splits are not disjoint if it has few problems, or if all its problems begin alike.
    First observations may recur if they hide so much that the problems do not recur. Of other environments only these
    are compared.
    """
    if not subject.is_task:
        return _begin_differently(subject)
    if len(subject.splits) == 1:
        return Inapplicable(f"only a {subject.splits[0]} split")
    n_problems = subject.n_problems
    if not subject.task.disjoint_splits:
        is_small = n_problems is not None and n_problems <= _SMALL_SPACE
        require(
            is_small or len({subject.env.reset(seed=seed)[0] for seed in range(_N_DISTINCT)}) == 1,
            f"the level has disjoint_splits=False, but n_problems={n_problems}: over {_SMALL_SPACE} can be divided, "
            "unless all begin with the same observation, because a split would then reveal hidden state",
        )
        why = "too small to divide" if is_small else "alike at first"
        return Inapplicable(f"the splits are declared shared: {why} ({n_problems} problems)")
    keys = {
        split: [split_key_of(subject.task, draw.problem) for draw in subject.draws[split]] for split in subject.splits
    }
    shared = set(keys["train"]) & set(keys["test"])
    require(
        not shared,
        f"{len(shared)} problems are in both splits, such as {min(shared, default='')}: leave the draw to TextEnv",
    )
    if all(len(set(drawn)) >= _MOSTLY_NEW * len(drawn) for drawn in keys.values()):
        return "no problem in both"
    for what, form in (("first observation", str), ("board, turned or mirrored,", canonical_board_text)):
        known = {form(draw.shown) for draw in subject.draws["train"]}
        again = [draw.shown for draw in subject.draws["test"] if form(draw.shown) in known]
        require(
            not again,
            f"{len(again)} of {len(keys['test'])} draws of the test split have a {what} that train has too, such as "
            f"{again[:1]}, and the problems are few: let split_key() return what they have in common; or, if the split "
            "would reveal hidden state, declare disjoint_splits=False",
        )
    return "no problem in both, and no first observation or board"


def _begin_differently(subject: Subject) -> str:
    """Require that no first observation of an environment that is not a task is in both splits."""
    shown: dict[str, list[str]] = {}
    for split in ("train", "test"):
        try:
            env = subject.make(split=split)
        except (TypeError, InvalidConfigError, ValueError):
            return Inapplicable("it takes no argument split with the values train and test")
        with closing(env):
            shown[split] = [env.reset(seed=seed)[0] for seed in range(subject.effort.n_draws // 2)]
    if any(len(set(openings)) < _MOSTLY_DIFFERENT * len(openings) for openings in shown.values()):
        return Inapplicable("too few problems, or episodes that begin alike")
    again = [opening for opening in shown["test"] if opening in set(shown["train"])]
    require(
        not again,
        f"{len(again)} of {len(shown['test'])} test episodes begin as one of train does, such as {again[:1]!r:.120}: "
        "divide the problems by a hash of what they ask",
    )
    return f"{counted(len(shown['test']), 'episode')} of each split begin differently"


def oracle_earns_the_maximum(subject: Subject) -> str:
    """The oracle succeeds, and a task's own earns the maximum; one that is not exact succeeds more often than chance.

    Whether an oracle is exact is what a task declares; a given oracle, and those of other environments, win always.
    """
    is_own = subject.is_task and subject.settings.oracle is None
    is_exact, wins = not is_own or subject.task.oracle_is_exact, 0
    for seed, trace in enumerate(subject.oracle_traces):
        if trace.error is not None:
            raise BrokenClause(f"seed {seed}: the oracle did not win; it ended with {trace.error!r}") from trace.error
        last = f"{trace.steps[-1].action[:80]!r} was answered {trace.steps[-1].observation[:80]!r}"
        is_win = subject.is_win(trace)
        wins += is_win
        require(
            is_win or not is_exact,
            f"seed {seed}: the oracle did not succeed; {last}, and the episode earned {trace.total:g}",
        )
        if is_own and is_exact:
            _require_maximum(subject.task, seed, trace.total, last)
    rate = wins / len(subject.oracle_traces)
    require(
        rate > subject.chance_rate or rate == 1,
        f"the oracle succeeds in {rate:.0%}, no more than chance_rate {subject.chance_rate:g}",
    )
    return f"{rate:.0%} of {len(subject.oracle_traces)} episodes"


def _require_maximum(task: TextEnv, seed: int, total: float, last: str) -> None:
    positive = sum(weight for weight in task.reward_weights.values() if weight > 0)
    maximum = positive if task.max_return is None else task.max_return
    require(
        math.isclose(total, maximum, abs_tol=1e-9),
        f"seed {seed}: the oracle earned {total:g} of {maximum:g}, which is "
        f"{'the sum of the positive weights' if task.max_return is None else 'max_return'}: if it plays a perfect "
        f"episode, declare what that earns (max_return = {total:g}, or Difficulty(..., max_return={total:g}) for this "
        f"level; oracle_is_exact = False if it varies with the problem); {last}",
    )


def never_raises(subject: Subject) -> str:
    """No hostile action makes the environment raise."""
    for name, played in subject.hostile_traces.items():
        for seed, trace in enumerate(played):
            _require_no_error(seed, trace, f"the action {name!r}")
    return f"{len(subject.hostile_traces)} kinds of hostile action"


def withstands_fuzzing(subject: Subject) -> str:
    """No damaged action in the middle of good play, no word of the observation and no guess makes it raise."""
    if any(trace.error for played in subject.hostile_traces.values() for trace in played):
        return Inapplicable("not tried, because hostile actions raise")
    for seed, trace in enumerate(subject.fuzzed_traces):
        _require_no_error(seed, trace)
        if trace.error is not None and not any(played.error for played in subject.oracle_traces):
            raise BrokenClause(
                f"seed {seed}: after damaged actions, the oracle raised {trace.error!r}"
            ) from trace.error
    borrowed = subject.borrowed_traces if subject.oracle else {}
    for seed, trace in (*enumerate(subject.references), *borrowed.items()):
        _require_no_error(seed, trace)
    return f"{sum(len(trace.steps) for trace in subject.fuzzed_traces)} actions, half of them damaged"


def _require_no_error(seed: int, trace: Trace, what: str = "") -> None:
    if trace.raised_by is not None:
        error = f"{type(trace.error).__name__}: {trace.error}"
        raise BrokenClause(
            f"seed {seed}: {what or f'the action {trace.raised_by[:80]!r}'} raised {error}; answer with an error "
            "observation"
        ) from trace.error


def ends_its_episodes(subject: Subject) -> str:
    """Every episode ends within `max_turns`; a single-turn task terminates and never truncates."""
    most = subject.max_turns
    for trace in subject.all_traces:
        if trace.error is not None:  # another clause reports it
            continue
        require(
            trace.is_over and len(trace.steps) <= most,
            f"an episode was not over after {len(trace.steps)} turns; max_turns is {most}: truncate it or declare more",
        )
        if isinstance(subject.env.unwrapped, SingleTurnEnv):
            last = trace.steps[-1]
            require(last.terminated and not last.truncated, "a single-turn episode was truncated: it must terminate")
    return f"within {counted(most, 'turn')}"


def info_is_well_formed(subject: Subject) -> str:
    """Each key of `info` has one type, only the last has `is_success`, messages match the observation, all is JSON."""
    types: dict[str, type] = {}
    for step in subject.all_steps:
        for key, value in step.info.items():
            known = types.setdefault(key, type(value))
            require(
                type(value) is known and value is not None,
                f"info[{key!r}] was of type {known.__name__} and then {value!r}: give each key one type; leave a key "
                "out instead of setting it to None",
            )
        json.dumps(step.info, allow_nan=False)
        is_over = step.terminated or step.truncated
        require(
            ("is_success" in step.info) == is_over, "info['is_success'] must be there exactly when the episode ends"
        )
        require(not is_over or type(step.info["is_success"]) is bool, "info['is_success'] must be a bool")
        if "messages" in step.info:
            text = "\n".join(message["content"] for message in step.info["messages"])
            require(text == step.observation, "the messages' text, joined by line breaks, must be the observation")
    lists = [id(step.info["messages"]) for step in subject.all_steps if "messages" in step.info]
    require(len(set(lists)) == len(lists), "info['messages'] is the same list in two steps: make a fresh one")
    return ", ".join(f"{key}: {kind.__name__}" for key, kind in types.items())


def scores_only_the_agents_words(subject: Subject) -> str:
    """A right answer counts only as the agent's final words: not in thinking, a tool's arguments or its output."""
    for seed, steps in enumerate(subject.oracle_episodes[:5]):
        answer = steps[-1].action
        for where, action in _misplaced(answer, subject.task):
            require(not play(subject.env, seed, repeat([], action))[-1].is_win, f"a right answer {where} wins")
        env = subject.make()
        tools = list(getattr(env.unwrapped, "toolbox", {}).values())
        if not tools:
            continue
        for tool in tools:
            tool.function = partial(_answer_anything, answer)
        replayed = play(env, seed, repeat([step.action for step in steps[:-1]]))
        require(not replayed[-1].is_win, "a right answer in a tool's output wins: score only the agent's reply")
    return "misplaced answers do not count"


def _misplaced(answer: str, task: TextEnv) -> list[tuple[str, str]]:
    """Return (place, action) for a right final action in each place where it must not count.

    A parser that the task defines may not know `<think>` or calls; its content counts as the agent's words.
    """
    names = [tool["function"]["name"] for tool in task.tools] or ["tool"]
    places = [("inside <think>", f"<think>{answer}</think>"), ("before </think>", f"{answer}</think>")]
    places.append(("in a tool call's arguments", format_tool_call(names[0], note=answer)))
    if type(task).parse_reply is TextEnv.parse_reply:
        return places
    return [p for p in places if (r := task.parse_reply(p[1])).problems or r.thinking or r.tool_calls]


def _answer_anything(answer: str, **arguments: Any) -> str:
    return answer
