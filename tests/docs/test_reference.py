"""The reference: every number that is logged has its row, every module its page; none drifts."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from document_runs import run as run_program
from metrics_page import ALL_METRICS, EPISODE_METRICS, LOGGERS, OVER, PLACEHOLDERS, MetricName, matching_names

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parents[2]
GENERATORS = [
    "docs/metrics_page.py",
    "docs/api_pages.py",
    "docs/file_map.py",
    "docs/settings_table.py",
    "docs/shell_table.py",
    "docs/agents_table.py",
]

NOT_RUN_HERE = {
    "sampling/sampling_logp_difference/": "vLLM samples",
    "sampling/importance_sampling_ratio/": "vLLM samples",
    "sampling/staleness_": "async_generations, with vLLM",
    "sampling/off_policy_share": "async_generations, with vLLM",
    "sampling/mixed_share": "async_generations, with vLLM",
}
"""Beginnings of names that no run of `logged_runs` logs -> what is missing; `test_names_with_vllm` has them."""


@pytest.mark.smoke
@pytest.mark.examples
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_generated_page_is_what_its_generator_writes(generator: str) -> None:
    done = run_program(["python", generator, "--check"], ROOT)
    assert done.returncode == 0, f"python {generator} writes it anew:\n{done.stdout}"


# Metrics.

EXAMPLES = {
    "reason": "error",
    "k": "8",
    "end": "low",
    "task": "llm/Calculator-v0_easy",
    "id": "llm/Calculator-v0",
    "watched": "gap",
}


def who(run: str) -> set[str]:
    """Return who logs in a run, by the run's name."""
    special = {"eval_command": {"eval", "collect"}}
    return special.get(run, {"stock_trl" if run.startswith("stock_trl") else run.split("_")[0]})


@pytest.mark.smoke
def test_patterns() -> None:
    row = MetricName("env/stop/<reason>", "share", "", is_evaluated=True)
    assert row.matches("env/stop/max_turns") and row.matches("eval_env/stop/error")
    assert not row.matches("env/stop/boredom") and not row.matches("env/stop/") and not row.matches("x/env/stop/error")
    row = MetricName("env/<id>/success", "share", "")
    assert row.matches("env/llm/Sudoku-v0/hard/success") and not row.matches("eval_env/llm/Sudoku-v0/success")
    assert not row.matches("env/reward/success")  # a component of that name
    assert not MetricName("a.b", "", "").matches("axb")


@pytest.mark.smoke
def test_rows_are_whole_and_no_two_have_one_name() -> None:
    patterns = [name.pattern for name in ALL_METRICS]
    assert len(patterns) == len(set(patterns))
    for name in ALL_METRICS:
        assert name.unit and name.meaning.endswith(".") and name.logged_by, name
        assert set(name.logged_by) <= set(LOGGERS), name
        assert name.over in OVER if set(name.logged_by) - {"collect", "eval"} else not name.over, name
        example = re.sub(r"<(\w+)>", lambda match: EXAMPLES.get(match[1], "x"), name.pattern)
        assert matching_names(example, ALL_METRICS) == [name], example
    used = {part.split(">")[0] for name in ALL_METRICS for part in name.pattern.split("<")[1:]}
    assert used == set(PLACEHOLDERS)


