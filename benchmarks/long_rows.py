"""Forward and backward of rows of unequal length, padded and packed, and of very long rows: seconds and memory.

    python benchmarks/long_rows.py [--check] [--out FILE] [--longest N]

What `EnvGRPOTrainer` does with a micro-batch: the log-probabilities of the completions through TRL's fused head, and
their gradients, with and without `packing` and gradient checkpointing. Each row of the table has its own process;
the first of four passes is not timed (one pass, timed, beyond 10,000 tokens). Memory is how much the process's resident
set rose above what it held with the model (Linux). `--longest` leaves out longer rows: 32,768 tokens take some minutes.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from typing import Any

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser
from training_steps import Meter

N_PASSES = 4
PROMPT = 64
HIDDEN_SIZE, N_LAYERS = 256, 2
CASES = {
    "8 of 128 to 2,048": [2048, 1176, 822, 541, 390, 261, 180, 128],
    "8 of 1,024": [1024] * 8,
    "1 of 8,192": [8192],
    "1 of 32,768": [32768],
}
"""Name -> tokens of the rows of a micro-batch."""
METHOD = (
    f"Forward and backward pass of a micro-batch with a model of {N_LAYERS} layers and width {HIDDEN_SIZE}, float32, "
    "PyTorch's attention (SDPA) and TRL's fused head; prompts of 64 tokens. *Packed*: with `packing=True`. "
    "*Checkpointed*: with gradient checkpointing. Seconds are the median of three passes, of one beyond 10,000 tokens. "
    "Memory is what the passes took beyond the model."
)
COLUMNS = [
    Column("case", "rows of tokens"),
    Column("layout", "layout"),
    Column("checkpointing", "checkpointed"),
    Column("seconds", "seconds", ".2f"),
    Column("tokens_per_s", "tokens/s", ",.0f"),
    Column("memory_mib", "memory, MiB", ",.0f"),
]


def measure(lengths: list[int], is_packed: bool, is_checkpointed: bool, answers: Any) -> None:
    """Measure one row in this process; put seconds and MiB."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from llm_envs.policies.inference.positions import position_ids
    from llm_envs.tiny_model import tiny_model, tiny_tokenizer
    from llm_envs.trainers.forward.packed_rows import PackedRows

    meter = Meter()
    tokenizer = tiny_tokenizer()
    longest = max(lengths)
    model = tiny_model(tokenizer, hidden_size=HIDDEN_SIZE, n_layers=N_LAYERS, max_length=longest).train()
    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(model)
    random = np.random.default_rng(0)
    ids = torch.from_numpy(random.integers(8, len(tokenizer), (len(lengths), longest)))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :PROMPT] = -100
    padded = {} if is_packed else {"position_ids": position_ids(mask)}
    called: Any = PackedRows(model, model) if is_packed else model
    meter.mark_ready()
    seconds = []
    for _ in range(1 if sum(lengths) > 10_000 else N_PASSES):
        started = time.perf_counter()
        outputs = called(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **padded)
        outputs.log_probs.sum().backward()
        model.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    answers.put((statistics.median(seconds[1:] or seconds), meter.read()[1] / 1024))


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--longest", type=int, default=32768, help="tokens of the longest row that is measured")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    for case, lengths in CASES.items():
        if max(lengths) > options.longest:
            continue
        for is_packed in (False, True)[: 1 + (len(lengths) > 1)]:
            for is_checkpointed in (False, True):
                answers = context.Queue()
                process = context.Process(target=measure, args=(lengths, is_packed, is_checkpointed, answers))
                process.start()
                while process.is_alive() and answers.empty():
                    process.join(0.2)
                if answers.empty():
                    raise SystemExit(f"{case}: the process ended with {process.exitcode} before it had measured.")
                seconds, memory_mib = answers.get()
                process.join()
                rows.append(
                    {
                        "case": case,
                        "layout": "packed" if is_packed else "padded" if len(lengths) > 1 else "one row",
                        "checkpointing": "yes" if is_checkpointed else "no",
                        "seconds": round(seconds, 3),
                        "tokens_per_s": round(sum(lengths) / seconds),
                        "memory_mib": round(memory_mib),
                    }
                )
                print({name: rows[-1][name] for name in rows[-1]}, flush=True)
    padded, packed = (
        next(row for row in rows if row["layout"] == layout and row["checkpointing"] == "no")
        for layout in ("padded", "packed")
    )
    figures = [
        Figure("packed against padded, seconds", packed["seconds"] / padded["seconds"], "times", "lower", at_most=0.6),
        Figure("packed against padded, memory", packed["memory_mib"] / padded["memory_mib"], "times", "lower"),
    ]
    return finish(Report("long_rows", "Long and unequal rows", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
