r"""Answers as models write them in prose: `**42**`, "The answer is 42.", `\boxed{42}`, "18 + 39 = 57".

A text has one answer or none. A text that states several different answers, that hedges ("3 or 4"), or that denies or
doubts its answer ("The answer is 3. No, that is wrong.") has none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from llm_envs.parsers.answers import HEDGE, RETRACTION, boxes_in

__all__ = ["is_doubtful", "natural_answers", "plain_answer", "stated_answers", "without_unit"]

_MAX_LAYERS = 8
_MAX_STATED = 2_000
"""Characters of a stated answer."""
_MAX_STATEMENTS = 100
"""A longer series of statements counts by its beginning."""
_MAX_HEAD = 300
"""Characters before an answer in which its sentence begins."""
_WRAPPERS = (
    *(("**", "**"), ("__", "__"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("*", "*"), ("`", "`"), ("$", "$")),
    *(('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019")),
)
_BARE = re.compile(r"[0-9(+-][0-9+\-*/() ]*[0-9)]")
"""Signed numbers and expressions, which have no decoration."""
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
_KIND = r"(?:(?:the|my|your|our) )?(?:final |correct |right |next )*(?:answer|solution|result|guess|move|action)"
_MARK = r"(?:\*\*|__|\*)?"
_STATEMENT = re.compile(
    rf"(?:\b{_KIND}{_MARK}(?: would be| will be| should be| must be| comes (?:out )?to| is| are| =|['\u2019]s|:)|"
    r"\u7b54\u6848(?:\u662f|\u4e3a|:))"
    rf"(?:,? (?:then|therefore|thus|simply|exactly|equal to))*:?{_MARK}[ \t]*:?",
    re.IGNORECASE,
)
"""The last alternative is Chinese: "the answer is"."""
_HEADING = re.compile(
    rf"(?:#{{1,6}}[ \t]+)?(?P<mark>{_MARK}){_KIND}(?::(?P=mark)|(?P=mark)[ \t]*(?::|(?=\n)))\s*", re.IGNORECASE
)
_IS_ANSWER = re.compile(
    r" is (?:the|my|our) (?:final |correct |right )*(?:answer|solution|result)(?=[ \t]*(?:[.!\n]|\Z))", re.IGNORECASE
)
_REASON = re.compile(r",?\s+(?:because|since)\b|,\s+(?:as|which|where|for|so|given)\b", re.IGNORECASE)
_ASIDE = re.compile(r"\s+\((?:exactly|precisely|exact|in total|in all)\)\Z", re.IGNORECASE)
_BEFORE_STATEMENT = re.compile(
    r"(?:^|[^\w\s]|\n|\b(?:so|thus|hence|therefore|then|finally|and|now|that|means|overall|conclude|is|here|think|believe|guess|say|see|find)|"
    r"\u6240\u4ee5|\u56e0\u6b64|\u6700\u7ec8|\u6b63\u786e)\s*\Z",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[\w)\]}*`$\"'])[.!?](?=\s|\Z)|\u3002|\n")
_FINAL_MARK = re.compile(r"(?<=[\w)\]}*`$\"'])[.!?]\Z")
_DENIAL = re.compile(
    r"\b(?:not|never|no|nor|neither|nobody|nothing|cannot|except|unless|avoid|refuse|reject|deny|disagree|doubt\w*|wonder|"
    r"wrong|incorrect|false|untrue|mistaken?|unlikely|impossible|unsure|uncertain|worst|silly|foolish|opposite)\b|"
    r"n['\u2019]t\b|\?",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|then|finally|ok|okay|well|now|yes|sure|in conclusion|overall)\b[,:]?\s+|"
    r"(?:#+|>)\s+)+",
    re.IGNORECASE,
)
_IS = re.compile(
    r"\u2192|\u21d2|\b(?:is equal to|comes out to|is|are|equals?|gives?|yields?|makes?)\b|(?<=\w)['\u2019]s\b",
    re.IGNORECASE,
)
_I_WILL = re.compile(
    r"(?:(?:I|we)(?:['\u2019]ll| will| would| should| choose to| want to| am going to)?|let['\u2019]s|let (?:me|us)) ",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(?:go|move|choose|say|play|guess|pick|answer|take|get|got|have|find|found)(?: (?:with|for|to))? ", re.IGNORECASE
)
_LABEL = re.compile(r"[A-Za-z ]{1,40}:\s+")
_NUMBER = re.compile(r"[-+]?[0-9][0-9.,]*")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_RELATION = re.compile(r"[!<>~:\u2248\u2260\u2264\u2265]\s*\Z|[\u2248\u2260\u2264\u2265]")
"""Before "=": not an equation."""
_MATH_MARK = re.compile(r"\${1,2}|\\[()\[\]]")
_DISPLAY = re.compile(r"\\\[\s*([^\\\[\]\n]{0,500}?)\s*\\\]")
_ITEM = re.compile(r"\s*(?:(?:[-*\u2022]|\(?[0-9]{1,3}[.):])\s+\S|[^:=\n]{1,40}?\s*(?::|=|->|\u2192)\s*\S)")
_WITH_UNIT = re.compile(
    r"[$\u20ac\u00a3]?\s*([-+]?[0-9][0-9,]*(?:\.[0-9]+)?)\s*"
    r"(%|\u00b0?[A-Za-z][A-Za-z/^\u00b2\u00b3]*(?: [A-Za-z]+){0,2})?"
)
_NO_UNIT = re.compile(
    r"\b(?:and|to|than|more|less|at|about|plus|minus|times|over|under|below|above|divided|versus|through|but|is|are|"
    r"i|e|k|pi|squared|cubed|factorial|negative|half|halves|thirds|quarters|tenths|hundredths|thousandths|"
    r"dozens?|scores?|hundreds?|thousands?|[mbtr]illions?|lucky)\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```[^\S\n]*[\w+#.-]*[^\S\n]*\n")
_FENCED_LINE = re.compile(rf"{_FENCE.pattern}[^\S\n]*([^`\n]+?)[^\S\n]*\n[^\S\n]*```(?!`)")
_CHEERS = "\u2705\u2714\u2728\u27a1\ufe0f\U0001f389\U0001f600-\U0001f64f"
_CHEER = re.compile(rf"\A[{_CHEERS}]+\s*(?=[^{_CHEERS}\s])|(?<=[^{_CHEERS}\s])\s*[{_CHEERS}]+\Z")
"""Check marks, faces and the like around an answer."""
_SIGNS = str.maketrans({"\u2212": "-", "\u00a0": " ", "\uff1a": ":", **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff")})
"""Signs that stand for ASCII's; those without width go."""


