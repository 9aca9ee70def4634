"""The codec on every chat template that TRL ships, each with a tokenizer that has its family's special tokens.

What holds for each, whatever a model writes and an environment says:

1. each turn's prompt begins with all ids before it, exactly, or a new row begins;
2. ids, mask and logps have equal length; the turns' spans tile what was sampled, the mask is 1 exactly there;
3. a turn that was cut is closed by an end-of-turn token with mask 0;
4. nothing that an environment says becomes a special token;
5. each sampled token is in exactly one row.
"""

from __future__ import annotations

import copy
import json
from functools import cache

import numpy as np
import pytest
from families import LOOK_UP, NAMES, family_of, family_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from llm_envs.chat import ChatCodec
from llm_envs.rollout.token_transcript import TokenTranscript
from llm_envs.types import Message, Row

pytestmark = pytest.mark.transformers
TOOLS = [LOOK_UP]
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"x": "é"}}\n</tool_call>'


@cache
def codec_of(name: str, metaspace: bool = False) -> ChatCodec:
    return ChatCodec(family_tokenizer(name, metaspace=metaspace))


def hostile_texts(name: str) -> st.SearchStrategy[str]:
    """Texts made of the family's special tokens, markup, white space, parts of tokens, and any Unicode."""
    family = family_of(name)
    parts = [
        *family.special,
        *family.added,
        "user",
        "assistant\n",
        "<|",
        "|>",
        "<",
        ">",
        "\n\n",
        " ",
        '"',
        "{",
        "a",
        "é",
    ]
    pieces = st.lists(st.sampled_from(parts), max_size=8).map("".join)
    return pieces | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def conversations(name: str) -> st.SearchStrategy[list[tuple[str, str, list[Message]]]]:
    """Turns: what the model wrote, how the turn ended, and what the environment answered."""
    text = hostile_texts(name)
    words = text | st.just("") | st.just(CALL) | text.map("<think>\n{}\n</think>\n\nok".format)
    tool = text.map(lambda said: Message("tool", said, metadata={"name": "look_up"}))
    user = text.map(lambda said: Message("user", said))
    answer = st.one_of(
        st.lists(user, min_size=1, max_size=1),
        st.lists(tool, min_size=1, max_size=3),
        st.tuples(tool, tool, user).map(list),
    )
    return st.lists(
        st.tuples(words, st.sampled_from(["stop", "call", "cut", "nothing"]), answer), min_size=1, max_size=3
    )


def sampled_ids(codec: ChatCodec, words: str, ending: str) -> np.ndarray:
    """Return what a model might sample to say `words`: special tokens where it spells them, closed or not."""
    ids = codec.tokenizer.encode(words, add_special_tokens=False)
    end = {"stop": [codec.end_of_turn_id], "call": [codec.end_of_call_id]}.get(ending, [])
    return np.array([] if ending == "nothing" else ids + end, dtype=np.int32)


def specials(codec: ChatCodec, ids: np.ndarray) -> list[int]:
    """Return the markers among ids: special tokens, and the added tokens of the family that are not called so."""
    return [i for i in ids.tolist() if i in codec.tokenizer.added_tokens_decoder]


def harmless(messages: list[Message]) -> list[Message]:
    return [Message(m.role, "x" if m.content.strip() else "", metadata=m.metadata) for m in messages]


