"""The collector's own cost: a scripted policy of 50 ms latency, 32 episodes at once, against the ideal.

    python benchmarks/collector_scripted.py [--check] [--out FILE] [--episodes N]

A single-turn task with an oracle that waits: N episodes cannot take less than ceil(N / concurrency) × latency. The
ideal at the default setting is 640 episodes/s. Each row is the best of a few rounds, the checked one of up to twelve
until the target is held: the clock is the wall's, and what else the machine does only slows a round down. (asyncio's
own timers, rounded up to a millisecond, cost about 1% of the ideal; they are in the numbers.) With a codec, token rows
are written as well; with a writer, every trajectory goes to disk. Two last rows without latency measure the CPU time of
an episode, and of a span of OpenTelemetry (medians over rounds that take turns with untraced ones).
With `--check` the exit code is 1 if the default row is below 0.95 of the ideal.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from llm_envs.policies import OraclePolicy, with_latency
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.testing import ByteCodec
from llm_envs.tracking import tracing

ENV_ID = "llm/Arithmetic-v0"
LATENCY_S = 0.05
CONCURRENCY = 32
TARGET = 0.95
ROUNDS = 3
MAX_ROUNDS = 12
"""Of the row that is checked: a machine that does other work meanwhile has a quiet moment sooner or later."""
METHOD = (
    "A single-turn task and an oracle that waits 50 ms: so many episodes at once cannot do more than the ideal. The "
    "last row, without latency, is the CPU time of one episode of `llm/Arithmetic-v0`, tokens written."
)
COLUMNS = [
    Column("setting", "setting"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("ideal_per_s", "ideal", ",.0f"),
    Column("share_of_ideal", "share", ".3f"),
    Column("cpu_us_per_episode", "µs of CPU an episode", ".1f"),
    Column("span_us", "µs of CPU a span", ".1f"),
]


def measure(
    n_episodes: int, *, concurrency: int = CONCURRENCY, tokens: bool = False, stored: bool = False, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Collect `n_episodes` with latency, and return rates and the share of the ideal."""
    ideal_s = math.ceil(n_episodes / concurrency) * LATENCY_S
    seconds = math.inf
    for index in range(rounds):
        seconds = min(seconds, _collect(n_episodes, LATENCY_S, concurrency, tokens, stored))
        if index + 1 >= ROUNDS and ideal_s / seconds >= TARGET:
            break
    return {
        "setting": f"{concurrency} at once" + ", tokens" * tokens + ", stored" * stored,
        "episodes": n_episodes,
        "seconds": round(seconds, 3),
        "episodes_per_s": round(n_episodes / seconds, 1),
        "ideal_per_s": round(n_episodes / ideal_s, 1),
        "share_of_ideal": round(ideal_s / seconds, 4),
    }


def measure_cost(n_episodes: int) -> dict[str, Any]:
    """Collect without latency; return the CPU time of an episode."""

    def once() -> float:
        started = time.process_time()
        _collect(n_episodes, 0.0, CONCURRENCY, True, False)
        return time.process_time() - started

    seconds = min(once() for _ in range(ROUNDS))
    return {
        "setting": "no latency, tokens",
        "episodes": n_episodes,
        "cpu_us_per_episode": round(1e6 * seconds / n_episodes, 1),
    }


def measure_traces(n_episodes: int, env_id: str = "llm/Calculator-v0") -> dict[str, Any]:
    """Return the CPU time that spans add to an episode, their encoding included, in rounds that take turns."""
    provider, exporter = TracerProvider(), _Encoder()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=1_000_000))
    cpu_s: dict[bool, list[float]] = {False: [], True: []}
    with Collector(env_id, OraclePolicy(), codec=ByteCodec(), max_concurrency=CONCURRENCY, progress=False) as collector:
        collector.collect(n_episodes)
        for number in range(MAX_ROUNDS):
            for is_traced in (False, True) if number % 2 else (True, False):
                with tracing(provider) if is_traced else nullcontext():
                    started = time.process_time()
                    collector.collect(n_episodes)
                    provider.force_flush()
                    cpu_s[is_traced].append(time.process_time() - started)
    more_us = [1e6 * (on - off) / n_episodes for on, off in zip(cpu_s[True], cpu_s[False], strict=True)]
    n_spans = exporter.n_spans / MAX_ROUNDS / n_episodes
    return {
        "setting": f"{env_id}, {n_spans:.0f} spans an episode",
        "cpu_us_per_episode": 1e6 * statistics.median(cpu_s[False]) / n_episodes,
        "span_us": statistics.median(more_us) / n_spans,
    }


class _Encoder(SpanExporter):
    """Encodes spans as they are sent, and sends nothing."""

    n_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.n_spans += len(spans)
        return SpanExportResult.SUCCESS


def _collect(n_episodes: int, latency_s: float, concurrency: int, tokens: bool, stored: bool) -> float:
    policy = with_latency(OraclePolicy(), latency_s) if latency_s else OraclePolicy()
    with tempfile.TemporaryDirectory() as folder, TrajectoryWriter(Path(folder) / "run") as writer:
        with Collector(
            ENV_ID,
            policy,
            codec=ByteCodec() if tokens else None,
            max_concurrency=concurrency,
            progress=False,
            on_trajectory=writer.write if stored else None,
        ) as collector:
            started = time.perf_counter()
            collector.collect(n_episodes)
            seconds = time.perf_counter() - started
        stats = collector.stats
        if stats.successes != n_episodes:
            raise SystemExit(f"the oracle should always succeed: {stats.summary()}")
    return seconds


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=1600)
    options = parser.parse_args()
    n = options.episodes
    rows = [
        measure(n, rounds=MAX_ROUNDS),
        measure(n, tokens=True, stored=True),
        measure(n // 4, concurrency=8),
        measure(4 * n, concurrency=256),
        measure_cost(n),
        measure_traces(n // 4),
    ]
    figures = [
        Figure("scripted policy, 32 at once", rows[0]["share_of_ideal"], "of the ideal", at_least=TARGET),
        Figure("scripted policy, 256 at once", rows[3]["share_of_ideal"], "of the ideal"),
        Figure("CPU time of an episode", rows[4]["cpu_us_per_episode"], "µs", "lower"),
        Figure("CPU time of a span", rows[5]["span_us"], "µs", "lower"),
    ]
    return finish(Report("collector_scripted", "The collector's own cost", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
