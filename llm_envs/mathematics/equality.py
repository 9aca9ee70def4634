r"""Compare two mathematical answers: plain arithmetic here, everything else by math-verify in a bounded worker.

1. A model's text is never executed. Plain numbers and arithmetic go to `llm_envs.mathematics.arithmetic`. math-verify
   reads everything else as LaTeX, in a process in which sympy's use of `eval` is replaced
   (`llm_envs/mathematics/worker.py`).
2. Every check ends. Inputs are limited in length and nesting, and a worker that exceeds `timeout_s` or its memory is
   replaced (`sandbox.scorer`). Such a check is "undecided", which is not equal.

Values are compared, so an answer that only restates the question ("37*24", "\sum_{n=1}^{100} n") equals its value. If
that would be cheating in a task, the task must ask for a number and compare numbers.
"""

from __future__ import annotations

import importlib.util
import math
import time
from dataclasses import dataclass
from pathlib import Path

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.mathematics.decisions import Verdict, decide, plain_value
from llm_envs.processes import Shared, processors
from llm_envs.sandbox.scorer import BoundedScorer

__all__ = ["MathChecker", "MathComparison", "Verdict", "compare_math", "math_equal", "prepare_comparison"]


@dataclass(frozen=True)
class MathComparison:
    """The result of comparing an answer with its target. True in a condition if, and only if, they are equal."""

    verdict: Verdict
    reason: str
    """Why it is undecided, or different without a comparison; otherwise empty."""
    seconds: float
    """Wall-clock time, including any wait for a worker."""

    def __bool__(self) -> bool:
        return self.verdict == "equal"


class MathChecker(BoundedScorer):
    """Child processes in which math-verify compares answers. Most callers need only `compare_math`.

    Args:
        n_workers: Largest number of comparisons at one time.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
    """

    def __init__(self, n_workers: int = 2) -> None:
        super().__init__(Path(__file__).with_name("worker.py"), n_workers)

    def start(self) -> None:
        """Start loading sympy, without waiting for it.

        Raises:
            MissingExtraError: If math-verify is not installed.
        """
        if self._loader is None and importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError(
                "comparing formulas needs math-verify; install it with: pip install 'llm-envs[tools]'"
            )
        super().start()

    def compare(self, answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
        """Compare an answer with its target; see `compare_math`."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise InvalidConfigError(f"timeout_s is {timeout_s!r}; it must be a number of seconds above 0.")
        started = time.perf_counter()
        left_s = timeout_s

        def ask(answer: str, target: str) -> tuple[Verdict, str]:
            nonlocal left_s
            self.start()
            reply, reason = self.try_to_answer({"answer": answer, "target": target}, left_s)
            left_s = max(left_s - (timeout_s if reply is None else reply["seconds"]), 0.01)
            if reply is None or reply["equal"] is None:
                return "undecided", reason or reply["reason"]
            return ("equal" if reply["equal"] else "different"), ""

        verdict, reason = decide(ask, answer, target)
        return MathComparison(verdict, reason, time.perf_counter() - started)

    def __enter__(self) -> MathChecker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def compare_math(answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
    r"""Compare a model's answer with the right one, by value.

    - The same text is always equal, except for spaces.
    - Numbers must be exactly equal. A decimal also equals a number that rounds to it, if it is off by at most one
      millionth (of the larger one if that is below 1). "1e3" and "1,000" are 1000. "x=5" equals "5".
    - An answer of several candidates ("3 or 5", "3 5", "3 = 5") does not equal one of them. Lists ("3,5", "x=3 or
      x=5", `\{3,5\}`) are equal in any order; a pair is equal to a list in the same order, and never to a set.
    - Texts of only words ("no", "cat", "north pole") are compared as text, ignoring case: never as products of
      variables. So "ab" is not "ba"; "a b" and "a*b" are formulas.
    - A unit behind a number counts only if both have one: "5 km" equals "5", and neither "5 cm" nor "5000 m".
      "10 grams" is "10 g"; quantities are not converted.
    - A percentage equals its hundredth: "50%" is "0.5". The answer "50" equals the target "50%", too; "50%" does not
      equal the target "50". A degree sign is a unit, except behind a fraction.
    - "x>3" equals `(3,\infty)`.

    Args:
        answer: Only the final answer, in LaTeX or as plain arithmetic. `$...$` or one `\boxed{...}` around it is
            removed.
        target: The right answer, in the same form.
        timeout_s: Longest processor time of the comparison, in seconds. The first comparison of a process waits until
            sympy is loaded.

    Returns:
        The comparison. In a condition it is true only if the two are equal. It is "undecided" if a text cannot be read
        or the comparison takes too long.

    Raises:
        InvalidConfigError: If `timeout_s` is not above 0.
        MissingExtraError: If math-verify is needed and not installed.
        SandboxError: If its process does not start, or has no processor for `timeout_s` in thirty times as long.
    """
    return shared_checker().compare(answer, target, timeout_s=timeout_s)


def prepare_comparison(target: str) -> None:
    """Start loading sympy, unless the target is a plain number. Call this before the answer arrives."""
    if plain_value(target) is None:
        shared_checker().start()


def math_equal(answer: str, target: str, *, timeout_s: float = 2.0) -> bool:
    """Return whether an answer equals its target; False if that cannot be decided. See `compare_math`."""
    return bool(compare_math(answer, target, timeout_s=timeout_s))


shared_checker = Shared(lambda: MathChecker(processors()))
"""Returns the `MathChecker` of this process."""
