"""The browser that the tests look at pages with, and the page that most of them look at.

Without a browser the tests are skipped; LLM_ENVS_REQUIRE_BROWSER, which `make test-docs` sets, makes that an error.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import NAMES, Chromium, find_browser
from report_runs import episodes_after, episodes_before, write_run

from llm_envs.report import write_report


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    executable = find_browser()
    if executable is None:
        reason = f"there is no browser here: none of {', '.join(NAMES)} is on the path (apt-get install chromium)"
        if os.environ.get("LLM_ENVS_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="llm-envs-browser-", ignore_cleanup_errors=True) as profile:
        browser = Chromium(executable, profile)
        try:
            browser.call("Browser.getVersion")
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of two runs, of which one was a training."""
    folder = tmp_path_factory.mktemp("report")
    history = [{"step": step, "reward": step / 10, "loss": 1 / step} for step in range(1, 21)]
    one = write_run(folder / "before", episodes_before())
    other = write_run(folder / "after", episodes_after())
    (one / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    write_report([one, other], folder / "report.html")
    return folder / "report.html"
