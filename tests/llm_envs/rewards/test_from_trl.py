"""Reward functions of TRL's form."""

from dataclasses import replace

import numpy as np
import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy
from llm_envs.rewards import score_trajectories, trl_reward
from llm_envs.rollout import Collector
from llm_envs.sources.prompt_task import PromptSource, PromptTask
from llm_envs.types import Row

ROWS = [{"prompt": f"{n} + 1?", "answer": n + 1, "level": n % 2} for n in range(3)]


def played():
    task = PromptTask(ROWS, lambda row, reply: 0.5, test_prompts=["?"])
    with Collector(PromptSource(task, shuffle=False), ConstantPolicy("It is 2."), progress=False) as collector:
        return [group.trajectories[0] for group in collector.collect(3, group_size=1)]


def test_it_gets_what_trl_gives():
    seen = {}

    def solved(completions, answer, **kwargs):
        seen.update(kwargs, completions=completions)
        return [float(str(a) in c[0]["content"]) if a < 3 else None for c, a in zip(completions, answer, strict=True)]

    scored = score_trajectories(played(), trl_reward(solved))
    assert [each.components for each in scored] == [{"solved": 0.0}, {"solved": 1.0}, None]
    assert seen["prompts"][2] == [{"role": "user", "content": "2 + 1?"}]
    assert seen["completions"] == [[{"role": "assistant", "content": "It is 2."}]] * 3
    assert (seen["level"], seen["completion_ids"]) == ([0, 1, 0], [[], [], []])
    assert (seen["trajectory_reward"], seen["n_turns"], seen["is_success"]) == ([0.5] * 3, [1] * 3, [False] * 3)


def test_texts_and_tokens():
    def shown(prompts, completions, completion_ids):  # no **kwargs: it gets only these
        assert prompts == ["ask"] and completions == ["answer"]
        return [len(completion_ids[0])]

    mask = np.array([0, 0, 1, 1, 0, 1], bool)  # the prompt, two turns, and the environment's words between them
    row = Row(np.arange(6, dtype=np.int32), mask, np.zeros(6, np.float32), ((2, 4), (5, 6)))
    trajectory = replace(make_trajectory(1.0, "answer"), rows=(row,))
    (scored,) = score_trajectories([trajectory], trl_reward(shown, form="text", name="tokens"))
    assert scored.components == {"tokens": 4.0}


def test_what_cannot_be_given_is_named():
    def needs(completions, solution, **kwargs):
        return [1.0]

    with pytest.raises(InvalidConfigError, match=r"'needs' needs solution; the episodes have prompts, .*answer, level"):
        score_trajectories(played(), trl_reward(needs))
    with pytest.raises(InvalidConfigError, match="form='chat'"):
        trl_reward(needs, form="chat")

    async def waits(completions, **kwargs):
        return [1.0]

    with pytest.raises(InvalidConfigError, match="waits is asynchronous"):
        trl_reward(waits)
