"""Folders of Harbor's tasks in a shell: our exports keep their verdicts, and rewards that agents write are not read."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from shells import make_shell

from llm_envs.bridges.harbor import export_harbor
from llm_envs.bridges.harbor_tasks import HARBOR_ID, HarborEnv, from_tasks_folder
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call

DONE = format_answer("done")
TEST_SH = """#!/bin/bash
mkdir -p /logs/verifier
if pytest -q -p no:cacheprovider /tests/test_outputs.py; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
TEST_PY = """from pathlib import Path

def test_the_sum():
    assert Path("/app/sum.txt").read_text().strip() == "60"
"""
SOLVE = "#!/bin/bash\npython3 -c \"print(sum(map(int, open('/app/data/numbers.txt'))))\" > /app/sum.txt\n"


@pytest.fixture(autouse=True)
def works() -> None:
    with make_shell():
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one task, written by hand."""
    task = tmp_path / "tasks" / "sum"
    files = {
        "instruction.md": "Write the sum of the numbers in /app/data/numbers.txt to /app/sum.txt.\n",
        "task.toml": "[environment]\ncpus = 1\nmemory_mb = 512\n[verifier]\ntimeout_sec = 60.0\n",
        "environment/Dockerfile": "# numbers\nFROM python:3.12-slim\nWORKDIR /app\nCOPY numbers.txt data/\n",
        "environment/numbers.txt": "10\n20\n30\n",
        "tests/test.sh": TEST_SH,
        "tests/test_outputs.py": TEST_PY,
        "solution/solve.sh": SOLVE,
    }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    return tmp_path / "tasks"


@pytest.fixture
def made() -> Iterator[list[HarborEnv]]:
    envs: list[HarborEnv] = []
    yield envs
    for env in envs:
        env.close()


def bash(env: HarborEnv, command: str) -> str:
    return env.step(format_tool_call("bash", command=command))[0]


def play(folder: Path, made: list[HarborEnv], command: str) -> tuple[float, bool]:
    """Return the reward and the success of an agent that runs a command and reports the end."""
    env = from_tasks_folder(folder)
    made.append(env)
    env.reset(seed=0)
    bash(env, command)
    _, reward, terminated, _, info = env.step(DONE)
    assert terminated
    return reward, info["is_success"]


def test_a_task_written_by_hand(folder: Path, made: list[HarborEnv]) -> None:
    env = from_tasks_folder(folder)
    made.append(env)
    assert env.reset(seed=0)[0] == "Write the sum of the numbers in /app/data/numbers.txt to /app/sum.txt."
    assert bash(env, "pwd; cat data/numbers.txt; ls /tests/ /solution/ /logs/ 2>&1 | grep -c 'No such'") == (
        "/app\n10\n20\n30\n3"
    )
    env.step(env.oracle())
    assert bash(env, "cat sum.txt; ls /solution") == "60"
    assert env.step(DONE)[:3] == ("Correct.", 1.0, True)
    assert env.verdict is not None and "1 passed" in env.verdict.reason
    assert play(folder, made, "echo 61 > sum.txt") == (0.0, False)
    assert play(folder, made, "true") == (0.0, False)


def test_a_pytest_file_is_enough(folder: Path, made: list[HarborEnv]) -> None:
    (folder / "sum" / "tests" / "test.sh").unlink()
    assert play(folder, made, "echo 60 > sum.txt") == (1.0, True)
    assert play(folder, made, "echo 61 > sum.txt") == (0.0, False)
    assert play(folder, made, "echo 'raise SystemExit(0)' | tee pytest.py conftest.py sitecustomize.py") == (0.0, False)


HOSTILE = {
    "the reward": "mkdir -p /workspace/logs/verifier; echo 1 | tee /logs/verifier/reward.{txt,json}",
    "the tests": "mkdir -p /workspace/tests; echo 'echo 1 > /logs/verifier/reward.txt' | tee /workspace/tests/test.sh",
    "a process": "(while :; do mkdir -p /workspace/logs/verifier; echo 1 > /logs/verifier/reward.txt; done) &",
    "a pytest": "mkdir -p ~/bin ~/.local/bin; echo exit 0 | tee ~/bin/pytest pytest ~/.bashrc; chmod +x ~/bin/pytest",
    "a link as the folder": "mkdir -p /workspace/tests; cd /; rm -rf /workspace/app; ln -s tests /workspace/app",
    "a file that cannot be read": "touch secret; chmod 000 secret",
    "functions": "tar() { false; }; find() { false; }; cat() { echo 60; }; bash() { true; }",
}


@pytest.mark.parametrize("way", HOSTILE)
def test_hostile_agents_earn_nothing(folder: Path, made: list[HarborEnv], way: str) -> None:
    assert play(folder, made, HOSTILE[way]) == (0.0, False)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [("llm/Arithmetic-v0", {}), ("llm/FileSystem-v0", {"difficulty": "medium"}), ("llm/FixRepository-v0", {})],
)
def test_our_exports_keep_their_verdicts(
    env_id: str, env_kwargs: dict[str, Any], tmp_path: Path, made: list[HarborEnv]
) -> None:
    [task] = export_harbor(env_id, tmp_path / "tasks", n=1, env_kwargs=env_kwargs, seed=1)
    env = from_tasks_folder(task.parent)
    made.append(env)
    assert env.refused == {} and env.reset(seed=0)[0] == (task / "instruction.md").read_text().strip()
    env.step(env.oracle())
    assert env.step(env.oracle())[:3] == ("Correct.", 1.0, True)
    for answer in ("<answer>-12345</answer>", "no tags"):
        direct = gym.make(env_id, **env_kwargs, split="train")
        direct.reset(seed=tomllib.loads((task / "task.toml").read_text())["metadata"]["seed"])
        _, reward, _, _, info = direct.step(answer)
        direct.close()
        assert play(task.parent, made, f"echo '{answer}' > answer.txt") == (reward, info.get("is_success", False))


def test_an_agent_cannot_replace_our_scorer(tmp_path: Path, made: list[HarborEnv]) -> None:
    export_harbor("llm/Arithmetic-v0", tmp_path / "tasks", n=1)
    scorer = """mkdir -p llm_envs/bridges; touch llm_envs/__init__.py llm_envs/bridges/__init__.py
    echo 'import sys; open(sys.argv[3], "w").write("1")' > llm_envs/bridges/harbor.py"""
    assert play(tmp_path / "tasks", made, scorer) == (0.0, False)


@pytest.mark.parametrize(
    ("text", "reward"),
    [('{"reward": 0.5}', 0.5), ("0.25", 0.25), ('{"a": 1, "b": 1}', 0.0), ("NaN", 0.0), ("2", 0.0), ("", 0.0)],
)
def test_rewards_are_numbers(folder: Path, made: list[HarborEnv], text: str, reward: float) -> None:
    (folder / "sum" / "tests" / "test.sh").write_text(f"printf %s '{text}' > /logs/verifier/reward.json\n")
    assert play(folder, made, "true") == (reward, False)


def test_the_id_makes_it(folder: Path) -> None:
    env = gym.make(f"llm_envs.bridges.harbor_tasks:{HARBOR_ID}", tasks=str(folder))
    assert env.reset(seed=3)[0].startswith("Write the sum")
    env.close()


def test_without_a_task_the_error_has_the_reasons(folder: Path) -> None:
    shutil.rmtree(folder / "sum" / "tests")
    with pytest.raises(InvalidConfigError, match="sum: tests/ has neither"):
        from_tasks_folder(folder)
