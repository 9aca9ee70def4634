"""The formats of the model families: grammars, parsers, detection, and functions that write calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from llm_envs.parsers import deepseek
from llm_envs.parsers.gemma_calls import read_gemma4
from llm_envs.parsers.harmony import HEADER, read_messages
from llm_envs.parsers.json_calls import (
    parse_sole_call,
    read_cohere,
    read_json_objects,
    read_mistral,
    read_sole_json,
    read_whole_json,
)
from llm_envs.parsers.python_calls import read_closed_list, read_python_tag, read_whole_list
from llm_envs.parsers.reply import Draft, ParsedReply, Parser
from llm_envs.parsers.tag_calls import ATEM, read_glm, read_invokes, read_qwen3_coder
from llm_envs.parsers.tagged import (
    THINK,
    Block,
    ReplyGrammar,
    Thinking,
    Whole,
    parse_tagged,
    read_tagged,
    without_end_of_turn,
)
from llm_envs.types import ToolCall

__all__ = ["FAMILIES", "FORMATTERS", "detect_format", "parse_reply"]

_QWEN = Block("qwen3_coder", "<tool_call>", "</tool_call>", read_qwen3_coder, re.compile(r"\s*<function\b"))
_GLM = Block(
    "glm",
    "<tool_call>",
    "</tool_call>",
    read_glm,
    # A name with only spaces around it is prose: "between <tool_call> and </tool_call>".
    re.compile(r"(?!(?:null|true|false|NaN|Infinity)\b)[A-Za-z_][\w.\-]{0,199}(?:\s*<arg_key>|\n?</tool_call>)"),
)
_HERMES = Block("hermes", "<tool_call>", "</tool_call>", partial(read_sole_json, closing="</tool_call>"))
_PYTHON_TAG = Block("llama3_python", "<|python_tag|>", None, read_python_tag)
_PYTHON_TAG_JSON = Block("llama3_json", "<|python_tag|>", None, read_json_objects, re.compile(r"\s*\{"))
_PYTHON_START = Block(
    "pythonic", "<|python_start|>", "<|python_end|>", partial(read_closed_list, closing="<|python_end|>")
)
_MISTRAL = Block("mistral", "[TOOL_CALLS]", None, read_mistral)
_DEEPSEEK = Block("deepseek", *deepseek.TAGS, deepseek.read_deepseek)
_DSML = Block("deepseek", *deepseek.DSML_TAGS, deepseek.read_dsml)
_COHERE = Block("cohere", "<|START_ACTION|>", "<|END_ACTION|>", read_cohere)
_LFM2 = Block(
    "lfm2", "<|tool_call_start|>", "<|tool_call_end|>", partial(read_closed_list, closing="<|tool_call_end|>")
)
_GEMMA = Block("gemma4", "<|tool_call>", "<tool_call|>", read_gemma4)
_ATEM_TAGS = ("<atem:function_calls>", "</atem:function_calls>")
_ATEM = Block("muse", *_ATEM_TAGS, partial(read_invokes, style=ATEM, closing=_ATEM_TAGS[1]))

_MISTRAL_THINK = Thinking("[THINK]", "[/THINK]", "mistral")
_COHERE_THINK = Thinking("<|START_THINKING|>", "<|END_THINKING|>", "cohere")
_GEMMA_THINK = Thinking("<|channel>thought", "<channel|>", "gemma4")
_COHERE_RESPONSE = {"cohere": ("<|START_RESPONSE|>", "<|END_RESPONSE|>")}

_WHOLE_JSON = Whole("llama3_json", re.compile(r"\{"), read_whole_json)
_WHOLE_LIST = Whole("pythonic", re.compile(r"\[\s*[A-Za-z_]"), read_whole_list)

_TOOL_CALL = (_QWEN, _GLM, _HERMES)
_PYTHON = (_PYTHON_TAG_JSON, _PYTHON_TAG, _PYTHON_START)
_AUTO = ReplyGrammar(
    [*_TOOL_CALL, *_PYTHON, _MISTRAL, _DEEPSEEK, _DSML, _COHERE, _LFM2, _GEMMA, _ATEM],
    thinking=(THINK, _MISTRAL_THINK, _COHERE_THINK, _GEMMA_THINK),
    whole=(_WHOLE_JSON, _WHOLE_LIST),
    wrappers=_COHERE_RESPONSE,
    strays={"<|channel|>": "harmony", "<|message|>": "harmony"},
)
_IN_MESSAGES = ReplyGrammar(thinking=())

_GRAMMARS = {
    "hermes": ReplyGrammar([_HERMES]),
    "qwen3_coder": ReplyGrammar([_QWEN]),
    "glm": ReplyGrammar([_GLM]),
    "llama3_json": ReplyGrammar([_PYTHON_TAG_JSON], whole=(_WHOLE_JSON,)),
    "llama3_python": ReplyGrammar([_PYTHON_TAG]),
    "pythonic": ReplyGrammar([_PYTHON_START], whole=(_WHOLE_LIST,)),
    "mistral": ReplyGrammar([_MISTRAL], thinking=(_MISTRAL_THINK, THINK)),
    "deepseek": ReplyGrammar([_DEEPSEEK, _DSML]),
    "cohere": ReplyGrammar([_COHERE], thinking=(_COHERE_THINK,), wrappers=_COHERE_RESPONSE),
    "lfm2": ReplyGrammar([_LFM2]),
    "gemma4": ReplyGrammar([_GEMMA], thinking=(_GEMMA_THINK,)),
}


def parse_reply(text: str) -> ParsedReply:
    """Parse an assistant's reply in any format; see the package's table for the result of each form.

    Args:
        text: The reply exactly as written, special tokens included; one end-of-turn marker at its end is dropped. Any
            string.
    """
    # Fast path for nearly every step: a single answer or a single call takes a few passes in C.
    tags = text.count("<")
    if tags == 2 and "[T" not in text and "[/T" not in text:
        start, end = text.find("<answer>"), text.find("</answer>")
        if 0 <= start < end and (start == 0 or not (text[0] in "{[" or text[0].isspace())):
            answer = text[start + 8 : end].strip()
            if answer:
                return ParsedReply(None, text.strip(), (), answer, ())
    if tags >= 2 and text.startswith("<tool_call>") and text.endswith("</tool_call>"):
        call = parse_sole_call(text[11:-12].strip())
        if call is not None:
            return ParsedReply(None, "", (call,), None, ())
    return _read_any(text).finish()


def detect_format(text: str) -> str | None:
    """Return the name (in `PARSERS`) of the format whose markers the reply has; the first if it has several.

    None for a reply without calls and without a family's markers; `<think>` and `<answer>` belong to no family.
    """
    return _read_any(text).format


def _read_any(text: str) -> Draft:
    draft = Draft()
    if HEADER.match(text) is not None:
        read_messages(text, draft, _AUTO)
    else:
        read_tagged(without_end_of_turn(text), _AUTO, draft)
    return draft


def _parse_messages(name: str, text: str) -> ParsedReply:
    header = HEADER.match(text)
    if header is None or header[1] != ("<|channel|>" if name == "harmony" else "<|message|>"):
        return parse_tagged(_IN_MESSAGES, text)
    draft = Draft()
    read_messages(text, draft, _IN_MESSAGES)
    return draft.finish()


FAMILIES: Mapping[str, Parser] = MappingProxyType(
    {"auto": parse_reply}
    | {name: partial(parse_tagged, grammar) for name, grammar in _GRAMMARS.items()}
    | {name: partial(_parse_messages, name) for name in ("harmony", "muse")}
)
"""Parsers of the families' formats, by name."""


