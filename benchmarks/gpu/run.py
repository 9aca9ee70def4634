"""Measures a card for a quarter of an hour, stage by stage; with `--tiny` tries the kit on a CPU.

    python benchmarks/gpu/run.py --out DIR [--minutes 13] [--tiny] [--model FOLDER] [--stages NAME...] [--docs FILE]

A stage is a process with a time limit, and writes `DIR/NAME.json` after each of its cases. The limit ends it, and what
it has measured stays. The same command continues the run: a stage whose cases all have numbers is left out, and
a case without them is tried again. `--docs docs/results/gpu.md` puts the tables into the page; with `--minutes 0`
nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stages import MODULES, is_done

LIMITS_S = {"step": 240, "profile": 130, "engine": 90, "learning": 240, "adapters": 240, "transfer": 60}
"""Of each stage; together more than 13 minutes, since few stages need all of theirs."""
LEAST_S = 20
"""A stage that has fewer seconds left is not started: importing takes ten."""
GRACE_S = 10


def run_stage(command: list[str], limit_s: float) -> str:
    """Run a process for at most so long; return how it ended: "done", "open" (cases are missing), or why it did not."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit_s)
        return {0: "done", 3: "open"}.get(code, f"failed with {code}")
    except subprocess.TimeoutExpired:
        return f"cut after {limit_s:.0f} s"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its children; an interrupt first, by which it ends servers that it has started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=13.0, help="for all stages together")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, for a CPU")
    parser.add_argument("--model", type=Path, default=Path("build/smollm2-135m"), help="for learning and adapters")
    parser.add_argument("--stages", nargs="+", choices=MODULES, default=tuple(MODULES))
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the tables into this document")
    options = parser.parse_args()
    stop, ends = time.monotonic() + 60 * options.minutes, {}
    for name in options.stages:
        if is_done(options.out / f"{name}.json"):
            ends[name] = "done"
            continue
        limit_s = min(LIMITS_S[name], stop - time.monotonic())
        if limit_s < LEAST_S:
            ends[name] = "not started: no time left"
            continue
        print(f"\n== {name}, at most {limit_s:.0f} s", flush=True)
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stages.py")), name]
        command += ["--out", str(options.out / f"{name}.json"), "--model", str(options.model)]
        ends[name] = run_stage([*command, *["--tiny"] * options.tiny], limit_s)
    if options.docs is not None:
        put_into_page(options.out, options.docs)
    print("\n" + "\n".join(f"{name}: {end}" for name, end in ends.items()))
    return 0 if all(end in ("done", "open") for end in ends.values()) else 1


def put_into_page(out: Path, page: Path) -> None:
    """Put the tables of a folder between their marks in a document."""
    from measuring import read_results
    from run_all import put_into

    results = {f"gpu_{name}": read_results(out / f"{name}.json") for name in MODULES if (out / f"{name}.json").exists()}
    for name in put_into(page, results, with_held=False):
        print(f"{page} has no lines <!-- benchmark {name} --> and <!-- end {name} -->", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
