"""`llm-envs report`: look at runs in a browser, as one HTML file that needs nothing else."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from llm_envs.cli.arguments import number, positive
from llm_envs.cli.next_line import name_page
from llm_envs.cli.parser import Flag
from llm_envs.errors import InvalidConfigError, LLMEnvsError
from llm_envs.tracking.loggers import visible_text

__all__ = ["add_arguments", "run"]

FILE_NAME = "report.html"

EXAMPLES = """
examples:
  llm-envs report runs/oracle --open
  llm-envs report outputs/grpo --tokenizer outputs/grpo/checkpoint-100
  llm-envs report runs/before runs/after --out compared.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a folder of collect, a trainer (its output_dir) or an evaluation; several are compared",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=f"output file; default: {FILE_NAME} in the run's folder, or in the current one for several runs or one on "
        "object storage",
    )
    parser.add_argument("--open", action=Flag, help="open it in a browser")
    parser.add_argument("--title", metavar="TEXT", help="the page's title")
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer for the token view; default: the run's, if any")
    parser.add_argument(
        "--max-tokens",
        type=number("an integer of at least 0", lambda value: value >= 0, lambda text: int(text.replace(",", ""))),
        metavar="N",
        help="tokens kept in the page; default 1,000,000; 0 for none",
    )
    parser.add_argument(
        "--max-episodes",
        type=positive,
        metavar="N",
        help="episodes kept of each run, those of randomly drawn problems; default 20,000",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page, print the notes about missing parts, and open the page if requested."""
    from llm_envs.data.storage import as_path, exists, local_path
    from llm_envs.report.site import MAX_EPISODES, MAX_TOKENS, write_report

    for path in arguments.runs:
        if not exists(as_path(path)):
            raise InvalidConfigError(f"{path} does not exist: give the folder of a run.")
    first = Path(arguments.runs[0])
    folder = first if len(arguments.runs) == 1 and first.is_dir() else Path()  # never on object storage
    target = local_path(arguments.out, "a report") if arguments.out else folder / FILE_NAME
    notes = write_report(
        arguments.runs,
        target,
        tokenizer=arguments.tokenizer,
        title=arguments.title,
        max_episodes=arguments.max_episodes or MAX_EPISODES,
        max_tokens=MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens,
    )
    for note in notes:
        print(visible_text(f"note: {note}"))
    print(visible_text(f"the report is in {target} ({target.stat().st_size / 1e6:.1f} MB)"))
    if arguments.open:
        _open(target.resolve())
    else:
        name_page(target)
    return 0


def _open(target: Path) -> None:
    try:
        is_open = webbrowser.open(target.as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        raise LLMEnvsError(f"the report is written, but no browser was found for --open: open {target} yourself.")
