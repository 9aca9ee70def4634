"""Models that the library `renderers` serves: who serves is decided by config.json, and no text becomes a token."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import LOOK_UP, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from llm_envs.chat import ChatCodec
from llm_envs.chat.renderer import Renderer, renderers_of
from llm_envs.cli.main import main
from llm_envs.doctor import diagnose, show_diagnosis
from llm_envs.errors import InvalidConfigError, MissingExtraError, ModelError
from llm_envs.parsers import parse_reply
from llm_envs.types import Message

pytestmark = pytest.mark.transformers
needs_renderers = pytest.mark.doors("renderers")
TOOLS = [LOOK_UP]
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"x": "é"}}\n</tool_call>'
ASKED = [Message("system", "Be brief."), Message("user", "What is x?")]
INKLING = [
    f"<|{name}|>"
    for name in (
        "message_user", "message_model", "message_system", "message_tool", "content_text", "content_thinking",
        "content_image", "content_audio_input", "content_xml", "content_invoke_tool_json", "content_invoke_tool_text",
        "content_model_end_sampling", "end_message", "audio_end", "unused_200054", "unused_200053", "endoftext",
    )
]  # fmt: skip
MINIMAX = ["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"]
KIMI = [
    f"<|{name}|>"
    for name in (
        "im_user", "im_assistant", "im_system", "im_middle", "im_end", "tool_calls_section_begin",
        "tool_calls_section_end", "tool_call_begin", "tool_call_argument_begin", "tool_call_end",
    )
]  # fmt: skip


def tokenizer_with(markers: list[str], eos: str, template: str | None = None) -> Any:
    tokenizer = copy.deepcopy(family_tokenizer("qwen3"))
    tokenizer.add_tokens([AddedToken(m, special=True, normalized=False) for m in markers], special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = eos, template
    return tokenizer


def saved(tokenizer: Any, folder: Path, model_type: str) -> PreTrainedTokenizerBase:
    """Save a tokenizer and a config.json, and load the tokenizer from there."""
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


def said(codec: ChatCodec, words: str) -> str:
    return codec.decode_words(codec.encode_reply(words))


@needs_renderers
@pytest.mark.smoke
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "qwen3"),
        ("glm4moe", "glm-4.5"),
        ("llama3_1", "llama-3"),
        ("nemotron_3_nano", "nemotron-3"),
    ],
)
def test_a_renderer_and_the_family_s_template_give_the_same_ids(family: str, name: str) -> None:
    jinja, served = (ChatCodec(family_tokenizer(family), renderer=by) for by in ("template", name))
    assert np.array_equal(served.encode_prompt(ASKED, TOOLS), jinja.encode_prompt(ASKED, TOOLS))
    assert served.stop_token_ids == jinja.stop_token_ids
    for words in ("Four.", CALL):
        reply = jinja.encode_reply(words)
        assert np.array_equal(served.encode_reply(words), reply)
        for text in ("", " 12\n\n", '{"value": "é"}'):
            for message in (Message("user", text or "x"), Message("tool", text, metadata={"name": "look_up"})):
                for ids in (reply, reply[:2]):  # the second is cut
                    delta = jinja.encode_delta([message], reply_ids=ids, start=jinja.start_of(ASKED, TOOLS))
                    start = served.start_of(ASKED, TOOLS)
                    assert np.array_equal(served.encode_delta([message], reply_ids=ids, start=start), delta)


@needs_renderers
@pytest.mark.smoke
def test_a_quoted_marker_stays_text() -> None:
    codec = ChatCodec(tokenizer_with(MINIMAX, "[e~["), renderer="minimax-m2")
    quoted = " ".join([*MINIMAX, "<think>", "</think>"])
    reply = codec.encode_reply(CALL)
    for role in ("user", "tool"):
        hostile, plain = (
            codec.encode_delta([Message(role, text, metadata={"name": "look_up"})], reply_ids=reply)
            for text in (quoted, "x")
        )
        markers = codec.tokenizer.added_tokens_decoder
        assert [i for i in hostile.tolist() if i in markers] == [i for i in plain.tolist() if i in markers]
        assert quoted in codec.decode(hostile)


@needs_renderers
def test_a_model_without_a_template_is_served_by_its_config(tmp_path: Path) -> None:
    """MiniMax M2's own forms, written by hand; the second reply was cut, and is closed."""
    codec = ChatCodec(saved(tokenizer_with(MINIMAX, "[e~["), tmp_path, "minimax_m2"))
    assert "minimax-m2" in codec.service.description and "no Jinja template" in codec.service.description
    prompt = codec.decode(codec.encode_prompt([Message("system", "Be brief."), Message("user", "What is x?")]))
    assert prompt == "]~!b[]~b]system\nBe brief.[e~[\n]~b]user\nWhat is x?[e~[\n]~b]ai\n<think>\n"
    call = codec.encode_reply(CALL)
    assert codec.decode(call).endswith(
        '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="x">é</parameter>\n</invoke>\n'
        "</minimax:tool_call>[e~["
    )
    (read,) = codec.parser(codec.decode_reply(call)).tool_calls
    assert (read.name, read.arguments) == ("look_up", {"x": "é"})
    heard = Message("tool", "12", metadata={"name": "look_up"})
    after = "\n]~b]tool\n<response>12</response>[e~[\n]~b]ai\n<think>\n"
    assert codec.decode(codec.encode_delta([heard], reply_ids=call)) == after
    assert codec.decode(codec.encode_delta([heard], reply_ids=call[:3])) == f"[e~[{after}"


