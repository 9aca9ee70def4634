"""The options `--report-to`, `--project`, `--run-name`, `--log-every-s` and `--trace`, and what they ask for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from llm_envs.cli.arguments import seconds
from llm_envs.cli.parser import Flag
from llm_envs.data.storage import is_remote
from llm_envs.errors import InvalidConfigError
from llm_envs.tracking.run_logger import NEEDS_FOLDER, TRACKERS, RunLogger, tracker_logger
from llm_envs.tracking.spans import tracing
from llm_envs.tracking.trackers import DEFAULT_PROJECT

__all__ = ["add_tracking_arguments", "check_tracking", "tracker_of"]


def add_tracking_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for trackers."""
    group = parser.add_argument_group("logging")
    group.add_argument(
        "--report-to",
        nargs="+",
        choices=[*TRACKERS, "none"],
        metavar="TRACKER",
        help=f"{', '.join(TRACKERS)} (one or several), or none, the default; tensorboard, csv and jsonl need --out. "
        "W&B is offline unless WANDB_MODE is online",
    )
    group.add_argument("--project", metavar="NAME", help=f"project of wandb and trackio; default: {DEFAULT_PROJECT}")
    group.add_argument("--run-name", metavar="NAME", help="name of the trackers' run; default: theirs")
    group.add_argument(
        "--log-every-s", type=seconds, default=10.0, metavar="S", help="seconds between logged steps; default 10"
    )
    group.add_argument(
        "--trace",
        action=Flag,
        help="send OpenTelemetry spans of the episodes to OTEL_EXPORTER_OTLP_ENDPOINT",
    )


def check_tracking(arguments: argparse.Namespace) -> None:
    """Check that the options are compatible, without starting a tracker.

    Raises:
        InvalidConfigError: If they conflict.
    """
    names = arguments.report_to or ["none"]
    if "none" in names and len(set(names)) > 1:
        raise InvalidConfigError(f"--report-to {' '.join(names)}: none cannot be combined.")
    for option in ("project", "run_name"):
        if getattr(arguments, option) is not None and names == ["none"]:
            raise InvalidConfigError(f"--{option.replace('_', '-')} needs --report-to with a tracker.")
    lying = [name for name in names if name in NEEDS_FOLDER]
    if lying and (arguments.out is None or is_remote(arguments.out)):
        raise InvalidConfigError(f"--report-to {lying[0]} writes into the run's folder: give --out DIR, a local one.")


@contextlib.contextmanager
def tracker_of(arguments: argparse.Namespace, config: Mapping[str, Any]) -> Iterator[RunLogger | None]:
    """Create the logger that the options request, None if they request none; trace while the block lasts.

    Raises:
        MissingExtraError: Like `tracker_logger` and `tracing`.
    """
    with tracing() if arguments.trace else contextlib.nullcontext(), _logger(arguments, config) as logger:
        yield logger


def _logger(
    arguments: argparse.Namespace, config: Mapping[str, Any]
) -> contextlib.AbstractContextManager[RunLogger | None]:
    from llm_envs.evaluation.results import installed_versions

    names = arguments.report_to or ["none"]
    if "none" in names:
        return contextlib.nullcontext()
    return tracker_logger(
        names,
        project=arguments.project,
        folder=arguments.out,
        run_name=arguments.run_name,
        config={**config, "versions": installed_versions()},
    )
