"""ReAct: `Thought:`, `Action:`, `Action Input:`, `Final Answer:`, each at the start of a line.

"ReAct: Synergizing Reasoning and Acting in Language Models" (arXiv 2210.03629), as LangChain writes it.
"""

from __future__ import annotations

import re
from functools import partial

from llm_envs.parsers.answers import split_thinking
from llm_envs.parsers.json_calls import Document, call_with, scan_json
from llm_envs.parsers.reply import BrokenCallError, Draft, ParsedReply, Parser
from llm_envs.types import ToolCall

__all__ = ["create_react_parser"]

_LABEL = re.compile(r"^[ \t]{0,8}(Thought|Action|Action Input|Observation|Final Answer):", re.MULTILINE)
_NAME = re.compile(r"[^\s(){}\[\]\"'`,:]{1,200}")


def create_react_parser(*, input_argument: str | None = None) -> Parser:
    """Make a parser of ReAct replies.

    Thoughts are thinking. So is the text before the first label, because its "Thought:" is in the prompt. Each action
    with its input is a call. These are problems: an action without an input, an input without an action, an input that
    is not a JSON object, an observation (the environment writes those), a second final answer, an empty answer.

    Args:
        input_argument: Name of the argument that gets the text of an input that is not a JSON object.
    """
    return partial(_parse_react, input_argument)


def _parse_react(input_argument: str | None, text: str) -> ParsedReply:
    reply = split_thinking(text)
    draft = Draft()
    for problem in reply.problems:
        draft.complain(problem)
    if reply.thinking is not None:
        draft.thoughts.append(reply.thinking)
        labels = set(_LABEL.findall(reply.thinking))
        if {"Action", "Action Input"} <= labels:
            draft.complain("an action stands inside <think>: close </think> before acting")
    content = Document(reply.content)
    labels_found = list(_LABEL.finditer(content))
    if not labels_found:
        draft.content.append(content)
        return draft.finish()
    if before := content[: labels_found[0].start()].strip():
        draft.thoughts.append(before)
    action: str | None = None
    ends = [match.start() for match in labels_found[1:]] + [len(content)]
    for match, end in zip(labels_found, ends, strict=True):
        label, body = match[1], content[match.end() : end].strip()
        if action is not None and label != "Action Input":
            draft.complain("an Action is not followed by its Action Input")
            action = None
        if label == "Thought":
            draft.thoughts.append(body)
        elif label == "Action":
            action = body
        elif label == "Action Input":
            _read_action(action, body, input_argument, draft)
            action = None
        elif label == "Observation":
            draft.complain("an Observation is written by the environment; stop after the Action Input")
        else:
            draft.content.append(content[match.start() : end])
            draft.answers.append(body)
            if not body:
                draft.complain("the answer is empty")
    if action is not None:
        draft.complain("an Action is not followed by its Action Input")
    return draft.finish()


def _read_action(action: str | None, body: str, input_argument: str | None, draft: Draft) -> None:
    if action is None:
        draft.complain("an Action Input stands without its Action")
        return
    if _NAME.fullmatch(action) is None:
        draft.complain("an Action must be the name of one tool")
        return
    if input_argument is not None and not body.startswith("{"):
        draft.tool_calls.append(ToolCall(action, {input_argument: body}))
        return
    try:
        data, end = scan_json(body, 0)
        if body[end:].strip():
            raise BrokenCallError("an Action Input is followed by other text")
        draft.tool_calls.append(call_with(action, data))
    except BrokenCallError as error:
        draft.complain(str(error))
