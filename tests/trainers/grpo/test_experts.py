"""A mixture of experts on vLLM: it follows its updates, in this process, in a server's worker, and in a trainer.

In a process of its own: vLLM takes no mixture of experts after another model.
"""

import json
import subprocess
import sys

import pytest
from launched import SUPPORT

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm


def test_the_engine_has_the_experts_that_are_trained(tmp_path):
    """vLLM packs experts on a CPU, and by itself not again when they are loaded a second time."""
    run = subprocess.run(
        [sys.executable, str(SUPPORT / "experts_on_vllm.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["before"] < 1e-4 and found["other weights"] > 0.1
    assert max(found["updates"]) < 1e-4
    assert found["worker"] < 1e-4
    assert len(found["trainer"]) == 3 and max(found["trainer"]) < 1e-4
    assert found["experts moved"] > 1e-3
