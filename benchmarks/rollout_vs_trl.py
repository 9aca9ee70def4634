"""Multi-turn rollouts: our collector against TRL's own tool loop, on one vLLM engine in one process.

    python benchmarks/rollout_vs_trl.py [--check] [--out FILE] [--cells TURNSxMS,...]

Needs vLLM (on a CPU `VLLM_CPU_KVCACHE_SPACE=1`). Both sides play the workload of `pages.py`: each rollout calls a tool
in each of its turns, reads the result, and answers at the end; a rollout of 3 turns has 3 calls and 4 replies. Both
have the same engine (a `vllm.LLM` in this process; TRL's `VLLMGeneration` is handed it in place of one that it starts
itself), the same chat template, the same tool, the same words of the model token for token (which is checked), and the
same waits: the call of rollout i in turn t takes the same exponentially distributed time on both, of the given mean.

TRL's side is `GRPOTrainer` with `environment_factory`, untouched. Timed is its `_generate`: rendering, sampling,
parsing, tools. Making and resetting environments, log-probabilities and rewards are outside the clock. Its sampling
parameters are its own: no seed per request, which is cheaper. The tool is a plain function, as in TRL's documents; as
a coroutine function TRL runs it on a loop of its own, yet still waits for one rollout's calls before it begins the
next one's. `--async-tools` measures that: on TRL's side alone the tool is then a coroutine function.

Ours is `Collector.collect`, with everything that it does: environments made, reset and closed, a thread for each while
the tool waits, seeds per request, parsing, trajectories. All rollouts of a cell run at once on both sides, and the
prefix cache is emptied before each. The sides alternate, and a ratio is the median of the ratios of the pairs.

The ratio at 50 ms depends on the engine: TRL's waits are a fixed sum, so the slower the engine, the smaller is their
share. `latency.py` measures what does not depend on it: how much of the waits our collector hides.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from datasets import Dataset
from measuring import Column, Figure, Report, finish, make_parser
from pages import (
    MAX_LENGTH,
    QUESTION,
    SYSTEM_PROMPT,
    Book,
    collect_pages,
    draw_latencies,
    forced_replies,
    pages_tokenizer,
    read_page,
    save_model,
)
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from llm_envs.policies import VLLMEnginePolicy, load_engine


class Cell(NamedTuple):
    """One row of the table."""

    turns: int
    latency_ms: int
    rollouts: int
    pairs: int


FIXED = Cell(3, 50, 64, 5)
FIXED_AT_0 = Cell(3, 0, 64, 5)
CELLS = [
    Cell(1, 0, 64, 5),
    Cell(1, 50, 64, 3),
    Cell(1, 500, 16, 1),
    FIXED_AT_0,
    FIXED,
    Cell(3, 500, 16, 1),
    Cell(8, 0, 64, 3),
    Cell(8, 50, 64, 1),
    Cell(8, 500, 16, 1),
]
MIN_RATIO = 8.0
MIN_RATIO_AT_0 = 0.95
METHOD = (
    "A rollout calls a tool in each turn and answers at the end; all rollouts of a row run at once, and the tool's "
    "calls take exponentially distributed times of the given mean, the same on both sides. Same vLLM engine, process, "
    "template, tool, and tokens; the sides alternate and the ratio is the median over the pairs. TRL's time is that of "
    "`GRPOTrainer`'s `environment_factory` loop alone. TRL runs the tools of a batch one after another, so at 500 ms "
    "there are 16 rollouts, and where one pair takes half a minute there is one. Held: 8 at 3 turns of 50 ms, 0.95 at "
    "3 turns of 0 ms."
)
COLUMNS = [
    Column("turns", "turns"),
    Column("latency_ms", "tool, ms"),
    Column("rollouts", "rollouts"),
    Column("pairs", "pairs"),
    Column("trl_s", "TRL, s", ".2f"),
    Column("ours_s", "ours, s", ".2f"),
    Column("ratio", "times as fast", ".2f"),
    Column("lowest", "lowest", ".2f"),
    Column("highest", "highest", ".2f"),
    Column("ours_tokens_per_s", "our sampled tokens/s", ",.0f"),
]


class PlainPages:
    """The environment that TRL plays: what `PagesEnv` is to us."""

    # `fetch` has no annotated result: TRL would show its type to the model, and the prompts would differ by that.

    book: Book
    """Of the cell; set on the class."""

    def reset(self, **row: Any) -> None:
        self._latencies = self.book.next_rollout()

    def fetch(self, page: int):
        """Fetch a page.

        Args:
            page: Number of the page.
        """
        return read_page(self._latencies, page)


class AsyncPages(PlainPages):
    """The same with a coroutine function as tool."""

    async def fetch(self, page: int):
        """Fetch a page.

        Args:
            page: Number of the page.
        """
        latency_s = next(self._latencies)
        await asyncio.sleep(latency_s)
        return read_page(iter([0.0]), page)


class SharedEngine(VLLMGeneration):
    """TRL's colocated generation on an engine that exists."""

    def __init__(self, llm: Any, trainer: GRPOTrainer, **settings: Any) -> None:
        self._shared = llm
        super().__init__(trainer.model, trainer.accelerator, trainer.processing_class, mode="colocate", **settings)

    def _init_vllm(self) -> None:
        self.llm = self._shared

    def sync_weights(self) -> None:
        """Do nothing: nobody trains."""


class TimedTrainer(GRPOTrainer):
    """TRL's trainer; remembers how long its rollouts took, and what they were."""

    seconds: float
    rows: list[tuple[list[int], list[int]]]

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        found = super()._generate(prompts)
        self.seconds = time.perf_counter() - started
        self.rows = list(zip(found[0], found[1], strict=True))
        return found


