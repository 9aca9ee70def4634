"""Folders of Harbor's tasks (terminal-bench 2) as an environment, without a container.

    env = from_tasks_folder("harbor/sums")
    print(env.refused)  # {"train-a-model": "task.toml asks for 1 GPU"}

A task runs as it is if its environment needs only a shell and Python. The others are refused with the reason.

1. The agent's shell has the environment's files. It never has the tests or the solution.
2. The verdict is made in a new shell. It gets the files below the working folder as the agent left them, then the
   tests. Nothing else of the agent's shell is taken over, neither processes nor a reward that it wrote.
3. If the tests run the agent's code, that code runs as the same user as the tests, as in Harbor's container, and could
   write the reward. Only tests that treat the agent's files as data, or confine them, are proof against it.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import shlex
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llm_envs.bridges.harbor_folder import WRITABLE, HarborTask, pack, read_folder
from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError, NoOracleError, SandboxError
from llm_envs.parsers import format_tool_call
from llm_envs.problems import is_number
from llm_envs.shell import HOME, Shell, ShellLimits, ShellTools, open_shell
from llm_envs.tasks.draws import pick
from llm_envs.tasks.replies import is_done
from llm_envs.tasks.repository.running import bound
from llm_envs.tools.toolset import Toolset

__all__ = ["HARBOR_ID", "HarborEnv", "HarborTools", "HarborVerdict", "from_tasks_folder", "verify"]

HARBOR_ID = "harbor/Tasks-v0"
_LIMITS = ShellLimits(timeout_s=120.0, output_characters=8_000)
_REWARDS = f"{HOME}/logs/verifier"
_MOST_REWARD_CHARACTERS = 10_000
_OURS = Path(__file__).parents[2]
"""The folder that has this package."""


@dataclass(frozen=True)
class HarborVerdict:
    """The result of a task's tests."""

    reward: float
    """From -1 to 1."""
    is_success: bool
    reason: str
    """For a person: the end of the tests' output, or why the reward is missing."""


def from_tasks_folder(folder: str | Path, *, max_turns: int | None = None, runtime: str = "namespaces") -> HarborEnv:
    """Return an environment of a folder of Harbor's tasks.

    Args:
        folder: A folder with one folder for each task: `instruction.md`, `task.toml`, `environment/`, `tests/` and
            `solution/`. The splits are not divided: use one folder for training and another for tests.
        max_turns: Replies of an episode; 30 if None.
        runtime: "namespaces" or "bubblewrap".

    Returns:
        The environment. `tasks` are those that it plays, `refused` has the reason of every other one by its name.

    Raises:
        InvalidConfigError: If no task can be played; the message has the reasons.
    """
    return HarborEnv(tasks=folder, max_turns=max_turns, runtime=runtime)


class HarborTools(ShellTools):
    """The tools of a shell in which a task's environment is laid out when it starts.

    Args:
        find: Returns the task of a problem.
        runtime: See `open_shell`.
    """

    def __init__(self, find: Callable[[Mapping[str, Any]], HarborTask], runtime: str) -> None:
        super().__init__(runtime, limits=_LIMITS, writable=WRITABLE)
        self._find = find
        self._problem: Mapping[str, Any] = {}

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode; the environment is laid out at the first call."""
        super().reset(problem, rng)
        self._problem = problem

    @property
    def shell(self) -> Shell:
        """The episode's shell, with the environment in it."""
        if self._shell is None:
            task = self._find(self._problem)
            unpack(super().shell, task.environment())
            super().shell.run(f"mkdir -p {HOME}{task.workdir}; cd {task.workdir}")
        return super().shell


