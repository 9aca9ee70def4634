"""A training step of each trainer on the same rows: seconds and memory, beside TRL's own where it has one.

    python benchmarks/training_steps.py [--check] [--out FILE] [--steps N] [--hidden-size N] [--only NAMES]

Every trainer runs in a process of its own. Two at a time take steps by turns, one waiting while the other computes:
EnvGRPOTrainer and TRL's GRPOTrainer, EnvDPOTrainer and DPOTrainer, EnvSFTTrainer and SFTTrainer, and EnvPPOTrainer with
a value head and with a critic of its own. Nothing is played: GRPO and PPO are handed the generation that they would
have played. The first two steps of each are not timed.

Memory is what a process holds resident (Linux): what the model and the trainer added to the imports, and then the
highest point of training beyond that, the optimizer's state, gradients and activations of all steps. Between the two
freed memory is handed back and the kernel's high-water mark is set back.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser

WARM_UP = 2
N_ROWS, GROUP_SIZE, MICRO_BATCH = 8, 4, 4
MAX_SECONDS, MAX_MEMORY = 1.1, 1.1
TRAINERS = {
    "EnvGRPOTrainer": "GRPO",
    "TRL's GRPOTrainer": "GRPO",
    "EnvPPOTrainer, value head": "PPO",
    "EnvPPOTrainer, own critic": "PPO",
    "EnvDPOTrainer": "DPO",
    "TRL's DPOTrainer": "DPO",
    "EnvSFTTrainer": "SFT",
    "TRL's SFTTrainer": "SFT",
}
"""Trainer -> algorithm; two at a time run by turns."""
METHOD = (
    "The same 8 rows of 96 to 160 tokens, two turns each, in micro-batches of 4 rows, a model of about 30 M parameters "
    "in float32: for DPO 4 pairs and a reference model, for GRPO and PPO a generation (rewards are given, nothing is "
    "played). Each trainer in a process of its own, two at a time step by turns; the ratio is the median over the "
    "pairs of steps. Memory is the resident set: what model and trainer added to the imports, and how much higher it "
    "rose in training (gradients, AdamW's state, activations). TRL's DPO trains the environment's tokens too, which "
    "costs the same. Held: 1.1 times TRL's seconds and 1.1 times its whole memory, for GRPO, DPO and SFT."
)
COLUMNS = [
    Column("algorithm", "algorithm"),
    Column("trainer", "trainer"),
    Column("median_s", "median step, s", ".3f"),
    Column("low_s", "fastest, s", ".3f"),
    Column("high_s", "slowest, s", ".3f"),
    Column("ratio", "of TRL's", ".2f"),
    Column("ready_mib", "ready, MiB", ",.0f"),
    Column("peak_mib", "beyond that, MiB", ",.0f"),
    Column("memory_ratio", "sum, of TRL's", ".2f"),
]


@dataclass
class Measured:
    """What one process found out."""

    seconds: list[float] = field(default_factory=list)
    ready_kib: int = 0
    """What the model and the trainer added to the imports."""
    peak_kib: int = 0
    """How much higher the resident set rose in training."""
    n_parameters: int = 0


class Meter:
    """The resident set of this process, as Linux says it."""

    def __init__(self) -> None:
        self._imported = self._ready = self._settle()

    def mark_ready(self) -> None:
        """Take what is resident now as what the trainer has before its first step, and forget what was higher."""
        self._ready = self._settle()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM is what is resident from here on

    def read(self) -> tuple[int, int]:
        """Return what the trainer added to the imports, and how much higher it rose since `mark_ready`; KiB."""
        return self._ready - self._imported, self._status("VmHWM") - self._ready

    def _settle(self) -> int:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        return self._status("VmRSS")

    def _status(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1])


def make_rows(vocabulary_size: int, step: int) -> list[Any]:
    """Return the trajectories of one step; a group's have one prompt."""
    from grpo_step import make_generation

    return make_generation(np.random.default_rng(step), vocabulary_size, step)


def in_labels(played: list[Any]) -> list[dict[str, Any]]:
    """Return trajectories as rows of supervised learning."""
    rows = [trajectory.rows[0] for trajectory in played]
    return [{"input_ids": row.ids.tolist(), "labels": np.where(row.mask, row.ids, -100).tolist()} for row in rows]


