"""Fenced code, as the answer or as the call of a tool."""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from llm_envs.parsers.answers import split_thinking
from llm_envs.parsers.reply import ParsedReply, Parser
from llm_envs.types import ToolCall

__all__ = ["Fenced", "create_fenced_parser", "fenced_blocks"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


class Fenced(NamedTuple):
    """A fenced block of code."""

    language: str
    """First word after the opening fence, in lower case; may be empty."""
    code: str
    """The lines between the fences, without the last line break."""


class _Span(NamedTuple):
    fenced: Fenced
    start: int
    end: int


def fenced_blocks(text: str) -> tuple[Fenced, ...]:
    """Return the closed blocks of fenced code, in order, by CommonMark's rules: fence lines of three or more marks."""
    return tuple(span.fenced for span in _scan(text)[0])


def _scan(text: str) -> tuple[list[_Span], bool]:
    """Return the closed blocks, and whether a block is left open."""
    blocks: list[_Span] = []
    fence = language = ""
    start = code_start = 0
    for match in _FENCE.finditer(text):
        marks, info = match.groups()
        info = info.strip()
        if not fence:
            if "`" not in info or marks[0] == "~":
                fence, language, start, code_start = marks, info, match.start(), match.end() + 1
        elif not info and marks.startswith(fence):
            code = text[code_start : match.start() - 1]
            blocks.append(_Span(Fenced(language.split()[0].lower() if language else "", code), start, match.end()))
            fence = ""
    return blocks, bool(fence)


def create_fenced_parser(language: str | None = None, tool: str | None = None, argument: str = "code") -> Parser:
    """Make a parser that reads fenced code.

    Code in thinking is thinking. These are problems: a second block if the answer is a block, an empty block, and a
    block that is not closed.

    Args:
        language: Only blocks of this language count, in lower case; None for all. Other blocks are content.
        tool: Name of the tool that each block calls; such a block is not content. None: the only block is the answer.
        argument: The tool's argument that gets the code.
    """
    return partial(_parse_fenced, None if language is None else language.lower(), tool, argument)


def _parse_fenced(language: str | None, tool: str | None, argument: str, text: str) -> ParsedReply:
    reply = split_thinking(text)
    if reply.problems:
        return reply
    spans, is_open = _scan(reply.content)
    spans = [span for span in spans if language is None or span.fenced.language == language]
    problems = []
    if is_open:
        problems.append("a code fence is not closed")
    if any(not span.fenced.code.strip() for span in spans):
        problems.append("a block of code is empty")
    if tool is None and len(spans) > 1:
        problems.append("there are two answers; give one")
    if problems:
        return reply._replace(problems=tuple(problems))
    if tool is None:
        return reply._replace(answer=spans[0].fenced.code.strip("\n") if spans else None)
    calls = tuple(ToolCall(tool, {argument: span.fenced.code}) for span in spans)
    content, position = [], 0
    for span in spans:
        content.append(reply.content[position : span.start])
        position = span.end
    content.append(reply.content[position:])
    return reply._replace(content="".join(content).strip(), tool_calls=calls)
