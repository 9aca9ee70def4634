"""Parsing through transformers gives what our own parsers give, and stays strict where transformers is lenient."""

from __future__ import annotations

import time

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import PARSERS, ParsedReply, create_response_parser, parse_reply
from llm_envs.types import ToolCall

pytest.importorskip("transformers")
pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
templates = pytest.importorskip("trl.chat_template_utils")

from llm_envs.tiny_model import tiny_tokenizer  # noqa: E402 (needs transformers)

TEMPLATES = {
    "hermes": templates.qwen3_template,
    "qwen3_coder": templates.qwen3_5_template,
    "glm": templates.glm4moe_template,
    "harmony": templates.gptoss_template,
    "gemma4": templates.gemma4_template,
    "lfm2": templates.lfm2_2_5_template,
}
REPLIES = {
    "hermes": [
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": '
        '{"x": [1]}}\n</tool_call><|im_end|>',
        "<think>\nhm\n</think>\n\nIt is <answer>42</answer>.<|im_end|>",
    ],
    "qwen3_coder": [
        "<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=city>\nParis\n</parameter>\n<parameter=text>\na\nb\n"
        "</parameter>\n</function>\n</tool_call><|im_end|>",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
    ],
    "glm": [
        "<think>hm</think>\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key>\n<arg_value>y</arg_value>\n"
        "</tool_call>\n<tool_call>g\n</tool_call>",
        "<think></think>\n<answer>42</answer>",
    ],
    "harmony": [
        "<|channel|>analysis<|message|>6*7<|end|><|start|>assistant<|channel|>final<|message|>"
        "<answer>42</answer><|return|>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
        '{"city": "Paris", "days": 3}<|call|>',
    ],
    "gemma4": [
        '<|channel>thought\nhm\n<channel|><|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|><turn|>',
        "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{x:[1,true]}<tool_call|>",
        "<|channel>thought\n6*7\n<channel|><answer>42</answer><turn|>",
    ],
    "lfm2": [
        "<think>hm</think><|tool_call_start|>[f(city='Paris', days=3), g()]<|tool_call_end|><|im_end|>",
    ],
}
CASES = [pytest.param(name, text, id=f"{name}-{index}") for name in REPLIES for index, text in enumerate(REPLIES[name])]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def parser_of(tokenizer, name, **options):
    tokenizer.response_template = TEMPLATES[name]
    return create_response_parser(tokenizer, **options)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_both_ways_agree(tokenizer, name, text):
    through_transformers = parser_of(tokenizer, name)(text)
    ours = PARSERS[name](text)
    assert through_transformers.problems == ours.problems == ()
    assert (
        through_transformers._replace(thinking=None)
        == ours._replace(thinking=None)
        == parse_reply(text)._replace(thinking=None)
    )
    assert (through_transformers.thinking or "") == (ours.thinking or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}'),
        ("hermes", "<think>hm<answer>1</answer>"),
        ("hermes", "<answer>1</answer><answer>2</answer>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": []}</tool_call>'),
        ("hermes", "<tool_call>{'name': 'f'}</tool_call>"),
        ("hermes", '<think><tool_call>{"name": "f"}</tool_call></think>'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</function></tool_call>"),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</tool_call>"),
        ("harmony", "<|channel|>analysis<|message|>hm"),
        ("gemma4", "<|tool_call>call:f{a:1"),
        ("lfm2", "<|tool_call_start|>[f(a=1)"),
    ],
)
def test_what_is_broken_stays_broken(tokenizer, name, text):
    reply = parser_of(tokenizer, name)(text)
    assert reply.problems
    assert reply.tool_calls == ()
    assert reply.answer is None
    assert all(problem.isascii() and problem.isprintable() for problem in reply.problems)


def test_the_prompt_may_hold_the_start_of_the_reply(tokenizer):
    parse = parser_of(tokenizer, "hermes", prefix="<|im_start|>assistant\n<think>\n")
    assert parse("hm\n</think>\n\n<answer>1</answer>") == ParsedReply("hm", "<answer>1</answer>", (), "1", ())


def test_the_tools_give_arguments_in_tags_their_types(tokenizer):
    schema = {"type": "object", "properties": {"zip": {"type": "string"}, "days": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}]
    text = "<tool_call>\n<function=f>\n<parameter=zip>\n75001\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    reply = parser_of(tokenizer, "qwen3_coder", tools=tools)(text + "</function>\n</tool_call>")
    assert reply.tool_calls == (ToolCall("f", {"zip": "75001", "days": 3}),)


def test_whatever_transformers_raises_is_a_problem():
    class Raising:
        response_template = {"fields": 1}

        def parse_response(self, text, **options):
            raise KeyError(text)

    reply = create_response_parser(Raising())("x")
    assert reply == ParsedReply(None, "x", (), None, ("the tokenizer's response template cannot read it: KeyError",))


def test_a_schema_of_old_is_used_without_a_prefix():
    class Old:
        response_schema = {"type": "object"}

        def parse_response(self, text):
            return {"content": text, "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}

    assert create_response_parser(Old())("x") == ParsedReply(None, "x", (ToolCall("f", {"x": 1}),), None, ())


def test_a_processor_lends_its_tokenizer(tokenizer):
    class Processor:
        pass

    processor = Processor()
    processor.tokenizer = tokenizer
    tokenizer.response_template = TEMPLATES["hermes"]
    assert create_response_parser(processor)("<answer>1</answer>").answer == "1"


def test_a_tokenizer_without_either_is_refused():
    with pytest.raises(InvalidConfigError, match="has no response_template"):
        create_response_parser(object())


@pytest.mark.parametrize("unit", ["<tool_call>", '<tool_call>{"name": "f"}</tool_call>', "<think></think>", "{", "a "])
def test_a_long_reply_does_not_take_long(tokenizer, unit):
    parse = parser_of(tokenizer, "hermes")
    started = time.thread_time()
    parse(unit * (20_000 // len(unit)))
    assert parse("x" * 100_001).problems == ("it has 100001 characters, over 100000",)
    assert time.thread_time() - started < 2
