"""The policy options of `play`, `collect` and `eval`: a script, or a model on an engine.

--policy oracle                                  or random, noise, or FILE.py:NAME of the user's own
--model DIR [--engine transformers | vllm]       --policy vllm equals --engine vllm
--model DIR --url URL [--url URL ...]            running vllm serve processes (--engine server)
--model DIR --serve N [--server-args ARGS]       vllm serve processes started for the command
--model NAME --engine api --url URL              any chat API
--model URL [--model-name NAME]                  the same; omit the name if the server has one model

DIR may have an adapter (LoRA): it plays unmerged, on the base that its configuration names.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import positive, require_model
from llm_envs.cli.parser import Repeatable
from llm_envs.errors import BridgeError, InvalidConfigError, public_address
from llm_envs.objects import absolute_name, is_named, load_object
from llm_envs.policies.vllm.adapters import adapter_config, rank_setting
from llm_envs.policies.vllm.http import API_KEY, bearer, check_url, error_text, import_httpx, is_local, without_key

if TYPE_CHECKING:
    from llm_envs.chat.codec import ChatCodec
    from llm_envs.policies.base import Policy

__all__ = ["ENGINES", "add_player_arguments", "check_player", "open_player", "player_settings"]

PolicyAndCodec = tuple["Policy", "ChatCodec | None"]

# The options that each kind of policy takes; it refuses the others. Here `--serve N` counts as a separate engine.
_TAKES = {
    "transformers": set[str](),
    "vllm": set[str](),
    "server": {"url", "tokenizer"},
    "serve": {"serve", "server_args", "devices", "tokenizer"},
    "api": {"url", "model_name", "tokenizer", "max_concurrent_requests", "requests_per_minute", "max_tokens_name"},
    "script": {"tokenizer"},
}
MODEL_ENGINES = ["transformers", "vllm", "server", "api"]
"""The values of `--engine`. `--policy` takes them too, besides the scripts."""

LIST_TIMEOUT_S = 60.0
"""Longest wait for a server to list its models."""

_OPTIONS = sorted(set().union(*_TAKES.values()))


class _OrNamed(list[str]):
    """Choices that also have every `FILE.py:NAME`."""

    def __contains__(self, text: object) -> bool:
        return super().__contains__(text) or is_named(str(text))


def add_player_arguments(parser: argparse.ArgumentParser, *further: str) -> None:
    """Add the policy options.

    Args:
        parser: The command's parser.
        *further: Names of scripts that `--policy` takes besides "oracle", the default, "random" and "noise".
    """
    policies = ("oracle", "random", "noise", *further)
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--policy",
        choices=_OrNamed([*policies, *MODEL_ENGINES]),
        metavar="POLICY",
        help=f"a script ({', '.join(policies)}) or FILE.py:NAME of yours, or an engine for --model, as --engine "
        f"({', '.join(MODEL_ENGINES)}); default: the model, or oracle without one",
    )
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="a folder, a name on a model hub, a name at an API, or the API's address (https://host/v1); an adapter's "
        "folder plays unmerged on the base that it names",
    )
    group.add_argument(
        "--model-name", metavar="NAME", help="the model's name at --model URL; default: the only one there"
    )
    group.add_argument(
        "--engine",
        choices=MODEL_ENGINES,
        help="engine of the model: in this process, on `vllm serve` at --url, or a chat API at --url; default: "
        "transformers, or server with --url or --serve",
    )
    group.add_argument(
        "--url", action=Repeatable, metavar="URL", help="address of the server; repeat it for several servers"
    )
    group.add_argument("--serve", type=positive, metavar="N", help="start N `vllm serve` of the model for this command")
    group.add_argument(
        "--server-args", metavar="ARGS", help="arguments of `vllm serve`: --server-args='--max-model-len 4096'"
    )
    group.add_argument(
        "--devices",
        nargs="+",
        metavar="IDS",
        help="CUDA_VISIBLE_DEVICES of each started server (0 1, or 0,1 2,3); default: one GPU each, if any",
    )
    group.add_argument(
        "--max-concurrent-requests",
        type=positive,
        metavar="N",
        help="api: concurrent requests; default: one per episode",
    )
    group.add_argument(
        "--requests-per-minute", type=positive, metavar="N", help="api: limit on requests; default: none"
    )
    group.add_argument(
        "--max-tokens-name", metavar="NAME", help="api: parameter for the token limit of a turn; default: max_tokens"
    )
    group.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="tokenizer of the episodes, for policies without one; with a server, default: --model",
    )
    parser.epilog = f"{parser.epilog or ''}\nset the key of servers and APIs in the environment variable {API_KEY}.\n"


def check_player(arguments: argparse.Namespace) -> None:
    """Check that the options are compatible and that local folders exist, without loading anything.

    For `--model URL` without a name, ask the server which models it has.

    Raises:
        InvalidConfigError: If the options conflict, or a folder does not exist.
        BridgeError: If the server cannot be reached.
    """
    _settle(arguments)
    kind, given = _kind(arguments), [name for name in _OPTIONS if getattr(arguments, name) is not None]
    if kind == "script" and (arguments.engine is not None or set(given) - _TAKES[kind]):
        names = ["engine"] * (arguments.engine is not None) + [name for name in given if name not in _TAKES[kind]]
        raise InvalidConfigError(f"{_option(names[0])} needs a model: give --model.")
    if arguments.serve is not None and (arguments.url or arguments.engine not in (None, "server")):
        raise InvalidConfigError("--serve starts servers: leave out --url and --engine.")
    for name in given:
        if name not in _TAKES[kind]:
            right = " and ".join(_flag(other) for other, names in _TAKES.items() if name in names)
            own = ", where a model has its own" if name == "tokenizer" else ""
            raise InvalidConfigError(f"{_option(name)} is for {right}, not for {_flag(kind)}{own}.")
    if any(word.partition("=")[0].replace("_", "-") == "--api-key" for word in (arguments.server_args or "").split()):
        raise InvalidConfigError("--server-args is saved with the run and has --api-key: set VLLM_API_KEY instead.")
    if kind in ("server", "api") and not arguments.url:
        raise InvalidConfigError(f"--engine {kind} needs --url.")
    if kind == "api" and len(arguments.url) > 1:
        raise InvalidConfigError("--engine api takes one --url.")
    if kind in ("transformers", "vllm", "serve") or (kind == "server" and arguments.tokenizer is None):
        require_model(arguments.model, "--model")
    if kind in ("transformers", "vllm", "serve") and _is_adapter(arguments.model):
        require_model(_base_of(arguments.model), f"--model {arguments.model} has an adapter whose base is")
    if arguments.tokenizer is not None:
        require_model(arguments.tokenizer, "--tokenizer")


def player_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the policy settings that affect results, as JSON types: no server addresses."""
    _settle(arguments)
    kind = _kind(arguments)
    if kind == "script":
        record: dict[str, Any] = {"policy": absolute_name(arguments.policy)}
    else:
        record = {
            "policy": "model",
            "model": _resolved(arguments.model),
            "engine": "server" if kind == "serve" else kind,
        }
    record |= {"tokenizer": _resolved(arguments.tokenizer), "server_args": arguments.server_args}
    return {name: value for name, value in record.items() if value is not None}