def in_pairs(played: list[Any]) -> list[dict[str, Any]]:
    """Return neighbours of a group as pairs of token ids, with masks."""
    rows = []
    for one, other in zip(played[::2], played[1::2], strict=True):
        start = one.rows[0].spans[0][0]
        row: dict[str, Any] = {"prompt_ids": one.rows[0].ids[:start].tolist()}
        for name, trajectory in (("chosen", one), ("rejected", other)):
            ids, mask = trajectory.rows[0].ids[start:], trajectory.rows[0].mask[start:]
            row |= {f"{name}_ids": ids.tolist(), f"{name}_mask": mask.astype(int).tolist()}
        rows.append(row)
    return rows


def make_trainer(name: str, tokenizer: Any, folder: str, n_steps: int, hidden_size: int) -> Any:
    """Return a trainer that will take `n_steps` steps on the rows, in the order in which they are made."""
    from grpo_step import our_trainer, settings, tiny_models, trls_trainer

    model, critic = tiny_models(tokenizer, hidden_size)
    played = [make_rows(len(tokenizer), step) for step in range(n_steps)]
    if name == "TRL's GRPOTrainer":
        return trls_trainer(model, tokenizer, folder, played)
    if TRAINERS[name] == "GRPO":
        return our_trainer(model, tokenizer, folder, played)
    if TRAINERS[name] == "PPO":
        return ppo_trainer(model, tokenizer, folder, played, critic if "own" in name else None)
    common = settings(folder, n_steps)
    for key in ("num_generations", "max_completion_length"):
        common.pop(key)
    if TRAINERS[name] == "DPO":
        common["ref_model"] = tiny_models(tokenizer, hidden_size)[0]
        return dpo_trainer(name, model, tokenizer, common, [row for one in played for row in in_pairs(one)])
    return sft_trainer(name, model, tokenizer, common, [row for one in played for row in in_labels(one)])


def ppo_trainer(model: Any, tokenizer: Any, folder: str, played: list[list[Any]], critic: Any) -> Any:
    """Return ours, with a value head where there is no critic."""
    from grpo_step import give, settings

    from llm_envs.trainers import EnvPPOConfig, EnvPPOTrainer

    args = EnvPPOConfig(**settings(folder, len(played)), save_trajectories=False, logps_tolerance=None)
    return give(EnvPPOTrainer(model, "llm/Countdown-v0", args, critic=critic, processing_class=tokenizer), played)


def dpo_trainer(name: str, model: Any, tokenizer: Any, common: dict[str, Any], pairs: list[dict[str, Any]]) -> Any:
    """Return ours or TRL's: as many sequences in a micro-batch as the others have."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer

    common |= {"per_device_train_batch_size": MICRO_BATCH // 2}
    others = {"ref_model": common.pop("ref_model"), "processing_class": tokenizer}
    if name == "EnvDPOTrainer":
        rows = Dataset.from_list(pairs)
        return EnvDPOTrainer(model, args=EnvDPOConfig(**common), source=rows, **others)
    # TRL makes token ids of its own of any data set, whose column names it knows by: it is handed rows that have them.
    kept = [{key: row[key] for key in ("prompt_ids", "chosen_ids", "rejected_ids")} for row in pairs]

    class Given(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *others: Any) -> Any:
            return dataset

    args = DPOConfig(**common, max_length=None)
    return Given(model, args=args, train_dataset=Dataset.from_list(kept), **others)


def sft_trainer(name: str, model: Any, tokenizer: Any, common: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    """Return ours or TRL's."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer

    data = Dataset.from_list(rows)
    if name == "EnvSFTTrainer":
        return EnvSFTTrainer(model, args=EnvSFTConfig(**common), source=data, processing_class=tokenizer)
    return SFTTrainer(model, args=SFTConfig(**common, max_length=None), train_dataset=data, processing_class=tokenizer)


