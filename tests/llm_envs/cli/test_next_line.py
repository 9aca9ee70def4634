"""Every command that leaves something names the next one, which accepts the line."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_folders import save_tiny

from llm_envs.cli.main import COMMANDS, all_commands, create_parser, main

ROOT = Path(__file__).parents[3]
LEAVES: dict[str, list[tuple[str, str]]] = {
    # Command: its arguments, and the command that it names. RUN is a collected run, PARTS has its two shards.
    "collect": [
        ("llm/Arithmetic-v0 -n 2 --out new", "llm-envs report new"),
        ("llm/Arithmetic-v0 -n 2 --out 'two words'", "llm-envs report 'two words'"),
        ("llm/Arithmetic-v0 -n 2 --out new --shard 0/2", "llm-envs merge new --out new-merged"),
    ],
    "eval": [
        ("llm/Arithmetic-v0 --policy oracle -n 2 --out new", "llm-envs report new"),
        ("llm/Arithmetic-v0 --policy random -n 2 --out new --min-success 1", "llm-envs report new"),
        ("llm/Arithmetic-v0 --policy oracle -n 2 --out new --json", "llm-envs report new"),
        ("llm/Arithmetic-v0 --policy oracle -n 2 --out new --shard 1/2", "llm-envs merge new --out new-merged"),
        (
            "--suite standard --data GSM8K=sample --data MATH500=sample --policy oracle -n 2 --out new",
            "llm-envs report new/GSM8K new/MATH500",
        ),
    ],
    "branch": [("RUN --episode FIRST --turn 0 --times 2 --policy oracle --out new", "llm-envs report new")],
    "merge": [("PARTS --out new", "llm-envs report new")],
    "export": [
        ("RUN new --to messages", "llm-envs train sft --source new --model MODEL --out runs/sft"),
        ("RUN new --to dataset", "llm-envs train sft --source new --model MODEL --out runs/sft"),
    ],
    "rescore": [("RUN --rewards my_rewards.py:reward --out new", "llm-envs report RUN new")],
    "report": [("RUN --out new.html", "python -m webbrowser new.html")],
    "certify": [("llm/Arithmetic-v0 --out new --check splits", "python -m webbrowser new/certificate.html")],
    "new-task": [("word_ladder --package", "llm-envs check my/WordLadder-v0")],
    "train": [],  # below
    "repository": [],  # tests/tasks/repository/test_preparing.py
}
LEAVE_NOTHING = {"list", "check", "play", "serve-envs", "watch", "doctor", "completion", "audit", "mcp", "serve"}


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith("next: "), found
    return found.removeprefix("next: ")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    play = ["collect", "llm/GuessNumber-v0", "-n", "2", "--group-size", "2"]
    assert main([*play, "--out", str(folder / "RUN")]) == 0
    for shard in ("0/2", "1/2"):
        assert main([*play, "--out", str(folder / "PARTS"), "--shard", shard]) == 0
    return folder


def test_every_command_is_considered() -> None:
    assert not LEAVES.keys() & LEAVE_NOTHING
    assert COMMANDS.keys() <= all_commands().keys() <= LEAVES.keys() | LEAVE_NOTHING


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [(command, *case) for command, cases in LEAVES.items() for case in cases],
)
def test_it_names_the_next(
    command: str,
    arguments: str,
    expected: str,
    stored: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command not in all_commands() or ("GSM8K" in arguments and find_spec("llm_envs.tasks.benchmarks") is None):
        pytest.skip(f"{command} is of a room that is not here, or plays tasks of one")
    monkeypatch.chdir(tmp_path)
    for name in ("RUN", "PARTS"):
        shutil.copytree(stored / name, tmp_path / name)
    (tmp_path / "my_rewards.py").write_text("def reward(trajectory):\n    return 0.5\n", encoding="utf-8")
    from llm_envs.rollout import read_trajectories

    first = read_trajectories(tmp_path / "RUN")[0]
    main([command, *shlex.split(arguments.replace("FIRST", f"{first.group_id}/{first.member}"))])
    line = last_line(capsys)
    assert line == expected
    words = shlex.split(line)
    if words[0] == "llm-envs" and words[1] != "train":  # whose options need TRL
        create_parser(words[1]).parse_args(words[1:])
    if words[1] == "report":
        assert main(words[1:]) == 0


def test_what_is_only_shown_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "llm/Arithmetic-v0", "--policy", "oracle", "-n", "2"]) == 0
    assert "next: " not in capsys.readouterr().err


@pytest.mark.trainings
def test_a_training_names_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trl")
    save_tiny(tmp_path / "model", n_layers=1, max_length=512)
    monkeypatch.chdir(tmp_path)
    command = "train sft --env llm/Arithmetic-v0 --model model --out new --max-steps 1 --num-episodes 8 --use-cpu"
    assert main([*shlex.split(command), "--report-to", "none", "--per-device-train-batch-size", "2"]) == 0
    assert last_line(capsys) == "llm-envs report new"
    assert main(["report", "new"]) == 0
