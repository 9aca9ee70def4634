"""The environment on the sample: the oracle wins through the tools, and players that do anything but repair do not."""

import dataclasses

import gymnasium as gym
import pytest
from shells import make_shell

from llm_envs import check_task
from llm_envs.checker.subject import QUICK
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.repository.prepared import load_sample

FEW = dataclasses.replace(QUICK, n_seeds=2, n_draws=10, n_hostile_episodes=1, n_fuzzed=2, n_pairs=4, n_tries=(1,))
TREE = "/workspace/project"
KEY = "ledger/amounts.py:clamp:call:1035"
LEVELS = ("easy", "medium", "hard")


@pytest.fixture(autouse=True)
def works():
    with make_shell():
        pass


@pytest.fixture
def make():
    made = []

    def make(**arguments):
        made.append(gym.make("llm/Repository-v0", problems="sample", **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def bash(env, command):
    return env.step(format_tool_call("bash", command=command))[0]


def test_without_problems_the_error_names_the_command(tmp_path):
    with pytest.raises(InvalidConfigError, match="llm-envs repository prepare PROJECT --out DIR"):
        gym.make("llm/Repository-v0")
    with pytest.raises(InvalidConfigError, match=f"llm-envs repository prepare PROJECT --out {tmp_path}"):
        gym.make("llm/Repository-v0", problems=str(tmp_path))


def test_the_statement_tells_the_failure_and_not_the_place(make):
    env = make()
    observation, _ = env.reset(options={"problem": {"key": KEY}})
    assert observation == (
        "The project ledger is in /workspace/project. Since a change, a function is wrong: 1 of its 17 tests fails.\n"
        "Among them:\n- tests.test_amounts.Amounts.test_clamp\n"
        "  AssertionError: Lists differ: [10, 10, 11] != [0, 5, 10]\n"
        "`python3 -m unittest discover -s tests` runs the tests that are there."
    )
    medium, _ = make(difficulty="medium").reset(options={"problem": {"key": KEY}})
    assert "clamp" not in medium and "1 of its 17 tests fails" in medium


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_repairs_by_edits(make, level):
    env = make(difficulty=level)
    env.reset(seed=0)
    env.step(env.unwrapped.oracle())
    assert env.step(env.unwrapped.oracle())[:3] == ("Correct.", 1.0, True)
    assert env.unwrapped.judgement.reason == "the source is the original"


def test_hidden_tests_are_not_in_the_tree(make):
    env = make(difficulty="hard")
    env.reset(seed=0)
    failing = load_sample().problems[env.unwrapped.problem["key"]].failing
    names = [test.rpartition(".")[2] for test in failing]
    assert len(names) >= 2
    found = bash(env, f"cd {TREE}; grep -rhoE 'def (test_\\w+)' tests; python3 -m unittest discover -s tests 2>&1")
    assert found.endswith("OK") and "def test_" in found
    assert not [name for name in names if f"def {name}\n" in found]


def test_nothing_but_the_project_is_in_the_shell(make):
    env = make()
    env.reset(seed=0)
    looks = "find /workspace /tmp -name .git -o -name .pytest_cache -o -name __pycache__ -o -name '*.json*'"
    assert bash(env, f"{looks}; find /tmp -type f; tr '\\0' ' ' < /proc/1/cmdline | grep -c problem") == (
        "0\n[exit code 1]"
    )


HOSTILE = f"""
cd {TREE}
for file in tests/*.py; do echo > $file; done
echo 'import unittest; unittest.TestCase.run = lambda *a: None' > tests/__init__.py
echo 'collect_ignore = ["tests"]' > conftest.py
echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py unittest.py > evil.pth
printf '[pytest]\\naddopts = --co\\n' > pytest.ini
echo > pyproject.toml
(while true; do echo '["passed"]' > /tmp/results; sleep 0.1; done) > /dev/null 2>&1 &
"""


@pytest.mark.parametrize("change", ["true", "echo 'more = 1' >> ledger/amounts.py"])
def test_changed_tests_configuration_new_files_and_processes_earn_nothing(make, change):
    env = make()
    env.reset(options={"problem": {"key": KEY}})
    bash(env, HOSTILE + change)
    assert env.step(format_answer("done"))[:3] == ("Incorrect.", 0.0, True)
    wanted = "nothing was repaired" if change == "true" else "1 of 17 tests do not pass"
    assert env.unwrapped.judgement.reason == wanted


@pytest.mark.parametrize(
    "command",
    ["true", "exit 0", f"rm -rf {TREE}", "kill -9 -1", f"rm {TREE}/ledger/entries.py; mkfifo {TREE}/ledger/entries.py"],
)
def test_those_that_repair_nothing_earn_nothing(make, command):
    env = make()
    env.reset(options={"problem": {"key": KEY}})
    bash(env, command)
    assert env.step(format_answer("done"))[:3] == ("Incorrect.", 0.0, True)


def test_splits_share_no_function(make):
    tasks = [make(split=split).unwrapped for split in ("train", "test")]
    train, test = ({repr(task.split_key({"key": key})) for key in task._keys} for task in tasks)
    assert train and test and not train & test


@pytest.mark.slow
def test_the_task_keeps_the_contract():
    report = check_task("llm/Repository-v0", effort=FEW)
    assert report.passed, str(report)
