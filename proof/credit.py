"""Credit by turns, measured: one task, one warm start, one budget of episodes, and only the advantages differ.

    python -m proof.credit [--tasks NAME ...] [--ways NAME ...] [--seeds N ...]
    python -m proof.credit --docs docs/results/credit.md

A run writes `proof/results/credit/TASK.json`, and continues with what is missing there; `--docs` makes the tables and
curves of a page from all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import transformers

from benchmarks.measuring import Column, describe_hardware, describe_versions, find_commit, markdown_table
from llm_envs.evaluation.statistics import Interval, student_quantile
from proof.run import describe_run
from proof.runs import Run
from proof.tables import read_result
from proof.tasks import CREDIT_TASKS, Task, describe_task
from proof.train import train_run
from proof.warm import measure, warm_start

__all__ = ["WAYS", "run_of"]

RESULTS = Path("proof/results/credit")
WORK = Path("runs/proof")
SEEDS = (0, 1, 2, 3, 4)
BASELINE = "grpo"
COMPARED = ("guess", "calculator", "letters", "python", "blackjack", "cliff")
"""Tasks that GRPO learns in these steps: what is run unless others are named."""
RATES = {"calculator": 3e-4, "python": 3e-4}
"""Learning rates, by task, where it is not 6e-4: chosen with GRPO on seed 100."""
STEPS = {"cliff": 20}
"""Steps, by task, where they are not 30."""
_STEPS = {"per_device_train_batch_size": 64, "warmup_steps": 3}
_GROUPS = {"num_generations": 8}
_PPO = {"bootstrap_truncated": False}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("the whole episode, against its group", {"changes": {"normalisation": "token"}}),
    "per_turn": ("the return from a turn on, against the group's at that turn", {"named": "per_turn"}),
    "gigpo": ("the episode, and the return from a state on", {"named": "gigpo"}),
    "tree": ("from one branching point to the next; three quarters of a group are branches", {"named": "tree"}),
    "ppo": ("a critic", {"kind": "ppo-shared", "settings": _PPO}),
}
"""What an advantage is, and the fields of a `Run`."""


def run_of(way: str, task: str) -> Run:
    """Return the run of a way to give credit on a task. The critic's rate is three times the policy's."""
    fields = {"settings": _GROUPS, **WAYS[way][1]}
    rate = RATES.get(task, 6e-4)
    rates = {"learning_rate": rate, **({"value_learning_rate": 3 * rate} if way == "ppo" else {})}
    settings = {"max_steps": STEPS.get(task, 30), **_STEPS, **rates, **fields.pop("settings")}
    return Run(f"credit-{task}-{way}", task, "credit", settings=settings, seeds=SEEDS, **fields)


class _Count(transformers.TrainerCallback):  # type: ignore[misc]
    """Adds up sampled tokens and the environment's steps; measures the model every so many steps."""

    def __init__(self, trainer: Any, task: Task, folder: Path, every: int, plays_again: bool) -> None:
        self._trainer, self._task, self._folder, self._every = trainer, task, folder, every
        self._plays_again = plays_again
        self.n_tokens = self.n_env_steps = 0
        self.curve: list[dict[str, Any]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the generation that was just learned from."""
        for played in self._trainer.last_trajectories:
            self.n_tokens += sum(int(row.mask.sum()) for row in played.rows)
            self.n_env_steps += len(played.turns) * (1 + self._plays_again)
        if state.global_step % self._every:
            return
        self._trainer.save_model(str(self._folder))
        outcomes = measure(self._folder, self._task)
        point = {"steps": state.global_step, "tokens": self.n_tokens, "env_steps": self.n_env_steps}
        self.curve.append(point | {key: outcomes[key] for key in ("successes", "rewards")})


def train_seed(way: str, name: str, task: Task, warm: Path, seed: int) -> dict[str, Any]:
    """Train once; return the curve of test outcomes, and what was sampled and played until each of its points."""
    run, out = run_of(way, name), WORK / "models" / f"credit-{name}-{way}-{seed}"
    counts: list[_Count] = []

    def watch(trainer: Any) -> None:
        counts.append(_Count(trainer, task, out / "model", 10, way == "gigpo"))
        trainer.add_callback(counts[0])

    seconds = train_run(run, task, warm, seed, out, watch)
    return {"curve": counts[0].curve, "seconds": round(seconds, 1)}


def measure_task(name: str, ways: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Train what is missing, one seed of every way after another; write the file after each."""
    task, path = CREDIT_TASKS[name], out / f"{name}.json"
    warm, record = warm_start(f"credit-{name}", task, WORK / "warm")
    described = {way: describe_run(run_of(way, name), task) for way in WAYS}
    data: dict[str, Any] = {
        "task": name,
        "env": task.env,
        "settings": describe_task(task),
    }
    data["warm"] = {"parameters": record["parameters"], **{k: record["outcomes"][k] for k in ("successes", "rewards")}}
    kept = read_result(path) or {}
    same = kept.get("warm") == data["warm"] and kept.get("settings") == data["settings"]
    data["ways"] = {
        way: found
        for way, found in (kept.get("ways") or {}).items()
        if same and way in described and found["run"] == described[way]
    }
    for seed in seeds:
        for way in ways:
            found = data["ways"].setdefault(way, {"run": described[way], "seeds": {}})
            if str(seed) in found["seeds"]:
                continue
            found["seeds"][str(seed)] = train_seed(way, name, task, warm, seed)
            data |= {"versions": describe_versions(), "hardware": describe_hardware(), "commit": find_commit()}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(data) + "\n", encoding="utf-8")


