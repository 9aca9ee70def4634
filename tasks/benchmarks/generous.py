r"""Final answers of benchmarks in the forms that models use: a number, a letter, a few words, a grid.

With `form="official"` a benchmark's own reader decides, which takes one form. With `form="generous"` one of these does,
so that a training does not punish `#### $18` or `Answer: (B)`. A reply must still give one answer: `InvalidActionError`
for none, for two that differ, and for one that hedges ("B or C"), doubts ("B?") or takes back ("B. Wait, no.").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from llm_envs.env import TextEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import ParsedReply, fenced_blocks, is_doubtful, plain_answer, without_unit
from llm_envs.parsers.answers import HEDGE, RETRACTION, boxes_in, split_thinking
from llm_envs.rewards import parse_number
from llm_envs.spaces import MAX_TEXT_LENGTH

__all__ = ["GenerousForm", "read_grid", "read_letter", "read_number", "read_span", "span_readings"]

FORMS = ("official", "generous")
_MOST_CHARACTERS = 100_000
_NONE, _TWO = "the reply has no answer that can be read", "there are two answers, or one that is doubted; give one"
_STATED = re.compile(
    r"\b(?:(?:final|correct|right|best|my|the)[ \t]+)*(?:answer|choice|option)(?:\*\*|__)?[ \t]*"
    r"(?:[:\uff1a=](?:\*\*|__)?|\bis:?(?=\s))[ \t]*(?:\n\s*)?",
    re.IGNORECASE,
)
_MARKED = re.compile(r"####+[ \t]*(?:\n\s*)?")
_TAG = re.compile(r"<(/?)answer>")
_GOES_ON = re.compile(r"[\s.,;:/)*$\"'`]*(?:or|and|alternatively|maybe|perhaps|possibly|either|else)\b", re.IGNORECASE)
_LINK = re.compile(r"(?:[\s.,;:/(*$#\\]|\\[(\[]|\b(?:and|or|rather|so|thus|then|it|is|this)\b)+\Z", re.IGNORECASE)
"""Between two statements."""
_WORD = re.compile(r"\W*(?:(?:option|choice) )?[\w.,]+\W*", re.IGNORECASE)
_SEGMENT_END = re.compile(r"[\n;,/]|[.!?](?:\s|\Z)")
_HEDGE = re.compile(rf"{HEDGE.pattern}|\b(?:probably|also)\b|\?", re.IGNORECASE)
_DOUBT_BEFORE = re.compile(
    r"\b(?:not|never|no|nor|neither|doubt\w*|unless|whether|if|wonder|would|could|might|may|maybe|perhaps|possibly|"
    r"probably|either|or|wrong|incorrect|false)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"[\s,;:\u2013\u2014(-]*\b(?:because|since)\b.*|[.!]\s+(?:it|this|that|he|she|they|i)\b.*",
    re.IGNORECASE | re.DOTALL,
)
_DECORATION = re.compile(r"\*\*|__|`|\\(?:boxed|fbox|text|textbf|mathrm|mathbf)(?=\{)|[{}$]|\\[()\[\]]|\\[,;! ]")
_LETTER_FIRST = re.compile(r"(?:(?i:option|choice)[ \t]+)?\(?([A-D])\)?(?![\w'\u2019])[.:)\]]*[ \t]*(.*)", re.DOTALL)
_SMALL_LETTER = re.compile(r"\(?([a-d])\)?[.)]*")
_ANY_LETTER = re.compile(r"(?<![\w'\u2019])[A-D](?![\w'\u2019])")
_BOLD = re.compile(r"\*\*|__|`")
_LATEX = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}|\\[,;! ]")
_CURRENCY = re.compile(r"\A\s*([-+]?)\s*[$\u20ac\u00a3]\s*(?=[-+.]?[0-9])")
_NAMED = re.compile(r"[^\d=:<>]{0,40}[=:]\s*")
_PRONOUN = re.compile(
    r"(?:(?:so|thus|hence|therefore),? )?(?:it|he|she|they|this|that|these|those)(?:['\u2019]s| is| was| are| were) ",
    re.IGNORECASE,
)
_GRID_LINE = re.compile(r"[\[\]|, \t]*[0-9][\[\]|, \t0-9]*")
_RULE_LINE = re.compile(r"[| \t:-]*-[| \t:-]*")
_LABEL_LINE = re.compile(r"[#*]*\s*(?:the )?(?:test )?output(?: grid)?(?: [0-9]+)?:?\**", re.IGNORECASE)


class GenerousForm(TextEnv):
    """The argument `form` of a benchmark. A task names one of the readers below in `read_generously`."""

    read_generously: Callable[[str], str] | None = None
    """Reads the answer of a reply's text; None for a task with one form."""
    form = "official"

    def use_form(self, form: str) -> None:
        """Read answers in this form from now on.

        Raises:
            InvalidConfigError: If the task does not have it.
        """
        known = FORMS if self.read_generously is not None else FORMS[:1]
        if form not in known:
            raise InvalidConfigError(f"{type(self).__name__}: form is {form!r}; known are {', '.join(known)}.")
        self.form = form

    def read(self, action: str) -> ParsedReply:
        """Parse a reply in the task's form."""
        reply = super().read(action)
        if self.form == "official" or self.read_generously is None or reply.tool_calls or len(action) > MAX_TEXT_LENGTH:
            return reply
        if self.answer_template != TextEnv.answer_template:  # the official reader's complaints are about its own form
            reply = split_thinking(action)
        if reply.problems:
            return reply
        try:
            return reply._replace(answer=self.read_generously(reply.answer or reply.content))
        except InvalidActionError as refusal:
            return reply._replace(answer=None, problems=(str(refusal),))


