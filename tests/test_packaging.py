"""The wheel, installed in a fresh environment beside a user's own folders called `tasks` and `trainers`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).resolve().parents[1]

PLAY = """
import sys
import gymnasium as gym
import llm_envs
import tasks, trainers

assert tasks.OWNER == trainers.OWNER == "the user", tasks.__file__
env = gym.make("llm/Calculator-v0", split="test")
observation, info = env.reset(seed=1)
done, total = False, 0.0
while not done:
    observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle())
    total, done = total + reward, terminated or truncated
assert info["is_success"], info
assert sys.modules["llm_envs.tasks"].__file__ != tasks.__file__
print("reward", total)
"""


PAGE = {".html", ".css", ".js"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as a user would: without this checkout or these tests on any path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python: Path, *arguments: str | Path, cwd: Path) -> str:
    """Run our own pip for another environment, which need not have one."""
    return run(sys.executable, "-m", "pip", "--python", python, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools keeps a build folder, and a file that was removed would live on in it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("llm_envs", "tasks", "trainers"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        source / "dist",
        source,
        cwd=source,
    )
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    pip(python, "install", "-q", wheel, "-c", ROOT / "constraints.txt", cwd=folder)
    return python


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    for name in ("tasks", "trainers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the user'\n")
    return tmp_path


def test_the_wheel_holds_every_module_the_licence_and_the_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    top = {name.split("/")[0] for name in names}
    assert top == {"llm_envs", next(name for name in top if name.endswith(".dist-info"))}
    packaged = {name for name in names if name.endswith(".py")}
    present = {
        str(prefix / path.relative_to(ROOT / folder))
        for folder, prefix in (
            ("llm_envs", Path("llm_envs")),
            ("tasks", Path("llm_envs/tasks")),
            ("trainers", Path("llm_envs/trainers")),
        )
        for path in (ROOT / folder).rglob("*.py")
    }
    assert packaged == present
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "llm_envs" / "report").rglob("*") if path.suffix in PAGE}
    assert {"llm_envs/report/page/page.html", "llm_envs/report/page/main.js"} <= pages
    assert {"llm_envs/py.typed", *pages} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    assert "llm-envs = llm_envs.cli.main:main" in entry_points
    assert "llm/Calculator-v0 = llm_envs.tasks.tools.calculator:CalculatorEnv" in entry_points


def test_a_task_is_played_beside_folders_called_tasks_and_trainers(fresh_python: Path, users_folder: Path) -> None:
    (users_folder / "play.py").write_text(PLAY)
    assert run(fresh_python, "play.py", cwd=users_folder).startswith("reward ")


def test_the_command_plays_there_too(fresh_python: Path, users_folder: Path) -> None:
    command = fresh_python.parent / "llm-envs"
    assert "llm/Calculator-v0 " in run(command, "list", cwd=users_folder)
    played = run(command, "play", "llm/Calculator-v0", "-n", "2", "--policy", "oracle", cwd=users_folder)
    assert "success 100.0%" in played


def test_a_report_is_written_there_too(fresh_python: Path, users_folder: Path) -> None:
    """With what the core brings and nothing else: no torch, no jinja2, no pyarrow."""
    command = fresh_python.parent / "llm-envs"
    run(command, "eval", "llm/Calculator-v0", "-n", "3", "-k", "2", "--out", "runs/oracle", cwd=users_folder)
    told = run(command, "report", "runs/oracle", cwd=users_folder)
    assert "the report is in runs/oracle/report.html" in told
    page = (users_folder / "runs" / "oracle" / "report.html").read_text(encoding="utf-8")
    source = ROOT / "llm_envs" / "report" / "page"
    for file in source.iterdir():
        if file.suffix in {".css", ".js"}:
            assert file.read_text(encoding="utf-8") in page, file.name
    index = json.loads(page.split('<script type="application/json" id="index">')[1].split("</script>")[0])
    assert len(index["columns"]["run"]) == 6 and index["runs"][0]["results"]["tasks"][0]["success"]["value"] == 1.0


def test_core_needs_little(fresh_python: Path, users_folder: Path) -> None:
    listed = pip(fresh_python, "list", "--format=freeze", cwd=users_folder)
    installed = {line.split("==")[0].lower().replace("_", "-") for line in listed.splitlines()}
    own = {"llm-envs", "gymnasium", "numpy", "pyyaml", "rich", "argcomplete", "greenlet"}
    brought_by_gymnasium = {"cloudpickle", "farama-notifications", "typing-extensions"}
    brought_by_rich = {"markdown-it-py", "mdurl", "pygments"}
    assert installed == own | brought_by_gymnasium | brought_by_rich
    pip(fresh_python, "check", cwd=users_folder)
