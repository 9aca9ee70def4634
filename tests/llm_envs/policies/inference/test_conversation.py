"""A conversation turn by hand: every part passed in; what stands between two turns; thinking."""

import asyncio
from functools import partial

import numpy as np
import pytest
from device import rounding

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_tool_call, parse_reply
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import generate
from llm_envs.policies.inference.conversation import (
    aconversation_turn,
    conversation_turn,
    create_executor,
    create_policy_generator,
    next_prompt_ids,
)
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.tools import INVALID_ARGUMENTS, UNKNOWN_TOOL, Tool, Toolset, tool
from llm_envs.types import FinishReason, Message, Sampled, SamplingParams, ToolCall, ToolResult

pytestmark = [pytest.mark.transformers, pytest.mark.smoke]
TOKENIZER = tiny_tokenizer()
CODEC = ChatCodec(TOKENIZER)
ASKED = (Message("system", "s"), Message("user", "2+3?"))


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ids_of(text, closed=True):
    ids = TOKENIZER.encode(text, add_special_tokens=False) + [CODEC.end_of_turn_id] * closed
    return np.array(ids, dtype=np.int32)


def says(text, reason=FinishReason.STOP, seen=None):
    """Return a generator that always says the same, and writes down its prompts."""

    def generate_fn(prompt_ids, params):
        if seen is not None:
            seen.append((TOKENIZER.decode(prompt_ids), params))
        ids = ids_of(text, closed=reason is FinishReason.STOP)
        return Sampled(ids, np.full(len(ids), -0.5, np.float32), reason)

    return generate_fn


def asynchronous(generate_fn):
    async def agenerate_fn(prompt_ids, params):
        await asyncio.sleep(0)
        return generate_fn(prompt_ids, params)

    return agenerate_fn


def play(generate_fn, how="plain", messages=ASKED, **settings):
    settings = {"template_fn": CODEC.encode_prompt, "decode_fn": CODEC.decode_reply} | settings
    if how == "plain":
        return conversation_turn(messages, generate_fn, **settings)
    if how == "plain, asynchronous generator":
        return conversation_turn(messages, asynchronous(generate_fn), **settings)
    if how == "in a loop":
        return asyncio.run(aconversation_turn(messages, generate_fn, **settings))
    return asyncio.run(aconversation_turn(messages, asynchronous(generate_fn), **settings))


HOWS = pytest.mark.parametrize(
    "how", ["plain", "plain, asynchronous generator", "in a loop", "in a loop, asynchronous generator"]
)


@HOWS
def test_words_alone(how):
    seen, params = [], SamplingParams(max_new_tokens=9)
    turn = play(says("Five. <answer>5</answer>", seen=seen), how, params=params)
    assert seen == [
        ("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n", params)
    ]
    assert turn.messages == (*ASKED, Message("assistant", "Five. <answer>5</answer>"))
    assert (turn.text, turn.reply.answer, turn.tool_results) == ("Five. <answer>5</answer>", "5", ())
    assert turn.sampled.token_ids.tolist() == ids_of(turn.text).tolist()
    assert TOKENIZER.decode(turn.prompt_ids) == seen[0][0]


@HOWS
def test_several_calls_are_executed_and_answered_in_order(how):
    text = "".join(
        [
            format_tool_call("add", a=2, b=3),
            format_tool_call("subtract", a=2),
            format_tool_call("add", a="x", b=1),
            format_tool_call("add", a=40, b=2),
        ]
    )
    seen = []
    turn = play(says(text, seen=seen), how, tools=[Tool(add)])
    assert '"name": "add"' in seen[0][0]
    assert [(r.output, r.error) for r in turn.tool_results[::3]] == [("5", None), ("42", None)]
    assert [r.error for r in turn.tool_results[1:3]] == [UNKNOWN_TOOL, INVALID_ARGUMENTS]
    assert [m.role for m in turn.messages] == ["system", "user", "assistant", "tool", "tool", "tool", "tool"]
    assert turn.messages[2].content == text
    assert turn.messages[3:] == turn.tool_messages
    assert [(m.content, m.metadata["name"]) for m in turn.tool_messages[::3]] == [("5", "add"), ("42", "add")]


def test_without_tools_a_call_is_one_of_an_unknown_tool():
    turn = play(says(format_tool_call("add", a=2, b=3)))
    assert [(r.success, r.error) for r in turn.tool_results] == [(False, UNKNOWN_TOOL)]
    assert turn.messages[-1].role == "tool"


