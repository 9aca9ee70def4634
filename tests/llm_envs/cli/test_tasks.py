"""`llm-envs list` with its filters, and `llm-envs check` with its efforts."""

import json

import gymnasium as gym
import pytest

from llm_envs.checker.catalogue import describe, family_of
from llm_envs.cli.main import main
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import MissingExtraError
from llm_envs.registration import register_task


def listed(capsys, *arguments):
    """Return {id: the rest of its line} of what is printed."""
    assert main(["list", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


class Broken(SingleTurnEnv):
    """Right on every seed but one.

    ## Description
    ## Observation
    ## Action
    ## Reward
    ## Episode End
    ## Arguments
    "only" and "other".
    ## Version History
    """

    difficulties = {
        "only": Difficulty("a number", chance_rate=0.001),
        "other": Difficulty("a number", chance_rate=0.001),
    }
    default_difficulty = "only"
    problem_fields = {"n": int}

    def generate(self):
        return {"n": int(self.np_random.random() * 1_000_000)}

    def prompt(self):
        return f"Say {self.problem['n'] + 1} minus one."

    def solution(self):
        return str(self.problem["n"])

    def next_action(self):
        if self.difficulty == "other" and self.np_random_seed == 7:
            return "I do not know."
        return super().next_action()


@pytest.fixture
def broken():
    register_task("broken/Seven-v0", Broken)
    yield "broken/Seven-v0"
    gym.registry.pop("broken/Seven-v0")


def test_every_task_has_a_line_with_its_family(capsys):
    lines = listed(capsys)
    assert lines["llm/GuessNumber-v0"].split(maxsplit=1) == [
        "games",
        'Find a hidden whole number; each wrong guess is answered by "higher" or "lower".',
    ]
    assert lines["llm/Calculator-v0"].startswith("tools ")


def test_filters(capsys):
    games = listed(capsys, "--family", "games", "--family", "tools")
    assert {"llm/GuessNumber-v0", "llm/Calculator-v0"} <= set(games)
    assert "llm/Arithmetic-v0" not in games
    single, multi = listed(capsys, "--single-turn"), listed(capsys, "--multi-turn")
    assert "llm/Arithmetic-v0" in single and "llm/GuessNumber-v0" in multi
    both = {task_id for task_id, line in single.items() if "cannot be made" not in line} & set(multi)
    assert not both  # a task whose package is missing here is listed with every filter
    assert set(single) | set(multi) == set(listed(capsys))
    with_tools = listed(capsys, "--tools")
    assert "llm/Calculator-v0" in with_tools and "llm/GuessNumber-v0" not in with_tools
    hard = listed(capsys, "--hard")
    assert "llm/Arithmetic-v0" in hard and "llm/GuessNumber-v0" not in hard


def test_everything_as_json(capsys):
    assert main(["list", "--json", "--family", "arithmetic"]) == 0
    cards = {card["id"]: card for card in json.loads(capsys.readouterr().out)}
    card = cards["llm/Arithmetic-v0"]
    assert (card["family"], card["multi_turn"], card["tools"], card["max_turns"]) == ("arithmetic", False, [], 1)
    assert card["levels"][card["default_difficulty"]]["chance_rate"] > 0
    assert card["levels"]["easy"]["expected_hard"] is None and "45%" in card["levels"]["expert"]["expected_hard"]
    assert card["reward_weights"] == {"correct": 1.0, "malformed": -0.1}


def test_a_family_that_is_none(capsys):
    assert main(["list", "--family", "gamez"]) == 2
    error = capsys.readouterr().err
    assert "there is no family 'gamez'; there are " in error and "games" in error


def test_a_package_of_ones_own_is_a_family(broken):
    assert family_of(broken) == Broken.__module__.partition(".")[0]
    assert describe(broken).levels["only"].description == "a number"


def test_what_cannot_be_made_does_not_spoil_the_list(capsys):
    register_task("broken/Missing-v0", "no_such_module:Task")
    try:
        assert "(cannot be made: ModuleNotFoundError" in listed(capsys, "--tools")["broken/Missing-v0"]
    finally:
        gym.registry.pop("broken/Missing-v0")


def test_levels_and_the_seed_that_shows_it(broken, capsys):
    assert main(["check", broken]) == 0
    assert main(["check", broken, "--all-levels"]) == 1
    printed = capsys.readouterr().out
    assert "ok      broken/Seven-v0 only  (" in printed
    assert "FAILED  broken/Seven-v0 other" in printed
    assert "oracle_earns_the_maximum: seed 7: the oracle did not succeed; 'I do not know.' was answered" in printed
    assert "1 of 2 passed, in " in printed
    assert main(["check", broken, "--difficulty", "other"]) == 1


class Missing(Broken):
    """Its package is not installed."""

    def __init__(self, **kwargs):
        raise MissingExtraError("broken/Needy-v0 needs `nothing`: pip install 'llm-envs[nothing]'.")


def test_a_task_whose_package_is_missing_is_reported(capsys):
    register_task("needy/Needy-v0", Missing)
    try:
        assert main(["check", "--all", "--namespace", "needy"]) == 0
        assert "missing needy/Needy-v0  (broken/Needy-v0 needs `nothing`: pip" in capsys.readouterr().out
        assert main(["check", "--all", "--namespace", "needy", "--all-levels"]) == 0
        assert main(["check", "needy/Needy-v0"]) == 1
    finally:
        gym.registry.pop("needy/Needy-v0")


def test_several_at_once_in_order(capsys):
    assert main(["check", "llm/Countdown-v0", "llm/Arithmetic-v0", "--jobs", "2"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ok      llm/Countdown-v0") and second.startswith("ok      llm/Arithmetic-v0")
    assert last.startswith("2 of 2 passed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the tasks to check, or give --all"),
        (["llm/Countdown-v0", "--all"], "name the tasks to check, or give --all"),
        (["llm/Countdown-v0", "--namespace", "llm"], "--namespace needs --all"),
        (["--all", "--namespace", "nobody"], "there is no task nobody/..."),
        (["llm/Countdown-v0", "--difficulty", "easy", "--all-levels"], "give only one"),
        (["llm/Countdown-v0", "--difficulty", "foo"], "has no difficulty 'foo'; known are 'easy', "),
    ],
)
def test_wrong_requests(arguments, message, capsys):
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err
