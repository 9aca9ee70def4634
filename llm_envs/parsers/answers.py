r"""Final answers: `<answer>` tags, `\boxed{}`, the last number, or any function that finds one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from llm_envs.parsers.reply import ParsedReply, Parser, printable
from llm_envs.parsers.tagged import ReplyGrammar, parse_tagged

__all__ = [
    "boxes_in",
    "create_answer_parser",
    "extract_boxed",
    "last_number",
    "parse_boxed",
    "split_thinking",
]

_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?")
_BRACE = re.compile(r"\\(?:boxed|fbox)[ \t]*\{|\\.|[{}]", re.DOTALL)
_NEW_SENTENCE = re.compile(r"(?:[.!?](?:[$)*]|\\[)\]])*\s|\n).*?[^\W\d_]{2}", re.DOTALL)
HEDGE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|probably not|alternatively|might|could)\b", re.IGNORECASE)
RETRACTION = re.compile(
    r"\b(?:wrong|incorrect|false|untrue|mistaken?|wait|actually|hmm+|oops|sorry|correction|unsure|uncertain|doubt\w*|"
    r"disagree|disregard|never mind|scratch that|on second thought|not (?:sure|certain|right|correct|true|it)|"
    r"(?:(?:do|did) not|(?:do|did)n['\u2019]t) (?:know|think|agree))\b|\bno\b(?=[,.!]|\s*\Z)",
    re.IGNORECASE,
)
"""Words that take back what stands before them."""
_THINKING_ALONE = ReplyGrammar(answer_tag=None)


def last_number(text: str) -> str | None:
    """Return the last number written in `text` (sign and decimals kept, thousands separators dropped), or None.

    Only numbers, not expressions: "4" for "-3/4", and "3" for "1e3".
    """
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` or `\fbox{...}`, stripped, or None.

    Braces are balanced; escaped ones, `\{` and `\}`, do not count.
    """
    boxes, _ = boxes_in(text)
    if not boxes:
        return None
    start, end = boxes[-1]
    return text[start:end].strip()


def boxes_in(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Return the spans of the outermost complete boxes, and whether any box is left open."""
    boxes: list[tuple[int, int]] = []
    opened: list[int | None] = []  # for each open brace: where its box starts, or None for a plain brace
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else None
            if start is not None:
                while boxes and boxes[-1][0] > start:
                    boxes.pop()  # a box within this one
                boxes.append((start, match.start()))
        elif token == "{":
            opened.append(None)
        elif token[-1] == "{" and len(token) > 2:
            opened.append(match.end())
    return boxes, any(start is not None for start in opened)


def split_thinking(text: str) -> ParsedReply:
    """Split off the `<think>` blocks of a reply; the rest is its content and is not parsed."""
    return parse_tagged(_THINKING_ALONE, text)


def create_answer_parser(extract: Callable[[str], str | None], *, base: Parser = split_thinking) -> Parser:
    """Make a parser that extracts the answer from the content with a function.

    `create_answer_parser(last_number)` takes the last number. `create_answer_parser(extract_boxed, base=parse_reply)`
    reads calls too. With `str.strip` and `base=PARSERS["harmony"]`, GPT-OSS's final message is the answer.

    Args:
        extract: The content, without thinking and calls -> the answer, or None. An exception becomes a problem of the
            reply.
        base: Parses everything else; by default only thinking. An answer that it finds is ignored.
    """
    return partial(_parse_with_extract, extract, base)


def _parse_with_extract(extract: Callable[[str], str | None], base: Parser, text: str) -> ParsedReply:
    reply = base(text)
    if reply.problems:
        return reply
    try:
        answer = extract(reply.content)
    except Exception as error:  # the caller's function may fail on hostile text, but a parser never raises
        return _refuse(reply, f"the answer cannot be read: {type(error).__name__}")
    if answer is None:
        return reply._replace(answer=None)
    answer = answer.strip()
    return reply._replace(answer=answer) if answer else _refuse(reply, "the answer is empty")


def parse_boxed(text: str) -> ParsedReply:
    r"""Parse a reply with its answer in `\boxed{...}` outside thinking.

    Of boxes with different contents the last one counts, if it stands in a later sentence than the others: they hold
    results on the way. "`\boxed{3}` or `\boxed{5}`" has two answers.
    """
    reply = split_thinking(text)
    if reply.problems:
        return reply
    boxes, is_open = boxes_in(reply.content)
    if is_open:
        return _refuse(reply, "\\boxed{ is not closed by }")
    if not boxes:
        return reply
    answer = reply.content[slice(*boxes[-1])].strip()
    others = [end for start, end in boxes if reply.content[start:end].strip() != answer]
    between = reply.content[others[-1] : boxes[-1][0]] if others else ""
    if others and (HEDGE.search(between) is not None or _NEW_SENTENCE.search(between) is None):
        return _refuse(reply, "there are two answers; give one")
    return reply._replace(answer=answer) if answer else _refuse(reply, "the answer is empty")


def _refuse(reply: ParsedReply, problem: str) -> ParsedReply:
    return reply._replace(tool_calls=(), answer=None, problems=(printable(problem),))
