"""Other people's logs as trajectories: what is trained, in the model's own format, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import LOOK_UP, NAMES, family_tokenizer

from llm_envs.chat import ChatCodec
from llm_envs.data import from_dataset, sft_rows, to_dataset, to_messages
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.parsers import parse_reply
from llm_envs.rollout import from_messages, read_messages_jsonl
from llm_envs.rollout.chat_logs import as_messages
from llm_envs.testing import ByteCodec
from llm_envs.types import Message, StopReason, Trajectory, TrajectoryGroup, validate_batch

TOOLS = [LOOK_UP]
CALLING = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"x": "é"}'}}
LOG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is é?"},
    {"role": "assistant", "content": None, "tool_calls": [CALLING]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a letter"},
    {"role": "assistant", "content": "A letter."},
]
THINKING = [*LOG[:2], {**LOG[2], "reasoning_content": "I look it up."}, *LOG[3:]]
HERMES = '<tool_call>\n{"name": "look_up", "arguments": {"x": "é"}}\n</tool_call>'
BYTES = ByteCodec()
USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Ho"}


def called(arguments: str) -> dict:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def everything(trajectory: Trajectory) -> bool:
    return True


def trained_texts(codec, trajectory: Trajectory) -> list[str]:
    """Return what is trained: the runs of labels of the SFT rows, as text."""
    texts = []
    for row in sft_rows([trajectory], keep=everything):
        run: list[int] = []
        for label in [*row["labels"], -100]:
            if label != -100:
                run.append(label)
            elif run:
                texts.append(codec.decode(np.array(run)))
                run = []
    return texts


def texts_of(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in trajectory.messages]


class TestFamilies:
    @pytest.mark.parametrize(
        ("name", "log", "expected"),
        [
            ("qwen3", THINKING, [
                f"<think>\nI look it up.\n</think>\n\n{HERMES}<|im_end|>",
                "<think>\n\n</think>\n\nA letter.<|im_end|>",
            ]),
            ("llama3_1", LOG, ['{"name": "look_up", "parameters": {"x": "é"}}<|eot_id|>', "A letter.<|eot_id|>"]),
            ("gptoss", LOG, [
                ' to=functions.look_up<|channel|>commentary json<|message|>{"x": "é"}<|call|>',
                "<|channel|>final<|message|>A letter.<|return|>",
            ]),
        ],
    )  # fmt: skip
    def test_exactly_the_assistants_tokens_are_trained(self, name, log, expected) -> None:
        """In the model's own format, closed as the model closes its turns, within what the template itself writes."""
        codec = ChatCodec(family_tokenizer(name))
        trajectory = from_messages(log, codec=codec, tools=TOOLS)
        assert trained_texts(codec, trajectory) == expected
        (row,) = trajectory.rows
        assert np.isnan(row.logps[row.mask]).all() and (row.logps[~row.mask] == 0).all()
        assert codec.decode(row.ids) == whole_text(name, log).rstrip("\n")
        tokens = codec.tokenizer(whole_text(name, log).rstrip("\n"), add_special_tokens=False)["input_ids"]
        # Llama's prompt ends with two line breaks. They are one token there, as the model sees them before it speaks;
        # in one piece with what follows they are two.
        assert (row.ids.tolist() == tokens) == (name != "llama3_1")
        assert row.ids[: row.prompt_length].tolist() == codec.encode_prompt(as_messages(log[:2]), TOOLS).tolist()

    @pytest.mark.parametrize("name", ["llama3_1", "gptoss"])
    def test_a_conversation_of_several_questions(self, name) -> None:
        """These templates keep what was answered before; Qwen3's drops the marks of thinking."""
        log = [*LOG, {"role": "user", "content": "And è?"}, {"role": "assistant", "content": "Too."}]
        codec = ChatCodec(family_tokenizer(name))
        trajectory = from_messages(log, codec=codec, tools=TOOLS)
        text, whole = codec.decode(trajectory.rows[0].ids), whole_text(name, log)
        # GPT-OSS closes a turn that others follow with <|end|>; whoever said it closed it with <|return|>.
        assert text.replace("A letter.<|return|>", "A letter.<|end|>") == whole
        assert len(trained_texts(codec, trajectory)) == 3

    @pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "phi3"])
    def test_assistant_messages_in_a_row_are_what_the_template_writes(self, name) -> None:
        codec = ChatCodec(family_tokenizer(name))
        log = [Message("user", "Hi"), Message("assistant", "Ho"), Message("assistant", "Ha"), Message("user", "Bye")]
        (row,) = from_messages(log, codec=codec, reward=1.0).rows
        written = codec.template.render(log, generation_prompt=False)
        assert written.startswith(codec.decode(row.ids)) and "Ha" in codec.decode(row.ids)

    def test_thinking_without_a_place_is_text(self) -> None:
        codec = ChatCodec(family_tokenizer("llama3_1"))
        kept = from_messages([USER, {**SAID, "reasoning_content": "Hm."}], codec=codec)
        assert trained_texts(codec, kept) == ["<think>\nHm.\n</think>\n\nHo<|eot_id|>"]

    def test_the_template_may_fork(self) -> None:
        log = [*THINKING, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
        codec = ChatCodec(family_tokenizer("qwen3"))
        trajectory = from_messages(log, codec=codec, tools=TOOLS, history="template")
        assert [len(row.spans) for row in trajectory.rows] == [2, 1]
        assert codec.decode(trajectory.rows[1].ids) == whole_text("qwen3", log).rstrip("\n")
        assert validate_batch([trajectory]) == []

    def test_several_calls_of_a_turn(self) -> None:
        calls = [{**CALLING, "id": id_, "function": {"name": "look_up", "arguments": {"x": id_}}} for id_ in "ab"]
        results = [{"role": "tool", "tool_call_id": id_, "content": id_.upper()} for id_ in "ba"]
        log = [USER, {"role": "assistant", "content": "See:", "tool_calls": calls}, *results, SAID]
        codec = ChatCodec(family_tokenizer("gptoss"))
        with pytest.raises(ModelError, match=r"messages\[1\]: .*one call"):
            from_messages(log, codec=codec, tools=TOOLS)
        split = from_messages(log, codec=codec, tools=TOOLS, one_call_a_turn=True, reward=1.0)
        assert [m.content for m in split.messages if m.role == "tool"] == ["A", "B"]
        assert ['"a"' in text for text in trained_texts(codec, split)] == [True, False, False]
        assert len(split.turns) == 3 and validate_batch([split]) == []
        with pytest.raises(InvalidConfigError, match="2 calls and 1 results"):
            from_messages([*log[:3], SAID], codec=codec, one_call_a_turn=True)

    @pytest.mark.parametrize("name", NAMES)
    def test_every_template_takes_a_log(self, name) -> None:
        codec = ChatCodec(family_tokenizer(name))
        trajectory = from_messages(LOG, codec=codec, tools=TOOLS, reward=1.0)
        call, answer = trained_texts(codec, trajectory)
        assert "look_up" in call and "é" in call and "A letter." in answer
        assert validate_batch([trajectory]) == []


def whole_text(name: str, log: list[dict]) -> str:
    """Return what the template writes for the whole log, arguments given as objects."""
    shown = json.loads(json.dumps(log))
    for message in shown:
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return family_tokenizer(name).apply_chat_template(shown, tools=TOOLS, tokenize=False)


class TestForms:
    def log(self, *messages, **settings) -> Trajectory:
        trajectory = from_messages(messages, codec=BYTES, **settings)
        assert validate_batch([trajectory]) == []
        return trajectory

    def trained(self, trajectory: Trajectory) -> list[str]:
        return [text for row in trajectory.rows for s in row.spans for text in [BYTES.decode_reply(row.ids[slice(*s)])]]

    def test_every_form_of_a_call_is_read(self) -> None:
        as_object = {"type": "function", "function": {"name": "look_up", "arguments": {"x": "é"}}}
        flat = {"name": "look_up", "arguments": '{"x": "é"}'}
        for call in (CALLING, as_object, flat):
            assert self.trained(self.log(USER, {"role": "assistant", "tool_calls": [call]})) == [HERMES]
        assert self.trained(self.log(USER, {"role": "assistant", "content": None, "function_call": flat})) == [HERMES]
        nothing = {"function": {"name": "now", "arguments": ""}}
        (text,) = self.trained(self.log(USER, {"role": "assistant", "content": "See:", "tool_calls": [nothing]}))
        assert text == 'See:\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'

    def test_results_have_the_name_of_what_was_called(self) -> None:
        calls = [{"id": i, "function": {"name": n, "arguments": "{}"}} for i, n in (("a", "one"), ("b", "two"))]
        trajectory = self.log(
            USER,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
            {"role": "assistant", "content": "", "function_call": {"name": "three", "arguments": "{}"}},
            {"role": "function", "name": "three", "content": "3"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "four"}}]},
            {"role": "tool", "content": "4"},
            SAID,
        )
        heard = [(m.metadata.get("name"), m.content) for m in trajectory.messages if m.role == "tool"]
        assert heard == [("one", "1"), ("two", "2"), ("three", "3"), ("four", "4")]  # in the order of the calls

    def test_results_in_another_order_than_the_calls_keep_their_ids(self) -> None:
        calls = [{"id": i, "function": {"name": "f", "arguments": {"x": i}}} for i in "ab"]
        results = [{"role": "tool", "tool_call_id": i, "content": i.upper()} for i in "ba"]
        asked, *heard = to_messages(self.log(USER, {"role": "assistant", "tool_calls": calls}, *results, SAID))[
            "messages"
        ][1:4]
        by_id = {call["id"]: json.loads(call["function"]["arguments"])["x"].upper() for call in asked["tool_calls"]}
        assert [by_id[message["tool_call_id"]] for message in heard] == [message["content"] for message in heard]

    def test_contents(self) -> None:
        trajectory = self.log(
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "user", "content": None},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}], "reasoning": "Hm."},
        )
        assert texts_of(trajectory) == [
            ("system", "Be brief."), ("user", "ab"), ("assistant", "No."), ("user", ""),
            ("assistant", "<think>\nHm.\n</think>\n\nNever."),
        ]  # fmt: skip

    def test_the_parts_of_a_turn_are_one_turn(self) -> None:
        thought = {"role": "assistant", "content": None, "reasoning_content": "A"}
        trajectory = self.log(USER, {**SAID, "reasoning_content": "A"}, LOG[2], USER, thought, SAID)
        assert self.trained(trajectory) == [f"<think>\nA\n</think>\n\nHo\n{HERMES}", "<think>\nA\n</think>\n\nHo"]

    def test_other_assistant_messages_in_a_row_are_turns(self) -> None:
        thought, ha = {**SAID, "reasoning_content": "A"}, {"role": "assistant", "content": "Ha"}
        for log, expected in (
            ((USER, SAID, ha), ["Ho", "Ha"]),
            ((USER, SAID, thought, USER, ha), ["Ho", "<think>\nA\n</think>\n\nHo", "Ha"]),
            ((USER, LOG[2], SAID), [HERMES, "Ho"]),
            ((USER, {**SAID, "weight": 0}, LOG[2]), [HERMES]),
        ):
            assert self.trained(self.log(*log)) == expected

    def test_what_the_assistant_says_before_anybody_is_context(self) -> None:
        trajectory = self.log({"role": "assistant", "content": "Welcome."}, USER, SAID)
        assert self.trained(trajectory) == ["Ho"]
        assert [(turn.row, turn.span) for turn in trajectory.turns] == [(-1, -1), (0, 0)]
        assert "Welcome." in BYTES.decode_reply(trajectory.rows[0].ids)
        # A system prompt is something to answer.
        assert self.trained(self.log({"role": "system", "content": "Greet."}, SAID)) == ["Ho"]

    def test_a_given_start_is_context(self) -> None:
        talk = [USER, SAID, USER, {"role": "assistant", "content": "Hm"}]
        assert self.trained(self.log(*talk, context=2)) == ["Hm"]
        ids = [self.log(*talk, context=n).rows[0].ids.tolist() for n in (0, 2)]
        assert ids[0] == ids[1]

    def test_a_weight_of_0_is_not_trained(self) -> None:
        talk = [USER, {**SAID, "weight": 0}, USER, {"role": "assistant", "content": "Hm", "weight": 1}]
        trajectory, plain = self.log(*talk), self.log(USER, SAID, USER, talk[3])
        assert self.trained(trajectory) == ["Hm"]
        assert [(turn.row, turn.span) for turn in trajectory.turns] == [(-1, -1), (0, 0)]
        assert trajectory.rows[0].ids.tolist() == plain.rows[0].ids.tolist()
        assert (trajectory.rows[0].logps[~trajectory.rows[0].mask] == 0).all()

    def test_a_trailing_message_stands_behind_and_is_answered_by_nobody(self) -> None:
        trajectory = self.log(USER, SAID, {"role": "user", "content": "Bye"})
        assert (trajectory.truncated, trajectory.stop_reason) == (True, StopReason.ENV_TRUNCATED)
        row = trajectory.rows[0]
        stop = row.spans[-1][1]
        assert row.ids[stop:].tolist() == [258, *b"Bye", 256]
        whole = self.log(USER, SAID)
        assert (whole.terminated, whole.stop_reason) == (True, StopReason.TERMINATED)
        assert whole.rows[0].ids.tolist() == row.ids[:stop].tolist()

    def test_rewards(self) -> None:
        scored = self.log(USER, SAID, USER, SAID, reward=0.5)
        assert (scored.status, scored.reward, scored.is_success) == ("ok", 0.5, False)
        assert [dict(turn.components) for turn in scored.turns] == [{"reward": 0.0}, {"reward": 0.5}]
        assert self.log(USER, SAID, reward=1.0).is_success is True
        assert self.log(USER, SAID, reward=0.0, is_success=True).is_success is True
        plain = self.log(USER, SAID)
        assert (plain.status, plain.is_success) == ("unscored", None)
        assert sft_rows([plain]) == [] and len(sft_rows([plain], keep=everything)) == 1

    def test_preferences_are_a_group(self) -> None:
        one, two = (
            self.log(USER, {"role": "assistant", "content": text}, reward=reward, group_id="7", member=member)
            for member, (text, reward) in enumerate([("Good.", 1.0), ("Bad.", 0.0)])
        )
        group = TrajectoryGroup("7", "log", 0, (one, two))
        assert [t.reward for t in group.scored] == [1.0, 0.0]
        n = one.rows[0].prompt_length
        assert one.rows[0].ids[:n].tolist() == two.rows[0].ids[:n].tolist()

    def test_messages_of_ours_are_taken_as_they_are(self) -> None:
        first = self.log(*THINKING)
        assert self.log(*first.messages) == first

    def test_numbers_of_numpy_can_be_stored(self) -> None:
        trajectory = from_messages([USER, SAID], codec=BYTES, reward=np.float32(0.5))
        assert Trajectory.from_json(trajectory.to_json()).reward == 0.5 and trajectory.is_success is False
        trajectory = from_messages([USER, SAID], codec=BYTES, reward=1.0, is_success=np.bool_(False))
        assert Trajectory.from_json(trajectory.to_json()).is_success is False

    def test_arguments_that_json_writes_otherwise_are_taken(self) -> None:
        call = {"id": 5, "function": {"name": "f", "arguments": {"x": (1, 2)}}}
        log = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": 5, "content": "r"}]
        trajectory = from_messages(log, codec=BYTES)
        assert '"x": [1, 2]' in trajectory.messages[1].content
        assert trajectory.messages[2].metadata == {"name": "f", "tool_call_id": "5"}

    def test_it_can_be_stored(self) -> None:
        trajectory = self.log(*THINKING, tools=TOOLS)
        assert Trajectory.from_json(trajectory.to_json()) == trajectory == from_dataset(to_dataset([trajectory]))[0]

    def test_without_a_codec_there_are_messages_alone(self) -> None:
        trajectory = from_messages(LOG, codec=None, reward=1.0)
        assert trajectory.rows == () and [turn.row for turn in trajectory.turns] == [-1, -1]
        assert parse_reply(trajectory.messages[2].content).tool_calls[0].arguments == {"x": "é"}
        assert validate_batch([trajectory]) == []

    def test_tools_in_both_forms(self) -> None:
        bare = TOOLS[0]["function"]
        assert self.log(USER, SAID, tools=[bare]).tools == self.log(USER, SAID, tools=TOOLS).tools == tuple(TOOLS)


