# ruff: noqa: E501, RUF001 - the wide bars are DeepSeek's own
"""Replies in the families' own forms, written from their published templates, and generated cases of them.

Nothing here uses `llm_envs.parsers`: `tests/support/reply_judges.py` reads the replies by our parsers and by vLLM's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

TYPES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "options": {"type": "object"},
    "note": {"type": ["string", "null"]},
}
"""Parameters of the tools, with their schemas."""
NAMES = ("look_up", "run_code", "save")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": TYPES if name in NAMES else {}},
        },
    }
    for name in (*NAMES, "get_time")
]


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Case(NamedTuple):
    """The parts of a reply, and what is special about them."""

    kind: str
    """One of `KINDS`."""
    thinking: str | None
    content: str
    """Text before the calls."""
    calls: tuple[Call, ...]
    after: str
    """Text after the calls."""
    traits: frozenset[str]
    """Kinds of strings in the arguments, by the names in `STRINGS`."""


class Family(NamedTuple):
    calls: Callable[[Sequence[Call]], str]
    """Writes the calls."""
    think: tuple[str, str] | None = None
    """Text around thinking; the first is empty if the prompt ends with the opening tag."""
    gap: str = ""
    """Between content and calls."""
    always_thinks: bool = False
    max_calls: int = 4
    own_tag: str = ""
    """A marker of the form that a quoted text may contain."""
    answer: tuple[str, str] = ("", "")
    """Text around the content of a reply without calls."""
    write: Callable[[Case], str] | None = None
    """Writes a reply that is made of messages."""


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    """Write a value without quotes around a string, as tag formats do."""
    return value if isinstance(value, str) else _json(value)


def _objects(calls: Sequence[Call], name: str = "name", arguments: str = "arguments") -> list[str]:
    return [_json({name: call.name, arguments: call.arguments}) for call in calls]


def _listed(opening: str, closing: str, arguments: str = "arguments") -> Callable[[Sequence[Call]], str]:
    return lambda calls: f"{opening}[{', '.join(_objects(calls, arguments=arguments))}]{closing}"


def _tagged(opening: str, closing: str, between: str = "\n") -> Callable[[Sequence[Call]], str]:
    return lambda calls: between.join(f"{opening}\n{block}\n{closing}" for block in _objects(calls))


def _functions(opening: str, closing: str) -> Callable[[Sequence[Call]], str]:
    """Write Qwen3-Coder's functions, each in a block."""

    def write(calls: Sequence[Call]) -> str:
        blocks = []
        for call in calls:
            parameters = [
                f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in call.arguments.items()
            ]
            blocks.append(f"{opening}\n<function={call.name}>\n{''.join(parameters)}</function>\n{closing}")
        return "\n".join(blocks)

    return write