def test_a_broken_reply_calls_nothing_and_says_why():
    turn = play(says("<tool_call>{oh" + "</answer>"), tools=[Tool(add)])
    assert (turn.reply.tool_calls, turn.tool_results) == ((), ())
    assert turn.reply.problems
    assert turn.messages[-1].role == "assistant"


def test_what_a_limit_cut_counts_and_what_was_aborted_does_not():
    text = format_tool_call("add", a=2, b=3)
    cut = play(says(text, FinishReason.LENGTH), tools=[Tool(add)])
    assert [r.output for r in cut.tool_results] == ["5"]
    aborted = play(says(text, FinishReason.ABORT), tools=[Tool(add)])
    assert (aborted.tool_results, aborted.tool_messages) == ((), ())
    assert len(aborted.reply.tool_calls) == 1


@HOWS
def test_a_full_context_is_a_turn_in_which_nothing_was_said(how):
    model = tiny_model(TOKENIZER, hidden_size=32, max_length=16)
    turn = play(partial(generate, model), how, messages=[Message("user", "x" * 40)], tools=[Tool(add)])
    assert turn.sampled.finish_reason is FinishReason.CONTEXT_FULL
    assert turn.messages == (Message("user", "x" * 40),)
    assert (turn.text, turn.tool_results) == ("", ())


def test_every_part_can_be_another():
    shouted = []

    def executor(calls):
        shouted.extend(calls)
        return [ToolResult(call.name, call.arguments, "done", True) for call in calls]

    def parser(text):
        return parse_reply("")._replace(tool_calls=(ToolCall("shout", {"text": text}, "c1"),))

    schema = {"type": "function", "function": {"name": "shout", "parameters": {}}}
    seen = []
    turn = play(
        says("hey"),
        template_fn=lambda messages, tools: seen.append((messages, tools)) or np.array([5, 6], np.int32),
        decode_fn=lambda ids: f"{len(ids)} tokens",
        tools=[schema, Tool(add)],
        parser=parser,
        executor=executor,
    )
    assert seen == [(ASKED, [schema, Tool(add).schema])]
    assert shouted == [ToolCall("shout", {"text": "4 tokens"}, "c1")]
    assert turn.messages[-2:] == (
        Message("assistant", "4 tokens"),
        Message("tool", "done", tool_call_id="c1", metadata={"name": "shout"}),
    )


@HOWS
def test_an_executor_may_be_asynchronous(how):
    async def executor(calls):
        await asyncio.sleep(0)
        return create_executor([Tool(add)])(calls)

    turn = play(says(format_tool_call("add", a=2, b=3)), how, executor=executor)
    assert [r.output for r in turn.tool_results] == ["5"]


