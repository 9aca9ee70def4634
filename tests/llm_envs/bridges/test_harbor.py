"""Episodes as folders of Harbor's tasks: their scripts run here, in a folder, and Harbor's own classes load them."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from llm_envs.bridges.harbor import export_harbor
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.sources.source import SeedSource

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "one turn": ("llm/Arithmetic-v0", {}),
    "many right answers": ("llm/Countdown-v0", {}),
    "a question about files": ("llm/FileSystem-v0", {}),
    "files to be changed": ("llm/FileSystem-v0", {"difficulty": "medium"}),
    "a package to be repaired": ("llm/FixRepository-v0", {}),
}


def begin(task: Path, app: Path) -> None:
    """Lay out the folder that the image of a task has."""
    app.mkdir()
    dockerfile = (task / "environment" / "Dockerfile").read_text().replace("/app", str(app))
    for line in dockerfile.splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY":
            source, target = rest.split()
            subprocess.run(["cp", "-R", str(task / "environment" / source), target.rstrip("/")], check=True)
        elif word == "RUN":
            subprocess.run(rest, shell=True, check=True)


def run_script(script: Path, app: Path, logs: Path) -> None:
    python = Path(sys.executable).parent
    environment = {**os.environ, "APP": str(app), "LOGS": str(logs), "PATH": f"{python}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], env=environment, cwd=app, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def scored(task: Path, app: Path, tmp_path: Path) -> dict[str, float]:
    run_script(task / "tests" / "test.sh", app, tmp_path / "logs")
    found: dict[str, float] = json.loads((tmp_path / "logs" / "reward.json").read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_passes_and_other_work_fails(kind: str, tmp_path: Path) -> None:
    env_id, env_kwargs = KINDS[kind]
    [task] = export_harbor(env_id, tmp_path / "tasks", n=1, env_kwargs=env_kwargs, seed=1)
    app = tmp_path / "app"
    begin(task, app)
    assert scored(task, app, tmp_path) == {"reward": 0.0, "success": 0.0}  # the agent did nothing
    if (app / "root").exists():
        (app / "answer.txt").write_text("<answer>done</answer>\n")
        assert scored(task, app, tmp_path)["success"] == 0.0  # it says so, and did nothing
    (app / "answer.txt").write_text("<answer>-12345</answer>\n")
    assert scored(task, app, tmp_path)["success"] == 0.0
    run_script(task / "solution" / "solve.sh", app, tmp_path / "logs")
    assert scored(task, app, tmp_path) == {"reward": 1.0, "success": 1.0}
    if kind == "files to be changed":
        (app / "root" / "left-over.txt").write_text("x")
        assert scored(task, app, tmp_path) == {"reward": 0.0, "success": 0.0}
        (app / "root" / "left-over.txt").unlink()
        (app / "root" / "link").symlink_to("/etc/passwd")
        assert scored(task, app, tmp_path)["success"] == 0.0


def test_the_tasks_are_the_episodes_of_evaluate(tmp_path: Path) -> None:
    tasks = export_harbor("llm/Arithmetic-v0", tmp_path / "tasks", n=3, split="test", seed=7, install="./llm_envs.whl")
    source = SeedSource("llm/Arithmetic-v0", seed=7, env_kwargs={"split": "test"})
    env = gym.make("llm/Arithmetic-v0", split="test")
    assert [task.name for task in tasks] == [f"llm-arithmetic-v0-{index:05d}" for index in range(3)]
    for index, task in enumerate(tasks):
        observation, _ = env.reset(seed=source.spec(index).seed)
        instruction = (task / "instruction.md").read_text()
        assert observation in instruction and str(env.get_wrapper_attr("system_prompt")) in instruction
        assert instruction.rstrip().endswith("to the file `/app/answer.txt`.")
        assert (task / "solution" / "answer.txt").read_text() == env.get_wrapper_attr("oracle")()
        settings = tomllib.loads((task / "task.toml").read_text())
        assert settings["metadata"] == {"env_id": "llm/Arithmetic-v0", "split": "test", "seed": source.spec(index).seed}
        assert "pip install --no-cache-dir ./llm_envs.whl" in (task / "tests" / "Dockerfile").read_text()
        # The agent's image has neither the package, which contains the oracle, nor the solution.
        assert list((task / "environment").iterdir()) == [task / "environment" / "Dockerfile"]
        assert "pip" not in (task / "environment" / "Dockerfile").read_text()


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="GuessNumberEnv answers in several turns"):
        export_harbor("llm/GuessNumber-v0", tmp_path / "guess", n=1)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidConfigError, match="exists already"):
        export_harbor("llm/Arithmetic-v0", tmp_path / "there")
    with pytest.raises(InvalidConfigError, match="n=0: give the number of tasks"):
        export_harbor("llm/Arithmetic-v0", tmp_path / "none", n=0)


def test_another_version_of_the_environment_scores_nothing(tmp_path: Path) -> None:
    from llm_envs.bridges.harbor import score_folder

    [task] = export_harbor("llm/Arithmetic-v0", tmp_path / "tasks", n=1)
    episode = json.loads((task / "tests" / "episode.json").read_text())
    with pytest.raises(BridgeError, match="this version asks something else"):
        score_folder({**episode, "observation": "What is 0 + 0?"}, tmp_path)


@pytest.mark.smoke
@pytest.mark.doors("harbor")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a package to be repaired"])  # needs a sandbox
def test_harbor_loads_the_task(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typing

    if sys.version_info < (3, 12):  # Harbor asks for Python 3.12, and its models need this
        import typing_extensions

        monkeypatch.setattr(typing, "override", typing_extensions.override, raising=False)
    from harbor.models.task.task import Task
    from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

    env_id, env_kwargs = KINDS[kind]
    [folder] = export_harbor(env_id, tmp_path / "tasks", n=1, env_kwargs=env_kwargs, timeout_s=60)
    assert Task.is_valid_dir(folder)
    task = Task(folder)
    assert task.name == f"llm-envs/{folder.name}" and task.config.agent.timeout_sec == 60.0
    assert task.instruction == (folder / "instruction.md").read_text()
    assert task.config.artifacts == ["/app"]
    definition = resolve_verifier_environment_definition(task.config, task.paths)
    assert definition.directory == folder / "tests" and definition.bundled_tests
    assert task.paths.discovered_solve_path_for(task.config.environment.os) == folder / "solution" / "solve.sh"
