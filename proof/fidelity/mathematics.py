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
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

import llm_envs  # noqa: F401  # registers the tasks

from proof.fidelity.compare import RESULTS as CERTIFICATES
from proof.fidelity.math_forms import AROUND, BESIDE, RIGHT, WRONG, Form, answers
from proof.fidelity.published_rules import math_verify

__all__ = ["RESULT", "Judged", "corpus", "judge", "result"]

RESULT = CERTIFICATES / "forms" / "mathematics.json"
_REPLIES = Path(__file__).resolve().parents[1] / "results" / "baselines"
_NOT_FOR_DATASET = {"not in lowest terms", "powers"}
"""Its prompt asks for lowest terms, and for a result that is worked out."""
_NOT_FOR_AIME = {"signs"}
_AIME_KIND = "a whole number"
_MOST_EXAMPLES = 3


class Judged(NamedTuple):
    """One reply to one task, with two verdicts."""

    task: str
    form: Form
    reply: str
    ours: bool
    theirs: bool


def model_replies() -> list[str]:
    """Return what the real model of `docs/results/baselines.md` wrote for tasks of mathematics, without its answer."""
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
    rng, model = random.Random(seed), model_replies()
    wrong_of = {
        (form.kind, form.target): form.text for form in answers(WRONG, least, 4 * seed) if form.group == "values"
    }

    def reply(around: str, form: Form) -> str:
        other = wrong_of.get((form.kind, form.target), "12345")
        parts = {"m": rng.choice(model), "x": form.text, "w": other}
        return re.sub("@([mxw])", lambda part: parts[part[1]], around)

    for forms in (RIGHT, WRONG):
        for form in answers(forms, least, 4 * seed):
            yield "MATH500", form, reply(rng.choice(AROUND), form)
        for form in answers(forms, least // 2, 4 * seed + 1):
            if form.group not in _NOT_FOR_DATASET:
                yield "DatasetMath", form, f"<answer>{form.text}</answer>"
        for form in answers({_AIME_KIND: forms[_AIME_KIND]}, least, 4 * seed + 2):
            if form.group not in _NOT_FOR_AIME:
                yield "AIME", form._replace(is_right=forms is RIGHT), reply(rng.choice(AROUND), form)
    for form in answers({kind: {"plain": ("@target",)} for kind in RIGHT}, 4, 4 * seed + 3):
        for around in AROUND:
            yield "MATH500", form._replace(group="around", is_right=True), reply(around, form)
        for around in BESIDE:
            yield "MATH500", form._replace(group="beside", is_right=False), reply(around, form)


def judge(listed: Iterator[tuple[str, Form, str]]) -> Iterator[Judged]:
    """Yield the verdicts on some replies."""
    envs: dict[str, Any] = {}
    for task, form, reply in listed:
        if task not in envs:
            envs[task] = gym.make(f"llm/{task}-v0", **({} if task == "DatasetMath" else {"data": "sample"}))  # type: ignore[arg-type]
        problem = {"question": form.question, "answer": form.target}
        envs[task].reset(options={"problem": problem})
        ours = bool(envs[task].step(reply)[4]["is_success"])
        read = reply if task != "DatasetMath" else f"\\boxed{{{form.text}}}"
        yield Judged(task, form, reply, ours, math_verify(read, problem))


def result(judged: list[Judged]) -> dict[str, Any]:
    """Return the counts by task and kind, and the disagreements by group."""
    tasks: dict[str, Counter[str]] = defaultdict(Counter)
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, list[str]] = defaultdict(list)
    for each in judged:
        kind = "right" if each.form.is_right else "wrong"
        tasks[each.task].update(
            {kind: 1, f"{kind}, accepted": int(each.ours), f"{kind}, accepted by math-verify": int(each.theirs)}
        )
        if each.ours != each.theirs or each.ours != each.form.is_right:
            name = f"{kind}: {each.form.group}"
            groups[name].update(
                ours=int(each.ours != each.form.is_right), math_verify=int(each.theirs != each.form.is_right)
            )
            examples[name].append(f"{each.form.text} for {each.form.target}"[:160])
    return {
        "math-verify": version("math-verify"),
        "tasks": {name: dict(sorted(counts.items())) for name, counts in sorted(tasks.items())},
        "misjudged": {
            name: {
                **dict(sorted(counts.items())),
                "examples": examples[name][:: max(1, len(examples[name]) // _MOST_EXAMPLES)][:_MOST_EXAMPLES],
            }
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
            print(
                "refused" if each.form.is_right else "ACCEPTED",
                each.task,
                each.form.kind,
                "|",
                each.form.group,
                "|",
                each.form.target,
                "|",
                repr(each.reply if each.form.group in ("around", "beside") else each.form.text),
                flush=True,
            )
    found = result(judged)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")
    print(json.dumps(found["tasks"], indent=1))


if __name__ == "__main__":
    main()
