"""GRPO plays agents where it plays environments, with the same rows and weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tool_model import make_tool_model
from trainings import QUIET
from transformers import AutoModelForCausalLM

from llm_envs.agents import AgentEnv, Endpoint, EnvTask
from llm_envs.errors import InvalidConfigError
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.grpo.setup import make_splits

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.trainings, pytest.mark.slow]


def create_client(endpoint: Endpoint) -> httpx.Client:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=300, trust_env=False)


def acts(task: EnvTask, client: httpx.Client) -> None:
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        answer = client.post("chat/completions", json={"messages": messages, "tools": task.tools}).json()
        reply = answer["choices"][0]["message"]
        messages += [reply, *task.step(reply)]


def trained(env: Any, model: Path, out: Path) -> dict[str, torch.Tensor]:
    args = EnvGRPOConfig(
        output_dir=str(out),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        learning_rate=1e-3,
        max_completion_length=160,
        max_turn_tokens=40,
        max_concurrency=1,  # one request at a time: a batch's composition would change the last bits
        **QUIET,
        seed=3,
    )
    trainer = EnvGRPOTrainer(str(model), env, args)
    trainer.train()
    weights = {name: value.detach().cpu().clone() for name, value in trainer.model.named_parameters()}
    trainer.close()
    return weights


@pytest.mark.parametrize("tasks", [[{"question": "1 + 1?"}], "llm/Calculator-v0"])
def test_an_evaluation_without_test_tasks_is_refused_before_the_first_step(tasks, tmp_path: Path) -> None:
    env = AgentEnv(acts, tasks, lambda result, trajectory: 1.0, create_client=create_client)
    args = EnvGRPOConfig(str(tmp_path), per_device_train_batch_size=8, eval_strategy="steps", eval_steps=1, **QUIET)
    splits = partial(make_splits, env, None, args, None)
    if isinstance(tasks, str):
        assert set(splits()) == {"train", "test"}  # the environment has its own
    else:
        with pytest.raises(InvalidConfigError, match=r"no test tasks.*eval_env=.*eval_strategy='no'"):
            splits()


def test_two_steps_with_an_agent_give_the_weights_of_two_steps_with_its_environment(tmp_path: Path) -> None:
    make_tool_model(tmp_path / "model", steps=40)
    with_env = trained("llm/Calculator-v0", tmp_path / "model", tmp_path / "env")
    agent = AgentEnv(acts, "llm/Calculator-v0", create_client=create_client)
    with_agent = trained(agent, tmp_path / "model", tmp_path / "agent")
    saved = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "model").named_parameters())
    assert any(not torch.equal(value, saved[name]) for name, value in with_env.items())
    for name, value in with_env.items():
        torch.testing.assert_close(with_agent[name], value, rtol=0, atol=0)
