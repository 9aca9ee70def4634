"""`check_task` passes tasks of other people's packages: Tau2, the worlds in Java, and a sample of bridged ids.

Efforts are small, because each episode speaks to another process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from llm_envs.checker import check_task
from llm_envs.checker.subject import Effort

pytestmark = pytest.mark.suites
LEAST = Effort(n_seeds=3, n_draws=40, n_hostile_episodes=1, n_fuzzed=6, n_pairs=6)
FEW = Effort(n_seeds=6, n_draws=60, n_hostile_episodes=2, n_fuzzed=20, n_pairs=12)
BRIDGED = (
    "reasoning_gym/chain_sum-v0",
    "reasoning_gym/word_sorting-v0",
    "gymnasium/FrozenLake-v1",
    "gymnasium/Pendulum-v1",
    "textarena/TicTacToe-v0",
    "textarena/GuessTheNumber-v0",
)
IS_THOROUGH = bool(os.environ.get("LLM_ENVS_CHECK_ALL"))  # in make check-tasks-thorough: minutes each
WITHOUT_ORACLE = "the environment has no oracle"


def passes(env_id: str, effort: Effort = FEW, **kwargs: Any) -> Mapping[str, str]:
    """Check a task, and return the findings of the clauses."""
    report = check_task(env_id, effort=effort, raise_on_failure=False, **kwargs)
    assert report.passed, str(report)
    return {result.clause: result.detail for result in report.results}


@pytest.mark.parametrize("domain", ["retail", *(["airline", "telecom"] if IS_THOROUGH else [])])
def test_tau2(domain: str) -> None:
    passes("llm/Tau2-v0", LEAST, difficulty=domain)


@pytest.mark.parametrize(
    ("env_id", "level"),
    [
        ("llm/TextWorldExpress-v0", "cookingworld"),
        ("llm/TextWorldExpress-v0", "coin"),
        ("llm/ScienceWorld-v0", "find-living-thing"),
        ("llm/ScienceWorld-v0", "lifespan-longest-lived"),
    ],
)
def test_worlds_in_java(env_id: str, level: str) -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed here")
    found = passes(env_id, difficulty=level)
    assert found["oracle_earns_the_maximum"] == "100% of 6 episodes"


@pytest.mark.parametrize("env_id", BRIDGED)
def test_bridged_ids(env_id: str) -> None:
    found = passes(env_id)
    assert found["never_raises"] == "42 kinds of hostile action"
    has_oracle = env_id.startswith("reasoning_gym/")
    assert (found["oracle_earns_the_maximum"] == WITHOUT_ORACLE) is not has_oracle
