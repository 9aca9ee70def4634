"""`llm-envs certify`: whether anyone's text environment is fit for training."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from llm_envs.cli.arguments import add_env_arguments, env_kwargs_of, number, positive, seconds
from llm_envs.cli.next_line import name_page
from llm_envs.cli.parser import Flag, Repeatable
from llm_envs.errors import InvalidConfigError
from llm_envs.processes import end_with_parent
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.checker.certification import Certificate

__all__ = ["ABOUT", "add_arguments", "run"]

ABOUT = "Certify anyone's text environment for training, with a report page."

EXAMPLES = """
examples:
  llm-envs certify llm/Calculator-v0 --out runs/certificate
  llm-envs certify my_package.envs:MyEnv --oracle my_package.envs:solve --chance-rate 0.25
  llm-envs certify llm_envs.bridges.openenv:OpenEnvEnv --env-kwargs '{"base_url": "http://localhost:8000"}'
  llm-envs certify llm/Calculator-v0 --all-levels --check splits
  llm-envs certify my/Task-v0 --check hacks --check floor --json

Exit codes: 0 no check failed, 1 a check failed, 2 wrong usage or an unknown environment.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("env", metavar="ENV", help="a registered id, or FILE.py:NAME of a text environment")
    add_env_arguments(parser)
    parser.add_argument("--check", action=Repeatable, metavar="NAME", help="run only this check (repeatable)")
    parser.add_argument("--all-levels", action=Flag, help="examine each level; by default the default one")
    parser.add_argument("--oracle", metavar="MODULE:FUNCTION", help="(environment, observation) to a winning action")
    parser.add_argument("--learn", metavar="MODULE:FUNCTION", help="trains on the environment: the learnability check")
    share = number("a number between 0 and 1", lambda value: 0 <= value <= 1)
    parser.add_argument("--chance-rate", type=share, metavar="P", help="success rate of players without skill")
    parser.add_argument("--success-at", type=float, metavar="R", help="lowest return of a success; default 1")
    parser.add_argument("--n-problems", type=positive, metavar="N", help="number of problems; default: many")
    parser.add_argument("--max-turns", type=positive, metavar="N", help="turns per episode; default 200")
    parser.add_argument(
        "--max-step-s", type=seconds, metavar="S", help="seconds allowed for one step of the environment; default 0.1"
    )
    parser.add_argument("--max-reset-s", type=seconds, metavar="S", help="seconds a reset may take; default 1")
    parser.add_argument(
        "--max-s", type=seconds, default=3600.0, metavar="S", help="seconds for all checks together; default 3600"
    )
    parser.add_argument(
        "-n", dest="n_episodes", type=positive, metavar="N", help="problems, each played once; default 20"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for certificate.html, certificate.json and badge.json")
    parser.add_argument("--json", action=Flag, help="print all findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Certify, print a line for each finding, and write the files."""
    import json

    from llm_envs.report.certificate import FILES, write_certificate

    for name in FILES if arguments.out else ():
        Path(arguments.out, name).unlink(missing_ok=True)  # an earlier certificate must not stay if this one fails
    certificate = _in_a_process(arguments)
    if isinstance(certificate, str):
        print(visible_text(f"FAIL  {arguments.env}: {certificate}"), file=sys.stderr)
        return 1
    print(json.dumps(certificate.to_json(), indent=2) if arguments.json else visible_text(str(certificate)))
    if arguments.out:
        page, *_ = write_certificate(certificate, arguments.out)
        if not arguments.json:
            print(visible_text(f"the certificate is in {page}"))
        name_page(page)
    return 0 if certificate.passed else 1


def _in_a_process(arguments: argparse.Namespace) -> Certificate | str:
    """Certify in a process of this one's kind, which the environment may end; return the reason if none comes of it."""
    context = multiprocessing.get_context("fork")  # a fork knows the environments that are registered here
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(sender, arguments), daemon=False)
    process.start()
    sender.close()
    try:
        if not receiver.poll(arguments.max_s):
            return f"the checks did not end within {arguments.max_s:g} s: it hangs, or needs a greater --max-s"
        found = receiver.recv()
    except EOFError:
        process.join()
        return f"it ended the process (exit code {process.exitcode}): an environment must raise an error instead"
    finally:
        process.kill()
    if isinstance(found, Exception):
        raise found
    return cast("Certificate | str", found)


def _examine(sender: Connection, arguments: argparse.Namespace) -> None:
    """Send the certificate, or the error."""
    end_with_parent()
    try:
        sender.send(_certificate(arguments))
    except KeyboardInterrupt:  # the parent has it too, and reports it
        return
    except SystemExit as error:
        sender.send(f"it raised SystemExit({error.code!r}): an environment must raise another error")
    except Exception as error:
        sender.send(error)


def _certificate(arguments: argparse.Namespace) -> Certificate:
    from llm_envs.checker import Settings
    from llm_envs.checker.certification import certify, certify_levels

    names = ("chance_rate", "success_at", "n_problems", "max_turns", "max_step_s", "max_reset_s", "n_episodes")
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name, setting in (("oracle", "oracle"), ("learn", "learner")):
        if (function := getattr(arguments, name)) is not None:
            given[setting] = _function(f"--{name}", function)
    kwargs = env_kwargs_of(arguments)
    if arguments.all_levels and "difficulty" in kwargs:
        raise InvalidConfigError("--difficulty and --all-levels: give only one.")
    examine = certify_levels if arguments.all_levels else certify
    return examine(arguments.env, Settings(**given), checks=arguments.check or None, **kwargs)


def _function(option: str, name: str) -> Any:
    """Import "module:function"."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(f"{option} {name}: {error}; give MODULE:FUNCTION.") from error
    if not callable(found):
        raise InvalidConfigError(f"{option} {name} is a {type(found).__name__}; it must be a function.")
    return found
