# ruff: noqa: E501, RUF001, SIM905 - sentences of a document, the families' own bars, and a list of markers
"""Reads replies by our parsers and by vLLM's, and names the differences. Needs vLLM."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import Any, NamedTuple

from family_replies import TOOLS, Case
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

from llm_envs.parsers import ParsedReply, typed_calls

logging.getLogger("vllm").setLevel(logging.CRITICAL)  # its parsers log each reply that they cannot read
PARSERS: dict[str, tuple[str, str | None]] = {
    "hermes (Qwen3)": ("hermes", "qwen3"),
    "qwen3_coder (Qwen3.5 to 3.8)": ("qwen3_coder", "qwen3"),
    "Nemotron 3": ("qwen3_coder", "nemotron_v3"),
    "Step 3.5": ("step3p5", "step3p5"),
    "GLM 4.5, 4.6": ("glm45", "glm45"),
    "GLM 4.7, 5": ("glm47", "glm47"),
    "Llama 3": ("llama3_json", None),
    "Llama 4": ("llama4_pythonic", None),
    "pythonic (Llama 3.2)": ("pythonic", None),
    "Mistral 3 to 7": ("mistral", None),
    "Mistral 13 (Magistral)": ("mistral", "mistral"),
    "DeepSeek V3, R1": ("deepseek_v3", "deepseek_v3"),
    "DeepSeek V3.1": ("deepseek_v31", "deepseek_v3"),
    "DeepSeek V3.2": ("deepseek_v32", "deepseek_v3"),
    "DeepSeek V4": ("deepseek_v4", "deepseek_v4"),
    "Kimi K2": ("kimi_k2", "kimi_k2"),
    "MiniMax M2": ("minimax_m2", "minimax_m2"),
    "Seed-OSS": ("seed_oss", "seed_oss"),
    "Phi-4-mini": ("phi4_mini_json", None),
    "Granite 3": ("granite", "granite"),
    "Granite 4": ("granite4", None),
    "OLMo 3": ("olmo3", "olmo3"),
    "Hunyuan A13B": ("hunyuan_a13b", "hunyuan_a13b"),
    "Hunyuan 3": ("hy_v3", "hy_v3"),
    "Gemma 4": ("gemma4", "gemma4"),
    "Command A": ("cohere_command3", "cohere_command3"),
    "FunctionGemma": ("functiongemma", None),
    "LFM2": ("lfm2", None),
    "GPT-OSS": ("openai", "openai_gptoss"),
    "Muse Glimmer": ("muse_glimmer", "muse_glimmer"),
    "ERNIE 4.5": ("ernie45", "ernie45"),
    "LongCat": ("longcat", None),
    "Apertus": ("apertus", None),
    "GigaChat 3": ("gigachat3", None),
    "InternLM2": ("internlm", None),
    "Jamba": ("jamba", None),
}
"""vLLM's parsers of calls and of thinking, by family."""
MARKERS = (
    "<think> </think> <tool_call> </tool_call> <|python_tag|> [TOOL_CALLS] [THINK] [/THINK] <|tool_call|> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|> "
    "<|tool_call_argument_begin|> <minimax:tool_call> </minimax:tool_call> <seed:think> </seed:think> "
    "<seed:tool_call> </seed:tool_call> <tool_calls> </tool_calls> <tool_sep> <arg_key> </arg_key> <arg_value> "
    '</arg_value> <|channel> <channel|> <|tool_call> <tool_call|> <|"|> <start_function_call> <end_function_call> '
    "<|tool_call_start|> <|tool_call_end|> <|start|> <|message|> <|eom|> <|eot|> <|tools_prefix|> <|tools_suffix|> "
    "<|action_start|> <|action_end|> <|plugin|>"
).split()
"""Special tokens that vLLM's parsers look up."""

PIECES = ("Ġ</", "</", "think")
"""Pieces of words that OLMo 3's parser looks up."""


class Reading(NamedTuple):
    """The parts that a parser reads in a reply; texts without differences of white space."""

    calls: tuple[tuple[str, str], ...]
    """Names, and arguments as JSON in one spelling."""
    thinking: str
    content: str


