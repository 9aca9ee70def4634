"""The proof on a task of each family: how they are played well and badly, and the table of what came of it."""

import json
import random
from pathlib import Path

import gymnasium as gym
import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "proof" / "results"


@pytest.mark.parametrize("name", ["acrostic", "fractions", "function", "knights", "path"])
def test_one_play_is_right_and_the_other_is_not(name):
    """Whoever plays badly may be lucky now and then."""
    from proof.tasks import TASKS

    task = TASKS[name]
    env = gym.make(task.env, **task.env_kwargs)
    n_right = [0, 0]
    for i, play in enumerate(task.plays):
        for seed in range(20):
            env.reset(seed=seed)
            ended, coin = False, random.Random(seed)
            while not ended:
                *_, terminated, truncated, info = env.step(play(env, coin))
                ended = terminated or truncated
            n_right[i] += info["is_success"]
    assert n_right[0] == 20
    assert n_right[1] <= 3


def test_the_table_has_reward_and_success_by_family():
    """The rewards differ by 1, 0, 1, 0.8: mean 0.7, standard deviation 0.4761, half a width of 1.96 * 0.4761 / 2."""
    from proof.tables import render

    before = {"seeds": [5, 6, 7, 8], "successes": [0, 1, 0, 0], "rewards": [-0.1, 1, 0, 0.1]}
    after = {"seeds": [5, 6, 7, 8], "successes": [1, 1, 1, 1], "rewards": [0.9, 1, 1, 0.9]}
    seed = {"outcomes": after, "cpu_seconds": 61.4, "steps": 40, "versions": {}, "hardware": {"cpu": "a", "cpus": 2}}
    warm = {"outcomes": before, "parameters": 340_736}
    known = {"algorithm": "grpo", "engine": "transformers", "warm": warm, "seeds": {"0": seed}}
    results = {
        "grpo-guess": {**known, "env": "llm/GuessNumber-v0"},
        "grpo-knights": {**known, "env": "llm/KnightsAndKnaves-v0"},
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in render(results)["suite"].splitlines()[2:4]]
    assert [row[:3] for row in rows] == [
        ["games", "llm/GuessNumber-v0", "easy"],
        ["logic", "llm/KnightsAndKnaves-v0", "easy"],
    ]
    assert rows[0][4] == "0.250 → 0.950"
    assert rows[0][5].startswith("+0.700 (+0.233 to +1.167)")
    assert rows[0][6:10] == ["25.0% → 100.0%", "+75.0 points (+26.0 to +124.0)", "yes", "340,736"]


def test_the_reward_rises_on_tasks_of_different_families():
    """Eight at least, each interval clear of zero."""
    from llm_envs.checker.catalogue import family_of
    from proof.runs import RUNS
    from proof.tables import compare

    risen = set()
    for path in RESULTS.glob("*.json"):
        if RUNS[path.stem].table in ("grpo", "suite"):
            data = json.loads(path.read_text())
            for trained in data["seeds"].values():
                _, interval = compare(data["warm"]["outcomes"], trained["outcomes"], "rewards")
                assert interval.low > 0, path.stem
            risen.add(family_of(data["env"]))
    assert len(risen) >= 8
