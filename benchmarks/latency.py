"""What tools that wait cost our collector: its time with tools of 50 ms over its time with tools of 0 ms.

    python benchmarks/latency.py [--check] [--out FILE] [--pairs N] [--width N]

Needs vLLM (on a CPU `VLLM_CPU_KVCACHE_SPACE=1`). 64 rollouts of the workload of `pages.py` run at once: three calls and
four replies each, the same tokens every time. The tool's calls take exponentially distributed times of a mean of 0 or
50 ms, one after the other in a rollout: 9.6 s in all for 50 ms. A collector that hides them keeps the engine busy with
the other rollouts, and takes as long as without them. The model has about 30 million random parameters, so that the
engine has several times more work than the slowest rollout has to wait: with a smaller one nothing could hide the waits
of the last rollout. `busy` says how many times.

The two alternate, the prefix cache is emptied before each, and the ratio is the median of the ratios of the pairs. With
`--check` the exit code is 1 if it is above 1.15.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from measuring import Column, Figure, Report, finish, make_parser
from pages import MAX_LENGTH, Book, collect_pages, draw_latencies, forced_replies, pages_tokenizer, save_model

from llm_envs.policies import VLLMEnginePolicy, load_engine

ROLLOUTS = 64
TURNS = 3
LATENCY_MS = 50
MAX_RATIO = 1.15
METHOD = (
    f"{ROLLOUTS} rollouts at once, each with {TURNS} calls of a tool and {TURNS + 1} replies, the same tokens every "
    f"time. The tool's calls take exponentially distributed times of a mean of 0 or {LATENCY_MS} ms. The two alternate "
    "on one engine; the ratio is the median over the pairs. *Busy*: the time at 0 ms over the waits of the slowest "
    f"rollout, which nothing can hide from that rollout itself. Held: {MAX_RATIO} at most."
)
COLUMNS = [
    Column("parameters", "parameters", ",d"),
    Column("rollouts", "rollouts"),
    Column("turns", "turns"),
    Column("pairs", "pairs"),
    Column("still_s", "0 ms, s", ".2f"),
    Column("waiting_s", f"{LATENCY_MS} ms, s", ".2f"),
    Column("ratio", "ratio", ".3f"),
    Column("lowest", "lowest", ".3f"),
    Column("highest", "highest", ".3f"),
    Column("busy", "busy", ".1f"),
]


def measure(llm: Any, n_rollouts: int, n_pairs: int) -> dict[str, Any]:
    """Alternate the two on one engine; a first round that is not measured warms it up."""
    policy = VLLMEnginePolicy(llm, llm.get_tokenizer())
    latencies = draw_latencies(n_rollouts, TURNS, LATENCY_MS / 1e3)
    still, waiting = Book(0 * latencies), Book(latencies)

    def run(book: Book) -> float:
        book.begin()
        llm.reset_prefix_cache()
        gc.collect()
        return collect_pages(policy, book, n_rollouts)[0]

    run(still)
    pairs = []
    for index in range(n_pairs):
        seconds = {book: run(book) for book in ((still, waiting) if index % 2 == 0 else (waiting, still))}
        pairs.append((seconds[still], seconds[waiting]))
        print(f"0 ms {pairs[-1][0]:.2f} s, {LATENCY_MS} ms {pairs[-1][1]:.2f} s")
    ratios = [waiting_s / still_s for still_s, waiting_s in pairs]
    still_s, waiting_s = (statistics.median(side) for side in zip(*pairs, strict=True))
    return {
        "rollouts": n_rollouts,
        "turns": TURNS,
        "pairs": n_pairs,
        "still_s": round(still_s, 4),
        "waiting_s": round(waiting_s, 4),
        "ratio": round(statistics.median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "highest": round(max(ratios), 4),
        "busy": round(still_s / float(latencies.sum(axis=1).max()), 2),
    }


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--width", type=int, default=768, help="of the model's layers")
    options = parser.parse_args()
    tokenizer = pages_tokenizer()
    forced = forced_replies(tokenizer)
    forced.n_turns = TURNS
    with tempfile.TemporaryDirectory() as scratch:
        n_parameters = save_model(
            Path(scratch), tokenizer, hidden_size=options.width, n_layers=6, n_heads=options.width // 64
        )
        llm = load_engine(
            scratch, dtype="float32", enforce_eager=False, max_model_len=MAX_LENGTH, logits_processors=[forced]
        )
    row = {"parameters": n_parameters} | measure(llm, options.rollouts, options.pairs)
    name = f"time with tools of {LATENCY_MS} ms over that with 0 ms"
    figure = Figure(name, row["ratio"], "x", "lower", at_most=MAX_RATIO)
    return finish(Report("latency", "What waiting tools cost", METHOD, COLUMNS, [row], [figure]), options)


if __name__ == "__main__":
    sys.exit(main())
