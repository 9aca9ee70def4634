"""What each reward pays for a dozen ways to answer one question, and what becomes of several rewards. Without a model.

Command:   python examples/rewards_side_by_side.py          (--judge-url URL --judge-model NAME adds a judge,
                                                             --reward-model FOLDER a classifier)
Hardware:  one CPU core, a few seconds.
Expect:    tables; only what answers the question is paid by what asks for the answer, whatever else a reply tries.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs import rewards as rw
from llm_envs.judges import LLMJudge
from llm_envs.judges.reward_model import RewardModel
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import ChatAPIPolicy
from llm_envs.rewards import shaping as sh
from llm_envs.rollout import ToolTracker, aconverse_batch, converse, filters
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.tracking import trajectory_table
from llm_envs.types import Message, Trajectory, TrajectoryGroup, validate_batch

QUESTION = "What is 6 times 7? You may call multiply. Give the number as <answer>number</answer>."
CALL = format_tool_call("multiply", a=6, b=7)
REPLIES: Mapping[str, Sequence[str]] = {
    "right": [format_answer("42")],
    "by tool": [CALL, "<think>The tool says so.</think>" + format_answer("42")],
    "near": [format_answer("41.9")],
    "wrong": [format_answer("13")],
    "unsolved": [format_answer("6*7")],
    "no tags": ["It is 42."],
    "json": [format_answer('{"product": 42}')],
    "code": ["```python\ndef product(a, b):\n    return a * b\n```"],
    "echo": [QUESTION],
    "flood": [" ".join(format_answer(str(n)) for n in range(60))],
    "rambling": ["well you know " * 12 + format_answer("42")],
    "rude": ["Stupid question: 42. " + format_answer("42")],
    "many calls": [CALL, CALL, CALL, CALL, format_answer("42")],
    "empty": [""],
}


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a * b


def says(turns: Sequence[str]) -> HashingTokenPolicy:
    """Return a policy that says one thing after the other."""
    codec = ByteCodec()
    assistant = int(codec.encode_prompt([])[-1])

    def words(prompt_ids: npt.NDArray[np.int32], random: Random) -> str:
        return turns[min(int((prompt_ids == assistant).sum()), len(turns)) - 1]

    return HashingTokenPolicy(codec, words)


def reward_fns() -> dict[str, rw.RewardFn]:
    """Return the rewards that are compared."""
    schema = {"type": "object", "properties": {"product": {"type": "integer"}}, "required": ["product"]}
    quality = rw.create_exact_match("42")
    return {
        "exact": quality,
        "numeric, ±0.5": rw.create_numeric_match(42, abs_tol=0.5),
        "mathematics": rw.create_math_match("42"),
        "mathematics, any form": rw.create_math_match("42", final_form=False),
        "contains 42": rw.create_contains("42", of="content"),
        "keywords": rw.create_keywords(["it", "is"]),
        "own function": rw.lift(shortness),
        "format": rw.create_format(["answer"]),
        "pattern": rw.create_regex_format(r"\d+", of="answer"),
        "JSON schema": rw.create_schema_match(schema),
        "code tests": rw.create_code_tests([("product(6, 7)", 42), ("product(-1, 2)", -2)]),
        "tools succeeded": rw.create_tool_success(),
        "few turns": rw.create_turn_efficiency(4),
        "q - checks": rw.create_batch_reward(self_verified),
        "too long": rw.create_length_penalty(low=1, high=30, unit="words"),
        "over-long, soft": rw.create_overlong_penalty(120, 100),
        "repetition": rw.create_repetition_penalty(),
        "too many calls": rw.create_tool_count_penalty(high=2),
        "forbidden": rw.create_forbidden("stupid"),
        "safety": rw.create_safety_penalty(["stupid"]),
    }


def shortness(text: str, target: object) -> float:
    """Pay for few characters."""
    return max(0.0, 1.0 - len(text) / 20)


def self_verified(trajectories: Sequence[Trajectory]) -> list[float]:
    """Weigh the right answer against what was spent on checks, of a batch at once."""
    fn = rw.create_self_verification(rw.create_exact_match("42"), {"multiply": 1.0}, total=4.0)
    parts = [fn(trajectory) for trajectory in trajectories]
    return [sum(part.values()) if isinstance(part, Mapping) else 0.0 for part in parts]


def table(head: Sequence[str], lines: Mapping[str, Sequence[float | None]]) -> None:
    """Print numbers, a column for each reply."""
    widths = [max(len(name), 5) for name in head]
    print(f"{'':<24}" + "  ".join(map(str.rjust, head, widths)))
    for name, values in lines.items():
        cells = ["-" if value is None else f"{value + 0.0:.2f}".removesuffix(".00") for value in values]
        print(
            f"{name:<24}"
            + "  ".join("0".rjust(w) if c == "-0" else c.rjust(w) for c, w in zip(cells, widths, strict=True))
        )


def show_parts(played: Sequence[Trajectory]) -> None:
    """Show what aggregators, comparisons and normalisers make of the same parts."""
    parts = {"right": rw.create_numeric_match(42, abs_tol=0.5), "form": rw.create_format(), "short": rw.lift(shortness)}
    scored = [components or {} for components, _ in rw.score_trajectories(played, parts)]
    aggregators: dict[str, rw.Aggregator] = {
        "sum": rw.total,
        "weighted sum": rw.create_weighted_sum({"right": 1.0, "form": 0.1, "short": 0.1}),
        "mean": rw.mean,
        "minimum": rw.minimum,
        "maximum": rw.maximum,
        "product": rw.product,
        "lexicographic": rw.create_lexicographic(["right", "form", "short"]),
        "gated by right": rw.create_gated("right", 1.0),
    }
    lines: dict[str, Any] = {name: [aggregate(part) for part in scored] for name, aggregate in aggregators.items()}
    matrix = [list(part.values()) for part in scored]
    rewards, groups = lines["weighted sum"], ["one"] * len(played)
    seen = rw.RunningMoments().updated(rewards)
    lines |= {
        "z-score": rw.z_score(rewards),
        "less the mean": rw.centered(rewards, groups),
        "min-max": rw.min_max(rewards),
        "rank": rw.ranks(rewards),
        "running": seen.normalize(rewards),
        "ranks of the parts": rw.relative_rewards(matrix).mean(axis=1),
        "Pareto front": rw.pareto_fronts(matrix),
        "Pareto reward": rw.pareto_rewards(matrix),
        "TRL, sum first": rw.multi_objective_advantages(matrix, [1.0, 0.1, 0.1], groups),
    }
    table(list(REPLIES), lines)
    combined = rw.combine_rewards(parts, weights={"form": 0.1, "short": 0.1})
    again = {"absolute": rw.rescore(played, combined)} | {
        method: rw.rescore(played, parts, method=method) for method in ("relative", "pareto")
    }
    table(list(REPLIES), {f"rescored, {name}": [t.reward for t in done] for name, done in again.items()})


def show_shaping(trajectory: Trajectory) -> None:
    """Show what shaping adds to each turn of one episode."""

    def has_result(messages: Sequence[Message]) -> float:
        return float(any(message.role == "tool" for message in messages))

    def policy(of: Trajectory) -> list[npt.NDArray[np.float64]]:
        return [row.logps.astype(np.float64) for row in of.rows]  # sampled without filters: the policy's own

    def reference(of: Trajectory) -> list[npt.NDArray[np.float64]]:
        return [logps - 0.1 for logps in policy(of)]  # it finds every token a little less likely

    shaped = sh.shape(
        trajectory,
        [
            sh.create_step_cost(0.05),
            sh.create_success_bonus(0.5),
            sh.create_length_bonus(0.1, 100),
            sh.create_potential_shaping(has_result),
            sh.create_kl_penalty(0.01, policy, reference),
            sh.create_entropy_bonus(0.01),
            sh.create_clipping(-1.0, 0.9),
        ],
    )
    turns = [f"turn {number}" for number in range(len(trajectory.turns))]
    table(turns, {"task": list(shaped.task), **{name: list(added) for name, added in shaped.additions.items()}})


def show_filters(group: TrajectoryGroup) -> None:
    """Show which filters keep the group of all replies, and that of the right ones alone."""
    right = group.filter(lambda trajectory: trajectory.reward == 1.0)
    kept: dict[str, filters.GroupFilter] = {
        "rewards differ": filters.create_spread_filter(),
        "one is right": filters.create_min_reward_filter(1.0),
        "four are scored": filters.create_min_scored_filter(4),
        "they differ": filters.create_diversity_filter(0.5),
        "of some length": filters.create_length_filter(min_tokens=20, max_tokens=400),
    }
    kept["all of these"] = filters.all_of(*kept.values())
    table(["all", "right"], {name: [float(keeps(group)), float(keeps(right))] for name, keeps in kept.items()})
    (best,) = filters.create_selection(filters.reward_spread)([right, group], 1)
    print(f"of the two the group with {len(best)} replies has the greater spread")
    n_whole = len(group.filter(filters.create_void_turn_filter()))
    print(f"{n_whole} of {len(group)} replies have a tool call or an answer in each turn")


async def play() -> list[Trajectory]:
    """Hold the conversation once with each way to answer; return them as one group."""
    paid = rw.create_exact_match("42")
    batches = [
        await aconverse_batch(
            says(turns), [QUESTION], codec=ByteCodec(), tools=[multiply], reward_fn=paid, env_id=name, seed=number
        )
        for number, (name, turns) in enumerate(REPLIES.items())
    ]
    return [replace(t, group_id="one", member=number) for number, (t,) in enumerate(batches)]


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge-url", help="a server of OpenAI's chat API, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--judge-model", help="the name of its model")
    parser.add_argument("--reward-model", help="a folder with a sequence classifier")
    args = parser.parse_args()

    played = asyncio.run(play())
    if problems := validate_batch(played):
        raise SystemExit(f"unsound: {problems}")
    print(trajectory_table(played), end="\n\n")
    fns: dict[str, Any] = reward_fns()
    if args.judge_url is not None:
        fns["judge"] = LLMJudge(ChatAPIPolicy(args.judge_url, args.judge_model), "Is the answer right and polite?")
    if args.reward_model is not None:
        fns["classifier"] = RewardModel.load(args.reward_model)
    scored = [components or {} for components, _ in rw.score_trajectories(played, fns, on_error="unscored")]
    table(list(REPLIES), {name: [part.get(name) for part in scored] for name in fns})
    print()
    show_parts(played)
    print()
    show_shaping(played[list(REPLIES).index("by tool")])
    print()
    show_filters(TrajectoryGroup("one", "converse", 0, tuple(played)))
    tracker = ToolTracker()
    converse(says(REPLIES["many calls"]), QUESTION, codec=ByteCodec(), tools=[multiply], tool_tracker=tracker)
    print(f"\n{tracker.n_calls} calls of {tracker.kinds}, success {tracker.success_rate}")


if __name__ == "__main__":
    main()
