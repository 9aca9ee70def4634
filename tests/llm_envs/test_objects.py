"""`FILE.py:NAME`: one form for every object of the user's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.objects import env_id, is_named, load_object, named_source
from llm_envs.rollout import read_run

FILE = """
from llm_envs.registration import register_task
from llm_envs.tasks.arithmetic.arithmetic import ArithmeticEnv as Base


class Sums(Base):
    pass


def make(**kwargs):
    return Sums(**kwargs)


class Registered(Base):
    pass


register_task("objects/Registered-v3", Registered)
NAME = "objects/Registered-v3"
NUMBER = 3


class Tens:
    def act(self, env, observation):
        return "<answer>10</answer>"


TENS = Tens()


class Agent:
    def __call__(self, **kwargs):
        return Sums(**kwargs)

    async def play_episode(self, spec, policy, **settings):
        raise NotImplementedError


AGENT = Agent()


def brief(trajectory):
    return 1.0
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(gym.registry)
    (tmp_path / "objects_of_a_test.py").write_text(FILE)
    yield str(tmp_path / "objects_of_a_test.py")
    sys.modules.pop("objects_of_a_test", None)
    for added in set(gym.registry) - before:
        gym.registry.pop(added)


def test_what_names_an_object_and_what_is_an_id() -> None:
    assert is_named("mine.py:ENV") and is_named("my.module:Env") and is_named("/a/b c/mine.py:ENV")
    assert not any(map(is_named, ["llm/Wordle-v0", "module:llm/Wordle-v0", "llm/Wordle-v0:2", "llm/*", "Wordle", ""]))


def test_an_environment_is_registered_once_under_its_files_name(file: str) -> None:
    assert env_id("llm/Wordle-v0") == "llm/Wordle-v0"
    assert env_id(f"{file}:Sums") == env_id(f"{file}:Sums") == "objects_of_a_test/Sums-v0"
    assert env_id(f"{file}:make") == "objects_of_a_test/make-v0"
    assert type(gym.make("objects_of_a_test/make-v0").unwrapped).__name__ == "Sums"
    assert env_id(f"{file}:Registered") == env_id(f"{file}:NAME") == "objects/Registered-v3"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NUMBER", "is of type int"),
        ("Sum", r"has no Sum\. Did you mean Sums\?"),
        ("TENS", "type Tens"),
        ("AGENT", "give --agent"),
    ],
)
def test_what_is_no_environment(file: str, name: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        env_id(f"{file}:{name}")


def test_a_module_of_the_current_folder(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(file).parent)
    assert load_object("--rewards", "objects_of_a_test:NUMBER", int) == 3
    with pytest.raises(InvalidConfigError, match=r"--rewards objects_of_a_test:NUMBER.*type int.*a str"):
        load_object("--rewards", "objects_of_a_test:NUMBER", str)


def test_commands_take_environments_and_policies_of_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums, run = f"{file}:Sums", tmp_path / "run"
    assert main(["play", sums, "--policy", f"{file}:TENS"]) == 0
    assert "<answer>10</answer>" in capsys.readouterr().out
    config = tmp_path / "collect.yaml"
    config.write_text(f"envs: ['{sums}:2', llm/Countdown-v0]\nn: 4\nout: {run}\npolicy: '{file}:Tens'\n")
    assert main(["collect", "--config", str(config)]) == 0
    stored = read_run(run)
    assert stored.settings["envs"] == [["objects_of_a_test/Sums-v0", 2.0, {}], ["llm/Countdown-v0", 1.0, {}]]
    assert stored.settings["policy"] == f"{file}:Tens"
    assert {t.messages[-1].content for t in stored.trajectories} == {"<answer>10</answer>"}
    assert main(["eval", sums, "-n", "2"]) == 0
    assert main(["play", sums, "--policy", f"{file}:brief"]) == 2  # it makes no policy
    assert "brief" in capsys.readouterr().err


def test_a_run_of_a_files_environment_is_read_without_the_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["collect", f"{file}:Sums", "--policy", "oracle", "-n", "8", "--out", str(run)]) == 0
    gym.registry.pop("objects_of_a_test/Sums-v0")  # as in a new process, on a machine without the file
    sys.modules.pop("objects_of_a_test")
    Path(file).unlink()
    capsys.readouterr()
    assert main(["eval", "--replay", str(run)]) == 0
    assert re.search(r"objects_of_a_test/Sums-v0 +8 +1 +100\.0%", capsys.readouterr().out)
    assert main(["report", str(run)]) == 0
    assert "objects_of_a_test/Sums-v0" in (run / "report.html").read_text()
    assert main(["export", str(run), str(tmp_path / "out.jsonl"), "--to", "messages"]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 8


def test_check_and_branch_take_an_environment_of_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{file}:make"]) == 0
    run = tmp_path / "run"
    assert main(["collect", f"{file}:Sums", "-n", "1", "--out", str(run)]) == 0
    gym.registry.pop("objects_of_a_test/Sums-v0")  # as in a new process
    (stored,) = read_run(run).trajectories
    branch = ["branch", str(run), "--episode", f"{stored.group_id}/0", "--turn", "0", "--times", "2"]
    assert main([*branch, "--env", f"{file}:Sums"]) == 0
    capsys.readouterr()
    assert main(["play", "no_such.py:Env"]) == 2
    assert "no_such.py does not exist" in capsys.readouterr().err


def test_a_source_is_told_by_its_text_and_a_function_without_one_by_its_name() -> None:
    def reward(result: object) -> float:
        return 1.0

    before = named_source(reward)

    def reward(result: object) -> float:  # type: ignore[no-redef]
        return 2.0

    assert re.fullmatch(r".*reward [0-9a-f]{16}", before) and named_source(reward) != before
    assert named_source(print) == "builtin_function_or_method" and named_source(reward) == named_source(reward)
