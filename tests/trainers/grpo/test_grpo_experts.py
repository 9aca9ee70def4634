"""A mixture of experts on vLLM: it follows its updates, in this process, in a server's worker, and in a trainer.

In a process of its own: vLLM takes no mixture of experts after another model.
"""

import json
import os
import subprocess
import sys

import pytest
from launched import SUPPORT

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm


def run(folder, where):
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "experts_on_vllm.py"), str(folder), where],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if where == "server" else None,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_engine_has_the_experts_that_are_trained(tmp_path):
    """vLLM packs experts on a CPU, and by itself not again when they are loaded a second time."""
    found = run(tmp_path, "process")
    assert found["before"] < 1e-4 and found["other weights"] > 0.1
    assert max(found["updates"]) < 1e-4
    assert found["worker"] < 1e-4
    assert len(found["trainer"]) == 3 and max(found["trainer"]) < 1e-4
    assert found["experts moved"] > 1e-3


def test_a_server_has_the_experts_that_are_trained(tmp_path):
    """A real server process, which gets them as files."""
    found = run(tmp_path, "server")
    assert len(found["trainer"]) == 3 and max(found["trainer"]) < 1e-4
    assert found["experts moved"] > 1e-3
