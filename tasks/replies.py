"""Forms in which models write answers that several tasks share: code in a fence, "done", and lists of items."""

from __future__ import annotations

import re

__all__ = ["is_done", "list_items", "without_fence"]

_FENCE = re.compile(r"```[^\S\n]*(?:[\w+#.-]*[^\S\n]*\n)?(.*?)\n?[^\S\n]*```", re.DOTALL)
_DONE = re.compile(
    r"(?:(?:i am|i'm|it is|it's|everything is|all is|all|task|all tasks are|the task is) )?"
    r"done[.!\s]*",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[,;\n]")
_AND = re.compile(r"\s+(?:and|&)\s+", re.IGNORECASE)
_LEADING_AND = re.compile(r"\s*(?:and|&)\s+", re.IGNORECASE)
_MARKER = re.compile(r"^(?:[-*+\u2022]|\(?\d{1,3}[.):])\s+")
_DECORATION = " \t\r*`'\"\u201c\u201d.[](){}"


def without_fence(answer: str) -> str:
    """Return code, or another exact text, without white space and backticks around it.

    A single fence of three backticks may have prose around it. Nothing else changes.
    """
    text = answer.strip()
    if text.count("```") == 2 and (fence := _FENCE.search(text)) is not None:
        return fence[1].strip("\n")
    if len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1]:
        return text[1:-1].strip()
    return text


def is_done(answer: str) -> bool:
    """Return whether an answer reports the end of the work: "done", "Done!", "I am done."."""
    return _DONE.fullmatch(answer.strip(" \n\t'\"*`")) is not None


def list_items(text: str) -> list[str]:
    """Return the items of a list that has commas, semicolons, line breaks or "and" between them.

    List markers ("1. ", "- "), bold, quotation marks, brackets around an item and its full stop are removed. A
    repetition stays, so that the caller can refuse it.
    """
    items = []
    for part in map(_bare, _SEPARATOR.split(text.strip(_DECORATION + "\n"))):
        first = _LEADING_AND.match(part)
        items += [item for piece in _AND.split(part[first.end() :] if first else part) if (item := _bare(piece))]
    return items


def _bare(item: str) -> str:
    """Return an item without its list marker and decoration."""
    return _MARKER.sub("", item.strip(), count=1).strip(_DECORATION)
