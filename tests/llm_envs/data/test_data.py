"""Tables of trajectories, and rows to train on."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_envs.data import (
    from_dataset,
    preference_pairs,
    preference_rows,
    sft_rows,
    to_dataset,
    to_groups,
    to_messages,
    to_messages_jsonl,
    write_jsonl,
)
from llm_envs.data.datasets import iter_groups, write_dataset
from llm_envs.data.records import is_same_record
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import Message, ToolCall, ToolResult, Trajectory

CODEC = ByteCodec()
DIGITS = [str(digit) for digit in range(10)]


def collect(policy: Any, n: int = 3, codec: Any = CODEC, **settings: Any) -> list[Trajectory]:
    collector = Collector(NumbersEnv, policy, codec=codec, env_kwargs={"n_turns": 2}, **settings)
    return [t for group in collector.collect(n, 2) for t in group]


def variety() -> list[Trajectory]:
    """Sampled, oracle, errored, unscored, empty and odd trajectories."""
    sampled = collect(HashingTokenPolicy(CODEC, DIGITS))
    errored = collect(with_failures(HashingTokenPolicy(CODEC, DIGITS), 0.6), max_retries=0)
    unscored = collect(HashingTokenPolicy(CODEC, DIGITS, context_length=5), n=1)
    result = ToolResult("f", {"nested": {"x": [1, None]}}, "out", False, "KeyError", seconds=0.5)
    odd = replace(
        sampled[0],
        messages=(
            Message("user", "ü😀", metadata={"name": "x"}),
            Message("assistant", "", (ToolCall("f", {"a": 1}, "id-1"), ToolCall("g", {}))),
            Message("tool", "r", tool_call_id="id-1"),
        ),
        tools=({"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "integer"}}}},),
        turns=(replace(sampled[0].turns[0], tool_results=(result,), components={}), sampled[0].turns[1]),
        env_kwargs={"split": "test", "levels": [1, 2]},
        metadata={"anything": {"goes": [True]}},
        seed=2**53 - 1,
    )
    return [*sampled, *errored, *unscored, *collect(OraclePolicy()), *collect(OraclePolicy(), codec=None), odd]


def test_round_trip_through_arrow_is_lossless(tmp_path: Path) -> None:
    trajectories = variety()
    assert {t.status for t in trajectories} == {"ok", "errored", "unscored"}
    dataset = to_dataset(trajectories)
    assert len(dataset) == len(trajectories)
    assert [t.to_json() for t in from_dataset(dataset)] == [t.to_json() for t in trajectories]
    dataset.to_parquet(str(tmp_path / "t.parquet"))
    back = type(dataset).from_parquet(str(tmp_path / "t.parquet"), cache_dir=str(tmp_path / "cache"))
    assert [t.to_json() for t in from_dataset(back)] == [t.to_json() for t in trajectories]
    assert back.features == dataset.features


def test_columns_that_people_filter_by() -> None:
    trajectories = variety()
    dataset = to_dataset(trajectories)
    assert dataset["reward"] == [t.reward for t in trajectories]
    assert len(dataset.filter(lambda row: row["is_success"])) == sum(t.is_success is True for t in trajectories)
    assert dataset[0]["messages"][0] == {"role": "system", "content": "Repeat."}


def test_one_schema_whatever_was_played() -> None:
    first, second = to_dataset(variety()[:1]), to_dataset(variety()[-1:])
    assert first.features == second.features == to_dataset([]).features


def test_only_the_agents_tokens_are_trained() -> None:
    trajectory = collect(OraclePolicy(), n=1, limits=RolloutLimits(max_turns=1))[0]
    (row,) = sft_rows([trajectory])
    digit = trajectory.messages[2].content
    assert len(row["input_ids"]) == len(row["labels"]) == 20  # a prompt of 18, the digit, the end of turn
    assert row["labels"] == [-100] * 18 + [ord(digit), 256]
    assert row["input_ids"] == trajectory.rows[0].ids[:20].tolist()  # the last observation trains nothing
    assert all(type(token) is int for token in row["input_ids"] + row["labels"])


def test_two_turns_of_sampled_tokens() -> None:
    for trajectory in collect(HashingTokenPolicy(CODEC, ["11", "2"])):
        (row,) = sft_rows([trajectory])
        mask = np.array(row["labels"]) != -100
        stop = trajectory.rows[0].spans[-1][1]
        assert mask.tolist() == trajectory.rows[0].mask[:stop].tolist()
        assert len(row["labels"]) == stop


def test_what_is_kept() -> None:
    trajectories = variety()[:-7]
    assert len(sft_rows(trajectories)) == sum(t.status == "ok" for t in trajectories)
    successes = sft_rows(trajectories, keep=lambda t: bool(t.is_success))
    assert len(successes) == sum(t.is_success is True for t in trajectories)
    assert sft_rows(trajectories, keep=lambda t: False) == []


def test_trajectories_without_tokens_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="codec="):
        sft_rows(collect(OraclePolicy(), codec=None))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_datasets(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[train\]"):
        to_dataset([])


def test_trl_trains_exactly_these_labels(tmp_path: Path) -> None:
    """TRL's own preparation and collator leave the labels as they are, whatever it masks by default."""
    pytest.importorskip("trl")
    import datasets
    from trl import SFTConfig, SFTTrainer

    from llm_envs.tiny_model import tiny_model, tiny_tokenizer

    rows = sft_rows(collect(HashingTokenPolicy(CODEC, ["11", "2"])))
    tokenizer = tiny_tokenizer()
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        args=SFTConfig(output_dir=str(tmp_path), report_to=[], bf16=False, use_cpu=True, max_length=512),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(len(rows))])
    for row, ids, labels in zip(rows, batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        n = len(row["labels"])
        assert labels == row["labels"] + [-100] * (len(labels) - n)
        assert ids[:n] == row["input_ids"]


def test_half_a_surrogate_pair_survives_arrow() -> None:
    trajectory = collect(OraclePolicy(), n=1)[0]
    call, result = ToolCall("f", {"x": "\ud800"}), ToolResult("f", {"x": "\ud800"}, "\udfff", True)
    odd = replace(
        trajectory,
        messages=(Message("user", "a\ud800b"), Message("assistant", "ü", (call,)), *trajectory.messages[2:]),
        turns=(replace(trajectory.turns[0], tool_results=(result,)), *trajectory.turns[1:]),
    )
    table = to_dataset([odd])
    assert table[0]["messages"][0]["content"] == "a?b"
    assert from_dataset(table) == [odd]


def test_two_halves_of_a_surrogate_pair_become_their_character() -> None:
    """As a server sends them in two pieces of an answer. JSON, which most columns hold, joins them."""
    halves, whole = "\ud83d" + "\ude00", "😀"

    def odd(text: str) -> Trajectory:
        (trajectory, *_) = collect(OraclePolicy(), n=1)
        messages = (Message("user", text, (ToolCall("f", {text: text}),), metadata={"x": text}),)
        return replace(trajectory, messages=messages, env_kwargs={"x": text}, turns=(), timings={})

    table = to_dataset([odd(halves)])
    assert table[0]["messages"][0]["content"] == whole
    assert from_dataset(table) == [odd(whole)]
    assert is_same_record(odd(halves), odd(whole))
    assert not is_same_record(odd("\ud83d"), odd("\ude00"))


class TestMessages:
    CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "text": "é"}}\n</tool_call>'
    TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

    def episode(self, *messages: Message) -> Trajectory:
        return replace(collect(OraclePolicy(), n=1)[0], messages=messages, tools=(self.TOOL,))

    def test_calls_and_thinking_as_chat_apis_have_them(self) -> None:
        episode = self.episode(
            Message("system", "S"),
            Message("user", "Q"),
            Message("assistant", f"<think>hm</think>Wait.{self.CALL}{self.CALL}"),
            Message("tool", "2", metadata={"name": "add"}),
            Message("tool", "3"),
            Message("assistant", self.CALL),
            Message("tool", "4"),
            Message("assistant", "<answer>2</answer>"),
        )
        function = {"name": "add", "arguments": '{"a": 1, "text": "é"}'}
        calls = [{"id": f"call_{number}", "type": "function", "function": function} for number in range(3)]
        assert to_messages(episode) == {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "Wait.", "reasoning_content": "hm", "tool_calls": calls[:2]},
                {"role": "tool", "content": "2", "tool_call_id": "call_0", "name": "add"},
                {"role": "tool", "content": "3", "tool_call_id": "call_1"},
                {"role": "assistant", "content": "", "tool_calls": calls[2:]},
                {"role": "tool", "content": "4", "tool_call_id": "call_2"},
                {"role": "assistant", "content": "<answer>2</answer>"},
            ],
            "tools": [self.TOOL],
        }

    def test_what_is_broken_or_not_to_be_parsed_stays_as_written(self) -> None:
        broken = "<think>no end <tool_call>{</tool_call>"
        messages = to_messages(self.episode(Message("assistant", broken), Message("tool", "t")))["messages"]
        assert messages == [{"role": "assistant", "content": broken}, {"role": "tool", "content": "t"}]
        assert to_messages(self.episode(Message("assistant", self.CALL)), parser=None)["messages"] == [
            {"role": "assistant", "content": self.CALL}
        ]

    def test_ids_that_an_api_gave_are_kept(self) -> None:
        call = ToolCall("f", {}, "id-7")
        shown = to_messages(self.episode(Message("assistant", "x", (call,)), Message("tool", "r", tool_call_id="id-7")))
        assert shown["messages"][0]["tool_calls"][0]["id"] == shown["messages"][1]["tool_call_id"] == "id-7"
        assert shown["messages"][0]["content"] == "x"

    def test_a_file_of_lines(self, tmp_path: Path) -> None:
        trajectories = variety()
        path = tmp_path / "new" / "m.jsonl"
        n = to_messages_jsonl(trajectories, path)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert n == len(records) == sum(t.status == "ok" for t in trajectories)
        assert all({*record} <= {"messages", "tools"} for record in records)
        odd = self.episode(Message("user", "half \ud800"), Message("assistant", "a\u2028b"))
        assert to_messages_jsonl([odd], path) == 1
        (line,) = path.read_bytes().decode().split("\n")[:-1]
        assert json.loads(line)["messages"][0]["content"] == "half ?"

    def test_a_file_appears_whole_or_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "m.jsonl"
        path.write_text("before\n")
        with pytest.raises(ValueError, match="JSON compliant"):
            write_jsonl([{"a": 1}, {"a": float("nan")}], path)
        assert path.read_text() == "before\n" and [entry.name for entry in tmp_path.iterdir()] == ["m.jsonl"]


