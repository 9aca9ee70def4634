"""A plugin for pytest: where the packages of some extras are missing, the tests that need them are skipped.

    PYTHONPATH=tests/support python -m pytest -p without_torch tests/llm_envs

A test needs a package if it, or the import of its file, fails with the name of the package or its extra.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

import pytest

EXTRAS = ("train", "vllm", "logging", "bridges", "agents", "cluster", "benchmarks")
PACKAGES = (
    *("torch", "transformers", "tokenizers", "trl", "peft", "accelerate", "datasets", "safetensors"),
    *("huggingface_hub", "tqdm", "httpx2", "matplotlib", "mcp", "starlette", "uvicorn", "upath", "fsspec"),
)
MISSING = re.compile(
    rf"(No module named '|No package metadata was found for )({'|'.join(PACKAGES)})\b|llm-envs\[({'|'.join(EXTRAS)})\]"
)

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _skipped(report: Report) -> Report:
    said = "\n".join([report.longreprtext, *(text for _, text in report.sections)])  # an error that a command printed
    if report.failed and (found := MISSING.search(said)):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {found[0]} (without_torch)")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that cannot be imported here."""
    return _skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that needs what is missing."""
    return _skipped((yield))