class HarborEnv(ToolEnv):
    """Do a task of Harbor's layout with a shell, judged by the tests of the task.

    ## Description
    Each episode is one task of the folder. Its environment's files are in a real shell without a network.

    ## Observation
    The task's instruction. After a call what the tool returns.

    ## Action
    Calls of the tools `bash`, `edit` and `read`, or `<answer>done</answer>` when the work is done.

    ## Reward
    `reward` (weight 1): what the task's tests write to `/logs/verifier/reward.json` (its "reward", or its only value)
    or `reward.txt`, from -1 to 1; 0 without one. With only a pytest file it is 1 if pytest succeeds. It is a
    success if "success" of `reward.json`, else the reward, is 1. `malformed` (weight -0.1): 1 for a reply that is
    neither a call nor an answer, is broken, or has another answer than "done".

    ## Episode End
    Terminates with the answer. Truncated after `max_turns` replies; then the tests do not run.

    ## Arguments
    - `tasks`: the folder.
    - `split`: "train" or "test"; both have all tasks.
    - `difficulty`: "default".
    - `max_turns`: 30 by default.
    - `runtime`: of the shells, "namespaces" or "bubblewrap".
    - `reset(options={"problem": {"task": "..."}})`: a task by the name of its folder.

    ## Version History
    - v0: first version.
    """

    difficulties = {"default": Difficulty("the tasks of the folder", chance_rate=1.0, disjoint_splits=False)}
    default_difficulty = "default"
    default_max_turns = 30
    problem_fields = {"task": str}
    reward_weights = {"reward": 1.0, "malformed": -0.1}
    min_return = -1.5
    instructions = "Do the task with the tools. When it is done, answer done."
    answer_example = "done"
    has_natural_form = False
    blocking = True
    divides_by_hash = False
    slow_reset_reason = "an episode ends the shell of the one before"
    not_state = ("verdict",)

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        tasks: str | Path | None = None,
        runtime: str = "namespaces",
    ) -> None:
        if tasks is None:
            raise InvalidConfigError("HarborEnv needs tasks: a folder with a folder of Harbor's layout for each task.")
        self.tasks, self.refused = read_folder(Path(tasks))
        if not self.tasks:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(self.refused.items())[:5])
            raise InvalidConfigError(f"{str(tasks)!r} has no task that can be played here. {reasons or 'It is empty.'}")
        self.runtime = runtime
        super().__init__(split, difficulty, max_turns, render_mode)
        self.n_problems = len(self.tasks)
        self.verdict: HarborVerdict | None = None
        """The last verdict, with its reason."""

    def make_tools(self) -> Toolset:
        """Return the shell's tools."""
        self.machine = HarborTools(self._task, self.runtime)
        return self.machine

    def generate(self) -> dict[str, Any]:
        """Draw a task of the folder."""
        return {"task": pick(self.np_random.random, list(self.tasks))}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a task that the folder does not have, or that cannot be played here."""
        if (name := problem["task"]) not in self.tasks:
            raise InvalidActionError(f"no task {name!r:.200}: {self.refused.get(name, 'the folder does not have it')}")

    def begin(self) -> None:
        """Forget the last verdict."""
        self.verdict = None

    def prompt(self) -> str:
        """Return the instruction."""
        return self._task(self.problem).instruction

    def is_correct(self, answer: str) -> bool:
        """Run the tests on the agent's files."""
        if not is_done(answer):
            raise InvalidActionError(f"the answer must be {self.write_answer('done')}, when the task is done")
        task = self._task(self.problem)
        self.verdict = verify(task, self.machine.shell, runtime=self.runtime)
        return self.verdict.is_success

    def score(self, reply: Any, results: Any, *, correct: bool, malformed: bool) -> dict[str, float]:
        """Return the reward of the tests."""
        reward = self.verdict.reward if self.verdict is not None else 0.0
        return {"reward": reward, "malformed": 1.0 if malformed else 0.0}

    def next_action(self) -> str:
        """Run the solution, and answer."""
        task = self._task(self.problem)
        if not (task.root / "solution" / "solve.sh").is_file():
            raise NoOracleError(f"{task.root.name} has no solution/solve.sh.")
        packed = base64.b64encode(gzip.compress(pack({"solution": task.root / "solution"}), mtime=0)).decode()
        unpacked = f"printf %s {packed} | base64 -d | tar -C {HOME} -xzf -"
        call = format_tool_call("bash", command=f"{unpacked} && bash /solution/solve.sh; rm -rf /solution/*")
        return self.write_answer("done") if call in self._actions else call

    def _task(self, problem: Mapping[str, Any]) -> HarborTask:
        return self.tasks[problem["task"]]


