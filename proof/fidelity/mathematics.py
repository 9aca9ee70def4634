r"""The answers of mathematics that models write, right and wrong, as our three tasks and math-verify judge them.

    python -m proof.fidelity.mathematics [--show]

The corpus is made by the grammar of `math_forms.py`: `llm/MATH500-v0` and `llm/AIME-v0` get the answers in a box with
text around it, `llm/DatasetMath-v0` gets them in tags. math-verify reads the published answer in a box, and the reply
(in a box instead of tags). The result goes to `proof/results/fidelity/forms/mathematics.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

import llm_envs  # noqa: F401  # registers the tasks
from proof.fidelity.compare import RESULTS as CERTIFICATES
from proof.fidelity.math_forms import AROUND, BESIDE, RIGHT, WRONG, Form, answers
from proof.fidelity.published_rules import math_verify

__all__ = ["ARGUMENTS", "RESULT", "UNARGUED", "Judged", "corpus", "judge", "ours", "result"]

RESULT = CERTIFICATES / "forms" / "mathematics.json"
_REPLIES = Path(__file__).resolve().parents[1] / "results" / "baselines"
_NOT_FOR_DATASET = {"not in lowest terms", "powers"}
"""Its prompt asks for lowest terms, and for a result that is worked out."""
_AIME_KIND = "a whole number"
_MOST_EXAMPLES = 3
UNARGUED = "not argued"
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "LaTeX spaces, fonts, signs of Unicode and units do not change a value": (
        "right: spaces", "right: fonts", "right: units", "right: things", "right: thousands", "right: signs",
        "right: degrees", "right: money", "right: roots", "right: products", "right: terms", "right: fractions",
        "right: mixed", "right: powers", "right: imaginary", "right: bases", "right: repeating", "right: decimals",
        "right: words", "right: letters", "right: matrices", "right: not in lowest terms", "right: dates",
    ),
    "what the value is called does not matter, nor the notation of a set, a pair or an interval": (
        "right: names", "right: lists", "right: sets", "right: pairs", "right: intervals", "right: ratios",
    ),
    "a percentage is its hundredth, and the number itself only where percent are asked for": (
        "right: percent", "wrong: percent", "wrong: degrees", "wrong: degrees and percent",
    ),
    "the last box counts after results on the way": ("right: around",),
    "an answer commits to one value, in the box, outside of thinking": ("wrong: beside", "wrong: hedges"),
    "an answer must be worked out": ("wrong: not worked out",),
    "brackets, repeated elements, the base and the seventh decimal belong to the value": ("wrong: values",),
}  # fmt: skip
"""Why our verdicts differ from math-verify's, and on which groups of forms."""


class Judged(NamedTuple):
    """One reply to one task, with two verdicts."""

    task: str
    form: Form
    reply: str
    ours: bool
    theirs: bool


def model_replies() -> list[str]:
    """Return what the real model of `docs/results/baselines.md` wrote for tasks of mathematics."""
    found = []
    for name in ("Arithmetic", "Units", "WordProblems"):
        record = json.loads((_REPLIES / f"{name}-v0-plain-greedy.json").read_text())
        found += [row["reply"].strip() for row in record["outcomes"]["replies"]]
    return sorted({reply[:400] for reply in found if not re.search(r"boxed|</?\w+>|\\[(\[]", reply)})