def plain_answer(text: str) -> str:
    r"""Return an answer without the decoration that prose puts around it.

    Removed are white space, markdown's bold, code and fences (with prose around a single fence), LaTeX's `$...$`,
    `\(...\)`, `\boxed{...}` and `\text{...}`, quotation marks, a beginning such as "The answer is" or "**Answer:**",
    signs without width, check marks and faces, and a final full stop. U+2212 becomes "-", and `{,}` a comma. The
    meaning of the answer does not change: "3 or 4" stays "3 or 4".
    """
    if (text.isalnum() and text.isascii()) or _BARE.fullmatch(text) is not None:
        return text
    text = _CHEER.sub("", text.translate(_SIGNS).strip()).replace("{,}", ",")
    for _ in range(_MAX_LAYERS):
        inner = _without_layer(text).strip()
        if inner == text:
            break
        text = inner
    return text


def without_unit(text: str, units: Collection[str] | None = None) -> str:
    """Return the number of "57 apples", "12.5 km/h", "$40" or "30%"; any other text unchanged.

    Args:
        text: The answer.
        units: The words that may follow the number, in lower case; None for any that do not change the number.
    """
    match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return text
    words = match[2] or ""
    is_known = units is None or all(word in units for word in words.lower().split())
    return match[1] if is_known and _NO_UNIT.search(words) is None and not is_doubtful(words) else text


