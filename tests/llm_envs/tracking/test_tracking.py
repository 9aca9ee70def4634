"""Trackers of collections and evaluations: what was written is read back with each one's own library.

Nothing goes to the network: a proxy that every library would go through, in a process of its own, is never asked.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tracker_files import tensorboard_events, wandb_records, watched_proxy

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.evaluation import Results, Suite, SuiteEntry, evaluate_suite
from llm_envs.evaluation.metrics import evaluation_metrics
from llm_envs.policies import OraclePolicy, RandomPolicy
from llm_envs.rollout import Collector, CollectorStats, collect_run
from llm_envs.testing import ByteCodec, NumbersEnv, with_failures
from llm_envs.tracking import read_metrics, tracker_logger
from llm_envs.tracking.run_logger import EpisodeSample, RunLogger, collection_metrics, log_collection
from llm_envs.tracking.trackers import COLUMNS, Tracker
from llm_envs.types import Trajectory

CALCULATOR, NUMBER = "llm/Calculator-v0", "llm/GuessNumber-v0"
Capture = pytest.CaptureFixture[str]


# --- What others wrote ------------------------------------------------------------------------------------------------


def wandb_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[int, dict[str, Any]]]:
    """Return a run's names, its config, and step -> metrics."""
    names, config, steps = {}, {}, {}
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "run":
            names = {"project": record.run.project, "name": record.run.display_name}
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key}
        elif record.WhichOneof("record_type") == "history":
            found: dict[str, Any] = {}
            for item in record.history.item:
                path = [item.key] if item.key else list(item.nested_key)
                found["/".join(path) if len(path) == 1 else tuple(path)] = json.loads(item.value_json)
            steps[found.pop("_step")] = found
    return names, config, steps


def trackio_run(folder: Path, project: str) -> tuple[str, dict[str, Any], dict[int, dict[str, Any]]]:
    """Return a run's name, its config, and step -> metrics, from Trackio's own tables."""
    with sqlite3.connect(folder / f"{project}.db") as tables:
        steps: dict[int, dict[str, Any]] = {}
        for step, metrics in tables.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            steps.setdefault(step, {}).update(json.loads(metrics))
        ((name, config),) = tables.execute("SELECT run_name, config FROM configs")
    return name, json.loads(config), steps


# --- Numbers ----------------------------------------------------------------------------------------------------------


class TestNumbers:
    def test_of_a_collector_by_hand(self) -> None:
        stats = CollectorStats(running=2, accepted=10, errored=1, unscored=1, retries=3, successes=4, reward=6.0)
        stats.turns, stats.sampled_tokens, stats.forks, stats.clock.earlier_s = 30, 400, 1, 5.0
        stats.stop_reasons.update({"terminated": 8, "error": 2})
        assert collection_metrics(stats, done=5) == {
            "collect/episodes": 15,
            "collect/errored": 1,
            "collect/unscored": 1,
            "collect/retries": 3,
            "collect/running": 2,
            "collect/success": 0.5,
            "collect/reward": 0.75,
            "collect/turns": 3,
            "collect/sampled_tokens": 40,
            "collect/forks": 0.1,
            "collect/stop/error": 0.2,
            "collect/stop/terminated": 0.8,
            "collect/seconds": 5,
            "collect/episodes_per_second": 2,
            "collect/tokens_per_second": 80,
        }
        nothing = {name for name, value in collection_metrics(CollectorStats()).items() if value}
        assert nothing == set()

    def test_of_an_evaluation(self) -> None:
        entries = (
            SuiteEntry(CALCULATOR, {"difficulty": "easy"}, n=3, k=2),
            SuiteEntry(NUMBER, {"difficulty": "hard"}, "guess well!", n=3, k=2),
        )
        results = evaluate_suite(Suite(entries, 2), OraclePolicy())
        metrics = evaluation_metrics(results)
        assert metrics["eval/success"] == 1 and metrics["eval/difficulty/hard/success"] == 1
        task, found = results.tasks[1], {n.removeprefix("eval/guess_well_/"): v for n, v in metrics.items()}
        assert (found["success_low"], found["success_high"]) == pytest.approx(task.success.interval)
        assert (found["reward_bootstrap_low"], found["reward_bootstrap_high"]) == pytest.approx(task.reward.bootstrap)
        assert (found["pass_at_1"], found["pass_at_2"], found["pass_hat_2"]) == (1, 1, 1)
        assert (found["pass_hat_2_low"], found["turns"]) == (task.pass_hat[2].interval.low, task.turns)
        assert found["reward/correct"] == task.components["correct"].value
        assert (found["errored_rate"], found["unscored_rate"], found["truncated_rate"]) == (0, 0, 0)
        assert (found["episodes"], found["scored"], found["stop/terminated"]) == (6, 6, 1)
        assert all(math.isfinite(value) for value in metrics.values())
        assert "eval/llm/Calculator-v0_easy/success" in metrics  # what TensorBoard would rename is renamed for all

    def test_a_sample_is_bounded_and_each_is_as_likely(self) -> None:
        with Collector(NumbersEnv, OraclePolicy(), progress=False) as collector:
            episodes = [t for group in collector.collect(8) for t in group]
        counts = dict.fromkeys(range(8), 0)
        for seed in range(2000):
            sample = EpisodeSample(2, seed)
            for episode in episodes:
                sample.add(episode)
            assert len(sample.trajectories) == 2 and sample.seen == 8
            for kept in sample.trajectories:
                counts[episodes.index(kept)] += 1
        # Each with probability 2/8: 500 of 2,000, with a standard deviation of 19.4.
        assert all(abs(count - 500) < 100 for count in counts.values())


