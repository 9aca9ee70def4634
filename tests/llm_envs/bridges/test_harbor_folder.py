"""Which folders of Harbor's tasks can be played in a shell, and why the others cannot."""

import io
import tarfile
from pathlib import Path

import pytest

from llm_envs.bridges.harbor_folder import read_folder
from llm_envs.errors import InvalidConfigError

IMAGE = "FROM python:3.12-slim\nWORKDIR /app\n"


def write(root: Path, files: dict[str, str]) -> None:
    plain = {
        "instruction.md": "Do it.\n",
        "task.toml": "",
        "environment/Dockerfile": IMAGE,
        "tests/test.sh": "exit 0\n",
    }
    for name, text in {**plain, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "another image": ({"environment/Dockerfile": "FROM ubuntu:24.04\n"}, "the image 'ubuntu:24.04'"),
    "stages": ({"environment/Dockerfile": "FROM python:3 AS build\n"}, "the image 'python:3 AS build'"),
    "apt": ({"environment/Dockerfile": IMAGE + "RUN apt-get update\n"}, "has `RUN apt-get update`"),
    "pip": ({"environment/Dockerfile": IMAGE + "RUN pip \\\n  install x\n"}, "has `RUN pip"),
    "a hidden command": ({"environment/Dockerfile": IMAGE + "RUN mkdir -p a && ls\n"}, "has `RUN mkdir -p a && ls`"),
    "a service": ({"environment/Dockerfile": IMAGE + "ENV A=1\n"}, "has `ENV A=1`"),
    "other places": ({"environment/Dockerfile": IMAGE + "COPY Dockerfile /etc/\n"}, "uses '/etc/'"),
    "a way out": ({"environment/Dockerfile": IMAGE + "COPY ../task.toml .\n"}, "has no '../task.toml'"),
    "no place": ({"environment/Dockerfile": "FROM python:3\n"}, "no WORKDIR below /app"),
    "compose": ({"environment/docker-compose.yaml": "services:\n"}, "environment/ has docker-compose.yaml"),
    "no image": ({"task.toml": '[environment]\ndocker_image = "x"\n'}, "task.toml has docker_image"),
    "gpu": ({"task.toml": "[environment]\ngpus = 1\n"}, "asks for 1 GPU"),
    "internet": ({"task.toml": "[environment]\nallow_internet = true\n"}, "asks for a network"),
    "network": ({"task.toml": '[environment]\nnetwork_mode = "public"\n'}, "asks for a network"),
    "steps": ({"task.toml": '[[steps]]\nname = "a"\n'}, "several steps"),
    "windows": ({"task.toml": '[environment]\nos = "Windows"\n'}, "asks for Windows"),
    "variables": ({"task.toml": '[verifier.env]\nKEY = "1"\n'}, "verifier.env"),
    "broken": ({"task.toml": "= 1"}, "Invalid statement"),
    "downloads": ({"tests/test.sh": "ls\ncurl -LsSf https://example.org | sh\n"}, "tests/test.sh calls 'curl'"),
    "a solution": ({"solution/solve.sh": "cd /app && pip install x\n"}, "solution/solve.sh calls 'pip'"),
    "a package": (
        {"tests/Dockerfile": "FROM python:3\nRUN pip install no-such-package-here\nCOPY . /tests/\n"},
        "'no-such-package-here', which is not installed",
    ),
    "a version": (
        {"tests/Dockerfile": "FROM python:3\nRUN pip install pytest==0.0.1\n"},
        "'pytest==0.0.1', and here is",
    ),
}


def test_every_refused_folder_has_its_reason(tmp_path: Path) -> None:
    for name, (files, _) in REFUSED.items():
        write(tmp_path / name, files)
    write(tmp_path / "good", {"tests/Dockerfile": "FROM python:3\nRUN pip install --no-cache-dir pytest\n"})
    (tmp_path / "empty").mkdir()
    tasks, refused = read_folder(tmp_path)
    assert list(tasks) == ["good"] and set(refused) == {*REFUSED, "empty"}
    assert "task.toml" in refused["empty"]
    assert [name for name, (_, reason) in REFUSED.items() if reason not in refused[name]] == []


def test_copies_are_laid_out_as_docker_does(tmp_path: Path) -> None:
    copies = "COPY a.txt b.txt\nCOPY a.txt src/ kept/\nCOPY src/ .\nRUN mkdir -p '/app/new one' two\n"
    write(
        tmp_path / "task",
        {"environment/Dockerfile": IMAGE + copies, "environment/a.txt": "A", "environment/src/m.py": "M"},
    )
    (tmp_path / "task" / "environment" / "a.txt").chmod(0o755)
    tasks, _ = read_folder(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(tasks["task"].environment())) as archive:
        entries = {entry.name: entry for entry in archive}
    assert set(entries) == {
        *("app", "app/new one", "app/two", "app/b.txt", "app/m.py"),
        *("app/kept/a.txt", "app/kept", "app/kept/m.py"),
    }
    assert entries["app/b.txt"].mode == 0o755 and entries["app/b.txt"].mtime == 0


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="none' was given"):
        read_folder(tmp_path / "none")
