"""Stages `engine` and `adapters`: vLLM's own rate, and ways to train an adapter with an engine on the card."""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import rollout_vs_engine
import torch
from measuring import Column
from pages import MAX_LENGTH, pages_tokenizer
from peft import LoraConfig
from real_step import Clock
from stages import Plan, SkippedError, Stage, free_memory
from steps import Observed, make_model

from llm_envs.policies import load_engine, start_servers
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer

CONCURRENCY = 256
EPISODES, MICRO_BATCH, GROUP_SIZE = 256, 64, 8
WAYS: dict[str, dict[str, Any]] = {
    "the trainer's model": {},
    "vLLM, merged weights": {"use_vllm": True, "lora_sync": "merged"},
    "vLLM, adapter": {"use_vllm": True, "lora_sync": "adapter"},
    "vLLM, asleep between generations": {"use_vllm": True, "vllm_enable_sleep_mode": True},
    "a server on the card, merged weights": {"use_vllm": True, "vllm_mode": "server", "lora_sync": "merged"},
    "a server on the card, adapter": {"use_vllm": True, "vllm_mode": "server", "lora_sync": "adapter"},
    "a server on the card, async_generations=1": {"use_vllm": True, "vllm_mode": "server", "async_generations": 1},
}
"""Name of the sampling engine -> the trainer's settings."""


class Parts(Observed):
    """Times each step and its parts."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.parts = clock, list[dict[str, float]]()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        super().on_step_end(*args, **kwargs)
        self.parts.append(self.clock.take())


def measure_engine(plan: Plan) -> dict[str, Any]:
    """Measure the bare engine and the collector on it, by `rollout_vs_engine.py`."""
    need_vllm()
    n_episodes, concurrency = (4, 4) if plan.is_tiny else (2 * CONCURRENCY, CONCURRENCY)
    tokenizer = pages_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("tiny" if plan.is_tiny else "qwen-0.5b", _dtype(plan), vocabulary=len(tokenizer))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        n_parameters = model.num_parameters()
        del model
        free_memory()
        llm = load_engine(folder, dtype=_dtype(plan), max_model_len=MAX_LENGTH)
    row = rollout_vs_engine.measure(llm, n_episodes, 1 if plan.is_tiny else 3, concurrency)
    return row | {"parameters": n_parameters / 1e6, "step_ms": 1e3 * concurrency / row["bare_tokens_per_s"]}


def train(way: str, plan: Plan) -> dict[str, Any]:
    """Train an adapter for some steps; return what they took, without the first two."""
    known = {field.name for field in dataclasses.fields(EnvGRPOConfig)}
    # Without the setting, weights are always merged.
    settings = {key: value for key, value in WAYS[way].items() if key in known or value != "merged"}
    if settings.get("use_vllm"):
        need_vllm()
    if settings.get("vllm_enable_sleep_mode") and not torch.cuda.is_available():
        raise SkippedError("an engine sleeps only on CUDA")
    if missing := settings.keys() - known:
        raise SkippedError(f"EnvGRPOConfig has no {', '.join(missing)}")
    with model_folder(plan) as model, tempfile.TemporaryDirectory() as folder:
        is_served = settings.get("vllm_mode") == "server"
        server = ("--dtype", _dtype(plan), "--max-model-len", "1024", "--gpu-memory-utilization", "0.3")
        with start_servers(model, 1, args=server) if is_served else nullcontext() as servers:
            further: dict[str, Any] = {} if servers is None else {"vllm_server_urls": list(servers.urls)}
            if settings.get("use_vllm") and not is_served:
                further["vllm_max_model_length"] = 1024
            return _timed(EnvGRPOConfig(**_settings(folder, plan), **settings, **further), model)


def _timed(args: EnvGRPOConfig, model: Path) -> dict[str, Any]:
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = EnvGRPOTrainer(str(model), "llm/Calculator-v0", args, peft_config=adapter)
    clock = Clock()
    observed = Parts(clock)
    clock.follow(trainer._player, "play", "sampling")
    if args.use_vllm:
        clock.follow(trainer.vllm_generation, "sync_weights", "weights")
    trainer.add_callback(observed)
    trainer.train()
    row = {
        "parameters": sum(p.numel() for name, p in trainer.model.named_parameters() if "lora" not in name) / 1e6,
        "step_s": statistics.median(observed.seconds[2:]),
        "sampling_s": statistics.median(step.get("sampling", 0.0) for step in observed.parts[2:]),
        "weights_s": statistics.median(step.get("weights", 0.0) for step in observed.parts[2:]),
        "rewards": [log["reward"] for log in trainer.state.log_history if "reward" in log],
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        row["memory_gib"] = (total - free) / 2**30
    trainer.close()
    return row


def _settings(folder: str, plan: Plan) -> dict[str, Any]:
    episodes, micro_batch, tokens = (4, 4, 8) if plan.is_tiny else (EPISODES, MICRO_BATCH, 48)
    return {
        "output_dir": folder,
        "env_kwargs": {"difficulty": "easy" if plan.is_tiny else "medium"},
        "max_steps": 3 if plan.is_tiny else 6,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": episodes // micro_batch,
        "num_generations": 2 if plan.is_tiny else GROUP_SIZE,
        "max_turn_tokens": tokens,
        "max_completion_length": 4 * tokens,
        "max_concurrency": CONCURRENCY,
        "learning_rate": 1e-4,
        "gradient_checkpointing": False,
        "save_trajectories": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": _dtype(plan) == "bfloat16",
        "model_init_kwargs": {"dtype": _dtype(plan)},
        "seed": 0,
    }


@contextmanager
def model_folder(plan: Plan) -> Iterator[Path]:
    """Yield the folder of the pretrained model, or of a shape of random weights if it is missing."""
    if plan.model.is_dir() and not plan.is_tiny:
        yield plan.model
        return
    tokenizer = tiny_tokenizer()
    model = make_model("tiny" if plan.is_tiny else "qwen-0.5b", _dtype(plan), vocabulary=len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        free_memory()
        yield Path(folder)


def need_vllm() -> None:
    """Skip a case if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise SkippedError("vLLM is not installed")


