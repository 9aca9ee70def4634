"""EnvGRPOTrainer with a real vLLM engine in the same process: agreement after updates, learning, LoRA."""

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

import peft  # noqa: E402  (after the skip)

from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.policies.vllm.launcher import is_healthy  # noqa: E402
from llm_envs.trainers import (  # noqa: E402
    EnvGRPOTrainer,
    EnvPPOConfig,
    EnvPPOTrainer,
)

ENV = "test/Say-v0"


@pytest.fixture
def train(tiny_folder, config):
    trainers = []

    def run(kwargs=None, **changes):
        settings = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3}
        trainer = EnvGRPOTrainer(tiny_folder, ENV, config(**{**settings, **changes}), **(kwargs or {}))
        trainers.append(trainer)
        gaps, versions = [], []
        original = trainer._generate_and_score_completions

        def compare(inputs):
            """The log-probabilities at sampling against those of the weights that are trained, now."""
            output = original(inputs)
            model = trainer.accelerator.unwrap_model(trainer.model)
            rows = [t.rows[0] for t in trainer.last_trajectories]
            model.eval()
            scored = token_logps(model, [row.ids for row in rows])
            model.train()
            gaps.append(max(np.abs(a - row.logps)[row.mask].max() for a, row in zip(scored, rows, strict=True)))
            versions.append(
                {s.version for t in trainer.last_trajectories for turn in t.turns for s in turn.weight_versions}
            )
            return output

        trainer._generate_and_score_completions = compare
        trainer.train(trainer.args.resume_from_checkpoint)
        return trainer, gaps, versions

    yield run
    for trainer in trainers:
        trainer.close()


@pytest.mark.smoke
def test_the_engine_follows_the_trainer_and_the_reward_rises(train, tiny_folder, monkeypatch):
    """40 updates at a high learning rate, seeds fixed in advance; on a compiled engine, the only one of these tests."""
    monkeypatch.setattr("torch._dynamo.config.disable", False)
    trainer, gaps, versions = train(
        max_steps=40, per_device_train_batch_size=64, num_generations=16, learning_rate=3e-3, seed=1
    )
    assert len(gaps) == 40
    assert max(gaps) < 1e-4, gaps
    assert [sorted(v) for v in versions] == [[step] for step in range(40)]
    start = load_model(tiny_folder, dtype=torch.float32)
    moved = [(a - b).abs().max().item() for a, b in zip(trainer.model.parameters(), start.parameters(), strict=True)]
    assert min(moved) > 1e-3  # or agreement would mean little
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    rewards = [entry["reward"] for entry in history]
    assert np.mean(rewards[:5]) < 0.1
    assert np.mean(rewards[-5:]) > 0.5
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in history) < 1e-4


def test_an_adapter_reaches_the_engine_as_such_also_after_a_resume(train, tmp_path, monkeypatch):
    adapter = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    monkeypatch.setattr("llm_envs.policies.vllm.engine.load_weights", None)  # no weights are sent
    common = {"lora_sync": "adapter", "learning_rate": 1e-2, "output_dir": str(tmp_path), "save_strategy": "steps"}
    for n_steps, again in ((2, None), (4, True)):
        settings = common | {"max_steps": n_steps, "save_steps": 2, "resume_from_checkpoint": again}
        trainer, gaps, versions = train(kwargs={"peft_config": adapter}, **settings)
        assert max(gaps) < 1e-4, gaps
        assert versions == [{n_steps - 2}, {n_steps - 1}]
        assert len(trainer.vllm_generation.llm.llm_engine.list_loras()) == 1
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in trainer.model.named_parameters())


def test_lora_reaches_the_engine(train):
    adapter = peft.LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer, gaps, _ = train(kwargs={"peft_config": adapter}, max_steps=4, learning_rate=1e-2)
    assert max(gaps) < 1e-4, gaps
    assert any("lora_B" in name and value.abs().max() > 0 for name, value in trainer.model.named_parameters())


@pytest.mark.parametrize("adapter", [None, "all-linear"])
def test_an_unsaved_model_can_be_trained(tiny_folder, config, adapter):
    """A model without a folder of its own: the engine starts on a temporary copy, without the adapter's names."""
    from transformers import AutoTokenizer

    from llm_envs.tiny_model import tiny_model

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = tiny_model(tokenizer, hidden_size=64, n_heads=2, max_length=192)
    assert not model.name_or_path
    settings = config(use_vllm=True, vllm_max_model_length=192)
    lora = adapter and peft.LoraConfig(r=4, target_modules=adapter, task_type="CAUSAL_LM")
    trainer = EnvGRPOTrainer(model, ENV, settings, processing_class=tokenizer, peft_config=lora)
    trainer.train()
    trainer.close()
    assert {t.status for t in trainer.last_trajectories} == {"ok"}


FILTERS = [{"top_p": 0.7}, {"top_k": 5, "temperature": 1.5}, {"min_p": 0.1}, {"repetition_penalty": 1.5}]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_a_filter_is_no_part_of_the_importance_weights(tiny_folder, tmp_path, config, kind, filters):
    """The engine has the trainer's weights: every weight is 1, though it reports filtered log-probabilities."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():  # far from the uniform distribution, on which filters do little
        for parameter in model.parameters():
            parameter.mul_(3)
    model.save_pretrained(tmp_path / "sharp")
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(tmp_path / "sharp")
    settings = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3, **filters}
    if kind == "grpo":
        trainer = EnvGRPOTrainer(str(tmp_path / "sharp"), ENV, config(logps_tolerance=1e-3, **settings))
    else:
        names = ("output_dir", "max_steps", "per_device_train_batch_size", "max_completion_length", "max_turn_tokens")
        own = {name: getattr(config(), name) for name in names}
        args = EnvPPOConfig(**own, **settings, logps_tolerance=1e-3, num_train_seeds=64, report_to="none")
        trainer = EnvPPOTrainer(str(tmp_path / "sharp"), ENV, args)
    kept, original = [], trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: kept.append(original(inputs)) or kept[-1]
    trainer.train()
    batch, mask = kept[0], (kept[0]["completion_mask"] * kept[0]["tool_mask"]).bool()
    weights = batch["importance_sampling_ratio"][mask]
    torch.testing.assert_close(weights, torch.ones_like(weights), rtol=0, atol=1e-3)
    (row,) = trainer.last_trajectories[0].rows
    completion = slice(row.prompt_length, None)
    plain = batch["old_per_token_logps"][0, : len(row) - row.prompt_length].cpu().numpy()
    assert np.abs(row.logps[completion] - plain)[row.mask[completion]].max() > 0.01  # the trajectory keeps the filter's
    trainer.close()


def test_a_server_that_is_started_for_the_run_follows_the_trainer(train, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    server = {"vllm_mode": "server", "vllm_gpu_memory_utilization": 0.3, "server_args": "--max-num-seqs 32"}
    trainer, gaps, versions = train(max_steps=3, **server)
    assert max(gaps) < 1e-4
    assert versions == [{0}, {1}, {2}]
    (url,) = [endpoint.url for endpoint in trainer.policy._endpoints]
    assert is_healthy(url)
    trainer.close()
    assert not is_healthy(url, 1.0)
