"""The shares of a trainer's time."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.tracking import stats as stats_module
from llm_envs.tracking.stats import BusyTime, CollectorStats
from llm_envs.trainers.episodes.generation import GenerationPlayer
from llm_envs.trainers.episodes.items import SeedItems
from llm_envs.trainers.run import time_shares


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    for module in (stats_module, time_shares):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_overlapping_activities_count_once(clock):
    busy = BusyTime()
    with busy:
        clock.now = 1.0
        with busy:
            clock.now = 3.0
        assert busy.seconds == 3.0
        clock.now = 4.0
    clock.now = 9.0
    with pytest.raises(ValueError), busy:
        clock.now = 10.0
        raise ValueError
    clock.now = 20.0
    assert busy.seconds == 5.0


def test_the_shares_are_of_the_time_since_the_generation_before(clock):
    stats = CollectorStats()
    shares = time_shares.TimeShares(stats)
    assert shares.gather() == {}
    with shares.waiting(), stats.policy_time:
        clock.now = 4.0
    shares.end_generation()
    assert shares.gather() == {"sampling": 1.0, "environment": 0.0, "waiting": 1.0, "training": 0.0}
    with stats.policy_time:  # while the trainer trains
        clock.now = 8.0
    with shares.waiting(), stats.env_time:
        clock.now = 9.0
    clock.now = 12.0
    shares.end_generation()
    assert shares.gather() == {"sampling": 0.5, "environment": 0.125, "waiting": 0.125, "training": 0.875}


class SlowPolicy(OraclePolicy):
    async def act(self, env, observation):
        await asyncio.sleep(0.2)
        return super().act(env, observation)


def test_the_player_counts_what_the_collector_does():
    items = {"train": SeedItems("llm/Arithmetic-v0", "train", 8, seed=3, env_kwargs={"difficulty": "easy"})}
    collector = Collector(items["train"].source, SlowPolicy(), progress=False)
    player = GenerationPlayer(collector, items, process_index=0, folder=None, settings={})
    rows = [{"index": 0, "split": "train"}] * 4
    for step in range(2):
        player.play(rows, mode="train", step=step, group_size=4)
        time.sleep(0.2)
    player.play(rows, mode="train", step=2, group_size=4)
    shares = player.time_shares.gather()
    assert 0.3 < shares["sampling"] <= shares["waiting"] < 0.7
    assert 0 < shares["environment"] < 0.3
    assert shares["training"] == 1 - shares["waiting"]
    player.close()
