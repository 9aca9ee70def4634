"""The formats of the model families: grammars, parsers, detection, and functions that write calls."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import deepseek
from llm_envs.parsers.gemma_calls import read_gemma
from llm_envs.parsers.harmony import HEADER, read_messages
from llm_envs.parsers.json_calls import (
    Calls,
    parse_sole_call,
    read_after,
    read_json_list,
    read_json_objects,
    read_kimi,
    read_mistral,
    read_named_objects,
    read_sole_json,
    read_whole_json,
    read_whole_phi,
)
from llm_envs.parsers.python_calls import read_call_lines, read_closed_list, read_python_tag, read_whole_list
from llm_envs.parsers.reply import Draft, ParsedReply, Parser
from llm_envs.parsers.tag_calls import (
    GLM,
    KIMI_K3,
    MINICPM,
    QWEN,
    XML_INVOKE,
    TagStyle,
    hunyuan_style,
    read_function,
    read_invokes,
)
from llm_envs.parsers.tagged import (
    RESPONSE,
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

__all__ = [
    "FAMILIES",
    "FORMATTERS",
    "OWN_TOKENS",
    "THINKING_TAGS",
    "create_reply_parser",
    "detect_format",
    "parse_reply",
]


def _block(name: str, opening: str, closing: str, read: Callable[..., tuple[Calls, int]], **options: Any) -> Block:
    """Return a block whose reader takes the closing tag, and these options."""
    return Block(name, opening, closing, partial(read, closing=closing, **options))


def _tags(name: str, opening: str, closing: str, style: TagStyle, begins: re.Pattern[str] | None = None) -> Block:
    return Block(name, opening, closing, partial(read_invokes, style=style, closing=closing), begins)


_TOOL_CALL = (
    _tags("qwen3_coder", "<tool_call>", "</tool_call>", QWEN, re.compile(r"\s*<function\b")),
    Block(
        "glm",
        "<tool_call>",
        "</tool_call>",
        partial(read_function, style=GLM),
        # A name with only spaces around it is prose: "between <tool_call> and </tool_call>".
        re.compile(
            r"(?!(?:null|true|false|NaN|Infinity)\b)[A-Za-z_][\w.\-]{0,199}(?:\s*<arg_key>|\n{0,2}</tool_call>)"
        ),
    ),
    _block("hermes", "<tool_call>", "</tool_call>", read_sole_json),
)
_PYTHON_TAG = Block("llama3_python", "<|python_tag|>", None, read_python_tag)
_PYTHON_TAG_JSON = Block("llama3_json", "<|python_tag|>", None, read_json_objects, re.compile(r"\s*\{"))
_LLAMA_4_JSON = Block("llama3_json", "<|python_start|><|python_end|>", None, read_json_objects)
_PYTHON_START = _block("pythonic", "<|python_start|>", "<|python_end|>", read_closed_list)
_COHERE = _block(
    "cohere", "<|START_ACTION|>", "<|END_ACTION|>", read_json_list, name_key="tool_name", id_key="tool_call_id"
)
_read_objects = partial(read_sole_json, closing="</tool_calls>", is_one=False)  # MiniMax M1
_MINICPM = '<function name="'
_read_minicpm = partial(read_function, style=MINICPM, back=len(_MINICPM))

_MISTRAL_THINK = Thinking("[THINK]", "[/THINK]", "mistral")
_COHERE_THINK = Thinking("<|START_THINKING|>", "<|END_THINKING|>", "cohere")
_GEMMA_THINK = Thinking("<|channel>thought", "<channel|>", "gemma4")
_SEED_THINK = Thinking("<seed:think>", "</seed:think>", "seed_oss")
_KIMI_THINK = Thinking("<|open|>think<|sep|>", "<|close|>think<|sep|>", "kimi_k3")
_HUNYUAN_THINK = Thinking("<think:opensource>", "</think:opensource>", "hunyuan")
_LONGCAT_THINK = Thinking("<longcat_think>", "</longcat_think>", "longcat")
_COHERE_RESPONSE = {"cohere": ("<|START_RESPONSE|>", "<|END_RESPONSE|>")}
_KIMI_RESPONSE = {"kimi_k3": ("<|open|>response<|sep|>", "<|close|>response<|sep|>")}

_WHOLE_JSON = Whole("llama3_json", re.compile(r"\{"), read_whole_json)
_WHOLE_LIST = Whole("pythonic", re.compile(r"\[\s*[A-Za-z_]"), read_whole_list)
_WHOLE_PHI = Whole("phi4", re.compile(r"functools\["), read_whole_phi)

_ELEMENTS: dict[str, dict[str, Any]] = {
    **{block.format: {"blocks": [block], "frame": RESPONSE} for block in _TOOL_CALL},
    "llama3_json": {"blocks": [_PYTHON_TAG_JSON, _LLAMA_4_JSON], "untagged": (_WHOLE_JSON,)},
    "llama3_python": {"blocks": [_PYTHON_TAG]},
    "pythonic": {"blocks": [_PYTHON_START], "untagged": (_WHOLE_LIST,)},
    "mistral": {"blocks": [Block("mistral", "[TOOL_CALLS]", None, read_mistral)], "thinking": (_MISTRAL_THINK, THINK)},
    "deepseek": {
        "blocks": [
            Block("deepseek", *deepseek.TAGS, deepseek.read_deepseek),
            *(_tags("deepseek", *tags, deepseek.DSML) for tags in deepseek.DSML_TAGS),
        ]
    },
    "cohere": {"blocks": [_COHERE], "thinking": (_COHERE_THINK,), "wrappers": _COHERE_RESPONSE},
    "lfm2": {"blocks": [_block("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", read_closed_list)]},
    "gemma4": {
        "blocks": [_block("gemma4", "<|tool_call>", "<tool_call|>", read_gemma, quote='<|"|>')],
        "thinking": (_GEMMA_THINK,),
    },
    "functiongemma": {
        "blocks": [
            _block("functiongemma", "<start_function_call>", "<end_function_call>", read_gemma, quote="<escape>")
        ]
    },
    "kimi_k2": {"blocks": [_block("kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", read_kimi)]},
    "kimi_k3": {
        "blocks": [_tags("kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", KIMI_K3)],
        "thinking": (_KIMI_THINK,),
        "wrappers": _KIMI_RESPONSE,
    },
    "minimax_m2": {"blocks": [_tags("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", XML_INVOKE)]},
    "seed_oss": {
        "blocks": [_tags("seed_oss", "<seed:tool_call>", "</seed:tool_call>", QWEN)],
        "thinking": (_SEED_THINK,),
    },
    "hunyuan": {
        "blocks": [
            _tags("hunyuan", "<tool_calls>", "</tool_calls>", hunyuan_style(""), re.compile(r"\s*<tool_call>")),
            Block("hunyuan", "<tool_calls>", "</tool_calls>", _read_objects, re.compile(r"\s*\{")),
            _block("hunyuan", "<tool_calls>", "</tool_calls>", read_json_list),
            _tags("hunyuan", "<tool_calls:opensource>", "</tool_calls:opensource>", hunyuan_style(":opensource")),
        ],
        "thinking": (THINK, _HUNYUAN_THINK),
    },
    "olmo3": {"blocks": [_block("olmo3", "<function_calls>", "</function_calls>", read_call_lines)]},
    "granite": {
        "blocks": [
            Block("granite", "<|tool_call|>", None, partial(read_json_list, closing="<|/tool_call|>", may_be_open=True))
        ],
        "spoken": True,
        "frame": RESPONSE,
    },
    "phi4": {"untagged": (_WHOLE_PHI,)},
    "nemotron": {"blocks": [_block("nemotron", "<TOOLCALL>", "</TOOLCALL>", read_json_list)]},
    "apertus": {"blocks": [_block("apertus", "<|tools_prefix|>", "<|tools_suffix|>", read_named_objects)]},
    "longcat": {
        "blocks": [_block("longcat", "<longcat_tool_call>", "</longcat_tool_call>", read_sole_json)],
        "thinking": (_LONGCAT_THINK,),
    },
    "internlm2": {
        "blocks": [_block("internlm2", "<|action_start|>", "<|action_end|>", read_after, prefix="<|plugin|>")]
    },
    "gigachat3": {"blocks": [Block("gigachat3", "<|function_call|>", None, read_json_objects)]},
    "minicpm5": {"blocks": [Block("minicpm5", _MINICPM, "</function>", _read_minicpm)]},
}
_OPENINGS = {block.opening: name for name, elements in _ELEMENTS.items() for block in elements.get("blocks", ())}
_UNREAD = {
    "<steptml:invoke": "Step 3",
    "<]minimax[>[<tool_call>": "MiniMax M3",
    "<|tool_call:begin|>": "Solar",
    "<function=": "Functionary and Llama's own functions",
}
"""The beginnings of calls in formats that no parser here reads -> who writes them."""


def _grammar(name: str) -> ReplyGrammar:
    """Return a family's grammar; other families' calls are problems, not words."""
    own = {block.opening for block in _ELEMENTS[name].get("blocks", ())}
    others = {opening: other for opening, other in _OPENINGS.items() if opening not in own}
    return ReplyGrammar(**_ELEMENTS[name], unread=others | _UNREAD)


_GRAMMARS = {name: _grammar(name) for name in _ELEMENTS}
_AUTO = ReplyGrammar(
    [
        *_TOOL_CALL,
        _PYTHON_TAG_JSON,
        _PYTHON_TAG,
        _LLAMA_4_JSON,
        *(
            block
            for name, elements in _ELEMENTS.items()
            if not name.startswith("llama3_")
            for block in elements.get("blocks", ())
            if block not in _TOOL_CALL
        ),
    ],
    thinking=(
        THINK,
        _MISTRAL_THINK,
        _COHERE_THINK,
        _GEMMA_THINK,
        _SEED_THINK,
        _KIMI_THINK,
        _LONGCAT_THINK,
        _HUNYUAN_THINK,
    ),
    untagged=(_WHOLE_JSON, _WHOLE_LIST, _WHOLE_PHI),
    wrappers=_COHERE_RESPONSE | _KIMI_RESPONSE,
    strays={"<|channel|>": "harmony", "<|message|>": "harmony"},
    unread=_UNREAD,
    spoken=True,
    frame=RESPONSE,
)
THINKING_TAGS: Mapping[str, str] = MappingProxyType({p.opening: p.closing for p in _AUTO.thinking.values()})
"""The closing tag of thinking by the opening one, of all families."""
_IN_MESSAGES = ReplyGrammar(thinking=())


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
        if 0 <= start < end and (start == 0 or not (text[0] in "{[H" or text[0].isspace())):
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


def create_reply_parser(name: str = "auto", *, calls_in_thinking: bool = False) -> Parser:
    """Make a parser of a family's format.

    Args:
        name: "auto", which finds the format, or a key of `FAMILIES`.
        calls_in_thinking: Whether complete calls inside thinking are calls of the reply. `parse_reply` only counts them
            (`QUIRKS`): a model that thinks about a call has not made it.

    Raises:
        InvalidConfigError: If the name is unknown.
    """
    if name not in FAMILIES:
        raise InvalidConfigError(
            f"create_reply_parser: the format {name!r} is unknown; known are {', '.join(FAMILIES)}."
        )
    if not calls_in_thinking:
        return FAMILIES[name]
    messages = name in _MESSAGES
    grammar = copy.copy(_AUTO if name == "auto" else _IN_MESSAGES if messages else _GRAMMARS[name])
    grammar.calls_in_thinking = True
    if name == "auto":
        return lambda text: _read_any(text, grammar).finish()
    return partial(_parse_messages, name, grammar) if messages else partial(parse_tagged, grammar)


def _read_any(text: str, grammar: ReplyGrammar = _AUTO) -> Draft:
    draft = Draft()
    if HEADER.match(text) is not None:
        read_messages(text, draft, grammar)
    else:
        read_tagged(without_end_of_turn(text), grammar, draft)
    return draft


_MESSAGES = {"harmony": "<|channel|>", "muse": "<|message|>"}


def _parse_messages(name: str, grammar: ReplyGrammar, text: str) -> ParsedReply:
    header = HEADER.match(text)
    if header is None or header[1] != _MESSAGES[name]:
        return parse_tagged(grammar, text)
    draft = Draft()
    read_messages(text, draft, grammar)
    return draft.finish()


FAMILIES: Mapping[str, Parser] = MappingProxyType(
    {"auto": parse_reply}
    | {name: partial(parse_tagged, grammar) for name, grammar in _GRAMMARS.items()}
    | {name: partial(_parse_messages, name, _IN_MESSAGES) for name in _MESSAGES}
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


def _literal(value: Any) -> str:
    """Write a JSON value as Python, strings in double quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _format_lfm2(calls: Sequence[ToolCall]) -> str:
    written = [f"{c.name}({', '.join(f'{k}={_literal(v)}' for k, v in c.arguments.items())})" for c in calls]
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def _format_granite(calls: Sequence[ToolCall]) -> str:
    return f"<|tool_call|>[{', '.join(_objects(calls, 'name', 'arguments', 'id'))}]"


def _format_kimi_k2(calls: Sequence[ToolCall]) -> str:
    written = [
        f"<|tool_call_begin|>functions.{call.name}:{index}<|tool_call_argument_begin|>"
        f"{json.dumps(dict(call.arguments), ensure_ascii=False)}<|tool_call_end|>"
        for index, call in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


FORMATTERS: Mapping[str, Callable[[Sequence[ToolCall]], str]] = MappingProxyType(
    {
        "hermes": _format_hermes,
        "llama3_json": _format_llama3_json,
        "mistral": _format_mistral,
        "cohere": _format_cohere,
        "granite": _format_granite,
        "kimi_k2": _format_kimi_k2,
        "lfm2": _format_lfm2,
    }
)
"""Functions that write calls, for templates that have no place for them: `PARSERS[name]` reads them back."""
_KIMI_TOKENS = ("tool_calls_section_begin", "tool_calls_section_end", "tool_call_begin", "tool_call_end")
OWN_TOKENS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "granite": ("<|tool_call|>",),
        "kimi_k2": (*(f"<|{name}|>" for name in _KIMI_TOKENS), "<|tool_call_argument_begin|>"),
        "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    }
)
"""Formats whose models write calls though a template shows none -> their tokens, the one that begins a call first."""
