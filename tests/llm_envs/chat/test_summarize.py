"""Summaries that the policy writes of its own history: their turns, rows, limits, seeds and failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_envs.chat.summarize import HEADING
from llm_envs.data.parquet import read_shard, write_shard
from llm_envs.data.records import from_record, to_record
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.scores import score_episode
from llm_envs.parsers import parse_reply
from llm_envs.policies import OraclePolicy, ReplayPolicy
from llm_envs.report import write_report
from llm_envs.rewards import own_messages
from llm_envs.rewards.conduct import create_turn_efficiency
from llm_envs.rewards.shaping import create_step_cost
from llm_envs.rollout import (
    Collector,
    EpisodeSpec,
    RolloutLimits,
    Summarize,
    TrajectoryWriter,
    play_episode,
    read_trajectories,
)
from llm_envs.rollout.filters import create_void_turn_filter
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tracking import trajectory_metrics
from llm_envs.types import (
    FinishReason,
    Message,
    SamplingParams,
    StopReason,
    Trajectory,
    VersionSpan,
    inspect_trajectory,
    validate_batch,
)

CODEC = ByteCodec()
EOT, SYSTEM, USER, ASSISTANT, TOOL = 256, 257, 258, 259, 260
ASKED = "Sum up."
DIGITS = [4, 2, 7, 1, 0, 5, 3, 9]
# The first prompt has 18 tokens, and a turn and its answer have 11: the answer to the sixth turn passes 80.
SUMMARIZE = Summarize(history_tokens=80, summary_tokens=40, prompt=ASKED)
SUMMARY = "<think>so</think>Had 4271053"
SPEC = EpisodeSpec("Numbers", {}, 7, "g", 1, {"problem": {"digits": DIGITS}})


def last_message(prompt_ids: np.ndarray) -> str:
    """Return the message that the policy answers."""
    starts = np.flatnonzero(prompt_ids > EOT)
    return CODEC.decode_reply(prompt_ids[starts[-2] + 1 : starts[-1]])


def speak(prompt_ids: np.ndarray, random: Any) -> str:
    """Say the digit that was asked for last; as a summary, say all digits so far, and think before it."""
    if last_message(prompt_ids) == ASKED:
        said = [part[0] for part in CODEC.decode_reply(prompt_ids).split("Say ")[1:]]
        return f"<think>so</think>Had {''.join(said)}"
    return last_message(prompt_ids)[len("Say ")]


def play(context_fn: Any = SUMMARIZE, policy: Any = None, env: Any = None, **settings: Any) -> Trajectory:
    policy, env = policy or HashingTokenPolicy(CODEC, speak), env or NumbersEnv()
    settings = {"codec": CODEC, "context_fn": context_fn, "run_seed": 3, **settings}
    trajectory = asyncio.run(play_episode(env, SPEC, policy, **settings))
    assert validate_batch([trajectory]) == []
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    return trajectory


def text_of(ids: np.ndarray) -> list[int | str]:
    """Return ids with runs of bytes as strings."""
    out: list[int | str] = []
    for token in ids.tolist():
        if token >= 256:
            out.append(token)
        elif out and isinstance(out[-1], str):
            out[-1] += chr(token)
        else:
            out.append(chr(token))
    return out


def turns_of(*digits: int, then: int) -> list[int | str]:
    """Return turns that say these digits, each with the question after it; the last one asks for `then`."""
    out: list[int | str] = []
    for digit, next_one in zip(digits, (*digits[1:], then), strict=True):
        out += [str(digit), EOT, USER, f"Say {next_one}.", EOT, ASSISTANT]
    return out


START = [SYSTEM, "Repeat.", EOT, USER, "Say 4.", EOT]


class TestRows:
    def test_by_hand(self) -> None:
        trajectory = play()
        first, second = trajectory.rows
        before = turns_of(4, 2, 7, 1, 0, 5, then=3)[:-1]
        assert text_of(first.ids) == [*START, ASSISTANT, *before, USER, ASKED, EOT, ASSISTANT, SUMMARY, EOT]
        assert text_of(second.ids) == [
            *[*START, USER, f"{HEADING}Had 4271053", EOT],  # without the thinking
            *[ASSISTANT, *turns_of(5, 3, then=9), "9", EOT],
        ]
        assert text_of(first.ids[first.mask]) == [token for digit in "427105" for token in (digit, EOT)] + [
            SUMMARY,
            EOT,
        ]
        assert text_of(second.ids[second.mask]) == ["3", EOT, "9", EOT]
        for row in trajectory.rows:
            assert (row.logps[row.mask] < 0).all() and (row.logps[~row.mask] == 0).all()

    def test_a_summary_is_a_turn_with_its_tokens_and_versions_and_no_reward(self) -> None:
        policy = HashingTokenPolicy(CODEC, speak)
        policy.version = 5
        trajectory = play(policy=policy)
        assert [(t.is_summary, t.row, t.span, t.reward) for t in trajectory.turns] == [
            *[(False, 0, span, 0.125) for span in range(6)],
            (True, 0, 6, 0.0),
            *[(False, 1, span, 0.125) for span in range(2)],
        ]
        summary = trajectory.turns[6]
        assert summary.weight_versions == (VersionSpan(0, 29, 5),) and summary.finish_reason is FinishReason.STOP
        assert summary.components == {} and set(summary.seconds) == {"policy"}
        assert (trajectory.reward, trajectory.is_success, trajectory.n_steps) == (1.0, True, 8)
        assert [(m.role, m.content) for m in trajectory.messages[13:17]] == [
            *[("user", "Say 3."), ("user", ASKED), ("assistant", SUMMARY), ("assistant", "3")]
        ]
        assert "[summary, stop]" in inspect_trajectory(trajectory)

    def test_what_a_cut_summary_says_is_used(self) -> None:
        trajectory = play(Summarize(80, 24, prompt=ASKED))
        assert trajectory.turns[6].finish_reason is FinishReason.LENGTH and trajectory.is_success
        assert text_of(trajectory.rows[0].ids)[-1] == SUMMARY[:24]
        assert f"{HEADING}Had 427" in text_of(trajectory.rows[1].ids)

    def test_an_untrained_summary_is_context_and_everything_else_is_equal(self) -> None:
        trained, untrained = play(), play(Summarize(80, 40, prompt=ASKED, trained=False))
        assert [row.ids.tolist() for row in trained.rows] == [row.ids.tolist() for row in untrained.rows]
        start, stop = trained.rows[0].spans[6]
        assert (trained.rows[0].mask ^ untrained.rows[0].mask).nonzero()[0].tolist() == list(range(start, stop))
        assert untrained.rows[0].spans == trained.rows[0].spans[:6]
        assert [(t.row, t.span) for t in untrained.turns[5:]] == [(0, 5), (-1, -1), (1, 0), (1, 1)]
        assert untrained.turns[6].weight_versions == trained.turns[6].weight_versions
        assert untrained.messages == trained.messages

    def test_a_later_summary_replaces_the_earlier_one(self) -> None:
        """Above 40 tokens; the second row has more from its beginning, so each turn beyond two asks again."""
        trajectory = play(Summarize(40, 40, n_turns=2, prompt=ASKED))
        assert [t.is_summary for t in trajectory.turns] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
        assert trajectory.n_steps == 8 and trajectory.is_success and trajectory.n_forks == 5
        # What a summary says: the first question, which is the task, and the questions of the turns that are kept.
        assert [text_of(row.ids)[7][len(HEADING) :] for row in trajectory.rows[1:]] == [
            *["Had 4271", "Had 4710", "Had 4105", "Had 4053", "Had 4539"]
        ]

    def test_with_the_template_history(self) -> None:
        assert play(history="template") == play()

    def test_a_short_history_is_not_summarised(self) -> None:
        assert play(Summarize(1000, prompt=ASKED)) == play(None)
        # The history has no more turns than are kept.
        assert play(Summarize(1, prompt=ASKED, n_turns=8)) == play(None)


class TestLimits:
    def test_summaries_do_not_count_as_turns(self) -> None:
        trajectory = play(limits=RolloutLimits(max_turns=7))
        assert trajectory.stop_reason is StopReason.MAX_TURNS
        assert [t.is_summary for t in trajectory.turns] == [*[False] * 6, True, False]
        # Cut before the turn for which a summary was due: nothing is asked for.
        assert len(play(limits=RolloutLimits(max_turns=6)).turns) == 6

    def test_a_summary_has_its_own_budget(self) -> None:
        policy = HashingTokenPolicy(CODEC, speak)
        play(policy=policy, sampling=SamplingParams(max_new_tokens=9), limits=RolloutLimits(max_turn_tokens=5))
        assert [budget for _, _, budget in policy.calls] == [*[5] * 6, 40, 5, 5]

    def test_without_room_for_a_summary_the_episode_ends_before_it(self) -> None:
        """The row has 93 tokens before the summary: 84, and 9 of the request."""
        trajectory = play(limits=RolloutLimits(max_episode_tokens=93))
        assert trajectory.stop_reason is StopReason.MAX_TOKENS and trajectory.is_cut
        assert len(trajectory.turns) == 6 and trajectory.messages[-1].content == "Say 3."
        (row,) = trajectory.rows  # the last question ends it, as in every truncated episode
        assert text_of(row.ids) == [*START, ASSISTANT, *turns_of(4, 2, 7, 1, 0, 5, then=3)[:-1]]

    def test_budgets_count_summaries(self) -> None:
        """A summary of 3 tokens fits; nothing after it does. The old row has the last question, so it ends there."""
        trajectory = play(limits=RolloutLimits(max_episode_tokens=96))
        assert trajectory.stop_reason is StopReason.MAX_TOKENS and len(trajectory.turns) == 7
        (row,) = trajectory.rows
        assert len(row) == 96 and text_of(row.ids)[-4:] == [ASKED, EOT, ASSISTANT, "<th"]
        assert [m.content for m in trajectory.messages[-2:]] == [ASKED, "<th"]
        for room, n_turns in ((122 + 61, 7), (122 + 62, 8)):  # the first row, and the second before its turn
            trajectory = play(limits=RolloutLimits(max_episode_tokens=room))
            assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TOKENS, n_turns)

    def test_a_full_context_ends_the_episode(self) -> None:
        trajectory = play(policy=HashingTokenPolicy(CODEC, speak, context_length=93))
        assert trajectory.stop_reason is StopReason.CONTEXT_FULL and trajectory.status == "ok"
        assert trajectory.n_steps == len(trajectory.turns) == 6

    def test_time(self) -> None:
        class Slow(HashingTokenPolicy):
            def latency_of(self, prompt_ids: np.ndarray, session: str) -> float:
                return 60.0 if last_message(prompt_ids) == ASKED else 0.0

        trajectory = play(policy=Slow(CODEC, speak), limits=RolloutLimits(max_episode_s=0.3))
        assert trajectory.stop_reason is StopReason.TIMEOUT and len(trajectory.turns) == 6
        failed = play(policy=Slow(CODEC, speak), limits=RolloutLimits(max_policy_s=0.2))
        assert failed.status == "errored" and failed.error is not None and failed.error.kind == "TimeoutError"

    def test_a_policy_that_fails_at_a_summary_costs_its_episode(self) -> None:
        def fail(prompt_ids: np.ndarray, random: Any) -> str:
            if last_message(prompt_ids) == ASKED:
                raise RuntimeError("no")
            return "4"

        trajectory = play(policy=HashingTokenPolicy(CODEC, fail))
        assert trajectory.status == "errored" and trajectory.error is not None
        assert (trajectory.error.kind, trajectory.error.where) == ("RuntimeError", "policy")
        assert len(trajectory.turns) == 6

    def test_a_step_that_fails_after_a_summary_keeps_the_summary(self) -> None:
        trajectory = play(env=NumbersEnv(raise_at=7))
        assert trajectory.status == "errored" and [len(row.spans) for row in trajectory.rows] == [7]


class TestPolicies:
    def test_a_chat_policy_writes_summaries_too(self) -> None:
        class Chat:
            def __init__(self) -> None:
                self.seen: list[list[str]] = []

            async def reply(self, messages: Any, tools: Any, params: SamplingParams) -> Message:
                self.seen.append([m.content for m in messages])
                asked = messages[-1].content
                return Message("assistant", "Had 42." if asked == ASKED else asked[4])

        policy = Chat()
        trajectory = play(policy=policy)
        assert trajectory.is_success and trajectory.turns[6].is_summary
        assert policy.seen[6][-4:] == ["Say 5.", "5", "Say 3.", ASKED] and len(policy.seen[6]) == 15
        assert policy.seen[7] == ["Repeat.", "Say 4.", f"{HEADING}Had 42.", "5", "Say 3."]
        assert np.isnan(trajectory.rows[0].logps[trajectory.rows[0].mask]).all()

    def test_what_cannot_be_asked_is_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match=r"Summarize\(history_tokens=80\) counts tokens: pass codec"):
            play(codec=None)
        with pytest.raises(InvalidConfigError, match="OraclePolicy reads the environment and no messages"):
            Collector(NumbersEnv, OraclePolicy(), codec=CODEC, context_fn=SUMMARIZE)

    @pytest.mark.parametrize("name", ["history_tokens", "summary_tokens", "n_turns"])
    @pytest.mark.parametrize("value", [0, 1.5, True, None])
    def test_settings_are_checked(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidConfigError, match=f"{name} is {value!r}; it must be an integer"):
            Summarize(**{"history_tokens": 9, name: value})
        with pytest.raises(InvalidConfigError, match="prompt is ' '"):
            Summarize(9, prompt=" ")


class TestCollector:
    def collect(self, **settings: Any) -> list[Trajectory]:
        policy = settings.pop("policy", None) or HashingTokenPolicy(CODEC, ["4", "7", "Had 4", "Had 471 and more"])
        common = {"codec": CODEC, "env_kwargs": {"n_turns": 8}, "context_fn": SUMMARIZE, "seed": 1, "progress": False}
        with Collector(NumbersEnv, policy, **common, **settings) as collector:
            return [t for group in collector.collect(6, 3) for t in group]

    def test_same_seeds_same_tokens_at_any_concurrency(self) -> None:
        one_by_one, at_once = self.collect(max_concurrency=1), self.collect(max_concurrency=18)
        assert one_by_one == at_once and sum(t.n_forks for t in at_once) > 18
        assert len({t.rows[0].ids.tobytes() for t in at_once}) > 6

    def test_an_interrupted_summary_goes_on_from_its_tokens_under_new_weights(self) -> None:
        class SlowSummaries(HashingTokenPolicy):
            is_in_summary = False

            def latency_of(self, prompt_ids: np.ndarray, session: str) -> float:
                self.is_in_summary = last_message(prompt_ids) == ASKED
                return 3600.0 if self.version == 0 and self.is_in_summary else 0.0

        async def main() -> Trajectory:
            gate, policy = PauseGate(), SlowSummaries(CODEC, speak)
            episode = asyncio.create_task(
                play_episode(NumbersEnv(), SPEC, policy, codec=CODEC, context_fn=SUMMARIZE, run_seed=3, gate=gate)
            )
            while not policy.is_in_summary:
                await asyncio.sleep(0)
            await gate.close()
            policy.version = 1
            gate.open()
            trajectory = await episode
            assert policy.interrupted == 1
            return trajectory

        trajectory, plain = asyncio.run(main()), play()
        assert [row.ids.tolist() for row in trajectory.rows] == [row.ids.tolist() for row in plain.rows]
        first, second = trajectory.turns[6].weight_versions
        assert (first.version, second.version, second.stop) == (0, 1, 29) and first.stop == second.start > 0
        assert {span.version for turn in trajectory.turns[7:] for span in turn.weight_versions} == {1}


class TestReaders:
    """What reads finished episodes counts a summary as what it is: a turn of the policy, and no step."""

    @pytest.mark.parametrize("trained", [True, False])
    def test_stores_keep_the_mark(self, tmp_path: Path, trained: bool) -> None:
        trajectory = play(Summarize(80, 40, prompt=ASKED, trained=trained))
        with TrajectoryWriter(tmp_path / "run") as writer:
            writer.write(trajectory)
        assert read_trajectories(tmp_path / "run") == [trajectory]
        assert from_record(to_record(trajectory)) == trajectory

    def test_older_parquet_without_the_mark_is_read(self, tmp_path: Path) -> None:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        plain = play(None)
        write_shard([plain], tmp_path / "new.parquet")
        table = parquet.read_table(tmp_path / "new.parquet")
        turns = [[{k: t[k] for k in t if k != "is_summary"} for t in part] for part in table["turns"].to_pylist()]
        at = table.schema.get_field_index("turns")
        old = pyarrow.struct([f for f in table.schema.field("turns").type.value_type if f.name != "is_summary"])
        field = pyarrow.field("turns", pyarrow.list_(old))
        parquet.write_table(
            table.set_column(at, field, pyarrow.array(turns, field.type)),
            tmp_path / "old.parquet",
            write_page_checksum=True,
        )
        assert list(read_shard(tmp_path / "old.parquet")) == [plain]

    def test_metrics_filters_and_rewards(self) -> None:
        trajectory = play()
        assert trajectory_metrics([trajectory])["turns"] == score_episode(trajectory).turns == 8
        assert create_turn_efficiency(8)(trajectory) == 1 / 8
        assert create_step_cost(0.5)(trajectory).tolist() == [-0.5] * 6 + [0.0] + [-0.5] * 2
        digits = create_void_turn_filter(lambda text: parse_reply(f"<answer>{text}</answer>" if len(text) == 1 else ""))
        assert digits(trajectory)
        assert (trajectory.n_example_replies, own_messages(trajectory)[6:]) == (0, (15, 16, 18))

    def test_the_actions_can_be_replayed(self) -> None:
        trajectory = play()
        assert ReplayPolicy.of(trajectory).actions == tuple("42710539")
        assert play(None, policy=ReplayPolicy.of(trajectory)).reward == trajectory.reward == 1.0

    def test_reports_name_it(self, tmp_path: Path) -> None:
        with TrajectoryWriter(tmp_path / "run") as writer:
            writer.write(play())
        write_report([tmp_path / "run"], tmp_path / "page.html")
        assert "summary, stop" in (tmp_path / "page.html").read_text(encoding="utf-8")
