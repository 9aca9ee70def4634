"""Problems of mathematics with exact answers in LaTeX, made from templates: the default of `llm/DatasetMath-v0`.

No answer can be had by repeating an expression of its question: either the question has none of that value, or what it
has is not worked out, which `llm_envs.rewards.math_match` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random as Generator

from llm_envs.tasks.data.easy_problems import EASY
from llm_envs.tasks.data.expert_problems import EXPERT
from llm_envs.tasks.data.hard_problems import HARD
from llm_envs.tasks.data.medium_problems import MEDIUM
from llm_envs.tasks.data.notation import Template

__all__ = ["PER_TEMPLATE", "TEMPLATES", "make_problems"]

PER_TEMPLATE = 200
"""Problems drawn from each template; those that come out the same are one."""

TEMPLATES: Mapping[str, tuple[Template, ...]] = {"easy": EASY, "medium": MEDIUM, "hard": HARD, "expert": EXPERT}
"""The templates of each level."""


@lru_cache(maxsize=4)
def make_problems(difficulty: str) -> tuple[tuple[str, str], ...]:
    """Return the questions of a level with their answers, the same ones each time."""
    problems: dict[str, str] = {}
    for number, template in enumerate(TEMPLATES[difficulty]):
        random = Generator(f"{difficulty} {number}").random
        for _ in range(PER_TEMPLATE):
            question, answer = template(random)
            problems.setdefault(question, answer)
    return tuple(problems.items())
