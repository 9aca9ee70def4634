"""Credit by turns, measured: one task, one warm start, one budget of episodes, and only the advantages differ.

    python -m proof.credit [--tasks NAME ...] [--ways NAME ...] [--seeds N ...]
    python -m proof.credit --docs docs/results/credit.md

A run writes `proof/results/credit/TASK.json`, and continues with what is missing there; `--docs` makes the tables and
curves of a page from all of them. No result is stored yet: with these settings GRPO did not learn TicTacToe or
GuessNumber in 30 steps on seed 100, so tasks, warm starts and rates are to be chosen first.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import transformers

from benchmarks.measuring import Column, describe_hardware, describe_versions, find_commit, markdown_table
from llm_envs.evaluation import mean_interval
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
_STEPS = {"max_steps": 30, "per_device_train_batch_size": 64, "warmup_steps": 3}
_GROUPS = {**_STEPS, "num_generations": 8, "learning_rate": 6e-4}
_PPO = {**_STEPS, "learning_rate": 3e-4, "value_learning_rate": 1e-3, "bootstrap_truncated": False}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("the whole episode, against its group", {"changes": {"normalisation": "token"}}),
    "per_turn": ("the return from a turn on, against the group's at that turn", {"named": "per_turn"}),
    "gigpo": ("the episode, and the return from a state on", {"named": "gigpo"}),
    "state_graph": ("the value of the next state less that of this one", {"named": "state_graph"}),
    "tree": ("the same at branching points; three quarters of a group are branches", {"named": "tree"}),
    "ppo": ("a critic", {"kind": "ppo-shared", "settings": _PPO}),
}
"""What an advantage is, and the fields of a `Run`."""


def run_of(way: str, task: str) -> Run:
    """Return the run of a way to give credit on a task."""
    return Run(f"credit-{task}-{way}", task, "credit", **{"settings": _GROUPS, "seeds": SEEDS, **WAYS[way][1]})


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
        counts.append(_Count(trainer, task, out / "model", 10, way in ("gigpo", "state_graph")))
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


def _points(data: Mapping[str, Any], way: str, key: str) -> dict[str, float]:
    """Return the mean outcome of each seed after training."""
    return {seed: fmean(found["curve"][-1][key]) for seed, found in data["ways"][way]["seeds"].items()}


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a row for each task and way: reward and success after training, and the difference to GRPO by seeds."""
    rows = []
    for data in results.values():
        base = _points(data, BASELINE, "rewards")
        for way in [way for way in WAYS if way in data["ways"]]:
            rewards, successes = (_points(data, way, key) for key in ("rewards", "successes"))
            shared = [seed for seed in rewards if seed in base]
            gains = [rewards[seed] - base[seed] for seed in shared]
            curves = [data["ways"][way]["seeds"][seed]["curve"][-1] for seed in rewards]
            interval = mean_interval(gains)
            rows.append(
                {
                    "task": data["env"] if way == BASELINE else "",
                    "way": way,
                    "seeds": len(rewards),
                    "reward": f"{fmean(data['warm']['rewards']):.3f} → {fmean(rewards.values()):.3f}",
                    "success": f"{fmean(data['warm']['successes']):.1%} → {fmean(successes.values()):.1%}",
                    "gain": ""
                    if way == BASELINE or len(gains) < 2
                    else f"{fmean(gains):+.3f} ({interval.low:+.3f} to {interval.high:+.3f})",
                    "wins": "" if way == BASELINE else f"{sum(gain > 0 for gain in gains)} of {len(gains)}",
                    "tokens": fmean(point["tokens"] for point in curves),
                    "env_steps": fmean(point["env_steps"] for point in curves),
                    "seconds": fmean(found["seconds"] for found in data["ways"][way]["seeds"].values()),
                }
            )
    columns = [
        Column("task", "task"),
        Column("way", "credit"),
        Column("seeds", "seeds"),
        Column("reward", "test reward"),
        Column("success", "test success"),
        Column("gain", "reward less GRPO's (95%)"),
        Column("wins", "better on seeds"),
        Column("tokens", "sampled tokens", ",.0f"),
        Column("env_steps", "environment steps", ",.0f"),
        Column("seconds", "s", ".0f"),
    ]
    return markdown_table(columns, rows)


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
    marks = re.compile(r"(<!-- proof credit -->\n).*?(<!-- end credit -->)", re.DOTALL)
    body = render(results)
    document.write_text(marks.sub(lambda match: f"{match[1]}\n{body}\n\n{match[2]}", text), encoding="utf-8")
    plot(results, document.parent.parent / "images" / "credit.svg")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=CREDIT_TASKS, default=list(CREDIT_TASKS))
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
