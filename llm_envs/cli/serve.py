"""`llm-envs serve`: a model behind OpenAI's API that records what agents do with it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from llm_envs.cli.arguments import (
    add_host_argument,
    add_sampling_arguments,
    port,
    positive,
    require_model,
    seconds,
    warn_of_every_address,
)
from llm_envs.cli.parser import Repeatable
from llm_envs.cli.policy_options import ENGINES
from llm_envs.errors import InvalidConfigError
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.agents.server import PolicyServer

__all__ = ["ABOUT", "TOKEN_VARIABLE", "add_arguments", "run"]

ABOUT = "Serve a model by OpenAI's API, and record what agents do with it."

TOKEN_VARIABLE = "LLM_ENVS_SERVE_TOKEN"
"""Environment variable with the bearer token; without it the token is random."""

EXAMPLES = """
examples:
  llm-envs serve runs/demo/model --out runs/served
  llm-envs serve owner/name --engine vllm --port 8100
  llm-envs serve owner/name --url http://a:8000 --url http://b:8000

It prints OPENAI_BASE_URL and OPENAI_API_KEY. Each session, /s/NAME/v1, is an episode:
  curl -H "Authorization: Bearer $OPENAI_API_KEY" -d '{"reward": 1}' http://127.0.0.1:8100/s/NAME/end
ends it, and answers with its trajectory. The variable LLM_ENVS_SERVE_TOKEN sets the key.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a folder of a model or an adapter, or a name on a model hub")
    parser.add_argument(
        "--engine", choices=["transformers", "vllm"], help="engine of the model, in this process; default: transformers"
    )
    parser.add_argument(
        "--url", action=Repeatable, metavar="URL", help="address of the server that samples (vllm serve)"
    )
    add_host_argument(parser)
    parser.add_argument("--port", type=port, default=8100, help="port to listen on; 0: a free one; default 8100")
    parser.add_argument("--out", metavar="DIR", help="folder for the trajectories of sessions that end")
    parser.add_argument("--seed", type=int, default=0, help="seed of requests without their own; default 0")
    parser.add_argument("--max-sessions", type=positive, default=1024, metavar="N", help="open sessions; default 1024")
    parser.add_argument(
        "--session-s",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="after S idle seconds a session gives its place to another one that needs it; default 3600",
    )
    add_sampling_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and return the exit code."""
    from llm_envs.agents.server import PolicyServer
    from llm_envs.rollout import TrajectoryWriter
    from llm_envs.types import SamplingParams

    warn_of_every_address(arguments.host, "sample from the model")
    require_model(arguments.model, "serve")
    if arguments.url and arguments.engine:
        raise InvalidConfigError("--url and --engine contradict: a model is on servers or in this process.")
    arguments.tokenizer = None
    engine = ENGINES["server" if arguments.url else arguments.engine or "transformers"]
    with ExitStack() as stack:
        writer = None if arguments.out is None else TrajectoryWriter(arguments.out, resume=True)
        if writer is not None:
            stack.callback(writer.close)
        policy, codec = stack.enter_context(engine(arguments))
        assert codec is not None
        server = PolicyServer(
            policy,
            codec=codec,
            sampling=SamplingParams(temperature=arguments.temperature, max_new_tokens=arguments.max_turn_tokens),
            seed=arguments.seed,
            host=arguments.host,
            port=arguments.port,
            token=os.environ.get(TOKEN_VARIABLE),
            max_sessions=arguments.max_sessions,
            session_s=arguments.session_s,
            on_trajectory=None if writer is None else writer.write,
        )
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(server))
    return 0


async def _serve(server: PolicyServer) -> None:
    async with server:
        print(f"export OPENAI_BASE_URL={server.endpoint('NAME').base_url}", flush=True)
        print(f"export OPENAI_API_KEY={server.token}", flush=True)
        print("Ctrl-C ends it", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            for name in list(server.sessions):
                try:
                    server.end(name)
                except Exception as error:  # the others are written all the same
                    lost = f"llm-envs: the session {name!r} is lost ({type(error).__name__}: {error})."
                    print(visible_text(lost), file=sys.stderr)
