"""Reading and comparing mathematical answers, and evaluating arithmetic."""

from __future__ import annotations

from llm_envs.mathematics.equality import MathChecker, compare_math, math_equal

__all__ = ["MathChecker", "compare_math", "math_equal"]
