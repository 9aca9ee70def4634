"""Clauses about blind policies: the declared chance rate must explain their wins.

`blind.py` makes the policies from the oracle's play on the train split, and they play the test split. Tasks of several
turns give many policies, so these race on the train split first, and only the best ones continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import gymnasium as gym

from llm_envs.checker.blind import (
    QUESTIONS,
    BlindPolicy,
    BlindReply,
    answer_in,
    copied_replies,
    enumerations,
    equal_steps,
    learned_replies,
    listed_items,
    mask,
    plans,
    questions,
)
from llm_envs.checker.episodes import remembering, unwrap
from llm_envs.checker.glances import glances
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import Inapplicable

__all__ = ["is_not_won_at_a_glance", "is_not_won_by_a_fixed_plan", "is_not_won_by_enumeration", "is_not_won_by_heart"]

_RACE = ((6, 16), (24, 2))
"""Rounds of the race: episodes of each policy, and how many policies stay."""
_UNSEEN = 1_000_000
"""First seed to play. Players learn from seeds near 0, which give the same problems if the splits are not divided."""


def is_not_won_by_heart(subject: Subject) -> str:
    """Answers memorized on train, or copied from the prompt, win no more of test than the chance rate."""
    if subject.task.max_turns > 1:
        return Inapplicable("for tasks of one turn")
    env = remembering(subject.make(split="test"))
    won_by: dict[tuple[int, str], bool] = {}

    def wins(reply: BlindReply, seed: int) -> bool:
        prompt, _ = env.reset(seed=seed)
        action = reply(prompt)
        if action is None:
            return False
        if (seed, action) not in won_by:
            won_by[seed, action] = _is_won(env, action)
        return won_by[seed, action]

    learned = learned_replies(subject.lessons) if subject.lessons else {}
    replies = learned | copied_replies(subject.task.answer_template)
    best = 0.0
    for name, reply in replies.items():
        best = max(best, _measured(subject, name, partial(wins, reply)))
    return f"{len(replies)} blind replies won at most {best:.0%}"


def is_not_won_by_a_fixed_plan(subject: Subject) -> str:
    """A fixed sequence of actions, such as the oracle's for one problem, wins no more than the chance rate."""
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    if not subject.lessons:
        return Inapplicable("no train split")
    return _race(subject, plans(subject.lessons), "plans")


def is_not_won_by_enumeration(subject: Subject) -> str:
    """Trying the items of the prompt, or stepping between two of its numbers, wins no more than the chance rate."""
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    lessons = subject.lessons
    if not lessons:
        return Inapplicable("no train split")
    policies = enumerations(lessons) | equal_steps(lessons) | _inquirers(subject)
    return _race(subject, policies, "policies") if policies else Inapplicable("the prompt lists nothing")


def is_not_won_at_a_glance(subject: Subject) -> str:
    """A rule that looks at one number or word of each observation, and at nothing else, wins no more than chance."""
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    rules = glances(subject.lessons)
    return _race(subject, rules, "rules") if rules else Inapplicable("no train split, or too many different actions")


def _inquirers(subject: Subject) -> dict[str, BlindPolicy]:
    """Return policies that ask about each listed item, if the observations on train tell the right one from others."""
    items = listed_items(subject.lessons)
    policies: dict[str, BlindPolicy] = {}
    n_answers = sum("<answer>" in action for lesson in subject.lessons for action in lesson.actions)
    if items is None or n_answers > len(subject.lessons):  # with several answers per problem, none is the item
        return policies
    env = subject.make(split="train")
    for question in QUESTIONS:
        right: set[str] = set()
        wrong: set[str] = set()
        for seed, lesson in enumerate(subject.lessons[:10]):
            answer = answer_in(lesson.actions[-1])
            other = next((item for item in items(lesson.prompt) if item != answer), answer)
            for item, heard in ((answer, right), (other, wrong)):
                env.reset(seed=seed)
                heard.add(_heard(item, _observed(env, question.format(item))))
        if yes := right - wrong:
            name = f"{question.format('...')!r} of each listed item until there is a yes"
            policies[name] = questions(items, question, partial(_is_in, frozenset(yes)))
    return policies


def _is_in(heard: frozenset[str], item: str, observation: str) -> bool:
    return _heard(item, observation) in heard


def _heard(item: str, observation: str) -> str:
    return mask(observation.replace(item, "X"))


def _observed(env: gym.Env[str, str], action: str) -> str:
    try:
        return env.step(action)[0]
    except Exception as error:  # `never_raises` reports it
        return repr(error)


def _race(subject: Subject, policies: Mapping[str, BlindPolicy], what: str) -> str:
    """Race the policies on train; require that the best win no more of test than the chance rate explains."""
    env, left, seed = remembering(subject.make(split="train")), dict(policies), 0
    wins = dict.fromkeys(policies, 0)
    for n_episodes, n_stay in _RACE:
        if len(left) > n_stay:
            for name, policy in left.items():
                wins[name] += sum(_plays_and_wins(env, policy, seed + i) for i in range(n_episodes))
            left = dict(sorted(left.items(), key=lambda entry: -wins[entry[0]])[:n_stay])
            seed += n_episodes
    env, best = remembering(subject.make(split="test")), 0.0
    for name, policy in left.items():
        best = max(best, _measured(subject, name, partial(_plays_and_wins, env, policy)))
    return f"{len(policies)} {what}; the best won {best:.0%}"


def _measured(subject: Subject, name: str, wins: Callable[[int], bool]) -> float:
    return subject.measured(f"{name}, on the test split,", wins, subject.effort.n_tries, first_seed=_UNSEEN)


def _plays_and_wins(env: gym.Env[str, str], policy: BlindPolicy, seed: int) -> bool:
    prompt, _ = env.reset(seed=seed)
    max_turns = unwrap(env).max_turns
    history: list[tuple[str, str, float]] = []
    while len(history) < max_turns:
        action = policy(prompt, history, max_turns - len(history))
        try:
            observation, reward, terminated, truncated, info = env.step(action)
        except Exception:  # `never_raises` reports it
            return False
        if terminated or truncated:
            return info.get("is_success") is True
        history.append((action, observation, float(reward)))
    return False


def _is_won(env: gym.Env[str, str], action: str) -> bool:
    try:
        return env.step(action)[4].get("is_success") is True
    except Exception:  # `never_raises` reports it
        return False