def unpack(shell: Shell, packed: bytes) -> None:
    """Unpack an archive into the home of a shell.

    Raises:
        InvalidActionError: If it does not fit.
    """
    shell.write("/tmp/packed.tar", packed)
    made = shell.run(f"tar -C {HOME} -xf /tmp/packed.tar && rm /tmp/packed.tar")
    if made.exit_code:
        raise InvalidActionError(f"the files do not fit into a shell: {made.output[-300:]}")


def verify(task: HarborTask, agent: Shell, *, runtime: str = "namespaces") -> HarborVerdict:
    """Run the tests of a task in a new shell, on the files that an agent has left in the task's working folder.

    Args:
        task: The task.
        agent: The agent's shell.
        runtime: Of the new shell; see `open_shell`.
    """
    try:
        left = _left(agent)
    except SandboxError as error:  # such as a file that it has made unreadable: no way out of an episode
        return HarborVerdict(0.0, False, f"the agent's files cannot be read: {error}")
    folders = [str(folder) for folder in (Path(sys.prefix), _OURS) if bound(folder)]
    shell = open_shell(runtime, limits=_LIMITS, seed=1, folders=folders, writable=WRITABLE)
    try:
        unpack(shell, left)
        unpack(shell, pack({"tests": task.root / "tests"}))
        if (task.root / "tests" / "Dockerfile").is_file() and not bound(
            _OURS
        ):  # a checkout below /tmp, which the shell hides
            unpack(shell, pack({"site/llm_envs": _OURS / "llm_envs"}, follows_links=True))
        ours, bin_folder = f"{HOME}/site:{_OURS}", f"{sys.prefix}/bin"
        variables = f"PYTHONPATH={shlex.quote(ours)} PYTHONDONTWRITEBYTECODE=1 PATH={shlex.quote(bin_folder)}:$PATH"
        prepared = f"mkdir -p {_REWARDS} {HOME}{task.workdir}; cd {task.workdir}"
        done = shell.run(f"{prepared}; {variables} {task.test_command}", task.verifier_timeout_s)
        if done.stopped is not None:
            return HarborVerdict(0.0, False, f"the tests were stopped: {done.stopped}")
        if task.is_pytest:
            return HarborVerdict(float(done.exit_code == 0), done.exit_code == 0, done.output[-1_000:])
        return _reward(shell, done.output)
    finally:
        shell.close()


def _reward(shell: Shell, said: str) -> HarborVerdict:
    """Read the reward that tests have written; the one in JSON comes first, as in Harbor."""
    for name in ("reward.json", "reward.txt"):
        try:
            text = shell.read(f"{_REWARDS}/{name}").decode("utf-8", "replace")[:_MOST_REWARD_CHARACTERS]
        except InvalidActionError:
            continue
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        values: dict[str, Any] = found if isinstance(found, dict) else {"reward": found}
        reward: Any = values.get("reward", next(iter(values.values())) if len(values) == 1 else None)
        success = values.get("success", reward)
        if not (is_number(reward) and is_number(success) and -1 <= reward <= 1):
            return HarborVerdict(0.0, False, f"{name} has no reward from -1 to 1: {text[:200]!r}")
        return HarborVerdict(float(reward), success == 1, said[-1_000:])
    return HarborVerdict(0.0, False, f"the tests wrote no reward: {said[-1_000:]}")


def _left(agent: Shell) -> bytes:
    """Return an archive of what an agent has left in its place, without devices and pipes.

    The snapshot is made by programs that its own bash does not start, so its functions and aliases change nothing.
    """
    target, place = io.BytesIO(), f"{HOME}{WRITABLE[0]}/".lstrip("/")
    with (
        tarfile.open(fileobj=io.BytesIO(agent.snapshot().archive)) as source,
        tarfile.open(fileobj=target, mode="w") as kept,
    ):
        for entry in source:
            is_inside = entry.name.startswith(place) and (not entry.islnk() or entry.linkname.startswith(place))
            if is_inside and (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
                content = source.extractfile(entry) if entry.isfile() else None
                entry.name = entry.name.partition("/")[2]
                entry.linkname = entry.linkname.partition("/")[2] if entry.islnk() else entry.linkname
                kept.addfile(entry, content)
    return target.getvalue()


if HARBOR_ID not in gym.registry:
    gym.register(HARBOR_ID, entry_point="llm_envs.bridges.harbor_tasks:HarborEnv")
