"""Sandboxes of each backend; a test is skipped where a machine cannot have one."""

from __future__ import annotations

from typing import Any

import pytest

from llm_envs.errors import SandboxError
from llm_envs.sandbox import MontySandbox, SandboxLimits, SubprocessSandbox

DEFAULT = SandboxLimits()


def make_monty(limits: SandboxLimits = DEFAULT) -> MontySandbox:
    """Make one of Monty's."""
    pytest.importorskip("pydantic_monty")
    return MontySandbox(n_workers=2, limits=limits)


def make_namespaces(limits: SandboxLimits = DEFAULT, **arguments: Any) -> SubprocessSandbox:
    """Make one of namespaces."""
    try:
        return SubprocessSandbox(limits=limits, **arguments)
    except SandboxError as error:
        pytest.skip(str(error))


BACKENDS = {"monty": make_monty, "namespaces": make_namespaces}
