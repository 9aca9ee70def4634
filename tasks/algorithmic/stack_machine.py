"""`llm/StackMachine-v0`: run a program of a stack machine in the head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import parse_integer
from llm_envs.tasks.algorithmic.lists import check_length, read_items
from llm_envs.tasks.draws import Random, between, pick

__all__ = ["StackMachineEnv", "run_program"]

_MEANINGS: Mapping[str, tuple[int, str]] = {
    "add": (2, "replaces the top two numbers by their sum"),
    "sub": (2, "replaces the top two by the second minus the top"),
    "mul": (2, "replaces the top two by their product"),
    "max": (2, "replaces the top two by the larger one"),
    "neg": (1, "changes the sign of the top number"),
    "dup": (1, "pushes a copy of the top number"),
    "drop": (1, "removes the top number"),
    "swap": (2, "exchanges the top two"),
    "over": (2, "pushes a copy of the second number"),
    "rot": (3, "moves the third number to the top"),
}
"""Of each instruction how many numbers it needs, and what it does."""
_LARGEST, _MOST_STEPS, _MOST_LINES = 10**12, 2_000, 300
_FAR = 999
_ENDS = re.compile(
    r"^\(?(?:from )?bottom(?: to top)?\)?\s*:\s*|\s*\((?:from )?bottom to top\)\.?$"
    r"|(?<=[0-9\]])\s*,? from bottom to top\.?$|"
    r"\s*\(bottom\)|\s*\(top\)\.?$",
    re.IGNORECASE,
)
"""Words that say that the list goes from bottom to top."""


class StackMachineEnv(SingleTurnEnv):
    """Tell the final stack of a program.

    ## Description
    A program of a small stack machine pushes numbers, calculates with the top ones and moves them about; at the top
    level with loops. Teaches to simulate a machine step by step and to keep its whole state.

    ## Observation
    The meaning of each instruction, and the program. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>3, -1, 4</answer>`: the final stack from bottom to top, with or without brackets. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all numbers are right, in order. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or whose answer is not a list of whole numbers.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": 4 instructions; "easy" (default): 8; "medium": 14; "hard": 16 with one or two loops,
      nested at times; "expert": 30 with up to four loops; it takes 150 to 400 steps.
    - `reset(options={"problem": {"program": ["push 3", "repeat 2", "dup", "add", "end"]}})` plays a given program
      that leaves at least one number.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest final stack: 0.5%, 0.3%, 0.2%, 0.2%, 0.2%.
    difficulties = {
        "starter": Difficulty("4 instructions", chance_rate=0.01, settings={"size": 4, "loops": 0}),
        "easy": Difficulty("8 instructions", chance_rate=0.01, settings={"size": 8, "loops": 0}),
        "medium": Difficulty("14 instructions", chance_rate=0.01, settings={"size": 14, "loops": 0}),
        "hard": Difficulty("16 instructions with loops", chance_rate=0.01, settings={"size": 16, "loops": 2}),
        "expert": Difficulty(
            "30 instructions with loops, over 150 steps",
            chance_rate=0.01,
            settings={"size": 30, "loops": 4, "repeats": (3, 7), "steps": (150, 400), "left": 12},
            expected_hard="150 to 400 instructions are carried out, each on the stack that the one before has left; "
            "at one slip in 350, half of the final stacks are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level most programs fail, or take too many steps or too few, and are drawn again"
    problem_fields = {"program": list}
    instructions = "Run the program. The answer is the numbers of the final stack, from bottom to top."
    answer_example = "3, -1, 4"

    def generate(self) -> dict[str, Any]:
        """Draw a program that leaves a few numbers, none of them large, and not only what was pushed.

        Who runs a loop once, or one round too few or too many, finds another stack.
        """
        random, settings = self.np_random.random, self.settings
        fewest, most = settings.get("steps", (0, _MOST_STEPS))
        while True:
            program = _draw_program(random, settings["size"], settings["loops"], settings.get("repeats", (2, 4)))
            if not fewest <= _n_steps(program) <= most:
                continue
            try:
                stack = run_program(program)
            except InvalidActionError:
                continue
            pushed = [int(line[5:]) for line in program if line.startswith("push")]
            if not (2 <= len(stack) <= settings.get("left", 6) and max(map(abs, stack)) <= _FAR and stack != pushed):
                continue
            slips = _slips(program)
            if bool(slips) == bool(settings["loops"]) and stack not in slips.values():
                return {"program": program}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a program that has the wrong form, fails, or leaves nothing."""
        if not all(isinstance(line, str) for line in problem["program"]) or len(problem["program"]) > _MOST_LINES:
            raise InvalidActionError(f"the program must be a list of at most {_MOST_LINES} texts")
        if not run_program(problem["program"]):
            raise InvalidActionError("the program leaves an empty stack")

    def begin(self) -> None:
        """Run the program."""
        self._stack = run_program(self.problem["program"])

    def shortcuts(self) -> Mapping[str, str]:
        """Return the final stacks of programs whose loops run once, or one round too few or too many."""
        slips = _slips(self.problem["program"])
        return {name: self.write_answer(", ".join(map(str, stack))) for name, stack in slips.items() if stack}

    def prompt(self) -> str:
        """Return what the instructions do, and the program."""
        used = {line.split()[0] for line in self.problem["program"]}
        lines = ["A machine works on a stack of numbers, empty at first. push n puts n on top."]
        lines += [f"{name} {meaning}." for name, (_, meaning) in _MEANINGS.items() if name in used]
        if "repeat" in used:
            lines.append("repeat n ... end runs what is between n times.")
        indent = 0
        lines.append("Program:")
        for line in self.problem["program"]:
            indent -= line == "end"
            lines.append("  " * indent + line)
            indent += line.startswith("repeat")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return the final stack."""
        return ", ".join(map(str, self._stack))

    def is_correct(self, answer: str) -> bool:
        """Compare number by number."""
        check_length(answer)
        items = read_items(_ENDS.sub("", answer.replace("\u2212", "-").strip()))
        numbers = [parse_integer(part) for item in items for part in item.split()]
        if None in numbers or not numbers:
            raise InvalidActionError("the answer must be whole numbers between commas, from bottom to top")
        return numbers == self._stack


def run_program(program: Sequence[str]) -> list[int]:
    """Return the final stack, bottom first.

    Raises:
        InvalidActionError: If a line is not an instruction, needs more numbers than there are, a loop is not closed, or
            numbers or steps become too many.
    """
    stack: list[int] = []
    loops: list[list[int]] = []
    place = steps = 0
    while place < len(program):
        name, _, argument = program[place].partition(" ")
        place, steps = place + 1, steps + 1
        if steps > _MOST_STEPS or len(stack) > _MOST_STEPS:
            raise InvalidActionError(f"the program takes over {_MOST_STEPS} steps")
        if name in ("push", "repeat"):
            number = parse_integer(argument)
            if number is None or abs(number) > _LARGEST or (name == "repeat" and not 1 <= number <= _MOST_STEPS):
                raise InvalidActionError(f"{program[place - 1][:40]!r} needs a whole number")
            if name == "push":
                stack.append(number)
            else:
                loops.append([place, number - 1])
        elif name == "end" and not argument and loops:
            start, left = loops[-1]
            if left:
                loops[-1][1], place = left - 1, start
            else:
                loops.pop()
        elif name in _MEANINGS and not argument:
            if len(stack) < _MEANINGS[name][0]:
                raise InvalidActionError(f"{name} needs {_MEANINGS[name][0]} numbers; the stack has {len(stack)}")
            _apply(name, stack)
            if stack and abs(stack[-1]) > _LARGEST:
                raise InvalidActionError(f"a number becomes larger than {_LARGEST}")
        else:
            raise InvalidActionError(f"{program[place - 1][:40]!r} cannot stand here as an instruction")
    if loops:
        raise InvalidActionError("a loop has no end")
    return stack


def _slips(program: Sequence[str]) -> dict[str, list[int] | None]:
    """Return the final stack after each mistake about loops, by name; None if the program then fails."""
    places = [place for place, line in enumerate(program) if line.startswith("repeat")]
    changed = {"every loop once": dict.fromkeys(places, 1)} if places else {}
    for number, place in enumerate(places, 1):
        rounds = int(program[place][7:])
        changed |= {f"loop {number} once": {place: 1}, f"loop {number} one round more": {place: rounds + 1}}
        if rounds > 1:
            changed[f"loop {number} one round fewer"] = {place: rounds - 1}
    found: dict[str, list[int] | None] = {}
    for name, rounds_of in changed.items():
        lines = [f"repeat {rounds_of[i]}" if i in rounds_of else line for i, line in enumerate(program)]
        try:
            found[name] = run_program(lines)
        except InvalidActionError:
            found[name] = None
    return found


def _n_steps(program: Sequence[str]) -> int:
    """Return how many lines are carried out; 0 if that is over the limit."""
    total, times = 0, [1]
    for line in program:
        if line == "end":
            total += times.pop()
        else:
            total += times[-1]
        if line.startswith("repeat"):
            times.append(times[-1] * int(line[7:]))
    return total if total <= _MOST_STEPS else 0


def _apply(name: str, stack: list[int]) -> None:
    if name in ("add", "sub", "mul", "max"):
        top = stack.pop()
        second = stack.pop()
        results = {"add": second + top, "sub": second - top, "mul": second * top, "max": max(second, top)}
        stack.append(results[name])
    elif name == "neg":
        stack[-1] = -stack[-1]
    elif name == "dup":
        stack.append(stack[-1])
    elif name == "drop":
        stack.pop()
    elif name == "swap":
        stack[-1], stack[-2] = stack[-2], stack[-1]
    elif name == "over":
        stack.append(stack[-2])
    else:
        stack.append(stack.pop(-3))


_CHANGES = {"add": -1, "sub": -1, "mul": -1, "max": -1, "drop": -1, "dup": 1, "over": 1}
_DRAWN = ("add", "add", "sub", "sub", "mul", "max", "neg", "dup", "drop", "swap", "over", "rot")


def _draw_program(random: Random, size: int, n_loops: int, repeats: tuple[int, int]) -> list[str]:
    """Draw instructions, each with enough numbers on the stack; loops keep the stack's height or add to it."""
    program = [f"push {_draw_number(random)}" for _ in range(3)]
    height = 3
    loops: list[tuple[int, int]] = []
    opened = 0
    while len(program) < size:
        if opened < n_loops and random() < 0.15:
            program.append(f"repeat {between(random, *repeats)}")
            loops.append((len(program), height))
            opened += 1
        elif loops and len(program) >= loops[-1][0] + 2 and height >= loops[-1][1] and random() < 0.4:
            program.append("end")
            loops.pop()
        elif height < 3 or random() < 0.25:
            program.append(f"push {_draw_number(random)}")
            height += 1
        else:
            name = pick(random, _DRAWN)
            program.append(name)
            height += _CHANGES.get(name, 0)
    return program + ["end"] * len(loops)


def _draw_number(random: Random) -> int:
    number = between(random, 1, 12)
    return -number if random() < 0.2 else number
