"""`--shard` of `collect` and `eval`, `llm-envs merge`, and the Slurm script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_envs.cli.main import main
from llm_envs.data.writer import TrajectoryWriter
from llm_envs.rollout import read_trajectories
from llm_envs.types import Trajectory

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "examples" / "slurm" / "collect.sbatch"
GUESS = "llm/GuessNumber-v0"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", GUESS, "-n", 5, "--group-size", 2, "--out"]
    for shard, n in (("0/2", 6), ("1/2", 4)):
        assert run(*command, tmp_path / "parts", "--shard", shard) == 0
        folder = tmp_path / "parts" / f"shard-{shard[0]}-of-2"
        assert capsys.readouterr().out.splitlines()[-1] == f"{n} of {n} episodes are in {folder}"
        assert run(*command, tmp_path / "parts", "--shard", shard, "--resume") == 0
        assert f"{n} of them from before" in capsys.readouterr().out
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'merged'} has 10 episodes\n"
    assert run(*command, tmp_path / "whole") == 0
    merged, whole = (
        sorted(read_trajectories(tmp_path / name), key=lambda t: (t.group_id, t.member)) for name in ("merged", "whole")
    )
    assert merged == whole


def test_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first shard is interrupted, and resumed."""
    command = ["eval", GUESS, "--policy", "random", "-n", 5]
    with monkeypatch.context() as patch:
        write, written = TrajectoryWriter.write, []

        def write_one(writer: TrajectoryWriter, trajectory: Trajectory) -> None:
            write(writer, trajectory)
            written.append(trajectory)
            raise KeyboardInterrupt

        patch.setattr(TrajectoryWriter, "write", write_one)
        assert run(*command, "--out", tmp_path / "parts", "--shard", "0/2") == 130 and len(written) == 1
    for shard in ("0/2", "1/2"):
        assert run(*command, "--out", tmp_path / "parts", "--shard", shard, "--resume") == 0
        shown = capsys.readouterr()
        assert f"shard {shard}" in shown.out and "next: llm-envs merge" in shown.err
    assert run("eval", "--replay", tmp_path / "parts" / "shard-1-of-2") != 0
    assert "shard-1-of-2 is the shard 1/2 of an evaluation (it has 2 of 5 episodes): join" in capsys.readouterr().err
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged") == 0
    capsys.readouterr()
    assert run("eval", "--replay", tmp_path / "merged", "--min-mean-reward", 1.0, "--json") == 1
    replayed = capsys.readouterr()
    assert "below 1" in replayed.err
    assert run(*command, "--out", tmp_path / "whole", "--json") == 0
    merged, whole = (json.loads(text)["tasks"][0] for text in (replayed.out, capsys.readouterr().out))
    assert merged | {"seconds": 0} == whole | {"seconds": 0}


def test_an_evaluation_with_fewer_problems_than_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second shard has nothing to play, which is no error, and belongs to the whole."""
    command = ["eval", GUESS, "--policy", "random", "-n", 1, "--out", tmp_path / "parts", "--shard"]
    assert [run(*command, shard) for shard in ("0/2", "1/2")] == [0, 0]
    capsys.readouterr()
    assert run(*command, "1/2", "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == []
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged") == 0
    assert run("eval", "--replay", tmp_path / "merged", "--json") == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["tasks"][0]["n_episodes"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collect", GUESS, "-n", "2", "--out", "x", "--shard", "2/2"], "the shards of 2 are 0/2 to 1/2"),
        (["collect", GUESS, "-n", "2", "--out", "x", "--shard", "half"], "such as 0/4"),
        (["collect", GUESS, "-n", "2", "--out", "x", "--shard", "0/0"], "shard 0/0: give the number of shards"),
        (["eval", GUESS, "--shard", "0/2"], "--shard needs --out"),
        (["eval", GUESS, "--out", "x", "--shard", "0/2", "--min-success", "0.5"], "leave out --min-success"),
        (["eval", GUESS, "--out", "x", "--shard", "0/2", "--compare", "y"], "leave out --compare"),
        (["merge", "nowhere", "--out", "x"], "nowhere has no shard"),
    ],
)
def test_what_is_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(str(error.code))
    assert code in (1, 2) and said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_the_slurm_script_asks_for() -> None:
    """One task with its GPU, and each shard once. The signal is for the shell (B:): no `srun` starts a job step."""
    lines = SLURM.read_text().splitlines()
    asked = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in lines if line.startswith("#SBATCH"))
    assert (asked["ntasks"], asked["gpus"], asked["signal"]) == ("1", "1", "B:INT@120")
    assert asked["array"] == "0-3" and not any("per-task" in option for option in asked.keys() - {"cpus-per-task"})
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])  # Slurm reads none after the first command
    assert [line.split()[:2] for line in lines[first:]][-2] == ["exec", "llm-envs"]
    # Not the number of tasks that were sent: of these there are fewer when some are sent again.
    assert "$SLURM_ARRAY_TASK_ID/${SHARDS:-4}" in lines[-1]


@pytest.mark.examples
def test_the_slurm_script(tmp_path: Path) -> None:
    """In a shell, with the variables that Slurm sets. One task is interrupted as Slurm does it, and sent again."""
    pytest.importorskip("transformers")
    from tiny_folders import save_tiny

    folder = save_tiny(tmp_path / "model")
    small = ["--policy", "transformers", "-n", "60", "--group-size", "2", "--max-turns", "2", "--max-turn-tokens", "8"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def task(index: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", SLURM, tmp_path / "parts", folder, *small, "--max-concurrency", "2"],
            env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(index), "SHARDS": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )

    tasks = [task(index) for index in range(2)]
    log, until = tmp_path / "parts" / "shard-1-of-2" / "log-00000.jsonl", time.monotonic() + 120
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < until and tasks[1].poll() is None
        time.sleep(0.01)
    tasks[1].send_signal(signal.SIGINT)
    assert "episodes are finished and saved" in tasks[1].communicate(timeout=120)[1] and tasks[1].returncode == 130
    assert 0 < len(read_trajectories(log.parent)) < 60
    tasks[1] = task(1)
    said = [task.communicate(timeout=120)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0] * 2, said
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "whole") == 0
    assert len(read_trajectories(tmp_path / "whole")) == 60 * 2