def _objects(calls: Sequence[ToolCall], name: str, arguments: str, call_id: str) -> list[str]:
    return [
        json.dumps(
            {name: call.name, arguments: dict(call.arguments)} | ({} if call.id is None else {call_id: call.id}),
            ensure_ascii=False,
        )
        for call in calls
    ]


def _format_hermes(calls: Sequence[ToolCall]) -> str:
    blocks = _objects(calls, "name", "arguments", "id")
    return "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)


def _format_llama3_json(calls: Sequence[ToolCall]) -> str:
    return "; ".join(_objects(calls, "name", "parameters", "id"))


def _format_mistral(calls: Sequence[ToolCall]) -> str:
    return f"[TOOL_CALLS][{', '.join(_objects(calls, 'name', 'arguments', 'id'))}]"


def _format_cohere(calls: Sequence[ToolCall]) -> str:
    return f"<|START_ACTION|>[{', '.join(_objects(calls, 'tool_name', 'parameters', 'tool_call_id'))}]<|END_ACTION|>"


FORMATTERS: Mapping[str, Callable[[Sequence[ToolCall]], str]] = MappingProxyType(
    {
        "hermes": _format_hermes,
        "llama3_json": _format_llama3_json,
        "mistral": _format_mistral,
        "cohere": _format_cohere,
    }
)
"""Functions that write calls, for the formats with JSON calls: `PARSERS[name]` reads the same calls back."""
