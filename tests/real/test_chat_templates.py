"""The codec, the parsers and the oracle on the chat templates of about fifty families (`proof/templates.py`).

`make test-real-model` fetches the templates first; elsewhere these tests are skipped without them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from families import LOOK_UP
from hypothesis import given, settings
from hypothesis import strategies as st
from models_table import DOCUMENT, PUBLISHED, published_table
from published_templates import FOLDER, NAMES, ONE_CALL_A_TURN, REFUSED, SERVED, UNREADABLE, codec_of
from transformers import AddedToken, LlamaTokenizerFast

from llm_envs.chat import ChatCodec
from llm_envs.doctor import diagnose
from llm_envs.errors import ModelError
from llm_envs.parsers import format_tool_call
from llm_envs.types import Message

IS_REQUIRED = os.environ.get("LLM_ENVS_REQUIRE_REAL_MODEL") == "1"
WHY = f"{FOLDER} has no templates: python -m proof.templates"
pytestmark = [pytest.mark.real, pytest.mark.skipif(not NAMES and not IS_REQUIRED, reason=WHY)]


@pytest.mark.smoke
def test_the_templates_are_of_more_than_forty_families() -> None:
    assert len(SERVED) >= 95 and {*REFUSED, *UNREADABLE} <= set(NAMES)
    sources = {(FOLDER / f"{name}.jinja").read_text(encoding="utf-8") for name in SERVED}
    assert len(sources) >= 90


@pytest.mark.smoke
def test_the_documented_table_is_what_is_found() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = PUBLISHED
    assert text.partition(begin)[2].partition(end)[0] == published_table(), "run python tests/support/models_table.py"


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


@pytest.mark.parametrize("name", [name for name in SERVED if name not in UNREADABLE])
def test_what_the_doctor_tries_holds(name: str) -> None:
    trials = diagnose(codec_of(name)).trials
    assert len(trials) == 3 and {trial for trial, held in trials.items() if not held} == (
        {"two calls in a turn"} if name in ONE_CALL_A_TURN else set()
    )


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
