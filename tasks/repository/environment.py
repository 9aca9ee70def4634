"""`llm/Repository-v0`: repair a real Python project with a shell, an editor and its tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import format_tool_call
from llm_envs.shell import Shell, ShellLimits, ShellTools
from llm_envs.tasks.draws import pick
from llm_envs.tasks.replies import is_done
from llm_envs.tasks.repository.judging import Judgement, judge
from llm_envs.tasks.repository.prepared import Prepared, RepositoryProblem, load_prepared, load_sample
from llm_envs.tasks.repository.running import TREE, bound, lay_out, python_path
from llm_envs.tasks.repository.statement import statement, without_tests
from llm_envs.tools.toolset import Toolset

__all__ = ["RepositoryEnv", "RepositoryTools"]

SAMPLE = "sample"
_LIMITS = ShellLimits(timeout_s=120.0, output_characters=8_000)


class RepositoryTools(ShellTools):
    """The tools of a shell in which a project is laid out when it starts.

    Args:
        tree: Returns the files of a problem.
        prepared: The project.
        runtime: See `open_shell`.
    """

    def __init__(
        self, tree: Callable[[Mapping[str, Any]], Mapping[str, bytes]], prepared: Prepared, runtime: str
    ) -> None:
        super().__init__(runtime, limits=_LIMITS, folders=bound(prepared.site))
        self._tree, self._prepared = tree, prepared
        self._problem: Mapping[str, Any] = {}

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode; the project is laid out at the first call."""
        super().reset(problem, rng)
        self._problem = problem

    @property
    def is_open(self) -> bool:
        """Whether the shell was used."""
        return self._shell is not None

    @property
    def shell(self) -> Shell:
        """The episode's shell, with the project in it."""
        if self._shell is None:
            shell = super().shell
            lay_out(shell, self._tree(self._problem), self._prepared.site)
            path = python_path(self._prepared.files, self._prepared.site)
            shell.run(f"export PYTHONPATH='{path}' PYTHONDONTWRITEBYTECODE=1")
        return super().shell

    def sources(self) -> dict[str, bytes]:
        """Return the source files as they are now, without those that cannot be read."""
        found = {}
        self.shell.run(f"/usr/bin/find {TREE} ! -type d ! -type f -delete")  # a pipe would keep its reader waiting
        for path in self._prepared.manifest.sources:
            try:
                found[path] = self.shell.read(f"{TREE}/{path}")
            except InvalidActionError:
                continue
        return found