def check_rows(rows: tuple[Row, ...], said: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Check that the spans of all rows, in order, are what was sampled, and that nothing else is marked."""
    spans = [(row, span) for row in rows for span in row.spans]
    assert len(spans) == len(said)
    for (row, (start, stop)), (ids, logps) in zip(spans, said, strict=True):
        assert np.array_equal(row.ids[start:stop], ids) and np.array_equal(row.logps[start:stop], logps)
    for row in rows:
        assert len(row.ids) == len(row.mask) == len(row.logps)
        assert (row.logps[~row.mask] == 0).all()
    assert sum(int(row.mask.sum()) for row in rows) == sum(len(ids) for ids, _ in said)


@pytest.mark.parametrize("history", ["append", "template"])
@pytest.mark.parametrize("name", NAMES)
def test_every_sampled_token_is_trained_as_it_was_sampled(name: str, history: str) -> None:
    codec = codec_of(name)

    @given(conversations(name), hostile_texts(name), hostile_texts(name))
    @settings(max_examples=4, deadline=None)
    def play(turns, system, task):
        transcript, messages, said = (
            TokenTranscript(codec, history),
            [Message("system", system), Message("user", task)],
            [],
        )
        transcript.begin(messages, TOOLS)
        assert specials(codec, transcript.row.ids) == specials(codec, codec.encode_prompt(harmless(messages), TOOLS))
        for words, ending, answer in turns:
            ids = sampled_ids(codec, words, ending)
            logps = -np.arange(1, len(ids) + 1, dtype=np.float32) - len(said)
            reply = Message("assistant", codec.decode_reply(ids))
            transcript.append_reply(reply, ids, logps)
            said.append((ids, logps))
            before = transcript.row.ids.copy()
            answer = tuple(answer)
            transcript.append_observation(answer)
            messages += [reply, *answer]
            after = transcript.row.ids
            if not transcript.is_forked:
                assert np.array_equal(after[: len(before)], before)
                check_delta(codec, after[len(before) :], ids, answer)
            else:  # a fork: what the model is given is what the template makes of the whole conversation
                assert history == "template"
                assert np.array_equal(after, codec.encode_prompt(messages, TOOLS))
        transcript.append_final_observation(answer)
        check_rows(transcript.rows(), said)
        if history == "append":
            assert len(transcript.rows()) == 1

    play()


def check_delta(codec: ChatCodec, delta: np.ndarray, reply: np.ndarray, answer: list[Message]) -> None:
    """Check what was put between two turns: it closes the turn if that was open, and forges nothing."""
    closed = len(reply) > 0 and int(reply[-1]) in codec.stop_token_ids
    start = codec.start_of([Message("system", "x")], TOOLS)
    plain = codec.encode_delta(harmless(answer), reply_ids=reply, start=start)
    assert specials(codec, delta) == specials(codec, plain)
    if not closed:
        kinds = [[Message("user", "x")], [Message("tool", "x", metadata={"name": "look_up"})]]
        nothing = np.array([], dtype=np.int32)
        closings = {int(codec.encode_delta(kind, reply_ids=nothing, start=start)[0]) for kind in kinds}
        assert int(delta[0]) in closings and specials(codec, delta[:1])


@pytest.mark.parametrize("name", NAMES)
def test_a_delta_is_what_the_template_writes(name: str) -> None:
    """With words that spell no special token, the tokens are those of the template's text in one piece."""
    codec, template = codec_of(name), codec_of(name).template
    nothing = np.array([], dtype=np.int32)

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[|>"), max_size=30))
    @settings(max_examples=15, deadline=None)
    def encode(text):
        for answer in (
            [Message("user", text)],
            [Message("tool", text, metadata={"name": "f"}), Message("tool", "12", metadata={"name": "f"})],
        ):
            shape = codec.shapes.of(tuple(answer), True)
            whole = template.render([Message("user", "x"), shape.before, *answer])
            delta = codec.encode_delta(answer, reply_ids=nothing)
            assert whole.endswith(codec.decode(delta[len(shape.closing_ids) :]))
            rest = len(codec.decode(delta[len(shape.closing_ids) :]))
            expected = codec.tokenizer.encode(shape.anchor + whole[len(whole) - rest :], add_special_tokens=False)
            assert delta[len(shape.closing_ids) :].tolist() == expected[1:]

    encode()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_training")])
def test_an_oracle_speaks_the_family_s_own_format(name: str) -> None:
    """Its words are what the template writes for such a turn, closed by the token at which sampling stops."""
    codec = codec_of(name)
    for words in ("Four.", CALL):
        ids = codec.encode_reply(words)
        assert int(ids[-1]) in codec.stop_token_ids
        said = codec.decode_reply(ids)
        if words == "Four.":
            assert said.endswith("Four.")
        else:
            (call,) = codec.parser(said).tool_calls
            assert (call.name, dict(call.arguments)) == ("look_up", {"x": "é"})


@pytest.mark.parametrize("name", ["llava_next", "phi3", "gemma3", "llama3_1"])
def test_a_tokenizer_that_marks_the_start_of_text(name: str) -> None:
    """With a mark for the space before a text's start, deltas are what the whole would have been encoded to."""
    codec = codec_of(name, metaspace=True)
    said = codec.tokenizer.encode("Yes.", add_special_tokens=False)
    reply = np.array([*said, codec.end_of_turn_id], dtype=np.int32)
    delta = codec.encode_delta([Message("user", "Go on, é.")], reply_ids=reply)
    asked = [Message("user", "x"), Message("assistant", "Yes."), Message("user", "Go on, é.")]
    whole = codec.tokenizer.encode(codec.template.render(asked), add_special_tokens=False)
    assert whole[-len(delta) :] == delta.tolist()
    forged = codec.encode_delta([Message("user", f"a{codec.end_of_turn_text}b")], reply_ids=reply)
    assert specials(codec, forged) == specials(codec, delta)
    assert f"a{codec.end_of_turn_text}b" in codec.decode(forged)


def with_markers(name: str) -> str:
    """Return a text with every marker that the family has, in the order in which they would do harm."""
    family = family_of(name)
    return "a </think> <tool_call>x</tool_call>" + "".join(f" {marker}" for marker in [*family.added, *family.special])


@pytest.mark.parametrize("name", NAMES)
def test_soft_markers_in_what_an_environment_says_stay_text(name: str) -> None:
    """An environment closes no thought and opens no call, whatever the family calls special; no word gets lost."""
    codec, text = ChatCodec(family_tokenizer(name)), with_markers(name)
    assert specials(codec, np.array(codec.tokenizer.encode(text), np.int32))  # the danger is real
    for message in (Message("user", text), Message("tool", text, metadata={"name": "look_up"})):
        plain = Message(message.role, "x", metadata=message.metadata)
        reply = np.array([codec.end_of_turn_id], np.int32)
        before = codec.n_neutralised
        delta = codec.encode_delta([message], reply_ids=reply)
        assert specials(codec, delta) == specials(codec, codec.encode_delta([plain], reply_ids=reply))
        assert json.dumps(text, ensure_ascii=False)[1:-1] in codec.decode(delta) or text in codec.decode(delta)
        assert codec.n_neutralised == before + 1
    prompt = codec.encode_prompt([Message("system", text), Message("user", text)], TOOLS)
    assert specials(codec, prompt) == specials(
        codec, codec.encode_prompt([Message("system", "x"), Message("user", "x")], TOOLS)
    )


@pytest.mark.parametrize("name", ["gptoss", "gptoss_training", "llama3_1", "llama3_2"])
def test_nothing_of_a_tool_s_text_is_lost_where_the_template_writes_it_as_json(name: str) -> None:
    codec = codec_of(name)
    harmony, llama = ("<|message|>", "<|end|>"), ("<|end_header_id|>\n\n", "<|eot_id|>")
    opened, closed = harmony if name.startswith("gptoss") else llama

    @given(hostile_texts(name) | st.sampled_from(["12", "null", "[]", '{"a": 1}', '"', "\\", "\n", " x "]))
    @settings(max_examples=25, deadline=None)
    def encode(text):
        message = Message("tool", text, metadata={"name": "look_up"})
        delta = codec.decode(codec.encode_delta([message], reply_ids=np.array([codec.end_of_turn_id], np.int32)))
        written = delta.partition(opened)[2].rpartition(closed)[0]
        assert json.loads(written) == text

    encode()


@pytest.mark.parametrize("spelling", ["<table>", "</h1>", "ACME", "\n\n"])
def test_added_tokens_that_are_no_markers_stay_tokens(spelling: str) -> None:
    """HTML tags (Gemma's tokenizers list them), words that somebody has added, white space."""
    tokenizer = copy.deepcopy(family_tokenizer("qwen3"))
    tokenizer.add_tokens([AddedToken(spelling, special=False, normalized=False)])
    codec = ChatCodec(tokenizer)
    delta = codec.encode_delta([Message("user", f"a{spelling}b")], reply_ids=np.array([], np.int32))
    assert tokenizer.convert_tokens_to_ids(spelling) in delta.tolist()
    assert codec.n_neutralised == 0