# The page.


def at_budget(curve: Sequence[Mapping[str, Any]], key: str, budget: float, start: float) -> float:
    """Return the mean test reward when so many tokens or steps were used, on straight lines between measurements."""
    uses = [0.0, *(float(point[key]) for point in curve)]
    return float(np.interp(budget, uses, [start, *(fmean(point["rewards"]) for point in curve)]))


def compare(data: Mapping[str, Any], key: str) -> tuple[float, dict[str, dict[str, float]], dict[str, Interval]]:
    """Compare all ways on a task at one budget: the least that any run of it used.

    Returns:
        The budget; the rewards by way and seed; and for each way but GRPO the 95% interval of the reward less GRPO's,
        paired by seeds, from Student's t.
    """
    start = fmean(data["warm"]["rewards"])
    curves = {way: found["seeds"] for way, found in data["ways"].items() if found["seeds"]}
    budget = min(found["curve"][-1][key] for seeds in curves.values() for found in seeds.values())
    rewards = {
        way: {seed: at_budget(found["curve"], key, budget, start) for seed, found in seeds.items()}
        for way, seeds in curves.items()
    }
    gains = {}
    for way in [way for way in rewards if way != BASELINE]:
        differences = [
            rewards[way][seed] - rewards[BASELINE][seed] for seed in rewards[way] if seed in rewards[BASELINE]
        ]
        gains[way] = t_interval(differences)
    return budget, rewards, gains


def t_interval(values: Sequence[float]) -> Interval:
    """Return the 95% interval of a mean of few values, from Student's t."""
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    half = student_quantile(0.95, len(values) - 1) * error
    return Interval(mean - half, mean + half)


def verdict(interval: Interval) -> str:
    """Return whether an interval is above 0, below it, or around it."""
    return "win" if interval.low > 0 else "loss" if interval.high < 0 else "tie"


