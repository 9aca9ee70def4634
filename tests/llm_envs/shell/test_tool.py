"""The tools in an environment: they keep one shell for each episode, and tell their limits."""

import dataclasses

import gymnasium as gym
import pytest
from hollow_tasks import Only
from shells import make_shell

from llm_envs import check_task
from llm_envs.checker.subject import QUICK
from llm_envs.env.tool import ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.registration import register_task
from llm_envs.shell import ShellLimits, ShellTools

FEW = dataclasses.replace(QUICK, n_seeds=2, n_draws=20, n_hostile_episodes=2, n_fuzzed=4, n_pairs=10, n_tries=(2,))


class WriteFile(Only, ToolEnv):
    problem_fields = {"number": int}

    def make_tools(self):
        self.machine = ShellTools(limits=ShellLimits(timeout_s=30.0, output_characters=2_000))
        return self.machine

    def generate(self):
        return {"number": int(self.np_random.integers(1_000_000))}

    def prompt(self):
        return f"Write {self.problem['number']} into /workspace/answer, then answer done."

    def is_correct(self, answer):
        if answer != "done":
            raise InvalidActionError(f"the answer is {answer[:100]!r}; it must be 'done'")
        done = self.machine.shell.run("cat /workspace/answer")
        return done.exit_code == 0 and done.output == str(self.problem["number"])

    def next_action(self):
        if self.machine.last_result is None:
            return format_tool_call("bash", command=f"echo {self.problem['number']} > answer; cat answer")
        return format_answer("done")


@pytest.fixture(autouse=True)
def works():
    with make_shell():
        pass


def test_the_tools_work_on_one_shell_and_forget_it():
    tools = ShellTools(limits=ShellLimits(timeout_s=30.0))
    tools.reset({}, None)
    try:
        assert tools.bash("x=1; mkdir a; cd a; (exit 3)") == "[exit code 3]"
        assert tools.bash("true") == "(no output)"
        assert tools.edit("f.py", "", "a = 1\nb = 2\n") == "(done)"
        assert tools.edit("/workspace/a/f.py", "b = 2", "b = 3") == "(done)"
        assert tools.read("f.py") == "1\ta = 1\n2\tb = 3"
        assert tools.read("f.py", 2) == "2\tb = 3\n[2 lines in all]"
        for arguments in (("f.py", "c", "d"), ("f.py", "=", ":"), ("f.py", "", "x")):
            with pytest.raises(ValueError, match=r"f\.py"):
                tools.edit(*arguments)
        tools.reset({}, None)
        assert tools.bash("echo [$x]; ls -A; pwd") == "[]\n/workspace"
    finally:
        tools.close()


def test_the_description_tells_the_limits():
    bash = ShellTools(limits=ShellLimits(timeout_s=7.0, memory_bytes=64 << 20, processes=9)).tools()[0]
    assert all(
        word in bash.description for word in ("7 seconds", "64 MiB of memory", "9 processes", "256 MiB of files")
    )


@pytest.mark.levels
def test_an_environment_with_the_tools_keeps_the_contract():
    register_task("check/WriteFile-v0", WriteFile)
    try:
        report = check_task("check/WriteFile-v0", effort=FEW, raise_on_failure=False)
        assert report.passed, str(report)
    finally:
        gym.registry.pop("check/WriteFile-v0")


def test_a_replay_gets_the_same_answers():
    said = []
    for _ in range(2):
        env = WriteFile()
        env.reset(seed=3)
        said.append(env.step(format_tool_call("bash", command="echo $RANDOM; ls -A; id"))[0])
        env.close()
    assert said[0] == said[1]