def _glm(line: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        blocks = []
        for call in calls:
            pairs = [
                f"<arg_key>{key}</arg_key>{line}<arg_value>{_plain(value)}</arg_value>{line}"
                for key, value in call.arguments.items()
            ]
            blocks.append(f"<tool_call>{call.name}{line}{''.join(pairs)}</tool_call>")
        return "\n".join(blocks)

    return write


def _hy_v3(calls: Sequence[Call]) -> str:
    blocks = []
    for call in calls:
        pairs = [
            f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        ]
        blocks.append(f"<tool_call>{call.name}<tool_sep>\n{''.join(pairs)}</tool_call>\n")
    return f"<tool_calls>\n{''.join(blocks)}</tool_calls>"


def _invokes(opening: str, closing: str, prefix: str = "", *, typed: bool = False) -> Callable[[Sequence[Call]], str]:
    """Write `<invoke name="f"><parameter name="a">1</parameter></invoke>`; `typed` marks which values are strings."""

    def parameter(key: str, value: object) -> str:
        kind = f' string="{_json(isinstance(value, str))}"' if typed else ""
        return f'<{prefix}parameter name="{key}"{kind}>{_plain(value)}</{prefix}parameter>\n'

    def write(calls: Sequence[Call]) -> str:
        blocks = [
            f'<{prefix}invoke name="{call.name}">\n'
            f"{''.join(parameter(key, value) for key, value in call.arguments.items())}</{prefix}invoke>\n"
            for call in calls
        ]
        return f"{opening}\n{''.join(blocks)}{closing}"

    return write


def _python(call: Call, write: Callable[[object], str]) -> str:
    return f"{call.name}({', '.join(f'{key}={write(value)}' for key, value in call.arguments.items())})"


def _python_list(opening: str, closing: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: f"{opening}[{', '.join(_python(call, repr) for call in calls)}]{closing}"


def _olmo3(calls: Sequence[Call]) -> str:
    lines = "\n".join(_python(call, _json) for call in calls)
    return f"<function_calls>\n{lines}\n</function_calls>"


def _mistral(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{_json(call.arguments)}" for call in calls)


def _deepseek(head: str, end: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        blocks = [
            f"<｜tool▁call▁begin｜>{head.format(call.name)}{_json(call.arguments)}{end}<｜tool▁call▁end｜>"
            for call in calls
        ]
        return f"<｜tool▁calls▁begin｜>{chr(10).join(blocks) if end else ''.join(blocks)}<｜tool▁calls▁end｜>"

    return write


def _kimi_k2(calls: Sequence[Call]) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{call.name}:{index}<|tool_call_argument_begin|>"
        f"{_json(call.arguments)}<|tool_call_end|>"
        for index, call in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(blocks)}<|tool_calls_section_end|>"


def _gemma(opening: str, quote: str, closing: str) -> Callable[[Sequence[Call]], str]:
    def value(data: object) -> str:
        if isinstance(data, str):
            return f"{quote}{data}{quote}"
        if isinstance(data, dict):
            return "{" + ",".join(f"{key}:{value(item)}" for key, item in data.items()) + "}"
        if isinstance(data, list):
            return f"[{','.join(map(value, data))}]"
        return _json(data)

    return lambda calls: "".join(f"{opening}call:{call.name}{value(call.arguments)}{closing}" for call in calls)


def _apertus(calls: Sequence[Call]) -> str:
    return f"<|tools_prefix|>{_json([{call.name: call.arguments} for call in calls])}<|tools_suffix|>"


def _cohere(calls: Sequence[Call]) -> str:
    blocks = [
        _json({"tool_call_id": str(index), "tool_name": call.name, "parameters": call.arguments})
        for index, call in enumerate(calls)
    ]
    return f"<|START_ACTION|>[\n    {f',{chr(10)}    '.join(blocks)}\n]<|END_ACTION|>"


def _gigachat3(calls: Sequence[Call]) -> str:
    return f"<|function_call|>{_objects(calls)[0]}"


def _internlm2(calls: Sequence[Call]) -> str:
    return f"<|action_start|><|plugin|>\n{_objects(calls, arguments='parameters')[0]}<|action_end|>"


def _harmony_calls(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{_json(call.arguments)}<|call|>"
        for call in calls
    )


def _harmony(case: Case) -> str:
    messages = [f"<|channel|>analysis<|message|>{case.thinking}<|end|>"] if case.thinking is not None else []
    channel = "commentary" if case.calls else "final"
    if case.content or not case.calls:
        messages.append(f"<|channel|>{channel}<|message|>{case.content}<|{'end' if case.calls else 'return'}|>")
    if case.calls:
        messages.append(_harmony_calls(case.calls))
    if case.after:
        messages.append(f"<|channel|>final<|message|>{case.after}<|return|>")
    return "<|start|>assistant".join(messages)


_atem = _invokes("<atem:function_calls>", "</atem:function_calls>", "atem:")


def _muse(case: Case) -> str:
    messages = [f" to=self<|message|>{case.thinking}<|eom|>"] if case.thinking is not None else []
    if case.content or not case.calls:
        messages.append(f" to=user<|message|>{case.content}<|{'eom' if case.calls else 'eot'}|>")
    messages += [f" to={call.name}<|message|>{_atem([call])}<|eom|>" for call in case.calls]
    if case.after:
        messages.append(f" to=user<|message|>{case.after}<|eot|>")
    return "<|start|>assistant".join(messages)


_THINK = ("<think>\n", "\n</think>\n\n")
_OPENED = ("", "\n</think>\n\n")
_DSML = "｜DSML｜"
_QWEN = _functions("<tool_call>", "</tool_call>")

FAMILIES: dict[str, Family] = {
    "hermes (Qwen3)": Family(_tagged("<tool_call>", "</tool_call>"), _THINK, "\n", own_tag="</tool_call>"),
    "qwen3_coder (Qwen3.5 to 3.8)": Family(_QWEN, _OPENED, "\n\n", own_tag="</parameter>"),
    "Nemotron 3": Family(_QWEN, _OPENED, "\n", own_tag="</parameter>"),
    "Step 3.5": Family(_QWEN, _OPENED, "\n", always_thinks=True, own_tag="</parameter>"),
    "GLM 4.5, 4.6": Family(_glm("\n"), ("<think>", "</think>\n"), "\n", own_tag="</arg_value>"),
    "GLM 4.7, 5": Family(_glm(""), ("", "</think>"), own_tag="</arg_value>"),
    "Llama 3": Family(lambda calls: "; ".join(_objects(calls, arguments="parameters"))),
    "Llama 4": Family(_python_list("<|python_start|>", "<|python_end|>"), own_tag="<|python_end|>"),
    "pythonic (Llama 3.2)": Family(_python_list("", "")),
    "Mistral 3 to 7": Family(_listed("[TOOL_CALLS] ", ""), own_tag="[TOOL_CALLS]"),
    "Mistral 13 (Magistral)": Family(_mistral, ("[THINK]", "[/THINK]"), own_tag="[TOOL_CALLS]"),
    "DeepSeek V3, R1": Family(
        _deepseek("function<｜tool▁sep｜>{}\n```json\n", "\n```"), _OPENED, own_tag="<｜tool▁call▁end｜>"
    ),
    "DeepSeek V3.1": Family(_deepseek("{}<｜tool▁sep｜>", ""), ("", "</think>"), own_tag="<｜tool▁call▁end｜>"),
    "DeepSeek V3.2": Family(
        _invokes(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML, typed=True),
        ("", "</think>"), "\n\n", own_tag=f"</{_DSML}parameter>",
    ),
    "DeepSeek V4": Family(
        _invokes(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _DSML, typed=True),
        ("", "</think>"), "\n\n", own_tag=f"</{_DSML}parameter>",
    ),
    "Kimi K2": Family(_kimi_k2, ("<think>", "</think>"), own_tag="<|tool_call_end|>"),
    "MiniMax M2": Family(
        _invokes("<minimax:tool_call>", "</minimax:tool_call>"), _OPENED, "\n",
        always_thinks=True, own_tag="</parameter>",
    ),
    "Seed-OSS": Family(
        _functions("<seed:tool_call>", "</seed:tool_call>"), ("<seed:think>", "</seed:think>"), own_tag="</parameter>"
    ),
    "Phi-4-mini": Family(_listed("functools", "")),
    "Granite 3": Family(
        _listed("<|tool_call|>", ""), ("Here is my thought process:", "Here is my response:"), own_tag="<|tool_call|>"
    ),
    "Granite 4": Family(_tagged("<tool_call>", "</tool_call>"), own_tag="</tool_call>"),
    "OLMo 3": Family(_olmo3, _THINK, own_tag="</function_calls>"),
    "Hunyuan A13B": Family(
        _listed("<tool_calls>", "</tool_calls>"), ("<think>\n", "\n</think>\n"),
        own_tag="</tool_calls>", answer=("<answer>\n", "\n</answer>"),
    ),
    "Hunyuan 3": Family(_hy_v3, ("<think>", "</think>"), own_tag="</arg_value>"),
    "Gemma 4": Family(
        _gemma("<|tool_call>", '<|"|>', "<tool_call|>"), ("<|channel>thought\n", "\n<channel|>"), own_tag="<tool_call|>"
    ),
    "Command A": Family(
        _cohere, ("<|START_THINKING|>", "<|END_THINKING|>"), own_tag="<|END_ACTION|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "FunctionGemma": Family(
        _gemma("<start_function_call>", "<escape>", "<end_function_call>"), own_tag="<end_function_call>"
    ),
    "LFM2": Family(_python_list("<|tool_call_start|>", "<|tool_call_end|>"), own_tag="<|tool_call_end|>"),
    "GPT-OSS": Family(_harmony_calls, ("", ""), write=_harmony),
    "Muse Glimmer": Family(_atem, ("", ""), write=_muse, own_tag="</atem:parameter>"),
    "ERNIE 4.5": Family(
        _tagged("<tool_call>", "</tool_call>"), ("", "\n</think>\n\n\n"), always_thinks=True, own_tag="</tool_call>",
        answer=("<response>\n", "\n</response>\n"),
    ),
    "LongCat": Family(_tagged("<longcat_tool_call>", "</longcat_tool_call>"), own_tag="</longcat_tool_call>"),
    "Apertus": Family(_apertus, own_tag="<|tools_suffix|>"),
    "GigaChat 3": Family(_gigachat3, max_calls=1),
    "InternLM2": Family(_internlm2, max_calls=1, own_tag="<|action_end|>"),
    "Jamba": Family(_listed("<tool_calls>", "</tool_calls>"), own_tag="</tool_calls>"),
}  # fmt: skip

STRINGS: dict[str, tuple[str, ...]] = {
    "plain": ("Paris", "two words", "a-b_c.d"),
    "unicode": ("Zürich, 東京, 🦜", "naïve – “quoted”", "π ≈ 3.14"),
    "quotes": ("it's", 'say "hi"', "f('a', \"b\")"),
    "backslash": ("C:\\new\\table", "\\d+\\.\\d*", "a\\"),
    "lines": ("def f(x):\n    return x + 1", "one\n\ntwo\n  three", "a\tb\r\nc"),
    "brackets": ("<b>bold</b>", "if a < b > c: x[0] = {1: [2]}", "](){}[", "}]"),
    "reads as JSON": ("7", "true", "null", "-1.50", "[1, 2]", '{"a": 1}', '"x"'),
    "space at an end": (" padded ", "ends with a line\n", "\n  indented", " "),
    "empty": ("",),
}
"""Strings in arguments, by trait."""
PROSE = (
    "I look it up.", "First the weather, then the train.", "Zürich liegt 東京 fern 🦜.", "It's \"fine\", isn't it?",
    "The set {1, 2} has two members.", "See [1] and x < y > z.", "One line.\n\nAnother line.", "A call to save(x=1) helps.",
)  # fmt: skip
KINDS = {
    "answer": 1, "call": 4, "calls": 3, "prose": 3, "after": 1, "in thought": 1, "unclosed": 1, "own tag": 1, "cut": 3,
}  # fmt: skip
"""Kinds of cases, with their weights: "in thought" has its call inside the thinking, "unclosed" lacks the closing tag of
the thinking before the call, and "own tag" quotes a marker of the form in an argument."""


def _text(rng: random.Random, traits: set[str]) -> str:
    trait = rng.choice(list(STRINGS))
    traits.add(trait)
    return rng.choice(STRINGS[trait])


def _value(rng: random.Random, key: str, traits: set[str]) -> object:
    inner = [rng.choice([3, True, None, 0.5, "x", "Zürich", [1, [2]], {"k": "v"}]) for _ in range(rng.randrange(4))]
    values: dict[str, Callable[[], object]] = {
        "text": lambda: _text(rng, traits),
        "count": lambda: rng.choice([0, 7, -12, 10**12]),
        "ratio": lambda: rng.choice([0.5, -2.25, 3, 1e-7, 2.0]),
        "flag": lambda: rng.random() < 0.5,
        "items": lambda: inner,
        "options": lambda: {f"k{index}": item for index, item in enumerate(inner)},
        "note": lambda: None if rng.random() < 0.5 else rng.choice(STRINGS["plain"]),
    }
    return values[key]()


def _call(rng: random.Random, traits: set[str]) -> Call:
    if rng.random() < 0.1:
        return Call("get_time", {})
    keys = [key for key in TYPES if rng.random() < 0.4]
    return Call(rng.choice(NAMES), {key: _value(rng, key, traits) for key in keys})


def _case(rng: random.Random, family: Family) -> Case:
    traits: set[str] = set()
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    if kind in ("in thought", "unclosed") and (family.think is None or family.write is not None):
        kind = "answer"
    if kind == "own tag" and not family.own_tag:
        kind = "call"
    if kind == "calls" and family.max_calls == 1:
        kind = "call"
    thinks = family.think is not None and (
        family.always_thinks or kind in ("in thought", "unclosed") or rng.random() < 0.5
    )
    thinking = rng.choice(PROSE) if thinks else None
    if kind == "answer":
        return Case(kind, thinking, rng.choice(PROSE), (), "", frozenset())
    fewest, most = {"calls": (2, 4), "cut": (1, 3)}.get(kind, (1, 1))
    n_calls = min(rng.randint(fewest, most), family.max_calls)
    calls = tuple(_call(rng, traits) for _ in range(n_calls))
    if kind == "in thought":
        return Case(kind, f"{thinking}\n{family.calls(calls)}\nNo.", rng.choice(PROSE), (), "", frozenset(traits))
    if kind == "own tag":
        calls = (Call("save", {"text": f"print('{family.own_tag}')"}),)
    content = rng.choice(PROSE) if kind == "prose" or (kind == "cut" and rng.random() < 0.5) else ""
    return Case(kind, thinking, content, calls, rng.choice(PROSE) if kind == "after" else "", frozenset(traits))


def write_reply(family: Family, case: Case) -> str:
    """Write the reply, without the token that ends the turn (except in GPT-OSS's and Muse's messages)."""
    if family.write is not None:
        return family.write(case)
    thought = ""
    if case.thinking is not None and family.think is not None:
        thought = case.thinking.join(family.think)
    if not case.calls:
        return thought + case.content.join(family.answer)
    if case.kind == "unclosed" and family.think is not None:
        thought = f"{family.think[0]}{case.thinking}\n"
    gap = family.gap if case.content else ""
    return thought + case.content + gap + family.calls(case.calls) + ("\n" if case.after else "") + case.after


def generate_replies(name: str, n: int, seed: int = 0) -> Iterator[tuple[Case, str]]:
    """Yield `n` cases of a family, each with its reply."""
    rng = random.Random(f"{name} {seed}")
    family = FAMILIES[name]
    for _ in range(n):
        case = _case(rng, family)
        reply = write_reply(family, case)
        yield case, reply[: rng.randrange(1, len(reply))] if case.kind == "cut" else reply