@pytest.mark.parametrize(
    ("executor", "complaint"),
    [
        (lambda calls: [], "0 results for 1 calls"),
        (lambda calls: "5", "returned a value of type str; it must be a list"),
        (lambda calls: None, "returned a value of type NoneType; it must be a list"),
        (lambda calls: [5], "type int for the call of 'add'"),
    ],
)
@HOWS
def test_an_executor_that_returns_something_else_is_told_what_to_return(how, executor, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        play(says(format_tool_call("add", a=2, b=3)), how, executor=executor)


@HOWS
def test_an_executor_may_return_texts(how):
    texts = format_tool_call("add", a=2, b=3) + format_tool_call("add", a=1, b=1)
    turn = play(says(texts), how, executor=lambda calls: [f"{call.arguments['a']} and more" for call in calls])
    assert [(r.name, r.output, r.success) for r in turn.tool_results] == [
        ("add", "2 and more", True),
        ("add", "1 and more", True),
    ]
    assert [m.content for m in turn.tool_messages] == ["2 and more", "1 and more"]


@HOWS
def test_tools_may_be_plain_functions_and_toolsets(how):
    class Counter(Toolset):
        n = 0

        @tool
        def count(self) -> int:
            """Count on."""
            self.n += 1
            return self.n

    seen = []
    text = format_tool_call("add", a=2, b=3) + format_tool_call("count")
    turn = play(says(text, seen=seen), how, tools=[add, Counter()])
    assert '"name": "add"' in seen[0][0] and '"name": "count"' in seen[0][0]
    assert [r.output for r in turn.tool_results] == ["5", "1"]
    assert [r.output for r in create_executor([add])([ToolCall("add", {"a": 1, "b": 1})])] == ["2"]
    with pytest.raises(InvalidConfigError, match="conversation_turn: 'add'"):
        play(says(text), how, tools=["add"])
    with pytest.raises(InvalidConfigError, match=r"tools .*dict"):
        play(says(text), how, tools={"add": add})


def test_an_asynchronous_generator_inside_a_loop_needs_the_asynchronous_turn():
    async def run():
        return play(says("hey"), "plain, asynchronous generator")

    with pytest.raises(InvalidConfigError, match="await aconversation_turn"):
        asyncio.run(run())

    async def run_plain():
        return play(says("hey"))

    assert asyncio.run(run_plain()).text == "hey"
    with pytest.raises(InvalidConfigError, match="messages is empty"):
        play(says("hey"), messages=())


def test_in_the_next_prompt_stands_what_was_sampled():
    """Two tokens that the tokenizer itself would write as one."""
    tokenizer = tiny_tokenizer(["aaaa aaaa aaaa"] * 9)
    codec = ChatCodec(tokenizer)
    (one,) = tokenizer.encode("aa", add_special_tokens=False)
    half = tokenizer.encode("a", add_special_tokens=False)
    assert one not in half * 2

    def generate_fn(prompt_ids, params):
        return Sampled(np.array(half * 2, np.int32), np.zeros(2, np.float32), FinishReason.LENGTH)

    settings = {"template_fn": codec.encode_prompt, "decode_fn": codec.decode_reply}
    turn = conversation_turn(ASKED, generate_fn, **settings)
    assert turn.text == "aa"
    prompt = next_prompt_ids(turn, [Message("user", "and?")], codec=codec)
    n = len(turn.prompt_ids)
    assert prompt[:n].tolist() == turn.prompt_ids.tolist()
    assert prompt[n : n + 2].tolist() == half * 2
    assert tokenizer.decode(prompt[n + 2 :]) == "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    seen = []
    again = conversation_turn(
        (*turn.messages, Message("user", "and?")),
        lambda ids, params: seen.append(ids.tolist()) or generate_fn(ids, params),
        prompt_ids=prompt,
        **settings,
    )
    assert seen == [prompt.tolist()]
    assert [m.role for m in again.messages] == ["system", "user", "assistant", "user", "assistant"]
    with pytest.raises(InvalidConfigError, match="messages is empty"):
        next_prompt_ids(turn, codec=codec)


def test_the_next_prompt_has_the_answers_of_the_tools_and_is_the_templates_own_text():
    turn = play(says(format_tool_call("add", a=2, b=3)), tools=[Tool(add)])
    prompt = next_prompt_ids(turn, codec=CODEC)
    assert TOKENIZER.decode(prompt) == TOKENIZER.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in turn.messages],
        tools=[Tool(add).schema],
        add_generation_prompt=True,
        tokenize=False,
    )


@pytest.mark.parametrize("how", ["plain", "in a loop"])
def test_a_policy_and_its_model_say_the_same(how):
    model = tiny_model(TOKENIZER, hidden_size=32, max_length=64)
    params = SamplingParams(max_new_tokens=6, seed=3)
    policy = TransformersPolicy(model, TOKENIZER)
    by_policy = play(create_policy_generator(policy), how, params=params)
    by_model = play(partial(generate, model, stop_token_ids=CODEC.stop_token_ids), how, params=params)
    assert by_policy.sampled.token_ids.tolist() == by_model.sampled.token_ids.tolist()
    assert np.abs(by_policy.sampled.logps - by_model.sampled.logps).max() < rounding(1e-6)
    full = play(create_policy_generator(policy), how, messages=[Message("user", "x" * 80)])
    assert full.sampled.finish_reason is FinishReason.CONTEXT_FULL


def test_the_templates_settings_reach_it():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "assistant\\n' }}\n{%- endif %}",
        "assistant\\n' + ('<think></think>' if enable_thinking is false else '') + (effort or '') }}\n{%- endif %}",
    )

    def written(**settings):
        prompt = tokenizer.decode(ChatCodec(tokenizer, **settings).encode_prompt(ASKED))
        return prompt.rpartition("assistant\n")[2]

    assert written() == ""
    assert written(thinking=False) == "<think></think>"
    assert written(template_kwargs={"effort": "high"}) == "high"
