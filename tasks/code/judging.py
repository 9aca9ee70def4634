"""Runs a function of a model in a sandbox, and compares its values with the right ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_envs.rewards.builders import passed_share
from llm_envs.sandbox import SandboxLimits
from llm_envs.tasks.replies import without_fence

__all__ = ["LIMITS", "SANDBOX_LACKS", "passes", "without_fence"]

LIMITS = SandboxLimits(timeout_s=2.0, memory_bytes=64 << 20, output_characters=20_000, code_characters=5_000)
SANDBOX_LACKS = "yield, del, with, and modules such as heapq, fractions, statistics and string"
"""The parts of Python that models use and the sandbox does not have, for prompts."""


def passes(code: str, calls: Sequence[str], expected: Sequence[Any]) -> bool:
    """Return whether each call, after the code, has the value that is expected, by its `repr`.

    The expected values never enter the sandbox. All calls are one expression, so that they share one limit of time:
    code that does not end costs it once, not once for each call.

    Args:
        code: The code of a model.
        calls: Expressions.
        expected: Their values.
    """
    return passed_share(code, [(f"[{', '.join(calls)}]", list(expected))], limits=LIMITS) == 1.0
