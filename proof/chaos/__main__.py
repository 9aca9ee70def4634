"""Chaos: rounds of scenarios under faults drawn from a seed, each in a process of its own with a time limit.

    python -m proof.chaos                                        10 rounds of each scenario, with the seeds 0 to 9
    python -m proof.chaos --rounds 50 --scenarios collection     50 rounds of one
    python -m proof.chaos --rounds 1 --seed 7 --scenarios ray    repeats the round that failed with seed 7
    python -m proof.chaos --docs docs/results/chaos.md           writes the table of the stored rounds into the page

Rounds are added to `proof/results/chaos/rounds.json`, where a round with the same scenario and seed is replaced. The
exit code is 1 if an invariant did not hold in any round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from proof.chaos.faults import kill
from proof.chaos.rounds import Outcome
from proof.chaos.scenarios import SCENARIOS, Scenario
from proof.chaos.table import RESULTS, Round, put_into_page, read_rounds, write_rounds

ROUND_VARIABLE = "CHAOS_ROUND"
"""In the environment of a round's processes: by it, those that are left behind are found."""
GRACE_S = 90.0
"""Within this time, all processes of a round must have ended after it. Ours take a second; Ray's agents, whose driver
was killed, up to a minute."""


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round; the others count on from it")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each scenario")
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--ray-python", default=".venv-agents/bin/python", help="interpreter that has Ray")
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="interpreter that has vLLM")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to which rounds are added")
    parser.add_argument("--keep", type=Path, help="keep the folders of rounds with a problem here")
    parser.add_argument("--docs", type=Path, help="write the table into this page, and do nothing else")
    parser.add_argument("--play", help=argparse.SUPPRESS)  # a round's own process
    options = parser.parse_args()
    if options.play:
        return _play(options.play, options.seed, Path.cwd())
    if options.docs:
        put_into_page(options.docs, read_rounds(options.out))
        return 0
    pythons = {"ray": options.ray_python, "vllm": options.vllm_python, None: sys.executable}
    n_bad = 0
    for name in options.scenarios:
        python = pythons[SCENARIOS[name].needs]
        if shutil.which(python) is None:
            print(f"{name}: left out, {python} is not there", flush=True)
            continue
        for seed in range(options.seed, options.seed + options.rounds):
            found = run_round(name, SCENARIOS[name], seed, python, options.keep)
            write_rounds(options.out, [*read_rounds(options.out), found])
            n_bad += bool(found.problems)
            print(f"{name} --seed {seed}: {found.seconds:.0f} s, {', '.join(found.faults)}", flush=True)
            for problem in found.problems:
                print(f"    PROBLEM {problem}", flush=True)
    print(f"{n_bad} rounds with a problem")
    return int(n_bad > 0)


def run_round(name: str, scenario: Scenario, seed: int, python: str, keep: Path | None = None) -> Round:
    """Run a round in a process of its own, end all its processes, and return what it found."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-{seed}-"))
    mark = folder.name
    command = [python, "-m", "proof.chaos", "--play", name, "--seed", str(seed)]
    env = os.environ | {ROUND_VARIABLE: mark, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    if scenario.is_isolated and _can_unshare():
        command, env = ["unshare", "-rm", *command], env | {"CHAOS_NAMESPACE": "1"}
    command[command.index(python)] = str(Path(python).absolute())
    started = time.monotonic()
    try:
        with open(folder / "round.log", "w") as log:
            done = subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, timeout=scenario.limit_s)
        outcome = _read_outcome(folder, done.returncode)
    except subprocess.TimeoutExpired:
        outcome = Outcome(problems=[f"the round hung: it has not ended after {scenario.limit_s:.0f} s"])
    seconds = time.monotonic() - started
    until_s = time.monotonic() + GRACE_S
    while (left := _of_round(mark)) and time.monotonic() < until_s:
        time.sleep(0.1)
    if left:
        outcome.problems.append(f"left behind: {[_read(pid, 'cmdline')[:200] for pid in left]}")
    for pid in left:
        kill(pid)
    if keep is not None and outcome.problems:
        shutil.copytree(folder, keep / folder.name, symlinks=True)
    shutil.rmtree(folder, ignore_errors=True)
    return Round(scenario=name, seed=seed, seconds=round(seconds, 1), **dataclasses.asdict(outcome))


def _play(name: str, seed: int, folder: Path) -> int:
    """Play a round in this process, and write its outcome down."""
    outcome = SCENARIOS[name].play(seed, folder)
    if outcome.problems and (folder / "disk").exists():  # a mounted disk ends with this process
        shutil.copytree(folder / "disk", folder / "disk-as-it-was", symlinks=True)
    (folder / "outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))
    return 0


def _read_outcome(folder: Path, code: int) -> Outcome:
    if code == 0:
        found: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
        return Outcome(**found)
    return Outcome(problems=[f"the round ended with {code}: {(folder / 'round.log').read_text()[-3000:]}"])


def _of_round(mark: str) -> list[int]:
    """Return the processes of a round that run still; one that has ended has no variables."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if f"{ROUND_VARIABLE}={mark} " in _read(pid, "environ")]


def _read(pid: int, name: str) -> str:
    """Return a list of texts in `/proc`, such as the command line, with a space after each."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ")
    return ""


def _can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run(["unshare", "-rm", "true"]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
