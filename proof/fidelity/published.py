r"""Our verdicts of the tasks over published data against the official rules (`published_rules.py`).

    python -m proof.fidelity.published [NAME ...]

The problems are those of our samples. For each, outputs are written from forms: right, wrong, malformed and hostile. A
form whose verdict must differ is one of `DEPARTURES`, with the reason; another difference is "unexplained".
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from llm_envs.checker.hostile import hostile_actions, mutate
from llm_envs.checker.mutations import mutated_python
from proof.fidelity import published_rules as rules
from proof.fidelity.compare import Case, compare, write
from proof.fidelity.published_departures import DEPARTURES
from proof.fidelity.published_forms import AIME_ANSWERS, ATTACKS, FORMS, MATH_ANSWERS, MATH_PAIRS, pair

__all__ = ["BENCHMARKS", "cases", "result"]

UNEXPLAINED = "unexplained"
_LONGEST = 3_000
"""Characters of a hostile output."""
_MAX_MUTANTS = 100
BENCHMARKS: Mapping[str, tuple[str, Callable[[str, Mapping[str, Any]], bool]]] = {
    "GSM8K": ("openai/grade-school-math, is_correct", rules.gsm8k),
    "MATH500": ("math-verify", rules.math_verify),
    "AIME": ("math-verify", rules.math_verify),
    "MMLU": ("openai/simple-evals, mmlu_eval", rules.mmlu),
    "GPQA": ("openai/simple-evals, gpqa_eval", rules.gpqa),
    "HotpotQA": ("hotpotqa/hotpot, hotpot_evaluate_v1", rules.hotpot_qa),
    "HumanEval": ("openai/human-eval, check_correctness", rules.human_eval),
    "MBPP": ("openai/human-eval, check_correctness on MBPP's tests", rules.mbpp),
}
"""The official scorer of each, by name and as a rule."""


def problems(name: str) -> list[dict[str, Any]]:
    """Return the problems of the samples; for MATH-500 and AIME also other answers of the kinds that they have."""
    found = []
    for split in gym.make(f"llm/{name}-v0", data="sample").unwrapped.splits:  # type: ignore[attr-defined]
        task: Any = gym.make(f"llm/{name}-v0", data="sample", split=split).unwrapped
        task.reset(seed=0)
        for order in range(2 if name == "GPQA" else 1):
            found += [task.problem_at(i, random.Random(i + 100 * order).random) for i in range(task.n_problems)]
    more = {"MATH500": MATH_ANSWERS, "AIME": AIME_ANSWERS}.get(name, ())
    return [*found, *({"question": "What is it?", "answer": answer} for answer in more)]


def cases(name: str, share: int = 1) -> Iterator[tuple[str, Case]]:
    """Yield outputs with the name of their form: for every `share`-th problem."""
    given = problems(name)
    rng = random.Random(0)
    actions = [act for label, act in hostile_actions().items() if "long" not in label]
    env: Any = gym.make(f"llm/{name}-v0", data="sample")
    for number, problem in list(enumerate(given))[::share]:
        shown, _ = env.reset(options={"problem": problem})
        right = env.unwrapped.oracle()
        for kind, form, text in forms(name, problem, given[number - 1], right):
            if number % 10 and ("9^{9^" in form or form.startswith("\\boxed{((")):
                continue  # math-verify needs its limit of time for each
            yield form, Case(kind, problem, text)
        for _ in range(100 if name in ("HumanEval", "MBPP") else 8):
            yield "damaged", Case("wrong", problem, mutate(right, rng))
        for _ in range(6):
            hostile = rng.choice(actions)(env, shown, rng)
            yield "hostile action", Case("hostile", problem, hostile[:_LONGEST])
    if name == "MATH500":
        for kind, pairs in MATH_PAIRS.items():
            for answer, said in pairs:
                problem = {"question": "What is it?", "answer": answer}
                yield pair((answer, said)), Case(kind, problem, f"\\boxed{{{said}}}")


def forms(
    name: str, problem: Mapping[str, Any], other: Mapping[str, Any], right: str
) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name of the form, text) for a problem.

    Args:
        name: The benchmark.
        problem: The problem.
        other: Another one, whose answer is wrong here.
        right: The oracle's reply.
    """
    if name in ("HumanEval", "MBPP"):
        yield from _programs(name, problem, other, right)
        return
    answer, wrong = problem["answer"], other["answer"]
    if answer == wrong:
        wrong = {"A": "B", "B": "C", "C": "D", "D": "A"}.get(answer, f"{answer}1")
    for kind, listed in FORMS[name].items():
        for form in listed:
            yield kind, form, form.replace("RIGHT", answer).replace("WRONG", wrong).replace("SMALL", answer.lower())


def _programs(
    name: str, problem: Mapping[str, Any], other: Mapping[str, Any], right: str
) -> Iterator[tuple[str, str, str]]:
    code = right.removeprefix("```python\n").removesuffix("\n```")
    called = problem["entry_point"] if name == "HumanEval" else _called(problem)
    for form in FORMS["programs"]["right"]:
        yield "right", form, form.replace("RIGHT", code).replace("NAME", called)
    if name == "HumanEval":
        yield "right", "body", problem["solution"]
        yield "right", "body in a fence", f"```python\n{problem['solution']}```"
    mutants = [mutant for _, mutant in mutated_python(code)]
    twice = [again for mutant in mutants for _, again in mutated_python(mutant)]
    for mutant in list(dict.fromkeys([*mutants, *twice]))[:_MAX_MUTANTS]:
        yield "wrong", "mutant", f"```python\n{mutant}\n```"
    for place, line in enumerate(code.split("\n")):
        without = "\n".join([*code.split("\n")[:place], *code.split("\n")[place + 1 :]])
        if line.strip():
            yield "wrong", "a line left out", f"```python\n{without}\n```"
    for kind in ("wrong", "malformed"):
        for form in FORMS["programs"][kind]:
            yield kind, form, form.replace("RIGHT", code).replace("NAME", called)
    for form, attack in ATTACKS.items():
        yield "hostile", form, f"```python\n{attack.replace('NAME', called)}\n```"


def _called(problem: Mapping[str, Any]) -> str:
    return (
        str(problem["tests"][0])
        .partition("assert ")[2]
        .replace("set(", "")
        .replace("math.isclose(", "")
        .partition("(")[0]
    )


def result(name: str, share: int = 1) -> dict[str, Any]:
    """Compare the verdicts on one benchmark."""
    env: Any = gym.make(f"llm/{name}-v0", data="sample")
    listed = list(cases(name, share))
    form_of = {id(case): form for form, case in listed}
    rule = BENCHMARKS[name][1]

    def ours(case: Case) -> bool:
        env.reset(options={"problem": case.problem})
        return bool(env.step(case.output)[4]["is_success"])

    def reason(case: Case, mine: bool, theirs: bool) -> str:
        for departure in DEPARTURES[name]:
            if departure.explains(form_of[id(case)], case.output, mine, theirs):
                return departure.why
        return f"{UNEXPLAINED}: {form_of[id(case)]}"

    def official(case: Case) -> bool:
        return rule(case.output, case.problem)

    return compare((case for _, case in listed), ours, official, reason)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME", help=f"of {', '.join(BENCHMARKS)}"
    )
    for benchmark in parser.parse_args().names or BENCHMARKS:
        write(benchmark.lower(), BENCHMARKS[benchmark][0], result(benchmark, 2 if benchmark == "MATH500" else 1))
