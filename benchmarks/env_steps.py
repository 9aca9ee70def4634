"""Environment steps per second through `gymnasium.make`, in one process.

    python benchmarks/env_steps.py [--check] [--out FILE] [IDS...]

How it measures: the oracle's actions for a run of consecutive episodes are recorded first, outside the clock; then the
same episodes are replayed (same seed, same problems) and timed, so that no policy is in the numbers. `gymnasium.make`'s
own wrappers stay on.

- Tasks of several turns: whole episodes, resets included: steps / (time of steps and resets).
- Tasks of one turn: the steps alone, over a pool of environments that were reset outside the clock; a step judges a
  reply that is right. The reset rate is a column of its own, for every task.

Each number is the best of many short rounds, in CPU time of the process: what else the machine does only ever slows a
round down, and an environment of this suite's own tasks waits for nothing. With `--check` the exit code is
1 if a default level misses its target: 100,000 steps/s for tasks that run a tool or evaluate an expression that the
agent wrote, 300,000 for all others; resets 1,000/s at every level.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
from measuring import Column, Figure, Report, finish, make_parser

import llm_envs

LIGHT_STEPS_PER_S = 300_000
TOOL_STEPS_PER_S = 100_000
RESETS_PER_S = 1_000
EVALUATES_EXPRESSIONS = {"llm/Countdown-v0"}
"""Tasks without tools whose every answer is an expression that is parsed and evaluated, as a calculator tool does."""
ROUNDS = 25
EPISODES = 300
METHOD = (
    "Through `gymnasium.make`, its own wrappers on, in one process; the best of many short rounds, in CPU time. Tasks "
    "of several turns: whole recorded episodes, resets included. Tasks of one turn: the steps alone, each judging a "
    "right reply. Held at the default levels (*): 100,000 steps/s for tasks that run a tool or evaluate an expression "
    "that the agent wrote (Countdown), 300,000 for all others; 1,000 resets/s at every level."
)
COLUMNS = [
    Column("id", "task"),
    Column("level", "level"),
    Column("measured", "measured"),
    Column("steps_per_s", "steps/s", ",d"),
    Column("target_steps_per_s", "held", ",d"),
    Column("resets_per_s", "resets/s", ",d"),
]


def record_episodes(env: gym.Env[str, str], n_episodes: int) -> list[list[str]]:
    """Play `n_episodes` with the oracle from seed 0 and return its actions."""
    env.reset(seed=0)
    episodes = []
    for _ in range(n_episodes):
        env.reset()
        actions, is_over = [], False
        while not is_over:
            actions.append(env.unwrapped.oracle())
            _, _, terminated, truncated, _ = env.step(actions[-1])
            is_over = terminated or truncated
        episodes.append(actions)
    return episodes


def time_episodes(env: gym.Env[str, str], episodes: list[list[str]]) -> float:
    """Return the seconds that replaying the recorded episodes takes, resets included."""
    env.reset(seed=0)
    started = time.process_time()
    for actions in episodes:
        env.reset()
        for action in actions:
            env.step(action)
    return time.process_time() - started


def time_single_steps(pool: list[gym.Env[str, str]], actions: list[str]) -> float:
    """Return the seconds that one step in each environment of the pool takes."""
    started = time.process_time()
    for env, action in zip(pool, actions, strict=True):
        env.step(action)
    return time.process_time() - started


def time_resets(env: gym.Env[str, str], n: int) -> float:
    """Return the seconds that `n` resets take."""
    env.reset(seed=0)
    started = time.process_time()
    for _ in range(n):
        env.reset()
    return time.process_time() - started


def measure(env_id: str, difficulty: str) -> dict[str, Any]:
    """Measure one level of one task."""
    env = gym.make(env_id, difficulty=difficulty)
    is_single_turn = isinstance(env.unwrapped, llm_envs.SingleTurnEnv)
    is_heavy = isinstance(env.unwrapped, llm_envs.ToolEnv) or env_id in EVALUATES_EXPRESSIONS
    is_default = difficulty == env.unwrapped.default_difficulty
    n_resets = max(50, min(EPISODES, int(0.2 / time_resets(env, 1))))
    resets_per_s = n_resets / min(time_resets(env, n_resets) for _ in range(ROUNDS))
    if is_single_turn:
        pool = [gym.make(env_id, difficulty=difficulty) for _ in range(100)]
        seconds = []
        for round_index in range(4 * ROUNDS):
            for index, member in enumerate(pool):
                member.reset(seed=1_000 * round_index + index)
            actions = [member.unwrapped.oracle() for member in pool]
            seconds.append(time_single_steps(pool, actions))
        n_steps, best = len(pool), min(seconds)
    else:
        episodes = record_episodes(env, EPISODES)
        n_steps, best = sum(map(len, episodes)), min(time_episodes(env, episodes) for _ in range(ROUNDS))
    return {
        "id": env_id,
        "difficulty": difficulty,
        "level": difficulty + "*" * is_default,
        "measured": "steps" if is_single_turn else "episodes",
        "target_steps_per_s": (TOOL_STEPS_PER_S if is_heavy else LIGHT_STEPS_PER_S) if is_default else None,
        "steps_per_s": round(n_steps / best),
        "resets_per_s": round(resets_per_s),
    }


def list_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return steps/s of the default levels and resets/s of all."""
    figures = []
    for row in rows:
        name = f"{row['id']} ({row['difficulty']})"
        target = row["target_steps_per_s"]
        figures.append(Figure(f"{name} steps", row["steps_per_s"], "steps/s", at_least=target))
        figures.append(Figure(f"{name} resets", row["resets_per_s"], "resets/s", at_least=RESETS_PER_S))
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("ids", nargs="*", help="tasks to measure; all registered llm/ tasks by default")
    options = parser.parse_args(arguments)
    ids = options.ids or [env_id for env_id in llm_envs.task_ids() if env_id.startswith("llm/")]
    rows = [
        measure(env_id, difficulty)
        for env_id in ids
        for difficulty in gym.make(llm_envs.task_spec(env_id)).unwrapped.difficulties
    ]
    report = Report("env_steps", "Environment steps a second", METHOD, COLUMNS, rows, list_figures(rows))
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
