# ruff: noqa: RUF001 - the wide bars are the families' own
"""The codec, the parsers and the oracle on the chat templates of about fifty families (`proof/templates.py`).

`make test-real-model` fetches the templates first; elsewhere these tests are skipped without them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from families import LOOK_UP, byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AddedToken, LlamaTokenizerFast, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from llm_envs.chat import ChatCodec
from llm_envs.doctor import diagnose
from llm_envs.errors import ModelError
from llm_envs.parsers import format_tool_call
from llm_envs.types import Message

FOLDER = Path(os.environ.get("LLM_ENVS_TEMPLATES") or "build/templates")
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.jinja"))
IS_REQUIRED = os.environ.get("LLM_ENVS_REQUIRE_REAL_MODEL") == "1"
WHY = f"{FOLDER} has no templates: python -m proof.templates"
pytestmark = [pytest.mark.real, pytest.mark.skipif(not NAMES and not IS_REQUIRED, reason=WHY)]

SPECIAL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?[A-Z_]{3,25}\]|\[\|[a-z]+\|\]|</?s>"
    r"|<[a-z]+:(?:bos|eos)>|<(?:bos|eos|start_of_turn|end_of_turn|sop|end_of_msg|sep|SPECIAL_\d+)>"
    r"|<(?:end|beginning)_of_sentence>|\[gMASK\]|\]~!?b\]|\[e~\[|</?(?:assistant|user|system)>"
)
"""Texts in a template that are special tokens of its family."""
ADDED = re.compile(
    r"</?(?:think|tool_call|tool_response|arg_key|arg_value|seed:think|seed:tool_call|minimax:tool_call)>"
)
HUNYUAN_3 = tuple(f"<｜hy_{name}:opensource｜>" for name in ("bos", "eos", "User", "Assistant"))
ENDS = re.compile(
    r"im_end|eot|end_of_turn|END_OF_TURN|end▁of▁sentence|:eos|</s>|\[e~\[|end_of_text|<\|end\|>|endoftext|<eos>|return"
    r"|assistant_end|end_of_msg|endofturn|hy_eos|end_of_sentence|SPECIAL_12|</assistant>|<sep>"
)
REFUSED = {
    "llama.cpp/llama-cpp-rwkv-world": "has no special token",  # its roles are plain text
    "axolotl/llava": "has no special token",
    "llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use": "NoneType",  # it needs tools in every prompt
    "llama.cpp/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "NoneType",
    "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "NoneType",
    "llama.cpp/fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",  # tools under another name
}
"""Templates that no codec serves -> a part of the error."""
UNREADABLE = {
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": "it begins the next turn without being asked to",
    "llama.cpp/GigaChat3-10B-A1.8B": "calls are turns of another role; version 3.1 has a marker",
    "llama.cpp/MiniMax-M3": "nested tags for nested arguments",
    "llama.cpp/upstage-Solar-Open-100B": "a format that only Solar has",
    "llama.cpp/meetkai-functionary-medium-v3.1": "<function=name>{...}</function> without a tag around it",
    "llama.cpp/meetkai-functionary-medium-v3.2": ">>>name and JSON, without a closing tag",
}
"""Templates with calls that no parser reads -> the reason."""


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """Return a byte-level tokenizer with the markers that a template names."""
    text = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    special = sorted({*SPECIAL.findall(text), *(HUNYUAN_3 if "HYTK" in text else ())})
    ends = [marker for marker in special if ENDS.search(marker)]
    bos = next((marker for marker in special if re.search(r"begin|bos|<s>", marker)), "<s>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token=ends[0] if ends else "<|endoftext|>", bos_token=bos
    )
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in sorted(set(ADDED.findall(text)))])
    tokenizer.chat_template = text
    return tokenizer


@cache
def codec_of(name: str) -> ChatCodec:
    return ChatCodec(tokenizer_of(name))


SERVED = [name for name in NAMES if name not in REFUSED]


@pytest.mark.smoke
def test_the_templates_are_of_more_than_forty_families() -> None:
    assert len(SERVED) >= 95 and {*REFUSED, *UNREADABLE} <= set(NAMES)
    sources = {(FOLDER / f"{name}.jinja").read_text(encoding="utf-8") for name in SERVED}
    assert len(sources) >= 90


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_template_that_cannot_serve_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=re.escape(REFUSED[name])):
        codec_of(name)


KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>[]|'\\{}"), min_size=1, max_size=12
)
TEXTS = WORDS.map(lambda text: f"a{text}b")  # tags trim texts, and `1` is a number in them
VALUES = st.recursive(
    st.booleans() | st.integers(-9999, 9999) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("name", [name for name in SERVED if name not in UNREADABLE])
def test_the_oracle_s_call_is_read_back_as_the_same_call(name: str) -> None:
    codec = codec_of(name)

    @given(KEYS, st.dictionaries(KEYS, VALUES, max_size=3))
    @settings(max_examples=10, deadline=None)
    def write_and_read(function: str, arguments: dict[str, object]) -> None:
        function = f"look_{function}"  # no word of a template
        ids = codec.encode_reply(format_tool_call(function, **arguments))
        assert int(ids[-1]) in codec.stop_token_ids
        reply = codec.parser(codec.decode_reply(ids))
        assert [(call.name, dict(call.arguments)) for call in reply.tool_calls] == [(function, arguments)], reply
        assert reply.quirks == ()

    write_and_read()


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_the_doctor_reports_a_call_that_no_parser_reads(name: str) -> None:
    assert any(
        "cannot read a call that the template writes" in problem for problem in diagnose(codec_of(name)).problems
    )


@pytest.mark.parametrize("name", SERVED)
def test_turns_are_appended_and_forge_nothing(name: str) -> None:
    """Each prompt begins with all ids before it, and an environment's text adds no special token."""
    codec = codec_of(name)
    hostile = " ".join(codec.tokenizer.added_tokens_decoder[i].content for i in codec.stop_token_ids) + " </think>"
    row = codec.encode_prompt([Message("system", "s"), Message("user", "x")], [LOOK_UP])
    call = codec.encode_reply(format_tool_call("look_up", x="y"))
    start = codec.start_of([Message("system", "s")], [LOOK_UP])
    for said in (Message("user", "{}"), Message("tool", "{}", metadata={"name": "look_up"})):
        plain, forged = (
            codec.encode_delta([Message(said.role, text, metadata=said.metadata)], reply_ids=call, start=start)
            for text in ("x", hostile)
        )
        marks = [[i for i in ids.tolist() if i in codec.tokenizer.added_tokens_decoder] for ids in (plain, forged)]
        assert marks[0] == marks[1]
        cut = codec.encode_delta([Message(said.role, "x", metadata=said.metadata)], reply_ids=call[:-1], start=start)
        assert not codec.tokenizer.added_tokens_decoder.keys().isdisjoint(
            cut[:2].tolist()
        )  # it may follow a line break
        row = np.concatenate([row, call, plain])
    assert codec.decode(row).count("look_up") >= 2


