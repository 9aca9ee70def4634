"""Replies made of messages: GPT-OSS's harmony channels, and Muse Glimmer's recipients.

A reply continues after `<|start|>assistant`, which is in the prompt:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
    to=self<|message|>...<|eom|><|start|>assistant to=f<|message|><atem:function_calls>...</atem:function_calls><|eot|>

The closing token of the last message may be missing, because it ends the turn; but not after thinking, which cannot end
a turn.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from llm_envs.parsers.json_calls import Document, call_with, scan_json, skip_space
from llm_envs.parsers.reply import BrokenCallError, Draft
from llm_envs.parsers.tag_calls import ATEM, read_invokes
from llm_envs.parsers.tagged import ReplyGrammar, read_tagged, read_thought

__all__ = ["HEADER", "read_messages"]

MAX_HEADER = 300
HEADER = re.compile(
    r"\s*+(?:<\|start\|>(?:assistant)?)*+(?: ?to=[^\s<>\"{}\[\]]{1,200})? ?(<\|channel\|>|<\|message\|>)"
)
"""The beginning of a reply of messages; group 1 is `<|channel|>` for harmony, `<|message|>` for Muse."""

_HARMONY_HEADER = re.compile(
    r"\s*(?P<begun>(?:<\|start\|>(?:assistant)?)*)(?: to=(?P<to>[^\s<>]+))?\s?"
    r"(?P<doubled>(?:<\|channel\|>[a-z]*(?: to=(?P<to_first>[^\s<>]+))?\s?(?:<\|constrain\|>)?(?:json\s?)?)*?)"
    r"<\|channel\|>(?P<channel>[a-z]+)(?: to=(?P<to_too>[^\s<>]+))?(?:\s?(?:<\|constrain\|>)?(?P<type>[a-z]+))?\s?"
)
_MUSE_HEADER = re.compile(r"\s*+(?:<\|start\|>assistant)?\s?(?:to=(?P<to>[^\s<>]+))?\s?")
_MARK = re.compile(r"<\|(?:start|end|call|return|eom|eot|channel|message)\|>")
_CLOSING = ("<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>")
_ATEM_OPENING, _ATEM_CLOSING = "<atem:function_calls>", "</atem:function_calls>"


class _Header(NamedTuple):
    kind: str
    """"thinking", "content", "final" or "call"."""
    tool: str = ""


def read_messages(text: str, draft: Draft, grammar: ReplyGrammar) -> None:
    """Read a reply of messages into the draft.

    Args:
        text: The reply.
        draft: Gets the parts; its `format` becomes "harmony" or "muse".
        grammar: Reads the content (answers, misplaced tags), and finds calls in thinking.
    """
    text = Document(text.rstrip(), draft.quirks)
    begin = HEADER.match(text)
    is_muse = begin is not None and begin[1] == "<|message|>"
    draft.use("muse" if is_muse else "harmony")
    finals = 0
    position = 0
    while position < len(text):
        message = text.find("<|message|>", position, position + MAX_HEADER)
        header = None if message < 0 else _read_header(text[position:message], is_muse, draft)
        if header is None:
            draft.complain("text stands outside a message, or the header of a message is broken")
            draft.content.append(text[position:])
            return
        position = _read_body(text, message + len("<|message|>"), header, draft, grammar)
        finals += header.kind == "final"
    if finals > 1:
        draft.complain("there are two final messages; give one")


def _read_header(header: str, is_muse: bool, draft: Draft) -> _Header | None:
    """Return the header of a message, or None if it is broken; its quirks go into the draft."""
    match = (_MUSE_HEADER if is_muse else _HARMONY_HEADER).fullmatch(header)
    if match is None:
        return None
    if is_muse:
        recipient = match["to"] or "user"
        return _Header({"self": "thinking", "user": "final"}.get(recipient, "call"), recipient)
    recipients = {match[name] for name in ("to", "to_first", "to_too")} - {None}
    if len(recipients) > 1 or (match["to"] and match["to_too"]):
        return None
    recipient, channel = next(iter(recipients), None), match["channel"]
    if match["doubled"] or match["begun"].count("<|start|>") > 1:
        draft.quirks.append("doubled_header")
    if recipient is not None and (channel == "commentary" or recipient.startswith("functions.")):
        if channel != "commentary":
            draft.quirks.append("call_in_analysis")
        return _Header("call", recipient.removeprefix("functions."))
    kind = {"analysis": "thinking", "commentary": "content", "final": "final"}.get(channel)
    return None if kind is None or recipient is not None else _Header(kind)


def _read_body(text: str, start: int, header: _Header, draft: Draft, grammar: ReplyGrammar) -> int:
    """Read one message's body and closing token; return the position of the next message."""
    if header.kind == "call":
        try:
            start = _read_call_body(text, start, header.tool, draft)
        except BrokenCallError as error:
            draft.drop_call(str(error))
        else:
            if start < len(text) and _MARK.match(text, start) is None:
                draft.complain("a tool call is followed by other text")
    mark = _MARK.search(text, start)
    end, after = (len(text), len(text)) if mark is None else mark.span()
    if header.kind == "thinking":
        thought = text[start:end]
        draft.thoughts.append(thought.strip())
        read_thought(thought, grammar, draft, "inside thinking: end the message before calling")
        if mark is None:
            draft.complain("a message of thinking is not closed")
    elif header.kind != "call":
        read_tagged(text[start:end], grammar, draft)
        draft.content.append("\n")
    if mark is not None and mark.group() not in _CLOSING:
        draft.complain(f"a message is not closed before {mark.group()}")
        after = end if mark.group() == "<|start|>" else after
    return after


def _read_call_body(text: str, start: int, tool: str, draft: Draft) -> int:
    """Read a message that is a call; return the position after it."""
    if draft.format == "harmony":
        data, end = scan_json(text, start)
        draft.tool_calls.append(call_with(tool, data, text=text))
        return skip_space(text, end)
    start = skip_space(text, start)
    if not text.startswith(_ATEM_OPENING, start):
        raise BrokenCallError(f"a message to a tool must be {_ATEM_OPENING}...{_ATEM_CLOSING}")
    calls, end = read_invokes(text, start + len(_ATEM_OPENING), ATEM, _ATEM_CLOSING)
    if any(call.name != tool for call in calls):
        raise BrokenCallError("a message to one tool calls another")
    draft.tool_calls.extend(calls)
    return skip_space(text, end)
