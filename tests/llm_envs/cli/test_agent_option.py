"""`--agent FILE.py:NAME` of collect and eval: an agent where an environment's id stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_folders import save_tiny

from llm_envs.agents import AgentEnv
from llm_envs.cli.agent_option import load_agent
from llm_envs.cli.main import main
from llm_envs.data.folder import read_manifest
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import Results
from llm_envs.rollout import read_trajectories
from llm_envs.types import validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

Capture = pytest.CaptureFixture[str]

CLIENT = """
import httpx


def create_client(endpoint):
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=60, trust_env=False)


def ask(client, messages, **body):
    answer = client.post("chat/completions", json={"messages": messages, **body})
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]
"""
AGENT = """
from __future__ import annotations

import os
from dataclasses import dataclass

from neighbour_of_an_agent import ask, create_client

from llm_envs.agents import AgentEnv


@dataclass
class Answer:
    text: str


def agent(task, client):
    answer = Answer(str(ask(client, [{"role": "user", "content": task["question"]}])["content"]))
    return {"text": answer.text, "pid": os.getpid()}


def acts(task, client):
    messages = list(task.messages)
    while not task.is_over:
        reply = ask(client, messages, tools=task.tools)
        messages += [reply, *task.step(reply)]


def reward(result, trajectory):
    return 1.0 if result is not None else 0.0


