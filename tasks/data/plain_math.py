r"""Rewriting answers as models write them, `6*x**2` or `\frac52`, as the LaTeX that the comparison reads."""

from __future__ import annotations

import re

from llm_envs.mathematics.notation import in_one_notation

__all__ = ["as_latex", "is_sentence"]

_TIMES = r"(?:\*|\\cdot(?![A-Za-z])|\\times(?![A-Za-z]))"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\*\*(?=\s*[\d({x-])", "^"),
        (rf"(?<=[0-9A-Za-z)}}])\s*{_TIMES}\s*(?=[A-Za-z]|\\(?:pi|sqrt|ln|log)(?![A-Za-z]))", " "),
        (rf"(?<=\))\s*{_TIMES}\s*(?=\()", ""),
        (r"(?<![A-Za-z\\])(?:oo|inf)(?![A-Za-z])", r"\\infty "),
        (r"^[a-z]\s*\\in(?![A-Za-z])\s*", ""),
        (r"^\{([^{}]*,.*)\}$", r"\\{\1\\}"),
    )
)
_AND = re.compile(r"\s*(?:;|\n+|\\text\w*\s*\{\s*,?\s*and\s*\})\s*|\s+and\s+")
_INEQUALITY = re.compile(r"[<>]|\\[lg](?:t|eq?|eqslant)(?![A-Za-z])")
_SENTENCE = re.compile(
    r"\b(?:the|it|is|are|so|answer|result|solution|thus|hence|therefore|equals|we|has|have|get)\b", re.IGNORECASE
)


def as_latex(answer: str) -> str:
    r"""Return an answer in LaTeX, with the same value.

    Products of a number and a letter lose their sign (`6*x` is 6x), other products keep it. `{-8,-4}` is a set. "and"
    and line breaks separate as commas do, except between inequalities.
    """
    text = in_one_notation(answer)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text if _INEQUALITY.search(text) else _AND.sub(", ", text)


def is_sentence(answer: str) -> bool:
    """Return whether an answer has the words of a sentence around its result: "The derivative is 2x"."""
    return _SENTENCE.search(answer) is not None
