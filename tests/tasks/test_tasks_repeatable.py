"""A task shows the same for the same seed in any process, whatever its clock, hash seed, time zone and locale are."""

import contextlib
import json
import os
import subprocess
import sys

import gymnasium as gym
import pytest

from llm_envs.checker.catalogue import suite_ids
from llm_envs.env import ToolEnv
from llm_envs.errors import SandboxError
from llm_envs.sandbox import SubprocessSandbox

PROGRAM = """
import datetime, gc, hashlib, json, random, sys, time
import gymnasium as gym
from llm_envs.checker.hostile import hostile_actions
from llm_envs.parsers import format_tool_call

later, clock = float(sys.argv[1]), time.time
time.time = lambda: clock() + later  # datetime.date.today() asks it
(methods,) = gc.get_referents(datetime.datetime.__dict__)
methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
PROBES = [
    "import time\\n[time.time(), time.monotonic(), time.perf_counter(), time.localtime()]",
    "import datetime\\nprint(datetime.datetime.now(), datetime.date.today())",
    "import random\\nrandom.seed()\\nrandom.random()",
    "class A:\\n    pass\\n[A(), lambda: 1, print, hash('a'), {'b', 'a', 'c'}]",
    "import os\\nprint(os.getpid())",
    "SELECT datetime('now'), random()",
    "date",
    "ls -la",
]


def actions(env):
    for _ in range(20):
        yield env.unwrapped.oracle
    for tool in env.get_wrapper_attr("tools") or ():
        function = tool["function"]
        for probe in PROBES:
            texts = {name: probe for name in function["parameters"].get("properties", {})}
            yield lambda texts=texts, name=function["name"]: format_tool_call(name, **texts)
    for name, act in hostile_actions().items():
        if "long" not in name and not env.get_wrapper_attr("tools"):
            yield lambda act=act, name=name: act(env, "seen", random.Random(name))


def shown(name, kwargs):
    env = gym.make(name, **kwargs)
    seed = 0
    yield env.reset(seed=seed), env.get_wrapper_attr("system_prompt"), env.get_wrapper_attr("tools")
    is_over = False
    for act in actions(env):
        if is_over:
            seed += 1
            yield env.reset(seed=seed)
        action = act()
        *step, info = env.step(action)
        is_over = step[2] or step[3]
        yield action, step, sorted(info.items())
    env.close()


for name, kwargs in json.loads(sys.argv[2]):
    lines = [repr(line) for line in shown(name, kwargs)]
    print(json.dumps([name, kwargs, [hashlib.sha256(line.encode("utf-8", "replace")).hexdigest() for line in lines]]))
"""
ELSEWHERE = (
    (0, {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"}),
    (123_456_789, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}),
)


def require_equal(tasks):
    """Play each task in two processes that differ in all of this, and compare."""
    played = []
    for later, changed in ELSEWHERE:
        program = [sys.executable, "-c", PROGRAM, str(later), json.dumps(tasks)]
        done = subprocess.run(program, env={**os.environ, **changed}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2_000:]
        played.append([json.loads(line) for line in done.stdout.splitlines()])
    first, second = played
    assert len(first) == len(tasks) and all(len(hashes) > 20 for *_, hashes in first)
    assert [name for (name, *one), (_, *other) in zip(first, second, strict=True) if one != other] == []


def test_a_task_with_tools_shows_the_same_in_another_process():
    tasks = [(name, {}) for name in suite_ids() if isinstance(gym.make(name).unwrapped, ToolEnv)]
    assert len(tasks) >= 10
    with contextlib.suppress(SandboxError):  # a machine without namespaces
        SubprocessSandbox().close()
        tasks.append(("llm/PythonInterpreter-v0", {"interpreter": "cpython"}))
    if "llm/HotpotQA-v0" in gym.registry:  # a benchmark, outside the core
        tasks.append(("llm/HotpotQA-v0", {"data": "sample", "difficulty": "search"}))
    require_equal(tasks)


@pytest.mark.levels
def test_every_task_shows_the_same_in_another_process():
    levels = [(name, {"difficulty": level}) for name in suite_ids() for level in gym.make(name).unwrapped.difficulties]
    require_equal([*levels, *((f"llm/{name}-v0", {"data": "sample"}) for name in ("MMLU", "GPQA", "HotpotQA", "MBPP"))])