@contextmanager
def open_player(
    arguments: argparse.Namespace, scripts: Mapping[str, Callable[[], Policy]] | None = None
) -> Iterator[PolicyAndCodec]:
    """Create the policy. Leaving the block closes it and stops the servers that were started for it.

    Args:
        arguments: The parsed options of `add_player_arguments`.
        scripts: Of each further script, the function that creates the policy.

    Raises:
        InvalidConfigError: Like `check_player`, and if something cannot be loaded or reached.
        MissingExtraError: If the engine is not installed. The message names the extra.
    """
    from llm_envs.policies.scripted import NoisePolicy, OraclePolicy, RandomPolicy

    check_player(arguments)
    if (kind := _kind(arguments)) != "script":
        with ENGINES[kind](arguments) as player:
            yield player
        return
    if is_named(arguments.policy):
        policy = _own_policy(arguments.policy)
        yield policy, _codec(arguments.tokenizer) or getattr(policy, "codec", None)
        return
    known: dict[str, Callable[[], Policy]] = {
        "oracle": OraclePolicy,
        "random": RandomPolicy,
        "noise": NoisePolicy,
        **(scripts or {}),
    }
    yield known[arguments.policy](), _codec(arguments.tokenizer)


def _own_policy(text: str) -> Policy:
    """Return the policy that a text names; a class or a function is called to make it.

    Raises:
        InvalidConfigError: If it is not a policy.
    """
    found: Any = load_object("--policy", text)
    methods = ("act", "reply", "sample")
    if isinstance(found, type) or not any(hasattr(found, method) for method in methods):
        try:
            found = found() if callable(found) else found
        except TypeError as error:
            raise InvalidConfigError(f"--policy {text}: a policy cannot be made by it ({error}).") from error
    if not any(callable(getattr(found, method, None)) for method in methods):
        raise InvalidConfigError(
            f"--policy {text}: it is of type {type(found).__name__} without act, reply or sample; it must be a policy "
            "(llm_envs.policies.base), or a class or function without arguments that makes one."
        )
    policy: Policy = found
    return policy


