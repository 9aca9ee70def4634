"""What one process can play and write: its CPU time for a turn on a model server, and the writer's rate.

    python benchmarks/playing.py [--check] [--out FILE] [--episodes N] [--parts server,writer,weights]

*Server*: the workload of `pages.py` on one vLLM server with a model of half a million random parameters, tools of 0 ms,
64 episodes at once. Only the CPU time of this process counts: encoding, HTTP, parsing, the environment and the
trajectory; the server is another process. A long prompt shows what a turn costs for each token of its context.
*Writer*: `TrajectoryWriter.write` of one trajectory again and again, its compacting included. *Weights*: a delta of
134 MB of bfloat16 weights in which one element in a hundred differs. Needs vLLM for the first part (on a CPU
`VLLM_CPU_KVCACHE_SPACE=1`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import pages
from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.policies import OraclePolicy, start_servers
from llm_envs.rollout import Collector, RolloutLimits, TrajectoryWriter
from llm_envs.testing import ByteCodec
from llm_envs.types import SamplingParams

METHOD = (
    "*Turns*: the CPU time of the process that plays, on one vLLM server, for a turn of 16 tokens whose episode has so "
    "many tokens in its context; environments answer at once, 64 episodes at once. *Written*: "
    "`TrajectoryWriter.write`, with compacting, for episodes of so many tokens; MB are those of the log. *Delta*: of "
    "bfloat16 weights in which one element in a hundred differs; MB are those of all weights."
)
COLUMNS = [
    Column("part", "part"),
    Column("context", "tokens", ",.0f"),
    Column("n", "number", ",d"),
    Column("cpu_us", "µs of CPU each", ",.0f"),
    Column("per_s", "each s", ",.0f"),
    Column("mb_per_s", "MB/s", ",.1f"),
]
TURNS = 4
WIDTH = 64


def measure_turns(policy: Any, n_episodes: int, n_words: int) -> dict[str, Any]:
    """Return the CPU time of a turn whose first prompt is longer by some words."""
    pages.PagesEnv.prompt = lambda self: pages.QUESTION + " wait" * n_words  # type: ignore[method-assign]
    book = pages.Book(np.zeros((n_episodes, TURNS)))
    sampling = SamplingParams(max_new_tokens=16, extra={"min_tokens": 16})
    limits = RolloutLimits(max_turns=TURNS)
    shared: dict[str, Any] = {"codec": policy.codec, "sampling": sampling, "limits": limits, "max_concurrency": WIDTH}
    with Collector(pages.make_pages_env(book), policy, progress=False, **shared) as collector:
        collector.collect(WIDTH)
        started = time.process_time()
        groups = collector.collect(n_episodes)
        seconds = time.process_time() - started
    played = [trajectory for group in groups for trajectory in group.trajectories]
    if failed := [trajectory.error for trajectory in played if trajectory.error is not None]:
        raise SystemExit(f"{len(failed)} of {n_episodes} episodes failed: {failed[0]}")
    n_turns = sum(len(trajectory.turns) for trajectory in played)
    context = float(np.mean([start for t in played for row in t.rows for start, _ in row.spans]))
    return {"part": "turns", "context": context, "n": n_turns, "cpu_us": 1e6 * seconds / n_turns}


def measure_writer(n_episodes: int, n_tokens: int) -> dict[str, Any]:
    """Return the rate of writing one trajectory of about so many tokens."""
    book = pages.Book(np.zeros((1, max(1, n_tokens // 400))))
    with Collector(pages.make_pages_env(book), OraclePolicy(), codec=ByteCodec(), progress=False) as collector:
        (group,) = collector.collect(1)
    (one,) = group.trajectories
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), time.process_time()
        writer = TrajectoryWriter(Path(folder) / "run")
        for number in range(n_episodes):
            writer.write(replace(one, group_id=str(number)))
        n_bytes = n_episodes * sum(path.stat().st_size for path in (Path(folder) / "run").glob("*.jsonl"))
        n_bytes //= max(1, n_episodes)
        writer.close()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    row = {"part": "written", "context": float(len(one.rows[0].ids)), "n": n_episodes, "cpu_us": 1e6 * cpu / n_episodes}
    return row | {"per_s": n_episodes / seconds, "mb_per_s": n_bytes / 1e6 / seconds}


def measure_weights() -> list[dict[str, Any]]:
    """Return the rates of making and applying a delta."""
    import torch

    from llm_envs.policies.vllm.deltas import apply_delta, encode_delta

    old = {f"layer.{i}": torch.randn(2**23).bfloat16() for i in range(8)}
    new = {name: values.clone() for name, values in old.items()}
    for values in new.values():
        values[::100] *= 1.01
    n_mb = sum(2 * len(values) for values in old.values()) / 1e6
    encode_delta(old, new)
    started = time.perf_counter()
    data = encode_delta(old, new)
    between = time.perf_counter()
    assert data is not None
    apply_delta(old, data)
    times = {"delta, made": between - started, "delta, applied": time.perf_counter() - between}
    return [
        {"part": name, "n": 1, "cpu_us": 1e6 * s, "per_s": 1 / s, "mb_per_s": n_mb / s} for name, s in times.items()
    ]


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--parts", default="server,writer,weights")
    options = parser.parse_args()
    rows, parts = [], options.parts.split(",")
    if "writer" in parts:
        rows += [measure_writer(options.episodes * 4, 500), measure_writer(options.episodes // 4, 16_000)]
    if "weights" in parts:
        rows += measure_weights()
    if "server" in parts and importlib.util.find_spec("vllm") is not None:
        from llm_envs.policies import VLLMServerPolicy

        tokenizer = pages.pages_tokenizer()
        with tempfile.TemporaryDirectory() as scratch:
            pages.save_model(Path(scratch), tokenizer)
            args = ("--dtype", "float32", "--max-model-len", str(pages.MAX_LENGTH), "--max-num-seqs", str(WIDTH))
            with start_servers(scratch, 1, args=args) as servers:
                policy = VLLMServerPolicy(servers.urls, tokenizer, max_concurrency=WIDTH)
                rows += [measure_turns(policy, options.episodes, n_words) for n_words in (0, 250)]
    for row in rows:
        row.setdefault("per_s", 1e6 / row["cpu_us"])
    figures = [
        Figure(f"{row['part']}, {row.get('context', 0):.0f} tokens", row["cpu_us"], "µs of CPU", "lower")
        for row in rows
    ]
    return finish(Report("playing", "One process", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