def run_child(name: str, pipe: Connection, n_steps: int, hidden_size: int) -> None:
    """Set a trainer up and let it take a step each time the parent says so."""
    import torch
    from transformers import TrainerCallback

    from llm_envs.tiny_model import tiny_tokenizer
    from llm_envs.trainers import dpo, ppo, sft  # noqa: F401 - all processes have imported the same

    measured = Measured()
    tokenizer = tiny_tokenizer()
    torch.ones(8, 8) @ torch.ones(8, 8)
    meter = Meter()

    class InTurn(TrainerCallback):
        def on_train_begin(self, *arguments: Any, **others: Any) -> None:
            meter.mark_ready()
            pipe.send("ready")

        def on_step_begin(self, *arguments: Any, **others: Any) -> None:
            pipe.recv()
            self.started = time.perf_counter()

        def on_step_end(self, *arguments: Any, **others: Any) -> None:
            measured.seconds.append(time.perf_counter() - self.started)
            pipe.send("done")

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(name, tokenizer, folder, n_steps, hidden_size)
        measured.n_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        trainer.add_callback(InTurn())
        trainer.train()
        measured.ready_kib, measured.peak_kib = meter.read()
        pipe.send(measured)
        if hasattr(trainer, "close"):
            trainer.close()


def measure(names: tuple[str, ...], n_steps: int, hidden_size: int) -> dict[str, Measured]:
    """Return what each of some trainers needs, which step by turns."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in names:
        pipes[name], theirs = context.Pipe()
        process = context.Process(target=run_child, args=(name, theirs, WARM_UP + n_steps, hidden_size))
        process.start()
        theirs.close()
        processes.append(process)
    try:
        for pipe in pipes.values():
            pipe.recv()  # ready, all of them, before the first steps
        for step in range(WARM_UP + n_steps):
            for name in names if step % 2 else reversed(names):
                pipes[name].send("go")
                pipes[name].recv()
        found = {name: pipe.recv() for name, pipe in pipes.items()}
    except EOFError:
        raise SystemExit(f"a process of {', '.join(names)} ended before its time; its error is above") from None
    finally:
        for pipe in pipes.values():
            pipe.close()
        for process in processes:
            process.join()
    return found


def make_tables(found: dict[str, Measured]) -> tuple[list[dict[str, Any]], list[Figure]]:
    """Return the table's rows and the figures, ours against TRL's where both were measured."""
    rows, figures = [], []
    for name, measured in found.items():
        algorithm, timed = TRAINERS[name], measured.seconds[WARM_UP:]
        row: dict[str, Any] = {"algorithm": algorithm, "trainer": name, "median_s": statistics.median(timed)}
        row |= {"low_s": min(timed), "high_s": max(timed)}
        row |= {"ready_mib": measured.ready_kib / 1024, "peak_mib": measured.peak_kib / 1024}
        other = found.get(f"TRL's {algorithm}Trainer")
        memory = (row["ready_mib"] + row["peak_mib"]) * 1024
        if other is not None and other is not measured:
            pairs = zip(timed, other.seconds[WARM_UP:], strict=True)
            row["ratio"] = statistics.median(one / theirs for one, theirs in pairs)
            row["memory_ratio"] = memory / (other.ready_kib + other.peak_kib)
            what = f"a step of {algorithm} against TRL's"
            figures.append(Figure(f"{what}, seconds", row["ratio"], "x", "lower", at_most=MAX_SECONDS))
            figures.append(Figure(f"{what}, memory", row["memory_ratio"], "x", "lower", at_most=MAX_MEMORY))
        if algorithm == "PPO":
            figures.append(Figure(f"a step of {name}, seconds", row["median_s"], "s", "lower"))
            figures.append(Figure(f"a step of {name}, memory", memory / 1024, "MiB", "lower"))
        rows.append(row)
    return rows, figures


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--steps", type=int, default=9, help="steps of each trainer that are timed")
    parser.add_argument("--hidden-size", type=int, default=512, help="512: about 30 M parameters")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(set(TRAINERS.values())), help="algorithms")
    options = parser.parse_args()
    found: dict[str, Measured] = {}
    for algorithm in dict.fromkeys(TRAINERS.values()):
        if options.only is None or algorithm in options.only:
            names = tuple(name for name, kind in TRAINERS.items() if kind == algorithm)
            found |= measure(names, options.steps, options.hidden_size)
    rows, figures = make_tables(found)
    n_parameters = max(measured.n_parameters for measured in found.values())
    settings = {"steps": options.steps, "parameters": n_parameters, "rows": N_ROWS, "micro_batch": MICRO_BATCH}
    report = Report("training_steps", "Training steps side by side", METHOD, COLUMNS, rows, figures, settings)
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
