"""`--shard` of `collect` and `eval`, `llm-envs merge`, and the Slurm script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_envs.cli.main import main
from llm_envs.data.writer import TrajectoryWriter
from llm_envs.rollout import read_trajectories
from llm_envs.types import Trajectory

ROOT = Path(__file__).resolve().parents[3]
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
    assert capsys.readouterr().out == f"10 episodes are in {tmp_path / 'merged'}\n"
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
        assert f"shard {shard}; llm-envs merge joins all shards" in capsys.readouterr().out
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged") == 0
    capsys.readouterr()
    assert run("eval", "--replay", tmp_path / "merged", "--min-mean-reward", 1.0, "--json") == 1
    replayed = capsys.readouterr()
    assert "below 1" in replayed.err
    assert run(*command, "--out", tmp_path / "whole", "--json") == 0
    merged, whole = (json.loads(text)["tasks"][0] for text in (replayed.out, capsys.readouterr().out))
    assert merged | {"seconds": 0} == whole | {"seconds": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collect", GUESS, "-n", "2", "--out", "x", "--shard", "2/2"], "the shards of 2 are 0/2 to 1/2"),
        (["collect", GUESS, "-n", "2", "--out", "x", "--shard", "half"], "such as 0/4"),
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


@pytest.mark.examples
def test_the_slurm_script(tmp_path: Path) -> None:
    """In a shell, with the variables that Slurm sets; side by side, as the array's tasks are."""
    pytest.importorskip("transformers")
    from llm_envs.tiny_model import tiny_model, tiny_tokenizer

    folder, tokenizer = tmp_path / "model", tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    script = ROOT / "examples" / "slurm" / "collect.sbatch"
    small = ["--policy", "transformers", "-n", "6", "--group-size", "2", "--max-turns", "2", "--max-turn-tokens", "8"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tasks = [
        subprocess.Popen(
            ["bash", script, tmp_path / "parts", folder, *small],
            env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_COUNT": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    assert [task.wait(120) for task in tasks] == [0] * 2, [task.stderr and task.stderr.read() for task in tasks]
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "whole") == 0
    assert len(read_trajectories(tmp_path / "whole")) == 6 * 2