def natural_answers(text: str) -> tuple[str, ...]:
    """Return the readings of the final answer in a text, the most explicit first; () if it has none or hedges.

    The readings are of one statement. The caller takes the first one that has the form of an answer; it must not try
    the others when that one is wrong. A stated answer (`stated_answers`) counts before a list at the end, and that
    before the last sentence.
    """
    text = _on_one_line(text)
    if not text:
        return ()
    explicit = _explicit(text)
    if explicit is not None:
        return explicit
    last = text.find("```") if text.endswith("```") and text.count("```") == 2 else text.rfind("\n") + 1
    above = _line_above(text, last)
    if above.endswith(":") and is_doubtful(above):
        return ()
    if text.startswith("```", last):
        return (plain_answer(text),)
    return tuple(dict.fromkeys([*_final_list(text), *_readings(_last_sentence(text))]))


def stated_answers(text: str) -> tuple[str, ...]:
    r"""Return the readings of an answer that the text states in so many words: `\boxed{42}`, "The answer is 42."."""
    return _explicit(_on_one_line(text)) or ()


def is_doubtful(text: str) -> bool:
    """Return whether a text hedges ("3 or 4", "maybe 3"), denies ("not 3", "3 is wrong") or asks."""
    return HEDGE.search(text) is not None or _DENIAL.search(text) is not None


def _without_layer(text: str) -> str:
    """Return the text without one layer of decoration."""
    if text.count("```") == 2 and (fence := _FENCE.search(text)) is not None:
        is_denied = is_doubtful(_line_above(text, fence.start()))
        return text if is_denied else text[fence.end() : text.rfind("```")]
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
    stated = _STATEMENT.match(text) or _HEADING.match(text)
    if stated is not None and stated.end() < len(text):
        # A second statement may be another answer: `natural_answers` compares them.
        return text if _STATEMENT.search(text, stated.end()) else text[stated.end() :]
    if text.endswith(("\u3002", ".")) and len(text) > 1 and not text.endswith(".."):
        return text[:-1]
    return text


def _line_above(text: str, stop: int) -> str:
    return text[:stop].rstrip().rpartition("\n")[2]


def _on_one_line(text: str) -> str:
    r"""Return the text with each `\[...\]`, and each fence around one line, on one line."""
    text = text.translate(_SIGNS).strip()
    text = _FENCED_LINE.sub(r"`\1`", text) if "```" in text else text
    return _DISPLAY.sub(r"\\[\1\\]", text) if "\\[" in text else text


def _explicit(text: str) -> tuple[str, ...] | None:
    """Return the readings of the one answer in boxes and statements; () if they differ or are denied, None without."""
    spans, is_open = boxes_in(text)
    found = dict.fromkeys(plain_answer(text[start:end]) for start, end in spans)
    ends = [end + 1 for _, end in spans]
    is_denied = any(_is_denied(_head(text, start)) for start, _ in spans[:_MAX_STATEMENTS])
    stated = []
    for value, end in _statements(text):
        stated.append(value)
        found[value], ends = None, [*ends, end]
    if not found:
        return () if is_open else None
    if is_open or is_denied or len(found) > 1 or RETRACTION.search(text, max(ends)) is not None:
        return ()
    (value,) = found
    if not stated:
        return (value,)
    return () if HEDGE.search(value) is not None else tuple(dict.fromkeys([value, *_readings(value)]))


def _statements(text: str) -> Iterator[tuple[str, int]]:
    """Yield (answer, where its sentence ends) for each "The answer is ..." that is not denied."""
    for match in islice(_STATEMENT.finditer(text), _MAX_STATEMENTS):
        head = _head(text, match.start())
        if _BEFORE_STATEMENT.search(head) is None or _is_denied(head):
            continue
        start = match.end()
        rest = text[start : start + _MAX_STATED]
        items = _items(rest) if rest.lstrip(" \t").startswith("\n") else ""
        rest = rest.lstrip()
        end = _SENTENCE_END.search(rest)
        if items:
            value, end = items, None
        elif end is not None and end[0] == "?":
            continue
        else:
            value = rest if end is None else rest[: end.start()]
        value = value.replace("**", "", 1) if value.count("**") == 1 else value  # **The answer is 12**
        if value := plain_answer(_without_reason(value)):
            yield value, text.find(rest, start) + (len(items or rest) if end is None else end.end())
    for match in islice(_IS_ANSWER.finditer(text), _MAX_STATEMENTS):
        head = _head(text, match.start()).strip()
        lead = _LEAD.match(head)
        value = plain_answer(head if lead is None else head[lead.end() :])
        if value and not _is_denied(head):
            yield value, match.end()


