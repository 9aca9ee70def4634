"""`max_concurrency="auto"` against every fixed number of concurrent episodes, on three workloads.

    python benchmarks/auto_concurrency.py [--check] [--out FILE] [--workloads NAME ...] [--rounds N]

All three play the workload of `pages.py`: three calls of a tool, then an answer. "waiting": a scripted policy, tools of
50 ms. "engine": a tiny model on vLLM with forced replies, tools of 50 ms. "cache": the same without waits, and an
engine with a small cache. Throughputs are those of the second half of a run, after auto's search and with all episodes
under way; the whole run is given besides. The numbers take turns in each round, and the figure is the median over the
rounds of auto's throughput relative to the best number of that round.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from measuring import Column, Figure, Report, finish, make_parser
from pages import MAX_LENGTH, Book, draw_latencies, forced_replies, make_pages_env, pages_tokenizer, save_model

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.rollout.concurrency import HIGHEST
from llm_envs.testing import ByteCodec

WIDTHS: tuple[Any, ...] = (16, 64, 128, 256, 512, "auto")
TURNS = 3
LATENCY_S = {"waiting": 0.05, "engine": 0.05, "cache": 0.0}
N_EPISODES = {"waiting": 512, "engine": 256, "cache": 256}
WIDE = 128
MORE = 10
"""How many times as many episodes a run has from `WIDE` episodes at once on, and with auto."""
CACHE_BLOCKS = 640
METHOD = (
    "Episodes of three tool calls and an answer. *Waiting*: a scripted policy, tools of 50 ms on average. *Engine*: a "
    "tiny model on vLLM with forced replies, the same tools. *Cache*: no waits, and an engine with a small cache. "
    "`auto` begins at 16. Throughputs are those of the second half of a run; *whole* includes the search. Medians over "
    "the rounds; the last column is relative to the best fixed number of each round."
)
COLUMNS = [
    Column("workload", "workload"),
    Column("width", "at once"),
    Column("ended", "at the end"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("whole_per_s", "whole", ",.1f"),
    Column("preempted", "turns preempted", ",d"),
    Column("ratio", "of the best", ".2f"),
]


def measure(workload: str, policy: Any, codec: Any, width: Any) -> dict[str, Any]:
    """Play a workload's episodes, so many at once."""
    n_episodes = N_EPISODES[workload] * (MORE if width == "auto" or width >= WIDE else 1)
    book = Book(draw_latencies(n_episodes, TURNS, LATENCY_S[workload]))
    times: list[float] = []

    def note(trajectory: Any) -> None:
        if not trajectory.is_success:
            raise SystemExit(f"an episode failed: {trajectory.error or trajectory.stop_reason}")
        times.append(time.perf_counter())

    started, before = time.perf_counter(), getattr(policy, "_n_preemptions", 0)
    with Collector(
        make_pages_env(book), policy, codec=codec, max_concurrency=width, progress=False, on_trajectory=note
    ) as collector:
        collector.play_each([[spec] for spec in collector.source.take(n_episodes)])
        ended = collector.max_concurrency
    half = n_episodes // 2
    return {
        "workload": workload,
        "width": width,
        "ended": ended,
        "episodes_per_s": (n_episodes - half) / (times[-1] - times[half - 1]),
        "whole_per_s": n_episodes / (times[-1] - started),
        "preempted": getattr(policy, "_n_preemptions", 0) - before,
    }


@contextmanager
def policy_for(workload: str) -> Iterator[tuple[Any, Any]]:
    """Yield a workload's policy and its codec."""
    if workload == "waiting":
        yield OraclePolicy(), ByteCodec()
        return
    from llm_envs.policies import VLLMEnginePolicy, load_engine

    tokenizer = pages_tokenizer()
    forced = forced_replies(tokenizer)
    forced.n_turns = TURNS  # type: ignore[attr-defined]
    settings: dict[str, Any] = {"max_model_len": MAX_LENGTH, "max_num_seqs": HIGHEST, "logits_processors": [forced]}
    if workload == "cache":
        settings |= {"num_gpu_blocks_override": CACHE_BLOCKS, "block_size": 32}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch), tokenizer)
        policy = VLLMEnginePolicy(load_engine(scratch, dtype="float32", **settings), tokenizer)
    yield policy, policy.codec


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--workloads", nargs="+", choices=LATENCY_S, default=list(LATENCY_S))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    has_vllm = importlib.util.find_spec("vllm") is not None
    rows, figures = [], []
    for workload in options.workloads:
        if workload != "waiting" and not has_vllm:
            continue
        with policy_for(workload) as (policy, codec):
            measure(workload, policy, codec, 64)
            rounds = []
            for _ in range(options.rounds):
                rounds.append([measure(workload, policy, codec, width) for width in WIDTHS])
                print(*(f"{row['width']}: {row['episodes_per_s']:.1f}" for row in rounds[-1]), flush=True)
        ratios = []
        for per_width in zip(*rounds, strict=True):
            best = [max(row["episodes_per_s"] for row in each[:-1]) for each in rounds]
            of_best = [row["episodes_per_s"] / most for row, most in zip(per_width, best, strict=True)]
            numbers = {
                key: statistics.median(row[key] for row in per_width)
                for key in ("ended", "episodes_per_s", "whole_per_s", "preempted")
            }
            ratios.append(statistics.median(of_best))
            whole = {key: round(number) for key, number in numbers.items() if key in ("ended", "preempted")}
            rows.append(per_width[0] | numbers | whole | {"ratio": round(ratios[-1], 3)})
        figures.append(Figure(f"{workload}, auto against the best", ratios[-1], "times", at_least=0.9))
    report = Report("auto_concurrency", "Concurrency that tunes itself", METHOD, COLUMNS, rows, figures)
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
