"""What every test runs under: offline, a fixed number of threads, no windows, and vLLM small enough for a CI machine.

The variables are set here, before anything that reads them is imported; one that is already set is left alone.
"""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "2",  # the models are tiny: more threads only wait for one another
    "MPLBACKEND": "Agg",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

# What a shell starts in the background ignores Ctrl-C, and so do its children: tests of interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs vLLM where it is not installed, unless the run promised that it is."""
    if importlib.util.find_spec("vllm") is not None:
        return
    if os.environ.get("LLM_ENVS_REQUIRE_VLLM"):
        raise pytest.UsageError("LLM_ENVS_REQUIRE_VLLM is set, but vLLM is not installed here")
    skip = pytest.mark.skip(reason="vLLM is not installed here; `make test-vllm` runs this")
    for item in items:
        if "vllm" in item.keywords:
            item.add_marker(skip)
