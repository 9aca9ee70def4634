"""From 1 to 2,048 concurrent episodes: episodes/s, tokens/s and memory, with a scripted policy and on a vLLM engine.

    python benchmarks/concurrency.py [--check] [--out FILE] [--policies async,thread,environment,vllm] [--most N]

All play the workload of `pages.py`: three calls of a tool that takes 50 ms on average (exponentially distributed), then
an answer. The first three have a scripted policy, which says its part at once, and a codec of bytes turns it into
tokens; they differ in what waits: an asynchronous tool, a plain one in a thread, or an environment that declares
`blocking` and so is stepped in a thread. On vLLM, with tools in threads, the model is a tiny one whose replies are
forced, so that the numbers are those of the collector and of the engine's own bookkeeping, and a request has its seed
and log-probabilities. A row has eight episodes for each concurrent one, so that its last episodes weigh little, and is
compared with the same episodes at zero latency. Memory is the highest resident set while a row is played, less what was
resident before. Without vLLM its rows are left out.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser
from pages import MAX_LENGTH, Book, Waiting, draw_latencies, forced_replies, make_pages_env, pages_tokenizer, save_model

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.testing import ByteCodec

SCRIPTED: dict[Waiting, str] = {
    "async": "scripted, asynchronous tools",
    "thread": "scripted, tools in threads",
    "environment": "scripted",
}
WIDTHS = {
    "async": (1, 8, 64, 256, 512, 2048),
    "thread": (1, 8, 64, 256, 512, 2048),
    "environment": (1, 8, 32, 64, 128, 256, 512, 2048),
    "vllm": (1, 8, 64, 256, 512),
}
"""Policy -> concurrent episodes."""
TURNS = 3
LATENCY_S = 0.05
ROUNDS = 8
"""Episodes of a row for each concurrent one."""
MIN_UNWAITED = 256
"""Episodes without waits, at least."""
METHOD = (
    "Episodes of three tool calls of 50 ms on average and an answer, so many at once, in all eight times as "
    "many. *Ideal* is the smaller of two rates: what the tools' waits alone would allow, and the same at zero latency. "
    "*Inline* is the rate without waits, threads or asynchronous tools. Scripted: a token a byte; tools that are "
    "asynchronous or have a thread during a call, or environments that declare `blocking` and have a thread. vLLM: "
    "tools in threads, a tiny model whose replies are forced, with a seed and log-probabilities for each request. "
    "Memory is how much the process grew at most while the row was played, trajectories included."
)
COLUMNS = [
    Column("policy", "policy"),
    Column("width", "at once"),
    Column("episodes", "episodes", ",d"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("ideal_per_s", "ideal", ",.1f"),
    Column("share", "share", ".2f"),
    Column("inline_per_s", "inline", ",.1f"),
    Column("tokens_per_s", "sampled tokens/s", ",.0f"),
    Column("memory_mib", "memory, MiB", ",.1f"),
]


def measure(policy: Any, codec: Any, name: str, width: int, waiting: Waiting) -> dict[str, Any]:
    """Play `ROUNDS` episodes for each of `width` concurrent ones, with latencies, with zero ones, and inline."""
    latencies = draw_latencies(ROUNDS * width, TURNS, LATENCY_S)
    row = play(policy, codec, width, Book(latencies, waiting))
    zeros = np.zeros((max(len(latencies), MIN_UNWAITED), TURNS))
    unwaited, inline = (play(policy, codec, width, Book(zeros, how))["episodes_per_s"] for how in (waiting, "inline"))
    ideal = min(width / (TURNS * LATENCY_S), unwaited)
    return {"policy": name, "ideal_per_s": ideal, "share": row["episodes_per_s"] / ideal, "inline_per_s": inline} | row


def play(policy: Any, codec: Any, width: int, book: Book) -> dict[str, Any]:
    """Play an episode for each row of latencies, `width` concurrently."""
    make, latencies = make_pages_env(book), book.latencies_s
    with Collector(make, policy, codec=codec, max_concurrency=width, progress=False) as collector:
        gc.collect()
        before = resident_mib()
        forget_peak()
        started = time.perf_counter()
        groups = collector.collect(len(latencies))
        seconds = time.perf_counter() - started
        memory_mib = peak_mib() - before
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [t.error or t.stop_reason for t in trajectories if not t.is_success]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(latencies)} episodes failed: {failed[0]}")
    return {
        "width": width,
        "episodes": len(latencies),
        "episodes_per_s": len(latencies) / seconds,
        "tokens_per_s": round(sum(int(t.rows[0].mask.sum()) for t in trajectories) / seconds),
        "memory_mib": round(memory_mib, 1),
    }


def measure_scripted(waiting: Waiting, widths: list[int]) -> list[dict[str, Any]]:
    codec = ByteCodec()
    measure(OraclePolicy(), codec, "", 2, waiting)
    return [measure(OraclePolicy(), codec, SCRIPTED[waiting], width, waiting) for width in widths]


def measure_vllm(widths: list[int]) -> list[dict[str, Any]]:
    from llm_envs.policies import VLLMEnginePolicy, load_engine

    tokenizer = pages_tokenizer()
    forced = forced_replies(tokenizer)
    forced.n_turns = TURNS  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch), tokenizer)
        settings = {"max_model_len": MAX_LENGTH, "max_num_seqs": max(WIDTHS["vllm"]), "logits_processors": [forced]}
        llm = load_engine(scratch, dtype="float32", enforce_eager=False, **settings)
    policy = VLLMEnginePolicy(llm, tokenizer)
    measure(policy, policy.codec, "vllm", 64, "thread")
    rows = []
    for width in widths:
        llm.reset_prefix_cache()
        rows.append(measure(policy, policy.codec, "vllm", width, "thread"))
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
    parser.add_argument("--policies", default=",".join(WIDTHS))
    parser.add_argument("--most", type=int, default=2048, help="the widest row")
    options = parser.parse_args()
    wanted = options.policies.split(",")
    if importlib.util.find_spec("vllm") is None:
        wanted = [name for name in wanted if name != "vllm"]
    rows: list[dict[str, Any]] = []
    for name in wanted:
        widths = [width for width in WIDTHS[name] if width <= options.most]
        rows += measure_vllm(widths) if name == "vllm" else measure_scripted(cast("Waiting", name), widths)
    figures = [Figure(f"{row['policy']}, {row['width']} at once", row["share"], "of the ideal") for row in rows]
    return finish(Report("concurrency", "Concurrent episodes", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
