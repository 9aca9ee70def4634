"""The proof that training learns: every run of `proof/runs.py`, each in a process of its own, one after another.

    python -m proof.run NAME [--seed N ...] [--fresh]
    python -m proof.run --all [--vllm-python PYTHON] [--agents-python PYTHON] [--fresh] [--docs FILE]
    python -m proof.run --list

Writes `proof/results/NAME.json`; a run whose seeds are all there is skipped, unless `--fresh`. With `--seed`, only
those seeds, which may be others than the run's own: into `runs/proof/NAME.json`, never among the results. Warm starts
are kept in `runs/proof/warm` and shared. Runs that sample with vLLM start with `--vllm-python`, the Python of an
environment that has it; without the option, with this one, and they are left out if it has none. So do those whose
agent needs a framework, with `--agents-python`. `--docs` puts the tables of all results into a document. Two cores and
no accelerator are enough.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; read when vLLM is imported
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from benchmarks.measuring import describe_hardware, describe_versions, find_commit
from proof.runs import RUNS, Run
from proof.tables import RESULTS, put_into, read_result
from proof.tasks import DATA_SEED, TASKS, Task, describe_task

WORK = Path("runs/proof")
FORMAT = 1


def train(
    run: Run, task: Task, seeds: tuple[int, ...], path: Path, *, fresh: bool, work: Path = WORK
) -> dict[str, Any]:
    """Train the seeds that are not in the file yet; write it after each.

    Args:
        run: Which training.
        task: What it trains on.
        seeds: Of the training.
        path: The JSON; what is in it of other settings is replaced.
        fresh: Whether all of the seeds are trained again.
        work: For the warm starts and the models.

    Returns:
        What the file holds.
    """
    from proof.train import settings_of, train_seed
    from proof.warm import warm_start

    if run.teacher:
        _train_teacher(RUNS[run.teacher], path, work)
    folder, warm = warm_start(run.task, task, work / "warm", run.agent)
    settings = settings_of(run, task, 0)
    del settings["seed"]
    data = {
        "format": FORMAT,
        "run": describe_run(run, task),
        "name": run.name,
        "task": run.task,
        "env": task.env,
        "algorithm": run.algorithm,
        "engine": run.engine,
        "settings": json.loads(json.dumps(settings)),
        "warm": warm,
        "seeds": {},
    }
    kept = read_result(path)
    if kept is not None and not fresh and kept["run"] == data["run"] and _is_same(kept["warm"], warm):
        data["seeds"] = kept["seeds"]
    for seed in seeds:
        if str(seed) in data["seeds"]:
            continue
        result = train_seed(run, task, folder, seed, work / "models" / f"{run.name}-{seed}")
        result |= {"versions": describe_versions(), "hardware": describe_hardware(), "commit": find_commit()}
        data["seeds"][str(seed)] = result
        _write(path, data)
    return data


def _train_teacher(teacher: Run, path: Path, work: Path) -> None:
    """Train the first seed of a teacher's run if its model or its results, which belong beside `path`, are missing."""
    has_model = (work / "models" / f"{teacher.name}-{teacher.seeds[0]}" / "model").is_dir()
    beside, task = path.with_name(f"{teacher.name}.json"), TASKS[teacher.task]
    train(teacher, task, teacher.seeds[:1], beside, fresh=not has_model, work=work)


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two warm starts are equal in everything but the time they took."""
    return {**one, "seconds": 0} == {**other, "seconds": 0}


def describe_run(run: Run, task: Task) -> dict[str, Any]:
    """Return everything that a run's results depend on, but its seeds: JSON types only."""
    described: dict[str, Any] = {"kind": run.kind, "data_seed": DATA_SEED}
    if run.kind == "grpo":
        # The key is that of the first results, whose recipes took the steps of the algorithms of these names.
        described = {"recipe": run.named, "per_turn_gamma": run.per_turn_gamma}
        described |= {"changes": dict(run.changes)} if run.changes else {}
    if run.algorithms:
        described["algorithms"] = {str(start): name for start, name in run.algorithms.items()}
    described |= {"lora_rank": run.lora_rank} if run.lora_rank else {}
    if run.teacher:
        described["teacher"] = describe_run(RUNS[run.teacher], TASKS[RUNS[run.teacher].task])
    described |= {"agent": run.agent} if run.agent else {}
    described |= {"measure_every": run.measure_every} if run.measure_every else {}
    described |= {} if run.trains_summaries else {"trains_summaries": False}
    described |= {"engine": run.engine, "settings": dict(run.settings), "task": describe_task(task)}
    return json.loads(json.dumps(described))


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in data.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def run_all(options: argparse.Namespace) -> int:
    """Start each run as a process of its own; return the exit code."""
    failed = []
    for run in RUNS.values():
        python = sys.executable
        if run.agent or run.engine == "vllm":
            option, module = ("agents", "langchain") if run.agent else ("vllm", "vllm")
            given = getattr(options, f"{option}_python")
            if given is None and importlib.util.find_spec(module) is None:
                print(f"left out, since it needs {module} (--{option}-python): {run.name}")
                continue
            python = given or python
        command = [python, "-m", "proof.run", run.name, "--out", str(options.out), *["--fresh"] * options.fresh]
        print(f"\n== {run.name}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(run.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_one(name: str, options: argparse.Namespace) -> None:
    """Run by name in this process, and say what came of it."""
    run = RUNS[name]
    seeds, out = (tuple(options.seed), WORK) if options.seed else (run.seeds, options.out)
    kept = None if options.fresh else read_result(out / f"{name}.json")
    fits = kept is not None and kept["run"] == describe_run(run, TASKS[run.task])
    if kept is not None and fits and all(str(seed) in kept["seeds"] for seed in seeds):
        print(f"{name}: {out / f'{name}.json'} has its seeds; --fresh runs it again")
        return
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    train(run, TASKS[run.task], seeds, out / f"{name}.json", fresh=options.fresh)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a run; see --list")
    parser.add_argument("--all", action="store_true", help="all runs, each in a process of its own")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--seed", type=int, nargs="+", help="other seeds, written beside the results")
    parser.add_argument("--fresh", action="store_true", help="run again what is there")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="runs what samples with vLLM")
    parser.add_argument("--agents-python", metavar="PYTHON", help="runs what plays through an agent's framework")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the tables into this document")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in RUNS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(RUNS)}")
    if options.list:
        print("\n".join(RUNS))
    for name in options.names:
        run_one(name, options)
    code = run_all(options) if options.all else 0
    if options.docs is not None:
        for mark in put_into(options.docs, options.out):
            print(f"{options.docs} has no lines <!-- proof {mark} --> and <!-- end {mark} -->", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
