"""Where our verdicts depart from the official ones, with reasons: for `published.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proof.fidelity.published_forms import ATTACKS, LOOSE, NOT_WORKED_OUT, READ, pair

__all__ = ["DEPARTURES", "Departure"]


@dataclass(frozen=True, slots=True)
class Departure:
    """A kind of output for which our verdict differs on purpose."""

    why: str
    mine: bool
    """Our verdict; the official one is the opposite."""
    matches: Callable[[str, str], object]
    """(name of the form, output) -> whether it is of the kind."""

    def explains(self, form: str, output: str, mine: bool, theirs: bool) -> bool:
        """Return whether this is the reason of a difference."""
        return mine == self.mine and theirs != mine and bool(self.matches(form, output))


def _thinking(form: str, output: str) -> bool:
    return "<think>" in output or "</think>" in output


def _tags(form: str, output: str) -> bool:
    return re.search(r"</?(?:think|answer|tool_call)|<\|", output) is not None


THINKING = Departure("an answer inside thinking, or after thinking that does not end, does not count", False, _thinking)
_TWO_LETTERS = Departure(
    "two letters, a hedge or a denial does not count; simple-evals takes the first letter",
    False,
    lambda form, output: re.search(
        r"(?i)answer[ \t*]*:.*?[A-D]\b.*\b([A-D]|or|no|wrong|doubt|not)\b", output, re.DOTALL
    ),
)
_PART_OF_A_WORD = Departure(
    "the letter must be a word; simple-evals reads the first letter of any word or of ABCD",
    False,
    lambda form, output: re.search(r"(?i)answer[ \t*]*:[ \t*$]*[A-D]\w", output),
)
_DECORATED = Departure(
    "markdown and LaTeX around the letter do not matter, as in simple-evals for MMLU; for GPQA they do there",
    True,
    lambda form, output: re.search(r"(?i:answer)[ \t]*:[ \t]*[^A-Da-d\w\s]", output),
)
_MARKS = Departure(
    '"Answer:" and the letter stand in one line without marks between the letters; simple-evals removes such marks',
    False,
    lambda form, output: re.search(r"(?i)answer[^\w:]+:|answer[ \t]*:\s*\n|a\W*n\W*s\W*w\W*e\W*r\W*:", output),
)
_NO_BOX = Departure(
    "the answer stands in a box, as the prompt asks; math-verify takes the last number or formula of any kind",
    False,
    lambda form, output: re.search(r"\\boxed\{[^}]", output) is None,
)
_TWO_BLOCKS = Departure(
    "two blocks that define the function do not count; the first is taken in simple-evals",
    False,
    lambda form, output: output.count("```") > 2,
)
_OTHER_FENCE = Departure(
    "a fence may name any language; simple-evals looks for python",
    True,
    lambda form, output: "```python\n" not in output,
)
_FENCE_WITHIN_A_LINE = Departure(
    "a fence begins a line; simple-evals finds it anywhere",
    False,
    lambda form, output: re.search(r"[^\n]```python", output),
)
_ATTACK = Departure(
    "an object that is equal to everything deceives no test in another interpreter, nor does a changed Python",
    False,
    lambda form, output: form in ATTACKS,
)
_HELPER = "the tests use the prompt's helper functions, and the program cannot replace them"
DEPARTURES: Mapping[str, tuple[Departure, ...]] = {
    "GSM8K": (
        Departure("a full stop behind the number is dropped, as lm-evaluation-harness does", True,
                  lambda form, output: re.search(r"#### -?[0-9,.]*\.(?![0-9])", output)),
        THINKING,
        Departure("two different numbers do not count; the repository takes the first", False,
                  lambda form, output: len(set(re.findall(r"#### (-?[0-9.,]+)", output))) > 1),
        Departure("numbers in thinking are not read; the repository takes the first of all", True, _thinking),
        Departure("broken tags are malformed", False, _tags),
    ),
    "MMLU": (THINKING, _TWO_LETTERS, _PART_OF_A_WORD, _MARKS),
    "GPQA": (THINKING, _TWO_LETTERS, _PART_OF_A_WORD, _DECORATED),
    "HotpotQA": (
        THINKING,
        Departure("two different answers do not count; Search-R1 takes the last", False,
                  lambda form, output: len(re.findall(r"</?answer>", output)) > 2),
        Departure("an answer that is opened again begins there; Search-R1 reads from the first tag", True,
                  lambda form, output: output.count("<answer>") > output.count("</answer>")),
        Departure("broken tags are malformed", False, _tags),
    ),
    "MATH500": (
        THINKING,
        Departure("an answer must be worked out: no operation beyond the published one's", False,
                  lambda form, output: form in map(pair, NOT_WORKED_OUT)),
        Departure("a ratio, an approximation and digits without their base are not the value", False,
                  lambda form, output: form in map(pair, LOOSE)),
        Departure("an inequality is its interval, a repeating decimal its fraction, and a full stop or comma at the "
                  "end does not count", True, lambda form, output: form in map(pair, READ)),
        Departure("a box that is not closed is broken", False,
                  lambda form, output: output.count("{") != output.count("}")),
        Departure("two answers are none; math-verify may take the first", False,
                  lambda form, output: output.count("boxed{") > 1 or "\\text{ or }" in output),
        Departure("all of the box is the answer; math-verify picks a formula out of other text", False,
                  lambda form, output: form == "damaged"),
        Departure("an answer that is denied is none; math-verify reads the formula in it", False,
                  lambda form, output: "\\text{not }" in output),
        Departure("spaces may stand before the brace of a box", True,
                  lambda form, output: re.search(r"\\boxed[ \t]+\{", output)),
        _NO_BOX,
    ),
    "AIME": (
        THINKING,
        _NO_BOX,
        Departure("all of the box is the number, perhaps with a unit; math-verify picks one out of other text",
                  False, lambda form, output: re.search(r"\\boxed\{[0-9]{1,3}\}", output) is None),
    ),
    "HumanEval": (
        THINKING,
        _TWO_BLOCKS,
        _OTHER_FENCE,
        _FENCE_WITHIN_A_LINE,
        _ATTACK,
        *(Departure(_HELPER, mine, lambda form, output: "encode_shifted" in output) for mine in (True, False)),
    ),
    "MBPP": (THINKING, _TWO_BLOCKS, _OTHER_FENCE, _FENCE_WITHIN_A_LINE, _ATTACK),
}  # fmt: skip
