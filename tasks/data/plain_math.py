r"""Rewriting answers as models write them, `6*x**2` or `\frac52`, as the LaTeX that the comparison reads."""

from __future__ import annotations

import re

__all__ = ["as_latex", "is_sentence"]

_TIMES = r"(?:\*|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[\u00b7\u00d7\u22c5])"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\*\*(?=\s*[\d({x-])", "^"),
        (rf"(?<=[0-9A-Za-z)}}])\s*{_TIMES}\s*(?=[A-Za-z\u03c0\u221a]|\\(?:pi|sqrt|ln|log)(?![A-Za-z]))", " "),
        (r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\u221a\s*(?:\(([^()]*)\)|([0-9]+|[a-z]))", r"\\sqrt{\1\2}"),
        (r"(?<![A-Za-z\\])(?:oo|inf)(?![A-Za-z])", r"\\infty "),
        (r"^[a-z]\s*(?:\\in(?![A-Za-z])|\u2208)\s*", ""),
        (r"\s*(?:;|\n+)\s*|\s+(?:and|\\text\{\s*and\s*\})\s+", ", "),
        (r"^\{(.*)\}$", r"\\{\1\\}"),
    )
)
_SUPERSCRIPTS = {
    ord(digit): f"^{i}" for i, digit in enumerate("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
}
_SUBSCRIPTS = {0x2080 + i: f"_{i}" for i in range(10)}
_DIGITS = str.maketrans(_SUPERSCRIPTS | _SUBSCRIPTS | {0x2212: "-"})
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])\s*")
_SENTENCE = re.compile(
    r"\b(?:the|it|is|are|so|answer|result|solution|thus|hence|therefore|equals|we|has|have|get)\b", re.IGNORECASE
)


def as_latex(answer: str, target: str) -> str:
    r"""Return an answer in LaTeX, with the same value.

    Products of a number and a letter lose their sign (`6*x` is 6x), other products keep it. `{-8,-4}` is a set, and so
    is `[-8, -4]` if the target is one. "and" and line breaks separate as commas do.
    """
    text = answer.strip().translate(_DIGITS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if target.lstrip("$ ").startswith("\\{") and text.startswith("[") and text.endswith("]"):
        text = f"\\{{{text[1:-1]}\\}}"
    return _with_braces(text)


def is_sentence(answer: str) -> bool:
    """Return whether an answer has the words of a sentence around its result: "The derivative is 2x"."""
    return _SENTENCE.search(answer) is not None


def _with_braces(text: str) -> str:
    r"""Return the text with both parts of every fraction in braces: `\frac52` as `\frac{5}{2}`."""
    place = 0
    while (match := _FRACTION.search(text, place)) is not None:
        first, middle = _part(text, match.end())
        second, end = _part(text, middle)
        if not first or not second:
            return text
        text = f"{text[: match.start()]}\\frac{{{first}}}{{{second}}}{text[end:]}"
        place = match.start() + 6  # the parts may have fractions, too
    return text


def _part(text: str, start: int) -> tuple[str, int]:
    """Return the group in braces or the single character at a place, and the place behind it."""
    while text[start : start + 1] == " ":
        start += 1
    if text[start : start + 1] != "{":
        return (text[start], start + 1) if text[start : start + 1].isalnum() else ("", start)
    depth = 0
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start + 1 : end], end + 1
    return "", start
