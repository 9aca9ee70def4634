"""A run as a data set on the hub: its files, its card, and the upload, which a local server takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from hub_stand_in import environment, hub_stand_in
from report_runs import make_episode, write_run

from llm_envs.data import from_dataset
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import OraclePolicy
from llm_envs.report import push_to_hub, write_hub_folder
from llm_envs.rollout import collect_run, read_trajectories
from llm_envs.testing import ByteCodec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    mixture = {"llm/GuessNumber-v0": 1, "llm/Arithmetic-v0": 1}
    collect_run(mixture, OraclePolicy(), out=folder, n_groups=8, group_size=2, seed=5, codec=ByteCodec())
    return folder


EASY = {"difficulty": "easy"}


def load(folder: Path) -> datasets.Dataset:
    """Load the files as the hub's readers do: by the card's first lines."""
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(folder.with_name("cache")))


def export(run: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llm_envs.cli", "export", str(run), *arguments, "--to", "hub"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, timeout=120)


def test_the_files_give_the_trajectories_back(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_envs.report.hub._FILE_EPISODES", 5)
    assert write_hub_folder(run, tmp_path / "x", repo_id="you/name") == 16
    with pytest.raises(InvalidConfigError, match="exists already"):
        write_hub_folder(run, tmp_path / "x", repo_id="you/name")
    assert sorted(path.name for path in (tmp_path / "x" / "data").iterdir()) == [
        f"train-{number:05d}-of-00004.parquet" for number in range(4)
    ]
    assert from_dataset(load(tmp_path / "x")) == read_trajectories(run)


def test_the_card_says_what_was_played(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "README.md").symlink_to(tmp_path / "precious")  # somebody else's folder: the link is replaced
    write_hub_folder(run, tmp_path / "x", repo_id="you/name")
    card = (tmp_path / "x" / "README.md").read_text()
    assert not (tmp_path / "precious").exists()
    seeds = [trajectory.seed for trajectory in read_trajectories(run)]
    for said in (
        "license: unknown\n",
        "path: data/*.parquet",
        "# name\n\n16 episodes of language-model environments, played by llm-envs. policy: `OraclePolicy`. seed: `5`.",
        "| `llm/Arithmetic-v0` |  | 1 | 2 | 0 | 100.0% (20.7% to 100.0%) | 1 |",
        f"between {min(seeds)} and {max(seeds)}",
        '"group_size": 2',
        "llm-envs 0.1.0",
        'datasets.load_dataset("you/name", split="train")',
        "Not chosen yet: replace `license: unknown`",
    ):
        assert said in card, card


def test_a_chosen_license_and_settings_of_the_environment_are_on_the_card(tmp_path: Path) -> None:
    collect_run(
        "llm/GuessNumber-v0", OraclePolicy(), out=tmp_path / "run", n_groups=2, env_kwargs={"difficulty": "easy"}
    )
    write_hub_folder(tmp_path / "run", tmp_path / "x", repo_id="you/name", license="cc-by-4.0")
    card = (tmp_path / "x" / "README.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\n") and "## License\n\n`cc-by-4.0`." in card
    assert "| `llm/GuessNumber-v0` | difficulty=easy | 2 | 2 | 0 | 100.0%" in card


def test_the_numbers_of_a_large_run_are_those_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_envs.report.hub._COUNTED", 50)
    run = write_run(tmp_path / "run", [make_episode(seed, is_success=seed % 4 > 0) for seed in range(200)])
    assert write_hub_folder(run, tmp_path / "x", repo_id="you/name") == 200
    card = (tmp_path / "x" / "README.md").read_text()
    assert "200 episodes of" in card and "They are those of a random sample of the problems." in card
    (line,) = [line for line in card.splitlines() if line.startswith("| `")]
    assert 25 < int(line.split("|")[4]) < 80


def test_an_upload_is_one_commit_and_replaces_the_earlier_files(run: Path, tmp_path: Path) -> None:
    with hub_stand_in(tmp_path / "hub") as server:
        there = tmp_path / "hub" / "datasets" / "you" / "name"
        (there / "data").mkdir(parents=True)
        (there / "data" / "train-00000-of-00002.parquet").write_bytes(b"of an earlier upload")
        done = export(run, "you/name", "--license", "mit", **environment(server))
        assert done.returncode == 0, done.stderr
        assert f"the data set is at {server.address}/datasets/you/name" in done.stdout
        (asked,) = server.created
        assert (asked["name"], asked["organization"], asked["type"], asked["visibility"]) == (
            "name", "you", "dataset", "private",
        )  # fmt: skip
        assert [call for call in server.calls if "/commit/" in call] == ["/api/datasets/you/name/commit/main"]
        assert sorted(path.name for path in there.rglob("*.*")) == ["README.md", "train-00000-of-00001.parquet"]
        assert from_dataset(load(there)) == read_trajectories(run)
        assert "license: mit" in (there / "README.md").read_text()
        assert export(run, "you/name", "--public", "--keep", "successes", **environment(server)).returncode == 0
        assert server.created[1]["visibility"] == "public"


def test_what_goes_wrong_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    with hub_stand_in(tmp_path / "hub") as server:
        done = export(run, "you/name", **environment(server) | {"HF_TOKEN": "hf_wrong"})
        assert done.returncode == 1 and "could not be uploaded to you/name" in done.stderr
        assert "Log in with `hf auth login`, or set HF_TOKEN" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(InvalidConfigError, match="is not the name of a repository"):
        push_to_hub(run, "not a name")
    with pytest.raises(InvalidConfigError, match="no episode is left to upload"):
        push_to_hub(run, "you/name", keep=lambda trajectory: False)
