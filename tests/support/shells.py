"""Shells of each runtime; a test is skipped where a machine cannot have one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from llm_envs.errors import SandboxError
from llm_envs.shell import open_shell

CONTAINER = os.environ.get("LLM_ENVS_TEST_CONTAINER", "").split()
"""A client and an image with bash and Python, as in `LLM_ENVS_TEST_CONTAINER="podman debian"`."""
RUNTIMES = [
    "namespaces",
    pytest.param(
        "bubblewrap", marks=[pytest.mark.slow, pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")]
    ),
    pytest.param(
        "container",
        marks=[pytest.mark.slow, pytest.mark.skipif(not CONTAINER, reason="needs LLM_ENVS_TEST_CONTAINER")],
    ),
]
"""Those that isolate."""


def skip_where_there_is_none(error: SandboxError) -> None:
    """Skip where the machine has no such runtime; any other error is ours."""
    known = r"SetupError|OSError|PermissionError|FileNotFoundError|needs Linux|was not found|bwrap: |by '"
    if not re.search(known, str(error)):
        raise error
    pytest.skip(str(error))


@contextmanager
def make_shell(runtime: str = "namespaces", **arguments: Any) -> Iterator[Any]:
    """Open one that has started, with its first state in `empty`."""
    if runtime == "container":
        runtime, arguments["image"] = CONTAINER
    shell: Any = open_shell(runtime, **arguments)
    try:
        try:
            shell.start()
        except SandboxError as error:
            skip_where_there_is_none(error)
        shell.empty = shell.snapshot()
        yield shell
    finally:
        shell.close()
