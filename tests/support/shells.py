"""Shells of each runtime; a test is skipped where a machine cannot have one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from llm_envs.errors import SandboxError
from llm_envs.shell import open_shell


@contextmanager
def make_shell(runtime: str = "namespaces", **arguments: Any) -> Iterator[Any]:
    """Open one that has started, with its first state in `empty`."""
    shell: Any = open_shell(runtime, **arguments)
    try:
        try:
            shell.start()
        except SandboxError as error:
            pytest.skip(str(error))
        shell.empty = shell.snapshot()
        yield shell
    finally:
        shell.close()
