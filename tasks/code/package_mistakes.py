"""Draws the mistakes of the packages of `packages.py`, and the tests and inputs that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from llm_envs.checker.comparing import compared_repairs
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.boundaries import off_by_one, results, telling
from llm_envs.tasks.code.package_texts import body, names_in_words, sentence
from llm_envs.tasks.code.packages import (
    Part,
    Parts,
    draw_parts,
    draw_spellings,
    draw_turned,
    function_of,
    functions,
    neighbours,
    numbers_in,
    takes_list,
    users,
    with_mistakes,
)
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled

__all__ = ["check_mistakes", "draw_mistaken", "former_of", "is_integer", "is_list", "outcomes_of", "run_lines"]

_FALSE_REPAIRS = 2
"""Changes of one wrong function, at least, that the tests in the tree take for right ones: who tries changes until they
pass, and does not read, is right in a third of the episodes."""
_N_INTEGERS = 24
_N_LISTS = 8
"""Numbers, and lists, on which the hidden tests call each function."""
_N_TRIES = 4
"""Number of mistakes of one part to try: comparing the README with the code must not find it."""
_N_PROBES = 120
"""Lists among which one is looked for that tells a function from one whose number is off by one."""
Functions = Mapping[str, Callable[[Any], Any]]


def draw_mistaken(random: Random, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Draw a package, mistakes, tests and inputs; None if the tests show too much or too little for the level.

    Args:
        random: `self.np_random.random`.
        settings: Of a level.
    """
    parts = draw_parts(random, settings["n"], is_linked=settings["is_linked"])
    spellings = [0] * len(parts) if settings["is_plain"] else draw_spellings(random, parts)
    order = list(range(len(parts))) if settings["is_plain"] else shuffled(random, range(len(parts)))
    written = draw_turned(random, parts)
    made, numbers = functions(parts), numbers_in(parts)
    former = [_draw_former(random, parts, place) for place in range(len(parts))]
    package = {"parts": parts, "written": written, "spellings": spellings, "former": former}
    is_compared = cache(partial(_is_compared, package, made, names_in_words(parts)))
    tell = cache(partial(_telling, random, package, made))
    for _ in range(12):
        lists = [_draw_list(random, numbers, size) for size in (0, 1, *(_SIZE,) * (_N_LISTS - 2))]
        integers = _draw_integers(random, numbers)
        mistakes = _draw_mistakes(random, written, made, settings["mistakes"], (integers, lists), is_compared, tell)
        tests = mistakes and _draw_tests(random, written, mistakes, (integers, lists), settings)
        if mistakes and tests:
            for place, _ in mistakes:
                inputs = lists if takes_list(parts[place]) else integers
                inputs += tell(place) or []
            return {
                **package,
                "mistakes": mistakes,
                "order": order,
                "tests": tests,
                "integers": integers,
                "lists": lists,
            }
    return None


def former_of(problem: Mapping[str, Any], place: int) -> Part | None:
    """Return what a part was in an earlier version, as the README tells; None if it tells nothing."""
    number = problem["former"][place]
    return None if number < 0 else neighbours(problem["parts"], place)[number]


_SIZE = 0
"""A list of some length from 5 to 9."""


def _draw_list(random: Random, numbers: Sequence[int], size: int) -> list[int]:
    size = size or between(random, 5, 9)
    return [
        pick(random, numbers) + between(random, -1, 1) if random() < 0.5 else between(random, -9, 24)
        for _ in range(size)
    ]