TEMPLATE = (
    "{% for m in messages %}<|message_{{ {'assistant': 'model'}.get(m.role, m.role) }}|>"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}<|content_invoke_tool_json|>"
    '{"name": "{{ c.function.name }}", "args": {{ c.function.arguments | tojson }}}{% endfor %}'
    "{% else %}<|content_text|>{{ m.content }}{% endif %}<|end_message|>"
    "{% if m.role == 'assistant' %}<|content_model_end_sampling|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|message_model|>{% endif %}"
)


@needs_renderers
@pytest.mark.smoke
def test_a_renderer_reads_the_calls_that_parse_reply_does_not_know(tmp_path: Path) -> None:
    """The template is the model's own; replies are read to the canonical form."""
    tokenizer = saved(tokenizer_with(INKLING, "<|content_model_end_sampling|>", TEMPLATE), tmp_path, "inkling_mm_model")
    codec = ChatCodec(tokenizer)
    assert (
        codec.service.description.startswith("the model's own template")
        and "inkling reads" in codec.service.description
    )
    call = codec.encode_reply(CALL)
    assert codec.decode_words(call) == 'look_up<|content_invoke_tool_json|>{"name": "look_up", "args": {"x": "é"}}'
    assert codec.decode_reply(call) == CALL
    assert codec.decode_reply(codec.encode_reply("Four.")) == "Four."
    cut = parse_reply(codec.decode_reply(call[:-8]))
    assert cut.problems and not cut.tool_calls
    diagnosis = diagnose(codec)
    assert diagnosis.call_format == "inkling" and not diagnosis.problems
    assert f"served by         {codec.service.description}" in show_diagnosis(diagnosis)
    own = ChatCodec(tokenizer, renderer="template")
    assert own.service.reader is None and not own.parser(own.decode_reply(call)).tool_calls


@needs_renderers
def test_the_doctor_judges_a_renderer_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tokenizer_with(MINIMAX, "[e~["), tmp_path, "llama")
    assert main(["doctor", str(tmp_path)]) == 1
    assert "has no chat template" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path), "--renderer", "minimax-m2"]) in (0, 1)  # the config has other numbers
    out = capsys.readouterr().out
    assert "served by         the renderer minimax-m2, as asked" in out
    assert "two calls in a turn: holds" in out and "<minimax:tool_call>" in out


