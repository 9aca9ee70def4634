"""Stage `learning`: `examples/demo.py`'s warm-up and GRPO with settings for a card, and the curve of its rewards."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import Column
from peft import LoraConfig
from stages import Plan, SkippedError, Stage
from transformers import PrinterCallback, TrainerCallback

from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.tracking import jsonl_logger
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer
from llm_envs.trainers.callbacks import LoggerCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import demo

CURVE = ("reward", "env/success", "env/tool_calls", "entropy", "sampling/guard_logps_gap")
TINY = {"level": "easy", "traces": 8, "sft_steps": 1, "sft_batch": 4, "eval_episodes": 4}
CARD = {"level": "medium", "traces": 256, "sft_steps": 16, "sft_batch": 16, "eval_episodes": 256}


class Curve(TrainerCallback):
    """Keeps what each step logged, with the seconds since the first began."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" in logs:
            point = {"step": state.global_step, "seconds": round(time.perf_counter() - self.started, 2)}
            self.points.append(point | {key: round(float(logs[key]), 5) for key in CURVE if key in logs})


def warm_up(plan: Plan) -> dict[str, Any]:
    """Train on traces of mixed quality, and measure on the test split."""
    args = _arguments(plan)
    if plan.is_tiny:
        model, tokenizer = demo.make_model(args)
    elif plan.model.is_dir():
        model, tokenizer = load_model(plan.model, dtype="float32"), load_tokenizer(plan.model)
    else:
        raise SkippedError(f"{plan.model} is missing: make real-model, or --model")
    started = time.perf_counter()
    plan.folder.mkdir(parents=True, exist_ok=True)
    demo.warm_up(model, tokenizer, plan.folder, args)
    seconds = time.perf_counter() - started
    model.save_pretrained(plan.folder / "warm")
    tokenizer.save_pretrained(plan.folder / "warm")
    return {"seconds": seconds, "steps": args.sft_steps} | _measured("warm", plan)


def reinforce(plan: Plan) -> dict[str, Any]:
    """Train an adapter by GRPO, and measure on the test split."""
    if not (plan.folder / "warm").is_dir():
        raise SkippedError("the warm-up left no model")
    curve, metrics = Curve(), plan.folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = EnvGRPOTrainer(
        str(plan.folder / "warm"),
        demo.ENV,
        EnvGRPOConfig(**_settings(plan)),
        callbacks=[LoggerCallback(jsonl_logger(metrics)), curve],
        peft_config=adapter,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trained = trainer.accelerator.unwrap_model(trainer.model)
    trained.merge_and_unload().save_pretrained(plan.folder / "model")
    trainer.processing_class.save_pretrained(plan.folder / "model")
    trainer.close()
    points = curve.points
    row = {"seconds": points[-1]["seconds"], "steps": len(points), "curve": points}
    row |= {"first_reward": points[0]["reward"], "last_reward": points[-1]["reward"]}
    return row | _measured("model", plan)


def _measured(name: str, plan: Plan) -> dict[str, Any]:
    result = demo.measure(name, plan.folder / name, _arguments(plan))
    low, high = result.interval
    return {"success": result.success_rate, "low": low, "high": high, "problems": result.n}


def _arguments(plan: Plan) -> argparse.Namespace:
    settings = demo.TINY | TINY if plan.is_tiny else demo.PRETRAINED | CARD
    return argparse.Namespace(**settings, seed=0, model=None if plan.is_tiny else plan.model)


def _settings(plan: Plan) -> dict[str, Any]:
    groups, members, micro_batch, tokens, steps = (2, 2, 4, 8, 2) if plan.is_tiny else (32, 8, 64, 48, 24)
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    use_vllm = importlib.util.find_spec("vllm") is not None
    vllm = {"use_vllm": True, "vllm_max_model_length": 1024, "vllm_enable_sleep_mode": torch.cuda.is_available()}
    return {
        "output_dir": str(plan.folder / "grpo"),
        "env_kwargs": {"difficulty": _arguments(plan).level},
        "max_steps": steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": groups * members // micro_batch,
        "num_generations": members,
        "max_turn_tokens": tokens,
        "max_completion_length": 4 * tokens,
        "max_concurrency": 256,
        "learning_rate": 3e-4,
        "lr_scheduler_type": "linear",
        "gradient_checkpointing": False,
        "save_trajectories": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": dtype},
        "bf16": dtype == "bfloat16",
        "seed": 0,
        **(vllm if use_vllm else {}),
    }


def cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the two halves; the second begins with the first's model."""
    return {"warm-up": partial(warm_up, plan), "GRPO": partial(reinforce, plan)}


STAGES = {
    "learning": Stage(
        "A training",
        "`llm/Calculator-v0` (medium): SFT on 256 traces, half of them with calls of the calculator, then GRPO with "
        "LoRA of rank 16 on a bfloat16 base, 256 episodes a step, sampled by vLLM in the process, which sleeps while "
        "the trainer steps. *Success* on problems of the test split, with its 95% interval. The JSON has the curve.",
        [
            Column("case", "phase"),
            Column("steps", "steps"),
            Column("seconds", "seconds", ".0f"),
            Column("first_reward", "first reward", ".2f"),
            Column("last_reward", "last reward", ".2f"),
            Column("problems", "problems"),
            Column("success", "success", ".1%"),
            Column("low", "from", ".1%"),
            Column("high", "to", ".1%"),
        ],
        cases,
    )
}
