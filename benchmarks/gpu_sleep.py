"""Memory of a GPU that a sleeping engine frees, and the seconds that sleep and waking take.

    python benchmarks/gpu_sleep.py [--models NAME...] [--rounds N] [--out FILE]

A vLLM engine of this process with `enable_sleep_mode=True` scores some texts, sleeps, wakes for a turn, sleeps again
and wakes for new weights, which are the same ones. The log-probabilities of the texts must stay as they were, bit for
bit. The models are those of `real_step.py`, in bfloat16.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Column, Figure, Report, finish, make_parser
from real_step import REAL_MODEL, SHAPE, load

from llm_envs.policies import VLLMEnginePolicy

COLUMNS = [
    Column("model", "model"),
    Column("awake_gib", "awake, GiB", ".2f"),
    Column("asleep_gib", "asleep, GiB", ".2f"),
    Column("sleep_s", "to sleep, s", ".2f"),
    Column("wake_s", "to wake for a turn, s", ".2f"),
    Column("weights_s", "to wake for weights, s", ".2f"),
    Column("difference", "largest difference of log-probabilities", ".2g"),
]


def used_gib() -> float:
    """Return how much of the GPU's memory is taken, in GiB."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def measure(name: str, dtype: str, n_rounds: int) -> dict[str, Any]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = load(name, dtype)
        weights = [(key, value.detach().clone()) for key, value in model.cpu().state_dict().items()]
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
        policy = VLLMEnginePolicy.from_pretrained(
            folder,
            dtype=dtype,
            enable_sleep_mode=True,
            max_model_len=1024,
            gpu_memory_utilization=0.3,
            enable_prefix_caching=False,
        )
    generator = np.random.default_rng(0)
    texts = [generator.integers(0, len(tokenizer), n).astype(np.int32) for n in (40, 200, 600)]
    score = lambda: np.concatenate(asyncio.run(policy.token_logps(texts)))  # noqa: E731
    first, again = score(), score()
    found: dict[str, list[float]] = {key: [] for key in ("awake_gib", "asleep_gib", "sleep_s", "wake_s", "weights_s")}
    worst = float(np.abs(first - again).max())

    def timed(key: str, run: Any) -> Any:
        started = time.perf_counter()
        result = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found[key].append(time.perf_counter() - started)
        return result

    scoring = min(_seconds(score) for _ in range(3))
    for round_ in range(n_rounds):
        found["awake_gib"].append(used_gib())
        timed("sleep_s", policy.free_memory)
        found["asleep_gib"].append(used_gib())
        worst = max(worst, float(np.abs(timed("wake_s", score) - first).max()))
        found["wake_s"][-1] -= scoring
        policy.free_memory()
        timed("weights_s", lambda version=round_ + 1: policy.update_weights(iter(weights), version))
        worst = max(worst, float(np.abs(score() - first).max()))
    asyncio.run(policy.aclose())
    return {"model": Path(name).name, "difference": worst} | {k: statistics.median(v) for k, v in found.items()}


def _seconds(run: Any) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--models", nargs="+", default=[REAL_MODEL, SHAPE])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:  # an engine each
        rows = [pool.submit(measure, name, options.dtype, options.rounds).result() for name in options.models]
    method = f"Medians of {options.rounds} rounds, {options.dtype}, 30% of the GPU for the engine."
    figures = [
        Figure(f"{row['model']}: change by sleep", row["difference"], "nats", "lower", at_most=0) for row in rows
    ]
    return finish(Report("gpu_sleep", "Sleep of the engine", method, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
