"""From 1 to 512 concurrent episodes: episodes/s, tokens/s and memory, with a scripted policy and on a vLLM engine.

    python benchmarks/concurrency.py [--check] [--out FILE] [--policies scripted,vllm] [--most N]

Both play the workload of `pages.py`: three calls of a tool that takes 50 ms on average (exponentially distributed, in a
thread), then an answer. The scripted policy says its part at once, and a codec of bytes turns it into tokens. On vLLM
the model is a tiny one whose replies are forced, so that the numbers are those of the collector and of the engine's own
bookkeeping, and a request has its seed and log-probabilities. As many episodes are played as take some seconds; memory
is the highest resident set while they are, less what was resident before, for a row. Without vLLM those rows are left
out.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from measuring import Column, Figure, Report, finish, make_parser
from pages import MAX_LENGTH, Book, draw_latencies, forced_replies, make_pages_env, pages_tokenizer, save_model

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.testing import ByteCodec

WIDTHS = (1, 8, 32, 64, 128, 256, 512)
TURNS = 3
LATENCY_S = 0.05
MAX_ROUNDS = 8
"""Rounds of `width` episodes a row; fewer for wide ones, which are long enough."""
METHOD = (
    "Episodes of three tool calls of 50 ms on average and an answer, so many at once; *ideal* is what the tools' waits "
    "alone would allow. Scripted: the collector, a thread for each waiting tool, a token a byte. vLLM: a tiny model "
    "whose replies are forced, with a seed and log-probabilities for each request. Memory is how much the process grew "
    "at most while the row was played, trajectories included."
)
COLUMNS = [
    Column("policy", "policy"),
    Column("width", "at once"),
    Column("episodes", "episodes", ",d"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("ideal_per_s", "ideal", ",.1f"),
    Column("tokens_per_s", "sampled tokens/s", ",.0f"),
    Column("memory_mib", "memory, MiB", ",.1f"),
]


def measure(policy: Any, codec: Any, name: str, width: int) -> dict[str, Any]:
    """Play some rounds of `width` episodes at once."""
    n_episodes = max(width, min(MAX_ROUNDS * width, 512))
    latencies = draw_latencies(n_episodes, TURNS, LATENCY_S)
    book = Book(latencies)
    with Collector(make_pages_env(book), policy, codec=codec, max_concurrency=width, progress=False) as collector:
        gc.collect()
        before = resident_mib()
        forget_peak()
        started = time.perf_counter()
        groups = collector.collect(n_episodes)
        seconds = time.perf_counter() - started
        memory_mib = peak_mib() - before
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [t.error or t.stop_reason for t in trajectories if not t.is_success]
    if failed:
        raise SystemExit(f"{len(failed)} of {n_episodes} episodes failed: {failed[0]}")
    ideal_s = max(latencies.sum() / width, latencies.sum(axis=1).max())
    return {
        "policy": name,
        "width": width,
        "episodes": n_episodes,
        "episodes_per_s": round(n_episodes / seconds, 2),
        "ideal_per_s": round(n_episodes / ideal_s, 2),
        "tokens_per_s": round(sum(int(t.rows[0].mask.sum()) for t in trajectories) / seconds),
        "memory_mib": round(memory_mib, 1),
    }


def measure_scripted(widths: list[int]) -> list[dict[str, Any]]:
    codec = ByteCodec()
    measure(OraclePolicy(), codec, "scripted", 2)
    return [measure(OraclePolicy(), codec, "scripted", width) for width in widths]


def measure_vllm(widths: list[int]) -> list[dict[str, Any]]:
    from llm_envs.policies import VLLMEnginePolicy, load_engine

    tokenizer = pages_tokenizer()
    forced = forced_replies(tokenizer)
    forced.n_turns = TURNS  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch), tokenizer)
        settings = {"max_model_len": MAX_LENGTH, "max_num_seqs": max(WIDTHS), "logits_processors": [forced]}
        llm = load_engine(scratch, dtype="float32", enforce_eager=False, **settings)
    policy = VLLMEnginePolicy(llm, tokenizer)
    measure(policy, policy.codec, "vllm", 64)
    rows = []
    for width in widths:
        llm.reset_prefix_cache()
        rows.append(measure(policy, policy.codec, "vllm", width))
    return rows


def resident_mib() -> float:
    """Return what of the process is in memory now."""
    return _status("VmRSS")


def peak_mib() -> float:
    """Return the most that was, since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Begin the peak anew, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(key: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.nan
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--policies", default="scripted,vllm")
    parser.add_argument("--most", type=int, default=max(WIDTHS), help="the widest row")
    options = parser.parse_args()
    widths = [width for width in WIDTHS if width <= options.most]
    ways: dict[str, Callable[[list[int]], list[dict[str, Any]]]] = {"scripted": measure_scripted, "vllm": measure_vllm}
    wanted = options.policies.split(",")
    if importlib.util.find_spec("vllm") is None:
        wanted = [name for name in wanted if name != "vllm"]
    rows = [row for name in wanted for row in ways[name](widths)]
    figures = [Figure(f"{row['policy']}, {row['width']} at once", row["episodes_per_s"], "episodes/s") for row in rows]
    return finish(Report("concurrency", "Concurrent episodes", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
