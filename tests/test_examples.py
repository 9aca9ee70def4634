"""The demo, its model, and training by hand, on settings that take seconds; the numbered examples: examples/."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import variables

from llm_envs.rollout import read_trajectories

pytestmark = pytest.mark.examples

ROOT = Path(__file__).parent.parent


def run(*command, cwd, may_learn_nothing=False):
    """Run a command away from the checkout; return what it printed."""
    done = subprocess.run(command, cwd=cwd, env=variables(), capture_output=True, text=True, timeout=300)
    shown = done.stdout + done.stderr
    assert done.returncode == 0 or (may_learn_nothing and "generations taught nothing" in shown), shown[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's folder after a few steps of everything."""
    folder = tmp_path_factory.mktemp("demo")
    sizes = ["--traces", "64", "--sft-steps", "2", "--grpo-steps", "2", "--eval-episodes", "8"]
    script = str(ROOT / "examples" / "demo.py")
    printed = run("python", script, "--out", "out", *sizes, "--policy", "transformers", cwd=folder)
    return folder / "out", printed


@pytest.mark.smoke
def test_demo_leaves_what_it_promises(demo):
    out, printed = demo
    assert "Sampling with transformers" in printed and re.search(r"about \d+ minutes? on this machine", printed)
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["test"]) == ["untrained", "after warm-up", "after GRPO"]
    assert all(part["n"] == 8 for part in summary["test"].values())
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps[:2] == [1, 2]
    assert (out / "reward.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    assert "after-warm-up" in page and "What is" in page
    assert len(read_trajectories(out / "trajectories" / "after-GRPO")) == 8
    assert len(read_trajectories(out / "grpo" / "trajectories" / "process-0")) == 256


def test_the_demos_model_plays(demo):
    out, _ = demo
    printed = run("llm-envs", "play", "llm/Calculator-v0", "--model", str(out / "model"), cwd=out)
    assert "What is" in printed


def test_train_grpo_by_hand(demo, tmp_path):
    out, _ = demo
    accelerate = Path(sys.executable).with_name("accelerate")
    run(
        str(accelerate), "launch", "--num_processes", "1", "--cpu", str(ROOT / "examples" / "train_grpo.py"),
        "--env", "llm/Calculator-v0", "--model_name_or_path", str(out / "model"), "--output_dir", str(tmp_path / "run"),
        "--env_kwargs", '{"difficulty": "easy"}', "--max_steps", "1", "--per_device_train_batch_size", "8",
        "--num_generations", "4", "--max_completion_length", "64", "--report_to", "none",
        cwd=tmp_path, may_learn_nothing=True,
    )  # fmt: skip
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert {t.env_kwargs["difficulty"] for t in read_trajectories(tmp_path / "run" / "trajectories" / "process-0")} == {
        "easy"
    }