TASKS = [{"question": f"Say {n}."} for n in range(3)]
ENV = AgentEnv(agent, TASKS, reward, create_client=create_client)
TESTED = AgentEnv(agent, TASKS, reward, test_tasks=[{"question": "Test?"}], create_client=create_client)
PLAYS = AgentEnv(acts, "llm/Calculator-v0", create_client=create_client)
"""
FAST = ["--max-turn-tokens", "6"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), hidden_size=32, n_layers=1, n_heads=2, max_length=2048)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "neighbour_of_an_agent.py").write_text(CLIENT)
    path = folder / "agent_of_a_test.py"
    path.write_text(AGENT)
    before = list(sys.path)
    yield path
    sys.path[:] = before
    for name in ("neighbour_of_an_agent", "agent_of_a_test"):
        sys.modules.pop(name, None)


def run(*arguments: str | Path) -> int:
    return main(list(map(str, arguments)))


class TestCollect:
    def test_a_run_is_stored_and_resumed(self, model: Path, file: Path, tmp_path: Path, capsys: Capture) -> None:
        command = ["collect", "--agent", f"{file}:ENV", "--model", model, "--group-size", "2", *FAST]
        out = ["--out", tmp_path / "run"]
        assert run(*command, *out, "-n", "2") == 0
        assert "4 of 4 episodes are in" in capsys.readouterr().out
        first = read_trajectories(tmp_path / "run")
        assert [(t.env_id, t.status, t.reward) for t in first] == [("agent", "ok", 1.0)] * 4
        assert validate_batch(first) == []
        assert run(*command, *out, "-n", "3", "--resume") == 0
        assert read_trajectories(tmp_path / "run")[:4] == first
        assert len(read_trajectories(tmp_path / "run")) == 6
        settings = read_manifest(tmp_path / "run").settings
        assert settings["agent"] == f"{file}:ENV"
        assert list(settings["agent_tasks"]) == ["train"]
        assert settings["agent_reward"].startswith("reward ")
        assert run(*command, *out, "-n", "3", "--resume", "--seed", "1") == 1
        other = ["collect", "--agent", f"{file}:TESTED", *command[3:], *out, "-n", "3", "--resume"]
        assert run(*other) == 1
        assert "agent" in capsys.readouterr().err

    def test_workers_and_shards(self, model: Path, file: Path, tmp_path: Path) -> None:
        command = ["collect", "--agent", f"{file}:ENV", "--model", model, "-n", "4", *FAST, "--max-concurrency", "1"]
        for shard in ("0/2", "1/2"):
            assert run(*command, "--workers", "2", "--out", tmp_path / "run", "--shard", shard) == 0
        shards = [tmp_path / "run" / f"shard-{number}-of-2" for number in range(2)]
        assert run("merge", *shards, "--out", tmp_path / "merged") == 0
        found = read_trajectories(tmp_path / "merged")
        assert len(found) == 4
        pids = {t.metadata["result"]["pid"] for t in found}
        assert os.getpid() not in pids
        assert run(*command, "--out", tmp_path / "threads") == 0
        others = read_trajectories(tmp_path / "threads")
        assert {t.group_id: t.messages for t in others} == {t.group_id: t.messages for t in found}

    def test_an_agent_in_an_environment_takes_its_arguments(self, model: Path, file: Path, tmp_path: Path) -> None:
        # One at a time: a batch's composition would change the last bits.
        command = ["--model", model, "-n", "2", "--difficulty", "easy", "--max-turns", "1", *FAST]
        command += ["--max-concurrency", "1"]
        assert run("collect", "--agent", f"{file}:PLAYS", *command, "--out", tmp_path / "agent") == 0
        assert run("collect", "llm/Calculator-v0", *command, "--out", tmp_path / "env") == 0
        agents, envs = (read_trajectories(tmp_path / name) for name in ("agent", "env"))
        assert [[row.ids.tolist() for row in t.rows] for t in agents] == [
            [row.ids.tolist() for row in t.rows] for t in envs
        ]
        assert [t.env_kwargs for t in agents] == [{"difficulty": "easy"}] * 2


class TestEval:
    def test_test_tasks_and_a_folder(self, model: Path, file: Path, tmp_path: Path, capsys: Capture) -> None:
        out = tmp_path / "run"
        command = ["eval", "--agent", f"{file}:TESTED", "--model", model, "-k", "2", *FAST]
        assert run(*command, "-n", "2", "--out", out, "--min-mean-reward", "1") == 0
        (task,) = Results.load(out)
        assert (task.name, task.n_episodes, task.env_kwargs) == ("agent", 4, {"split": "test"})
        assert {t.messages[0].content for t in read_trajectories(out)} == {"Test?"}
        assert run(*command, "-n", "3", "--out", out, "--resume") == 0
        assert len(read_trajectories(out)) == 6
        assert run(*command, "-n", "3", "--compare", out) == 0
        assert run("eval", "--replay", out) == 0
        capsys.readouterr()
        assert run("eval", "--agent", f"{file}:ENV", "--model", model, "-n", "1", *FAST) == 2
        assert "give AgentEnv(test_tasks=...), or play the split 'train'" in capsys.readouterr().err
        assert run("eval", "--agent", f"{file}:ENV", "--model", model, "-n", "1", "--split", "train", *FAST) == 0

    def test_levels_and_comparison_with_the_environment(
        self, model: Path, file: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        command = ["--model", model, "-n", "1", "--difficulty", "easy,hard", "--max-turns", "1", *FAST]
        assert run("eval", "llm/Calculator-v0", *command, "--out", tmp_path / "env") == 0
        assert run("eval", "--agent", f"{file}:PLAYS", *command, "--compare", tmp_path / "env") == 0
        shown = capsys.readouterr().out
        assert "llm/Calculator-v0 hard" in shown


REFUSED: list[tuple[list[str], str]] = [
    (["llm/Calculator-v0", "--model", "MODEL"], "ENV and --agent exclude each other: give one"),
    (["--model", "MODEL", "--exclude", "llm/*"], "leave out --exclude"),
    (["--model", "MODEL", "--window", "2"], "leave out --window"),
    (["--model", "MODEL", "--env-servers", "host:1"], "leave out --env-servers"),
    (["--model", "MODEL", "--ray"], "leave out --ray"),
    ([], "--agent needs --model"),
    (["--policy", "random"], "--agent needs --model"),
    (["--model", "name", "--policy", "api", "--url", "http://127.0.0.1:1"], "--agent needs --model"),
    (["--model", "MODEL", "--difficulty", "easy"], "it takes only split"),
]


@pytest.mark.parametrize("command", ["collect", "eval"])
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused(
    command: str, options: list[str], message: str, model: Path, file: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = [str(model) if option == "MODEL" else option for option in options]
    out = ["--out", str(tmp_path / "run"), "-n", "1"]
    assert run(command, *given, "--agent", f"{file}:TESTED", *out) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_neither_is_refused_too(tmp_path: Path, capsys: Capture) -> None:
    assert run("collect", "-n", "1", "--out", tmp_path / "run") == 2
    assert "ENV or --agent is missing: give one" in capsys.readouterr().err
    assert run("eval", "--suite", "suite.yaml", "--agent", "a.py:ENV") == 2
    assert "--suite lists the tasks" in capsys.readouterr().err
    assert run("eval", "--replay", "run", "--agent", "a.py:ENV") == 2
    assert "leave out --agent" in capsys.readouterr().err


class TestLoading:
    def test_a_file_and_a_module(self, file: Path) -> None:
        assert isinstance(load_agent(f"{file}:ENV"), AgentEnv)
        assert load_agent(f"{file}:ENV") is load_agent("agent_of_a_test:ENV")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("def broken(:", r"SyntaxError: .*broken\.py"),
            ("import no_such_module_here", r"ModuleNotFoundError: .*broken\.py line 1"),
            ("x = 1\nraise KeyError('lost')", r"KeyError: 'lost', broken\.py line 2"),
            ("raise SystemExit(3)", r"SystemExit: 3"),
            ("ENV = 3", r"ENV is of type int; it must be an AgentEnv"),
            ("", r"has no ENV\."),
        ],
    )
    def test_a_file_that_is_wrong(
        self, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", list(sys.path))
        (tmp_path / "broken.py").write_text(text)
        try:
            with pytest.raises(InvalidConfigError, match=message):
                load_agent(f"{tmp_path / 'broken.py'}:ENV")
        finally:
            sys.modules.pop("broken", None)

    @pytest.mark.parametrize("name", ["agent.py", "agent.py:", ":ENV", ""])
    def test_a_name_without_its_parts(self, name: str) -> None:
        with pytest.raises(InvalidConfigError, match=r"must be FILE\.py:NAME"):
            load_agent(name)

    def test_a_file_that_is_missing_or_has_the_name_of_a_loaded_module(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(InvalidConfigError, match="does not exist"):
            load_agent("no/such.py:ENV")
        (tmp_path / "json.py").write_text("ENV = 1")
        with pytest.raises(InvalidConfigError, match="a module 'json' is loaded already"):
            load_agent(f"{tmp_path / 'json.py'}:ENV")