def corpus(least: int = 40, seed: int = 0) -> Iterator[tuple[str, Form, str]]:
    """Yield (task, form, reply).

    Args:
        least: Least number of right and of wrong answers of each kind, for `llm/MATH500-v0`.
        seed: Of the values.
    """
    rng, model, first = random.Random(seed), model_replies(), 4 * seed
    others = {(form.kind, form.target): form.text for form in answers(WRONG, least, first) if form.group == "values"}

    def reply(around: str, form: Form) -> str:
        parts = {"m": rng.choice(model), "x": form.text, "w": others.get((form.kind, form.target), "12345")}
        return re.sub("@([mxw])", lambda part: parts[part[1]], around)

    for forms in (RIGHT, WRONG):
        for form in answers(forms, least, first):
            yield "MATH500", form, reply(rng.choice(AROUND), form)
        for form in answers(forms, least // 2, first + 1):
            if form.group not in _NOT_FOR_DATASET:
                yield "DatasetMath", form, f"<answer>{form.text}</answer>"
        for form in answers({_AIME_KIND: forms[_AIME_KIND]}, least, first + 2):
            yield "AIME", form._replace(is_right=forms is RIGHT), reply(rng.choice(AROUND), form)
    for form in answers({kind: {"plain": ("@target",)} for kind in RIGHT}, 4, first + 3):
        for around in AROUND:
            yield "MATH500", form._replace(group="around", is_right=True), reply(around, form)
        for around in BESIDE:
            yield "MATH500", form._replace(group="beside", is_right=False), reply(around, form)


def ours(listed: Iterable[tuple[str, Form, str]]) -> Iterator[bool]:
    """Yield our verdicts on some replies."""
    envs: dict[str, Any] = {}
    for task, form, reply in listed:
        if task not in envs:
            data: dict[str, Any] = {} if task == "DatasetMath" else {"data": "sample"}
            envs[task] = gym.make(f"llm/{task}-v0", **data)
        envs[task].reset(options={"problem": {"question": form.question, "answer": form.target}})
        yield bool(envs[task].step(reply)[4]["is_success"])


def judge(listed: Iterable[tuple[str, Form, str]]) -> Iterator[Judged]:
    """Yield both verdicts on some replies."""
    first, second = tee(listed)
    for (task, form, reply), mine in zip(first, ours(second), strict=True):
        read = reply if task != "DatasetMath" else f"\\boxed{{{form.text}}}"
        yield Judged(task, form, reply, mine, math_verify(read, {"answer": form.target}))


def result(judged: Iterable[Judged]) -> dict[str, Any]:
    """Return the counts by task, what either side misjudged by group of forms, and why the verdicts differ."""
    tasks: dict[str, Counter[str]] = defaultdict(Counter)
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, list[str]] = defaultdict(list)
    differ: Counter[str] = Counter()
    why = {group: argument for argument, listed in ARGUMENTS.items() for group in listed}
    for each in judged:
        kind = "right" if each.form.is_right else "wrong"
        tasks[each.task].update({kind: 1, f"{kind}, accepted": int(each.ours)})
        tasks[each.task].update({f"{kind}, accepted by math-verify": int(each.theirs)})
        misjudged = each.ours != each.form.is_right, each.theirs != each.form.is_right
        name = f"{kind}: {each.form.group}"
        differ[why.get(name, f"{UNARGUED}: {name}")] += each.ours != each.theirs
        if any(misjudged):
            groups[name].update({"ours": +misjudged[0], "math-verify": +misjudged[1]})
            examples[name].append(f"{each.form.text} for {each.form.target}"[:160])
    return {
        "math-verify": version("math-verify"),
        "tasks": {name: dict(sorted(counts.items())) for name, counts in sorted(tasks.items())},
        "differences": {argument: n for argument, n in differ.most_common() if n},
        "misjudged": {
            name: {**counts, "examples": examples[name][:: len(examples[name]) // _MOST_EXAMPLES + 1]}
            for name, counts in sorted(groups.items())
        },
    }


def main() -> None:
    """Judge the corpus and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print what ours misjudges")
    show = parser.parse_args().show
    judged = []
    for each in judge(corpus()):
        judged.append(each)
        if show and each.ours != each.form.is_right:
            verdict = "refused" if each.form.is_right else "accepted"
            print(f"{verdict}: {each.task}, {each.form.target!r}: {each.reply!r}", flush=True)
    found = result(judged)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")
    print(json.dumps(found["tasks"], indent=1))


if __name__ == "__main__":
    main()