class TestRefused:
    @pytest.mark.parametrize(
        ("message", "says"),
        [
            ({"role": "critic", "content": "x"}, r"messages\[1\] has the role 'critic'; known are system"),
            ({"content": "x"}, r"messages\[1\] has the role None"),
            ("x", r"messages\[1\] is 'x'"),
            ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "type 'image_url'; only text"),
            ({"role": "user", "content": 3}, r"messages\[1\] has the content 3"),
            (called("{x"), r"messages\[1\], call 0: the arguments '{x' are not JSON"),
            (called("[1]"), "must be an object"),
            (called("NaN"), "are not JSON"),
            ({"role": "assistant", "tool_calls": 5}, r"messages\[1\] has the tool_calls 5"),
            ({"role": "assistant", "refusal": 5}, r"messages\[1\] has the content 5"),
            ({"role": "assistant", "content": None, "audio": {"id": "x"}}, r"messages\[1\] has audio"),
            ({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}, "must have a function"),
            ({"role": "assistant", "function_call": {"arguments": "{}"}}, "function_call is"),
            ({**LOG[2], "content": "<tool_call>"}, r"messages\[1\]: its text has markup that hides its calls"),
            ({**SAID, "reasoning_content": "a</think>b"}, "hides its calls or thinking"),
        ],
    )
    def test_the_message_is_named(self, message, says) -> None:
        with pytest.raises(InvalidConfigError, match=says):
            from_messages([USER, message, SAID], codec=BYTES)

    @pytest.mark.parametrize(
        ("messages", "settings"), [([], {}), ([USER], {}), ([SAID], {}), ([USER, SAID], {"context": 2})]
    )
    def test_a_log_in_which_nobody_answers(self, messages, settings) -> None:
        with pytest.raises(InvalidConfigError, match=rf"^{len(messages)} messages \(context="):
            from_messages(messages, codec=BYTES, **settings)

    def test_a_reward_that_is_no_number(self) -> None:
        with pytest.raises(InvalidConfigError, match=r"reward .* nan"):
            from_messages([USER, SAID], codec=BYTES, reward=float("nan"))
        with pytest.raises(InvalidConfigError, match=r"reward .*'good'"):
            from_messages([USER, SAID], codec=BYTES, reward="good")

    @pytest.mark.parametrize("tool", ["look_up", {"description": "x"}, {"type": "function", "function": {}}])
    def test_tools(self, tool) -> None:
        with pytest.raises(InvalidConfigError, match="a tool is"):
            from_messages([USER, SAID], codec=BYTES, tools=[tool])


