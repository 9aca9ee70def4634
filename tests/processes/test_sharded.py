"""FSDP2 as examples/accelerate/fsdp2.yaml has it, on two processes on the CPU; what is refused there (sharded.py)."""

from __future__ import annotations

import pytest
import torch
from launched import CONFIGS, SUPPORT, launch

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, model_folder, episodes):
    """Return a function from a part to what the two processes had of it, all from one launch; and the folder."""
    out = tmp_path_factory.mktemp("sharded")
    parts = ["sft", "dpo_offline", "refused"]
    arguments = [model_folder, str(out), episodes, *parts]
    options = ["--mixed_precision", "no"]  # equal up to rounding means little in bf16
    launch(SUPPORT / "sharded.py", *arguments, config=CONFIGS / "fsdp2.yaml", options=options, limit_s=600).check()

    def both(part):
        return [torch.load(out / f"{part}-{rank}.pt", weights_only=False) for rank in (0, 1)]

    both.out = out
    return both


@pytest.mark.parametrize("part", ["sft", "dpo_offline"])
def test_each_process_holds_its_share(sharded, part):
    for rank in sharded(part):
        assert rank["fsdp"]
        assert rank["share"] == pytest.approx(0.5, abs=0.05)


def test_sharded_steps_are_those_of_one_process(sharded, model_folder, episodes):
    from ranks import Parts

    one = Parts(model_folder, sharded.out / "alone", episodes, per_device_train_batch_size=8).run("sft")
    for rank in sharded("sft"):
        assert rank["weights"].keys() == one["weights"].keys()
        for name, value in one["weights"].items():
            torch.testing.assert_close(rank["weights"][name], value, rtol=0, atol=2e-6)


def test_what_is_saved_loads_anywhere(sharded, model_folder):
    from peft import PeftModel

    from llm_envs.policies.inference import load_model

    saved = load_model(str(sharded.out / "sft-saved"), dtype=torch.float32).state_dict()
    for name, value in sharded("sft")[0]["weights"].items():
        assert torch.equal(saved[name], value)
    start = load_model(model_folder, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(start, sharded.out / "dpo_offline-saved").state_dict()
    trained = sharded("dpo_offline")[0]["weights"]
    assert trained.keys() == adapted.keys()
    for name, value in trained.items():
        assert torch.equal(adapted[name], value), name  # the adapter; and the base, which is as it was
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in trained.items())


def test_the_transformers_policy_is_refused(sharded):
    for rank in sharded("refused"):
        assert "cannot sample under FSDP" in rank["grpo"]
        assert "set use_vllm=True (one engine a process), or train with DDP or ZeRO-2" in rank["grpo"]