# --- Trackers ---------------------------------------------------------------------------------------------------------


class TestFiles:
    def test_a_collection_into_csv_and_jsonl(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        with tracker_logger(["csv", "jsonl"], folder=out) as logger:
            collect_run(NumbersEnv, RandomPolicy(), out=out, n_groups=5, group_size=2, logger=logger)
        with tracker_logger(["csv", "jsonl"], folder=out) as logger:
            done = collect_run(
                NumbersEnv, RandomPolicy(), out=out, n_groups=7, group_size=2, logger=logger, resume=True
            )
        records = read_metrics(out / "metrics.jsonl")
        assert [(r["step"], r["collect/episodes"]) for r in records] == [(10, 10), (14, 14)]
        assert records[1]["collect/success"] == done.stats.successes / 4
        lines = (out / "metrics.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines] == ["step", "10", "14"] and "collect/reward" in lines[0]

    def test_while_it_goes_on(self) -> None:
        logged: list[tuple[int, Mapping[str, float]]] = []
        enough = threading.Event()

        def log(step: int, metrics: Mapping[str, float]) -> None:
            logged.append((step, metrics))
            enough.set()

        stats = CollectorStats()
        with log_collection(log, stats, done=3, every_s=0.01):
            stats.accepted = 2
            assert enough.wait(60)
            stats.accepted = 6
        steps = [step for step, _ in logged]
        assert steps == sorted(set(steps)) and steps[0] == 5 and steps[-1] == 9
        with pytest.raises(KeyboardInterrupt), log_collection(log, stats, every_s=600):
            raise KeyboardInterrupt
        assert logged[-1][0] == 6  # what it came to, whatever ended it

    def test_any_logger_will_do_and_an_evaluation_ends_with_its_results(self) -> None:
        logged: dict[int, dict[str, float]] = {}
        suite = Suite((SuiteEntry(CALCULATOR, n=3),), 1)

        def log(step: int, metrics: Mapping[str, float]) -> None:
            logged.setdefault(step, {}).update(metrics)

        results = evaluate_suite(suite, OraclePolicy(), logger=log)
        assert list(logged) == [3] and logged[3]["collect/episodes"] == 3
        assert evaluation_metrics(results).items() <= logged[3].items()


class Failing(Tracker):
    """Works a few times."""

    name = "failing"

    def __init__(self, works: int) -> None:
        self.left, self.closed = works, 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk\nis \x1bfull")

    def close(self) -> None:
        self.closed += 1
        raise OSError("still full")


class TestFailures:
    def test_one_that_fails_in_mid_run_is_said_once_and_the_run_goes_on(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "file").write_text("")
        failing, kept = Failing(1), tracker_logger("jsonl", folder=tmp_path / "kept")
        blocked = tracker_logger("csv", folder=tmp_path / "file" / "below")
        logger = RunLogger([failing, *blocked.trackers, *kept.trackers])
        out = tmp_path / "run"
        for n_groups in (2, 4):
            done = collect_run(NumbersEnv, OraclePolicy(), out=out, n_groups=n_groups, logger=logger, resume=True)
        logger.close()
        assert done.n_finished == 4 and failing.closed == 1
        assert [r["step"] for r in read_metrics(tmp_path / "kept" / "metrics.jsonl")] == [2, 4]
        csv, other = capsys.readouterr().err.splitlines()
        assert csv.startswith("llm-envs: csv failed (NotADirectoryError: ")
        assert other == (
            "llm-envs: failing failed (OSError: the disk is ␛full): it is disabled, and the run continues."
        )

    def test_one_that_cannot_be_closed_is_said(self, capsys: Capture) -> None:
        with RunLogger([Failing(9)]) as logger:
            logger(1, {"a": math.nan})
        assert capsys.readouterr().err == (
            "llm-envs: failing failed (OSError: still full): what it had not written is lost.\n"
        )

    def test_wandb_gets_the_numbers_of_an_earlier_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An evaluation may end some steps after its own."""
        pytest.importorskip("wandb")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("WANDB_DIR", str(tmp_path))
        with tracker_logger("wandb", folder=tmp_path) as logger:
            for step, metrics in ((2, {"a": 1.0}), (4, {"a": 2.0}), (3, {"eval": 5.0})):
                logger(step, metrics)
        steps = {
            step: {k: v for k, v in row.items() if k[0] != "_"}
            for step, row in wandb_run(tmp_path / "wandb")[2].items()
        }
        assert steps == {2: {"a": 1.0}, 4: {"a": 2.0, "eval": 5.0, "step": 3}}

    @pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
    def test_a_missing_package_names_the_extra(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        pytest.importorskip("accelerate")
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        with pytest.raises(MissingExtraError, match=r"llm-envs\[logging\]"):
            tracker_logger([name], folder=tmp_path)
        assert main(["collect", CALCULATOR, "-n", "1", "--out", str(tmp_path / "run"), "--report-to", name]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and name in error and "llm-envs[logging]" in error
        assert not (tmp_path / "run").exists()  # said before anything is played

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["--report-to", "none", "csv", "--out", "x"], "--report-to none csv: none cannot be combined"),
            (["--report-to", "csv"], "--report-to csv writes into the run's folder: give --out DIR"),
            (["--project", "p"], "--project needs --report-to with a tracker"),
            (["--run-name", "r", "--report-to", "none"], "--run-name needs --report-to with a tracker"),
        ],
    )
    def test_a_wrong_request_is_one_line(self, arguments: list[str], expected: str, capsys: Capture) -> None:
        assert main(["eval", CALCULATOR, *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and expected in error

    def test_an_unknown_tracker_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match="there is no tracker 'mlflow': choose one or several of"):
            tracker_logger(["csv", "mlflow"], folder=tmp_path)
        with pytest.raises(InvalidConfigError, match="tensorboard writes into the run's folder"):
            tracker_logger("tensorboard")
        with pytest.raises(SystemExit):
            main(["eval", CALCULATOR, "--report-to", "mlflow"])
        assert tracker_logger("none").trackers == tracker_logger([]).trackers == []


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, list[bytes]]]:
    """An evaluation by command with every tracker at once, in a process of its own behind a proxy that is watched."""
    for package in ("accelerate", "tensorboard", "wandb", "trackio"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("tracked")
    with watched_proxy() as (proxy, heard):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "TRACKIO"))}
        environment = {name: value for name, value in environment.items() if "OFFLINE" not in name}
        environment.pop("DO_NOT_TRACK", None)
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        command = ["eval", CALCULATOR, NUMBER, "-n", "30", "-k", "2", "--policy", "random", "--json", "--out", "run"]
        command += ["--report-to", "tensorboard", "wandb", "trackio", "csv", "jsonl", "--seed", "3"]
        done = subprocess.run(
            [sys.executable, "-m", "llm_envs.cli.main", *command, "--project", "ours", "--run-name", "first"],
            cwd=folder,
            env=environment | {"TRACKIO_DIR": str(folder / "trackio")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        yield folder, done.stdout, heard


@pytest.mark.examples
class TestAllAtOnce:
    """What `llm-envs eval --report-to` leaves behind."""

    def test_nothing_goes_to_the_network_and_standard_output_is_the_results(
        self, logged: tuple[Path, str, list[bytes]]
    ) -> None:
        folder, output, heard = logged
        assert heard == []
        assert json.loads(output) == json.loads((folder / "run" / "results.json").read_text())

    def test_tensorboard(self, logged: tuple[Path, str, list[bytes]]) -> None:
        folder, expected = logged[0], evaluation_metrics(Results.load(logged[0] / "run"))
        events = tensorboard_events(folder / "run" / "tensorboard" / "first")
        for name, value in expected.items():
            (found,) = events.Scalars(name)
            assert found.step == 120 and found.value == pytest.approx(value)
        assert events.Scalars("collect/episodes")[-1].value == 120
        (table,) = events.Tensors("episodes/text_summary")
        lines = table.tensor_proto.string_val[0].decode().splitlines()
        assert len(lines) == 51 and all(line.startswith("    ") for line in lines)
        (config,) = events.Tensors("config/text_summary")
        assert json.loads(config.tensor_proto.string_val[0].decode())["seed"] == 3

    def test_wandb(self, logged: tuple[Path, str, list[bytes]]) -> None:
        folder, expected = logged[0], evaluation_metrics(Results.load(logged[0] / "run"))
        names, config, steps = wandb_run(folder / "wandb")
        assert names == {"project": "ours", "name": "first"}
        assert config["policy"] == "random" and config["seed"] == 3 and config["eval"][0][1] == CALCULATOR
        assert "python" in config["versions"]
        assert steps[120]["collect/episodes"] == 120
        assert {name: steps[120][name] for name in expected} == pytest.approx(expected)
        (table,) = folder.rglob("*.table.json")
        data = json.loads(table.read_text())
        assert data["columns"] == list(COLUMNS) and len(data["data"]) == 50
        env, seed, member, reward, success, turns, _, stop, words = data["data"][0]
        assert env == CALCULATOR and isinstance(seed, int) and member in (0, 1) and success is False
        assert reward < 0 and turns == 4 and stop == "env_truncated" and "--- assistant" in words

    def test_trackio(self, logged: tuple[Path, str, list[bytes]]) -> None:
        folder, expected = logged[0], evaluation_metrics(Results.load(logged[0] / "run"))
        name, config, steps = trackio_run(folder / "trackio", "ours")
        assert name == "first" and config["policy"] == "random" and "python" in config["versions"]
        assert steps[120]["collect/episodes"] == 120
        assert {name: steps[120][name] for name in expected} == pytest.approx(expected)
        rows = steps[120]["episodes"]["_value"]
        assert len(rows) == 50 and list(rows[0]) == list(COLUMNS) and rows[0]["conversation"].startswith("```\nllm/")

    def test_csv_and_jsonl(self, logged: tuple[Path, str, list[bytes]]) -> None:
        run, expected = logged[0] / "run", evaluation_metrics(Results.load(logged[0] / "run"))
        *_, counted, last = read_metrics(run / "metrics.jsonl")
        assert counted["step"] == last["step"] == 120 and last.items() >= expected.items()
        assert (run / "metrics.csv").read_text().splitlines()[0].split(",")[0] == "step"


class TestTables:
    def test_what_a_model_wrote_is_neither_markup_nor_without_end(self) -> None:
        from llm_envs.tracking.trackers import MAX_CHARACTERS, _fenced, _row

        hostile = "```\n<script>alert(1)</script>\x1b[31m" + "x" * 10_000
        from llm_envs.policies import ReplayPolicy

        with Collector(NumbersEnv, ReplayPolicy([hostile] * 9), codec=ByteCodec(), progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
        *cells, words = _row(trajectory)
        assert len(words) == MAX_CHARACTERS and "\x1b" not in words and json.dumps(cells)
        fenced = _fenced(words)
        assert fenced.startswith("````\n") and fenced.endswith("\n````") and "````" not in words

    def test_one_that_failed_has_no_reward(self) -> None:
        from llm_envs.tracking.trackers import _row

        played: list[Trajectory] = []
        with Collector(
            NumbersEnv, with_failures(OraclePolicy(), 1.0), progress=False, max_retries=0, on_trajectory=played.append
        ) as collector:
            collector.collect(1)
        assert _row(played[0])[3:5] == [None, None] and "error in policy" in _row(played[0])[-1]


def test_replaying_reports_too(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    assert main(["eval", CALCULATOR, "-n", "3", "--out", str(run)]) == 0
    command = ["eval", "--replay", str(run), "--out", str(run), "--report-to", "jsonl"]
    assert main(command) == 0
    (record,) = read_metrics(run / "metrics.jsonl")
    assert record["step"] == 3 and record["eval/success"] == 1 and "collect/episodes" not in record
    capsys.readouterr()
