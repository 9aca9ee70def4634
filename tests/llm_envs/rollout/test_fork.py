"""Stored episodes are entered again at any turn, and played on from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import llm_envs
from llm_envs.checker.catalogue import example_kwargs
from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError, MissingExtraError, ReplayError
from llm_envs.policies import OraclePolicy, RandomPolicy
from llm_envs.rewards.conduct import create_overlong_penalty, length_of
from llm_envs.rollout import Collector, RolloutLimits, Summarize, TrajectoryWriter, read_trajectories
from llm_envs.rollout.fork import branch, replay_to
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import Message, SamplingParams, Trajectory, validate_batch

ELSEWHERE = ("llm/ALFWorld-v0", "llm/Repository-v0")  # their own tests make games and projects for them
TASK_IDS = [id for id in llm_envs.task_ids() if id.startswith("llm/") and id not in ELSEWHERE]


def levels_of(task: str) -> list[tuple[str, str]]:
    try:
        return [(task, level) for level in gym.make(task, **example_kwargs(task)).unwrapped.difficulties]
    except MissingExtraError:  # the environments of vLLM and Ray have fewer packages
        return []


LEVELS = [pair for task in TASK_IDS for pair in levels_of(task)]
MAZE = "llm/Maze-v0"
SAMPLING = SamplingParams(max_new_tokens=24)
TEXTS = [f"<answer>{move}</answer>" for move in ("up", "down", "left", "right", "up up", "left left", "right up")]


def played(policy: Any, env: Any = MAZE, n: int = 2, **settings: Any) -> list[Trajectory]:
    with Collector(env, policy, progress=False, **settings) as collector:
        return [episode for group in collector.collect(n) for episode in group]


@pytest.mark.levels
@pytest.mark.parametrize("policy", [OraclePolicy, RandomPolicy])
@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_every_turn_of_every_task_is_reached_again(task: str, level: str, policy: type) -> None:
    (episode,) = played(
        policy(), task, 1, env_kwargs={**example_kwargs(task), "difficulty": level}, limits=RolloutLimits(max_turns=12)
    )
    assert episode.turns
    for turn in {0, len(episode.turns) // 2, len(episode.turns)}:
        found = replay_to(episode, turn)
        found.env.close()
        n_replies = sum(message.role == "assistant" for message in found.messages) - episode.n_example_replies
        assert n_replies == turn
        assert found.messages == episode.messages[: len(found.messages)]


def test_what_answers_otherwise_is_named() -> None:
    episode = played(OraclePolicy(), n=1)[0]
    turns = (replace(episode.turns[0], reward=0.5, components={"reward": 0.5}), *episode.turns[1:])
    with pytest.raises(ReplayError, match=r"turn 0: .*0\.5"):
        replay_to(replace(episode, turns=turns), 1)
    messages = (*episode.messages[:-1], Message("user", "something else"))
    if episode.messages[-1].role == "assistant":
        messages = (Message("user", "something else"), *episode.messages[1:])
    with pytest.raises(ReplayError, match="something else"):
        replay_to(replace(episode, messages=messages), len(episode.turns))
    with pytest.raises(InvalidConfigError, match=rf"from 0 to {len(episode.turns)}"):
        replay_to(episode, len(episode.turns) + 1)


def test_an_environment_with_chance_of_its_own_cannot_be_replayed() -> None:
    class Chancy(gym.Wrapper[str, str, str, str]):
        def step(self, action: str) -> Any:
            observation, reward, *rest = self.env.step(action)
            return f"{observation} {np.random.default_rng().random()}", reward, *rest

    def make(**kwargs: Any) -> gym.Env[str, str]:
        return Chancy(gym.make(MAZE, **kwargs))

    episode = played(RandomPolicy(), make, 1)[0]
    with pytest.raises(ReplayError, match="other randomness"):
        replay_to(episode, 1, make)


@pytest.mark.parametrize("turn", [0, 1, 3])
def test_branches_share_the_stored_turns_and_train_only_the_new_ones(turn: int) -> None:
    policy, codec = HashingTokenPolicy(ByteCodec(), TEXTS), ByteCodec()
    limits = RolloutLimits(max_turns=6)
    episode = played(policy, codec=codec, sampling=SAMPLING, limits=limits)[1]
    group = branch(episode, turn, 4, policy, codec=codec, sampling=SAMPLING, limits=limits)
    assert group.group_id == f"{episode.group_id}/{episode.member}@{turn}" and len(group) == 4
    assert validate_batch(group.trajectories) == []
    row = episode.rows[0]
    start = row.spans[turn][0]
    new = set()
    for member in group:
        assert member.status == "ok" and member.seed == episode.seed
        assert member.turns[:turn] == tuple(replace(played, row=-1, span=-1) for played in episode.turns[:turn])
        (branched,) = member.rows
        np.testing.assert_array_equal(branched.ids[:start], row.ids[:start])
        assert not branched.mask[:start].any() and branched.spans[0][0] == start
        assert [(played.row, played.span) for played in member.turns[turn:]] == [
            (0, index) for index in range(len(member.turns) - turn)
        ]
        assert member.metadata["fork"] == {
            "group_id": episode.group_id,
            "member": episode.member,
            "turn": turn,
            "sampled_tokens": sum(stop - begin for begin, stop in row.spans[:turn]),
            "completion_tokens": len(branched) - row.prompt_length,
        }
        # An episode is as long as what it says from its first prompt on, whoever said it first.
        assert member.n_completion_tokens == len(branched) - row.prompt_length
        assert length_of(member) == member.metadata["fork"]["sampled_tokens"] + member.n_sampled_tokens
        longest = len(branched) - row.prompt_length
        assert create_overlong_penalty(longest + 1, 2)(member) == -0.5
        new.add(branched.ids[start:].tobytes())
    assert len(new) == 4
    again = branch(episode, turn, 4, policy, codec=codec, sampling=SAMPLING, limits=limits, max_concurrency=1)
    assert list(again) == list(group)


def test_the_prefix_of_a_branch_is_a_prompt_that_the_policy_has_seen() -> None:
    """So an engine with a prefix cache has computed it already."""
    prompts: list[bytes] = []

    class Noting(HashingTokenPolicy):
        async def sample(self, prompt_ids: Any, params: Any, *, seed: int, session: str) -> Any:
            prompts.append(np.asarray(prompt_ids).tobytes())
            return await super().sample(prompt_ids, params, seed=seed, session=session)

    episode = played(
        Noting(ByteCodec(), TEXTS), codec=ByteCodec(), sampling=SAMPLING, limits=RolloutLimits(max_turns=4), n=1
    )[0]
    seen = prompts[:]
    prompts.clear()
    branch(
        episode,
        2,
        3,
        Noting(ByteCodec(), TEXTS),
        codec=ByteCodec(),
        sampling=SAMPLING,
        limits=RolloutLimits(max_turns=3),
    )
    assert prompts == [seen[2]] * 3


def test_another_codec_is_refused() -> None:
    class Other(ByteCodec):
        def encode_prompt(self, *given: Any) -> Any:
            return np.concatenate([[np.int32(1)], super().encode_prompt(*given)]).astype(np.int32)

    policy = HashingTokenPolicy(ByteCodec(), TEXTS)
    episode = played(policy, codec=ByteCodec(), sampling=SAMPLING, limits=RolloutLimits(max_turns=3), n=1)[0]
    with pytest.raises(ReplayError, match="token 0 "):
        branch(episode, 1, 2, policy, codec=Other(), sampling=SAMPLING, max_retries=0)


def test_text_policies_branch_too() -> None:
    episode = played(RandomPolicy(), n=1)[0]
    group = branch(episode, 1, 3, OraclePolicy())
    assert [member.is_success for member in group] == [True] * 3
    assert all(member.messages[: len(episode.messages[:3])] == episode.messages[:3] for member in group)
    with pytest.raises(InvalidConfigError, match="before turn 1"):
        branch(episode, 1, 3, HashingTokenPolicy(ByteCodec(), TEXTS), codec=ByteCodec())


def test_summaries_are_stored_turns_like_others() -> None:
    settings = {
        "codec": ByteCodec(),
        "sampling": SAMPLING,
        "limits": RolloutLimits(max_turns=8),
        "context_fn": Summarize(history_tokens=1400, summary_tokens=16),
    }
    episode = played(HashingTokenPolicy(ByteCodec(), TEXTS), n=1, **settings)[0]
    summaries = [index for index, turn in enumerate(episode.turns) if turn.is_summary]
    assert summaries
    after = summaries[0] + 1
    replay_to(episode, len(episode.turns)).env.close()
    group = branch(episode, after, 2, HashingTokenPolicy(ByteCodec(), TEXTS), **settings)
    assert validate_batch(group.trajectories) == []
    start = episode.rows[1].spans[0][0]
    for member in group:
        np.testing.assert_array_equal(member.rows[0].ids[:start], episode.rows[1].ids[:start])


class TestCommand:
    def stored(self, folder: Path) -> Trajectory:
        with TrajectoryWriter(folder) as writer:
            for episode in played(RandomPolicy(), limits=RolloutLimits(max_turns=5)):
                writer.write(episode)
        return episode

    def test_it_shows_and_writes_what_comes_of_it(self, tmp_path: Path, capsys: Any) -> None:
        episode = self.stored(tmp_path / "run")
        name = f"{episode.group_id}/{episode.member}"
        command = ["branch", str(tmp_path / "run"), "--episode", name, "--turn", "1", "--times", "6"]
        assert main([*command, "--policy", "oracle", "--out", str(tmp_path / "out"), "--json"]) == 0
        outcomes = json.loads(capsys.readouterr().out)
        assert outcomes["n"] == 6 and outcomes["success"] == 1.0 and outcomes["stored"]["reward"] == episode.reward
        assert sum(reply["n"] for reply in outcomes["replies"]) == 6
        assert [t.metadata["fork"]["turn"] for t in read_trajectories(tmp_path / "out")] == [1] * 6
        assert main([*command, "--policy", "random"]) == 0
        shown = capsys.readouterr().out
        assert "different replies at turn 1" in shown and "success   " in shown and "policy    random" in shown

    def test_all_turns_have_a_value(self, tmp_path: Path, capsys: Any) -> None:
        episode = self.stored(tmp_path / "run")
        name = f"{episode.group_id}/{episode.member}"
        command = ["branch", str(tmp_path / "run"), "--episode", name, "--turn", "all", "--times", "3"]
        assert main([*command, "--policy", "oracle", "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert [(row["turn"], row["n"]) for row in values["turns"]] == [(k, 3) for k in range(len(episode.turns))]
        assert [row["reward"] for row in values["turns"]] == [turn.reward for turn in episode.turns]
        assert main([*command, "--policy", "random"]) == 0
        shown = capsys.readouterr().out
        assert "played on by random" in shown and f"turn {len(episode.turns) - 1:3d}" in shown

    def test_errors(self, tmp_path: Path, capsys: Any) -> None:
        episode = self.stored(tmp_path / "run")
        run = str(tmp_path / "run")
        assert main(["branch", run, "--episode", "99/0", "--turn", "0"]) == 2
        assert "has no such episode; it has" in capsys.readouterr().err
        assert main(["branch", run, "--episode", "x", "--turn", "0"]) == 2
        assert "an episode is GROUP/MEMBER" in capsys.readouterr().err
        name = f"{episode.group_id}/{episode.member}"
        assert main(["branch", run, "--episode", name, "--turn", "77"]) == 2
        assert "the turn must be from 0 to" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            main(["branch", run, "--episode", name, "--turn", "foo"])
        assert "foo is neither a number from 0 nor all" in capsys.readouterr().err
