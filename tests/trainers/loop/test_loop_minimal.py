"""The one-file example: its step does what GRPO says, and its run goes through."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from llm_envs.chat import ChatCodec
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference.scoring import token_logps
from llm_envs.rollout import Collector, PromptSource
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams

pytestmark = pytest.mark.trainings

SCRIPT = Path(__file__).parents[3] / "examples" / "minimal_grpo_loop.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


def test_a_step_makes_the_rewarded_likelier(example):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden_size=64, n_layers=1)
    policy = TransformersPolicy(model, tokenizer)
    task = example["PromptTask"](example["NUMBERS"], lambda row, reply: float(sum(map(ord, reply.content)) % 2))
    sampling = SamplingParams(max_new_tokens=4)
    with Collector(PromptSource(task), policy, codec=ChatCodec(tokenizer), sampling=sampling) as collector:
        groups = collector.collect(2, group_size=8)
    rows = [trajectory.rows[0] for group in groups for trajectory in group]
    paid = torch.tensor([trajectory.reward for group in groups for trajectory in group])
    assert 0 < paid.mean() < 1

    def likelihoods():
        return torch.tensor([float(logps[row.mask].sum()) for row, logps in zip(rows, score(), strict=True)])

    def score():
        return token_logps(model, [row.ids for row in rows])

    before = likelihoods()
    example["grpo_step"](model, torch.optim.SGD(model.parameters(), lr=0.05), groups)
    gained = likelihoods() - before
    assert gained[paid == 1].mean() > 0 > gained[paid == 0].mean()


def test_it_runs(example, capsys):
    example["main"](["--warm-up", "20", "--steps", "2", "--test-episodes", "16"])
    printed = capsys.readouterr().out
    assert re.findall(r"^warm-up +20  loss \d", printed, re.MULTILINE)
    assert len(re.findall(r"^GRPO +\d  reward \d\.\d{3}  loss ", printed, re.MULTILINE)) == 2
    assert "after the warm-up: prompts [test]" in printed and "after GRPO: prompts [test]" in printed