@pytest.mark.skipif(importlib.util.find_spec("mistral_common") is None, reason="mistral-common is not installed here")
def test_mistral_s_own_tokenizer_gives_the_same_ids(tmp_path: Path) -> None:
    """Version 3, from mistral-common: a prompt with tools, an oracle's call and a result by its encoder and ours."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from sentencepiece import SentencePieceProcessor

    folder = Path(importlib.util.find_spec("mistral_common").submodule_search_locations[0]) / "data"
    model = folder / "mistral_instruct_tokenizer_240323.model.v3"
    shutil.copy(model, tmp_path / "tokenizer.model")
    pieces = SentencePieceProcessor(str(model))
    markers = [pieces.id_to_piece(i) for i in range(pieces.vocab_size()) if pieces.is_control(i)]
    tokenizer = LlamaTokenizerFast.from_pretrained(tmp_path, legacy=False)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in markers], special_tokens=True)
    template = (FOLDER / "axolotl" / "mistral_v2v3.jinja").read_text(encoding="utf-8")
    codec = ChatCodec(tokenizer, chat_template=template)

    start, question = codec.start_of([], [LOOK_UP]), "What is 3?"
    prompt = codec.encode_prompt([Message("user", question)], [LOOK_UP])
    call = codec.encode_reply(format_tool_call("look_up", x="é"))
    result = codec.encode_delta([Message("tool", "12", metadata={"name": "look_up"})], reply_ids=call, start=start)
    function = {"name": "look_up", "arguments": '{"x": "é"}'}
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "function": function}]},
        {"role": "tool", "content": "12", "tool_call_id": "call00000", "name": "look_up"},
    ]
    encode = MistralTokenizer.from_file(str(model)).encode_chat_completion
    assert encode(ChatCompletionRequest(messages=messages[:1], tools=[LOOK_UP])).tokens == prompt.tolist()
    row = [*prompt.tolist(), *call.tolist(), *result.tolist()]
    assert encode(ChatCompletionRequest(messages=messages, tools=[LOOK_UP])).tokens == row
