"""The examples that compare: every line of them runs, and what they show is so."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    policy, reference, curve = module.learn(module.rows()["grpo"], 60, seed=0)
    assert curve[0]["reward"] < 0.2 and curve[-1]["reward"] > 0.9
    policy, reference, _ = module.learn(module.rows()["grpo"], 10, seed=0)
    found = module.estimates(policy, reference, 4096)
    exact = found["exact KL(policy, reference)"][0]
    for name in ("k1", "k3", "k1 of the reference's words, weighted"):
        mean, spread = found[name]
        assert abs(mean - exact) < 5 * spread / math.sqrt(4096)
    assert found["k3"][1] < found["k1"][1]
