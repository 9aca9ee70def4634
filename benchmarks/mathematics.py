"""Which answers math-verify compares wrongly, and which ours, on the cases of tests/llm_envs/mathematics.

    python benchmarks/mathematics.py [--show] [--parts]

Every case is a pair of texts that are equal, or are not. math-verify is called in the plainest right way: `parse` with
its default configurations and `verify(gold, answer)`, on the text as it is given, and with `$...$`, which it asks for,
around a text that has no environment of LaTeX. A case is wrong if the verdict is wrong, an exception comes out or there
is no verdict in 8 s. `--show` lists the wrong ones. Each side runs in a process that is killed if it stands still.

With `--parts`, one part after the other of our own layer is switched off, so that math-verify sees what that part would
have read, and the cases that then go wrong are counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parents[1] / "tests" / "llm_envs" / "mathematics" / "test_mathematics.py"
LIMIT_S = 8.0
KINDS: tuple[tuple[str, str], ...] = (
    # The first pattern that is found in either text decides; texts are joined by a line end.
    ("endless", r"9\^\{9|\(10\^\{10|1000000!|^(\\frac\{){20}|(x\^){20}|10\^\{20|10\^9|10\^\{10\^"),
    ("code", r"__import__"),
    ("garbage", r"^\W{0,2}\n|\n\W{0,2}$|\\text\{\}|\x00|\ud800"),
    ("percent", r"%|percent"),
    ("units", r"\b(k?m|cm|kg|g|grams|dollars|cups|apples|oranges|degrees|KM|meters|centimeters)\b|\\circ|\\\$"),
    ("hedges", r"maybe|hopefully|about|million|no wait|wrong"),
    ("intervals", r"<|>|\\le|\\ge|\\in|\\infty|\[|\\mid"),
    (
        "lists, sets",
        r"\\\{|or|\\pm|,\s?-?\(?[xy\d]|;|\\lor|\||\d \d|\d \\quad|\d\\\\\d|=.*=|\$.*\$ or|\\boxed.*\\boxed",
    ),
    ("prose", r"[A-Za-z]{2,}(?<!frac)(?<!sqrt)(?<!boxed)(?<!sin)(?<!cos)(?<!dfrac)(?<!pi)(?<!times)"),
    ("LaTeX", r"\\|\$"),
    ("numbers", r""),
)


def cases() -> list[tuple[str, str, bool]]:
    """Return (answer, target, whether they are equal) of every case of the tests."""
    spec = importlib.util.spec_from_file_location("math_cases", CASES)
    assert spec is not None and spec.loader is not None
    tests: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)

    def rows(test: Any) -> Any:
        return next(mark.args[1] for mark in test.pytestmark if mark.name == "parametrize")

    found = [(*pair, True) for pair in rows(tests.test_equal)]
    found += [(*pair, False) for pair in rows(tests.test_different)]
    for pairs, equal in ((tests.BOTH_WAYS, True), (tests.OTHERS, False)):
        found += [(*pair, equal) for left, right in pairs for pair in ((left, right), (right, left))]
    found += [(text, text, True) for text in rows(tests.test_the_same_text_is_equal_whatever_it_is)]
    found += [(text, "x=3, y=4", True) for text in rows(tests.test_what_stands_around_the_same_text_does_not_matter)]
    found += [(row[0], "42", False) for row in rows(tests.test_what_cannot_be_read_is_undecided_with_a_reason)]
    several = rows(tests.test_an_answer_of_several_candidates_equals_none_of_them)
    found += [(text, candidate, False) for text in several for candidate in ("5", "3")]
    found.append(("3 5", "8", False))
    found += [(text, target, False) for text in tests.GARBAGE for target in (text, "5")]
    found += [(text, "5", False) for text in tests.UNBOUNDED]
    forms = rows(tests.test_code_in_an_answer_is_not_executed)
    found += [(form.format(tests.CODE.format(path="/dev/null")), "5", False) for form in forms]
    return found


def kind_of(answer: str, target: str) -> str:
    return next(kind for kind, pattern in KINDS if re.search(pattern, f"{answer}\n{target}"))


def by_ours(connection: Any) -> None:
    from llm_envs.mathematics import MathChecker

    with MathChecker(1) as checker:
        checker.compare("x+x", "2x", timeout_s=60)
        serve(connection, lambda answer, target: bool(checker.compare(answer, target)))


def by_math_verify(connection: Any) -> None:
    from math_verify import parse, verify

    serve(connection, lambda answer, target: verify(parse(target), parse(answer)))


def by_math_verify_in_dollars(connection: Any) -> None:
    from math_verify import parse, verify

    def wrapped(text: str) -> str:
        return text if re.search(r"\$|\\\(|\\\[|\\boxed", text) else f"${text}$"

    serve(connection, lambda answer, target: verify(parse(wrapped(target)), parse(wrapped(answer))))


def serve(connection: Any, compare: Callable[[str, str], bool]) -> None:
    while True:
        answer, target = connection.recv()
        try:
            connection.send(bool(compare(answer, target)))
        except Exception as error:
            connection.send(type(error).__name__)


def parts() -> dict[str, tuple[Any, str, Any]]:
    """Return the parts of our layer: (module, name, what takes its place)."""
    from llm_envs.mathematics import answer_text, decisions, notation

    never = re.compile(r"(?!x)x")
    return {
        "units": (decisions, "take_off_unit", lambda text: (text, "")),
        "lists": (decisions, "list_items", lambda text: [text]),
        "words": (decisions, "words_of", lambda text: None),
        "pairs and intervals": (decisions, "is_interval", lambda text: False),
        "inequalities": (decisions, "interval_of", lambda text: None),
        "a set is not a pair": (decisions, "is_set", lambda text: False),
        "prose in front": (answer_text, "_PREFIX", never),
        "signs that are not ASCII": (notation, "_ASCII", {}),
        "what stands around": (answer_text, "_WRAPPERS", ()),
        "thousands": (answer_text, "ungrouped", lambda text: text),
        "1e3": (answer_text, "_SCIENTIFIC", never),
        "hundredths": (decisions, "_hundredth", lambda text: text),
        "x=3, y=4": (decisions, "split_assignment", lambda item: ("", item)),
        "3 = 4 = 5": (decisions, "_claims", lambda answer, target: []),
        "the same text": (decisions, "same_text", lambda answer, target: False),
        "one notation": (answer_text, "in_one_notation", lambda text: text),
        "numbers in a base": (decisions, "based_number", lambda text: None),
        "words with numbers": (decisions, "numbered_words", lambda text: None),
        "exact and rounded": (decisions, "_may_be_near", lambda exact, rounded: False),
    }


def without_parts(found: list[tuple[str, str, bool]]) -> None:
    """Print how many cases go wrong without each part."""
    from llm_envs.mathematics import MathChecker

    found = [case for case in found if kind_of(*case[:2]) != "endless"]
    print("| without | wrong |\n|---|---|")
    with MathChecker(1) as checker:
        checker.compare("x+x", "2x", timeout_s=60)
        for part, (module, name, replacement) in {"": (checker, "n_workers", 1), **parts()}.items():
            kept = getattr(module, name)
            setattr(module, name, replacement)
            n_wrong = sum(bool(checker.compare(answer, target)) != equal for answer, target, equal in found)
            setattr(module, name, kept)
            print(f"| {part or 'nothing'} | {n_wrong} |", flush=True)


class Side:
    """A way to compare, in a process that is started again if it stands still."""

    def __init__(self, name: str, work: Callable[[Any], None]) -> None:
        self.name, self._work, self._process = name, work, None

    def compare(self, answer: str, target: str) -> bool | str:
        if self._process is None:
            self._connection, theirs = multiprocessing.Pipe()
            self._process = multiprocessing.get_context("fork").Process(target=self._work, args=(theirs,), daemon=False)
            self._process.start()
            theirs.close()
            self._connection.send(("1", "1"))
            self._connection.recv()
        self._connection.send((answer, target))
        if self._connection.poll(LIMIT_S):
            try:
                return self._connection.recv()
            except EOFError:
                pass
        self.close()
        return f"no verdict in {LIMIT_S:g} s"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="list the wrong verdicts")
    parser.add_argument("--parts", action="store_true", help="switch off the parts of our layer, one after the other")
    arguments = parser.parse_args()
    if arguments.parts:
        without_parts(cases())
        return 0
    sides = [
        Side("ours", by_ours),
        Side("math-verify", by_math_verify),
        Side("math-verify, in $...$", by_math_verify_in_dollars),
    ]
    found = cases()
    n_cases = Counter(kind_of(answer, target) for answer, target, _ in found)
    wrong: dict[str, Counter[tuple[str, bool]]] = {}
    for side in sides:
        wrong[side.name] = Counter()
        started = time.perf_counter()
        for answer, target, equal in found:
            verdict = side.compare(answer, target)
            if verdict is not equal:
                wrong[side.name][kind_of(answer, target), equal] += 1
                if arguments.show:
                    print(f"{side.name}: {answer[:60]!r} {'=' if equal else '!='} {target[:40]!r}: {verdict}")
        side.close()
        print(f"{side.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    print("\nWrong verdicts: equal pairs that were not found equal + different pairs that were found equal.\n")
    print("| kind | cases | " + " | ".join(side.name for side in sides) + " |")
    print("|---|---|" + "---|" * len(sides))
    for kind, _ in KINDS:
        if n_cases[kind]:
            cells = [f"{wrong[side.name][kind, True]} + {wrong[side.name][kind, False]}" for side in sides]
            print(f"| {kind} | {n_cases[kind]} | " + " | ".join(cells) + " |")
    print(f"| all | {len(found)} | " + " | ".join(str(wrong[side.name].total()) for side in sides) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
