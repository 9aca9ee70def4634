"""Generic XML tags: fields of a reply, and parsers for tags that you choose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers.json_calls import read_sole_json
from llm_envs.parsers.reply import Draft, ParsedReply, Parser
from llm_envs.parsers.tag_calls import XML_INVOKE, read_invokes
from llm_envs.parsers.tagged import Block, ReplyGrammar, Thinking, any_of, read_tagged, without_end_of_turn

__all__ = ["create_xml_parser", "xml_fields"]

_TAG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def xml_fields(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the stripped text of each field `<name>...</name>` that occurs once, closed and not nested.

    A field that is missing, duplicated, not closed, or contains a tag of another field is left out.

    Args:
        text: Any text.
        names: Names of the tags, without attributes.
    """
    return _fields(text, tuple(names))[0]


def _fields(text: str, names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the valid fields, and the problems of the others."""
    fields: dict[str, str] = {}
    problems: list[str] = []
    spoiled: set[str] = set()
    opened: tuple[str, int] | None = None
    for match in any_of([tag for name in names for tag in (f"<{name}>", f"</{name}>")]).finditer(text):
        tag = match.group()
        name = tag.strip("</>")
        if tag[1] == "/":
            if opened is not None and opened[0] == name:
                if name in fields:
                    spoiled.add(name)
                    problems.append(f"<{name}> stands twice")
                fields[name] = text[opened[1] : match.start()].strip()
                opened = None
            else:
                spoiled.add(name)
                problems.append(f"{tag} stands without <{name}> before it")
        elif opened is not None:
            spoiled |= {name, opened[0]}
            problems.append(f"{tag} stands inside <{opened[0]}>")
        else:
            opened = (name, match.end())
    if opened is not None:
        spoiled.add(opened[0])
        problems.append(f"<{opened[0]}> is not closed by </{opened[0]}>")
    return {name: value for name, value in fields.items() if name not in spoiled}, problems


def create_xml_parser(
    fields: Sequence[str] = (),
    *,
    thinking_tag: str = "think",
    call_tag: str | None = "tool_call",
    answer_tag: str | None = "answer",
) -> Parser:
    """Make a parser of replies in tags that you choose.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Instead of the JSON it may contain one or more
    `<invoke name="f"><parameter name="a">1</parameter></invoke>`.

    Args:
        fields: Names of further tags, which stay in the content: read them with `xml_fields`. A field that appears
            twice, is not closed, or crosses another is a problem.
        thinking_tag: Name of the tag around thinking.
        call_tag: Name of the tag around calls; None: replies have no calls.
        answer_tag: Name of the tag around the answer; None: replies have no answer.

    Raises:
        InvalidConfigError: If a name is not a valid tag name, or two are the same.
    """
    names = [name for name in (thinking_tag, call_tag, answer_tag, *fields) if name is not None]
    for name in names:
        if _TAG_NAME.fullmatch(name) is None:
            raise InvalidConfigError(f"create_xml_parser: {name!r} is not a valid tag name.")
        if names.count(name) > 1:
            raise InvalidConfigError(f"create_xml_parser: the tag {name!r} is given twice.")
    blocks = []
    if call_tag is not None:
        closing = f"</{call_tag}>"
        invokes = partial(read_invokes, style=XML_INVOKE, closing=closing)
        blocks = [
            Block("xml", f"<{call_tag}>", closing, invokes, re.compile(r"\s*<invoke\b")),
            Block("xml", f"<{call_tag}>", closing, partial(read_sole_json, closing=closing)),
        ]
    thinking = (Thinking(f"<{thinking_tag}>", f"</{thinking_tag}>", None),)
    grammar = ReplyGrammar(blocks, thinking=thinking, answer_tag=answer_tag)
    apart = (*fields, answer_tag) if fields and answer_tag is not None else tuple(fields)
    return partial(_parse_xml, grammar, apart)


def _parse_xml(grammar: ReplyGrammar, fields: Sequence[str], text: str) -> ParsedReply:
    draft = Draft()
    read_tagged(without_end_of_turn(text), grammar, draft)
    if fields:
        for problem in _fields("".join(draft.content), fields)[1]:
            draft.complain(problem)
    return draft.finish()
