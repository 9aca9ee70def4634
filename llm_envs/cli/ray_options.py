"""The options of a run on Ray, and the policy and collector that a command plays with: hooks of `room_options`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from llm_envs.cli.arguments import positive
from llm_envs.cli.parser import json_object
from llm_envs.cli.policy_options import open_player
from llm_envs.errors import InvalidConfigError

__all__ = ["add_arguments", "open_collector"]

HERE = "here"
EXAMPLES = {
    "collect": "  llm-envs collect llm/Calculator-v0 --model DIR --policy vllm -n 1000 "
    "--out runs/ray --ray auto --ray-gpus 1\n"
}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of Ray."""
    if command == "doctor":
        return
    group = parser.add_argument_group("Ray")
    group.add_argument(
        "--ray",
        nargs="?",
        const=HERE,
        metavar="ADDRESS",
        help="play in Ray actors of the cluster at ADDRESS; default: the one found here, else a new one",
    )
    group.add_argument("--ray-actors", type=positive, metavar="N", help="Ray: actors; default: as many as have room")
    group.add_argument("--ray-gpus", type=positive, metavar="G", help="Ray: GPUs of an actor, for its engine")
    group.add_argument(
        "--ray-labels", type=json_object, metavar="JSON", help="Ray: task id -> labels of the nodes that may play it"
    )


def open_collector(arguments: argparse.Namespace) -> AbstractContextManager[tuple[Any, dict[str, Any]]] | None:
    """Return a function that makes an actor's policy, and the argument `make_collector` of `collect_run`.

    Raises:
        InvalidConfigError: If the options contradict each other.
    """
    if arguments.ray is None:
        named = [name for name in ("ray_actors", "ray_gpus", "ray_labels") if getattr(arguments, name) is not None]
        if named:
            raise InvalidConfigError(f"--{named[0].replace('_', '-')} needs --ray.")
        return None
    if getattr(arguments, "serve", None):
        raise InvalidConfigError("--serve starts servers on this machine: with --ray, start them and give --url.")
    if arguments.max_concurrency == "auto":
        raise InvalidConfigError("--max-concurrency auto does not work with --ray: give a number for each actor.")
    if (arguments.ray_gpus or 1) > 1 and arguments.model is not None and arguments.engine != "vllm":
        raise InvalidConfigError(f"--ray-gpus {arguments.ray_gpus}: only --engine vllm plays on several GPUs.")
    from llm_envs.rollout.ray_collector import RayCollector

    options = {} if arguments.ray_gpus is None else {"num_gpus": arguments.ray_gpus}
    settings = {"n_actors": arguments.ray_actors, "actor_options": options, "labels": arguments.ray_labels}
    settings["address"] = None if arguments.ray == HERE else arguments.ray
    make = partial(_player, vars(arguments))
    return nullcontext((make, {"make_collector": partial(RayCollector, **settings)}))


def _player(options: Mapping[str, Any]) -> Any:
    return open_player(argparse.Namespace(**options))