def _settle(arguments: argparse.Namespace) -> None:
    """Normalise the options: a script is in `policy`; a model is in `model`, `engine` and `url`.

    Raises:
        InvalidConfigError: If the options contradict each other.
    """
    policy, model = arguments.policy, arguments.model
    if policy in MODEL_ENGINES:
        if arguments.engine not in (None, policy):
            raise InvalidConfigError(f"--policy {policy} and --engine {arguments.engine} contradict: give only one.")
        if model is None:
            raise InvalidConfigError(f"--policy {policy} plays a model: give --model.")
        arguments.policy, arguments.engine = None, policy
    elif policy is not None and model is not None:
        raise InvalidConfigError(
            f"--policy {policy} is a script and uses no model: leave out --model, or choose with --policy what "
            f"the model runs on ({', '.join(MODEL_ENGINES)})."
        )
    elif policy is None and model is None:
        arguments.policy = "oracle"
    if model is not None and model.startswith(("http://", "https://")):
        _settle_address(arguments, model)
    elif arguments.model_name is not None and not arguments.url:
        raise InvalidConfigError("--model-name needs --model URL; otherwise --model is the name.")


def _settle_address(arguments: argparse.Namespace, url: str) -> None:
    """Move an address that was given as `--model` to `url`."""
    if arguments.url:
        raise InvalidConfigError("--model and --url are both addresses: give one, and the name as --model.")
    if arguments.serve is not None or arguments.engine not in (None, "api"):
        what = "--serve" if arguments.serve is not None else f"--engine {arguments.engine}"
        raise InvalidConfigError(
            f"--model {public_address(url)} is the address of a chat API (--engine api): {what} needs a folder, or a "
            "name on a hub."
        )
    check_url(url, "--model")
    arguments.model = arguments.model_name or _only_model(url)
    arguments.engine, arguments.url, arguments.model_name = "api", [url], None


def _only_model(url: str) -> str:
    """Return the name of a server's only model."""
    httpx = import_httpx()
    root = url.rstrip("/")
    address = f"{root if root.endswith('/v1') else root + '/v1'}/models"
    headers = bearer(os.environ.get(API_KEY))
    try:
        answer = httpx.get(address, headers=headers, timeout=LIST_TIMEOUT_S, trust_env=not is_local(url))
    except httpx.HTTPError as error:
        raise BridgeError(f"--model {url}: there is no answer ({type(error).__name__}: {error}).") from error
    try:
        names = [str(found["id"]) for found in answer.json()["data"]] if answer.status_code == 200 else []
    except (ValueError, KeyError, TypeError):
        names = []
    if not names:
        text = without_key(answer.text, answer.status_code, headers)
        said = f"{address} answers {answer.status_code}: {error_text(text)}"
        raise InvalidConfigError(f"--model {url}: it lists no models ({said:.300}): give --model-name NAME.")
    if len(names) > 1:
        some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InvalidConfigError(f"--model {url}: there are several models; choose one with --model-name: {some}.")
    return names[0]


def _transformers(arguments: argparse.Namespace) -> PolicyAndCodec:
    from llm_envs.chat.codec import ChatCodec
    from llm_envs.policies.transformers import TransformersPolicy

    policy = TransformersPolicy.from_pretrained(arguments.model)
    return policy, ChatCodec(policy.tokenizer)


def _vllm(arguments: argparse.Namespace) -> PolicyAndCodec:
    from llm_envs.policies.vllm.engine import VLLMEnginePolicy

    n = getattr(arguments, "ray_gpus", None) or 1
    # An engine shares its layers over all GPUs of its Ray actor. In a placement group vLLM would start more actors,
    # which wait for GPUs that this actor has.
    shards: dict[str, Any] = {} if n == 1 else {"tensor_parallel_size": n, "distributed_executor_backend": "mp"}
    if _is_adapter(arguments.model):
        rank = rank_setting(Path(arguments.model))
        shards |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1, "tokenizer": arguments.model}
    policy = VLLMEnginePolicy.from_pretrained(_base_of(arguments.model), **shards)
    if _is_adapter(arguments.model):
        policy.use_adapter(arguments.model)
    return policy, policy.codec


def _base_of(model: str) -> str:
    """Return the base of an adapter's folder; anything else as it is."""
    return str(adapter_config(Path(model))["base_model_name_or_path"]) if _is_adapter(model) else model