def _dtype(plan: Plan) -> str:
    return "float32" if plan.is_tiny else "bfloat16"


def engine_cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the one case."""
    return {"qwen-0.5b": partial(measure_engine, plan)}


def adapter_cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return a case for each way."""
    return {way: partial(_apart, way, plan) for way in WAYS}


def _apart(way: str, plan: Plan) -> dict[str, Any]:
    """Measure a way; on a card in another process, since an engine keeps its memory until its process ends."""
    if not torch.cuda.is_available():
        return train(way, plan)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(train, way, plan).result()


STAGES = {
    "engine": Stage(
        "The engine by itself",
        f"`rollout_vs_engine.py` with {CONCURRENCY} concurrent conversations, random weights in bfloat16. *Bare*: a "
        "loop of `add_request` and `step`. *Step*: of the bare engine, for a token of each conversation.",
        [
            Column("case", "model"),
            Column("parameters", "parameters, M", ",.1f"),
            Column("bare_tokens_per_s", "bare, tokens/s", ",d"),
            Column("ours_tokens_per_s", "ours, tokens/s", ",d"),
            Column("share", "share", ".3f"),
            Column("step_ms", "step, ms", ".2f"),
        ],
        engine_cases,
    ),
    "adapters": Stage(
        "Adapters, sleep and playing ahead",
        f"GRPO with LoRA of rank 16 on `llm/Calculator-v0`, {EPISODES} episodes a step in micro-batches of "
        f"{MICRO_BATCH}. Medians of the steps after the second. *Sampling*: how long the trainer waited for episodes. "
        "*Weights*: for the engine to get them. Memory: of the card, at the end.",
        [
            Column("case", "what samples"),
            Column("parameters", "parameters, M", ",.1f"),
            Column("step_s", "step, s", ".2f"),
            Column("sampling_s", "sampling, s", ".2f"),
            Column("weights_s", "weights, s", ".3f"),
            Column("memory_gib", "memory, GiB", ".1f"),
        ],
        adapter_cases,
    ),
}
