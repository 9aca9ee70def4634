"""Our verdicts of `llm/IFEval-v0` against those of `if_verifiable.evaluate_output_for_sample`.

    python -m proof.fidelity.ifeval

The outputs: the oracle's for a prompt ("right"); the oracle's for another prompt, and its own damaged ("wrong");
replies without a text, with open thinking, or in tags ("malformed"); texts whose language cannot be told, nested,
long, or of control characters ("hostile"). Each is judged by the strict and by the loose accuracy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from llm_envs.checker.hostile import hostile_actions, mutate
from proof.fidelity.compare import Case, compare, write

__all__ = ["UNTOLD", "cases", "result"]

UNTOLD = "a text whose language cannot be told: the official scorer counts it as in the language, ours does not"
_LEVELS = ("easy", "medium", "hard", "expert")
_LONGEST = 3_000
"""Characters of a hostile output: the official scorer has no limit, and takes quadratic time."""
_MALFORMED = (
    "",
    " \n ",
    "<think>",
    "<think>{}",
    "{}</think>",
    "<think></think>",
    "<answer>{}</answer>",
    "```\n{}\n```",
)
_HOSTILE = ("12345", "!!!", "\x00", "\ud800", "[" * _LONGEST, "{" * _LONGEST, "\n" * _LONGEST, "<<" * 1_000, "* " * 900)


def cases(n_problems: int) -> Iterator[Case]:
    """Yield outputs for this many problems of each level, about nine for each problem."""
    rng, previous = random.Random(0), "A text."
    actions = [act for name, act in hostile_actions().items() if "long" not in name]
    for level in _LEVELS:
        env: Any = gym.make("llm/IFEval-v0", difficulty=level)
        env.reset(seed=0)
        for number in range(n_problems):
            prompt, _ = env.reset()
            problem, right = env.unwrapped.problem, env.unwrapped.oracle()
            yield Case("right", problem, right)
            yield Case("wrong", problem, previous)
            for _ in range(2):
                yield Case("wrong", problem, mutate(right, rng))
            for form in (_MALFORMED[number % len(_MALFORMED)], _MALFORMED[(number + 3) % len(_MALFORMED)]):
                yield Case("malformed", problem, form.replace("{}", right))
            hostile = rng.choice(actions)(env, prompt, rng)
            for text in (_HOSTILE[number % len(_HOSTILE)], _HOSTILE[(number + 4) % len(_HOSTILE)], hostile):
                yield Case("hostile", problem, text[:_LONGEST])
            previous = right


def result(n_problems: int) -> dict[str, Any]:
    """Compare the verdicts, strict and loose."""
    import langdetect
    from if_verifiable import IFEvalSample, evaluate_output_for_sample
    from if_verifiable.common import get_loose_transformations

    from llm_envs.tasks.benchmarks.ifeval_scorer import provide_punkt

    langdetect.DetectorFactory.seed = 0  # the package leaves it to chance
    provide_punkt()
    envs: dict[bool, Any] = {loose: gym.make("llm/IFEval-v0", loose=loose) for loose in (False, True)}

    def ours(case: Case) -> bool:
        loose, problem = case.problem
        envs[loose].reset(options={"problem": problem})
        return envs[loose].step(case.output)[1] == 1

    def official(case: Case) -> bool:
        loose, problem = case.problem
        sample = IFEvalSample(0, problem["prompt"], problem["instruction_id_list"], problem["kwargs"])
        _, scores = evaluate_output_for_sample("ifeval", sample, case.output)
        return bool(scores.binary_loose if loose else scores.binary_strict)

    def reason(case: Case, mine: bool, theirs: bool) -> str:
        for variant in get_loose_transformations(case.output):
            try:
                langdetect.detect(variant)
            except langdetect.LangDetectException:
                return UNTOLD
        return "unexplained"

    both = (
        Case(case.kind, (loose, case.problem), case.output) for case in cases(n_problems) for loose in (False, True)
    )
    return compare(both, ours, official, reason)


if __name__ == "__main__":
    write("ifeval", "if-verifiable", result(80))