def _row(data: Mapping[str, Any], way: str, found: Mapping[str, Any]) -> dict[str, Any]:
    seeds = data["ways"][way]["seeds"].values()
    row = {
        "task": f"{data['env']} ({fmean(data['warm']['rewards']):.3f})" if way == BASELINE else "",
        "way": way,
        "end": fmean(fmean(run["curve"][-1]["rewards"]) for run in seeds),
        "success": fmean(fmean(run["curve"][-1]["successes"]) for run in seeds),
        "n_tokens": fmean(run["curve"][-1]["tokens"] for run in seeds),
        "n_env_steps": fmean(run["curve"][-1]["env_steps"] for run in seeds),
        "seconds": fmean(run["seconds"] for run in seeds),
        "tokens": "",
        "env_steps": "",
    }
    for key, (_, rewards, gains) in found.items():
        row[key] = f"{fmean(rewards[way].values()):.3f}"
        if way != BASELINE:
            gain = gains[way]
            row[key] += f": {(gain.low + gain.high) / 2:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}), {verdict(gain)}"
    return row


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row for each task and way: the reward at equal tokens and at equal steps, and in the end."""
    rows = []
    for data in results.values():
        found = {key: compare(data, key) for key in ("tokens", "env_steps")}
        rows += [_row(data, way, found) for way in WAYS if way in data["ways"]]
    columns = [
        Column("task", "task (reward before)"),
        Column("way", "credit"),
        Column("tokens", "reward at equal tokens, less GRPO's (95%)"),
        Column("env_steps", "reward at equal steps, less GRPO's (95%)"),
        Column("end", "reward in the end", ".3f"),
        Column("success", "success", ".1%"),
        Column("n_tokens", "tokens", ",.0f"),
        Column("n_env_steps", "steps", ",.0f"),
        Column("seconds", "s", ".0f"),
    ]
    return markdown_table(columns, rows)


def render_verdicts(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row for each way and a column for each task: win, tie or loss at equal tokens and at equal steps."""
    found = {name: [compare(data, key)[2] for key in ("tokens", "env_steps")] for name, data in results.items()}
    rows = [
        {"way": way, "what": WAYS[way][0]}
        | {name: ", ".join(verdict(gains[way]) for gains in both) for name, both in found.items() if way in both[0]}
        for way in WAYS
        if way != BASELINE
    ]
    tasks = [Column(name, data["env"].removeprefix("llm/").removesuffix("-v0")) for name, data in results.items()]
    return markdown_table([Column("way", "credit"), Column("what", "an advantage is"), *tasks], rows)


def plot(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the mean test reward of each way over the sampled tokens, a panel for each task."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "credit", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(2.6 * len(results), 2.4), squeeze=False)
    for axis, data in zip(axes[0], results.values(), strict=True):
        for way in [way for way in WAYS if way in data["ways"]]:
            curves = [found["curve"] for found in data["ways"][way]["seeds"].values()]
            tokens = [fmean(point["tokens"] for point in points) / 1e3 for points in zip(*curves, strict=True)]
            rewards = [fmean(fmean(p["rewards"]) for p in points) for points in zip(*curves, strict=True)]
            axis.plot([0, *tokens], [fmean(data["warm"]["rewards"]), *rewards], label=way, linewidth=1)
        axis.set_title(data["env"])
        axis.set_xlabel("thousand sampled tokens")
    axes[0][0].set_ylabel("test reward")
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def put_into(document: Path, out: Path = RESULTS) -> None:
    """Put the table between the marks of a document, and draw its curves beside it."""
    found = {path.stem: read_result(path) for path in sorted(out.glob("*.json"))}
    results = {name: data for name, data in found.items() if data is not None}
    text = document.read_text(encoding="utf-8")
    for name, body in (("verdicts", render_verdicts(results)), ("credit", render(results))):
        marks = re.compile(rf"(<!-- proof {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text = marks.sub(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
    document.write_text(text, encoding="utf-8")
    plot(results, document.parent.parent / "images" / "credit.svg")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=CREDIT_TASKS, default=COMPARED)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the table and the curves into this page")
    options = parser.parse_args()
    if options.docs is not None:
        put_into(options.docs, options.out)
        return
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in options.tasks:
        measure_task(name, options.ways, options.seeds, options.out)


if __name__ == "__main__":
    main()
