"""`docs/guides/task.md` on packages, followed word for word, and what `llm-envs new-task` writes otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

import pytest

from llm_envs.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
TASK = (ROOT / "docs" / "guides" / "task.md").read_text(encoding="utf-8")
PAGE = TASK.partition("\n### Start from a template\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"(?:^<!-- (\w+): (\S+) -->\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(tmp_path):
    """Variables of an environment of its own, in which everything that is installed here can be imported.

    Its `pip` reaches no network: what a package builds with is here already.
    """
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "installed_here.pth").write_text(
        f"{sysconfig.get_path('purelib')}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    for name, module in (("pip", "pip"), ("pytest", "pytest"), ("llm-envs", "llm_envs.cli.main")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {module} "$@"\n')
        script.chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST"))
    }
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**kept, **offline, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}


def blocks(page):
    """Yield (key, value, language, body) of each block; the key is what the comment above it says."""
    for found in BLOCK.finditer(page):
        yield found.groups()


def commands(body):
    """Yield (command, what is printed) of a block of a terminal."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed.splitlines()


def says(line, printed):
    """Whether a line of the page, in which "..." stands for anything, is in what was printed."""
    pattern = ".*".join(re.escape(piece.strip()) for piece in line.split("..."))
    return re.search(pattern, printed) is not None


@pytest.mark.examples
def test_a_stranger_publishes_a_task(tmp_path, environment):
    folder, replaced, started = tmp_path, "", time.monotonic()
    n_commands = 0
    for key, name, language, body in blocks(PAGE):
        if key == "file":
            (folder / name).write_text(body)
        elif key == "replace":
            replaced = body
            assert (folder / name).read_text().count(body) == 1
        elif key == "with":
            (folder / name).write_text((folder / name).read_text().replace(replaced, body))
        else:
            assert language == "console", language
            for command, printed in commands(body):
                n_commands += 1
                if command.startswith("cd "):
                    folder = folder / command.removeprefix("cd ")
                    continue
                done = subprocess.run(
                    command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
                )
                output = done.stdout + done.stderr
                missing = [line for line in printed if not says(line, output)]
                assert not missing, f"$ {command}\n{output}\nThe page says: {missing}"
                assert done.returncode == (1 if any("FAILED" in line for line in printed) else 0), output
    assert n_commands > 10
    assert time.monotonic() - started < 15 * 60


@pytest.fixture
def checkout(tmp_path):
    """The parts of a checkout of the suite that a new task changes."""
    (tmp_path / "tests" / "tasks").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in ("games", "tools", "algorithmic"):
        (tmp_path / "tasks" / folder).mkdir(parents=True)
        (tmp_path / "tasks" / folder / "__init__.py").touch()
    return tmp_path


@pytest.mark.examples
@pytest.mark.parametrize(("kind", "family"), [("single", "algorithmic"), ("tool", "tools"), ("game", "games")])
def test_every_kind_of_task_works_in_the_suite_as_it_is_written(kind, family, checkout, capsys, monkeypatch):
    assert main(["new-task", "zz-ladder", f"--{kind}", "--out", str(checkout)]) == 0
    assert "llm/ZzLadder-v0, written:" in capsys.readouterr().out
    points = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["entry-points"]["llm_envs.tasks"]
    assert points["llm/ZzLadder-v0"] == f"llm_envs.tasks.{family}.zz_ladder:ZzLadderEnv"
    before = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["llm_envs.tasks"]
    assert points.keys() - before.keys() == {"llm/ZzLadder-v0"}
    assert list(points) == sorted(points)
    # The file is looked at where it is, as if it were installed; its own test runs in a process of its own.
    module, test = checkout / "tasks" / family / "zz_ladder.py", checkout / "tests" / "tasks" / "test_zz_ladder.py"
    code = (
        "import importlib.util, sys, pytest\n"
        f"spec = importlib.util.spec_from_file_location('zz_ladder', {str(module)!r})\n"
        "sys.modules['zz_ladder'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "import llm_envs\nfrom llm_envs.registration import register_task\n"
        "register_task('llm/ZzLadder-v0', module.ZzLadderEnv)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(test)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Template" not in (checkout / "tasks" / family / "zz_ladder.py").read_text()


def test_a_package_has_the_files_that_were_named(tmp_path, capsys):
    assert main(["new-task", "word_ladder", "--package", "--out", str(tmp_path)]) == 0
    named = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  /")]
    assert [Path(name) for name in named] == [path for path in map(Path, named) if path.is_file()]
    project = tomllib.loads((tmp_path / "word-ladder" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["llm_envs.tasks"] == {"my/WordLadder-v0": "word_ladder.task:WordLadderEnv"}
    assert "llm-envs is on no package index yet" in (tmp_path / "word-ladder" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["word_ladder"], "is not a checkout of llm-envs: give --package"),
        (["2words", "--package"], "the name is '2words'; it must be words in lower case with underscores"),
        (["Word-Ladder!", "--package"], "the name is 'Word-Ladder!'"),
        (["class", "--package"], "the name is 'class'"),
        (["guess_number", "--package", "--namespace", "llm"], "llm/GuessNumber-v0 is registered already"),
        (["x", "--package", "--namespace", "a/b"], "the namespace is 'a/b'"),
        (["x", "--package", "--family", "games"], "leave it out with --package"),
    ],
)
def test_wrong_requests_write_nothing(arguments, message, tmp_path, capsys):
    assert main(["new-task", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(checkout, capsys):
    assert main(["new-task", "zz_ladder", "--out", str(checkout)]) == 0
    text = (checkout / "pyproject.toml").read_text()
    assert main(["new-task", "zz_ladder", "--out", str(checkout)]) == 2
    assert "zz_ladder.py exists already" in capsys.readouterr().err
    assert (checkout / "pyproject.toml").read_text() == text
    assert main(["new-task", "yy", "--family", "no_such", "--out", str(checkout)]) == 2
    assert "tasks/ has no folder 'no_such'; there are algorithmic, games, tools" in capsys.readouterr().err
