"""Evaluations during a training on real vLLM servers: each token has the weights of the evaluation's step."""

import copy

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from peft import LoraConfig  # noqa: E402  (after the skip)
from transformers import TrainerCallback  # noqa: E402

from llm_envs.policies import start_servers  # noqa: E402
from llm_envs.policies.inference import token_logps  # noqa: E402
from llm_envs.rollout import read_trajectories  # noqa: E402
from llm_envs.trainers import EnvGRPOTrainer  # noqa: E402

LORA = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "4")


class KeepWeights(TrainerCallback):
    """Keeps the weights of each step."""

    def __init__(self):
        self.weights = {}

    def on_step_end(self, args, state, control, model, **_):
        self.weights[state.global_step] = copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("is_shared", [False, True], ids=["other servers", "an adapter on the training's servers"])
def test_each_token_has_the_weights_of_its_step(tiny_folder, config, keep, is_shared):
    args = ("--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "32", *(LORA if is_shared else ()))
    with start_servers(tiny_folder, 1, args=args, env={"VLLM_CPU_KVCACHE_SPACE": "1"}) as servers:
        settings = {"eval_strategy": "steps", "eval_steps": 2, "num_eval_seeds": 3, "max_steps": 5}
        settings |= {"learning_rate": 1e-2, "per_device_eval_batch_size": 8}
        if is_shared:
            settings |= {"use_vllm": True, "vllm_mode": "server", "vllm_server_urls": [*servers.urls]}
            settings |= {"lora_sync": "adapter"}
        else:
            settings |= {"eval_server_urls": [*servers.urls]}
        kept, adapter = KeepWeights(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        trainer = keep(
            EnvGRPOTrainer(
                tiny_folder,
                "test/Say-v0",
                config(**settings),
                peft_config=adapter if is_shared else None,
                callbacks=[kept],
            )
        )
        trainer.train()
        stored = read_trajectories(trainer._player.writer.path)
        played = [t for t in stored if t.env_kwargs["split"] == "test"]
        trainer.close()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_reward" in entry] == [2, 4, 5]
    assert len(played) == 3 * 12
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    for place, step in enumerate((2, 4, 5)):
        model.load_state_dict(kept.weights[step])
        gaps = [mean_gap(model, [t.rows[0] for t in played[start : start + 12]]) for start in (0, 12, 24)]
        assert gaps.pop(place) < 1e-4 < 1e-3 < min(gaps)


def mean_gap(model, rows):
    """Return how far the sampled log-probabilities are from the model's, in nats."""
    scored = token_logps(model, [row.ids for row in rows])
    return np.mean([np.abs(logps - row.logps)[row.mask].mean() for logps, row in zip(scored, rows, strict=True)])
