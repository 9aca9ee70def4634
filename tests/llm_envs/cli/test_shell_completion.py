"""Shell completion: the protocol in which shells ask, and a real interactive bash."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from llm_envs.cli.main import main
from llm_envs.cli.shell_completion import SHELLS, levels

LIMIT_S = 600
"""How long a shell may take; the machine may be busy."""

ASK = "exec 8>&1 1>/dev/null; exec {python} -m llm_envs.cli.main"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder where completions keep the options of trainings: each training is loaded once."""
    return str(tmp_path_factory.mktemp("cache"))


def asked(line: str, cwd: Path, cache: str) -> list[str]:
    """Return how a line may go on, as bash asks: words in the environment, answers on file descriptor 8."""
    environment = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    done = subprocess.run(
        ["bash", "-c", ASK.format(python=shlex.quote(sys.executable))],
        env=os.environ | environment | {"XDG_CACHE_HOME": cache},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return [word.rstrip() for word in done.stdout.split("\n") if word]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("llm-envs co", ["collect", "completion"]),
        ("llm-envs --v", ["--version"]),
        ("llm-envs play llm/Word", ["llm/WordProblems-v0", "llm/Wordle-v0"]),
        ("llm-envs play --max", ["--max-turn-tokens", "--max-concurrent-requests", "--max-tokens-name"]),
        ("llm-envs play --max_turn", ["--max-turn-tokens"]),
        ("llm-envs collect llm/Wordle-v0 --history ", ["append", "template"]),
        ("llm-envs eval llm/GuessNumber-v0 --difficulty easy,", ["easy,medium", "easy,hard"]),
        ("llm-envs report a.tx", ["a.txt"]),
        ("llm-envs train gr", ["grpo"]),
        *(
            pytest.param(line, expected, marks=pytest.mark.trainings)
            for line, expected in (
                ("llm-envs train grpo --num_gen", ["--num-generations", "--num-generations-eval"]),
                ("llm-envs train grpo --env llm/Word", ["llm/WordProblems-v0", "llm/Wordle-v0"]),
                ("llm-envs train grpo --dtype b", ["bfloat16"]),
            )
        ),
    ],
)
def test_a_line_goes_on(line: str, expected: list[str], tmp_path: Path, cache: str) -> None:
    (tmp_path / "a.txt").touch()
    assert sorted(asked(line, tmp_path, cache)) == sorted(expected)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with the options of a training that an earlier completion has kept."""
    names = [version(name) for name in ("llm-envs", "trl", "transformers")]
    (tmp_path / "llm-envs").mkdir()
    (tmp_path / "llm-envs" / f"options-grpo-{'-'.join(names)}.json").write_text('{"--num-kept": null, "--bf16": []}')
    return tmp_path


def test_options_of_a_training_are_kept(kept: Path) -> None:
    """The first completion loads TRL for seconds; later ones load neither a trainer nor a task."""
    assert asked("llm-envs train grpo --num", kept, str(kept)) == ["--num-kept"]
    line = "llm-envs train grpo --num"
    code = (
        "import atexit, os, sys\nleave = os._exit\n"
        "def say(code):\n    heavy = {'torch', 'transformers', 'trl', 'datasets', 'rich', 'yaml'} & set(sys.modules)\n"
        "    tasks = [name for name in sys.modules if name.startswith('llm_envs.tasks.')]\n"
        "    os.write(2, f'{sorted(heavy)} {tasks}'.encode())\n    leave(code)\n"
        "os._exit = say\nfrom llm_envs.cli.main import main\nmain([])\n"
    )
    environment = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "XDG_CACHE_HOME": str(kept)}
    environment["_ARGCOMPLETE_STDOUT_FILENAME"] = str(kept / "answer")
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stderr.endswith("[] []")
    assert (kept / "answer").read_text().startswith("--num-kept")


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_shell_is_to_read(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "llm-envs" in printed and "_ARGCOMPLETE" in printed
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=printed, text=True, check=True)


def test_levels_of_a_task() -> None:
    assert levels("llm/GuessNumber-v0") == ["easy", "medium", "hard"]
    assert levels("llm/Nothing-v0") == []
    assert levels("CartPole-v1") == []


def test_an_interactive_bash_completes(tmp_path: Path, cache: str) -> None:
    bin_folder = Path(sys.executable).parent
    if shutil.which("bash") is None or not (bin_folder / "llm-envs").exists():
        pytest.skip("there is no bash, or the command is not installed")
    master, slave = pty.openpty()
    environment = os.environ | {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": cache,
        "PS1": "ready> ",
        "TERM": "dumb",
    }
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        until = time.monotonic() + LIMIT_S
        while text not in seen:
            assert time.monotonic() < until, seen
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 4096).decode(errors="replace")
        seen = seen.partition(text)[2]

    try:
        wait_for("ready> ")
        os.write(master, b'eval "$(llm-envs completion bash)"; echo so"urced"\n')
        wait_for("sourced")
        os.write(master, b"echo llm-envs; llm-envs pla\t")
        wait_for("llm-envs play ")
        os.write(master, b"llm/Wordl\t")
        wait_for("llm/Wordle-v0 ")
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
