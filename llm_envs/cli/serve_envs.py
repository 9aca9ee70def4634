"""`llm-envs serve-envs`: worker processes for environments of runs on other machines."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys

from llm_envs.cli.arguments import add_host_argument, port, positive, warn_of_every_address
from llm_envs.errors import counted

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs serve-envs
  llm-envs serve-envs --workers 4
  llm-envs serve-envs my_env.py:MyEnv
  llm-envs serve-envs --host 10.0.0.5 --port 7100 --workers 32

Runs reach it with --env-servers HOST:PORT and the token in LLM_ENVS_ENV_TOKEN. Whoever has the token can run any code
here.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "envs",
        nargs="*",
        metavar="ENV",
        help="FILE.py:NAME of environments of yours, so that workers find the file; others need not be named",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="run tasks in N processes at most; default: one for each processor",
    )
    add_host_argument(parser)
    parser.add_argument("--port", type=port, default=7100, help="port to listen on; 0: a free one; default 7100")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and return the exit code."""
    from llm_envs.objects import env_id
    from llm_envs.processes import processors
    from llm_envs.registration import task_spec
    from llm_envs.rollout.workers.remote import TOKEN_VARIABLE
    from llm_envs.rollout.workers.server import EnvServer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        token = os.environ.get(TOKEN_VARIABLE)
        if not token:
            token = secrets.token_urlsafe(24)
            print(f"export {TOKEN_VARIABLE}={token}", flush=True)
        warn_of_every_address(arguments.host, "run any code here")
        for name in arguments.envs:
            task_spec(env_id(name))  # its folder is now in `sys.path`, which workers inherit
        n_workers = arguments.workers or processors()
        server = EnvServer(n_workers, token.encode(), host=arguments.host, port=arguments.port)
        print(f"{counted(n_workers, 'worker')} at {server.address}; Ctrl-C ends them", flush=True)
        server.serve()
    except KeyboardInterrupt:
        pass
    return 0
