"""The command `llm-envs`: runs its subcommands and prints errors in one line.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. `--debug` shows the traceback. Only the module of the
given command is imported, and heavy libraries only where they are used. More commands come from the entry points of the
group `llm_envs.commands`: modules with `ABOUT`, `add_arguments` and `run`, and `EXAMPLES` for the end of the help.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from llm_envs import __version__
from llm_envs.cli.parser import Parser, take_debug, words
from llm_envs.errors import InvalidConfigError, LLMEnvsError, UnknownTaskError
from llm_envs.processes import terminated_as_interrupted
from llm_envs.registration import load_entry_points
from llm_envs.tracking.loggers import visible_text

__all__ = ["COMMANDS", "COMMAND_GROUP", "Command", "all_commands", "create_parser", "main"]

COMMAND_GROUP = "llm_envs.commands"
"""Entry-point group of commands that the core does not have."""

EXAMPLES = """
examples:
  llm-envs list --family games
  llm-envs play llm/Calculator-v0
  llm-envs eval llm/Calculator-v0 --model DIR -n 200 -k 4 --out runs/eval
  llm-envs train grpo --env llm/Calculator-v0 --model DIR --out runs/grpo
  llm-envs watch runs/grpo --open
  llm-envs report runs/grpo --open

`llm-envs COMMAND --help` lists the options of each. Write options with dashes or underscores.
"""
WRONGLY_ASKED = (InvalidConfigError, UnknownTaskError)


class Command(NamedTuple):
    """One command: its module, and its description."""

    module: str
    about: str
    add: str = "add_arguments"
    """Name of the module's function that adds the arguments to a parser."""
    run: str = "run"
    """Name of the module's function that runs the command."""
    reads_config: bool = True


COMMANDS = {
    "list": Command(
        "llm_envs.cli.tasks", "List the tasks with a one-line description.", "add_list_arguments", "list_tasks"
    ),
    "check": Command("llm_envs.cli.tasks", "Check the contract of tasks.", "add_check_arguments", "check"),
    "new-task": Command("llm_envs.cli.new_task", "Write a working task with its test, as a template."),
    "play": Command("llm_envs.cli.play", "Play a task and print the conversation with its rewards."),
    "collect": Command("llm_envs.cli.collect", "Play tasks and save the episodes in a folder, or resume a run."),
    "eval": Command("llm_envs.cli.eval", "Measure a policy on tasks: success, reward, intervals."),
    "branch": Command("llm_envs.cli.branch", "Play a stored episode again from one of its turns on, many times."),
    "serve-envs": Command("llm_envs.cli.serve_envs", "Run environments for runs on other machines."),
    "merge": Command("llm_envs.cli.merge", "Join the shards that several machines played into one run."),
    "rescore": Command("llm_envs.cli.rescore", "Give the episodes of a stored run new rewards, in a new folder."),
    "export": Command("llm_envs.cli.export", "Convert a collected run for other libraries."),
    "report": Command("llm_envs.cli.report", "Write a page of runs for a browser."),
    "watch": Command("llm_envs.cli.watch", "Follow runs in a browser while they run."),
    "repository": Command("llm_envs.cli.repository", "Make problems from a Python project."),
    "doctor": Command("llm_envs.cli.doctor", "Examine a model before training it."),
    "train": Command(
        "llm_envs.cli.train",
        "Train a model; without a name, list the trainings.",
        reads_config=False,  # each training reads its own
    ),
    "completion": Command("llm_envs.cli.shell_completion", "Print the shell completion script.", reads_config=False),
}


def all_commands() -> dict[str, Command]:
    """Return the commands of the core and of entry points, which are imported for their descriptions."""
    found = {name: Command(module.__name__, module.ABOUT) for name, module in load_entry_points(COMMAND_GROUP).items()}
    return COMMANDS | {name: command for name, command in sorted(found.items()) if name not in COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Raises:
        SystemExit: With 0 for `--help` and `--version`, with 2 for an invalid command line.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed the stream (`2>&-`), so nobody reads it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if not sys.stderr.isatty():  # bars of transformers, which would fill a log with carriage returns
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    given, is_debug = take_debug(sys.argv[1:] if argv is None else argv)
    if not given and "_ARGCOMPLETE" not in os.environ:
        create_parser().print_help()
        return 0
    if "_ARGCOMPLETE" in os.environ:
        from llm_envs.cli.shell_completion import complete

        complete(create_parser())
    by: list[str] = []
    try:
        with terminated_as_interrupted() as by:
            try:
                place = words(given)[:1]
                arguments = create_parser(given[place[0]] if place else "").parse_args(given)
            except InvalidConfigError as error:
                raise SystemExit(_print_error(error, is_debug)) from None
            return int(arguments.function(arguments) or 0)
    except KeyboardInterrupt as error:
        print(f"llm-envs: interrupted{''.join(by[:1])}{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`). Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _print_error(error, is_debug)


def _print_error(error: Exception, is_debug: bool) -> int:
    """Print an error in one line and return the exit code."""
    if is_debug:
        traceback.print_exception(error)
    print(f"llm-envs: error: {_one_line(error)}", file=sys.stderr)
    return 2 if isinstance(error, WRONGLY_ASKED) else 1


def _one_line(error: Exception) -> str:
    """Return our messages as they are, and others with their class and a hint at `--debug`."""
    message = " ".join(visible_text(str(error)).split())
    if isinstance(error, LLMEnvsError):
        return message
    return f"{type(error).__name__}: {message} (--debug shows the traceback)"


def create_parser(only: str | None = None) -> Parser:
    """Return the parser of the command line.

    Args:
        only: Import only this command's module and add its arguments; None: all.
    """
    common = Parser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    parser = Parser(
        prog="llm-envs",
        description="Text environments for language models: play, check, measure, train.",
        epilog=EXAMPLES,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="print the version")
    known = COMMANDS if only in COMMANDS else all_commands()
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    parser.commands = {
        name: commands.add_parser(name, help=command.about, description=command.about, parents=[common])
        for name, command in known.items()
    }
    for name, command in known.items():
        if only in (None, name):
            module = importlib.import_module(command.module)
            parser.commands[name].epilog = getattr(module, "EXAMPLES", None)
            getattr(module, command.add)(parser.commands[name])
            parser.commands[name].set_defaults(function=getattr(module, command.run))
            if command.reads_config:
                parser.commands[name].add_config_argument()
    return parser


if __name__ == "__main__":
    sys.exit(main())
