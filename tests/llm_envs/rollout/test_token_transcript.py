"""Rows and forks: which tokens a model sees, in which row each turn stands, and what is taken back."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from families import family_tokenizer

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import Collector, EpisodeSpec, RolloutLimits, create_window, play_episode
from llm_envs.rollout.token_transcript import TokenTranscript
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tracking import trajectory_metrics
from llm_envs.types import Message, StopReason, validate_batch

CODEC = ByteCodec()
EOT, SYSTEM, USER, ASSISTANT = CODEC.end_of_turn_id, 257, 258, 259
QWEN3 = ChatCodec(family_tokenizer("qwen3"))
ASK = [Message("user", "What?")]


def sampled(codec, words):
    ids = np.array([*codec.tokenizer.encode(words, add_special_tokens=False), codec.end_of_turn_id], dtype=np.int32)
    return Message("assistant", codec.decode_reply(ids)), ids, np.full(len(ids), -1.0, dtype=np.float32)


def row_text(codec, transcript, index):
    return codec.decode(transcript.rows()[index].ids)


def test_a_template_that_drops_thinking_forks_where_it_does():
    """Qwen3 keeps the thinking before a tool's result and drops it before a user's message."""
    transcript = TokenTranscript(QWEN3, "template")
    transcript.begin(ASK, ())
    transcript.append_reply(*sampled(QWEN3, "<think>\nA\n</think>\n\nCall."))
    transcript.append_observation((Message("tool", "4"),))
    assert not transcript.is_forked and len(transcript.rows()) == 1
    transcript.append_reply(*sampled(QWEN3, "<think>\nB\n</think>\n\nFour."))
    transcript.append_observation((Message("user", "Sure?"),))
    assert transcript.is_forked
    transcript.append_reply(*sampled(QWEN3, "Yes."))
    rows = transcript.rows()
    assert [len(row.spans) for row in rows] == [2, 1]
    assert QWEN3.decode(rows[0].ids).count("<think>") == 2
    assert QWEN3.decode(rows[1].ids) == (
        "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nCall.<|im_end|>\n<|im_start|>user\n<tool_response>\n4\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
        "<|im_start|>assistant\nYes.<|im_end|>"
    )
    start, stop = rows[1].spans[0]
    assert QWEN3.decode(rows[1].ids[start:stop]) == "Yes.<|im_end|>"
    assert rows[1].mask.sum() == stop - start


def test_append_keeps_what_was_written():
    transcript = TokenTranscript(QWEN3)
    transcript.begin(ASK, ())
    transcript.append_reply(*sampled(QWEN3, "<think>\nB\n</think>\n\nFour."))
    transcript.append_observation((Message("user", "Sure?"),))
    assert not transcript.is_forked
    assert "<think>\nB\n</think>\n\nFour.<|im_end|>\n<|im_start|>user\nSure?" in row_text(QWEN3, transcript, 0)


def test_a_fork_in_which_nothing_was_said_is_taken_back():
    transcript = TokenTranscript(QWEN3, "template")
    transcript.begin(ASK, ())
    transcript.append_reply(*sampled(QWEN3, "<think>\nB\n</think>\n\nFour."))
    before = transcript.row.ids.copy()
    heard = (Message("user", "Sure?"),)
    transcript.append_observation(heard)
    assert transcript.is_forked and transcript.earlier_tokens == len(before)
    transcript.append_final_observation(heard)
    (row,) = transcript.rows()
    assert np.array_equal(row.ids[: len(before)], before)
    assert QWEN3.decode(row.ids[len(before) :]) == "\n<|im_start|>user\nSure?<|im_end|>\n"


def test_words_whose_step_failed_leave_no_row_behind():
    transcript = TokenTranscript(QWEN3, "template")
    transcript.begin(ASK, ())
    transcript.append_reply(*sampled(QWEN3, "<think>\nB\n</think>\n\nFour."))
    transcript.append_observation((Message("user", "Sure?"),))
    transcript.append_reply(*sampled(QWEN3, "Yes."))
    assert transcript.row_index == 1
    transcript.drop_reply()
    assert [len(row.spans) for row in transcript.rows()] == [1]


def test_a_history_that_is_neither_is_refused():
    with pytest.raises(InvalidConfigError, match=r"history is 'whole'.*\"append\" or \"template\""):
        TokenTranscript(CODEC, "whole")
    with pytest.raises(InvalidConfigError, match="history is 'x'"):
        Collector(NumbersEnv, HashingTokenPolicy(CODEC, ["1"]), codec=CODEC, history="x")


# Whole episodes. NumbersEnv says "Say d." for each of its digits; the policy says what it is asked for.


def wanted_digit(prompt_ids, random):
    return CODEC.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0]


def play(digits, context_fn=None, limits=None, **kwargs):
    spec = EpisodeSpec("Numbers", options={"problem": {"digits": digits}}, seed=7, group_id="g")
    policy = HashingTokenPolicy(CODEC, wanted_digit)
    episode = play_episode(NumbersEnv(), spec, policy, codec=CODEC, context_fn=context_fn, limits=limits, **kwargs)
    return asyncio.run(episode), policy


def test_a_window_forks_where_it_drops_something():
    trajectory, _ = play([3, 1, 4, 1], create_window(1))
    assert trajectory.status == "ok" and len(trajectory.turns) == 4 and trajectory.is_success
    # The first two turns fit the window of one turn and what follows; the third drops the first, the fourth the second.
    assert [turn.row for turn in trajectory.turns] == [0, 0, 1, 2]
    assert trajectory.n_forks == 2
    assert validate_batch([trajectory]) == []
    assert trajectory_metrics([trajectory])["forks"] == 2
    last = trajectory.rows[2]
    assert bytes(i for i in last.ids.tolist() if i < 256).decode().endswith("Say 3.4Say 1.1")
    words = [
        bytes(i for i in row.ids[a:b].tolist() if i < 256).decode() for row in trajectory.rows for a, b in row.spans
    ]
    assert words == ["3", "1", "4", "1"]
    assert all((row.logps[row.mask] < 0).all() and (row.logps[~row.mask] == 0).all() for row in trajectory.rows)


def test_a_context_function_that_changes_nothing_forks_nothing():
    whole, _ = play([3, 1])
    same, _ = play([3, 1], lambda messages: list(messages))
    assert whole == same and whole.n_forks == 0


def test_a_context_function_may_wait():
    async def summarise(messages):
        await asyncio.sleep(0)
        return [messages[0], Message("user", "Before: much. " + messages[-1].content)]

    trajectory, _ = play([3, 1], summarise)
    assert trajectory.is_success and [turn.row for turn in trajectory.turns] == [0, 1]
    assert "Before: much. Say 1." in bytes(i for i in trajectory.rows[1].ids.tolist() if i < 256).decode()


def test_a_context_function_that_fails_or_returns_nonsense_costs_its_episode():
    for broken in (lambda messages: [], lambda messages: ["text"], lambda messages: 1 / 0):
        trajectory, _ = play([3, 1], broken)
        assert trajectory.status == "errored" and trajectory.error.where == "policy"
    with pytest.raises(InvalidConfigError, match="n_turns is 0"):
        create_window(0)


def test_a_context_function_is_called_before_turns_alone_and_within_the_policys_time():
    asked = []

    def watch(messages):
        asked.append(len(messages))
        if len(messages) > 4:
            raise RuntimeError("after the last turn")
        return messages

    spec_limits = RolloutLimits(max_turns=2)
    trajectory, _ = play([3, 1, 4], watch, spec_limits)
    assert trajectory.status == "ok" and trajectory.reward > 0  # what was earned is not lost to what nobody reads
    assert asked == [4] and trajectory.stop_reason is StopReason.MAX_TURNS

    async def hang(messages):
        await asyncio.Event().wait()

    hung, _ = play([3, 1], hang, RolloutLimits(max_policy_s=0.05))
    assert hung.status == "errored" and "max_policy_s=0.05" in hung.error.message


def test_budgets_count_the_tokens_of_all_rows():
    free, _ = play([3, 1, 4, 1], create_window(1))
    total = sum(len(row) for row in free.rows)
    tight, _ = play([3, 1, 4, 1], create_window(1), RolloutLimits(max_episode_tokens=total - 3))
    assert tight.stop_reason is StopReason.MAX_TOKENS and len(tight.turns) == 3
    assert [turn.row for turn in tight.turns] == [0, 0, 1] and len(tight.rows) == 2
    assert tight.n_tokens <= total - 3


def test_a_collector_hands_history_and_context_on_and_counts_forks():
    collector = Collector(
        NumbersEnv, HashingTokenPolicy(CODEC, wanted_digit), codec=CODEC, context_fn=create_window(1), progress=False
    )
    with collector:
        (group,) = collector.collect(1, 2)
    forks = sum(trajectory.n_forks for trajectory in group.trajectories)
    assert collector.stats.forks == forks
    assert (f"{forks} forks" in collector.stats.summary()) == (forks > 0)