def read_number(text: str) -> str:
    r"""Return the number of a reply, without separators and trailing zeros.

    It stands behind `####`, or else in tags, in a box or behind "The answer is", or is the reply. A currency, a unit,
    bold, `x =` and a reason do not matter.

    Raises:
        InvalidActionError: If there is not exactly one number.
    """
    return _stated(text, _number_of, bare=_number_of, marks=(_MARKED, _STATED))


def read_letter(text: str, choices: Sequence[str] = ()) -> str:
    r"""Return the letter of a reply: `Answer: (B)`, `b` or "B because A is too small", a box, tags, or the reply.

    Args:
        text: The reply without thinking.
        choices: The texts of A, B, ...: behind a letter its own does not matter, and another one contradicts it.

    Raises:
        InvalidActionError: If there is not exactly one letter.
    """
    return _stated(
        text, lambda said: _letter_of(said, choices), bare=lambda line: _letter_of(line, choices, is_all=True)
    )


def read_span(text: str) -> str:
    """Return the words that a reply states as its answer, in small letters and undivided: see `span_readings`.

    Raises:
        InvalidActionError: If it states none, or several that differ.
    """
    return _stated(text, lambda said: plain_answer(said).casefold() or None)


def span_readings(text: str) -> tuple[str, ...]:
    """Return what the words of an answer may be: they, without decoration, a reason, or "It is". One of them counts."""
    plain = plain_answer(text)
    bare, remark = _split_remark(plain)
    short = plain_answer(bare) if _HEDGE.search(remark) is None and RETRACTION.search(remark) is None else plain
    return tuple(dict.fromkeys([text, plain, short, plain_answer(_PRONOUN.sub("", short, count=1))]))


def read_grid(text: str, n: int = 1) -> str:
    """Return the lines of a reply's grids, those of a Markdown table too; blank lines separate several grids.

    Args:
        text: The reply without thinking, or its answer.
        n: How many grids are asked for.

    Raises:
        InvalidActionError: If it has none, or other words between them than labels.
    """
    fenced = dict.fromkeys(block.code for block in fenced_blocks(text) if _GRID_LINE.search(block.code))
    if len(fenced) > n:
        raise InvalidActionError(_TWO)
    lines = ("\n\n".join(fenced) or text[:_MOST_CHARACTERS]).splitlines()
    places = [place for place, line in enumerate(lines) if _GRID_LINE.fullmatch(line)]
    if not places:
        raise InvalidActionError(_NONE)
    before, after = "\n".join(lines[: places[0]][-1:]), "\n".join(lines[places[-1] + 1 :])
    lines = [line.replace("|", " ") for line in lines[places[0] : places[-1] + 1] if not _RULE_LINE.fullmatch(line)]
    is_grid = all(not line.strip() or _GRID_LINE.fullmatch(line) or _LABEL_LINE.fullmatch(line) for line in lines)
    if not is_grid or is_doubtful(before) or is_doubtful(after) or RETRACTION.search(after):
        raise InvalidActionError(_TWO)
    return "\n".join("" if _LABEL_LINE.fullmatch(line) else line for line in lines)


Read = Callable[[str], str | None]


def _stated(text: str, read: Read, bare: Read | None = None, marks: Sequence[re.Pattern[str]] = (_STATED,)) -> str:
    """Return the one answer in tags, in boxes and behind marks; without any, that of a reply of one line.

    Args:
        text: The reply.
        read: A statement -> its answer; None for something else, "" for an answer that is doubted.
        bare: Reads a line that is nothing but an answer: it may not contradict what is stated.
        marks: The words before an answer.
    """
    text = text[:_MOST_CHARACTERS].strip()
    places, is_broken = _places(text, marks)
    if not places:
        return _only([(bare or read)(text)] if "\n" not in text and not is_broken else [])
    answers = ["" if place.is_doubted else read(text[place.start : place.end]) for place in places]
    before, after = text[: min(place.begin for place in places)], text[max(place.end for place in places) :]
    after = after.removeprefix("</answer>").removeprefix("}")
    if is_broken or RETRACTION.search(after) or _GOES_ON.match(after):
        answers.append("")
    if bare is not None:
        *lines, same_line = before.split("\n")
        others = [*filter(_WORD.fullmatch, lines), _LINK.sub("", same_line), *_SEGMENT_END.split(after)]
        answers += [bare(other) for other in others if other.strip()]
    return _only(answers)


