"""The ids of other suites: registered without importing a suite, listed, matched by patterns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from llm_envs.bridges.ids import FLAWED, suite_ids
from llm_envs.cli.main import main
from llm_envs.errors import MissingExtraError
from llm_envs.registration import bridged_ids, task_ids
from llm_envs.sources.mixture_text import parse_mixture

ROOT = Path(__file__).resolve().parents[3]


def test_over_three_hundred_environments_have_an_id() -> None:
    listed = [id for ids in suite_ids().values() for id in ids]
    off = {f"reasoning_gym/{name}-v0" for name in FLAWED}
    assert len(set(listed)) == len(listed) and all(id in gym.registry for id in listed)
    with_own_module = {"harbor/Tasks-v0"}  # registered where another test has imported its module
    assert sorted({*bridged_ids()} - with_own_module) == sorted(set(listed) - off)
    assert len(bridged_ids()) + len([id for id in task_ids() if id.startswith("llm/")]) > 300
    assert not set(bridged_ids()) & set(task_ids())


def test_no_suite_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, llm_envs; print([m for m in sys.modules if m.startswith(('reasoning_gym', 'textarena', 'mcp'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_suite_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, id in (("reasoning_gym", "reasoning_gym/chain_sum-v0"), ("textarena.envs", "textarena/TicTacToe-v0")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=r"pip install 'llm-envs\[suites\]'"):
            gym.make(id)


def test_they_are_listed_and_matched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--suites"]) == 0
    assert capsys.readouterr().out.splitlines() == bridged_ids()
    assert main(["list", "--suites", "--tools"]) == 2
    matched = [choice.env_id for choice in parse_mixture(["textarena/Nim*"])]
    assert matched == ["textarena/Nim-large-v0", "textarena/Nim-medium-v0", "textarena/Nim-v0"]
    assert "reasoning_gym/coin_flip-v0" not in [choice.env_id for choice in parse_mixture(["reasoning_gym/*"])]
