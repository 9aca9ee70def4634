"""A vLLM engine on each of two processes: GRPO with LoRA, PPO, DPO online; sharded, too (ranks.py, sharded.py)."""

from __future__ import annotations

import pytest
import torch
from launched import CONFIGS, SUPPORT, launch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = [pytest.mark.processes, pytest.mark.vllm, pytest.mark.slow]


def results(out, part):
    return [torch.load(out / f"{part}-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory, model_folder, episodes):
    out = tmp_path_factory.mktemp("engines")
    launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, "engines", limit_s=420).check()
    return results(out, "engines")


@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo"])
def test_engines_follow_and_weights_stay_alike(engines, name):
    """Three generations, each compared with the weights of then; no episode of process 1 ends before those of 0."""
    one, other = (rank[name] for rank in engines)
    assert one["step"] == other["step"] == 3
    for rank in (one, other):
        assert len(rank["gaps"]) == 3 and max(rank["gaps"]) < 1e-4
    assert one["texts"] != other["texts"]  # episodes of its own on each
    assert one["weights"].keys() == other["weights"].keys()
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    assert len(one["changed"]) > 4


def test_an_adapter_is_merged_for_the_engine_and_the_base_is_bit_equal(engines):
    for rank in engines:
        changed = set(rank["grpo"]["changed"])
        assert changed == {key for key in rank["grpo"]["weights"] if "lora_" in key}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, model_folder, episodes):
    out = tmp_path_factory.mktemp("sharded")
    options = ["--mixed_precision", "no"]
    arguments = [model_folder, str(out), episodes, "engine_lora", "engine_ppo"]
    launch(SUPPORT / "sharded.py", *arguments, config=CONFIGS / "fsdp2.yaml", options=options, limit_s=300).check()
    return {part: results(out, part) for part in ("engine_lora", "engine_ppo")}


@pytest.mark.parametrize("part", ["engine_lora", "engine_ppo"])
def test_engines_follow_a_sharded_model(sharded, part):
    one, other = sharded[part]
    for rank in (one, other):
        assert rank["fsdp"] and rank["share"] == pytest.approx(0.5, abs=0.05)
        assert len(rank["gaps"]) == 3 and max(rank["gaps"]) < 1e-4
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    if "critic" in one:
        assert all(torch.equal(value, other["critic"][key]) for key, value in one["critic"].items())
        assert one["critic"]["head.weight"].abs().max() > 1e-4


def test_the_base_of_a_sharded_adapter_is_bit_equal(sharded, model_folder):
    from llm_envs.policies.inference import load_model

    start = load_model(model_folder, dtype=torch.float32).state_dict()
    for rank in sharded["engine_lora"]:
        base = {n.replace("base_model.model.", "").replace(".base_layer", ""): v for n, v in rank["weights"].items()}
        assert all(torch.equal(base[name], value) for name, value in start.items())
        assert any("lora_B" in name and value.abs().max() > 0 for name, value in base.items())