class Sides:
    """The two sides on one engine."""

    def __init__(self, folder: Path, *, async_tools: bool = False) -> None:
        tokenizer = pages_tokenizer()
        self.n_parameters = save_model(folder, tokenizer)
        self._forced = forced_replies(tokenizer)
        self._llm = load_engine(
            folder, dtype="float32", enforce_eager=False, max_model_len=MAX_LENGTH, logits_processors=[self._forced]
        )
        self._policy = VLLMEnginePolicy(self._llm, tokenizer)
        self._environment: type[PlainPages] = AsyncPages if async_tools else PlainPages
        self._trainer = make_trainer(folder, self._llm, tokenizer, self._environment)

    def measure(self, cell: Cell, *, show: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        """Measure one cell; the first, unmeasured round of each side warms the engine up."""
        self._forced.n_turns = cell.turns
        book = Book(draw_latencies(cell.rollouts, cell.turns, cell.latency_ms / 1e3))
        still = Book(draw_latencies(cell.rollouts, cell.turns, 0.0))
        if self._run_ours(still, cell.rollouts)[1] != self._run_trl(still, cell.rollouts)[1]:
            raise SystemExit("the two sides did not sample the same tokens: what follows would compare nothing.")
        pairs = []
        for index in range(cell.pairs):
            sides: list[Callable[[Book, int], tuple[float, Any]]] = [self._run_trl, self._run_ours]
            order = sides if index % 2 == 0 else sides[::-1]
            seconds = {side: side(book, cell.rollouts)[0] for side in order}
            pairs.append((seconds[self._run_trl], seconds[self._run_ours]))
            show(f"{cell.turns} x {cell.latency_ms} ms: TRL {pairs[-1][0]:.2f} s, ours {pairs[-1][1]:.2f} s")
        trl_s, ours_s = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [trl / ours for trl, ours in pairs]
        return {
            **cell._asdict(),
            "trl_s": round(trl_s, 4),
            "ours_s": round(ours_s, 4),
            "ratio": round(statistics.median(ratios), 4),
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
            "ours_tokens_per_s": round(self._n_sampled / ours_s),
        }

    def _run_ours(self, book: Book, n: int) -> tuple[float, list[tuple[list[int], list[int]]]]:
        self._begin(book)
        seconds, trajectories = collect_pages(self._policy, book, n)
        rows = []
        for trajectory in trajectories:
            (row,) = trajectory.rows
            ids = row.ids.tolist()
            rows.append((ids[: row.prompt_length], ids[row.prompt_length :]))
        self._n_sampled = sum(int(trajectory.rows[0].mask.sum()) for trajectory in trajectories)
        return seconds, rows

    def _run_trl(self, book: Book, n: int) -> tuple[float, list[tuple[list[int], list[int]]]]:
        self._begin(book)
        messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": QUESTION}]
        self._trainer._generate_and_score_completions([{"prompt": messages} for _ in range(n)])
        return self._trainer.seconds, self._trainer.rows

    def _begin(self, book: Book) -> None:
        book.begin()
        self._environment.book = book
        self._llm.reset_prefix_cache()
        gc.collect()


def make_trainer(folder: Path, llm: Any, tokenizer: Any, environment: type[PlainPages]) -> TimedTrainer:
    """Return TRL's trainer with the engine in place of one of its own."""
    config = GRPOConfig(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=8,
        num_generations=2,
        max_completion_length=MAX_LENGTH - 512,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        vllm_importance_sampling_correction=False,
    )
    prompt = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": QUESTION}]
    environment.book = Book(draw_latencies(1, 1, 0.0))
    trainer = TimedTrainer(
        str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt}] * 8),
        processing_class=tokenizer,
        environment_factory=environment,
    )
    trainer.vllm_generation = SharedEngine(llm, trainer, max_completion_length=config.max_completion_length)
    trainer.use_vllm, trainer.vllm_mode = True, "colocate"
    trainer._last_loaded_step = trainer.state.global_step
    return trainer


def list_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return the ratio of each cell, with the limits of the two that are held."""
    limits = {FIXED[:2]: MIN_RATIO, FIXED_AT_0[:2]: MIN_RATIO_AT_0}
    return [
        Figure(
            f"against TRL, {row['turns']} turns of {row['latency_ms']} ms",
            row["ratio"],
            "times as fast",
            at_least=limits.get((row["turns"], row["latency_ms"])) if row["rollouts"] == FIXED.rollouts else None,
        )
        for row in rows
    ]


def read_cells(text: str) -> Iterator[Cell]:
    """Read cells as TURNSxMS[xROLLOUTS[xPAIRS]]."""
    known = {cell[:2]: cell for cell in CELLS}
    for part in text.split(","):
        try:
            turns, latency, *others = map(int, part.split("x"))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{part!r} is no TURNSxMS, like 3x50") from error
        cell = known.get((turns, latency), Cell(turns, latency, 64, 1))
        yield cell._replace(**dict(zip(("rollouts", "pairs"), others, strict=False)))


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument(
        "--cells", type=lambda text: list(read_cells(text)), default=CELLS, help="TURNSxMS[xROLLOUTS[xPAIRS]],..."
    )
    parser.add_argument("--async-tools", action="store_true", help="TRL's tool is a coroutine function")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sides = Sides(Path(scratch), async_tools=options.async_tools)
        rows = [sides.measure(cell, show=print) for cell in options.cells]
    settings = {"parameters": sides.n_parameters, "async_tools": options.async_tools}
    report = Report(
        "rollout_vs_trl", "Rollouts against TRL's own tool loop", METHOD, COLUMNS, rows, list_figures(rows), settings
    )
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
