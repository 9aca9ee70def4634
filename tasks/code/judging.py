"""Running a function that a model wrote, in a sandbox, and what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llm_envs.rewards.builders import passed_share
from llm_envs.sandbox import SandboxLimits

__all__ = ["LIMITS", "passes", "without_fence"]

LIMITS = SandboxLimits(timeout_s=2.0, memory_bytes=64 << 20, output_characters=20_000, code_characters=5_000)
_FENCE = re.compile(r"\s*```(?:python|py|sql)?[ \t]*\n(.*?)\n?\s*```\s*", re.DOTALL)


def without_fence(answer: str) -> str:
    """Return code without the fence of three backticks around it, if it has one."""
    found = _FENCE.fullmatch(answer)
    return found[1] if found else answer


def passes(code: str, calls: Sequence[str], expected: Sequence[Any]) -> bool:
    """Return whether each call, after the code, has the value that is expected, by its `repr`.

    What is expected never enters the sandbox. All calls are one expression, so that they share one limit of time: code
    that does not end costs it once, not once for each call.

    Args:
        code: What a model wrote.
        calls: Expressions.
        expected: Their values.
    """
    return passed_share(code, [(f"[{', '.join(calls)}]", list(expected))], limits=LIMITS) == 1.0
