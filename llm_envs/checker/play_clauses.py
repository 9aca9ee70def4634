"""Clauses about a task's episodes: its problems, its oracle, and the wins of hostile policies.

Each clause takes the task under test and returns its findings. If the clause does not hold, it raises `BrokenClause`
with the fault, its seed and the remedy.
"""

from __future__ import annotations

import json
import math
import random
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from llm_envs.checker.boards import canonical_board_text
from llm_envs.checker.subject import (
    FALSE_ALARM,
    BrokenClause,
    FailedEpisode,
    Inapplicable,
    Subject,
    binomial_tail,
    play,
    problem_of,
    repeat,
    require,
    require_chance,
    split_key_of,
    unwrap,
    without_luck,
)
from llm_envs.env import SingleTurnEnv, TextEnv
from llm_envs.env.state import generators
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.rewards import weighted_sum

__all__ = [
    "costs_are_bounded",
    "depends_on_the_seed",
    "ends_its_episodes",
    "expected_distinct",
    "has_disjoint_splits",
    "has_honest_n_problems",
    "has_true_state_keys",
    "info_is_well_formed",
    "is_deterministic",
    "is_not_won_by_guessing",
    "is_not_won_by_nonsense",
    "never_raises",
    "oracle_earns_the_maximum",
    "rewards_are_weighted_components",
    "scores_only_the_agents_words",
    "withstands_fuzzing",
]

_N_MIXTURES, _MOST_PAIRS, _N_ONWARD = 6, 10, 6
"""Episodes that look for states, pairs of ways to one state by seed, and actions after each."""
_N_DISTINCT = 60
"""Number of seeds whose problems are counted."""
_ENDLESS = 1_000_000
"""The smallest number of problems that `n_problems = None` promises."""
_SMALL_SPACE = 1_000
"""A task with more problems than this can be divided into splits."""
_MANY = 2_000
"""Least number of essentially different problems of a level that does not declare its number."""
_MOSTLY_NEW = 0.9
"""From this share of new problems among the draws of a split, there are too many hidden states to memorize."""


def is_deterministic(subject: Subject) -> str:
    """One seed and the same actions give one episode, in this instance and in a fresh one."""
    for seed in range(3):
        actions = [step.action for step in subject.oracle_episodes[seed]]
        for env in (subject.env, subject.make()):
            replayed = play(env, seed, repeat(actions))
            for first, second in zip(subject.oracle_episodes[seed], replayed, strict=True):
                require(
                    data_equivalence(first.info, second.info, exact=True)
                    and (first.observation, first.reward) == (second.observation, second.reward),
                    f"seed {seed}, action {first.action[:60]!r} gave {first.observation[:60]!r} {first.info}, then "
                    f"{second.observation[:60]!r} {second.info}: use only self.np_random, set all state in begin()",
                )
    return "episodes repeat"


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
        for key, *pair in rng.sample(pairs, min(len(pairs), _MOST_PAIRS)):
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


def depends_on_the_seed(subject: Subject) -> str:
    """Different seeds give different problems, if the task has enough; neighbours are no more alike than others."""
    n_pairs = subject.effort.n_pairs
    problems = []
    for seed in range(n_pairs + 1):
        subject.env.reset(seed=seed)
        problems.append(problem_of(subject.env))
    n_seeds = min(len(problems), _N_DISTINCT)
    found = len(set(problems[:n_seeds]))
    expected = expected_distinct(len(set(subject.drawn_problems)), n_seeds)
    require(
        found >= expected / 2,
        f"{n_seeds} seeds gave {found} different problems, about {expected:.0f} expected: "
        "draw the problem from self.np_random",
    )
    alike = [seed for seed in range(n_pairs) if problems[seed] == problems[seed + 1]]
    allowed = min(1.0, 2 / (subject.task.n_problems or _ENDLESS))
    require(
        binomial_tail(len(alike), n_pairs, allowed) >= FALSE_ALARM,
        f"{len(alike)} of {n_pairs} pairs of neighbouring seeds gave the same problem, such as {alike[:1]} and the "
        f"next; n_problems is {subject.task.n_problems}: declare how many there are, or draw more evenly",
    )
    return f"{found} problems from {n_seeds} seeds, {len(alike)} of {n_pairs} neighbours alike"


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
    First observations may recur if they hide so much that the problems do not recur.
    """
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
        return f"declared {'too small to divide' if is_small else 'alike at first'} ({n_problems} problems)"
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


def oracle_earns_the_maximum(subject: Subject) -> str:
    """The oracle succeeds and earns the maximum; an oracle that is not exact succeeds more often than chance."""
    task, wins = subject.task, 0
    maximum = _positive_weights(task) if task.max_return is None else task.max_return
    for seed, steps in enumerate(subject.oracle_episodes):
        total = sum(float(step.reward) for step in steps)
        wins += steps[-1].is_win
        if task.oracle_is_exact:
            last = f"{steps[-1].action[:80]!r} was answered {steps[-1].observation[:80]!r}"
            require(steps[-1].is_win, f"seed {seed}: the oracle did not succeed; {last}")
            require(
                math.isclose(total, maximum, abs_tol=1e-9),
                f"seed {seed}: the oracle earned {total:g} of {maximum:g}, which is "
                f"{'the sum of the positive weights' if task.max_return is None else 'max_return'}: if it plays a "
                f"perfect episode, declare what that earns (max_return = {total:g}, or Difficulty(..., max_return="
                f"{total:g}) for this level; oracle_is_exact = False if it varies with the problem); {last}",
            )
    rate = wins / len(subject.oracle_episodes)
    require(
        rate > task.chance_rate or rate == 1,
        f"the oracle succeeds in {rate:.0%}, no more than chance_rate {task.chance_rate:g}",
    )
    return f"{rate:.0%} of {len(subject.oracle_episodes)} episodes"


def never_raises(subject: Subject) -> str:
    """No hostile action makes the environment raise."""
    for name, played in subject.hostile_episodes.items():
        for seed, episode in enumerate(played):
            if isinstance(episode, Exception):
                raise BrokenClause(
                    f"seed {seed}: the action {name!r} raised {type(episode).__name__}: {episode}; answer with an "
                    "error observation"
                ) from episode
    return f"{len(subject.hostile_episodes)} kinds of hostile action"


def withstands_fuzzing(subject: Subject) -> str:
    """Damaged actions in the middle of good play do not make the task raise, and earn no more than good play."""
    if any(isinstance(episode, Exception) for played in subject.hostile_episodes.values() for episode in played):
        return Inapplicable("not tried, because hostile actions raise")
    n_actions, maximum = 0, subject.task.return_range[1]
    for seed, episode in enumerate(subject.fuzzed_episodes):
        if isinstance(episode, FailedEpisode):
            raise BrokenClause(
                f"seed {seed}: the action {episode.action[:80]!r} raised {type(episode.error).__name__}: "
                f"{episode.error}; answer with an error observation"
            ) from episode.error
        n_actions += len(episode)
        total = sum(float(step.reward) for step in episode)
        require(
            total <= maximum + 1e-9,
            f"seed {seed}: the actions {[step.action[:60] for step in episode]} earned {total:g}; the most that an "
            f"episode can earn is {maximum:g}: something is rewarded twice",
        )
    return f"{n_actions} actions, half of them damaged"


def costs_are_bounded(subject: Subject) -> str:
    """No episode earns less than the declared minimum, which is within the task's scale for episodes of any length."""
    low, high = subject.task.return_range
    require(
        low >= -2 * high,
        f"an episode may earn {low:g}, and {high:g} at most: bound costs by component_limits, or declare min_return",
    )
    hostile = [steps for played in subject.hostile_episodes.values() for steps in played if isinstance(steps, list)]
    fuzzed = [steps for steps in subject.fuzzed_episodes if isinstance(steps, list)]
    for steps in [*subject.oracle_episodes, *hostile, *fuzzed]:
        total = sum(weighted_sum(step.info["reward_components"], subject.task.reward_weights) for step in steps)
        require(
            total >= low - 1e-9,
            f"the actions {[step.action[:60] for step in steps[:9]]} earned {total:g}; the least that an episode may "
            f"earn is {low:g}, by min_return or by the negative weights and component_limits",
        )
    return f"from {low:g} to {high:g}"


