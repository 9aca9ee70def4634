"""Stages `step` and `profile`: a training step on made-up rows, ours as a prefix tree and padded, and TRL's."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from grpo_step import make_generation, our_trainer, trls_trainer
from measuring import Column
from observing import HostReads, peak_flops, summarise, traced
from stages import Plan, Stage
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, TrainerCallback
from transformers.utils import is_flash_attn_2_available

from llm_envs.tiny_model import tiny_tokenizer

SHAPES = {
    "qwen-0.5b": (896, 4864, 24, 14, 2, 151_936),
    "qwen-1.5b": (1536, 8960, 28, 12, 2, 151_936),
    "tiny": (64, 128, 2, 2, 2, 512),
}
"""Name -> width, inner width, layers, heads, key-value heads, vocabulary. Qwen2.5's, of random weights."""
SIDES = ("TRL", "padded", "prefix_tree")
WARM_UP, TIMED = 2, 3
METHOD = (
    "GRPO on 32 made-up rows in groups of 4, of 900 tokens on average and two turns each, in micro-batches of 8; the "
    "prompts take a quarter. Random weights, all of them trained, AdamW, no gradient checkpointing. Nothing is "
    "played: scoring, losses, backward passes and the optimizer. Medians of 3 steps after 2. Memory is the highest "
    "that torch had allocated. "
)


class Observed(TrainerCallback):
    """Times each step, and enters a context around some of them."""

    def __init__(self, contexts: Mapping[int, AbstractContextManager[Any]] | None = None) -> None:
        self.contexts = contexts or {}
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if context := self.contexts.get(state.global_step):
            context.__enter__()
        self.started = now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(now() - self.started)
        if context := self.contexts.get(state.global_step - 1):
            context.__exit__(None, None, None)


def now() -> float:
    """Return the time when all that was asked of the card is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def make_model(shape: str, dtype: str, attention: str = "sdpa", vocabulary: int | None = None) -> PreTrainedModel:
    """Return a model of random weights."""
    width, inner, layers, heads, kv_heads, n_tokens = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocabulary or n_tokens,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    settings = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # billions of random numbers
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **settings)
    return model


def train(
    shape: str, dtype: str, attention: str, side: str, plan: Plan, contexts: Mapping[int, Any] | None = None
) -> dict[str, Any]:
    """Take some steps; return what they took. Each of `contexts` is around the step of its number."""
    tokenizer, model = tiny_tokenizer(), make_model(shape, dtype, attention)
    n_steps = WARM_UP + (1 if plan.is_tiny else TIMED) + len(contexts or {})
    n_rows, scale, micro_batch = (8, 1, 4) if plan.is_tiny else (32, 6, 8)
    random = np.random.default_rng(0)
    played = [make_generation(random, len(tokenizer), step, n_rows, scale) for step in range(n_steps)]
    changes: dict[str, Any] = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": n_rows // micro_batch,
        "max_completion_length": 160 * scale,
        "bf16": dtype == "bfloat16",
        "use_cpu": not torch.cuda.is_available(),
    }
    make = trls_trainer if side == "TRL" else partial(our_trainer, forward=side)
    timed = Observed(contexts)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(model, tokenizer, folder, played, **changes)
        trainer.add_callback(timed)
        trainer.train()
        if side != "TRL":
            trainer.close()
    seconds = statistics.median(timed.seconds[WARM_UP : n_steps - len(contexts or {})])
    n_tokens = sum(len(row) for trajectory in played[-1] for row in trajectory.rows)
    row = {"shape": shape, "dtype": dtype, "attention": attention, "side": side, "step_s": seconds}
    row |= {"parameters": model.num_parameters() / 1e6, "tokens": n_tokens, "tokens_per_s": n_tokens / seconds}
    if torch.cuda.is_available():
        row["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return row


def observe(shape: str, dtype: str, side: str, plan: Plan) -> dict[str, Any]:
    """Take some steps and look into three more: by the profiler, by counting operations, and by counting waits."""
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
    profile, operations, reads = torch_profile(activities=activities), FlopCounterMode(display=False), HostReads()
    first = WARM_UP + (1 if plan.is_tiny else TIMED)
    row = train(shape, dtype, "sdpa", side, plan, {first: profile, first + 1: operations, first + 2: reads})
    row |= summarise(traced(profile))
    row["tera_operations"] = operations.get_total_flops() / 1e12
    row["host_reads"] = reads.counts.total()
    peak = peak_flops(torch.cuda.get_device_name(), dtype) if torch.cuda.is_available() else None
    row["of_peak"] = "unknown" if peak is None else operations.get_total_flops() / row["step_s"] / peak
    return row


def step_cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return a case for each shape, dtype, attention and trainer; what is worth most comes first."""
    flash = ["flash_attention_2"] * (torch.cuda.is_available() and is_flash_attn_2_available())
    return {
        f"{shape}, {dtype}, {attention}, {side}": partial(train, shape, dtype, attention, side, plan)
        for dtype in ("bfloat16", "float32")
        for shape in _shapes(plan)
        for attention in ("sdpa", *(flash if dtype == "bfloat16" else []))
        for side in SIDES
    }


def profile_cases(plan: Plan) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return a case for each shape and trainer."""
    return {
        f"{shape}, {side}": partial(observe, shape, "float32" if plan.is_tiny else "bfloat16", side, plan)
        for shape in _shapes(plan)
        for side in SIDES
    }


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Set each step against TRL's with the same model."""
    for row in rows:
        for other in rows:
            alike = all(row.get(key) == other.get(key) for key in ("shape", "dtype", "attention"))
            if alike and other.get("side") == "TRL" and "step_s" in row:
                row["of_trl"] = row["step_s"] / other["step_s"]


def _shapes(plan: Plan) -> list[str]:
    return ["tiny"] if plan.is_tiny else ["qwen-0.5b", "qwen-1.5b"]


COLUMNS = [
    Column("case", "case"),
    Column("parameters", "parameters, M", ",.1f"),
    Column("step_s", "step, s", ".3f"),
    Column("of_trl", "of TRL's", ".2f"),
]
STAGES = {
    "step": Stage(
        "A training step against TRL's",
        METHOD,
        [*COLUMNS, Column("tokens_per_s", "tokens/s", ",.0f"), Column("memory_gib", "memory, GiB", ".1f")],
        step_cases,
        add_ratios,
    ),
    "profile": Stage(
        "Inside a step",
        METHOD + "*Tensor cores*: their kernels' share of all kernels' time, by name. *Idle*: the share of the time "
        "from the first kernel to the last in which none ran. *Operations* are counted by torch, without operations in "
        "other packages' kernels. *Waits*: calls of CUDA in which the host waited. *Reads*: calls in which Python "
        "needed the values of a tensor, counted on any device.",
        [
            *COLUMNS,
            Column("kernels", "kernels", ",d"),
            Column("tensor_core_share", "tensor cores", ".0%"),
            Column("idle_share", "idle", ".0%"),
            Column("tera_operations", "operations, 1e12", ",.4g"),
            Column("of_peak", "of the peak", ".0%"),
            Column("waits", "waits", ",d"),
            Column("host_reads", "reads", ",d"),
        ],
        profile_cases,
        add_ratios,
    ),
}
