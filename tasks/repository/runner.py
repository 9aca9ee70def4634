"""Runs a project's tests inside a shell, and writes what came of each to a file. Uses only the standard library.

Before it imports the project, it has read its settings from standard input: the framework, the file for results, and a
number that stands in each line. Nothing in the shell's files or variables has that number.
"""

import json
import os
import sys


def main(config, write=os.write, dump=json.dumps):
    """Run the tests; `write` and `dump` are bound now, before the project can replace them."""
    descriptor = os.open(config["results"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    mark = config["nonce"]

    def report(test, outcome, detail=""):
        line = dump([mark, test, outcome, detail[-config["detail"] :] if config["detail"] else ""])
        write(descriptor, line.encode() + b"\n")

    sys.argv = [config["framework"]]
    run = {"pytest": run_pytest, "unittest": run_unittest}[config["framework"]]
    run(report, config["only"])
    report("", "end")


def run_pytest(report, only):
    """Run pytest with a plugin that reports."""
    import pytest

    class Plugin:
        """Reports each test behind its last phase."""

        def __init__(self):
            self.failed, self.passed = {}, set()

        def pytest_runtest_logreport(self, report):  # the hook's argument has this name
            if report.failed:
                self.failed.setdefault(report.nodeid, message(report))
            elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                self.passed.add(report.nodeid)
            if report.when == "teardown":
                tell(self, report.nodeid)

        def pytest_collectreport(self, report):
            if report.failed:
                self.failed.setdefault(report.nodeid, message(report))
                tell(self, report.nodeid)

    def message(found):
        return getattr(found, "longreprtext", "") or str(found.longrepr)

    def tell(plugin, test):
        failed = plugin.failed.get(test)
        outcome = "failed" if failed is not None else "passed" if test in plugin.passed else "skipped"
        report(test, outcome, failed or "")

    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-o", "addopts=", "--tb=short"]
    pytest.main([*options, *only], plugins=[Plugin()])


def run_unittest(report, only):
    """Run unittest's tests below the folder."""
    import unittest

    class Result(unittest.TestResult):
        """Reports each test at its end."""

        def startTest(self, test):  # unittest's name
            super().startTest(test)
            self.found, self.text = "passed", ""

        def addSubTest(self, test, subtest, error):
            super().addSubTest(test, subtest, error)
            if error is not None:
                self.found, self.text = "failed", self._exc_info_to_string(error, test)

        def addFailure(self, test, error):
            self.found, self.text = "failed", self._exc_info_to_string(error, test)

        def addError(self, test, error):
            text = self._exc_info_to_string(error, test)
            if not hasattr(test, "_testMethodName"):  # a class or module that cannot be set up
                report(test.id(), "failed", text)
            self.found, self.text = "failed", text

        def addSkip(self, test, reason):
            self.found = "skipped"

        def addExpectedFailure(self, test, error):
            self.found = "skipped"

        def addUnexpectedSuccess(self, test):
            self.found, self.text = "failed", "an unexpected success"

        def stopTest(self, test):
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


main(json.loads(sys.stdin.read()))