@cache
def _tokenizer(*extra: str) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *PIECES]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_tokens([AddedToken(text, special=True, normalized=False) for text in (*MARKERS, *extra)])
    return fast


@cache
def _harmony() -> Any:
    import openai_harmony

    return openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


REQUEST = ChatCompletionRequest(model="any", messages=[{"role": "user", "content": "Go."}], tools=TOOLS)


def theirs(name: str, case: Case, reply: str) -> Reading:
    """Read a reply by vLLM's parsers, as its server does."""
    is_harmony = name == "GPT-OSS"
    calls, thinking = PARSERS[name]
    parser_type = ParserManager.get_parser(calls, thinking, enable_auto_tools=True, is_harmony=is_harmony)
    assert parser_type is not None
    thinks = case.thinking is not None
    settings = {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": "high" if thinks else "no_think"}
    tokenizer = _tokenizer("[ARGS]") if name.startswith("Mistral 13") else _tokenizer()
    parser = parser_type(tokenizer, REQUEST.tools, chat_template_kwargs=settings)
    ids = _harmony().encode(reply, allowed_special="all") if is_harmony else ()
    try:
        thought, content, found = parser.parse(reply, REQUEST, True, ids)
    except Exception as error:  # a parser may raise anything; its server answers with an error
        return Reading((("error", type(error).__name__),), "", "")
    pairs = tuple((call.name, _one_spelling(call.arguments)) for call in found or ())
    return Reading(pairs, _squeeze(thought), _squeeze(content))


def ours(parsed: ParsedReply) -> Reading:
    """Return what our parser read, with the arguments that a tool of ours or an agent gets."""
    tools = [tool.model_dump() for tool in REQUEST.tools or ()]
    typed = typed_calls(parsed.tool_calls, tools)
    calls = tuple((call.name, _one_spelling(json.dumps(dict(call.arguments)))) for call in typed)
    return Reading(calls, _squeeze(parsed.thinking), _squeeze(parsed.content))


def written(case: Case) -> Reading:
    """Return what the reply was written from."""
    calls = tuple((call.name, _one_spelling(json.dumps(call.arguments))) for call in case.calls)
    return Reading(calls, _squeeze(case.thinking), _squeeze(f"{case.content}\n{case.after}"))


def _squeeze(text: str | None) -> str:
    return " ".join((text or "").split())


def _one_spelling(arguments: str) -> str:
    try:
        return json.dumps(_numbers(json.loads(arguments, strict=False)), sort_keys=True)
    except ValueError:
        return f"not JSON: {arguments}"


def _numbers(value: Any) -> Any:
    """Return the value with 2.0 as 2: JSON has one type of numbers."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


CLASSES = {
    "call in thinking": "vLLM runs a call that the model wrote inside its thinking, and drops the rest of the reply. Ours is "
    "right: the thought continues after it.",
    "unclosed thinking": "The model calls without closing its thinking. vLLM ends the thinking there and runs the call, or takes "
    "all for thinking. Ours reports the tag as not closed; if the opening tag is in the prompt, it runs the call, and the "
    "thought is content. Both are defensible: vLLM serves, ours does not reward a broken form.",
    "own marker": "A quoted marker of the format ends vLLM's call: its arguments are cut, or it finds no call. Ours is right: "
    "it reads the JSON, the string or the tag's own line to its end.",
    "cut call": "vLLM runs the calls before the cut, and many parsers also the cut one, with the arguments that are there. Ours "
    "runs only complete calls: the rest of a cut one is unknown.",
    "cut text": "Neither finds a call. The fragment goes to the content or is dropped, and a thought whose opening tag is in the "
    "prompt is content for ours, which does not see the prompt. Ours reports a cut call; vLLM reports nothing.",
    "JSON in a string": "A string without quotes, such as `7` or `null`. Ours gives a parameter that is a string its text, by the "
    "tool's schema, as most of vLLM's parsers do. Those of Muse, FunctionGemma and Step 3.5 change it. Ours is right.",
    "value as text": 'vLLM hands on `null` as `""` (Step 3.5) or `"null"` (Hunyuan 3), and Gemma\'s numbers inside lists as '
    "strings. Ours is right: the value was no string.",
    "argument lost": "vLLM's parser of FunctionGemma knows only strings. Ours is right.",
    "no JSON": "vLLM's parser of Command A hands on empty text for a call without arguments. Ours is right: `{}`.",
    "carriage return": "Step 3.5's parser in vLLM is an XML parser, which turns `\\r\\n` into `\\n`. Ours is right.",
    "text after calls": "vLLM drops text after calls; ours keeps it as content. Neither changes the calls.",
    "text before calls": "vLLM's parser of OLMo 3 drops the text before the calls. Ours is right.",
    "text around calls, ours": "The form has no closing tag (Llama 3, Mistral, Granite 3, Phi-4). vLLM runs the call and drops "
    "the text; ours gives a problem after a call, and content if text precedes a call without a tag. Ours is stricter by rule: "
    "a quoted example would run as well.",
    "text around calls, vLLM": "vLLM reads Llama 4's list only if it is all of the reply. Ours is right: the list has tags.",
    "call missed": "vLLM ends Phi-4's list at the first `]`, so an argument with brackets loses all calls. Ours is right.",
    "thinking missed, vLLM": "vLLM's parser of Hunyuan A13B finds thinking only before `<answer>`. Ours is right.",
    "answer tags": "The family writes its content in `<answer>` tags. vLLM removes them; ours keeps them, "
    "because `<answer>` marks the task's answer here.",
}
"""The classes of differences, in the order of the documented list: who is right, and why."""


def difference(case: Case, mine: Reading, yours: Reading, truth: Reading) -> str | None:
    """Return the class of difference between what ours and vLLM's read, by its name in `CLASSES`, or None."""
    if mine == yours:
        return None
    same_calls, same_thinking = mine.calls == yours.calls, mine.thinking == yours.thinking
    if case.kind == "cut":
        return "cut text" if same_calls else "cut call"
    if case.kind == "unclosed":
        return "unclosed thinking"
    if same_calls and not same_thinking and mine.calls == truth.calls:
        return f"thinking missed, {'vLLM' if mine.thinking == truth.thinking else 'ours'}"
    if case.kind == "in thought" and not (same_calls and same_thinking):
        return "call in thinking"
    if case.kind == "own tag":
        return "own marker"
    if not same_calls and mine.calls and yours.calls and same_thinking:
        return _of_arguments(mine, yours, truth)
    if same_calls:
        return {"after": "text after calls", "prose": "text before calls"}.get(case.kind, "answer tags")
    if case.kind in ("after", "prose"):
        return f"text around calls, {'ours' if yours.calls else 'vLLM'}"
    return "call missed" if mine == truth else f"unknown: {case.kind}"


def _of_arguments(mine: Reading, yours: Reading, truth: Reading) -> str:
    if not [name for name, _ in mine.calls] == [name for name, _ in yours.calls] == [name for name, _ in truth.calls]:
        return "unknown: names"
    if any(arguments.startswith("not JSON") for _, arguments in yours.calls):
        return "no JSON"
    triples = [
        [json.loads(arguments) for _, arguments in trio]
        for trio in zip(mine.calls, yours.calls, truth.calls, strict=True)
    ]
    if any(a.keys() != b.keys() for a, b, _ in triples):
        return "argument lost"
    leaves = [
        leaf for a, b, c in triples for key in a if a[key] != b[key] for leaf in _differing(a[key], b[key], c[key])
    ]
    if all(isinstance(c, str) for _, _, c in leaves):
        return "carriage return" if any("\r" in c for _, _, c in leaves) else "JSON in a string"
    return "value as text"


def _differing(a: Any, b: Any, c: Any) -> list[tuple[Any, Any, Any]]:
    """Return the differing leaves of two values, with what was written."""
    if isinstance(c, dict) and isinstance(a, dict) and isinstance(b, dict):
        return [leaf for key in c for leaf in _differing(a.get(key), b.get(key), c[key])]
    if isinstance(c, list) and isinstance(a, list) and isinstance(b, list):
        return [leaf for trio in zip(a, b, c, strict=False) for leaf in _differing(*trio)]
    return [] if a == b else [(a, b, c)]
