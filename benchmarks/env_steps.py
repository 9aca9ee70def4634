"""Environment steps per second through `gymnasium.make`, in one process.

    python benchmarks/env_steps.py [--check] [--out FILE] [IDS...]

How it measures: the oracle's actions for a run of consecutive episodes are recorded first, outside the clock; then the
same episodes are replayed (same seed, same problems) and timed, so that no policy is in the numbers. `gymnasium.make`'s
own wrappers stay on.

- Tasks of several turns: whole episodes, resets included: steps / (time of steps and resets).
- Tasks of one turn: the steps alone, over a pool of environments that were reset outside the clock; a step judges a
  reply that is right. The reset rate is a column of its own, for every task.

Each number is the best of many short rounds, in CPU time of the process: what else the machine does only ever slows a
round down, and an environment of this suite's own tasks waits for nothing (what a sandbox computes in its own process
is not in the number). With `--check` the exit code is 1 if one of the tasks in `HELD` misses its target, or any level
of any task resets less than 1,000 times a second without saying why.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
from measuring import Column, Figure, Report, finish, make_parser

import llm_envs
from llm_envs.checker.catalogue import suite_ids

LIGHT_STEPS_PER_S = 300_000
TOOL_STEPS_PER_S = 100_000
RESETS_PER_S = 1_000
HELD = {
    "llm/Arithmetic-v0": LIGHT_STEPS_PER_S,
    "llm/GuessNumber-v0": LIGHT_STEPS_PER_S,
    "llm/Calculator-v0": TOOL_STEPS_PER_S,
    "llm/Countdown-v0": TOOL_STEPS_PER_S,  # parses and evaluates an expression, as a calculator does
}
"""Steps/s at the default level of tasks whose step is a comparison or one small tool: what the machinery around costs.
In the others the rules themselves, a search or a database take the time."""
ROUNDS = 25
EPISODES = 300
BUDGET_S = 1.0
"""Of one measurement; slow tasks have fewer and shorter rounds."""
METHOD = (
    "Through `gymnasium.make`, its own wrappers on, in one process; the best of many short rounds, in CPU time. Tasks "
    "of several turns: whole recorded episodes, resets included. Tasks of one turn: the steps alone, each judging a "
    "right reply. Held at the default level (*): 300,000 steps/s where a step is a comparison (Arithmetic, "
    "GuessNumber), 100,000 where it is one small tool or expression (Calculator, Countdown); in the others the rules "
    "themselves take the time. 1,000 resets/s at every level, unless a reason is given."
)
COLUMNS = [
    Column("id", "task"),
    Column("level", "level"),
    Column("measured", "measured"),
    Column("steps_per_s", "steps/s", ",d"),
    Column("target_steps_per_s", "held", ",d"),
    Column("resets_per_s", "resets/s", ",d"),
    Column("reason", "why not 1,000"),
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
    is_default = difficulty == env.unwrapped.default_difficulty
    reset_s = max(time_resets(env, 20) / 20, 1e-6)
    n_resets = max(20, min(EPISODES, int(BUDGET_S / ROUNDS / reset_s)))
    n_rounds = max(3, min(ROUNDS, int(BUDGET_S / n_resets / reset_s)))
    resets_per_s = n_resets / min(time_resets(env, n_resets) for _ in range(n_rounds))
    if is_single_turn:
        pool = [gym.make(env_id, difficulty=difficulty) for _ in range(100)]
        seconds = []
        for round_index in range(max(3, min(4 * ROUNDS, int(BUDGET_S / len(pool) / reset_s)))):
            for index, member in enumerate(pool):
                member.reset(seed=1_000 * round_index + index)
            actions = [member.unwrapped.oracle() for member in pool]
            seconds.append(time_single_steps(pool, actions))
        n_steps, best = len(pool), min(seconds)
    else:
        episodes = record_episodes(env, 5)
        episode_s = max(time_episodes(env, episodes) / len(episodes), 1e-6)
        episodes = record_episodes(env, max(5, min(EPISODES, int(BUDGET_S / ROUNDS / episode_s))))
        n_rounds = max(3, min(ROUNDS, int(BUDGET_S / len(episodes) / episode_s)))
        n_steps, best = sum(map(len, episodes)), min(time_episodes(env, episodes) for _ in range(n_rounds))
    return {
        "id": env_id,
        "difficulty": difficulty,
        "level": difficulty + "*" * is_default,
        "measured": "steps" if is_single_turn else "episodes",
        "target_steps_per_s": HELD.get(env_id) if is_default else None,
        "steps_per_s": round(n_steps / best),
        "resets_per_s": round(resets_per_s),
        "reason": env.unwrapped.slow_reset_reason if resets_per_s < RESETS_PER_S else None,
    }


def list_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return steps/s where they are held, and the fewest resets/s of any level that gives no reason."""
    figures = [
        Figure(f"{row['id']} ({row['difficulty']}) steps", row["steps_per_s"], "steps/s", at_least=target)
        for row in rows
        if (target := row["target_steps_per_s"]) is not None
    ]
    slowest = min((row for row in rows if row["reason"] is None), key=lambda row: row["resets_per_s"], default=None)
    if slowest is not None:
        name = f"fewest resets of {len(rows)} levels: {slowest['id']} ({slowest['difficulty']})"
        figures.append(Figure(name, slowest["resets_per_s"], "resets/s", at_least=RESETS_PER_S))
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("ids", nargs="*", help="tasks to measure; all registered llm/ tasks by default")
    options = parser.parse_args(arguments)
    ids = options.ids or suite_ids()
    rows = [
        measure(env_id, difficulty)
        for env_id in ids
        for difficulty in gym.make(llm_envs.task_spec(env_id)).unwrapped.difficulties
    ]
    report = Report("env_steps", "Environment steps a second", METHOD, COLUMNS, rows, list_figures(rows))
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