class TestFile:
    def test_a_line_is_a_log(self, tmp_path: Path) -> None:
        path = tmp_path / "logs.jsonl"
        lines = [{"messages": LOG, "tools": TOOLS, "id": 7}, [USER, SAID]]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        records = read_messages_jsonl(path)
        assert records == [lines[0], {"messages": [USER, SAID]}]
        logs = [from_messages(r["messages"], codec=BYTES, tools=r.get("tools", ())) for r in records]
        assert [len(sft_rows([log], keep=everything)) for log in logs] == [1, 1]

    @pytest.mark.parametrize(
        ("line", "says"),
        [("{", "line 2 is not JSON"), ('{"chat": []}', r"line 2 has the keys \['chat'\]"), ("3", "line 2 has 3")],
    )
    def test_what_is_no_log_is_named_by_its_line(self, tmp_path: Path, line, says) -> None:
        path = tmp_path / "logs.jsonl"
        path.write_text(f"[]\n{line}\n")
        with pytest.raises(InvalidConfigError, match=says):
            read_messages_jsonl(path)


def test_as_messages() -> None:
    assert [(m.role, m.content) for m in as_messages("Hi")] == [("user", "Hi")]
    assert [(m.role, m.content) for m in as_messages(LOG[1:3])] == [("user", "What is é?"), ("assistant", HERMES)]
