"""Each planted defect is caught by just the check that should, and sound environments pass."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from planted_defects import BEGIN, DEFECTS, END, PAGE, SETTINGS, SOUND, measured, table
from planted_scores import TakesTheLastNumber
from sound_envs import Backwards, Sum

from llm_envs.checker import Settings
from llm_envs.checker.certification import certify
from llm_envs.checker.clauses import CHECKS, CLAUSES
from llm_envs.cli.main import main
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidConfigError, UnknownTaskError
from llm_envs.registration import register_task
from llm_envs.report.certificate import badge, write_certificate
from llm_envs.testing import NumbersEnv

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # the clock, open files and threads are looked at

PLANTED = [(check, cls) for check, planted in DEFECTS.items() for cls in planted]
LEARNERS = "llm_envs.trainers.cli.learnability"


@pytest.mark.levels
@pytest.mark.parametrize(
    ("check", "cls"),
    [
        pytest.param(check, cls, marks=pytest.mark.smoke, id=cls.__name__)
        if cls is DEFECTS[check][0]
        else pytest.param(check, cls, id=cls.__name__)
        for check, cls in PLANTED
    ],
)
def test_a_planted_defect_is_caught_by_just_its_check(check: str, cls: type[gym.Env[str, str]]) -> None:
    assert measured(cls).failed == (check,), str(measured(cls))


def test_there_are_enough_defects_and_each_check_has_some() -> None:
    assert len(PLANTED) >= 40
    assert {check.name for check in CHECKS} - set(DEFECTS) == {"contract", "learnability"}  # tested below


@pytest.mark.parametrize("cls", SOUND)
def test_a_sound_environment_passes(cls: type[gym.Env[str, str]]) -> None:
    certificate = measured(cls)
    assert certificate.passed, str(certificate)
    applied = {name for name in certificate.checks if certificate.status(name) == "passed"}
    missing = {"contract", "learnability"} | ({"natural forms"} if cls is Backwards else set())
    assert applied == {check.name for check in CHECKS} - missing


@pytest.mark.levels  # shares what the test of planted defects measured
def test_the_table_of_the_page_is_what_is_measured() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip() == table()


def test_what_does_not_apply_is_never_passed() -> None:
    found = {finding.clause: finding for finding in measured(Backwards).findings}
    assert found["accepts_natural_forms"].status == "not applicable"
    assert "moves of a longer episode" in found["accepts_natural_forms"].detail

    class Silent(NumbersEnv):
        oracle = None

    assert certify(Silent, checks=["oracle"]).status("oracle") == "not applicable"


def test_a_task_of_ours_is_examined_by_all_clauses() -> None:
    certificate = certify("llm/Calculator-v0")
    assert certificate.passed, str(certificate)
    clauses = [clause.__name__ for check in CHECKS for clause in (*check.clauses, *check.further)]
    assert [finding.clause for finding in certificate.findings] == clauses
    assert {clause.__name__ for clause in CLAUSES} < set(clauses)
    assert certificate.status("contract") == "passed"
    assert certificate.status("learnability") == "not applicable"


def test_a_task_without_an_oracle_is_examined_from_outside() -> None:
    certificate = certify(
        "gymnasium/FrozenLake-v1", Settings(chance_rate=0.3), checks=["oracle", "determinism", "isolation"]
    )
    assert certificate.passed, str(certificate)
    assert certificate.status("oracle") == "not applicable"


def test_a_task_without_an_oracle_takes_a_given_one() -> None:
    path = {"row 0": "down", "row 1": "down", "row 2, column 0": "right", "row 2, column 1": "down", "row 3": "right"}

    def walk(env: gym.Env[str, str], observation: str) -> str:
        move = next(move for place, move in path.items() if f"State: {place}" in observation)
        return f"<answer>{move}</answer>"

    settings, kwargs = Settings(chance_rate=0.3, oracle=walk), {"is_slippery": False}
    certificate = certify("gymnasium/FrozenLake-v1", settings, checks=["oracle"], env_kwargs=kwargs)
    assert certificate.status("oracle") == "passed", str(certificate)


def test_an_oracle_that_never_acts_fails_its_own_check_only() -> None:
    def broken(env: Any, observation: str) -> str:
        raise RuntimeError("no idea")

    certificate = certify(SOUND[0], replace(SETTINGS, oracle=broken), checks=["oracle", "floor"])
    assert certificate.failed == ("oracle",), str(certificate)


class Undocumented(SingleTurnEnv):
    """Asks for a number."""

    difficulties = {"only": Difficulty("a number", chance_rate=0.001)}
    default_difficulty = "only"
    problem_fields = {"n": int}

    def generate(self) -> dict[str, Any]:
        return {"n": int(self.np_random.integers(1_000_000))}

    def prompt(self) -> str:
        return f"Say {self.problem['n'] + 1} minus one."

    def solution(self) -> str:
        return str(self.problem["n"])


@pytest.fixture
def undocumented() -> Iterator[str]:
    register_task("certify/Undocumented-v0", Undocumented)
    yield "certify/Undocumented-v0"
    gym.registry.pop("certify/Undocumented-v0")


def test_a_task_that_declares_too_little_breaks_its_contract_only(undocumented: str) -> None:
    certificate = certify(undocumented)
    assert certificate.failed == ("contract",), str(certificate)
    wrong = {finding.clause for finding in certificate.findings if finding.status == "failed"}
    assert wrong == {"documents_its_difficulties", "has_docstring_headings"}
    assert certify(Undocumented).passed  # a class that nobody registered declares nothing


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ("no.such.module:Env", InvalidConfigError, "No module named 'no'"),
        ("llm_envs.testing:Nothing", InvalidConfigError, "has no Nothing"),
        ("llm/NoSuchTask-v0", UnknownTaskError, "there is no task"),
        (lambda: gym.make("CartPole-v1"), InvalidConfigError, "GymnasiumEnv with env, which puts them into words"),
        (lambda: 3, InvalidConfigError, r"is a int; it must be a gymnasium.Env"),
        (lambda: 1 / 0, InvalidConfigError, "cannot be made: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_examined_is_refused(env: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        certify(env)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"chance_rate is 2; it must be between 0 and 1"):
        Settings(chance_rate=2)
    with pytest.raises(InvalidConfigError, match=r"return_range is \(1, 0\); give the lower end first"):
        Settings(return_range=(1, 0))
    with pytest.raises(InvalidConfigError, match=r"max_step_s is 0; it must be above 0"):
        Settings(max_step_s=0)
    with pytest.raises(InvalidConfigError, match=r"check.*'luck'"):
        certify(Sum, checks=["luck"])


# The files.


class Page(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_files_of_a_certificate(tmp_path: Path) -> None:
    certificate = measured(TakesTheLastNumber)
    page, findings, shield = write_certificate(certificate, tmp_path / "new")
    read = Page()
    read.feed(page.read_text(encoding="utf-8"))
    assert "script" not in read.tags and "link" not in read.tags and "img" not in read.tags
    for finding in certificate.findings:
        assert finding.clause in read.text and " ".join(finding.detail.split())[:40] in " ".join(read.text.split())
    data = json.loads(findings.read_text())
    assert not data["passed"] and [check["name"] for check in data["checks"] if check["status"] == "failed"] == [
        "hacks"
    ]
    assert json.loads(shield.read_text()) == {
        "schemaVersion": 1,
        "label": "llm-envs certify",
        "message": "12 of 13 checks",
        "color": "red",
        "isError": True,
    }
    assert badge(measured(Sum)) == {
        "schemaVersion": 1,
        "label": "llm-envs certify",
        "message": "13 of 13 checks",
        "color": "brightgreen",
        "isError": False,
    }


def test_what_an_environment_writes_never_becomes_markup(tmp_path: Path) -> None:
    class Hostile(Sum):
        def step(self, action: str) -> Any:
            raise ValueError("<script>alert(1)</script>\ud800")

    page, *_ = write_certificate(certify(Hostile, SETTINGS), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text


# The command.


def test_all_levels_are_examined_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "certify",
        "llm/GuessNumber-v0",
        "--all-levels",
        "--check",
        "splits",
        "-n",
        "4",
        "--n-problems",
        "4",
        "--json",
    ]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examined"]["levels"] == ["easy", "medium", "hard"]
    (check,) = [check for check in found["checks"] if check["status"] == "passed"]
    levels = [finding["clause"].partition(" [")[2] for finding in check["findings"]]
    assert {level.rstrip("]") for level in levels} == {"easy", "medium", "hard"}
    assert main(["certify", "planted_defects:Sum", "--all-levels"]) == 2
    assert "leave out --all-levels" in capsys.readouterr().err


def test_the_exit_codes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "planted_defects:Sum", "-n", "12", "--out", str(tmp_path)]) == 0
    assert "ok   oracle: oracle_earns_the_maximum: 100% of 12 episodes" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["badge.json", "certificate.html", "certificate.json"]
    assert main(["certify", "planted_scores:OracleErrs", "--check", "oracle", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["status"] == "failed"
    for wrong in (
        ["no/Such-v0"],
        ["planted_defects:Sum", "--oracle", "nowhere:f"],
        ["planted_defects:Sum", "--check", "x"],
    ):
        assert main(["certify", *wrong]) == 2
    given = ["--oracle", "planted_defects:SOUND"]
    assert main(["certify", "planted_defects:Sum", *given]) == 2
    assert "SOUND is a tuple; it must be a function" in capsys.readouterr().err


class Leaves(Sum):
    """Ends the process."""

    def step(self, action: str) -> Any:
        os._exit(0)


class Quits(Sum):
    """Asks for the end of the process."""

    def step(self, action: str) -> Any:
        raise SystemExit(0)


class Stays(Sum):
    """Never returns."""

    def step(self, action: str) -> Any:
        time.sleep(1_000)


@pytest.mark.parametrize(
    ("cls", "max_s", "why"),
    [
        (Leaves, 600, "it ended the process (exit code 0)"),
        (Quits, 600, "it raised SystemExit(0)"),
        (Stays, 3, "the checks did not end within 3 s"),
    ],
)
def test_an_environment_that_ends_or_holds_the_process_has_no_certificate(
    cls: type[gym.Env[str, str]], max_s: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "badge.json").write_text("of an earlier certificate")
    command = ["certify", f"{__name__}:{cls.__name__}", "--max-s", str(max_s), "--out", str(tmp_path)]
    assert main(command) == 1
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Learnability.


class Unpaid(Backwards):
    """Pays nothing."""

    def reward(self, right: bool) -> float:
        return 0.0


class Copies(Sum):
    """Asks for one of four words."""

    def question(self) -> str:
        return f"Say {self.solution()}."

    def solution(self) -> str:
        return ("red", "blue", "green", "brown")[self.a % 4]


def test_an_oracle_and_a_learner_are_functions() -> None:
    made = []

    def learner(make: Any) -> tuple[float, float]:
        made.append(make())
        return 0.25, 0.29

    settings = replace(SETTINGS, learner=learner, oracle=lambda env, observation: str(env.a + env.b + 1))
    certificate = certify(Sum, settings, checks=["oracle", "learnability"])
    assert certificate.failed == ("oracle", "learnability") and isinstance(made[0], Sum)
    assert "the mean return was 0.250 before the training and 0.290 after it, 0.05 more" in str(certificate)


@pytest.mark.trainings
def test_a_tiny_model_learns_what_can_be_learned() -> None:
    from llm_envs.trainers.cli.learnability import learn_from_oracle

    settings = replace(SETTINGS, learner=learn_from_oracle)
    certificate = certify(Copies, settings, checks=["learnability"])
    assert certificate.status("learnability") == "passed", str(certificate)
    certificate = certify(Unpaid, settings, checks=["learnability"])
    assert certificate.status("learnability") == "failed", str(certificate)
