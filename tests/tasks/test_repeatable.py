"""What a task shows is a function of its seed: not of the process, its clock, its hash seed, time zone or locale."""

import json
import os
import subprocess
import sys

import pytest

from llm_envs.checker.catalogue import suite_ids

PROGRAM = """
import datetime, gc, hashlib, json, random, sys, time
import gymnasium as gym
from llm_envs.checker.hostile import hostile_actions
from llm_envs.parsers import format_tool_call

later, clock = float(sys.argv[1]), time.time
time.time = lambda: clock() + later  # datetime.date.today() asks it
(methods,) = gc.get_referents(datetime.datetime.__dict__)
methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
CODE = [
    "import time\\n[time.time(), time.monotonic(), time.perf_counter(), time.localtime()]",
    "import datetime\\nprint(datetime.datetime.now(), datetime.date.today())",
    "import random\\nrandom.random()",
    "class A:\\n    pass\\n[A(), lambda: 1, print, hash('a'), {'b', 'a', 'c'}]",
    "import os\\nprint(os.getpid())",
    "import sys\\nprint(sys.path, sys.argv)",
    "SELECT datetime('now'), random()",
    "SELECT current_timestamp",
    "date",
    "ls -la",
    "find / -newer /tmp",
]

def actions(env):
    yield from (env.unwrapped.oracle for _ in range(50))
    for tool in env.get_wrapper_attr("tools") or ():
        function = tool["function"]
        for code in CODE if not ONLY_ORACLE else ():
            texts = {name: code for name in function["parameters"].get("properties", {})}
            yield lambda texts=texts, name=function["name"]: format_tool_call(name, **texts)
    for name, act in {} if ONLY_ORACLE else hostile_actions(env.get_wrapper_attr("tools") or ()).items():
        if "long" not in name:
            yield lambda act=act, name=name: act(env, "seen", random.Random(name))

def shown(id, level, kwargs):
    env = gym.make(id, difficulty=level, **kwargs)
    seed, is_over = 0, False
    first = env.reset(seed=seed)
    yield first, env.get_wrapper_attr("system_prompt"), env.get_wrapper_attr("tools"), env.unwrapped.state_key()
    for act in actions(env):
        if is_over:
            seed += 1
            yield env.reset(seed=seed)
        action = act()
        *step, info = env.step(action)
        is_over = step[2] or step[3]
        yield action, step, sorted(info.items()), env.render() if env.render_mode else None
    env.close()

for name, kwargs in json.loads(sys.argv[2]):
    for level in gym.make(name, **kwargs).unwrapped.difficulties if len(sys.argv) > 3 else [None]:
        said = [repr(line) for line in shown(name, level, kwargs)]
        print(json.dumps([name, level, len(said), [hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()[:8] for line in said]]), flush=True)
"""
ELSEWHERE = (
    (0, {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"}),
    (123_456_789, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8"}),
)


def played(names, later, changed):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(later), json.dumps(names)],
        env={**os.environ, **changed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
