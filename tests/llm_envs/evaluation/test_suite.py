"""Suites, their results, the file that these are kept in, and scoring again what was played."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_trajectories import make_trajectory

from llm_envs import evaluate
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.evaluation import Results, Suite, SuiteEntry, evaluate_suite, load_suite
from llm_envs.evaluation.replayed import load_results, replay
from llm_envs.evaluation.results import RESULTS_NAME, installed_versions
from llm_envs.evaluation.scores import Scoreboard, average_rate, score_episode, summarize_task
from llm_envs.evaluation.statistics import rate_interval, student_quantile, wilson_interval
from llm_envs.evaluation.suite import SuiteSource, Thresholds, failed_thresholds
from llm_envs.policies import OraclePolicy, RandomPolicy
from llm_envs.rollout import TrajectoryWriter, read_run, read_trajectories
from llm_envs.types import RolloutError, Status, StopReason, Trajectory, Turn

CALCULATOR, NUMBER = "llm/Calculator-v0", "llm/GuessNumber-v0"
TEST = {"split": "test"}


def episode(
    seed: int,
    member: int,
    success: bool,
    *rewards: float,
    status: Status = "ok",
    env_id: str = "E-v0",
    kwargs: Mapping[str, Any] | None = None,
    malformed: int = 0,
) -> Trajectory:
    """An episode of a turn for each reward, the first `malformed` of them malformed."""
    turns = [Turn(r, {"correct": r, "malformed": float(i < malformed)}) for i, r in enumerate(rewards)]
    reason = {"ok": StopReason.TERMINATED, "errored": StopReason.ERROR, "unscored": StopReason.PROMPT_TOO_LONG}[status]
    return replace(
        make_trajectory(None, member=member),
        env_id=env_id,
        env_kwargs=dict(kwargs or {}),
        seed=seed,
        group_id=f"0-{seed}",
        turns=tuple(turns),
        terminated=reason is StopReason.TERMINATED,
        stop_reason=reason,
        status=status,
        is_success=success if status == "ok" else None,
        error=RolloutError("TimeoutError", "late", "policy") if status == "errored" else None,
        timings={"total": 2.0 + seed},
    )


class TestScores:
    def test_a_task_by_hand(self) -> None:
        # Problem 1: 2 of 2 succeed; 2: 1 of 2; 3: 0 of 1, and an episode that errored; 4: nothing was scored.
        episodes = [
            episode(1, 0, True, 1.0),
            episode(1, 1, True, 0.0, 1.0, malformed=1),
            episode(2, 0, False, 0.5),
            episode(2, 1, True, 1.0),
            episode(3, 0, False, 0.0, 0.0, 0.0, malformed=2),
            episode(3, 1, False, 0.7, status="errored"),
            episode(4, 0, False, status="unscored"),
            episode(4, 1, False, status="unscored"),
        ]
        found = summarize_task("t", "E-v0", {"difficulty": "hard"}, [score_episode(e) for e in reversed(episodes)], k=2)
        assert (found.n_problems, found.n_episodes, found.n_scored, found.n_errored, found.n_unscored) == (
            4,
            8,
            5,
            1,
            2,
        )
        assert (found.error_rate, found.unscored_rate, found.difficulty, found.k) == (1 / 8, 2 / 8, "hard", 2)
        # Sums 2, 1, 0 of 2, 2, 1, mean 3/5: deviations 4/5, -1/5, -3/5; error² = 3/2 · (26/25) / 25.
        assert (found.success.value, found.success.error) == pytest.approx((0.6, math.sqrt(0.0624)))
        trials = 5 * (0.24 / 4) / 0.0624
        assert found.success.interval == pytest.approx(rate_interval(0.6, trials, student_quantile(0.95, 2)))
        assert found.reward.value == pytest.approx((1 + 1 + 0.5 + 1 + 0) / 5)
        # pass@1 is a mean of problems: (1 + 1/2 + 0)/3; pass@2 of the two problems with two samples.
        values = [(m.value, m.n_problems) for m in (*found.pass_at.values(), *found.pass_hat.values())]
        assert values == [(0.5, 3), (1.0, 2), (0.5, 3), (0.5, 2)]
        assert found.pass_at[2].interval == rate_interval(1.0, 2, student_quantile(0.95, 1))
        assert {name: m.value for name, m in found.components.items()} == {
            "correct": pytest.approx(0.7),
            "malformed": pytest.approx(3 / 5),
        }
        assert found.malformed_turns == pytest.approx(3 / 8) and found.malformed_episodes == pytest.approx(2 / 5)
        assert (found.turns, found.tokens, found.truncated) == (8 / 5, 0.0, 0.0)
        assert found.seconds == pytest.approx((3 + 3 + 4 + 4 + 5) / 5)
        assert found.stop_reasons == {"terminated": 5, "prompt_too_long": 2, "error": 1}
        assert found.errors == {"prompt_too_long": 2, "policy: TimeoutError: late": 1}
        assert [(p.seed, p.successes, p.rewards) for p in found.problems] == [
            (1, (True, True), (1.0, 1.0)),
            (2, (False, True), (0.5, 1.0)),
            (3, (False,), (0.0,)),
            (4, (), ()),
        ]

    def test_nothing_scored_is_not_zero(self) -> None:
        found = summarize_task("t", "E-v0", {}, [score_episode(episode(1, 0, False, status="errored"))])
        assert math.isnan(found.success.value) and math.isnan(found.reward.value) and math.isnan(found.pass_at[1].value)
        assert found.success.interval == (0.0, 1.0) and found.error_rate == 1.0 and math.isnan(found.malformed_turns)
        suite = Suite((SuiteEntry("E-v0", thresholds=Thresholds(min_success=0.0, max_errors=1.0)),), 1)
        results = Results((found,), found.success, {}, {}, {})
        assert failed_thresholds(results, suite) == [
            "t: none of 1 episodes was scored (1 x policy: TimeoutError: late)"
        ]

    def test_a_threshold_on_what_was_not_measured(self) -> None:
        scores = [score_episode(episode(1, m, True, 1.0, status="ok" if m == 0 else "errored")) for m in range(2)]
        found = summarize_task("t", "E-v0", {}, scores, k=2)
        asked = Thresholds(min_success=1.0, min_pass_at_k=0.5, max_errors=0.5)
        results = Results((found,), found.success, {}, {}, {})
        assert failed_thresholds(results, Suite((SuiteEntry("E-v0", k=2, thresholds=asked),), 2)) == [
            "t: pass@2 is nan, below 0.5"
        ]

    def test_the_mean_of_tasks_by_hand(self) -> None:
        def task(name: str, won: list[int]) -> Any:
            scores = [score_episode(episode(i, 0, bool(w), float(w))) for i, w in enumerate(won)]
            return summarize_task(name, name, {}, scores)

        # 1/2 of 40 and 1 of 10: errors² (1/4)/39 and 0, so the mean 3/4 has error √(1/156)/2.
        found = average_rate([task("a", [0, 1] * 20), task("b", [1] * 10)])
        assert (found.value, found.error, found.n_problems) == pytest.approx((0.75, math.sqrt(1 / 156) / 2, 50))
        assert found.interval == pytest.approx(rate_interval(0.75, 50, 1.959964), abs=1e-6)  # 117 trials, 50 episodes
        assert 0.65 < found.bootstrap.low < 0.7 < 0.8 < found.bootstrap.high < 0.85
        assert average_rate([]).n_problems == 0 and average_rate([task("a", [1] * 10)]).interval == wilson_interval(
            10, 10
        )

    def test_the_mean_of_one_task_is_its_own(self) -> None:
        won = {1: (True, False), 2: (True, True), 3: (False, False)}
        scores = [score_episode(episode(seed, m, w, 0.0)) for seed, ws in won.items() for m, w in enumerate(ws)]
        found = summarize_task("t", "E-v0", {}, scores)
        assert average_rate([found]) == found.success and found.success.n_problems == 3

    def test_a_task_of_the_suite_that_was_not_played_reaches_nothing(self) -> None:
        found = summarize_task("t", "E-v0", {}, [score_episode(episode(1, 0, True, 1.0))])
        suite = Suite((SuiteEntry("E-v0"), SuiteEntry("F-v0", thresholds=Thresholds(min_success=0.5))), 1)
        results = Results((found,), found.success, {}, {}, {})
        assert failed_thresholds(results, suite) == ["F-v0: it is in the suite but not in the results"]

    def test_tasks_are_told_apart_by_their_arguments(self) -> None:
        board = Scoreboard()
        arguments = [{}, {"difficulty": "easy"}, {"difficulty": "hard"}, {"difficulty": "hard", "max_turns": 3}]
        for index, kwargs in enumerate([*arguments, arguments[1]]):
            board.add(episode(index, 0, True, 1.0, kwargs=kwargs))
        named = [(task.name, task.n_episodes) for task in board.results()]
        assert named == [("E-v0", 1), ("E-v0 easy", 2), ("E-v0 hard", 1), ('E-v0 hard {"max_turns": 3}', 1)]
        with pytest.raises(InvalidConfigError, match="k is 2, but no problem of E-v0 has more than 1 samples"):
            board.results(k=2)


class TestPlaying:
    suite = Suite((SuiteEntry(CALCULATOR, TEST, n=3, k=2), SuiteEntry(NUMBER, TEST, n=2, k=1)), 2, seed=5)

    def test_a_folder_and_replaying_it(self, tmp_path: Path) -> None:
        kept = evaluate_suite(self.suite, RandomPolicy(), out=tmp_path / "run", settings={"policy": "random"})
        loose = evaluate_suite(self.suite, RandomPolicy(), settings={"policy": "random"})
        again = replay(tmp_path / "run")
        assert again == kept == Results.load(tmp_path / "run") == Results.load(tmp_path / "run" / RESULTS_NAME)
        assert load_results(tmp_path / "run") == kept
        assert [task.problems for task in loose] == [task.problems for task in kept] and loose.settings == kept.settings
        assert [(task.name, task.n_problems, task.n_episodes, task.k) for task in kept] == [
            (CALCULATOR, 3, 6, 2),
            (NUMBER, 2, 4, 1),
        ]
        assert kept.settings["seed"] == 5 and kept.settings["group_size"] == 2 and kept.settings["policy"] == "random"
        assert kept.settings["envs"] == [[CALCULATOR, 1.0, TEST], [NUMBER, 1.0, TEST]]
        assert kept.versions == kept.played_with and kept.versions.keys() >= {
            "python",
            "llm-envs",
            "gymnasium",
            "numpy",
        }
        assert replay(tmp_path / "run", k=1).tasks[0].pass_at.keys() == {1}
        with pytest.raises(StoreError, match="holds a run already"):
            evaluate_suite(self.suite, RandomPolicy(), out=tmp_path / "run")

    def test_an_interrupted_one_is_half_written_until_it_is_resumed(self, tmp_path: Path) -> None:
        whole = evaluate_suite(self.suite, OraclePolicy(), out=tmp_path / "whole")
        stored = read_run(tmp_path / "whole")
        with TrajectoryWriter(tmp_path / "half", settings=stored.settings) as writer:
            for trajectory in stored.trajectories[:7]:
                writer.write(trajectory)
        with pytest.raises(InvalidConfigError, match=r"half-written: it has 7 of 10 episodes. Finish it with --resume"):
            replay(tmp_path / "half")
        assert sum(task.n_episodes for task in replay(tmp_path / "half", allow_partial=True)) == 7
        resumed = evaluate_suite(self.suite, OraclePolicy(), out=tmp_path / "half", resume=True)
        assert [task.problems for task in resumed] == [task.problems for task in whole]
        assert len(read_trajectories(tmp_path / "half")) == 10

    def test_problems_depend_on_the_seed_alone(self) -> None:
        entries = self.suite.entries
        more = Suite((entries[1], SuiteEntry(CALCULATOR, TEST, n=5)), 1, seed=5)
        one, other = SuiteSource(self.suite), SuiteSource(more)
        assert [one.spec(i).seed for i in range(3)] == [other.spec(2 + i).seed for i in range(3)]
        assert one.spec(0).group_id == f"{CALCULATOR}-000000" and one.spec(3).group_id == f"{NUMBER}-000000"
        assert len(one) == 5 and self.suite.n_episodes == 10
        with pytest.raises(InvalidConfigError, match="has 5 groups"):
            one.spec(5)
        played = evaluate(CALCULATOR, OraclePolicy(), n=3, seed=5)
        assert [t.seed for t in played.trajectories] == [one.spec(i).seed for i in range(3)]

    def test_a_collected_run_is_scored_too(self, tmp_path: Path) -> None:
        with TrajectoryWriter(tmp_path / "run", settings={"group_size": 2}) as writer:
            for seed, member, won in ((1, 0, True), (1, 1, False), (2, 0, False)):
                writer.write(episode(seed, member, won, float(won)))
        with pytest.raises(InvalidConfigError, match="3 of 4 episodes"):
            replay(tmp_path / "run")
        with TrajectoryWriter(tmp_path / "run", settings={"group_size": 2}, resume=True) as writer:
            writer.write(episode(2, 1, False, 0.0))
        found = replay(tmp_path / "run").tasks[0]
        assert (found.success.value, found.pass_at[2].value, found.pass_hat[2].value) == (0.25, 0.5, 0.0)
        assert replay(tmp_path / "run").played_with == {}
        with pytest.raises(InvalidConfigError, match="k is 3, but no problem of E-v0 has more than 2 samples"):
            replay(tmp_path / "run", k=3)

    def test_what_cannot_be_replayed(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match="holds no run"):
            replay(tmp_path)
        with TrajectoryWriter(tmp_path / "run", settings={}):
            pass
        with pytest.raises(InvalidConfigError, match="is empty: it has no finished episode"):
            replay(tmp_path / "run")
        line = episode(1, 0, True, 1.0).to_json()
        (tmp_path / "run" / "log-00000.jsonl").write_text(f"{line}\n{line[:40]}")
        with pytest.raises(InvalidConfigError, match=r"the last line of log-00000.jsonl is cut off"):
            replay(tmp_path / "run")
        with pytest.warns(UserWarning, match="torn"):
            assert replay(tmp_path / "run", allow_partial=True).tasks[0].n_episodes == 1
        with pytest.raises(InvalidConfigError, match="does not exist: give the folder of a run"):
            load_results(tmp_path / "nowhere")


class TestResultsFile:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"version": 7}, r"is of version 7, which is newer: .* \(unknown\), or score its episodes again"),
            ({"version": 7, "versions": {"llm-envs": "9.1"}}, r"Use the version that wrote it \(9.1\)"),
            ({"version": 0, "versions": 3}, r"is of version 0; this llm-envs reads 1. Score its episodes again"),
            ({"version": None}, r"is of version None; this llm-envs reads 1"),
            ({"format": "other"}, "holds no results"),
            ({"tasks": [{}]}, r"is damaged \(KeyError"),
            ({"tasks": 3}, "is damaged"),
        ],
    )
    def test_another_file(self, tmp_path: Path, change: dict[str, Any], expected: str) -> None:
        found = summarize_task("t", "E-v0", {}, [score_episode(episode(1, 0, True, 1.0))])
        path = Results((found,), found.success, {}, {}, {}).save(tmp_path)
        assert Results.load(path).tasks[0].success == found.success  # whose infinities are null in the file
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(InvalidConfigError, match=expected):
            Results.load(path)
        path.write_text(path.read_text()[:-5])
        with pytest.raises(InvalidConfigError, match="is damaged: it is not JSON"):
            Results.load(path)


def test_versions_of_what_is_installed_under_another_name() -> None:
    import importlib.metadata

    found = installed_versions(["numpy", "yaml", "no-such-package"])  # PyYAML's module
    expected = {"numpy": importlib.metadata.version("numpy"), "yaml": importlib.metadata.version("PyYAML")}
    assert {name: value for name, value in found.items() if name != "python"} == expected


class TestSuiteFile:
    def load(self, tmp_path: Path, text: str, **given: Any) -> Suite:
        pytest.importorskip("yaml")
        path = tmp_path / "suite.yaml"
        path.write_text(text)
        return load_suite(path, **given)

    TEXT = f"""
        n: 50
        k: 2
        seed: 3
        min_success: 0.5
        environments:
          - {CALCULATOR}
          - env: {NUMBER}
            difficulty: [easy, hard]
            kwargs: {{max_turns: 12}}
            n: 10
            k: 4
            min_success: 0.9
    """

    def test_what_it_says(self, tmp_path: Path) -> None:
        suite = self.load(tmp_path, self.TEXT)
        assert (suite.samples, suite.seed) == (4, 3)
        assert [(e.label, e.n, e.k, e.thresholds.min_success) for e in suite.entries] == [
            (CALCULATOR, 50, 2, 0.5),
            (f"{NUMBER} easy", 10, 4, 0.9),
            (f"{NUMBER} hard", 10, 4, 0.9),
        ]
        assert suite.entries[1].kwargs == {"split": "test", "max_turns": 12, "difficulty": "easy"}

    def test_the_command_line_stands_over_it(self, tmp_path: Path) -> None:
        suite = self.load(tmp_path, self.TEXT, n=5, k=None, group_size=6, split="train", min_success=0.1, seed=None)
        assert (suite.samples, suite.seed, {e.n for e in suite.entries}) == (6, 3, {5})
        assert {e.thresholds.min_success for e in suite.entries} == {0.1}
        assert {e.kwargs["split"] for e in suite.entries} == {"train"}

    def test_the_example_of_the_document(self, tmp_path: Path) -> None:
        document = (Path(__file__).parents[3] / "docs" / "guides" / "evaluation.md").read_text(encoding="utf-8")
        text = document.split("```yaml\n")[1].split("```")[0]
        suite, written = self.load(tmp_path, text), yaml.safe_load(text)
        n, k, last = written["n"], written["k"], written["environments"][2]
        said = [(e.label, e.n, e.k, e.thresholds.min_success) for e in suite.entries]
        assert said == [
            (CALCULATOR, n, k, 0.3),
            (f"{NUMBER} easy", n, k, 0.8),
            (f"{NUMBER} hard", n, k, 0.8),
            ("calculator in a hurry", last["n"], last["k"], 0.3),
        ]
        assert (suite.samples, suite.entries[3].kwargs) == (k, {"split": "test", "max_turns": 2})
        assert n != last["n"] and k != last["k"]

    def test_json_and_patterns(self, tmp_path: Path) -> None:
        (tmp_path / "suite.json").write_text(json.dumps({"environments": [{"env": "llm/G*-v0", "split": "none"}]}))
        entries = load_suite(tmp_path / "suite.json").entries
        assert NUMBER in {e.env_id for e in entries} and all(e.kwargs == {} and e.n == 200 for e in entries)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("environments: []", "must be a list of ids"),
            ("- llm/Calculator-v0", "must be a mapping"),
            ("{", "it is not YAML"),
            (f"enviroments: [{CALCULATOR}]", "Did you mean environments"),
            (f"environments: [{{env: {CALCULATOR}, min_sucess: 1}}]", "Did you mean min_success"),
            (f"environments: [{{env: {CALCULATOR}, n: 0}}]", "n is 0; it must be an integer from 1"),
            (f"environments: [{{env: {CALCULATOR}, min_success: high}}]", "min_success is 'high'"),
            (f"environments: [{{env: {CALCULATOR}, kwargs: 3}}]", "kwargs is 3"),
            (f"environments: [{{env: {CALCULATOR}, kwargs: {{a: [2026-01-01]}}}}]", "kwargs is .*datetime.date"),
            (f"environments: [{{env: {CALCULATOR}, kwargs: {{a: {{1: 2}}}}}}]", "kwargs is .*1: 2"),
            (f"{{group_size: 0, environments: [{CALCULATOR}]}}", "group_size is 0; it must be an integer from 1"),
            (f"{{min_success: 1{'0' * 400}, environments: [{CALCULATOR}]}}", "it must be a number"),
            (f"{{min_success: .nan, environments: [{CALCULATOR}]}}", "min_success is nan; it must be a number"),
            (f"environments: [{{name: {CALCULATOR}}}]", "is not an environment"),
            (f"environments: [{CALCULATOR}, {CALCULATOR}]", "occurs twice with the same arguments"),
            ("environments: [{env: 'llm/*', name: all}]", "one name for several tasks"),
            (f"{{n: 1, n: 2, environments: [{CALCULATOR}]}}", "the key 'n' is repeated"),
            (f"environments: [{{env: {CALCULATOR}, n: 1:30}}]", "n is '1:30'; it must be an integer"),
            ("environments: ['llm/Nothing*']", "no task matches"),
            (f"{{k: 4, group_size: 2, environments: [{CALCULATOR}]}}", "k is 4 but each problem has 2 samples"),
        ],
    )
    def test_what_it_cannot_say(self, tmp_path: Path, text: str, expected: str) -> None:
        with pytest.raises(InvalidConfigError, match=expected):
            self.load(tmp_path, text)
        with pytest.raises(InvalidConfigError, match="cannot be read"):
            load_suite(tmp_path / "none.yaml")
