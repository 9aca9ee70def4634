"""Lists, sets, intervals and inequalities in the text of a mathematical answer.

As in `answer_text`, all functions map texts to texts and evaluate nothing, in linear or quadratic time.
"""

from __future__ import annotations

import re

from llm_envs.mathematics.answer_text import has_letters, ungrouped

__all__ = [
    "based_number",
    "interval_of",
    "is_interval",
    "is_set",
    "list_items",
    "split_assignment",
    "without_element",
]

_SEPARATOR = re.compile(
    r"[,;]|\\(?:lor|vee)(?![A-Za-z])|\\text\w*\s*\{\s*,?\s*(?:or|and)\s*\}|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])"
)
_BOTH = re.compile(r"\\land(?![A-Za-z])|\\text\w*\s*\{\s*,?\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])")
_STRONG = re.compile(_SEPARATOR.pattern.replace("[,;]", ";"))
_BUILDER = re.compile(
    r"\\\{\s*\\?[A-Za-z]+(?:\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?\s*(?:\||\\mid(?![A-Za-z])|:)\s*(.*)\\\}"
)
_ELEMENT = re.compile(r"\\?[A-Za-z]+\s*(?:\\in(?![A-Za-z])|=)\s*(?=[\[(\]\\])|[A-Z]\s*(?=\()")
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASED = re.compile(
    r"(?:[a-zA-Z]\s*=\s*)?[({]?(-?[0-9A-Fa-f]+)[)}]?\s*_\s*[({\s]*(\d+|(?:\\text\w*\s*\{\s*)?[a-z]{3,6})[)}\s]*"
)
_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{[\w,]*\}))?'*(?:\(\s*-?\w+\s*\))?")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_RELATION = re.compile(
    r"(\\leq?(?:slant)?(?![A-Za-z])|<=|\\geq?(?:slant)?(?![A-Za-z])|>=|\\lt(?![A-Za-z])|<|\\gt(?![A-Za-z])|>)"
)
_RELATIONS = {"\\le": "<=", "<=": "<=", "\\ge": ">=", ">=": ">=", "\\lt": "<", "<": "<", "\\gt": ">", ">": ">"}


def is_set(text: str) -> bool:
    r"""Return whether a text is one `\{...\}` of elements."""
    return _inside_set(text) is not None


def is_interval(text: str) -> bool:
    """Return whether a text begins and ends like an interval, a pair, or a union of intervals."""
    text = text.strip()
    return text[:1] in ("(", "[", "]") and text[-1:] in (")", "]", "[") and "," in text


def list_items(text: str) -> list[str]:
    r"""Return the items of a list ("3, 5", "x=3 or x=5") or of a set; a single one for anything else.

    Brackets stay whole: `(1,2)` is one item. "and" and ";" part what commas may belong to ("1,000 or 2,000").
    """
    inside = _inside_set(text)
    text = text if inside is None else inside
    if _RELATION.search(text):
        return [text]
    found = _split(text, _STRONG)
    parts = found if len(found) > 1 else [text]
    return [item.strip() for part in parts for item in _split(ungrouped(part.strip()), _SEPARATOR)]


def _inside_set(text: str) -> str | None:
    text = text.strip()
    if not (text.startswith("\\{") and text.endswith("\\}")) or _BUILDER.fullmatch(text):
        return None
    inside = text[2:-2]
    depth = 0
    for character in inside:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return None
    return inside


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """Return the parts between separators that stand outside of all brackets; empty parts are left out."""
    depths, depth = [], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        depths.append(depth)
    parts, start = [], 0
    for match in separator.finditer(text):
        if (depths[match.start() - 1] if match.start() else 0) == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()] or [text]


def split_assignment(item: str) -> tuple[str, str]:
    """Return (variable, value) of "x = 3"; ("", item) for anything else. Of "x = 6/2 = 3", the value is "6/2 = 3"."""
    parts = _EQUALS.split(item, maxsplit=1)
    if len(parts) == 2 and _NAME.fullmatch(parts[0].strip()) and parts[1].strip():
        return parts[0].strip(), parts[1].strip()
    return "", item


def without_element(text: str) -> str:
    r"""Return the interval of `x \in (1,2)`, the set of `S = \{1,2\}`; anything else as it is."""
    element = _ELEMENT.match(text)
    if element is None:
        return text
    rest = text[element.end() :]
    return rest if is_interval(rest) or is_set(rest) else text


def based_number(text: str) -> tuple[str, str] | None:
    """Return (digits, base) of `(2516)_{8}`; None for anything else."""
    found = _BASED.fullmatch(text.strip())
    if found is None:
        return None
    base = re.split(r"[\s{]", found[2])[-1]
    return found[1].upper(), str(_BASES.index(base) + 2) if base in _BASES else base


def interval_of(text: str) -> tuple[str, str] | None:
    r"""Return (variable, intervals) of an inequality, or of several joined by "or"; None for anything else.

    `x > 3` is ("x", `(3,\infty)`); `\{x \mid x > 3\}` is read too.
    """
    text = text.strip()
    builder = _BUILDER.fullmatch(text)
    text = text if builder is None else builder[1].strip()
    if _RELATION.search(text) is None:
        return None
    both = _split(text, _BOTH)
    found = [_interval(part) for part in (both if len(both) == 2 else _split(text, _SEPARATOR))]
    intervals = [interval for _, interval in filter(None, found)]
    if None in found or len({each[0] for each in found if each is not None}) != 1:
        return None
    name = found[0][0] if found[0] is not None else ""
    if len(both) != 2:
        return name, "\\cup ".join(intervals)
    below, above = sorted(intervals, key=lambda interval: interval.startswith("(-\\infty"))
    if not (below.endswith("\\infty)") and above.startswith("(-\\infty")):
        return None
    return name, below.removesuffix("\\infty)") + above.removeprefix("(-\\infty,")


def _interval(text: str) -> tuple[str, str] | None:
    """Return the variable and the interval of one inequality."""
    parts = [part.strip() for part in _RELATION.split(text)]
    parts[1::2] = [_RELATIONS[re.sub(r"(?<=[lg]e)q?(slant)?\Z", "", sign)] for sign in parts[1::2]]
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if len(parts) == 3 and _NAME.fullmatch(parts[0]) and not has_letters(parts[2]):
        parts = [parts[2], turned[parts[1]], parts[0]]
    if len(parts) == 3 and _NAME.fullmatch(parts[2]) and not has_letters(parts[0]):
        value, sign, name = parts
        if sign[0] == "<":
            return name, f"{'[' if '=' in sign else '('}{value},\\infty)"
        return name, f"(-\\infty,{value}{']' if '=' in sign else ')'}"
    if len(parts) == 5 and _NAME.fullmatch(parts[2]) and parts[1][0] == parts[3][0]:
        if parts[1][0] == ">":
            parts = [parts[4], turned[parts[3]], parts[2], turned[parts[1]], parts[0]]
        if has_letters(parts[0] + parts[4]):
            return None
        return parts[2], f"{'[' if '=' in parts[1] else '('}{parts[0]},{parts[4]}{']' if '=' in parts[3] else ')'}"
    return None