@pytest.mark.smoke
def test_what_a_summary_of_episodes_says_is_known() -> None:
    from llm_envs.policies import OraclePolicy
    from llm_envs.rollout import Collector
    from llm_envs.tracking import trajectory_metrics

    with Collector("llm/Calculator-v0", OraclePolicy(), progress=False) as collector:
        keys = trajectory_metrics(t for group in collector.collect(2) for t in group)
    assert {"tool_success", "reward/correct", "stop/terminated"} <= keys.keys()
    assert all(len(matching_names(key, EPISODE_METRICS)) == 1 for key in keys), keys


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What each small run logged."""
    pytest.importorskip("trl")
    from logged_runs import RUNS, make_model

    model = make_model(tmp_path_factory.mktemp("model"))
    return {name: run(model, tmp_path_factory.mktemp(name)) for name, run in RUNS.items()}


@pytest.mark.examples
@pytest.mark.slow
class TestLogged:
    def test_every_key_is_one_row_of_who_logs_it(self, logged: dict[str, set[str]]) -> None:
        faults = []
        for run, keys in logged.items():
            for key in sorted(keys):
                rows = matching_names(key, ALL_METRICS)
                if len(rows) != 1:
                    faults.append(f"{run} logs {key!r}, which is {len(rows)} rows: {[row.pattern for row in rows]}")
                elif not who(run) & set(rows[0].logged_by):
                    faults.append(f"{run} logs {key!r}, and its row names {rows[0].logged_by}")
        assert faults == []

    def test_every_row_is_logged(self, logged: dict[str, set[str]]) -> None:
        keys = set().union(*logged.values())
        in_training = {key for key in keys if not key.startswith("eval_")}
        in_evaluation = keys - in_training
        missing = [
            row.pattern
            for row in ALL_METRICS
            if not any(map(row.matches, keys if row.pattern.startswith("eval_") else in_training))
            or (row.is_evaluated and not any(map(row.matches, in_evaluation)))
        ]
        assert [pattern for pattern in missing if not pattern.startswith(tuple(NOT_RUN_HERE))] == []
        assert all(any(pattern.startswith(start) for pattern in missing) for start in NOT_RUN_HERE)


@pytest.mark.vllm
@pytest.mark.slow
def test_names_with_vllm(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
    from logged_runs import MEASURED, make_model, train_grpo

    settings = {"use_vllm": True, "vllm_max_model_length": 192, "vllm_gpu_memory_utilization": 0.3, **MEASURED}
    settings["async_generations"] = 1
    keys = train_grpo(make_model(tmp_path / "model", hidden_size=64), tmp_path / "out", settings)
    assert [key for key in sorted(keys) if len(matching_names(key, ALL_METRICS)) != 1] == []
    missing = [row for row in ALL_METRICS if row.pattern.startswith(tuple(NOT_RUN_HERE))]
    assert len(missing) == 9
    for row in missing:
        assert any(row.matches(key) for key in keys), row.pattern


# API.


@pytest.mark.smoke
def test_every_public_module_is_on_one_page() -> None:
    """What a module exports is on the page of its room: mkdocstrings takes all that `__all__` names."""
    listed = [
        line.removeprefix("::: ")
        for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    ]
    folders = {"llm_envs": ROOT / "llm_envs", "llm_envs.trainers": ROOT / "trainers"}
    public = [
        ".".join([package, *path.relative_to(folder).with_suffix("").parts])
        for package, folder in folders.items()
        for path in folder.rglob("*.py")
        if path.name != "__init__.py" and "\n__all__ = [" in path.read_text(encoding="utf-8")
    ]
    empty = [name for name in public if name not in listed]
    assert sorted(listed) == sorted(set(listed)), "a module is on two pages"
    assert empty == [], "python docs/api_pages.py puts these on a page"
    assert sorted(set(listed) - set(public)) == [], "these are there no more"
    assert len(listed) > 150


@pytest.mark.smoke
@pytest.mark.examples
def test_docstrings_are_clean() -> None:
    """The site is built with warnings as errors: no docstring has a section that cannot be read."""
    griffe = pytest.importorskip("griffe", reason="the reference needs the extra `dev`")
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("griffe").addHandler(handler)
    try:
        loader = griffe.GriffeLoader(search_paths=[str(ROOT)], docstring_parser="google")
        package_tree = loader.load("llm_envs", try_relative_path=False)
        assert "trainers" in package_tree.members
        parse_all(package_tree)
        said = len(records)
        griffe.Docstring("Do.\n\nArgs:\n    looks\n", parser="google").parsed  # noqa: B018  (a fault is heard)
        assert len(records) > said
        del records[said:]
    finally:
        logging.getLogger("griffe").removeHandler(handler)
    assert [record.replace(str(ROOT), "") for record in records] == []


def parse_all(member: Any) -> None:
    """Parse the docstrings of a module or class and of all that is in it."""
    if member.is_alias:
        return
    if member.docstring is not None:
        _ = member.docstring.parsed
    for inner in getattr(member, "members", {}).values():
        parse_all(inner)