class _Place(NamedTuple):
    """Where a statement begins, where its answer starts and ends, and whether the words before doubt it."""

    begin: int
    start: int
    end: int
    is_doubted: bool = False


def _places(text: str, marks: Sequence[re.Pattern[str]]) -> tuple[list[_Place], bool]:
    """Return the statements of a text, and whether a box is left open."""
    boxes, is_open = boxes_in(text)
    tags = list(_TAG.finditer(text))
    found = [_Place(a.start(), a.end(), b.start()) for a, b in pairwise(tags) if not a[1] and b[1]]
    for start, end in boxes:
        begin = text.rfind("\\", 0, start)
        found.append(_Place(begin, start, end, _is_doubted(text, begin)))
    starts = sorted(match.span() for mark in marks for match in mark.finditer(text))
    others = sorted([begin for begin, _ in starts] + [place.begin for place in found])
    for begin, start in starts:
        line_end = text.find("\n", start)
        next_one = bisect_left(others, start)
        end = min([line_end if line_end >= 0 else len(text), *others[next_one : next_one + 1]])
        if end in others[next_one : next_one + 1]:
            end = start + len(_LINK.sub("", text[start:end]))
        if text[start:end].strip():  # else the next one is what it states
            found.append(_Place(begin, start, end, text[begin] != "#" and _is_doubted(text, begin)))
    return found, is_open


def _is_doubted(text: str, begin: int) -> bool:
    clause = re.split(r"[.,;:!?\n]", text[max(0, begin - 300) : begin])[-1]
    return _DOUBT_BEFORE.search(clause) is not None


def _only(answers: Iterable[str | None]) -> str:
    """Return the one answer that statements agree on. None is a statement of something else, "" one that is doubted."""
    found = {answer for answer in answers if answer is not None}
    if len(found) > 1 or "" in found:
        raise InvalidActionError(_TWO)
    if not found:
        raise InvalidActionError(_NONE)
    return found.pop()


def _split_remark(text: str) -> tuple[str, str]:
    """Return an answer and the reason or sentence behind it."""
    match = _REMARK.search(text)
    return (text, "") if match is None or match.start() == 0 else (text[: match.start()], match[0])


def _number_of(said: str) -> str | None:
    said = _BOLD.sub("", said).replace("\\$", "").replace("\\%", "%")
    text, remark = _split_remark(_LATEX.sub(r" \1 ", said).strip())
    plain = _CURRENCY.sub(r"\1", plain_answer(text))
    if is_doubtful(plain) or _HEDGE.search(remark) or RETRACTION.search(remark):
        return ""
    if remark[:1] in (".", "!") and re.search("[0-9]", remark):
        return ""
    digits = plain_answer(without_unit(_CURRENCY.sub(r"\1", plain_answer(_NAMED.sub("", plain, count=1)))))
    number = parse_number(digits)
    if number is None:
        return None
    is_whole = number.denominator == 1
    return str(number.numerator) if is_whole else digits.replace(",", "").lstrip("+").rstrip("0")


def _letter_of(said: str, choices: Sequence[str], is_all: bool = False) -> str | None:
    plain = _DECORATION.sub("", said).strip()
    if (small := _SMALL_LETTER.fullmatch(plain)) is not None:
        return small[1].upper()
    if (match := _LETTER_FIRST.match(plain)) is None:
        return None
    letter, rest = match[1], match[2].strip()
    texts = [_DECORATION.sub("", choice).strip(" .").casefold() for choice in choices]
    own = texts[ord(letter) - ord("A")] if texts else ""
    rest = rest[len(own) :] if own and rest.casefold().startswith(own) else rest
    rest, remark = _split_remark(f"{letter} {rest}")
    rest = rest[1:]
    is_other = rest.strip(" .").casefold() in set(texts) - {own, ""}
    is_unclear = is_doubtful(rest) or _ANY_LETTER.search(rest) or _HEDGE.search(remark) or RETRACTION.search(remark)
    ends_with_letter = any(re.fullmatch(r"\W*[A-D]\W*", part) for part in _SEGMENT_END.split(remark))
    if is_other or is_unclear or ends_with_letter or (is_all and re.search(r"\w", rest)):
        return None if is_all else ""
    return letter
