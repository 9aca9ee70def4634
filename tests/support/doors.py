"""Packages of other suites, which only `make test-bridges` installs."""

from __future__ import annotations

import importlib.util
import os

import pytest


def require(module: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests without the module, unless LLM_ENVS_REQUIRE_DOORS=1: then they fail."""
    parent = module.split(".")[0]
    is_missing = importlib.util.find_spec(parent) is None or importlib.util.find_spec(module) is None
    is_required = os.environ.get("LLM_ENVS_REQUIRE_DOORS") == "1"
    return pytest.mark.skipif(is_missing and not is_required, reason=f"{module} is not installed (make test-bridges)")
