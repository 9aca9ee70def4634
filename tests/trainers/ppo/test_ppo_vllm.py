"""EnvPPOTrainer with a real vLLM engine in the same process: it learns, and the engine is handed the policy alone."""

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from trainings import DENSE, QUIET  # noqa: E402  (after the skip)

from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer  # noqa: E402


def test_the_reward_rises_and_the_engine_follows_the_policy(tiny_folder, tmp_path):
    """Seeds fixed in advance; the untrained model earns 1.3 of 2."""
    args = EnvPPOConfig(
        output_dir=str(tmp_path),
        max_steps=24,
        per_device_train_batch_size=32,
        max_completion_length=80,
        max_turn_tokens=1,
        learning_rate=6e-3,
        value_learning_rate=1e-2,
        lr_scheduler_type="constant",
        num_train_seeds=64,
        **QUIET,
        use_vllm=True,
        vllm_max_model_length=192,
        vllm_gpu_memory_utilization=0.3,
    )
    trainer = EnvPPOTrainer(tiny_folder, DENSE, args)
    handed = []
    update = trainer.policy.update_weights

    def keep(named_parameters, version):
        named = list(named_parameters)
        handed.append({name for name, _ in named})
        update(iter(named), version)

    trainer.policy.update_weights = keep
    try:
        trainer.train()
        rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
        assert np.mean(rewards[:4]) < 1.4
        assert np.mean(rewards[-4:]) > 1.6
        assert trainer.critic.head.weight.abs().max() > 1e-3
        assert len(handed) == 24
        assert set.union(*handed) <= dict(load_model(tiny_folder).named_parameters()).keys()
        trainer.vllm_generation.sync_weights()
        sample = trainer.play_sample()
        model = trainer.accelerator.unwrap_model(trainer.model).eval()
        for episode in sample:
            (scored,) = token_logps(model, [episode.rows[0].ids])
            assert np.abs(scored - episode.rows[0].logps)[episode.rows[0].mask].max() < 1e-4
    finally:
        trainer.close()
