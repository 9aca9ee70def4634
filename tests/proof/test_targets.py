"""The record of whole targets: what it counts and refuses, how old an entry is, and that each target writes its own."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.pages, pytest.mark.smoke]


@pytest.fixture
def targets(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from proof import targets

    return targets


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit of `tests/test_a.py`."""
    git(tmp_path, "init", "-q")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("1")
    commit(tmp_path)
    return tmp_path


def git(folder, *arguments):
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder):
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "a")


def report(folder, name, **counts):
    counts = " ".join(f'{key}="{value}"' for key, value in counts.items())
    (folder / name).write_text(f"<testsuites><testsuite {counts}/></testsuites>")


def test_counts_are_over_all_runs_of_a_target(targets, tmp_path):
    report(tmp_path, "1.xml", tests=5, skipped=1, failures=0, errors=0)
    report(tmp_path, "2.xml", tests=7, skipped=0, failures=0, errors=0)
    assert targets.count(tmp_path) == {"tests": 12, "skipped": 1}


@pytest.mark.parametrize("kind", ["failures", "errors"])
def test_a_target_that_failed_is_not_recorded(targets, tmp_path, kind):
    report(tmp_path, "1.xml", tests=5, **{kind: 2})
    with pytest.raises(ValueError, match="2 tests failed"):
        targets.count(tmp_path)


def test_sources_that_are_not_committed_count(targets, checkout):
    before = targets.fingerprints("test", checkout)
    (checkout / "README.md").write_text("no source")
    assert targets.fingerprints("test", checkout) == before
    (checkout / "tests" / "support.py").write_text("")
    added = targets.fingerprints("test", checkout)
    (checkout / "tests" / "support.py").unlink()
    assert targets.fingerprints("test", checkout) == before != added
    (checkout / "tests" / "test_a.py").write_text("2")
    assert targets.fingerprints("test", checkout)["own"] == before["own"]  # of no room's tests
    assert targets.fingerprints("test-vllm", checkout) != targets.fingerprints("test", checkout)


CHANGES = [
    ("llm_envs/rollout/collector.py", {"core"}, {"core"}, {"core"}),
    ("tasks/catalogue.yaml", {"core"}, {"core"}, {"core"}),
    ("llm_envs/bridges/mcp.py", set(), {"own"}, {"own"}),
    ("llm_envs/agents/server.py", set(), set(), {"own"}),
    ("tests/llm_envs/bridges/test_mcp_server.py", set(), {"own"}, {"own"}),
    ("tests/llm_envs/rollout/test_tree.py", {"own"}, set(), {"own"}),
    ("tests/support/wall.py", {"own"}, {"own"}, {"own"}),
    ("constraints.txt", {"own"}, {"own"}, {"own"}),
    ("constraints-suites.txt", set(), {"own"}, set()),
    ("docs/index.md", set(), set(), set()),
]


@pytest.mark.parametrize(("path", "core", "bridges", "vllm"), CHANGES, ids=[path for path, *_ in CHANGES])
def test_a_change_ends_the_entries_of_the_targets_that_it_touches(targets, checkout, path, core, bridges, vllm):
    (checkout / "Makefile").write_text("test-bridges: $(VENV_SUITES)/.stamp\ntest-vllm: $(VENV_VLLM)/.stamp\n")
    names = ("test", "test-bridges", "test-vllm")
    before = {name: targets.fingerprints(name, checkout) for name in names}
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text("changed")
    after = {name: targets.fingerprints(name, checkout) for name in names}
    changed = [{which for which in ("core", "own") if before[name][which] != after[name][which]} for name in names]
    assert changed == [core, bridges, vllm]


def test_what_changed_itself_runs_before_what_is_oldest_if_there_is_time(targets, checkout):
    def entry(name, date, seconds, **other):
        return {"sources": targets.fingerprints(name, checkout) | other, "date": date, "seconds": seconds}

    record = {
        "test": entry("test", "2026-01-01", 10, own="former"),
        "test-vllm": entry("test-vllm", "2026-01-01", 10),
        "test-trust": entry("test-trust", "2026-01-02", 100, core="former"),
        "test-scale": entry("test-scale", "2026-01-03", 100, core="former"),
        "test-bridges": entry("test-bridges", "2026-01-04", 1000, own="former"),
    }
    assert targets.next_target(record, 1300, checkout) == "test-bridges"
    assert targets.next_target(record, 1299, checkout) == "test-trust"
    assert targets.next_target(record, 100, checkout) is None
    assert targets.next_target({"test-vllm": record["test-vllm"]}, 1300, checkout) is None


def test_how_old_an_entry_is(targets, checkout):
    sources = targets.fingerprints("test", checkout)
    entry = {"sources": sources, "commit": git(checkout, "rev-parse", "--short=12", "HEAD") + "+"}
    for n in range(2):
        (checkout / f"{n}.md").write_text("no source")
        commit(checkout)
    assert targets.age(entry, targets.fingerprints("test", checkout), checkout) == "the same sources and tests"
    assert targets.age(entry, sources | {"own": "other"}, checkout) == "2 commits old"
    for unknown in (None, "0123456789ab"):
        assert "not in this history" in targets.age(entry | {"commit": unknown}, {}, checkout)


def test_each_test_file_is_of_the_core_or_of_one_target(targets):
    named = [name for target in ("core", *targets.wall.TARGETS) for name in targets.wall.tests_of(target)]
    assert len(named) == len(set(named))
    elsewhere = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")} - set(named)
    assert {name.split("/")[1] for name in elsewhere} == {"browser", "docs", "examples", "processes", "proof", "real"}


TARGETS = re.findall(r"^(test[\w-]*|check-tasks):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_whole_target_is_recorded_and_a_part_is_not(target):
    ours = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "SMOKE", "PYTEST_ARGS")  # of the `make` that runs this test
    env = {name: value for name, value in os.environ.items() if name not in ours}

    def commands(*arguments):
        command = ["make", "-n", target, *arguments]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    def pytests(text):
        return [line for line in text.splitlines() if "-m pytest" in line]

    whole, smoke, chosen = commands(), commands("SMOKE=1"), commands("PYTEST_ARGS=-k=name")
    assert f"proof.targets write {target}" in whole
    assert "proof.targets write" not in smoke + chosen
    assert pytests(whole) and all(" --junitxml build/targets/" in line for line in pytests(whole))
    assert pytests(smoke) and all(" and smoke" in line for line in pytests(smoke))
    assert " and smoke" not in whole + chosen
