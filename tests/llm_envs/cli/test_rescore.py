"""`llm-envs rescore`: a run of `collect` or of a trainer gets new rewards in a new folder."""

import re
import sys

import pytest

from llm_envs.cli.main import main
from llm_envs.data.folder import read_manifest
from llm_envs.rewards import rescore
from llm_envs.rollout import TrajectoryWriter, read_trajectories

REWARDS = """
from llm_envs.rewards import create_gated
from llm_envs.trainers import RewardSettings

def length(trajectory):
    return float(len(trajectory.turns))

def some(trajectory):
    return None if trajectory.member else 0.25

def broken(trajectory):
    raise KeyError("no such column")

BOTH = {"turns": length, "some": some}
RELATIVE = RewardSettings(reward_fns={"turns": length}, aggregate="relative")
HALF = RewardSettings(reward_fns={"turns": length}, weights={"turns": 0.5})
SHAPED = RewardSettings(reward_fns=length, shaping_fns=lambda trajectory: [0.0])
NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a run of 4 groups of 2 episodes, and a file of rewards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_new_rewards", raising=False)  # the file of the test before
    (tmp_path / "my_new_rewards.py").write_text(REWARDS, encoding="utf-8")
    command = ["collect", "llm/GuessNumber-v0", "-n", "4", "--group-size", "2", "--out", "runs/played"]
    assert main(command) == 0
    return tmp_path


def run(*arguments):
    return main(["rescore", *map(str, arguments)])


def test_a_run_gets_new_rewards_in_a_new_folder(folder, capsys):
    before = read_trajectories("runs/played")
    capsys.readouterr()
    assert run("runs/played", "--rewards", "my_new_rewards.py:length") == 0
    (first,) = capsys.readouterr().out.splitlines()
    assert read_trajectories("runs/played") == before  # the run itself stays
    target = folder / "runs" / "played-rescored"
    after = read_trajectories(target)
    assert [t.reward for t in after] == [float(len(t.turns)) for t in before]
    assert [t.metadata["task_reward"] for t in after] == [t.reward for t in before]
    assert [(t.group_id, t.member, t.messages) for t in after] == [(t.group_id, t.member, t.messages) for t in before]
    old, new = (sum(t.reward for t in some) / 8 for some in (before, after))
    n_changed = sum(one.reward != other.reward for one, other in zip(before, after, strict=True))
    assert first == f"8 episodes are in {target}: mean reward {old:.3f} -> {new:.3f}; {n_changed} of 8 changed"
    settings = dict(read_manifest(target).settings)
    assert settings.pop("rescored") == {"run": "runs/played", "rewards": f"{folder / 'my_new_rewards.py'}:length"}
    assert settings == read_manifest(folder / "runs" / "played").settings
    assert main(["report", "runs/played", str(target), "--out", "compared.html"]) == 0


def test_episodes_without_a_score_are_counted(folder, capsys):
    assert run("runs/played", "--rewards", "my_new_rewards.py:BOTH", "--out", "new") == 0
    after = read_trajectories("new")
    assert [t.status for t in after].count("unscored") == 4  # the second of each group
    assert ", 4 have no score now" in capsys.readouterr().out
    assert all(t.components.keys() == {"turns", "some"} for t in after if t.status == "ok")


@pytest.mark.parametrize(("name", "settings"), [("RELATIVE", {"method": "relative"}), ("HALF", {"weights": 0.5})])
def test_a_reward_settings_brings_weights_or_a_comparison(folder, name, settings):
    assert run("runs/played", "--rewards", f"my_new_rewards.py:{name}", "--out", "new") == 0
    stored, fns = read_trajectories("runs/played"), {"turns": lambda t: float(len(t.turns))}
    if name == "HALF":
        settings = {"weights": {"turns": 0.5}}
    assert [t.reward for t in read_trajectories("new")] == [t.reward for t in rescore(stored, fns, **settings)]


def test_all_processes_of_a_trainer_are_read(folder):
    stored = read_trajectories("runs/played")
    for number, some in enumerate((stored[:3], stored[3:])):
        with TrajectoryWriter(f"trained/trajectories/process-{number}", settings={"seed": 7}) as writer:
            for trajectory in some:
                writer.write(trajectory)
    assert run("trained", "--rewards", "my_new_rewards.py:length") == 0
    assert [t.group_id for t in read_trajectories("trained-rescored")] == [t.group_id for t in stored]
    assert read_manifest(folder / "trained-rescored").settings["seed"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/played", "--rewards", "my_new_rewards.py:broken"], "no such column"),
        (["runs/played", "--rewards", "my_new_rewards.py:NUMBER"], "NUMBER.*int"),
        (["runs/played", "--rewards", "my_new_rewards.py:SHAPED"], "SHAPED.*shaping_fns"),
        (["runs/played", "--rewards", "my_new_rewards.py:lenght"], "lenght.*Did you mean length"),
        (["runs/nowhere", "--rewards", "my_new_rewards.py:length"], "runs/nowhere"),
        (["runs/played", "--rewards", "my_new_rewards.py:length", "--out", "runs/played"], "runs/played exists"),
        (["memory://run", "--rewards", "my_new_rewards.py:length"], "--out"),
    ],
)
def test_what_cannot_be_is_an_error_that_leaves_nothing(folder, capsys, arguments, message):
    before = sorted(folder.rglob("*"))
    assert run(*arguments) in (1, 2)
    assert re.search(message, capsys.readouterr().err)
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)] == before
