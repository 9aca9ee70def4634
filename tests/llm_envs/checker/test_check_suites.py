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
MIN = Effort(n_seeds=3, n_draws=40, n_hostile_episodes=1, n_fuzzed=6, n_pairs=6)
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
    passes("llm/Tau2-v0", MIN, difficulty=domain)


@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed here")
@pytest.mark.parametrize("game", ["cookingworld", "coin"])
def test_text_world_express(game: str) -> None:
    found = passes("llm/TextWorldExpress-v0", difficulty=game)
    assert found["oracle_earns_the_maximum"] == "100% of 6 episodes"


@pytest.mark.skipif(not IS_THOROUGH or shutil.which("java") is None, reason="minutes, and needs Java")
def test_science_world() -> None:
    """The benchmark's own splits have variations that begin alike."""
    report = check_task("llm/ScienceWorld-v0", effort=FEW, raise_on_failure=False, difficulty="find-living-thing")
    failed = {result.clause: result.detail for result in report.results if not result.passed}
    assert set(failed) == {"has_disjoint_splits"}, str(report)
    assert "draws of the test split have a first observation that train has too" in failed["has_disjoint_splits"]


@pytest.mark.parametrize("env_id", BRIDGED)
def test_bridged_ids(env_id: str) -> None:
    found = passes(env_id)
    assert found["never_raises"] == "42 kinds of hostile action"
    has_oracle = env_id.startswith("reasoning_gym/")
    assert (found["oracle_earns_the_maximum"] == WITHOUT_ORACLE) is not has_oracle
