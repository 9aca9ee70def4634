"""Without its packages, training is one readable error that names the extra."""

import importlib.util
import subprocess
import sys

import pytest

from llm_envs.errors import MissingExtraError

pytestmark = pytest.mark.trainings

HIDE = """
import sys
from importlib.machinery import PathFinder
class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == {hidden!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hide
import {module}
"""


@pytest.mark.parametrize(
    ("module", "hidden"),
    [
        ("llm_envs.trainers.grpo.trainer", "trl"),
        ("llm_envs.trainers.sft.trainer", "datasets"),
        ("llm_envs.policies.inference.text", "torch"),
    ],
)
def test_the_extra_is_named(module, hidden):
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden, module=module)], capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingExtraError" in last
    assert hidden in last
    assert "llm-envs[train]" in last


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_is_named(config, tiny_folder):
    from llm_envs.trainers import EnvGRPOTrainer

    with pytest.raises(MissingExtraError, match=r"llm-envs\[vllm\]"):
        EnvGRPOTrainer(tiny_folder, "test/Say-v0", config(use_vllm=True))
