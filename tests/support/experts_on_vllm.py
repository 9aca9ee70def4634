"""Plays and trains a mixture of experts; prints differences of log-probabilities as JSON."""

import asyncio
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from dense_env import DenseEnv
from experts import tiny_experts

from llm_envs.policies import VLLMEnginePolicy, load_engine
from llm_envs.policies.inference import load_model, token_logps
from llm_envs.policies.vllm.formats import EXTENSION
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.types import SamplingParams

PROMPT = np.arange(4, 30, dtype=np.int32)


def change(model):
    """Change all weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def gap(policy, model):
    """The largest difference of what the policy reports for its tokens from the model's log-probabilities."""

    async def play():
        params = SamplingParams(max_new_tokens=12)
        return await asyncio.gather(*[policy.sample(PROMPT[i:], params, seed=i, session="") for i in range(8)])

    turns = asyncio.run(play())
    scored = token_logps(model, [np.concatenate([PROMPT[i:], turn.token_ids]) for i, turn in enumerate(turns)])
    return max(float(np.abs(a[-len(t.logps) :] - t.logps).max()) for a, t in zip(scored, turns, strict=True))


def trained(folder, **changes):
    """Train on vLLM; return the gaps of log-probabilities that were logged, and how far the experts moved at least."""
    settings = {
        "output_dir": str(folder / "out"),
        "use_vllm": True,
        "vllm_max_model_length": 192,
        "vllm_gpu_memory_utilization": 0.3,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "max_turn_tokens": 8,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "gradient_checkpointing": False,
        "use_cpu": True,
    }
    gym.register("test/Dense-v0", DenseEnv)  # replies of random weights differ in reward
    trainer = EnvGRPOTrainer(str(folder / "first"), "test/Dense-v0", EnvGRPOConfig(**settings | changes))
    trainer.train()
    trainer.close()
    logged = "sampling/sampling_logp_difference/max"
    start = load_model(folder / "first").state_dict()
    moved = [(v - start[n]).abs().max().item() for n, v in trainer.model.named_parameters() if "experts" in n]
    gaps = [entry[logged] for entry in trainer.state.log_history if logged in entry]
    return {"trainer": gaps, "experts moved": min(moved)}


def in_this_process(folder, model, tokenizer):
    """Follow updates by an engine in this process, as a server's worker would, and in a trainer."""
    llm = load_engine(folder / "first", dtype="float32", max_model_len=256, worker_extension_cls=EXTENSION)
    policy = VLLMEnginePolicy(llm, tokenizer)
    found = {"before": gap(policy, load_model(folder / "first")), "other weights": gap(policy, model), "updates": []}
    for version in (1, 2):
        policy.update_weights(model.named_parameters(), version)
        found["updates"].append(gap(policy, model))
        change(model)
    checkpoint = {"folder": str(folder / "second"), "whole_tag": "second", "deltas": []}
    llm.collective_rpc("llm_envs_bring_up", kwargs=checkpoint)
    llm.reset_prefix_cache()
    found["worker"] = gap(policy, load_model(folder / "second"))
    asyncio.run(policy.aclose())
    return found | trained(folder)


def main(folder, where):
    """Run one part: "process" or "server"."""
    model, tokenizer = tiny_experts(), tiny_tokenizer()
    for name in ("first", "second"):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        change(model)
    server = {"vllm_mode": "server", "server_args": "--max-num-seqs 32"}
    found = trained(folder, **server) if where == "server" else in_this_process(folder, model, tokenizer)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