class TestPreferencePairs:
    """Groups of hand-made rewards over one episode of two turns, whose tokens are worked out here."""

    def episode(self, member: int, reward: float, digits: str = "12") -> Trajectory:
        """Play the two digits given as problem, saying the member's own digit twice."""
        from llm_envs.policies import ConstantPolicy
        from llm_envs.rollout import EpisodeSpec

        problem = {"problem": {"digits": [int(digit) for digit in digits]}}
        spec = EpisodeSpec("NumbersEnv", group_id="g", member=member, options=problem)
        with Collector(NumbersEnv, ConstantPolicy(str(member)), codec=CODEC) as collector:
            ((trajectory,),) = [group.trajectories for group in collector.play([[spec]])]
        turns = tuple(replace(turn, reward=reward / 2) for turn in trajectory.turns)
        return replace(trajectory, turns=turns)

    def test_the_tokens_of_a_pair(self) -> None:
        good, bad = self.episode(1, 1.0), self.episode(2, 0.25)
        (pair,) = preference_pairs(to_groups([bad, good]))
        system, user, assistant, end = 257, 258, 259, 256
        said = [*b"Say 2."]
        between = [user, *said, end, assistant]
        second = {"role": "user", "content": "Say 2."}
        assert pair == {
            "prompt": [{"role": "system", "content": "Repeat."}, {"role": "user", "content": "Say 1."}],
            "chosen": [{"role": "assistant", "content": "1"}, second, {"role": "assistant", "content": "1"}],
            "rejected": [{"role": "assistant", "content": "2"}, second, {"role": "assistant", "content": "2"}],
            "prompt_ids": [system, *b"Repeat.", end, user, *b"Say 1.", end, assistant],
            "chosen_ids": [ord("1"), end, *between, ord("1"), end],
            "chosen_mask": [1, 1, *[0] * len(between), 1, 1],
            "rejected_ids": [ord("2"), end, *between, ord("2"), end],
            "rejected_mask": [1, 1, *[0] * len(between), 1, 1],
            "chosen_reward": 1.0,
            "rejected_reward": 0.25,
            "env_id": "NumbersEnv",
            "group_id": "g",
            "chosen_member": 1,
            "rejected_member": 2,
        }

    def members(self, pairs: list[dict[str, Any]]) -> list[tuple[int, int]]:
        return [(pair["chosen_member"], pair["rejected_member"]) for pair in pairs]

    def test_the_best_against_the_worst_with_a_margin(self) -> None:
        episodes = [self.episode(m, reward) for m, reward in enumerate([0.5, 1.0, 0.0, 1.0, 0.0])]
        assert self.members(preference_pairs(to_groups(episodes))) == [(1, 2)]
        assert preference_pairs(to_groups(episodes), margin=1.0) == []  # 1 is not more than 1
        every = [(one, other) for one in episodes for other in episodes]
        wide = preference_rows(every, margin=0.5)
        assert self.members(wide) == [(1, 2), (1, 4), (3, 2), (3, 4)]

    def test_a_tie_is_never_a_pair_and_a_group_of_one_is_none(self) -> None:
        tied = [self.episode(0, 0.5), self.episode(1, 0.5)]
        assert preference_pairs(to_groups(tied)) == preference_rows([(tied[0], tied[1])]) == []
        assert preference_pairs(to_groups([self.episode(0, 0.5)])) == preference_pairs([]) == []

    def test_what_was_not_scored_is_left_out(self) -> None:
        errored = collect(with_failures(HashingTokenPolicy(CODEC, DIGITS), 1.0), n=1, max_retries=0)
        moved = [replace(t, group_id="g", member=5 + t.member) for t in errored]
        assert self.members(preference_pairs(to_groups([self.episode(1, 1.0), *moved, self.episode(2, 0.0)]))) == [
            (1, 2)
        ]

    def test_what_cannot_be_compared_is_refused(self) -> None:
        one, other = self.episode(1, 1.0), self.episode(2, 0.0, digits="34")
        with pytest.raises(InvalidConfigError, match="members 1 and 2"):
            preference_pairs(to_groups([one, other]))
        forked = replace(self.episode(2, 0.0), rows=(one.rows[0], one.rows[0]))
        with pytest.raises(InvalidConfigError, match=r"g/2 has 2 rows"):
            preference_pairs(to_groups([one, forked]))
        without = replace(self.episode(2, 0.0), rows=())
        with pytest.raises(InvalidConfigError, match=r"g/2 .*codec="):
            preference_pairs(to_groups([one, without]))
        with pytest.raises(InvalidConfigError, match="margin is -1"):
            preference_pairs([], margin=-1)

    def test_trl_takes_the_rows(self) -> None:
        pytest.importorskip("trl")
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        rows = preference_pairs(to_groups([self.episode(1, 1.0), self.episode(2, 0.0)]))
        batch = DataCollatorForPreference(pad_token_id=0)(rows)
        assert batch["input_ids"].tolist() == [
            rows[0]["prompt_ids"] + rows[0][f"{n}_ids"] for n in ("chosen", "rejected")
        ]


