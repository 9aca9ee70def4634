"""What `llm-envs doctor --agent` shows, and what the commands refuse."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_folders import save_tiny

from llm_envs.agents import AgentEnv, Endpoint
from llm_envs.agents.report import show_session
from llm_envs.agents.session import PolicySession
from llm_envs.cli.main import main
from llm_envs.rollout import EpisodeSpec, read_trajectories
from llm_envs.testing import ByteCodec, HashingTokenPolicy

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

AGENT = """
import httpx
from llm_envs.agents import AgentEnv

def client(endpoint):
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=60, trust_env=False)

def agent(task, client):
    def ask(*messages):
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        return client.post("chat/completions", json=body).json()["choices"][0]["message"]

    question = {"role": "user", "content": task["question"]}
    more = {"role": "user", "content": "More."}
    first = ask(question)
    ask(question, first, more)
    ask(question, first, more)
    ask({"role": "user", "content": "A summary."}, more)
    return "done"

ENV = AgentEnv(agent, [{"question": "Who?"}], lambda result, trajectory: 1.0, create_client=client)
OTHER = 3
BROKEN = AgentEnv(agent, [{"question": "Who?"}], lambda result, trajectory: 1 / 0, create_client=client)
SILENT = AgentEnv(lambda task, client: "", [{"question": "Who?"}], lambda result, trajectory: 1.0, create_client=client)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), hidden_size=32, n_layers=1, n_heads=2)


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent_of_the_doctor.py"
    path.write_text(AGENT)
    return path


def test_doctor_shows_requests_rows_and_reasons(
    model: Path, agent_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(model), "--agent", f"{agent_file}:ENV", "--colour", "never"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^request (\d+: .*)$", shown, flags=re.MULTILINE) == [
        "0: begins row 0 (the first request)",
        "1: continues row 0, after turn 0",
        "2: begins row 1 (a branch: turn 1 already continues turn 0)",
        "3: begins row 2 (messages[0] (user) is not the one before turn 0)",
    ]
    assert "4 requests, 3 rows" in shown
    assert "the run decides, not the requests: temperature" in shown
    assert "terminated, ok, reward 1, success True" in shown
    assert shown.count("⟦") == 4 + shown.split("\nagent,")[0].count("⟦")  # each reply is trained on once


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("BROKEN", "reward_fn failed: ZeroDivisionError: division by zero"),
        ("SILENT", "the agent never called the model"),
    ],
)
def test_doctor_fails_with_the_reason_if_the_agents_episode_has_no_score(
    model: Path, agent_file: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(model), "--agent", f"{agent_file}:{name}"]) == 1
    shown = capsys.readouterr().out
    assert f"terminated, unscored: {why}, reward 0" in shown
    assert f"PROBLEM  the agent's episode has no score: {why}" in shown and "can be trained on as it is" in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [("OTHER", "OTHER is of type int; it must be an AgentEnv"), ("NOTHING", "has no NOTHING")],
)
def test_doctor_refuses_what_is_no_agent(
    model: Path, agent_file: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(model), "--agent", f"{agent_file}:{name}"]) == 2
    assert message in capsys.readouterr().err
    assert main(["doctor", str(model), "--agent", f"no/such.py:{name}"]) == 2
    assert "the file no/such.py does not exist" in capsys.readouterr().err


def test_a_message_that_the_template_drops_is_shown_as_lost() -> None:
    class Forgetful(ByteCodec):
        """Drops system messages, as some templates do."""

        def encode_prompt(self, messages: Any, tools: Any = ()) -> Any:
            return super().encode_prompt([m for m in messages if m.role != "system"], tools)

    def agent(task: dict[str, Any], endpoint: Endpoint) -> str:
        body = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]}
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers, timeout=120, trust_env=False)
        return ""

    sessions: list[PolicySession] = []
    codec = Forgetful()
    env = AgentEnv(agent, [{"question": "?"}], lambda result, trajectory: 0.0, create_client=lambda endpoint: endpoint)
    policy = HashingTokenPolicy(codec, ["Hello."])
    trajectory = asyncio.run(env.play_episode(EpisodeSpec("agent"), policy, codec=codec, on_session=sessions.append))
    shown = show_session(sessions[0], trajectory)
    assert "LOST by the chat template: Be kind." in shown
    assert "LOST by the chat template: Hi." not in shown


def test_serve_records_sessions_in_a_folder(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llm_envs.cli", "serve", str(model), "--port", "0", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*command, "--max-turn-tokens", "4"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url, key = (process.stdout.readline().strip().partition("=")[2] for _ in range(2))
        body = {"messages": [{"role": "user", "content": "Hi."}]}
        headers = {"Authorization": f"Bearer {key}"}
        for name in ("one", "two"):
            where = url.replace("NAME", name)
            answer = httpx.post(f"{where}/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
            assert answer.status_code == 200, answer.text
        ended = httpx.post(
            url.replace("NAME/v1", "one/end"), json={"reward": 0.5}, headers=headers, timeout=60, trust_env=False
        )
        assert ended.json()["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    found = {t.metadata["session"]: t for t in read_trajectories(tmp_path / "run")}
    assert {name: (t.status, t.reward, t.n_sampled_tokens > 0) for name, t in found.items()} == {
        "one": ("ok", 0.5, True),
        "two": ("unscored", 0.0, True),
    }


def test_serve_refuses_contradictions(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model), "--url", "http://x", "--engine", "vllm"]) == 2
    assert "--url and --engine contradict" in capsys.readouterr().err
    assert main(["serve", "no/such/folder"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