def _is_adapter(model: str) -> bool:
    return (Path(model) / "adapter_config.json").is_file()


def _server(
    arguments: argparse.Namespace, urls: Sequence[str] | None = None, api_key: str | None = None
) -> PolicyAndCodec:
    from llm_envs.policies.inference.loading import load_tokenizer
    from llm_envs.policies.vllm.server import VLLMServerPolicy

    policy = VLLMServerPolicy(
        urls or arguments.url,
        load_tokenizer(arguments.tokenizer or arguments.model),
        model=_base_of(arguments.model),
        api_key=api_key or os.environ.get(API_KEY),
        max_concurrency=_at_once(arguments),
    )
    if _is_adapter(arguments.model):
        policy.use_adapter(arguments.model)
    return policy, policy.codec


def _at_once(arguments: argparse.Namespace) -> int:
    """Return how many turns a policy must allow at once, so that it does not limit the collector."""
    from llm_envs.rollout.concurrency import most_of

    return max(256, most_of(getattr(arguments, "max_concurrency", 1)))


@contextmanager
def _serve(arguments: argparse.Namespace) -> Iterator[PolicyAndCodec]:
    from llm_envs.policies.vllm.launcher import start_servers

    n, key = arguments.serve, os.environ.get("VLLM_API_KEY")  # vLLM's servers read this variable too
    print(f"llm-envs: starting {n} vllm serve of {arguments.model} ...", file=sys.stderr)
    args = shlex.split(arguments.server_args or "")
    if _is_adapter(arguments.model):
        args += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(rank_setting(Path(arguments.model)))]
    with start_servers(
        _base_of(arguments.model),
        n,
        args=args,
        devices=arguments.devices or _one_gpu_each(n),
    ) as servers:
        print(f"llm-envs: they answer at {', '.join(servers.urls)}", file=sys.stderr)
        with _closing(_server, arguments, servers.urls, key) as player:
            yield player


def _api(arguments: argparse.Namespace) -> PolicyAndCodec:
    from llm_envs.policies.chat_api import ChatAPIPolicy

    policy = ChatAPIPolicy(
        arguments.url[0],
        arguments.model,
        api_key=os.environ.get(API_KEY),
        max_concurrency=arguments.max_concurrent_requests or _at_once(arguments),
        requests_per_minute=arguments.requests_per_minute,
        max_tokens_name=arguments.max_tokens_name or "max_tokens",
    )
    return policy, _codec(arguments.tokenizer)


@contextmanager
def _closing(make: Callable[..., PolicyAndCodec], *arguments: Any) -> Iterator[PolicyAndCodec]:
    policy, codec = make(*arguments)
    try:
        yield policy, codec
    finally:
        if (aclose := getattr(policy, "aclose", None)) is not None:
            asyncio.run(aclose())


ENGINES: dict[str, Callable[[argparse.Namespace], AbstractContextManager[PolicyAndCodec]]] = {
    "transformers": partial(_closing, _transformers),
    "vllm": partial(_closing, _vllm),
    "server": partial(_closing, _server),
    "serve": _serve,
    "api": partial(_closing, _api),
}
"""The kind of engine -> a context manager that gives a policy and its codec."""


def _codec(tokenizer: str | None) -> ChatCodec | None:
    if tokenizer is None:
        return None
    from llm_envs.chat.codec import ChatCodec
    from llm_envs.policies.inference.loading import load_tokenizer

    return ChatCodec(load_tokenizer(tokenizer))


def _one_gpu_each(n: int) -> list[str] | None:
    """Return a GPU for each server, from those that this process may see; None if it sees no GPU.

    Raises:
        InvalidConfigError: If there are fewer GPUs than servers.
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
            f"--serve {n}: there are only {len(found)} GPUs. To share one, give --devices "
            f"{' '.join([found[0]] * n)}, with --server-args='--gpu-memory-utilization {0.9 / n:.2g}'."
        )
    return found[:n]


def _kind(arguments: argparse.Namespace) -> str:
    """Return the requested entry of `ENGINES`, or "script"."""
    if arguments.model is None:
        return "script"
    if arguments.serve is not None:
        return "serve"
    return str(arguments.engine or ("server" if arguments.url else "transformers"))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag(kind: str) -> str:
    return "--serve" if kind == "serve" else "--policy" if kind == "script" else f"--engine {kind}"


def _resolved(name: str | None) -> str | None:
    return str(Path(name).resolve()) if name is not None and Path(name).is_dir() else name
