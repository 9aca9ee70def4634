r"""Answers as models write them in prose: `**42**`, "The answer is 42.", `\boxed{42}`, "18 + 39 = 57".

A text has one answer or none. A text that states several different answers, or hedges ("3 or 4"), has none.
"""

from __future__ import annotations

import re
from itertools import islice

from llm_envs.parsers.answers import boxes_in

__all__ = ["is_hedged", "natural_answers", "plain_answer", "without_unit"]

_MAX_LAYERS = 8
_MAX_STATED = 2_000
"""Characters of a stated answer."""
_MAX_STATEMENTS = 100
"""A longer series of statements counts by its beginning."""
_WRAPPERS = (
    *(("**", "**"), ("__", "__"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("*", "*"), ("`", "`"), ("$", "$")),
    *(('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019")),
)
_BARE = re.compile(r"[0-9(+-][0-9+\-*/() ]*[0-9)]")
"""Signed numbers and expressions, which have no decoration."""
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_KIND = r"(?:(?:the|my|your|our) )?(?:final |correct |right |next )*(?:answer|solution|result|guess|move|action)"
_STATEMENT = re.compile(
    rf"\b{_KIND}(?:\*\*)?(?: would be| will be| is| are| =|:)(?: then)?:?(?:\*\*)?[ \t]*:?", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[\w)\]}*`$\"'])[.!?](?=\s)|\u3002|\n")
_SEPARATOR = re.compile(
    r"=|:|\u2192|\u21d2|\b(?:is|are|equals?|gives|get|will|go|move|choose|say|play|guess|pick|answer)\b", re.IGNORECASE
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_HEDGE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|probably not|alternatively)\b", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|never|cannot)\b|n['\u2019]t\b", re.IGNORECASE)
_DENIAL = re.compile(r"(?:\bnot|n['\u2019]t) (?:think|believe|say|claim|mean)(?: that)? *\Z", re.IGNORECASE)
_WITH_UNIT = re.compile(
    r"[$\u20ac\u00a3]?\s*([-+]?[0-9][0-9,]*(?:\.[0-9]+)?)\s*"
    r"(%|\u00b0?[A-Za-z][A-Za-z/^\u00b2\u00b3]*(?: [A-Za-z]+){0,2})?"
)
_NO_UNIT = re.compile(r"\b(?:or|and|to|not|than|more|less|at|about|plus|minus|times)\b", re.IGNORECASE)
_FENCE = re.compile(r"```[^\S\n]*[\w+#.-]*[^\S\n]*\n")


def plain_answer(text: str) -> str:
    r"""Return an answer without the decoration that prose puts around it.

    Removed are white space, markdown's bold, code and fences (with prose around a single fence), LaTeX's `$...$`,
    `\(...\)`, `\boxed{...}` and `\text{...}`, quotation marks, a beginning such as "The answer is", and a final full
    stop. U+2212 becomes "-", and `{,}` a comma. The meaning of the answer does not change: "3 or 4" stays "3 or 4".
    """
    if (text.isalnum() and text.isascii()) or _BARE.fullmatch(text) is not None:
        return text
    text = text.strip().replace("\u2212", "-").replace("\u00a0", " ").replace("{,}", ",")
    for _ in range(_MAX_LAYERS):
        inner = _without_layer(text).strip()
        if inner == text:
            break
        text = inner
    return text


def without_unit(text: str) -> str:
    """Return the number of "57 apples", "12.5 km/h", "$40" or "30%"; any other text unchanged."""
    match = _WITH_UNIT.fullmatch(text)
    return text if match is None or (match[2] and _NO_UNIT.search(match[2])) else match[1]


def natural_answers(text: str) -> tuple[str, ...]:
    """Return the readings of the final answer in a text, the most explicit first; () if it has none or hedges.

    The readings are of one statement. The caller takes the first one that has the form of an answer; it must not try
    the others when that one is wrong. An answer in a box counts before one that is stated ("The answer is ..."), and
    that before the last sentence.
    """
    text = text.strip()
    if not text:
        return ()
    spans, is_open = boxes_in(text)
    if spans:
        contents = dict.fromkeys(plain_answer(text[start:end]) for start, end in spans)
        return tuple(contents) if len(contents) == 1 and not is_open else ()
    stated = _stated(text)
    if stated:
        return () if len(stated) > 1 or is_hedged(stated[0]) else tuple(dict.fromkeys([*stated, *_readings(*stated)]))
    sentence = _last_sentence(text)
    return () if is_hedged(sentence) else _readings(sentence)


def is_hedged(text: str) -> bool:
    """Return whether a sentence offers more than one answer ("3 or 4") or doubts its answer ("maybe 3")."""
    return _HEDGE.search(text) is not None


def _without_layer(text: str) -> str:
    """Return the text without one layer of decoration."""
    if text.count("```") == 2 and (fence := _FENCE.search(text)) is not None:
        return text[fence.end() : text.rfind("```")]
    for opening, closing in _WRAPPERS:
        inner = text[len(opening) : -len(closing)]
        is_pair = opening not in inner and closing not in inner
        if inner and text.startswith(opening) and text.endswith(closing) and is_pair:
            return inner
    spans, is_open = boxes_in(text) if text.startswith("\\") else ([], False)
    if len(spans) == 1 and not is_open and text.find("{") + 1 == spans[0][0] and spans[0][1] == len(text) - 1:
        return text[slice(*spans[0])]
    if (worded := _TEXT.fullmatch(text)) is not None:
        return worded[1]
    if (stated := _STATEMENT.match(text)) is not None and stated.end() < len(text):
        # A second statement may be another answer: `natural_answers` compares them.
        return text if _STATEMENT.search(text, stated.end()) else text[stated.end() :]
    if text.endswith(("\u3002", ".")) and len(text) > 1 and not text.endswith(".."):
        return text[:-1]
    return text


def _stated(text: str) -> list[str]:
    """Return the different answers that the text states ("The answer is 12. ..." states "12"), plain: two at most."""
    found: list[str] = []
    for match in islice(_STATEMENT.finditer(text), _MAX_STATEMENTS):
        if _DENIAL.search(text, max(0, match.start() - 40), match.start()) is not None:
            continue
        rest = text[match.end() : match.end() + _MAX_STATED].lstrip()
        end = _SENTENCE_END.search(rest)
        rest = rest if end is None else rest[: end.start()]
        value = plain_answer(rest.replace("**", "", 1) if rest.count("**") == 1 else rest)  # **The answer is 12**
        if value and value not in found:
            found.append(value)
        if len(found) > 1:
            break
    return found


def _last_sentence(text: str) -> str:
    line = text.splitlines()[-1].strip()
    parts = [part.strip() for part in _SENTENCE_END.split(line) if part.strip()]
    return parts[-1] if parts else line


def _readings(sentence: str) -> tuple[str, ...]:
    """Return the possible answers of a sentence: its only bold part, the part after its last "is" or "=", or all."""
    if _NEGATION.search(sentence) is not None:  # a part of "I will not go up" means the opposite
        return (plain_answer(sentence),)
    found = []
    bold = set(_BOLD.findall(sentence))
    if len(bold) == 1:
        found.append(bold.pop())
    *_, last = [None, *_SEPARATOR.finditer(sentence)]
    if last is not None:
        found.append(sentence[last.end() :])
    return tuple(dict.fromkeys(filter(None, map(plain_answer, [*found, sentence]))))
