r"""Parses an assistant's reply: thinking, content, tool calls, final answer.

`parse_reply` takes any string in linear time and never raises. It finds the format by its markers. `PARSERS` has a
parser for each format, and for the ambiguous forms, which are never guessed: ReAct, generic XML tags, fenced code,
`\boxed{}`, the last number. `create_response_parser` uses transformers.

All parsers are strict: if anything in a reply is broken, they list the problems and return neither tool calls nor an
answer, so a broken form never earns a reward (`format_reward` gives 0). There are two exceptions. If some calls are
broken, the sound ones are kept. Departures that models are known for, and that leave no doubt about the call, are read
and counted as `ParsedReply.quirks`; `QUIRKS` lists them. The rules:

| form | result |
|---|---|
| `<think>...</think>`, anywhere, or the family's own tags | thinking; several are joined by line breaks |
| `Here is my thought process: ... Here is my response:` at the beginning (Granite 3) | thinking |
| `<response>...</response>` around all content behind thinking (ERNIE, Granite 3.3) | the tags are dropped |
| `...</think>` before any `<think>` | thinking whose opening tag is in the prompt |
| `<think>` inside `<think>`, or without `</think>` | a problem; in the latter case the rest is thinking |
| a complete call inside thinking | thinking, a quirk; a problem if the reply has nothing else |
| an answer inside thinking | thinking; it does not count as an answer |
| a call in the format's form; several are several calls, in order | calls, taken out of the content |
| text before, between or after calls in tags | content |
| text after calls that have no closing tag (Mistral, Llama 3) | a problem |
| text before calls without tags (Llama 3, Phi-4, pythonic) | all of it is content: it may quote a call |
| markers of two formats in one reply | a problem |
| a call without its closing tag, cut short, or with other text in its tags | a problem; a quirk if others are sound |
| a closing tag without its opening one, which includes tags that cross | a problem |
| a call that is not a JSON object, has no name, or arguments that are not an object | a problem |
| a list or several objects where one is expected; arguments as a JSON text, null or "" | a quirk |
| a trailing comma, a raw line break or tab in a JSON string | a quirk |
| a closing tag of a parameter inside its value (code that quotes it) | part of the value |
| `{"name": "f"}`, without arguments | a call with `{}` |
| a key or an argument twice in one object or call | a problem |
| a call with NaN, Infinity, 1e999, over 4,300 digits in a row, or nested more than 32 deep | a problem |
| `<answer>...</answer>` | the answer, stripped; it stays in the content |
| two different answers | a problem; the same answer twice is one answer, three times a problem |
| `<answer>` again before `</answer>`, or an empty or dotted `<answer>...</answer>` beside an answer | a mention |
| only empty answers, or a tag of the formats inside `<answer>` (`<think>`, `<tool_call>`, ...) | a problem |
| any other tag inside `<answer>` (`<b>`, `</div>`) | the answer's own text |
| an answer beside calls | both are kept; a `ToolEnv` runs the calls and does not take the answer |
| one end-of-turn marker at the very end (`<|im_end|>`, `</s>`, ...) | dropped |

The formats that `parse_reply` recognizes, by their names in `PARSERS`:

| name | calls |
|---|---|
| hermes | `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>` (Hermes, Qwen 2.5 and 3) |
| qwen3_coder | `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>` (Qwen3.5, Nemotron 3) |
| seed_oss | the same in `<seed:tool_call>`; `<seed:think>` |
| glm | `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>` (GLM 4.5 to 5, Ling 3) |
| llama3_json | the whole reply is `{"name": "f", "parameters": {"a": 1}}`, or several separated by `;` |
| llama3_python | `<|python_tag|>f.call(a="1")` |
| pythonic | the whole reply is `[f(a=1), g(b='x')]`, or is between `<|python_start|>` and `<|python_end|>` |
| mistral | `[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]` or `[TOOL_CALLS]f[ARGS]{"a": 1}`; `[THINK]` |
| deepseek | `<｜tool▁calls▁begin｜>...`, of V3 to V3.1; `<｜DSML｜function_calls>` of V3.2, `tool_calls` of V4 |
| harmony | GPT-OSS: `<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>`, analysis, final |
| muse | Muse Glimmer: ` to=f<|message|><atem:function_calls>...`, `to=self`, `to=user` |
| cohere | `<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>`; `<|START_THINKING|>` |
| lfm2 | `<|tool_call_start|>[f(a=1)]<|tool_call_end|>` |
| gemma4 | `<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>`; `<|channel>thought` |
| functiongemma | `<start_function_call>call:f{b:<escape>x<escape>}<end_function_call>` |
| kimi_k2 | `<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}...` |
| kimi_k3 | `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>...`, think, response |
| minimax_m2 | `<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke></minimax:tool_call>` |
| hunyuan | `<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>`; version 3: `f<tool_sep>`, keys as GLM |
| olmo3 | `<function_calls>f(a=1)</function_calls>`, a call a line |
| granite | `<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]` (3; version 4 is hermes) |
| phi4 | the reply is `functools[{"name": "f", "arguments": {"a": 1}}]` |
| nemotron | `<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>` (Nano 2) |
| apertus | `<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>` |
| longcat | `<longcat_tool_call>{"name": "f", "arguments": {"a": 1}}</longcat_tool_call>`; `<longcat_think>` |
| internlm2 | `<|action_start|><|plugin|>{"name": "f", "parameters": {"a": 1}}<|action_end|>` |
| gigachat3 | `<|function_call|>{"name": "f", "arguments": {"a": 1}}` |
| minicpm5 | `<function name="f"><param name="a">1</param></function>` |

JSON calls have "arguments" or "parameters" (both is a problem); other keys are ignored. In formats that write strings
without quotes (qwen3_coder, glm, muse, ...), every value of JSON or Python except a string is decoded, and a tool whose
parameter is a string gets the text as it was written (`TagArguments`). If a reply consists of several
messages, their contents are joined by line breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llm_envs.parsers.answers import create_answer_parser, extract_boxed, last_number, parse_boxed
from llm_envs.parsers.fenced import Fenced, create_fenced_parser, fenced_blocks
from llm_envs.parsers.formats import (
    FAMILIES,
    FORMATTERS,
    OWN_TOKENS,
    THINKING_TAGS,
    create_reply_parser,
    detect_format,
    parse_reply,
)
from llm_envs.parsers.natural import is_doubtful, natural_answers, plain_answer, stated_answers, without_unit
from llm_envs.parsers.react import create_react_parser
from llm_envs.parsers.reply import (
    DROPPED_CALL,
    QUIRKS,
    ParsedReply,
    Parser,
    format_answer,
    format_reward,
    format_tool_call,
)
from llm_envs.parsers.response_template import create_response_parser
from llm_envs.parsers.tag_calls import TagArguments, typed_arguments, typed_calls
from llm_envs.parsers.xml_tags import create_xml_parser, xml_fields

__all__ = [
    "DROPPED_CALL",
    "FORMATTERS",
    "OWN_TOKENS",
    "PARSERS",
    "QUIRKS",
    "THINKING_TAGS",
    "Fenced",
    "ParsedReply",
    "Parser",
    "TagArguments",
    "create_answer_parser",
    "create_fenced_parser",
    "create_react_parser",
    "create_reply_parser",
    "create_response_parser",
    "create_xml_parser",
    "detect_format",
    "extract_boxed",
    "fenced_blocks",
    "format_answer",
    "format_reward",
    "format_tool_call",
    "is_doubtful",
    "last_number",
    "natural_answers",
    "parse_reply",
    "plain_answer",
    "stated_answers",
    "typed_arguments",
    "typed_calls",
    "without_unit",
    "xml_fields",
]

PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        **FAMILIES,
        "react": create_react_parser(),
        "xml": create_xml_parser(),
        "fenced": create_fenced_parser(),
        "boxed": parse_boxed,
        "last_number": create_answer_parser(last_number),
    }
)
"""Parsers by name. Each reads the thinking, calls and answer of its format, and treats the rest as content. "auto" is
`parse_reply`. "last_number" does not evaluate expressions: it reads 4 in "-3/4", and 3 in "1e3"."""
