"""Rules that look at one number or word of an observation, learned from the oracle's play."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from llm_envs.checker.blind import BlindPolicy, Lesson, PlayedTurns, mask, most_common

__all__ = ["glances"]

_PART = re.compile(r"[^\n]+?(?:[.?!;](?=\s)|$)", re.MULTILINE)
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d]\w*")
_REPEATED = re.compile(r"\b(\w+)(?: \1\b)+")
_MOST_ACTIONS = 12
"""Most different actions of the oracle for a rule to choose from."""
_MAX_RULES = 4
"""Rules to return: those that agree with the oracle most often."""
_N_NEAREST = 5
_N_FORETOLD = 40
_Place = tuple[str, int, int]
"""A kind of line or sentence, how many of that kind stand before it, and the place in it, counted from its end."""


def glances(lessons: Sequence[Lesson]) -> dict[str, BlindPolicy]:
    """Return rules by name: do what the oracle did when one number or word was the same, or the number nearest.

    Returns nothing if the oracle has too many different actions.
    """
    moments = [moment for lesson in lessons for moment in zip(lesson.observations, lesson.actions, strict=True)]
    usual = [action for _, action in moments]
    if not 1 < len(set(usual)) <= _MOST_ACTIONS:
        return {}
    by_place: dict[_Place, list[tuple[str, str]]] = defaultdict(list)
    for observation, action in moments:
        for place, value in _values(observation).items():
            by_place[place].append((value, action))
    best = sorted(by_place, key=lambda place: _agreement(by_place[place]), reverse=True)[:_MAX_RULES]
    return {
        f"a rule that looks only at word {place[2]} from the end of {place[0][:60]!r} (number {place[1] + 1})": partial(
            _glance, place, by_place[place], most_common(usual)
        )
        for place in best
    }


def _agreement(seen: Sequence[tuple[str, str]]) -> int:
    """Return how many of some actions of the oracle the others foretell; 0 if there is only one value."""
    if len({value for value, _ in seen}) == 1:
        return 0
    return sum(
        _foretold(value, [*seen[:place], *seen[place + 1 :]]) == action
        for place, (value, action) in enumerate(seen[:_N_FORETOLD])
    )


def _values(observation: str) -> dict[_Place, str]:
    found: dict[_Place, str] = {}
    n_before: Counter[str] = Counter()
    for part in _PART.findall(observation):
        kind = _REPEATED.sub(r"\1", mask(part)).strip()
        for place, value in enumerate(reversed(_WORD.findall(part)), 1):
            found[kind, n_before[kind], place] = value
        n_before[kind] += 1
    return found


def _glance(
    place: _Place, seen: Sequence[tuple[str, str]], usual: str, prompt: str, history: PlayedTurns, turns_left: int
) -> str:
    value = _values(history[-1][1] if history else prompt).get(place)
    return usual if value is None else _foretold(value, seen) or usual


def _foretold(value: str, seen: Sequence[tuple[str, str]]) -> str | None:
    """Return the most frequent action for the nearest numbers, or for the same word; None if it is unknown."""
    if _is_number(value):
        near = sorted((abs(float(other) - float(value)), action) for other, action in seen if _is_number(other))
        actions = [action for _, action in near[:_N_NEAREST]]
    else:
        actions = [action for other, action in seen if other == value]
    return most_common(actions) if actions else None


def _is_number(text: str) -> bool:
    return text.lstrip("-")[:1].isdigit()
