"""Who plays, as `play` and `collect` are asked for it: a script, or a model on one of the engines.

--policy oracle
--model DIR [--engine transformers | vllm]
--model DIR --url URL [--url URL ...]            vllm serve processes that run already (--engine server)
--model DIR --serve N [--server-args ARGS]       vllm serve processes of our own
--model NAME --engine api --url URL              any chat API
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.arguments import positive, require_model
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.http import API_KEY

if TYPE_CHECKING:
    from llm_envs.chat import ChatCodec
    from llm_envs.policies.base import Policy

__all__ = ["ENGINES", "add_player_arguments", "check_player", "open_player", "player_settings"]

Player = tuple["Policy", "ChatCodec | None"]

# What an option is for; everything else refuses it. `--serve N` is an engine of its own here.
_TAKES = {
    "transformers": set[str](),
    "vllm": set[str](),
    "server": {"url", "tokenizer"},
    "serve": {"serve", "server_args", "devices", "tokenizer"},
    "api": {"url", "tokenizer", "max_concurrent", "requests_per_minute", "max_tokens_name"},
    "script": {"tokenizer"},
}
_OPTIONS = sorted(set().union(*_TAKES.values()))


def add_player_arguments(parser: argparse.ArgumentParser, policies: Sequence[str]) -> None:
    """Add who plays.

    Args:
        parser: Of the command.
        policies: Names that `--policy` takes, the default first.
    """
    group = parser.add_argument_group("who plays")
    who = group.add_mutually_exclusive_group()
    who.add_argument("--policy", choices=policies, default=policies[0], help=f"a script; default: {policies[0]}")
    who.add_argument("--model", metavar="MODEL", help="a model: a folder, a name on a model hub, or its name at an API")
    group.add_argument(
        "--engine",
        choices=["transformers", "vllm", "server", "api"],
        help="what the model runs on: in this process, on `vllm serve` at --url, or any chat API at --url; default: "
        "transformers, or server with --url or --serve",
    )
    group.add_argument("--url", action="append", metavar="URL", help="where it answers; several servers: once for each")
    group.add_argument(
        "--serve", type=positive, metavar="N", help="start N `vllm serve` of the model for this command, and end them"
    )
    group.add_argument("--server-args", metavar="ARGS", help="of `vllm serve`: --server-args='--max-model-len 4096'")
    group.add_argument(
        "--devices",
        nargs="+",
        metavar="IDS",
        help="CUDA_VISIBLE_DEVICES of each server that is started (0 1, or 0,1 2,3); default: one GPU each, if any",
    )
    group.add_argument(
        "--max-concurrent", type=positive, metavar="N", help="api: requests at once; default: one an episode"
    )
    group.add_argument("--requests-per-minute", type=positive, metavar="N", help="api: default: no limit")
    group.add_argument(
        "--max-tokens-name", metavar="NAME", help="api: its name of the limit on a turn; default: max_tokens"
    )
    group.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="whose tokens the episodes get, where the player has none of its own; with a server, default: --model",
    )
    parser.epilog = f"{parser.epilog or ''}\nservers and APIs get the key in the environment variable {API_KEY}.\n"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def check_player(arguments: argparse.Namespace) -> None:
    """Check that the options fit one another, and that folders are there; nothing is loaded.

    Raises:
        InvalidConfigError: If not.
    """
    kind, given = _kind(arguments), [name for name in _OPTIONS if getattr(arguments, name) is not None]
    if kind == "script" and (arguments.engine is not None or set(given) - _TAKES[kind]):
        names = ["engine"] * (arguments.engine is not None) + [name for name in given if name not in _TAKES[kind]]
        raise InvalidConfigError(f"{_option(names[0])} is for a model: give --model.")
    if arguments.serve is not None and (arguments.url or arguments.engine not in (None, "server")):
        raise InvalidConfigError("--serve starts servers of its own: it goes with neither --url nor another --engine.")
    for name in given:
        if name not in _TAKES[kind]:
            right = " and ".join(_said(other) for other, names in _TAKES.items() if name in names)
            own = ", where a model has its own" if name == "tokenizer" else ""
            raise InvalidConfigError(f"{_option(name)} is for {right}, not for {_said(kind)}{own}.")
    if kind in ("server", "api") and not arguments.url:
        raise InvalidConfigError(f"--engine {kind} needs --url, where it answers.")
    if kind == "api" and len(arguments.url) > 1:
        raise InvalidConfigError("--engine api takes one --url.")
    if kind in ("transformers", "vllm", "serve") or (kind == "server" and arguments.tokenizer is None):
        require_model(arguments.model, "--model")
    if arguments.tokenizer is not None:
        require_model(arguments.tokenizer, "--tokenizer")


def player_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what of it decides what is played, as JSON types: not where a server is, nor who started it."""
    kind = _kind(arguments)
    if kind == "script":
        record: dict[str, Any] = {"policy": arguments.policy}
    else:
        record = {"policy": "model", "model": _resolved(arguments.model), "engine": _engine(kind)}
    record |= {"tokenizer": _resolved(arguments.tokenizer), "server_args": arguments.server_args}
    return {name: value for name, value in record.items() if value is not None}