@needs_renderers
def test_calls_get_ids_where_the_form_names_the_tool_by_them() -> None:
    """Kimi K2: the second call of an oracle's turn is number 1, and each result names its call."""
    codec = ChatCodec(tokenizer_with(KIMI, "<|im_end|>"), renderer="kimi-k2")
    words = said(codec, CALL + "\n" + CALL.replace("é", "y"))
    assert words.count("functions.look_up:0") == words.count("functions.look_up:1") == 1
    ids = [call.id for call in codec.parser(codec.decode_reply(codec.encode_reply(CALL))).tool_calls]
    assert ids == ["functions.look_up:0"]
    heard = Message("tool", "12", tool_call_id="functions.look_up:7", metadata={"name": "look_up"})
    assert "## Return of functions.look_up:7\n12" in codec.decode(
        codec.encode_delta([heard], reply_ids=codec.encode_reply(CALL))
    )


@needs_renderers
def test_any_text_is_read_and_no_call_is_invented() -> None:
    reader = Renderer(tokenizer_with(MINIMAX, "[e~["), "minimax-m2")
    parts = [*MINIMAX, "<think>", "</think>", '<invoke name="f">', "</invoke>", "{", "x", "\n"]

    @settings(max_examples=300)
    @given(st.lists(st.sampled_from(parts)))
    def read(text: list[str]) -> None:
        reply = parse_reply(reader.read("".join(text)))
        if not {"<minimax:tool_call>", '<invoke name="f">', "</invoke>"} <= set(text):
            assert not reply.tool_calls

    read()


@needs_renderers
def test_a_thought_that_was_cut_is_a_problem() -> None:
    reader = Renderer(tokenizer_with(MINIMAX, "[e~["), "minimax-m2")
    assert parse_reply(reader.read("I look", "]~b]ai\n<think>\n")).problems
    done = parse_reply(reader.read("I look\n</think>\n\n12[e~[", "]~b]ai\n<think>\n"))
    assert (done.thinking, done.content, done.problems) == ("I look", "12", ())


@needs_renderers
def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    qwen = family_tokenizer("qwen3")
    with pytest.raises(InvalidConfigError, match="qwen9"):
        ChatCodec(qwen, renderer="qwen9")
    with pytest.raises(InvalidConfigError, match=r"renderer='qwen3'.*chat_template"):
        ChatCodec(qwen, renderer="qwen3", chat_template="{{ messages }}")
    with pytest.raises(InvalidConfigError, match="reasoning_effort"):
        ChatCodec(qwen, renderer="qwen3", template_kwargs={"reasoning_effort": "low"})
    with pytest.raises(ModelError, match=r"minimax-m2.*\]~!b\["):
        ChatCodec(qwen, renderer="minimax-m2")
    laguna = saved(tokenizer_with([], "<|im_end|>"), tmp_path, "laguna")
    with pytest.raises(ModelError, match=r"renderer='laguna-m\.1'"):
        ChatCodec(laguna)


def test_nothing_is_downloaded_for_a_renderer() -> None:
    with pytest.raises(InvalidConfigError, match=r"gpt-oss.*downloads"):
        ChatCodec(family_tokenizer("gptoss"), renderer="gpt-oss")


@pytest.mark.parametrize(
    ("model_type", "names"), [("kimi_k2", ("kimi-k2",)), ("minimax_m2", ("minimax-m2",)), ("qwen3", ())]
)
def test_a_folder_s_config_says_which_renderers_there_are(
    model_type: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    assert renderers_of(saved(family_tokenizer("qwen3"), tmp_path, model_type)) == names


@pytest.mark.skipif(importlib.util.find_spec("renderers") is not None, reason="renderers is installed")
def test_without_the_library(tmp_path: Path) -> None:
    """A model with a template is served by it; without one, the error names the extra."""
    template = family_tokenizer("qwen3").chat_template
    codec = ChatCodec(saved(tokenizer_with(MINIMAX, "<|im_end|>", template), tmp_path / "with", "minimax_m2"))
    assert "minimax-m2" in codec.service.description and codec.service.reader is None
    with pytest.raises(MissingExtraError, match=r"renderer='minimax-m2'.*\[agents\]"):
        ChatCodec(saved(tokenizer_with(MINIMAX, "[e~["), tmp_path / "without", "minimax_m2"))
