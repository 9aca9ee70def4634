"""Merged weights against adapters: bytes, seconds of an update, and tokens/s of an engine and a server.

    python benchmarks/lora_sync.py [--models NAME...] [--kinds KIND...] [--rank N] [--turns N] [--tokens N] [--rounds N]

Needs vLLM (on a CPU `VLLM_CPU_KVCACHE_SPACE=1`). The trainers' own engines get a LoRA of all linear layers. A round
changes B, sends it, and samples concurrent turns. Two engines in one process take turns, round by
round; servers are measured one after the other. The log-probabilities of a text are compared with the trained model's.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from measuring import Column, Figure, Report, finish, make_parser
from real_step import REAL_MODEL, load

from llm_envs.policies.vllm.adapters import n_adapter_bytes
from llm_envs.trainers.engines.engine_weights import engine_weights
from llm_envs.trainers.engines.probe import probe_ids, probe_logps
from llm_envs.trainers.engines.servers import ServerEngines, ServerSettings
from llm_envs.trainers.engines.weight_sync import ColocatedEngine
from llm_envs.types import SamplingParams

COLUMNS = [
    Column("model", "model"),
    Column("kind", "vLLM"),
    Column("sync", "lora_sync"),
    Column("mb", "MB sent", ".1f"),
    Column("update_s", "update, s", ".2f"),
    Column("tokens_per_s", "tokens/s", ".0f"),
    Column("gap", "largest gap to the trainer, nats", ".1g"),
]


def open_engine(kind: str, sync: Any, model: Any, tokenizer: Any, n_turns: int) -> ColocatedEngine:
    """Return an engine in this process, or a server."""
    from accelerate import Accelerator

    common: Any = {"seed": 0, "version": int, "max_model_length": 256, "lora_sync": sync}
    if kind == "server":
        settings = ServerSettings(server_args=f"--max-num-seqs {n_turns}")
        return ServerEngines(model, Accelerator(), tokenizer, settings=settings, max_concurrency=n_turns, **common)
    return ColocatedEngine(model, Accelerator(), tokenizer, gpu_memory_utilization=0.3, max_num_seqs=n_turns, **common)


def sample(policy: Any, n_turns: int, n_tokens: int, seed: int) -> int:
    """Sample concurrent turns; return the number of tokens."""
    params = SamplingParams(max_new_tokens=n_tokens, extra={"min_tokens": n_tokens})
    prompts = [np.arange(5 + n, 69 + n, dtype=np.int32) for n in range(n_turns)]

    async def run() -> int:
        asked = [policy.sample(ids, params, seed=seed + n, session=str(n)) for n, ids in enumerate(prompts)]
        return sum(len(turn.token_ids) for turn in await asyncio.gather(*asked))

    return asyncio.run(run())


def measure(name: str, kind: str, syncs: list[str], options: Any) -> list[dict[str, Any]]:
    """Return the rows of engines that take turns."""
    from peft import LoraConfig, get_peft_model

    base, tokenizer = load(name, options.dtype)
    base.name_or_path = name
    model = get_peft_model(base, LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear"))
    trained = [value for key, value in model.named_parameters() if "lora_B" in key]
    engines = {sync: open_engine(kind, sync, model, tokenizer, options.turns) for sync in syncs}
    found: dict[str, dict[str, list[float]]] = {sync: {"update_s": [], "tokens_per_s": [], "gap": []} for sync in syncs}
    ids = probe_ids(model)
    for round_ in range(options.rounds + 1):
        torch.manual_seed(round_)
        for value in trained:
            torch.nn.init.normal_(value, std=0.02)
        expected = probe_logps(model, ids)
        for sync, engine in engines.items():
            times = [time.perf_counter()]
            engine.sync_weights()
            times.append(time.perf_counter())
            n_tokens = sample(engine.policy, options.turns, options.tokens, round_)
            times.append(time.perf_counter())
            gap = float(np.abs(engine._score(ids) - expected)[1:].max())
            if round_:  # the first sends what has to be sent once, and checks
                for key, value in zip(
                    found[sync], (times[1] - times[0], n_tokens / (times[2] - times[1]), gap), strict=True
                ):
                    found[sync][key].append(value)
    n_bytes = {"merged": sum(value.nbytes for _, value in engine_weights(model)), "adapter": 0}
    if "adapter" in engines:
        n_bytes["adapter"] = n_adapter_bytes(engines["adapter"].policy.shelf.present.path)
    for engine in engines.values():
        engine.close()
    common = {"model": Path(name).name, "kind": kind}
    return [
        common
        | {"sync": sync, "mb": n_bytes[sync] / 1e6, "gap": max(values.pop("gap"))}
        | {key: statistics.median(value) for key, value in values.items()}
        for sync, values in found.items()
    ]


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--models", nargs="+", default=[REAL_MODEL])
    parser.add_argument("--kinds", nargs="+", choices=("engine", "server"), default=["engine", "server"])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=16, help="concurrent ones")
    parser.add_argument("--tokens", type=int, default=64, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        for kind in options.kinds:
            for syncs in [["merged", "adapter"]] if kind == "engine" else [["merged"], ["adapter"]]:
                with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
                    rows += pool.submit(measure, name, kind, syncs, options).result()
    method = (
        f"LoRA of rank {options.rank} on all linear layers, {options.dtype}; {options.turns} concurrent turns of "
        f"{options.tokens} tokens. Medians of {options.rounds} rounds. An update includes writing "
        "and loading. Eager: vLLM does not compile a model with adapters on a CPU."
    )
    figures = [
        Figure(f"{row['model']}: {row['kind']}, {row['sync']}: {key}", row[key], unit, better)
        for row in rows
        for key, unit, better in (("update_s", "s", "lower"), ("tokens_per_s", "tokens/s", "higher"))
    ]
    return finish(Report("lora_sync", "Adapters merged, and as such", method, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
