"""Where only POSIX has fork, SIGKILL and the like, the core plays, collects, evaluates and trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_envs.tiny_model import tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[1]
COMMANDS = """
import sys
import without_posix
from llm_envs.cli.main import main
for line in sys.stdin.read().splitlines():
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    assert code == 0, line
"""


def run(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run command lines in one process, one after another."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT / 'tests' / 'support')!r}]\n{COMMANDS}"]
    return subprocess.run(command, cwd=folder, input="\n".join(lines), capture_output=True, text=True, check=False)


def test_what_only_posix_has_is_hidden_from_our_files(tmp_path: Path) -> None:
    code = (
        "import sys, without_posix, os, signal, llm_envs.processes as ours\n"
        "assert os.name == 'posix' and signal.SIGKILL and os.getpgid(0)\n"
        "assert ours.os.name == 'nt' and not hasattr(ours.os, 'killpg') and not hasattr(ours.signal, 'SIGKILL')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests" / "support", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_scripted_policies_play_collect_and_are_evaluated(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "list",
        "play llm/Arithmetic-v0",
        "collect llm/Calculator-v0 --policy oracle -n 4 --out run",
        "eval llm/GuessNumber-v0 --policy oracle -n 4 --out eval",
        "report run",
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize(
    "line",
    [
        "collect llm/Calculator-v0 --policy oracle -n 4 --workers 2 --out run",
        'play llm/PythonInterpreter-v0 --env-kwargs {"interpreter":"cpython"}',
    ],
)
def test_what_needs_posix_is_refused(line: str, tmp_path: Path) -> None:
    done = run(tmp_path, line)
    assert done.returncode == 1
    assert "win32" in done.stderr and "Linux" in done.stderr


@pytest.mark.trainings
def test_models_are_trained(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    for part in (tiny_model(tokenizer), tokenizer):
        part.save_pretrained(tmp_path / "tiny")
    common = "--model tiny --max-steps 1 --report-to none"
    done = run(
        tmp_path,
        "collect llm/Calculator-v0 --policy oracle -n 8 --out run",
        f"train sft --source run {common} --per-device-train-batch-size 2 --out sft",
    )
    assert done.returncode == 0, done.stderr
    done = run(
        tmp_path,
        f"train grpo --env llm/Calculator-v0 {common} --per-device-train-batch-size 4 --num-generations 4 "
        "--max-completion-length 16 --out grpo",
    )
    assert done.returncode == 0 or "1 of 1 generations taught nothing" in done.stderr  # a model of random weights
    assert list((tmp_path / "sft").rglob("*.safetensors")) and list((tmp_path / "grpo").rglob("*.safetensors"))