def _without_reason(stated: str) -> str:
    """Return a stated answer without the reason that follows it, unless that takes the answer back."""
    reason = _REASON.search(stated)
    if reason is None or RETRACTION.search(stated, reason.end()) or HEDGE.search(stated, reason.end()):
        return stated
    return stated[: reason.start()]


def _head(text: str, stop: int) -> str:
    """Return the part of a sentence before `stop`."""
    before = text[max(0, stop - _MAX_HEAD) : stop]
    *_, last = [None, *_SENTENCE_END.finditer(before)]
    return before if last is None else before[last.end() :]


def _is_denied(head: str) -> bool:
    """Return whether the clause that `head` begins denies what follows: "I do not think that"."""
    return _DENIAL.search(re.split("[,;]", head)[-1]) is not None


def _items(text: str) -> str:
    """Return the list that a text begins with: lines such as "- Ada: knight" or "1. valid", at least two; or ""."""
    lines = text.strip("\n").splitlines()
    n = next((i for i, line in enumerate(lines) if _ITEM.match(line) is None), len(lines))
    return "\n".join(lines[:n]) if n > 1 else ""


def _final_list(text: str) -> tuple[str, ...]:
    """Return the list that a text ends with, by itself or after a line that introduces it; else ()."""
    lines = text.splitlines()
    start = next((i + 1 for i in reversed(range(len(lines))) if _ITEM.match(lines[i]) is None), 0)
    above = lines[start - 1].strip()[-_MAX_HEAD:] if start else ""
    if len(lines) - start < 2 or (above and not above.endswith(":")) or is_doubtful(_head(above, len(above))):
        return ()
    return ("\n".join(lines[start:]),)


def _last_sentence(text: str) -> str:
    line = text.splitlines()[-1].strip()
    parts = [part.strip() for part in _SENTENCE_END.split(line) if part.strip()]
    mark = _FINAL_MARK.search(line)
    return (parts[-1] if parts else line) + ("?" if mark is not None and mark[0] == "?" else "")


def _readings(sentence: str) -> tuple[str, ...]:
    """Return the possible answers of a sentence: its only bold part, the part after its last "=" or "is", or all."""
    whole = plain_answer(sentence)
    if HEDGE.search(sentence) is not None:
        return ()
    if _DENIAL.search(sentence) is not None:  # a part of "I will not go up" means the opposite
        return (whole,)
    sentence = _without_reason(sentence)
    lead = _LEAD.match(sentence)
    clean = (sentence if lead is None else sentence[lead.end() :]).strip()
    bold = set(_BOLD.findall(sentence))
    found = [*bold] if len(bold) == 1 else []
    will = _I_WILL.match(clean)
    clean = clean if will is None else clean[will.end() :]
    if "=" in clean:
        found += _last_side(_MATH_MARK.sub(" ", clean))
    elif (verb := _VERB.match(clean)) is not None:
        found.append(clean[verb.end() :])
    elif will is None:
        *_, last = [None, *_IS.finditer(clean)]
        found += [clean[part.end() :] for part in (last, _LABEL.match(clean)) if part is not None]
    found += [clean, _ASIDE.sub("", clean)]
    return tuple(dict.fromkeys(filter(None, [*map(plain_answer, found), whole])))


def _last_side(equation: str) -> list[str]:
    """Return the right side; nothing if sides differ ("3*4 = 13 = 12"), for two equations, or another relation."""
    sides = equation.split("=")
    if any(_RELATION.search(side) for side in sides[:-1]):
        return []
    first, *others, last = map(plain_answer, sides)
    compared = [first, *others] if _NUMBER.fullmatch(last) is not None else others
    are_equal = all(_NUMBER.fullmatch(side) is None or side == last for side in compared)
    return [last] if are_equal and not any(re.search(r",|\band\b", side) for side in others) else []
