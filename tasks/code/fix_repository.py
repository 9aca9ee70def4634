"""`llm/FixRepository-v0`: repair a small Python package with a shell, an editor and its tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards.builders import passed_share
from llm_envs.sandbox import SandboxLimits
from llm_envs.tasks.code.boundaries import off_by_one, telling
from llm_envs.tasks.code.comparing import compared_repairs
from llm_envs.tasks.code.judging import SANDBOX_LACKS
from llm_envs.tasks.code.linking import LinkError, link
from llm_envs.tasks.code.package_texts import body, names_in_words, readme, sentence, sources
from llm_envs.tasks.code.packages import (
    MODULES,
    Part,
    Parts,
    draw_parts,
    draw_spellings,
    draw_turned,
    function_of,
    functions,
    is_package,
    key_of,
    neighbours,
    numbers_in,
    takes_list,
    users,
    with_mistakes,
)
from llm_envs.tasks.code.workbench import Workbench
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.replies import is_done
from llm_envs.tools.toolset import Toolset

__all__ = ["FixRepositoryEnv"]

_JUDGE_LIMITS = SandboxLimits(timeout_s=5.0, memory_bytes=64 << 20, output_characters=200_000, code_characters=400_000)
_FALSE_REPAIRS = 2
"""Changes of one wrong function, at least, that the tests in the tree take for right ones: who tries changes until they
pass, and does not read, is right in a third of the episodes."""
_N_INTEGERS = 24
_N_LISTS = 8
_N_TRIES = 4
"""Number of mistakes of one part to try: comparing the README with the code must not find it."""
_N_PROBES = 120
"""Lists among which one is looked for that tells a function from one whose number is off by one."""
"""Numbers, and lists, on which the hidden tests call each function."""
Functions = Mapping[str, Callable[[Any], Any]]

_PACKAGES = ("harbor", "lantern", "orchard", "quarry", "meadow", "beacon", "harvest", "timber", "canyon", "summit")


class FixRepositoryEnv(ToolEnv):
    """Repair a Python package of several modules until it does what its README describes.

    ## Description
    Each episode has its own package: rules, values, lists, measures and reports, small functions that call each
    other across modules. Its README describes every function in words, of some also what they did in an earlier
    version. Some lines are wrong: another number or comparison, another function called, calls in another order. The
    numbers of right lines need not be those of the README (`>= 4` for greater than 3): comparing numbers, signs and
    names does not find the mistakes. Tests in the tree show some of them. Tests that are not in the tree call every
    function, on other numbers and lists, and decide. Teaches to read a specification against code, to search and edit
    several files, and not to take passing tests for a proof.

    ## Observation
    First what is to be done. After a call what the tool returns: what a command prints, "(done)", how many tests
    failed, or "Error: ...". After a malformed reply a readable error.

    ## Action
    Calls of the tools `shell`, `edit`, `write` and `run_tests`, or `<answer>done</answer>` when the package is right.

    ## Reward
    `correct` (weight 1): 1 for "done" if every hidden test passes. `malformed` (weight -0.1): 1 for a reply that is
    neither a call nor an answer, is broken, or has another answer than "done".

    ## Episode End
    Terminates with the answer. Truncated after `max_turns` replies; then the package does not count.

    ## Arguments
    - `split`: "train" or "test". A package is in one split, whatever its names, its mistakes and its tests.
    - `difficulty`: "easy" (default): one mistake, which the tests show, in 13 functions; "medium": two, in 18; "hard":
      four, of which the tests show some only, in 24, and the code is put otherwise than the README; "expert": seven, in
      42, where rules build on each other and no failing test is mended by one repair.
    - `max_turns`: 16, 20, 28 and 40 by default: enough for one call in each reply.
    - `reset(options={"problem": {"package": "harbor", "parts": [...], "mistakes": [[3, 0]], "spellings": [...],
      "order": [...], "written": [...], "former": [-1], "tests": [["is_amber", 3]], "integers": [3],
      "lists": [[1, 2]]}})`: a package as `tasks/code/packages.py` makes it, one that does the same and
      whose modules are shown, the latter's mistakes (which part, which of its neighbours), how each part is written (a
      number from 0 to 3), the order of the sentences, which neighbour of each part it was formerly, or -1, the tests in
      the tree, and what the hidden ones call the functions with.

    ## Version History
    - v0: first version.
    """

    difficulties = {
        "easy": Difficulty(
            "1 mistake in 13 functions, which the tests show",
            chance_rate=0.05,
            settings={
                "turns": 16, "n": {"rule": 3, "value": 2, "list": 3, "measure": 3, "report": 2}, "mistakes": 1,
                "tested": ("rule", "value", "selection", "step", "measure", "report"), "tests": 8,
                "is_plain": True, "is_linked": False, "unseen": 0, "is_entangled": False,
            },
        ),
        "medium": Difficulty(
            "2 mistakes in 18 functions, which the tests show",
            chance_rate=0.01,
            settings={
                "turns": 20, "n": {"rule": 4, "value": 3, "list": 4, "measure": 4, "report": 3}, "mistakes": 2,
                "tested": ("measure", "report"), "tests": 12,
                "is_plain": True, "is_linked": False, "unseen": 0, "is_entangled": False,
            },
        ),
        "hard": Difficulty(
            "4 mistakes in 24 functions, some of which the tests show",
            chance_rate=0.01,
            settings={
                "turns": 28, "n": {"rule": 6, "value": 4, "list": 5, "measure": 5, "report": 4}, "mistakes": 4,
                "tested": ("report",), "tests": 8,
                "is_plain": False, "is_linked": False, "unseen": 1, "is_entangled": False,
            },
        ),
        "expert": Difficulty(
            "7 mistakes in 42 functions; no failing test is mended by one repair",
            chance_rate=0.01,
            expected_hard="The tests point to no single repair, at least three mistakes pass them, and nothing tells "
            "how many there are. Each is found by comparing 42 sentences with 42 functions that are written otherwise "
            "(x >= 4 as not x < 4); who finds each of the seven with a probability of 90% wins .9 ** 7 = 48%.",
            settings={
                "turns": 40, "n": {"rule": 12, "value": 7, "list": 9, "measure": 8, "report": 6}, "mistakes": 7,
                "tested": ("report",), "tests": 8,
                "is_plain": False, "is_linked": True, "unseen": 3, "is_entangled": True,
            },
        ),
    }  # fmt: skip
    default_difficulty = "easy"
    default_max_turns = 16
    problem_fields = {
        "package": str, "parts": list, "mistakes": list, "spellings": list, "order": list, "tests": list,
        "integers": list, "lists": list, "written": list, "former": list,
    }  # fmt: skip
    instructions = (
        "Repair the package with the tools. README.md describes what each function must do, and README.md is right. "
        "The tests in the tree do not show every mistake: hidden tests call each function when you answer. Modules "
        "import each other at the top level, with: from package.module import name. The tests run in a small sandbox, "
        f"which does not have {SANDBOX_LACKS}. When every function does what README.md describes, answer done."
    )
    answer_example = "done"
    has_natural_form = False
    blocking = True
    slow_reset_reason = "mistakes and tests are drawn until the hidden tests show each mistake"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> Toolset:
        """Return the workbench."""
        self.workbench = Workbench(_wrong_tree)
        return self.workbench

    def generate(self) -> dict[str, Any]:
        """Draw a package, and mistakes and tests until these show as much as the level wants."""
        random, settings = self.np_random.random, self.settings
        while True:
            parts = draw_parts(random, settings["n"], is_linked=settings["is_linked"])
            spellings = [0] * len(parts) if settings["is_plain"] else draw_spellings(random, parts)
            order = list(range(len(parts))) if settings["is_plain"] else shuffled(random, range(len(parts)))
            written = draw_turned(random, parts)
            made, numbers = functions(parts), numbers_in(parts)
            former = [_draw_former(random, parts, place) for place in range(len(parts))]
            package = {"parts": parts, "written": written, "spellings": spellings, "former": former}
            is_compared = cache(partial(_is_compared, package, made, names_in_words(parts)))
            for _ in range(12):
                lists = [_draw_list(random, numbers, size) for size in (0, 1, *(_SIZE,) * (_N_LISTS - 2))]
                integers = _draw_integers(random, numbers)
                mistakes = _draw_mistakes(random, written, made, settings["mistakes"], (integers, lists), is_compared)
                tests = mistakes and _draw_tests(random, written, mistakes, (integers, lists), settings)
                if mistakes and tests:
                    for place, _ in mistakes:
                        inputs = lists if takes_list(parts[place]) else integers
                        inputs += _telling(random, package, place, made, inputs)
                    return {
                        "package": pick(random, _PACKAGES),
                        **package,
                        "mistakes": mistakes,
                        "order": order,
                        "tests": tests,
                        "integers": integers,
                        "lists": lists,
                    }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse parts that make no package, and mistakes that no hidden test shows."""
        parts = problem["parts"]
        if not is_package(parts):
            raise InvalidActionError("its parts are none that tasks/code/packages.py makes")
        if re.fullmatch(r"[a-z]{3,20}", problem["package"]) is None or problem["package"] in (
            "tests",
            *MODULES.values(),
        ):
            raise InvalidActionError("its package must have a name of 3 to 20 small letters")
        if sorted(map(repr, problem["order"])) != sorted(map(repr, range(len(parts)))):
            raise InvalidActionError("its order must name each part once")
        written, former = problem["written"], problem["former"]
        if not is_package(written) or list(map(_place_of, written)) != list(map(_place_of, parts)):
            raise InvalidActionError("what is written is another package")
        if key_of(written) != key_of(parts):
            raise InvalidActionError("what is written does not do the same as its parts")
        if len(former) != len(parts) or not all(
            type(number) is int and -1 <= number < len(neighbours(parts, place)) for place, number in enumerate(former)
        ):
            raise InvalidActionError("its former must be -1, or the number of a neighbour, for each part")
        spellings = problem["spellings"]
        if len(spellings) != len(parts) or not all(type(s) is int and 0 <= s <= 3 for s in spellings):
            raise InvalidActionError("its spellings must be a number from 0 to 3 for each part")
        integers, lists = problem["integers"], problem["lists"]
        if not integers or not lists or not all(map(_is_integer, integers)) or not all(map(_is_list, lists)):
            raise InvalidActionError("its integers and lists must be whole numbers, and lists of whole numbers")
        kinds = {part["name"]: takes_list(part) for part in parts}
        for test in problem["tests"]:
            if not isinstance(test, list) or len(test) != 2 or not isinstance(test[0], str) or test[0] not in kinds:
                raise InvalidActionError("its tests must be [function, argument]")
            if not (_is_list if kinds[test[0]] else _is_integer)(test[1]):
                raise InvalidActionError(f"its test of {test[0]} has a wrong argument")
        if not problem["tests"]:
            raise InvalidActionError("it must have at least one test")
        _check_mistakes(written, problem["mistakes"], integers, lists)

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return what the functions do: other names, mistakes and tests do not make another problem."""
        return key_of(problem["parts"])

    def prompt(self) -> str:
        """Return where things are."""
        name = self.problem["package"]
        return (
            f"The package {name} has mistakes: some functions do not do what /README.md describes. Its modules are in "
            f"/{name}, its tests in /tests. Repair the modules."
        )

    def is_correct(self, answer: str) -> bool:
        """Run the hidden tests on the modules."""
        if not is_done(answer):
            raise InvalidActionError(f"the answer must be {self.write_answer('done')}, when the package is right")
        problem = self.problem
        right = functions(problem["parts"])
        names: dict[str, list[str]] = {}
        tests = []
        for part in problem["parts"]:
            name = part["name"]
            names.setdefault(f"/{problem['package']}/{MODULES[part['kind']]}.py", []).append(name)
            given = problem["lists"] if takes_list(part) else problem["integers"]
            calls = ", ".join(f"{name}({value})" for value in given)
            tests.append((f"[{calls}]", [right[name](value) for value in given]))
        package = {path: text for path, text in self.workbench.machine.files.items() if path.endswith(".py")}
        try:
            program = link(package, names)
        except LinkError:
            return False
        expression = f"[{', '.join(expression for expression, _ in tests)}]"
        return passed_share(program, [(expression, [values for _, values in tests])], limits=_JUDGE_LIMITS) == 1.0

    def next_action(self) -> str:
        """Read everything, run the tests, mend what is wrong, run the tests again, and answer."""
        bench, package = self.workbench, self.problem["package"]
        modules = [f"/{package}/{module}.py" for module in dict.fromkeys(MODULES.values())]
        for looks in (["ls -R /"], [f"cat {path}" for path in ("/README.md", *modules, f"/tests/test_{package}.py")]):
            if missing := [look for look in looks if look not in bench.done]:
                return "\n".join(format_tool_call("shell", command=look) for look in missing)
        right = _tree(self.problem, self.problem["written"])
        repairs = [call for path in modules for call in _repairs(path, bench.machine.files.get(path, ""), right[path])]
        if repairs and bench.is_tested:
            return "\n".join(repairs[: self.max_calls_per_turn])
        if not bench.is_tested:
            return format_tool_call("run_tests")
        return self.write_answer("done")


def _repairs(path: str, text: str, right: str) -> list[str]:
    """Return calls that bring a module into order: an edit for each line that differs, or all of it anew."""
    lines, wanted = text.split("\n"), right.split("\n")
    if len(lines) != len(wanted):
        return [format_tool_call("write", path=path, text=right)]
    calls = []
    for place, (line, other) in enumerate(zip(lines, wanted, strict=True)):
        if line == other:
            continue
        for start in range(place, -1, -1):
            old = "\n".join(lines[start : place + 1])
            if text.count(old) == 1:
                break
        else:
            return [format_tool_call("write", path=path, text=right)]
        calls.append(format_tool_call("edit", path=path, old=old, new="\n".join([*lines[start:place], other])))
        text = text.replace(old, "\n".join([*lines[start:place], other]))
        lines[place] = other
    return calls


def _tree(problem: Mapping[str, Any], parts: Parts) -> dict[str, str]:
    """Return the files of the package with these parts."""
    package = problem["package"]
    return {
        "/README.md": readme(problem["parts"], package, problem["order"], _formers(problem)),
        **sources(parts, package, problem["spellings"]),
        f"/tests/test_{package}.py": _test_file(problem),
    }


def _wrong_tree(problem: Mapping[str, Any]) -> dict[str, str]:
    return _tree(problem, with_mistakes(problem["written"], problem["mistakes"]))


def _formers(problem: Mapping[str, Any]) -> list[Part | None]:
    """Return what each part was in an earlier version."""
    return [_former(problem, place) for place in range(len(problem["parts"]))]


def _former(problem: Mapping[str, Any], place: int) -> Part | None:
    number = problem["former"][place]
    return None if number < 0 else neighbours(problem["parts"], place)[number]


def _place_of(part: Part) -> tuple[str, str]:
    return part["kind"], part["name"]


def _test_file(problem: Mapping[str, Any]) -> str:
    right = functions(problem["parts"])
    homes = {part["name"]: MODULES[part["kind"]] for part in problem["parts"]}
    names = sorted({name for name, _ in problem["tests"]}, key=lambda name: (homes[name], name))
    lines = [f"from {problem['package']}.{homes[name]} import {name}" for name in names]
    for number, (name, value) in enumerate(problem["tests"], 1):
        lines += ["", "", f"def test_{name}_{number}():", f"    assert {name}({value}) == {right[name](value)!r}"]
    return "\n".join([*lines, ""])


# Drawing.

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


def _outcomes(parts: Parts, calls: Sequence[tuple[str, Any]]) -> list[str]:
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
) -> list[list[int]]:
    """Draw mistakes in different parts, each of which the hidden tests show; [] if there are too few.

    Whichever of them are left: the first part that is wrong calls only right ones, so the tests of its function fail.
    Comparing a part with its sentence mends none of them, and at least half of them not even if the player leaves out
    what the README tells of earlier versions.
    """
    mistakes: list[list[int]] = []
    n_plain = 0
    for place in shuffled(random, range(len(written))):
        for number in sample(random, range(m := len(neighbours(written, place))), min(_N_TRIES, m)):
            mistake = [place, number]
            if not _is_seen(written, made, mistake, *hidden) or is_compared(place, number, True):
                continue
            is_plain = is_compared(place, number, False)
            if not is_plain or n_plain < n // 2:
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
    former = _former(package, place) if is_former_read else None
    compared = compared_repairs(sentence(parts[place], former), wrong, names, parts[place]["name"]).values()
    repairs = {tuple(lines) for lines in compared}
    if not repairs or tuple(right[1:]) in repairs:
        return bool(repairs)
    probes = [[], [3], *_PROBES] if takes_list(parts[place]) else list(range(-20, 40))
    expected = list(map(made[parts[place]["name"]], probes))
    return any(_run([right[0], *lines], made, probes) == list(map(repr, expected)) for lines in repairs)


_PROBES = tuple([(7 * i * i + 11 * i * j + 5 * j * j) % 37 - 12 for j in range(6 + i % 4)] for i in range(10))
"""Lists of numbers that look random."""


def _run(lines: Sequence[str], made: Functions, inputs: Sequence[Any]) -> list[str]:
    """Return what a function that this module has written gives for inputs, with the functions that it may call."""
    namespace: dict[str, Any] = dict(made)
    exec("\n".join(lines), namespace)
    function = namespace[lines[0][4 : lines[0].index("(")]]
    found = []
    for value in inputs:
        try:
            found.append(repr(function(value)))
        except Exception as error:
            found.append(type(error).__name__)
    return found


def _telling(random: Random, package: Mapping[str, Any], place: int, made: Functions, inputs: Sequence[Any]) -> Any:
    """Draw inputs that tell a function from those with a number off by one, as far as the given ones do not."""
    part = package["written"][place]
    right = body(part, package["spellings"][place])
    others = [[*right[:i], changed, *right[i + 1 :]] for i in range(1, len(right)) for changed in off_by_one(right[i])]
    numbers = numbers_in([part])

    def probes() -> list[Any]:
        if takes_list(part):
            return [_draw_list(random, numbers or [0], between(random, 1, 9)) for _ in range(_N_PROBES)]
        return list(range(-60, 61))

    def runs(lines: Sequence[str]) -> Callable[[Sequence[Any]], list[str]]:
        return lambda values: _run(lines, made, values)

    return telling(runs(right), map(runs, others), inputs, probes)


def _draw_tests(
    random: Random,
    parts: Parts,
    mistakes: Sequence[Sequence[int]],
    hidden: tuple[Sequence[int], Sequence[list[int]]],
    settings: Mapping[str, Any],
) -> list[list[Any]]:
    """Draw the tests of the tree; [] if they would show too much or too little for the level."""
    calls = _draw_calls(random, parts, settings["tested"])
    right = _outcomes(parts, calls)
    if not settings["unseen"]:
        calls, right = _ambiguous(random, parts, mistakes, hidden, calls, right)
    wrong = _outcomes(with_mistakes(parts, mistakes), calls)
    passing = [place for place in range(len(calls)) if right[place] == wrong[place]]
    failing = [place for place in range(len(calls)) if right[place] != wrong[place]]
    for mistake in mistakes if settings["is_entangled"] else ():
        mended = with_mistakes(parts, [other for other in mistakes if other != mistake])
        outcomes = _outcomes(mended, [calls[place] for place in failing])
        failing = [place for place, outcome in zip(failing, outcomes, strict=True) if outcome != right[place]]
    n = settings["tests"]
    n_failing = min(len(failing), between(random, 1, n // 2))
    chosen = sorted(sample(random, failing, n_failing) + sample(random, passing, min(len(passing), n - n_failing)))
    if not n_failing or len(chosen) < n // 2:
        return []
    shown = [calls[place] for place in chosen]
    expected = [right[place] for place in chosen]
    n_unseen = sum(_outcomes(with_mistakes(parts, [mistake]), shown) == expected for mistake in mistakes)
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
    """Return the calls, and their outcomes, that some false repairs of one mistake pass; none if there are no such."""
    made = functions(parts)
    for place, number in shuffled(random, mistakes):
        wrong = with_mistakes(parts, [[place, number]])
        names = users(parts, place)
        touched = [i for i, (name, _) in enumerate(calls) if name in names]
        reached = [calls[i] for i in touched]
        given, function = hidden[takes_list(parts[place])], made[parts[place]["name"]]
        shown = [i for i, outcome in enumerate(_outcomes(wrong, calls)) if outcome != right[i]]
        if not shown:
            return calls, right
        false = []
        for other in neighbours(wrong, place):
            changed = function_of(other, made)
            if any(changed(value) != function(value) for value in given):
                outcomes = list(right)
                for i, outcome in zip(touched, _outcomes(_with(parts, place, other), reached), strict=True):
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


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= 1_000_000


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 50 and all(map(_is_integer, value))


def _check_mistakes(parts: Parts, mistakes: Sequence[Any], integers: Sequence[int], lists: Sequence[list[int]]) -> None:
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
