"""`llm-envs train NAME --agent FILE.py:NAME`: the trainings take an agent where they take an environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_envs.cli.main import main
from llm_envs.rollout import read_trajectories

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

AGENT = """
import os

import httpx

from llm_envs.agents import AgentEnv


def create_client(endpoint):
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=60, trust_env=False)


def agent(task, client):
    body = {"messages": [{"role": "user", "content": task["question"]}]}
    answer = client.post("chat/completions", json=body)
    answer.raise_for_status()
    return {"text": answer.json()["choices"][0]["message"]["content"], "pid": os.getpid()}


def reward(result, trajectory):
    return sum(map(ord, result["text"])) % 7 / 7


ENV = AgentEnv(agent, [{"question": f"Say {n}."} for n in range(8)], reward, create_client=create_client)
TESTED = AgentEnv(agent, ENV.tasks["train"], reward, test_tasks=ENV.tasks["train"][:3], create_client=create_client)
SILENT = AgentEnv(lambda task, client: "", [{"question": "?"}], reward, create_client=create_client)
"""
SMALL = {
    "per-device-train-batch-size": 4,
    "max-steps": 1,
    "gradient-checkpointing": False,
    "report-to": "none",
    "save-strategy": "no",
    "disable-tqdm": True,
    "max-completion-length": 32,
    "max-turn-tokens": 6,
    "num-train-seeds": 32,
}
OF = {"grpo": {"num-generations": 4, "workers": 2}, "ppo": {}}


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("agent") / "agent_of_trainings.py"
    path.write_text(AGENT)
    before = list(sys.path)
    yield f"{path}:ENV"
    sys.path[:] = before
    sys.modules.pop("agent_of_trainings", None)


@pytest.mark.parametrize("name", sorted(OF))
def test_a_step_with_an_agent(
    name: str, tiny_folder: str, agent_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, **OF[name], "model": tiny_folder, "out": tmp_path / "run"}
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    assert main(["train", name, "--agent", agent_file, *options, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "environments      agent" in shown and "seconds an episode no limit, seconds a step 600\n" in shown
    assert main(["train", name, "--agent", agent_file, *options]) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
    found = read_trajectories(tmp_path / "run" / "trajectories" / "process-0")
    assert {t.env_id for t in found} == {"agent"}
    assert {t.status for t in found} == {"ok"}
    assert len({t.metadata["result"]["pid"] for t in found}) == settings.get("workers", 1)


def test_a_dry_run_fails_with_the_reason_if_no_episode_has_a_score(
    tiny_folder: str, agent_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = ["--agent", agent_file.replace(":ENV", ":SILENT")]
    settings = {"model": tiny_folder, "out": tmp_path / "run", "num-generations": 4, "max-completion-length": 32}
    where = [*(part for key, value in settings.items() for part in (f"--{key}", str(value))), "--dry-run"]
    assert main(["train", "grpo", *agent, *where]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("terminated: the agent never called the model\n") == 4
    assert "llm-envs: 4 of 4 episodes failed and are not trained on: 4 x the agent never called" in shown.err
    assert main(["train", "grpo", "--env", "llm/Calculator-v0", *where]) == 1
    assert "4 of 4 episodes failed and are not trained on: 4 x a prompt of 401 tokens" in capsys.readouterr().err


def test_an_evaluation_plays_no_more_than_the_agents_test_tasks(
    tiny_folder: str, agent_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "num-generations": 4, "model": tiny_folder, "out": tmp_path / "run", "eval-strategy": "steps"}
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    command = ["train", "grpo", "--agent", agent_file.replace(":ENV", ":TESTED"), *options]
    assert main([*command, "--dry-run"]) == 0
    assert "evaluation        3 items x 4 = 12 episodes" in capsys.readouterr().out
    assert main([*command, "--eval-steps", "1"]) == 0
    played = read_trajectories(tmp_path / "run" / "trajectories" / "process-0")
    assert sum(t.env_kwargs == {"split": "test"} for t in played) == 12


def test_both_neither_and_what_has_no_agent(
    tiny_folder: str, agent_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--model", tiny_folder, "--out", str(tmp_path / "run")]
    for name in OF:
        assert main(["train", name, "--agent", agent_file, "--env", "llm/Countdown-v0", *where]) == 2
        assert "--env and --agent exclude each other: give one" in capsys.readouterr().err
        assert main(["train", name, *where]) == 2
        assert "is missing" in capsys.readouterr().err
    assert main(["train", "grpo", "--agent", "no/such.py:ENV", *where]) == 2
    assert "the file no/such.py does not exist" in capsys.readouterr().err
    for name in ("sft", "dpo"):
        assert main(["train", name, "--agent", agent_file, *where]) == 2
        assert "--agent" in capsys.readouterr().err
