"""Reading and comparing mathematical answers, and evaluating arithmetic."""

from __future__ import annotations

from llm_envs.mathematics.equality import (
    MathChecker,
    MathComparison,
    Verdict,
    compare_math,
    math_equal,
    prepare_comparison,
)

__all__ = ["MathChecker", "MathComparison", "Verdict", "compare_math", "math_equal", "prepare_comparison"]
