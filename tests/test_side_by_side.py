"""The examples that compare: every line of them runs, and what they show is so."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table, picture = tmp_path / "curves.csv", tmp_path / "curves.svg"
    monkeypatch.setattr(sys, "argv", ["x", "--steps", "2", "--csv", str(table), "--plot", str(picture)])
    module = example("algorithms_side_by_side")
    module.main()
    lines = table.read_text().splitlines()
    assert len(lines) == 3 and len(lines[0].split(",")) > len(module.rows())  # a name may have a comma in it
    assert picture.exists() and "exact KL(policy, reference)" in capsys.readouterr().out


def test_estimates_are_near_the_exact_kl_and_grpo_learns() -> None:
    module = example("algorithms_side_by_side")
    policy, reference, curve = module.learn(module.rows()["grpo"], 20, seed=0)
    assert curve[0]["reward"] < 0.4 and curve[-1]["reward"] > 0.9
    policy, reference, _ = module.learn(module.rows()["grpo"], 3, seed=0)
    found = module.estimates(policy, reference, 4096)
    exact = found["exact KL(policy, reference)"][0]
    for name in ("k1", "k3", "k1 of the reference's words, weighted"):
        mean, spread = found[name]
        assert abs(mean - exact) < 5 * spread / math.sqrt(4096)
    assert found["k3"][1] < found["k1"][1]


def test_rewards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("rewards_side_by_side")
    monkeypatch.setattr(sys, "argv", ["x"])
    module.main()
    printed = capsys.readouterr().out
    names = list(module.REPLIES)
    lines = {line[:24].strip(): line[24:].split() for line in printed.splitlines()}

    def paid(row: str) -> set[str]:
        return {name for name, cell in zip(names, lines[row], strict=True) if float(cell) > 0}

    assert set(module.reward_fns()) < set(lines)
    right = {"right", "by tool", "rambling", "rude", "many calls"}
    assert paid("exact") == paid("mathematics") == paid("gated by right") - {"near"} == right
    assert paid("numeric, ±0.5") == right | {"near"} and paid("mathematics, any form") == right | {"unsolved"}
    assert paid("JSON schema") == {"json"} and paid("code tests") == {"code"}
    assert paid("tools succeeded") == {"by tool", "many calls"}
    assert [name for name, cell in zip(names, lines["safety"], strict=True) if cell == "-1"] == ["rude"]
    assert lines["potential"] == ["1", "-1"] and lines["step_cost"] == ["-0.05", "-0.05"]
    assert lines["all of these"] == ["0", "0"] and lines["of some length"] == ["0", "1"]
    assert "4 calls of {'multiply': 4}, success 1.0" in printed
