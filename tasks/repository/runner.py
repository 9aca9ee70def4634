"""Runs a project's tests inside a shell, and writes what came of each to a file. Uses only the standard library.

Before it imports the project, it has read its settings from standard input: the framework, the file for results, and a
number that stands in each line. Nothing in the shell's files or variables has that number.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Report = Callable[..., None]
"""Takes a test, its outcome, and the message of a failure."""


def main(config: dict[str, Any], write: Callable[..., int] = os.write, dump: Callable[..., str] = json.dumps) -> None:
    """Run the tests; `write` and `dump` are bound now, before the project can replace them."""
    descriptor = os.open(config["results"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    mark = config["nonce"]

    def report(test: str, outcome: str, detail: str = "") -> None:
        line = dump([mark, test, outcome, detail[-config["detail"] :] if config["detail"] else ""])
        write(descriptor, line.encode() + b"\n")

    sys.argv = [config["framework"]]
    run = {"pytest": run_pytest, "unittest": run_unittest}[config["framework"]]
    run(report, config["only"])
    report("", "end")


def run_pytest(report: Report, only: Sequence[str]) -> None:
    """Run pytest with a plugin that reports."""
    import pytest

    class Plugin:
        """Reports each test behind its last phase."""

        def __init__(self) -> None:
            self.failed, self.passed = dict[str, str](), set[str]()

        def pytest_runtest_logreport(self, report: Any) -> None:  # the hook's argument has this name
            if report.failed:
                self.failed.setdefault(report.nodeid, message(report))
            elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                self.passed.add(report.nodeid)
            if report.when == "teardown":
                tell(self, report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self.failed.setdefault(report.nodeid, message(report))
                tell(self, report.nodeid)

    def message(found: Any) -> str:
        return str(getattr(found, "longreprtext", "") or found.longrepr)

    def tell(plugin: Plugin, test: str) -> None:
        failed = plugin.failed.get(test)
        outcome = "failed" if failed is not None else "passed" if test in plugin.passed else "skipped"
        report(test, outcome, failed or "")

    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-o", "addopts=", "--tb=short"]
    pytest.main([*options, *only], plugins=[Plugin()])


def run_unittest(report: Report, only: Sequence[str]) -> None:
    """Run unittest's tests below the folder."""
    import unittest

    class Result(unittest.TestResult):
        """Reports each test at its end."""

        def startTest(self, test: unittest.TestCase) -> None:  # unittest's name
            super().startTest(test)
            self.found, self.text = "passed", ""

        def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:
            super().addSubTest(test, subtest, error)
            if error is not None:
                self.found, self.text = "failed", "".join(traceback.format_exception(*error))

        def addFailure(self, test: unittest.TestCase, error: Any) -> None:
            self.found, self.text = "failed", "".join(traceback.format_exception(*error))

        def addError(self, test: unittest.TestCase, error: Any) -> None:
            text = "".join(traceback.format_exception(*error))
            if not isinstance(test, unittest.TestCase):  # a class or module that cannot be set up
                report(test.id(), "failed", text)
            self.found, self.text = "failed", text

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:
            self.found = "skipped"

        def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:
            self.found = "skipped"

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            self.found, self.text = "failed", "an unexpected success"

        def stopTest(self, test: unittest.TestCase) -> None:
            super().stopTest(test)
            report(test.id(), self.found, self.text)

    suite, loader = unittest.TestSuite(), unittest.TestLoader()
    for path in only:
        folder, name = os.path.split(os.path.splitext(path)[0])
        if folder and os.path.exists(os.path.join(folder, "__init__.py")):
            name = f"{folder}/{name}".replace("/", ".")
        sys.path.insert(0, os.getcwd())
        sys.path.insert(0, os.path.join(os.getcwd(), folder))
        suite.addTests(loader.loadTestsFromName(name))
    suite.run(Result())


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
