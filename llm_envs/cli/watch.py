"""`llm-envs watch`: follow runs in a browser while they run, as the report's page, served on this machine."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from pathlib import Path

from llm_envs.cli.arguments import port
from llm_envs.cli.parser import Flag
from llm_envs.data.storage import local_path
from llm_envs.errors import InvalidConfigError
from llm_envs.tracking.loggers import visible_text

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs watch runs/grpo --open
  llm-envs watch runs/eval --title "The first evaluation"
  llm-envs watch runs/before runs/after --port 8010
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder of collect, eval or a training, which may not have begun yet"
    )
    parser.add_argument("--port", type=port, default=0, metavar="N", help="port to listen on; default: a free one")
    parser.add_argument("--open", action=Flag, help="open it in a browser")
    parser.add_argument("--title", metavar="TEXT", help="the page's title")
    parser.add_argument("--tokenizer", metavar="DIR", help="tokenizer for the token view; default: the run's, if any")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until an interrupt."""
    from llm_envs.report.feed import Feed
    from llm_envs.report.live_server import LiveServer

    paths = [local_path(path, "a run to watch") for path in arguments.runs]
    if wrong := [path for path in paths if path.is_file() and path.suffix not in (".jsonl", ".parquet")]:
        raise InvalidConfigError(f"RUN {wrong[0]}: it is a file; give the folder of a run.")
    if arguments.tokenizer is not None and not Path(arguments.tokenizer).is_dir():
        raise InvalidConfigError(f"--tokenizer {arguments.tokenizer}: the folder does not exist.")
    feed = Feed(paths, tokenizer=arguments.tokenizer, title=arguments.title)
    with LiveServer(feed, arguments.port) as server:
        for path in paths:
            if not path.exists():
                print(visible_text(f"note: {path} does not exist yet: it is shown when it does"), flush=True)
        print(f"{server.url} follows the runs; Ctrl-C ends it, and not them", flush=True)
        if arguments.open and not _opened(server.url):
            print("note: --open found no browser", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("ended; the runs continue")
    return 0


def _opened(url: str) -> bool:
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