def _positive_weights(task: TextEnv) -> float:
    return sum(weight for weight in task.reward_weights.values() if weight > 0)


def is_not_won_by_nonsense(subject: Subject) -> str:
    """No hostile action succeeds more often than the declared chance rate explains."""
    for name, played in subject.hostile_episodes.items():
        won = [seed for seed, steps in enumerate(played) if isinstance(steps, list) and steps[-1].is_win]
        require_chance(subject, f"the action {name!r}", won, len(played))
    return f"at most chance ({subject.task.chance_rate:g})"


def is_not_won_by_guessing(subject: Subject) -> str:
    """The right replies to another problem succeed no more often than the declared chance rate explains."""
    episodes = subject.borrowed_episodes
    won = [seed for seed, steps in episodes.items() if steps[-1].is_win]
    require_chance(subject, "the oracle's reply to another problem", won, len(episodes))
    return f"replies to another problem won {len(won)} of {len(episodes)} episodes"


def ends_its_episodes(subject: Subject) -> str:
    """Every episode ends within `max_turns`; a single-turn task terminates and never truncates."""
    task = subject.task
    episodes = [steps for played in subject.hostile_episodes.values() for steps in played if isinstance(steps, list)]
    for steps in [*subject.oracle_episodes, *episodes]:
        last = steps[-1]
        require(
            last.terminated or last.truncated,
            f"an episode was not over after {len(steps)} turns; max_turns is {task.max_turns}",
        )
        require(len(steps) <= task.max_turns, f"an episode took {len(steps)} turns; max_turns is {task.max_turns}")
        if isinstance(task, SingleTurnEnv):
            require(last.terminated and not last.truncated, "a single-turn episode was truncated: it must terminate")
    return f"within {task.max_turns} turns"


def rewards_are_weighted_components(subject: Subject) -> str:
    """Each step's reward is a finite float, the weighted sum of exactly the declared components."""
    weights = subject.task.reward_weights
    for step in subject.all_steps:
        components = step.info.get("reward_components")
        require(
            isinstance(components, dict) and components.keys() == weights.keys(),
            f"info['reward_components'] is {components}; reward_weights declares {sorted(weights)}",
        )
        assert isinstance(components, dict)
        require(all(type(value) is float for value in components.values()), f"components must be floats: {components}")
        require(
            type(step.reward) is float and math.isfinite(step.reward),
            f"the reward {step.reward!r} is not a finite float",
        )
        total = weighted_sum(components, weights)
        require(
            math.isclose(step.reward, total, abs_tol=1e-9),
            f"the reward is {step.reward}, its components {components} sum to {total}",
        )
    return f"{len(subject.all_steps)} steps"


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
    return [(where, action) for where, action in places if _has_no_words(task.parse_reply(action))]


def _has_no_words(reply: ParsedReply) -> bool:
    return bool(reply.problems or reply.thinking or reply.tool_calls)


def _answer_anything(answer: str, **arguments: Any) -> str:
    return answer


def expected_distinct(n: int, draws: int) -> float:
    """Return the expected number of different values in `draws` uniform draws from `n`."""
    return n * -math.expm1(draws * math.log1p(-1 / n)) if n > 1 else 1.0