def test_groups_of_a_flat_list() -> None:
    trajectories = collect(OraclePolicy(), n=3)
    groups = to_groups([trajectories[3], *trajectories[:2], trajectories[2]])
    assert [[t.member for t in group] for group in groups] == [[0, 1], [0, 1]]
    assert [group.group_id for group in groups] == [trajectories[3].group_id, trajectories[0].group_id]


def test_runs_of_two_tasks_with_the_same_ids_stay_two_groups() -> None:
    here = collect(OraclePolicy(), n=1)
    there = [replace(trajectory, env_id="other/Task-v0") for trajectory in here]
    groups = to_groups([*here, *there])
    assert [(group.env_id, len(group)) for group in groups] == [("NumbersEnv", 2), ("other/Task-v0", 2)]


def test_a_dataset_written_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr("llm_envs.data.datasets._BATCH", 3)
    trajectories = variety()
    assert write_dataset(iter(trajectories), tmp_path / "table") == len(trajectories) > 6
    table, whole = datasets.load_from_disk(str(tmp_path / "table")), to_dataset(trajectories)
    assert [t.to_json() for t in from_dataset(table)] == [t.to_json() for t in from_dataset(whole)]
    assert table.features == whole.features
    write_dataset(iter(trajectories), tmp_path / "again")
    assert datasets.load_from_disk(str(tmp_path / "again"))._fingerprint != table._fingerprint  # the key of its caches


def test_groups_come_when_they_are_complete() -> None:
    one, two = (list(group) for group in Collector(NumbersEnv, OraclePolicy()).collect(2, group_size=2))
    read: list[Trajectory] = []

    def reading() -> Iterator[Trajectory]:
        for trajectory in (one[1], two[0], two[1], one[0]):
            read.append(trajectory)
            yield trajectory

    groups = iter_groups(reading(), group_size=2)
    assert next(groups).trajectories == tuple(two) and len(read) == 3
    assert next(groups).trajectories == tuple(one) and next(groups, None) is None
    assert [list(group) for group in iter_groups(reading())] == [one, two]  # as to_groups has them
