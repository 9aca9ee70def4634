"""Tables of trajectories, and rows to train on."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_envs.data import from_dataset, sft_rows, to_dataset
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.policies.scripted import OraclePolicy
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
