"""What every test runs under: offline, a fixed number of threads, no windows, and vLLM small enough for a CI machine.

The variables are set here, before anything that reads them is imported; one that is already set is left alone.

Tests run on the CPU, whatever cards there are: the cards are hidden, from torch and from all programs that tests start.
With `LLM_ENVS_TEST_DEVICE=cuda` (`make test-gpu`) the tests and their programs see one card, the first visible one.

Several processes share the tests by file (`make test`). The files that take longest go first, so that none begins when
the other process has nothing left to do; and a test marked `alone` runs while no other process runs any.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # the models are tiny, and the tests run in as many processes as there are cores
    "MPLBACKEND": "Agg",
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCH_COMPILE_DISABLE": "1",  # an engine would compile for longer than it samples; test_grpo_vllm.py has one
}
LONGEST_FIRST = [
    "test_guides.py",
    "test_tutorial.py",
    "test_numbered.py",
    "test_docs.py",
    "test_site.py",
    "test_examples.py",
    "test_server.py",
    "test_grpo_vllm.py",
    "test_vllm_pages.py",
    "test_benchmarks.py",
    "test_two_nodes.py",
    "test_ranks.py",
    "test_engine.py",
    "test_rollout_end_to_end.py",
    "test_grpo.py",
    "test_loop.py",
    "test_stock_trl.py",
    "test_grpo_hooks.py",
    "test_workers.py",
    "test_chat_families.py",
    "test_sandbox_attacks.py",
    "test_packaging.py",
    "test_writer_kills.py",
    "test_server_failures.py",
]
"""Files that take ten seconds and more; only the time of the whole run depends on this list."""
NEEDS = (
    ("vllm", "vllm", "vllm"),
    ("ray", "ray", "scale"),
    ("agents", "langchain", "agents"),
    ("suites", "scienceworld", "benchmarks"),
)
"""A mark, the module that its tests need, and the target that has it."""
DEVICES = {
    # Hidden, not refused: a library that finds a card uses it, however it is told not to.
    "cpu": {"CUDA_VISIBLE_DEVICES": ""},
    # One card: with several, transformers' trainers would split each batch.
    # With this buffer cuBLAS repeats its results bit by bit.
    "cuda": {
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    },
}
"""What `LLM_ENVS_TEST_DEVICE` may be, and the variables that it sets, which replace those that are set already."""

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

_device = os.environ.get("LLM_ENVS_TEST_DEVICE", "cpu")
if _device not in DEVICES:
    raise pytest.UsageError(f"LLM_ENVS_TEST_DEVICE={_device!r}; it must be one of {', '.join(DEVICES)}")
os.environ.update(DEVICES[_device])

# The same examples in every run, however long a busy machine takes over one: what fails, fails for what it tests.
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

# What a shell starts in the background ignores Ctrl-C, and so do its children: tests of interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


TURNS = pytest.StashKey["Turns | None"]()
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


class Turns:
    """Lets the processes of one run test side by side, or one of them alone.

    Invariants:

    1. Who tests holds `_testing`: shared with others, or alone.
    2. Who waits for `_testing` holds `_next`: once one waits to be alone, nobody begins before it has been.
    """

    def __init__(self, folder: Path) -> None:
        self._next, self._testing = (
            os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("next", "testing")
        )

    def begin(self, *, alone: bool) -> None:
        """Wait for what a test needs: that nobody is alone, or that nobody tests."""
        fcntl.flock(self._next, fcntl.LOCK_EX)
        fcntl.flock(self._testing, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._next, fcntl.LOCK_UN)

    def end(self) -> None:
        """Let others begin. Unlocked, not closed: a process that a test left may have a copy of the descriptor."""
        fcntl.flock(self._testing, fcntl.LOCK_UN)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each of several processes where they all find their locks."""
    if FOLDER not in node.config.stash:
        node.config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="llm-envs-tests-")
    node.workerinput["turns"] = node.config.stash[FOLDER].name


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the turns, where there are others; refuse a card that is not there."""
    if os.environ.get("LLM_ENVS_TEST_DEVICE") == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError("LLM_ENVS_TEST_DEVICE=cuda, but torch finds no card, or is its build for the CPU")
    folder = getattr(config, "workerinput", {}).get("turns")
    config.stash[TURNS] = Turns(Path(folder)) if folder else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the locks of a run that is over."""
    if FOLDER in config.stash:
        config.stash[FOLDER].cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Run a test, its fixtures included, beside others or alone."""
    turns = item.config.stash[TURNS]
    if turns is None:
        return (yield)
    turns.begin(alone="alone" in item.keywords)
    try:
        return (yield)
    finally:
        turns.end()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without the garbage collector: it would look at all imported modules again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; skip what needs a package that is not installed, unless the run promised it."""
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for mark, module, target in NEEDS:
        if importlib.util.find_spec(module) is not None:
            continue
        if os.environ.get(f"LLM_ENVS_REQUIRE_{mark.upper()}"):
            raise pytest.UsageError(f"LLM_ENVS_REQUIRE_{mark.upper()} is set, but {module} is not installed here")
        skip = pytest.mark.skip(reason=f"{module} is not installed here; `make test-{target}` runs this")
        for item in items:
            if item.get_closest_marker(mark) is not None:  # the keywords have the names of folders too
                item.add_marker(skip)
    if os.environ.get("LLM_ENVS_REQUIRE_DOORS") != "1":
        for item in items:
            for module in (mark.args[0] for mark in item.iter_markers("doors")):
                if (
                    importlib.util.find_spec(module.partition(".")[0]) is None
                    or importlib.util.find_spec(module) is None
                ):
                    item.add_marker(
                        pytest.mark.skip(reason=f"{module} is not installed here; `make test-bridges` has it")
                    )


@pytest.fixture(autouse=True)
def _no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print no progress lines, which would appear on slow machines alone."""
    monkeypatch.setattr("llm_envs.tracking.progress.LINE_EVERY_S", 3_600.0)


@pytest.fixture(autouse=True)
def _forgotten_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test imported from its own folder: the next test's file may have the same name."""
    path, known, base = [*sys.path], {*sys.modules}, str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(base):
            del sys.modules[name]
