"""What `import llm_envs` costs beyond Gymnasium.

    python benchmarks/import_time.py [--check] [--out FILE] [--rounds N]

Fresh interpreters import Gymnasium, and then our package; the time is that of the second import alone, in CPU time, the
median of all rounds. A last row is the wall time of a whole `python -c "import llm_envs"`. With `--check` the exit code
is 1 above 0.3 s, or if torch came along.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser

MAX_S = 0.3
HEAVY = ("torch", "transformers", "trl", "vllm", "datasets", "pandas", "mcp")
CODE = f"""
import json, sys, time
started = time.process_time()
import gymnasium
between = time.process_time()
import llm_envs
ended = time.process_time()
heavy = [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps({{"gymnasium": between - started, "llm_envs": ended - between, "heavy": heavy}}))
"""
METHOD = (
    "Fresh interpreters, CPU time, the median of the rounds: `import gymnasium`, and `import llm_envs` after it, which "
    "loads no torch. Held: 0.3 s."
)
COLUMNS = [Column("what", "what"), Column("ms", "ms", ".1f")]


def measure(n_rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows, and which heavy packages were loaded."""
    found = [json.loads(run(CODE)) for _ in range(n_rounds)]
    walls = []
    for _ in range(n_rounds):
        started = time.perf_counter()
        run("import llm_envs")
        walls.append(time.perf_counter() - started)
    rows = [
        {"what": "import gymnasium", "ms": 1e3 * statistics.median(one["gymnasium"] for one in found)},
        {"what": "import llm_envs, after it", "ms": 1e3 * statistics.median(one["llm_envs"] for one in found)},
        {"what": "the whole process, wall time", "ms": 1e3 * statistics.median(walls)},
    ]
    return [row | {"ms": round(row["ms"], 1)} for row in rows], sorted({name for one in found for name in one["heavy"]})


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rows, heavy = measure(options.rounds)
    figures = [
        Figure("import llm_envs", rows[1]["ms"], "ms beyond gymnasium", "lower", at_most=1e3 * MAX_S),
        Figure("heavy packages that it loads", float(len(heavy)), ", ".join(heavy), "lower", at_most=0),
    ]
    return finish(Report("import_time", "Importing the package", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