def open_player(
    arguments: argparse.Namespace, scripts: Mapping[str, Callable[[], Policy]]
) -> AbstractContextManager[Player]:
    """Make what plays; leaving the block closes it, and ends what was started for it.

    Args:
        arguments: What `add_player_arguments` was given.
        scripts: `--policy NAME` -> what makes it.

    Raises:
        InvalidConfigError: As `check_player`, at once; what cannot be loaded or reached, on entering.
        MissingExtraError: If the engine is not installed; names the extra.
    """
    check_player(arguments)
    return _opened(arguments, scripts)


@contextmanager
def _opened(arguments: argparse.Namespace, scripts: Mapping[str, Callable[[], Policy]]) -> Iterator[Player]:
    if (kind := _kind(arguments)) != "script":
        with ENGINES[kind](arguments) as player:
            yield player
        return
    yield scripts[arguments.policy](), _codec(arguments.tokenizer)


@contextmanager
def _transformers(arguments: argparse.Namespace) -> Iterator[Player]:
    from llm_envs.chat import ChatCodec
    from llm_envs.policies.transformers import TransformersPolicy

    policy = TransformersPolicy.from_pretrained(arguments.model)
    with _closing(policy):
        yield policy, ChatCodec(policy.tokenizer)


@contextmanager
def _vllm(arguments: argparse.Namespace) -> Iterator[Player]:
    from llm_envs.policies.vllm_engine import VLLMEnginePolicy

    policy = VLLMEnginePolicy.from_pretrained(arguments.model)
    with _closing(policy):
        yield policy, policy.codec


@contextmanager
def _server(
    arguments: argparse.Namespace, urls: Sequence[str] | None = None, api_key: str | None = None
) -> Iterator[Player]:
    from llm_envs.policies.loading import load_tokenizer
    from llm_envs.policies.vllm_server import VLLMServerPolicy

    policy = VLLMServerPolicy(
        urls or arguments.url,
        load_tokenizer(arguments.tokenizer or arguments.model),
        model=arguments.model,
        api_key=api_key or os.environ.get(API_KEY),
        max_concurrency=max(256, getattr(arguments, "concurrency", 0)),
    )
    with _closing(policy):
        yield policy, policy.codec


@contextmanager
def _serve(arguments: argparse.Namespace) -> Iterator[Player]:
    from llm_envs.policies.vllm_serve import start_servers

    n, key = arguments.serve, os.environ.get("VLLM_API_KEY")  # which the servers heed
    print(f"llm-envs: starting {n} vllm serve of {arguments.model} ...", file=sys.stderr)
    with start_servers(
        arguments.model,
        n,
        args=shlex.split(arguments.server_args or ""),
        devices=arguments.devices or _one_gpu_each(n),
    ) as servers:
        print(f"llm-envs: they answer at {', '.join(servers.urls)}", file=sys.stderr)
        with _server(arguments, servers.urls, key) as player:
            yield player


@contextmanager
def _api(arguments: argparse.Namespace) -> Iterator[Player]:
    from llm_envs.policies.chat_api import ChatAPIPolicy

    policy = ChatAPIPolicy(
        arguments.url[0],
        arguments.model,
        api_key=os.environ.get(API_KEY),
        max_concurrency=arguments.max_concurrent or max(256, getattr(arguments, "concurrency", 0)),
        requests_per_minute=arguments.requests_per_minute,
        max_tokens_name=arguments.max_tokens_name or "max_tokens",
    )
    with _closing(policy):
        yield policy, _codec(arguments.tokenizer)


ENGINES: dict[str, Callable[[argparse.Namespace], AbstractContextManager[Player]]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "server": _server,
    "serve": _serve,
    "api": _api,
}
"""What runs a model -> what makes a policy of it, and its codec, for the time of a block."""


@contextmanager
def _closing(policy: Any) -> Iterator[None]:
    try:
        yield
    finally:
        if hasattr(policy, "aclose"):
            asyncio.run(policy.aclose())


def _codec(tokenizer: str | None) -> ChatCodec | None:
    if tokenizer is None:
        return None
    from llm_envs.chat import ChatCodec
    from llm_envs.policies.loading import load_tokenizer

    return ChatCodec(load_tokenizer(tokenizer))


def _one_gpu_each(n: int) -> list[str] | None:
    """Return a GPU for each server, of those that this process may see; None where there are none.

    Raises:
        InvalidConfigError: If there are fewer than servers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = [name for name in visible.split(",") if name]
    elif importlib.util.find_spec("torch") is not None:
        import torch

        found = [str(index) for index in range(torch.cuda.device_count())]
    else:
        found = []
    if not found:
        return None
    if len(found) < n:
        raise InvalidConfigError(
            f"--serve {n}: there are {len(found)} GPUs for it. Two servers share one if you say so: --devices "
            f"{' '.join([found[0]] * n)}, with --server-args='--gpu-memory-utilization {0.9 / n:.2g}'."
        )
    return found[:n]


def _kind(arguments: argparse.Namespace) -> str:
    """Return which entry of `ENGINES` is asked for, or "script"."""
    if arguments.model is None:
        return "script"
    if arguments.serve is not None:
        return "serve"
    return str(arguments.engine or ("server" if arguments.url else "transformers"))


def _engine(kind: str) -> str:
    return "server" if kind == "serve" else kind


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _said(kind: str) -> str:
    return "--serve" if kind == "serve" else "--policy" if kind == "script" else f"--engine {kind}"


def _resolved(name: str | None) -> str | None:
    return str(Path(name).resolve()) if name is not None and Path(name).is_dir() else name