def _draw_integers(random: Random, numbers: Sequence[int]) -> list[int]:
    """Draw numbers, half of them near those of the package."""
    near = [pick(random, numbers) + between(random, -1, 1) for _ in range(_N_INTEGERS // 2)]
    return near + [between(random, -30, 60) for _ in range(_N_INTEGERS - len(near))]


def outcomes_of(parts: Parts, calls: Sequence[tuple[str, Any]]) -> list[str]:
    """Return what the functions of a package give for calls, each a name and an argument, as a `repr`."""
    made = functions(parts)
    return [repr(made[name](value)) for name, value in calls]


def _is_seen(
    parts: Parts, made: Functions, mistake: Sequence[int], integers: Sequence[int], lists: Sequence[list[int]]
) -> bool:
    """Whether the function of a mistake by itself gives something else for some number or list."""
    part = neighbours(parts, mistake[0])[mistake[1]]
    right, wrong = made[part["name"]], function_of(part, made)
    return any(right(value) != wrong(value) for value in (lists if takes_list(part) else integers))


def _draw_former(random: Random, parts: Parts, place: int) -> int:
    """Draw which neighbour of a part the README tells to have been in its place, for half of the parts; or -1."""
    n = len(neighbours(parts, place))
    return between(random, 0, n - 1) if n and random() < 0.5 else -1


def _draw_mistakes(
    random: Random,
    written: Parts,
    made: Functions,
    n: int,
    hidden: tuple[Sequence[int], Sequence[list[int]]],
    is_compared: Callable[[int, int, bool], bool],
    tell: Callable[[int], list[Any] | None],
) -> list[list[int]]:
    """Draw mistakes in different parts, all shown by the hidden tests; [] if there are too few.

    Whichever of them are left: the first part that is wrong calls only right ones, so the tests of its function fail.
    Comparing a part with its sentence mends none of them, and at least half of them not even if the player leaves out
    what the README tells of earlier versions. None is in a part which does the same with a number off by one.
    """
    mistakes: list[list[int]] = []
    n_plain = 0
    for place in shuffled(random, range(len(written))):
        for number in sample(random, range(m := len(neighbours(written, place))), min(_N_TRIES, m)):
            mistake = [place, number]
            if not _is_seen(written, made, mistake, *hidden) or is_compared(place, number, True):
                continue
            is_plain = is_compared(place, number, False)
            if tell(place) is not None and (not is_plain or n_plain < n // 2):
                mistakes.append(mistake)
                n_plain += is_plain
                break
        if len(mistakes) == n:
            return sorted(mistakes)
    return []


def _is_compared(
    package: Mapping[str, Any],
    made: Functions,
    names: Mapping[str, str],
    place: int,
    number: int,
    is_former_read: bool,
) -> bool:
    """Whether a player that compares a wrong function with its sentence mends it.

    Args:
        package: Its parts, how they are written, and what they were formerly.
        made: Its functions.
        names: Their names, by the words that stand for them.
        place: Which part is wrong.
        number: Which of its neighbours is in its place.
        is_former_read: Whether the player also reads what the function did in an earlier version.
    """
    parts, spelling = package["parts"], package["spellings"][place]
    right = body(package["written"][place], spelling)
    _, *wrong = body(neighbours(package["written"], place)[number], spelling)
    former = former_of(package, place) if is_former_read else None
    compared = compared_repairs(sentence(parts[place], former), wrong, names, parts[place]["name"]).values()
    repairs = {tuple(lines) for lines in compared}
    if not repairs or tuple(right[1:]) in repairs:
        return bool(repairs)
    probes = [[], [3], *_PROBES] if takes_list(parts[place]) else list(range(-20, 40))
    expected = list(map(made[parts[place]["name"]], probes))
    return any(run_lines([right[0], *lines], made, probes) == list(map(repr, expected)) for lines in repairs)


_PROBES = tuple([(7 * i * i + 11 * i * j + 5 * j * j) % 37 - 12 for j in range(6 + i % 4)] for i in range(10))
"""Lists of numbers that look random."""


def run_lines(lines: Sequence[str], made: Functions, inputs: Sequence[Any]) -> list[str]:
    """Return what a function that this module has written gives for inputs, with the functions that it may call."""
    return _runner(lines, made)(inputs)


def _runner(lines: Sequence[str], made: Functions) -> Callable[[Sequence[Any]], list[str]]:
    """Return `run_lines` of a function, which is compiled once."""
    namespace: dict[str, Any] = dict(made)
    exec("\n".join(lines), namespace)
    return partial(results, namespace[lines[0][4 : lines[0].index("(")]])


def _telling(random: Random, package: Mapping[str, Any], made: Functions, place: int) -> list[Any] | None:
    """Draw inputs that tell a function from its neighbours; None if one of them is not told.

    Its neighbours are those with a number off by one, and those with a mistake that differ for some input.
    """
    written = package["written"]
    part, spelling = written[place], package["spellings"][place]
    right = body(part, spelling)
    others = [[*right[:i], changed, *right[i + 1 :]] for i in range(1, len(right)) for changed in off_by_one(right[i])]
    numbers = numbers_in([part])
    probes: list[Any] = list(range(-60, 61))
    if takes_list(part):
        probes = [_draw_list(random, numbers or [0], between(random, 1, 9)) for _ in range(_N_PROBES)]
    run_right = _runner(right, made)
    found = telling(run_right, (_runner(lines, made) for lines in others), [], lambda: probes)
    if found is None:
        return None
    expected: list[str] = []
    for other in neighbours(written, place):
        run = _runner(body(other, spelling), made)
        if run(found) == run_right(found):
            expected = expected or run_right(probes)
            found += [probe for probe, a, b in zip(probes, expected, run(probes), strict=True) if a != b][:1]
    return found


def _draw_tests(
    random: Random,
    parts: Parts,
    mistakes: Sequence[Sequence[int]],
    hidden: tuple[Sequence[int], Sequence[list[int]]],
    settings: Mapping[str, Any],
) -> list[list[Any]]:
    """Draw the tests of the tree; [] if they would show too much or too little for the level."""
    calls = _draw_calls(random, parts, settings["tested"])
    right = outcomes_of(parts, calls)
    if not settings["unseen"]:
        calls, right = _ambiguous(random, parts, mistakes, hidden, calls, right)
    wrong = outcomes_of(with_mistakes(parts, mistakes), calls)
    passing = [place for place in range(len(calls)) if right[place] == wrong[place]]
    failing = [place for place in range(len(calls)) if right[place] != wrong[place]]
    for mistake in mistakes if settings["is_entangled"] else ():
        mended = with_mistakes(parts, [other for other in mistakes if other != mistake])
        outcomes = outcomes_of(mended, [calls[place] for place in failing])
        failing = [place for place, outcome in zip(failing, outcomes, strict=True) if outcome != right[place]]
    n = settings["tests"]
    n_failing = min(len(failing), between(random, 1, n // 2))
    chosen = sorted(sample(random, failing, n_failing) + sample(random, passing, min(len(passing), n - n_failing)))
    if not n_failing or len(chosen) < n // 2:
        return []
    shown = [calls[place] for place in chosen]
    expected = [right[place] for place in chosen]
    n_unseen = sum(outcomes_of(with_mistakes(parts, [mistake]), shown) == expected for mistake in mistakes)
    is_right = n_unseen >= settings["unseen"] if settings["unseen"] else n_unseen == 0
    return [list(call) for call in shown] if is_right else []


def _with(parts: Parts, place: int, part: Part) -> Parts:
    return [*parts[:place], part, *parts[place + 1 :]]


def _draw_calls(random: Random, parts: Parts, kinds: Sequence[str]) -> list[tuple[str, Any]]:
    numbers, tested = numbers_in(parts), [part for part in parts if part["kind"] in kinds]
    calls: list[tuple[str, Any]] = []
    for part in tested:
        for _ in range(max(4, 24 // len(tested))):
            value = _draw_list(random, numbers, 0) if takes_list(part) else _draw_integers(random, numbers)[0]
            calls.append((part["name"], value))
    return calls


def _ambiguous(
    random: Random,
    parts: Parts,
    mistakes: Sequence[Sequence[int]],
    hidden: tuple[Sequence[int], Sequence[list[int]]],
    calls: list[tuple[str, Any]],
    right: list[str],
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return the calls, and their outcomes, that some false repairs of one mistake pass; none without such repairs."""
    made = functions(parts)
    for place, number in shuffled(random, mistakes):
        wrong = with_mistakes(parts, [[place, number]])
        names = users(parts, place)
        touched = [i for i, (name, _) in enumerate(calls) if name in names]
        reached = [calls[i] for i in touched]
        given, function = hidden[takes_list(parts[place])], made[parts[place]["name"]]
        shown = [i for i, outcome in enumerate(outcomes_of(wrong, calls)) if outcome != right[i]]
        if not shown:
            return calls, right
        false = []
        for other in neighbours(wrong, place):
            changed = function_of(other, made)
            if any(changed(value) != function(value) for value in given):
                outcomes = list(right)
                for i, outcome in zip(touched, outcomes_of(_with(parts, place, other), reached), strict=True):
                    outcomes[i] = outcome
                false.append(outcomes)
        for i in shuffled(random, shown):
            passed = [outcomes for outcomes in false if outcomes[i] == right[i]]
            if len(passed) >= _FALSE_REPAIRS:
                kept = sample(random, passed, _FALSE_REPAIRS)
                allowed = [j for j in range(len(calls)) if all(outcomes[j] == right[j] for outcomes in kept)]
                return [calls[j] for j in allowed], [right[j] for j in allowed]
    return [], []


# Given problems.


def is_integer(value: Any) -> bool:
    """Whether a given problem may call a function with it."""
    return type(value) is int and abs(value) <= 1_000_000


def is_list(value: Any) -> bool:
    """Whether a given problem may call a function of lists with it."""
    return isinstance(value, list) and len(value) <= 50 and all(map(is_integer, value))


def check_mistakes(parts: Parts, mistakes: Sequence[Any], integers: Sequence[int], lists: Sequence[list[int]]) -> None:
    """Raise `InvalidActionError` unless the mistakes are some, in different parts, which hidden tests show."""
    if not mistakes:
        raise InvalidActionError("it has no mistakes")
    made = functions(parts)
    for mistake in mistakes:
        if not isinstance(mistake, list) or list(map(type, mistake)) != [int, int] or not 0 <= mistake[0] < len(parts):
            raise InvalidActionError("its mistakes must be [part, number of a neighbour]")
        if not 0 <= mistake[1] < len(neighbours(parts, mistake[0])):
            raise InvalidActionError(f"the part {mistake[0]} cannot be wrong in {mistake[1] + 1} ways")
        if not _is_seen(parts, made, mistake, integers, lists):
            raise InvalidActionError("no hidden test shows one of its mistakes")
    if len({mistake[0] for mistake in mistakes}) < len(mistakes):
        raise InvalidActionError("a part may have one mistake")