class RepositoryEnv(ToolEnv):
    """Repair a real Python project, which the user names, until all its tests pass again.

    ## Description
    `llm-envs repository prepare PROJECT --out DIR` puts mistakes into functions of a project that the user names, and
    keeps those that some of its tests notice. An episode has one of them, or two, in a real shell without a network.
    Version control, caches and the tests that the level hides are not there. Teaches to find the place of a failure in
    code of many files, and to mend it without harm to the rest. The licence of the project stays with its problems.

    ## Observation
    First how many tests fail, and at some levels which, and what they say. After a call what the tool returns.

    ## Action
    Calls of the tools `bash`, `edit` and `read`, or `<answer>done</answer>` when the project is repaired.

    ## Reward
    `correct` (weight 1): 1 for "done" if every test that passed before the mistake passes, in a fresh copy of the
    project that has only the changes of existing source files. Tests and configuration are the project's, and new
    files do not count. A change that brings new ways to the interpreter or the tests into a file, such as an import of
    `sys`, counts as wrong, and so does one with which the tests pass even if the mistakes are put back into their
    functions. `malformed` (weight -0.1): 1 for a reply that is neither a call nor an answer, is broken, or has another
    answer than "done".

    ## Episode End
    Terminates with the answer. Truncated after `max_turns` replies; then the project does not count.

    ## Arguments
    - `problems`: a folder that `llm-envs repository prepare` has written, or "sample": a tiny project of ours.
    - `split`: "train" or "test". A function is in one split.
    - `difficulty`: "easy" (default): one mistake; the failing tests are named, with what they say; "medium": one
      mistake, and only the number of failing tests is told; "hard": two mistakes, and the failing tests are named but
      not in the tree.
    - `max_turns`: 30, 30 and 50 by default.
    - `runtime`: of the shells; see the guide to sandboxes.
    - `reset(options={"problem": {"key": "..."}})`: a problem of the folder, by its mutations.

    ## Version History
    - v0: first version.
    """

    difficulties = {
        "easy": Difficulty(
            "1 mistake; the failing tests are named, with what they say",
            chance_rate=0.01,
            settings={"n": 1, "shown": "messages", "is_hidden": False, "turns": 30},
        ),
        "medium": Difficulty(
            "1 mistake; the number of failing tests is told",
            chance_rate=0.01,
            settings={"n": 1, "shown": "number", "is_hidden": False, "turns": 30},
        ),
        "hard": Difficulty(
            "2 mistakes; the failing tests are named, but not there",
            chance_rate=0.01,
            settings={"n": 2, "shown": "messages", "is_hidden": True, "turns": 50},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 30
    divides_by_hash = False
    example_kwargs = {"problems": SAMPLE}
    problem_fields = {"key": str}
    instructions = (
        "Repair the project's source with the tools; its tests and its configuration are right. When you answer, the "
        "tests run on a fresh copy that has only your changes of existing source files: changed tests, changed "
        "configuration and new files do not count. A change may not bring os, sys, pytest, eval, open or other ways "
        "out of the program into a file, nor names with an underscore in front that the project lacks. When the "
        "project is repaired, answer done."
    )
    answer_example = "done"
    has_natural_form = False
    blocking = True
    slow_reset_reason = "an episode ends the shell of the one before"
    not_state = ("judgement",)

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        problems: str | Path | None = None,
        runtime: str = "namespaces",
    ) -> None:
        if problems is None:
            raise InvalidConfigError(
                f"{type(self).__name__} needs problems: make some with `llm-envs repository prepare PROJECT --out DIR` "
                "(a folder, a git repository or a package: toolz==1.0.0) and pass problems='DIR'. problems='sample' is "
                "a tiny project of ours."
            )
        self.prepared = load_sample() if problems == SAMPLE else load_prepared(problems)
        self.runtime = runtime
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]
        fitting = [each for each in self.prepared.problems.values() if len(each.mutations) == self.settings["n"]]
        self._keys = [each.key for each in fitting if each.split == split]
        if not self._keys:
            raise InvalidConfigError(
                f"{str(problems)!r} has {len(fitting)} problems of the level {self.difficulty!r}, none in the split "
                f"{split!r}: make more with `llm-envs repository prepare ... -n N`."
            )
        self.n_problems = len(self._keys)
        self.judgement: Judgement | None = None
        """The last verdict, with its reason."""

    def make_tools(self) -> Toolset:
        """Return the shell's tools."""
        self.machine = RepositoryTools(self._tree, self.prepared, self.runtime)
        return self.machine

    def generate(self) -> dict[str, Any]:
        """Draw a problem of the folder."""
        return {"key": pick(self.np_random.random, self._keys)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that the folder does not have."""
        if problem["key"] not in self.prepared.problems:
            raise InvalidActionError(f"the folder has no problem {problem['key']!r:.200}")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the functions with mistakes."""
        return [[mutation.path, mutation.function] for mutation in self._problem(problem).mutations]

    def prompt(self) -> str:
        """Return the statement."""
        return statement(
            self.prepared,
            self._problem(self.problem),
            self.settings["shown"],
            is_hidden=self.settings["is_hidden"],
        )

    def is_correct(self, answer: str) -> bool:
        """Run the tests on a fresh copy with the player's changes of source files."""
        if not is_done(answer):
            raise InvalidActionError(f"the answer must be {self.write_answer('done')}, when the project is repaired")
        if not self.machine.is_open:
            return False
        problem = self._problem(self.problem)
        self.judgement = judge(self.prepared, problem, self.machine.sources(), runtime=self.runtime)
        return self.judgement.is_repaired

    def next_action(self) -> str:
        """Bring each source file that differs from the original back, by an edit, and answer."""
        files: Mapping[str, bytes] = self._tree(self.problem)
        if self.machine.is_open:
            files = self.machine.sources()
        calls = []
        for path in self.prepared.manifest.sources:
            right = self.prepared.files[path]
            if files.get(path) != right:
                calls += _repair(path, files.get(path), right)
        return "\n".join(calls[: self.max_calls_per_turn]) or self.write_answer("done")

    def _problem(self, problem: Mapping[str, Any]) -> RepositoryProblem:
        return self.prepared.problems[problem["key"]]

    def _tree(self, problem: Mapping[str, Any]) -> dict[str, bytes]:
        found = self._problem(problem)
        files = self.prepared.mutated(found)
        return without_tests(files, found.failing) if self.settings["is_hidden"] else files


def _repair(path: str, now: bytes | None, right: bytes) -> list[str]:
    """Return calls that bring a file into order: an edit of the lines between its first and its last difference."""
    wanted = right.decode()
    try:
        text = (now or b"").decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        place = f"'{TREE}/{path}'"
        return [
            format_tool_call("bash", command=f'rm -rf {place}; mkdir -p "$(dirname {place})"'),
            format_tool_call("edit", path=f"{TREE}/{path}", old="", new=wanted),
        ]
    start = next((i for i, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), min(len(text), len(wanted)))
    most = min(len(text), len(wanted)) - start
    pairs = zip(reversed(text), reversed(wanted), strict=False)
    end = next((i for i, (a, b) in enumerate(pairs) if a != b or i == most), most)
    begin, until = text.rfind("\n", 0, start) + 1, text.find("\n", len(text) - end) + 1 or len(text)
    while text.count(text[begin:until]) != 1 or begin == until:
        begin = text.rfind("\n", 0, max(begin - 1, 0)) + 1
        until = text.find("\n", until) + 1 or len(text)
    new = wanted[begin : until + len(wanted) - len(text)]
    return [format_tool_call("edit", path=f"{TREE}/{path}", old=text[begin:until], new=new)]
