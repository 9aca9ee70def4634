"""Every benchmark in one run, each in a process of its own, one after another.

    python benchmarks/run_all.py [--check] [--vllm-python PYTHON] [--out DIR] [--docs FILE] [NAMES...]

Writes `DIR/NAME.json` for each, `DIR/all.json` with all of them, and `DIR/tables.md`.
`--docs docs/results/performance.md` puts the tables of all results in the folder into a document,
between the lines `<!-- benchmark NAME -->` and `<!-- end NAME -->`; the name `held` stands for the table of all limits.
With NAMES, it puts the tables of these only. A name of a benchmark that is run by hand puts its table from the folder.
Benchmarks that need vLLM run with `--vllm-python`, the Python of an environment that has it; without the option, with
this one, and they are left out if it has none. `--check` makes every benchmark check its limits; the exit code is 1 if
one missed or failed.
Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring import RESULTS, Column, ReportError, figures_of, markdown_table, read_results

HERE = Path(__file__).parent
PLAIN = (
    "import_time",
    "memory",
    "env_steps",
    "codec_turns",
    "parsing",
    "collector_scripted",
    "grpo_step",
    "training_steps",
    "long_rows",
    "turns",
    "shards",
    "env_servers",
)
WITH_VLLM = ("concurrency", "auto_concurrency", "rollout_vs_engine", "latency", "rollout_vs_trl", "real_step")
BY_HAND = (
    "overlap",
    "real_until",
    "long_rows_pretrained",
    "gpu_sleep",
    "ray_overhead",
    "million",
    "shells",
    "lora_sync",
)
"""Half an hour each, or in another environment, or on a GPU. Run by hand into the same folder; read from it."""

KNOWN = (*PLAIN, *WITH_VLLM, *BY_HAND)


def run(name: str, python: str, out: Path, *, check: bool) -> int:
    """Run one benchmark; return its exit code."""
    command = [python, str(HERE / f"{name}.py"), "--out", str(out / f"{name}.json"), *["--check"] * check]
    print(f"\n== {name}", flush=True)
    started = time.perf_counter()
    code = subprocess.run(command, check=False).returncode
    print(f"({time.perf_counter() - started:.0f} s{f', exit code {code}' * bool(code)})", flush=True)
    return code


def collect_results(out: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a folder by name, in the order of the benchmarks."""
    found = {}
    for name in (*PLAIN, *WITH_VLLM, *BY_HAND):
        if (out / f"{name}.json").exists():
            try:
                found[name] = read_results(out / f"{name}.json")
            except ReportError as error:
                print(f"left out: {error}", file=sys.stderr)
    return found


def render(name: str, data: dict[str, Any]) -> str:
    """Return the part of a document that shows one result."""
    columns = [Column(**column) for column in data["columns"]]
    command = re.sub(r" --out \S+", "", data.get("command", f"python benchmarks/{name}.py --check"))
    return "\n\n".join(
        [
            f"`{command}`: {data['method']}",
            markdown_table(columns, data["rows"]),
            _describe(data),
        ]
    )


def render_held(results: dict[str, dict[str, Any]]) -> str:
    """Return the figures that have a limit."""
    rows = [
        {"figure": name, "value": figure.value, "unit": figure.unit, "held": _limit(figure), "": _verdict(figure)}
        for data in results.values()
        for name, figure in figures_of(data).items()
        if figure.at_least is not None or figure.at_most is not None
    ]
    columns = [Column("figure", "figure"), Column("value", "value", ",.6g"), Column("unit", "unit")]
    return markdown_table([*columns, Column("held", "held"), Column("", "")], rows)


def render_all(results: dict[str, dict[str, Any]]) -> str:
    """Return all results as one document."""
    parts = [f"## {data['title']}\n\n{render(name, data)}" for name, data in results.items()]
    return "\n\n".join([f"## Numbers held\n\n{render_held(results)}", *parts]) + "\n"


def put_into(document: Path, results: dict[str, dict[str, Any]], *, with_held: bool = True) -> list[str]:
    """Put tables between their marks in a document, `held` being that of all limits.

    Returns:
        The names of what has no place there.
    """
    text, missing = document.read_text(encoding="utf-8"), []
    bodies = {name: render(name, data) for name, data in results.items()}
    bodies |= {"held": render_held(results)} if with_held else {}
    for name, body in bodies.items():
        marks = re.compile(f"(<!-- benchmark {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, n_found = marks.subn(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
        if not n_found:
            missing.append(name)
    document.write_text(text, encoding="utf-8")
    return missing


def _describe(data: dict[str, Any]) -> str:
    hardware, versions = data["hardware"], data["versions"]
    named = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "llm-envs")
    gpu = f"{hardware['gpu']}, " if "gpu" in hardware else ""
    return f"({gpu}{hardware['cpu']}, {hardware['cpus']} cores; {named}.)"


def _limit(figure: Any) -> str:
    return f"≥ {figure.at_least:,g}" if figure.at_least is not None else f"≤ {figure.at_most:,g}"


def _verdict(figure: Any) -> str:
    return "missed" if figure.miss() else "held"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(KNOWN)}; by default all that are not run by hand")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure misses its limit")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="runs the benchmarks that need vLLM")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the tables into this document")
    options = parser.parse_args()
    unknown = set(options.names) - {*KNOWN}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(KNOWN)}")
    wanted = [name for name in options.names or KNOWN if name not in BY_HAND]
    if options.vllm_python is None and importlib.util.find_spec("vllm") is None:
        left_out = [name for name in wanted if name in WITH_VLLM]
        if left_out:
            print(f"left out, since they need vLLM (--vllm-python): {', '.join(left_out)}")
        wanted = [name for name in wanted if name not in WITH_VLLM]
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in wanted:
        python = options.vllm_python if name in WITH_VLLM and options.vllm_python else sys.executable
        if run(name, python, options.out, check=options.check):
            failed.append(name)
    results = collect_results(options.out)
    (options.out / "all.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (options.out / "tables.md").write_text(render_all(results), encoding="utf-8")
    print(f"\nwritten to {options.out}/all.json and tables.md")
    if options.docs is not None:
        named = {name: data for name, data in results.items() if name in (options.names or KNOWN)}
        for name in put_into(options.docs, named, with_held=not options.names):
            print(f"{options.docs} has no lines <!-- benchmark {name} --> and <!-- end {name} -->", file=sys.stderr)
    if failed:
        print(f"missed or failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
