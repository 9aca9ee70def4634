"""Forward and backward of a micro-batch, padded and as a prefix tree: seconds and memory.

    python benchmarks/long_rows.py [--check] [--out FILE] [--model MODEL]

What `EnvGRPOTrainer` and TRL's trainer do with a micro-batch: the log-probabilities of the completions through TRL's
fused head, and their gradients; and the plain loop's pass over padded rows. Each row of the table has its own process,
which makes one pass over the beginning of the rows and then times one over all of them. Memory is how much the
process's resident set rose above what it held with the model (Linux).
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import numpy as np
import torch
from measuring import Column, Figure, Report, finish, make_parser
from training_steps import Meter
from trl.trainer.utils import add_fused_lm_head

from llm_envs.policies.inference.loading import load_model
from llm_envs.policies.inference.positions import position_ids
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.forward.head import score_tokens
from llm_envs.trainers.forward.prefix_tree import build_tree
from llm_envs.trainers.forward.tree_rows import TreeRows
from llm_envs.trainers.functional.logits import logps_from_logits

HIDDEN_SIZE, N_LAYERS = 512, 9
"""About 30 million parameters."""
N_PROMPT = 32
"""Tokens of each row that are not scored."""
ALL_LAYOUTS = "8 of 256, nothing shared"
"""The case in which the plain loop is measured too."""
METHOD = (
    "Forward and backward pass of a micro-batch with {model}, float32, PyTorch's attention (SDPA) and TRL's fused "
    'head. *Padded* is what TRL\'s trainer does. *Prefix tree*: `forward="prefix_tree"`. *Plain loop*: `score_rows` on '
    "padded rows; *all logits*: as it was before it read the head in parts. *Unique*: tokens that differ in what is "
    "before them. Seconds are the process's CPU time with one thread. Memory is what the passes took beyond the model."
)
LAYOUTS = ("padded", "prefix tree", "plain loop", "plain loop, all logits")
COLUMNS = [
    Column("case", "rows"),
    Column("layout", "layout"),
    Column("tokens", "tokens", ",.0f"),
    Column("unique", "unique", ",.0f"),
    Column("forwarded", "forwarded", ",.0f"),
    Column("seconds", "seconds", ".2f"),
    Column("memory_mib", "memory, MiB", ",.0f"),
]


def cases(random: np.random.Generator) -> dict[str, list[list[int]]]:
    """Return micro-batches of rows, each a list of tokens."""

    def some(n: int) -> list[int]:
        return random.integers(8, 200, n).tolist()

    prompt, trunk, system = some(256), some(128), some(128)
    # Each turn is a row: the template leaves out the thinking of earlier turns.
    turns: list[list[int]] = []
    told = prompt[:64]
    for _ in range(8):
        reply = some(16)
        turns.append(told + some(24) + reply)
        told = told + reply + some(16)
    branches = [trunk + half + some(48) for half in (some(48), some(48)) for _ in range(4)]
    rewritten = []
    for _ in range(2):  # an agent that sums its conversation up, twice
        told = system + some(64)
        for _ in range(3):
            rewritten += [told + some(32), told + some(64)]
            told = system + some(24)
    return {
        "group of 8, prompt 256, reply 32": [prompt + some(32) for _ in range(8)],
        "episode of 8 turns, history=template": turns,
        "8 leaves of 2 branches": branches,
        "12 rows of agents that rewrite": rewritten,
        "8 of 32 to 512, nothing shared": [some(n) for n in (512, 294, 205, 135, 98, 65, 45, 32)],
        "8 of 256, nothing shared": [some(256) for _ in range(8)],
        "1 of 2,048": [some(2048)],
    }


def load(name: str | None, longest: int) -> Any:
    """Return the model in training mode, in float32."""
    if name is None:
        model = tiny_model(tiny_tokenizer(), hidden_size=HIDDEN_SIZE, n_layers=N_LAYERS, max_length=longest)
    else:
        model = load_model(name, dtype="float32")
    return model.train()


def score(model: Any, layout: str, part: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the log-probabilities of a micro-batch's scored tokens."""
    ids, mask = part["input_ids"], part["attention_mask"]
    if layout == "prefix tree":
        return TreeRows(model, model)(**part, fused_lm_head=True).log_probs
    padded = {"input_ids": ids, "attention_mask": mask, "position_ids": position_ids(mask)}
    if layout == "padded":
        return model(**padded, labels=part["labels"], fused_lm_head=True).log_probs
    n_scored = ids.shape[1] - N_PROMPT
    if layout == "plain loop":
        return score_tokens(model, model, ids, mask, n_scored)[0]
    logits = model(**padded, logits_to_keep=n_scored + 1).logits
    return logps_from_logits(logits[:, :-1], ids[:, -n_scored:]) * mask[:, -n_scored:]


def measure(name: str | None, case: str, layout: str, answers: Any) -> None:
    """Measure one row in this process; put its numbers."""
    meter = Meter()
    rows = cases(np.random.default_rng(0))[case]
    longest = max(map(len, rows))
    model = load(name, longest)
    if not layout.startswith("plain loop"):
        add_fused_lm_head(model)
    ids, mask = torch.zeros(2, len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = torch.tensor(row), 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :N_PROMPT] = -100
    n_unique = len(build_tree(ids, mask))
    meter.mark_ready()
    for n in (64, longest):
        started = time.process_time()
        part = {"input_ids": ids[:, :n], "attention_mask": mask[:, :n], "labels": labels[:, :n]}
        score(model, layout, part).sum().backward()
        model.zero_grad(set_to_none=True)
        seconds = time.process_time() - started
    answers.put(
        {
            "case": case,
            "layout": layout,
            "tokens": int(mask.sum()),
            "unique": n_unique,
            "forwarded": n_unique if layout == "prefix tree" else ids.numel(),
            "seconds": round(seconds, 3),
            "memory_mib": round(meter.read()[1] / 1024),
        }
    )


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--model", help="folder of a model; by default 30 M random parameters")
    options = parser.parse_args()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")  # shares the imports
    rows: list[dict[str, Any]] = []
    for case in cases(np.random.default_rng(0)):
        for layout in LAYOUTS if case == ALL_LAYOUTS else LAYOUTS[:2]:
            answers = context.Queue()
            process = context.Process(target=measure, args=(options.model, case, layout, answers))
            process.start()
            while process.is_alive() and answers.empty():
                process.join(0.2)
            if answers.empty():
                raise SystemExit(f"{case}: the process ended with {process.exitcode} before it had measured.")
            rows.append(answers.get())
            process.join()
            print(rows[-1], flush=True)
    first, alike = ([row for row in rows if row["case"].startswith(name)] for name in ("group of 8", "8 of 256"))
    figures = [
        Figure("a group as a tree against padded, seconds", _share(first, "seconds"), "times", "lower", at_most=0.6),
        Figure("a group as a tree against padded, memory", _share(first, "memory_mib"), "times", "lower"),
        Figure("nothing shared, tree against padded, seconds", _share(alike, "seconds"), "times", "lower"),
    ]
    model = options.model or f"a model of {N_LAYERS} layers and width {HIDDEN_SIZE} (30 M)"
    method = METHOD.format(model=model)
    return finish(Report("long_rows", "Long and unequal rows", method, COLUMNS, rows, figures), options)


def _share(rows: list[dict[str, Any]], name: str) -> float:
    padded, tree, *_ = (row[name] for row in rows)
    return float(tree / padded)


if __name__ == "__main__":
    sys.exit(main())
