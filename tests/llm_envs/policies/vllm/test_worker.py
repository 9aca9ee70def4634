"""The worker extension in a server of another vLLM."""

import sys
from types import ModuleType

import pytest


def test_a_vllm_without_the_classes_of_its_weight_transfer_still_loads_the_extension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("llm_envs.policies.vllm.worker", "llm_envs.policies.vllm.gloo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    from llm_envs.policies.vllm.worker import WorkerExtension

    assert WorkerExtension.llm_envs_tag is None
    assert "llm_envs.policies.vllm.gloo" not in sys.modules
