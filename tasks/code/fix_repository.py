"""`llm/FixRepository-v0`: repair a small Python package with a shell, an editor and its tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards.builders import passed_share
from llm_envs.sandbox import SandboxLimits
from llm_envs.tasks.code.judging import SANDBOX_LACKS
from llm_envs.tasks.code.linking import LinkError, link
from llm_envs.tasks.code.package_mistakes import check_mistakes, draw_mistaken, former_of, is_integer, is_list
from llm_envs.tasks.code.package_texts import readme, sources
from llm_envs.tasks.code.packages import (
    MODULES,
    Part,
    Parts,
    functions,
    is_package,
    key_of,
    neighbours,
    takes_list,
    with_mistakes,
)
from llm_envs.tasks.code.workbench import Workbench
from llm_envs.tasks.draws import pick
from llm_envs.tasks.replies import is_done
from llm_envs.tools.toolset import Toolset

__all__ = ["FixRepositoryEnv"]

_JUDGE_LIMITS = SandboxLimits(timeout_s=5.0, memory_bytes=64 << 20, output_characters=200_000, code_characters=400_000)
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
      four, of which the tests show some only, in 24, and the code is put otherwise than the README; "expert": nine, in
      56, where rules build on each other and no failing test is mended by one repair.
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
            "9 mistakes in 56 functions; no failing test is mended by one repair",
            chance_rate=0.01,
            expected_hard="The tests point to no single repair, at least four mistakes pass them, and nothing tells "
            "how many there are. Each is found by comparing 56 sentences with 56 functions that are written otherwise "
            "(x >= 4 as not x < 4); who finds each of the nine with a probability of 90% wins .9 ** 9 = 39%.",
            settings={
                "turns": 40, "n": {"rule": 16, "value": 9, "list": 12, "measure": 11, "report": 8}, "mistakes": 9,
                "tested": ("report",), "tests": 8,
                "is_plain": False, "is_linked": True, "unseen": 4, "is_entangled": True,
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
        while (problem := draw_mistaken(random, settings)) is None:
            pass
        return {"package": pick(random, _PACKAGES), **problem}

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
        if not integers or not lists or not all(map(is_integer, integers)) or not all(map(is_list, lists)):
            raise InvalidActionError("its integers and lists must be whole numbers, and lists of whole numbers")
        kinds = {part["name"]: takes_list(part) for part in parts}
        for test in problem["tests"]:
            if not isinstance(test, list) or len(test) != 2 or not isinstance(test[0], str) or test[0] not in kinds:
                raise InvalidActionError("its tests must be [function, argument]")
            if not (is_list if kinds[test[0]] else is_integer)(test[1]):
                raise InvalidActionError(f"its test of {test[0]} has a wrong argument")
        if not problem["tests"]:
            raise InvalidActionError("it must have at least one test")
        check_mistakes(written, problem["mistakes"], integers, lists)

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
        "/README.md": readme(
            problem["parts"], package, problem["order"], _formers(problem), is_spoken=any(problem["spellings"])
        ),
        **sources(parts, package, problem["spellings"]),
        f"/tests/test_{package}.py": _test_file(problem),
    }


def _wrong_tree(problem: Mapping[str, Any]) -> dict[str, str]:
    return _tree(problem, with_mistakes(problem["written"], problem["mistakes"]))


def _formers(problem: Mapping[str, Any]) -> list[Part | None]:
    """Return what each part was in an earlier version."""
    return [former_of(problem, place) for place in range(len(problem["parts"]))]


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
