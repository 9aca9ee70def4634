"""`llm-envs collect` and `llm-envs export`, as a user has them."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError, JudgeError, RolloutFailedError, StoreError
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import (
    Collector,
    EnvChoice,
    EpisodeSpec,
    RolloutLimits,
    SeedSource,
    collect_run,
    group_specs,
    read_run,
    read_trajectories,
)
from llm_envs.rollout.collect_run import run_settings
from llm_envs.sources.mixture_text import parse_mixture
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.tracking import read_metrics
from llm_envs.types import SamplingParams, Trajectory

CALCULATOR, NUMBER = "llm/Calculator-v0", "llm/GuessNumber-v0"


def collect(*arguments: str | Path) -> int:
    return main(["collect", *map(str, arguments)])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from tiny_folders import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"), n_layers=1)


class TestCollect:
    def test_a_mixture_by_weight(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = tmp_path / "run"
        assert collect(f"{CALCULATOR}:3", NUMBER, "-n", "200", "--group-size", "2", "--out", run, "--seed", "7") == 0
        shown = capsys.readouterr()
        assert shown.out.splitlines()[0].startswith("400 episodes in ")
        assert shown.out.splitlines()[1] == f"400 of 400 episodes are in {run}"
        assert shown.err == f"next: llm-envs report {run}\n"
        stored = read_run(run)
        counts = Counter(t.env_id for t in stored.trajectories)
        assert 260 <= counts[CALCULATOR] <= 340 and counts[CALCULATOR] + counts[NUMBER] == 400  # 300, s = 12 at most
        assert Counter(t.member for t in stored.trajectories) == {0: 200, 1: 200}
        assert stored.settings == {
            "envs": [[CALCULATOR, 3.0, {}], [NUMBER, 1.0, {}]],
            "seed": 7,
            "group_size": 2,
            "policy": "oracle",
        }

    def test_numbers_while_it_goes_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = tmp_path / "run"
        command = [CALCULATOR, "--out", run, "--resume", "--report-to", "csv", "jsonl"]
        for n in ("2", "5"):
            assert collect(*command, "-n", n, "--group-size", "2") == 0
        records = read_metrics(run / "metrics.jsonl")
        assert [(r["step"], r["collect/success"], r["collect/episodes"]) for r in records] == [(4, 1, 4), (10, 1, 10)]
        assert read_metrics(run / "metrics.csv") == records
        assert len(read_trajectories(run)) == 10
        assert capsys.readouterr().err == 2 * f"next: llm-envs report {run}\n"

    def test_what_is_handed_to_the_task(self, tmp_path: Path) -> None:
        settings = ["--split", "test", "--env-kwargs", '{"difficulty": "easy", "max_turns": 3}', "--policy", "random"]
        assert collect(CALCULATOR, "-n", "3", "--out", tmp_path / "run", "--max-turns", "2", *settings) == 0
        for trajectory in read_trajectories(tmp_path / "run"):
            assert trajectory.env_kwargs == {"split": "test", "difficulty": "easy", "max_turns": 3}
            assert len(trajectory.turns) <= 2

    def test_a_second_run_into_a_folder_is_refused_with_what_to_do(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = [CALCULATOR, "-n", "2", "--out", tmp_path / "run"]
        assert collect(*command) == 0
        capsys.readouterr()
        assert collect(*command) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "holds a run already: choose another folder, or continue" in error
        assert "--resume" in error
        others = ["--resume", "--seed", "3", "--temperature", "0.5", "--max-turns", "4", "--group-size", "2"]
        assert collect(*command, *others) == 1
        error = capsys.readouterr().err
        said = "group_size: 1 there, 2 here, limits.max_turns: not set there, 4 here, "
        assert said + "sampling.temperature: not set there, 0.5 here, seed: 0 there, 3 here" in error
        assert len(read_trajectories(tmp_path / "run")) == 2

    def test_going_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = tmp_path / "run"
        command = [CALCULATOR, "--out", run, "--resume", "--group-size", "2"]
        assert collect(*command, "-n", "3") == 0
        first = read_trajectories(run)
        assert (
            collect(*command, "-n", "3", "--max-concurrency", "1") == 0
        )  # nothing to do; speed is no setting of the run
        assert capsys.readouterr().out.splitlines()[-1] == f"6 of 6 episodes are in {run}, 6 of them from before"
        assert read_trajectories(run) == first
        assert collect(*command, "-n", "5") == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"10 of 10 episodes are in {run}, 6 of them from before"
        command = [CALCULATOR, "--out", tmp_path / "whole", "--group-size", "2", "-n", "5", "--max-concurrency", "auto"]
        assert collect(*command) == 0
        whole = read_trajectories(tmp_path / "whole")
        assert sorted(read_trajectories(run), key=lambda t: (t.group_id, t.member)) == whole

    def test_episodes_that_fail_are_said_and_played_anew(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        gym.register("test/Broken-v0", "llm_envs.testing:NumbersEnv", kwargs={"raise_at": 1})
        command = ["test/Broken-v0", "-n", "3", "--out", tmp_path / "run", "--max-step-s", "30", "--resume"]
        for _ in range(2):
            assert collect(*command) == 1
            error = capsys.readouterr().err
            assert "3 episodes failed (3 x env.step: RuntimeError: the environment broke)." in error
            assert "Repeat the command with --resume to play them again." in error
            assert [t.status for t in read_trajectories(tmp_path / "run")] == ["errored"] * 3
        del gym.registry["test/Broken-v0"]

    def test_a_model(self, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run = tmp_path / "run"
        command = [CALCULATOR, "-n", "2", "--out", run, "--model", model, "--max-turn-tokens", "4", "--window", "1"]
        assert collect(*command, "--temperature", "0.7", "--max-turns", "2") == 0
        stored = read_run(run)
        assert {t.status for t in stored.trajectories} == {"ok"}
        assert all(t.n_sampled_tokens == 4 * len(t.turns) for t in stored.trajectories)
        chosen = {"policy": "model", "model": str(model), "engine": "transformers", "window": 1}
        budgets = {"sampling.temperature": 0.7, "sampling.max_new_tokens": 4, "limits.max_turns": 2}
        others = {"envs": [[CALCULATOR, 1.0, {}]], "seed": 0, "group_size": 1}
        assert stored.settings == chosen | budgets | others
        assert collect(*command[:-2], "--resume") == 1
        assert "window: 1 there, not set here" in capsys.readouterr().err

    def test_tokens_for_a_scripted_policy(self, tmp_path: Path, model: Path) -> None:
        assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--tokenizer", model) == 0
        assert all(t.n_sampled_tokens > 0 for t in read_trajectories(tmp_path / "run"))

    @pytest.mark.vllm
    def test_a_model_on_vllm(self, tmp_path: Path, model: Path) -> None:
        command = [CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", model, "--engine", "vllm"]
        assert collect(*command, "--max-turn-tokens", "4", "--max-turns", "1") == 0
        for trajectory in read_trajectories(tmp_path / "run"):
            assert trajectory.status == "ok" and 1 <= trajectory.n_sampled_tokens <= 4

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["llm/Calculater-v0"], CALCULATOR),
            ([f"{CALCULATOR}:0"], "the weight must be a number above 0"),
            ([f"{CALCULATOR}:nan"], "the weight must be a number above 0"),
            ([CALCULATOR, f"{CALCULATOR}:2"], "given twice"),
            (["CartPole-v1"], "CartPole-v1 has the spaces Box("),
            ([CALCULATOR, "--difficulty", "harrd"], "harrd"),
            ([CALCULATOR, "--split", "test", "--env-kwargs", '{"split": "train"}'], "give only one"),
            ([CALCULATOR, "--env-kwargs", '{"colour": 1}'], "colour"),
            ([CALCULATOR, "--model", "./nowhere"], "no such folder"),
            ([CALCULATOR, "--tokenizer", "./nowhere"], "no such folder"),
            ([CALCULATOR, "--engine", "vllm"], "give --model"),
            ([CALCULATOR, "--model", "a/b", "--tokenizer", "a/b"], "where a model has its own"),
            ([CALCULATOR, "--url", "http://127.0.0.1:1"], "--url needs a model: give --model"),
            ([CALCULATOR, "--serve", "2"], "--serve needs a model: give --model"),
            ([CALCULATOR, "--model", "a/b", "--engine", "server"], "--engine server needs --url"),
            ([CALCULATOR, "--model", "a", "--engine", "api"], "--engine api needs --url"),
            ([CALCULATOR, "--model", "a", "--engine", "api", "--url", "host"], "must begin with http://"),
            ([CALCULATOR, "--model", "a", "--engine", "api", "--url", "u", "--url", "v"], "one --url"),
            (
                [CALCULATOR, "--model", "a/b", "--serve", "1", "--url", "u"],
                "--serve starts servers: leave out --url and --engine.",
            ),
            (
                [CALCULATOR, "--model", "a/b", "--serve", "1", "--engine", "vllm"],
                "--serve starts servers: leave out --url and --engine.",
            ),
            (
                [CALCULATOR, "--model", "a/b", "--engine", "vllm", "--url", "u"],
                "--url is for --engine server and --engine api, not for --engine vllm",
            ),
            (
                [CALCULATOR, "--model", "a/b", "--url", "u", "--max-concurrent-requests", "2"],
                "is for --engine api, not for",
            ),
            ([CALCULATOR, "--model", "a/b", "--server-args", "x"], "is for --serve, not for --engine transformers"),
            ([CALCULATOR, "--model", "./nowhere", "--url", "http://127.0.0.1:1"], "no such folder"),
            ([CALCULATOR, "--model", "./nowhere", "--serve", "1"], "no such folder"),
        ],
    )
    def test_a_wrong_request_is_one_line_and_leaves_nothing(
        self, tmp_path: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert collect(*arguments, "-n", "2", "--out", tmp_path / "run") == 2
        error = capsys.readouterr().err
        assert error.startswith("llm-envs: error: ") and expected in error and error.count("\n") == 1
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--out", "x"],
            ["-n", "3"],
            ["-n", "0", "--out", "x"],
            ["-n", "1", "--out", "x", "--max-step-s", "0"],
            ["-n", "1", "--out", "x", "--env-kwargs", "[1]"],
            ["-n", "1", "--out", "x", "--env-kwargs", "{"],
            ["-n", "1", "--out", "x", "--env-kwargs", '{"split": "test", "split": "train"}'],
            ["-n", "1", "--out", "x", "--env-kwargs", '{"a":' * 500 + "1" + "}" * 500],
            ["-n", "1", "--out", "x", "--env-kwargs", '{"a":' * 9999],
        ],
    )
    def test_wrong_usage(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            collect(CALCULATOR, *arguments)
        assert caught.value.code == 2

    def test_weights_and_ids_with_colons(self) -> None:
        choices = parse_mixture(["llm/A-v0", "module.tasks:llm/B-v0", "module.tasks:llm/C-v0:0.5", "llm/D-v0:2"])
        expected = [
            ("llm/A-v0", 1.0),
            ("module.tasks:llm/B-v0", 1.0),
            ("module.tasks:llm/C-v0", 0.5),
            ("llm/D-v0", 2.0),
        ]
        assert [(choice.env_id, choice.weight) for choice in choices] == expected

    def test_patterns_stand_for_tasks_and_what_is_named_has_its_own_weight(self) -> None:
        def weights(*texts: str, exclude: Sequence[str] = ()) -> dict[str, float]:
            return {choice.env_id: choice.weight for choice in parse_mixture(texts, exclude)}

        everything = weights("llm/*")
        assert {CALCULATOR, NUMBER, "llm/Countdown-v0"} <= everything.keys() and set(everything.values()) == {1.0}
        assert weights("llm/C[ao][lu][cn]*-v0:2", NUMBER) == {CALCULATOR: 2.0, "llm/Countdown-v0": 2.0, NUMBER: 1.0}
        assert weights("*/C?[lu][cn]*:2", f"{CALCULATOR}:5") == {CALCULATOR: 5.0, "llm/Countdown-v0": 2.0}
        assert weights("llm/*", exclude=["*C*"]) == {name: 1.0 for name in everything if "C" not in name}

    def test_a_pattern_is_recorded_as_what_it_meant(self, tmp_path: Path) -> None:
        assert collect("llm/Cal*", "--exclude", "*end*", "-n", "1", "--out", tmp_path / "run", "--workers", "1") == 0
        assert read_run(tmp_path / "run").settings["envs"] == [[CALCULATOR, 1.0, {}]]


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
class TestInterrupted:
    def start(self, run: Path, *arguments: str, ignoring: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "llm_envs.cli.main", "collect", CALCULATOR, "-n", "100000", "--out", str(run)]
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=run.parent,
            preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None,
        )
        deadline = time.monotonic() + 300
        log = run / "log-00000.jsonl"
        while not (log.exists() and log.stat().st_size > 50_000):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        return process

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_ends_in_order_and_says_how_to_go_on(
        self, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = tmp_path / "run"
        process = self.start(run)
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
        assert process.returncode == 130
        stored = read_trajectories(run)
        files = {"live-0.json", "manifest.json", "shard-00000.parquet", "writer.lock"}
        assert {entry.name for entry in run.iterdir()} == files
        last = error.splitlines()[-1]
        assert last == (
            f"llm-envs: interrupted: {len(stored)} of 100000 episodes are finished and saved in {run}. "
            "To resume, repeat the command with --resume."
        )
        assert "Traceback" not in error
        more = len(stored) + 5
        assert collect(CALCULATOR, "-n", str(more), "--out", run, "--resume") == 0
        assert capsys.readouterr().out.splitlines()[-1] == (
            f"{more} of {more} episodes are in {run}, {len(stored)} of them from before"
        )
        ids = [t.group_id for t in read_trajectories(run)]
        assert ids and sorted(ids) == [f"0-{index:06d}" for index in range(more)]

    def test_in_the_background_of_a_script_it_ends_in_order_too(self, tmp_path: Path) -> None:
        process = self.start(tmp_path / "run", ignoring=True)
        process.terminate()
        _, error = process.communicate(timeout=300)
        assert process.returncode == 130 and "are finished and saved" in error

    def test_a_killed_command_goes_on(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        process = self.start(run)
        with pytest.raises(StoreError, match=f"is being written by process {process.pid}"):
            collect_run(CALCULATOR, OraclePolicy(), out=run, n_groups=1, resume=True, settings={"policy": "oracle"})
        process.kill()
        process.communicate()
        n = len(read_run(run).trajectories)
        assert collect(CALCULATOR, "-n", str(n + 5), "--out", run, "--resume") == 0
        ids = [t.group_id for t in read_trajectories(run)]
        assert sorted(ids) == [f"0-{index:06d}" for index in range(n + 5)]


class TestCollectRun:
    def test_errored_episodes_are_played_anew_and_counted_once(self, tmp_path: Path) -> None:
        def play(rate: float) -> object:
            return collect_run(
                NumbersEnv,
                with_failures(OraclePolicy(), rate),
                out=tmp_path / "run",
                n_groups=40,
                group_size=2,
                resume=True,
                settings={"policy": "sometimes failing"},
                codec=ByteCodec(),
                max_retries=0,
            )

        first, second = play(0.3), play(0.0)
        assert 5 < first.stats.errored < 60 and first.n_finished == 80 - first.stats.errored  # type: ignore[attr-defined]
        assert second.n_before == first.n_finished and second.n_finished == 80  # type: ignore[attr-defined]
        stored = read_trajectories(tmp_path / "run")
        assert len(stored) == len({(t.group_id, t.member) for t in stored}) == 80
        assert {t.status for t in stored} == {"ok"}

    def test_what_decides_a_run(self) -> None:
        assert run_settings({"a": 1, "b": 2}, env_kwargs={"split": "test"}, seed=3, max_concurrency=9) == {
            "envs": [["a", 1, {"split": "test"}], ["b", 2, {"split": "test"}]],
            "seed": 3,
            "group_size": 1,
        }
        given = run_settings(
            "a", sampling=SamplingParams(top_p=0.9), limits=RolloutLimits(max_turns=3), history="template", group_size=4
        )
        assert given == {
            "envs": [["a", 1.0, {}]],
            "seed": 0,
            "group_size": 4,
            "history": "template",
            "sampling.top_p": 0.9,
            "limits.max_turns": 3,
        }

    def test_given_problems_and_a_source_decide_a_run(self) -> None:
        problems = [{"number": 1}, {"number": 2}]
        given = run_settings([EnvChoice("a", problems=problems)])
        other = run_settings([EnvChoice("a", problems=problems[:1])])
        assert given["source.problems"] != other["source.problems"] and given.keys() == other.keys()
        source = SeedSource("a", seed=4, n_seeds=8)
        source.position = 2
        assert run_settings(source, seed=3) == {
            "envs": [["a", 1.0, {}]],
            "seed": 3,
            "group_size": 1,
            "source.seed": 4,
            "source.n_seeds": 8,
            "source.position": 2,
        }
        assert run_settings(SeedSource("a", seed=3), seed=3) == run_settings("a", seed=3)

    @pytest.mark.parametrize(
        "wrong", [{"n_groups": -1}, {"group_size": 0}, {"max_errors_in_a_row": 0}, {"over_sampling": 2.0}]
    )
    def test_what_it_cannot_do_is_refused_before_anything_is_written(
        self, tmp_path: Path, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidConfigError, match=next(iter(wrong))):
            collect_run(NumbersEnv, OraclePolicy(), out=tmp_path / "run", **{"n_groups": 1} | wrong)
        assert not (tmp_path / "run").exists()

    def test_finished_trajectories_are_let_go_while_the_run_goes_on(self, tmp_path: Path) -> None:
        rows: list[weakref.ref[Any]] = []
        living: list[int] = []

        def count(trajectory: Trajectory) -> None:
            rows.append(weakref.ref(trajectory.rows[0].ids))
            if len(rows) % 100 == 0:
                gc.collect()
                living.append(sum(row() is not None for row in rows))

        done = collect_run(
            NumbersEnv,
            HashingTokenPolicy(ByteCodec(), [str(digit) for digit in range(10)]),
            out=tmp_path / "run",
            n_groups=200,
            group_size=2,
            codec=ByteCodec(),
            max_concurrency=4,
            on_trajectory=count,
        )
        # Of the running groups, at most one for each of the 4 runners, both members; and those just finished.
        assert done.n_finished == 400 and len(living) == 4 and max(living) <= 12

    def test_what_is_to_play_is_worked_out_when_there_is_room(self) -> None:
        asked: list[int] = []

        def groups() -> Iterator[Sequence[EpisodeSpec]]:
            for index in range(50):
                asked.append(index)
                yield group_specs(SeedSource(NumbersEnv).spec(index), 2)

        ahead: list[int] = []
        with Collector(
            NumbersEnv,
            OraclePolicy(),
            max_concurrency=4,
            progress=False,
            on_trajectory=lambda t: ahead.append(len(asked)),
        ) as collector:
            collector.play_each(groups())
            assert collector.stats.accepted == 100 and collector.stats.running == 0
        # After n episodes are finished, at most n + 4 have begun, two a group.
        assert all(seen <= (n + 4) // 2 + 1 for n, seen in enumerate(ahead, start=1))

    def test_what_a_judge_left_unscored_is_said_and_played_anew(self, tmp_path: Path) -> None:
        is_well = False

        class Judged(NumbersEnv):
            def step(self, action: str) -> Any:
                if not is_well:
                    raise JudgeError("the judge is away")
                return super().step(action)

        given = {"out": tmp_path / "run", "n_groups": 3, "resume": True}
        done = collect_run(Judged, OraclePolicy(), **given)
        assert (done.n_failed, done.n_finished, done.stats.errored) == (3, 0, 0)
        assert done.first_error is not None and done.first_error.message == "the judge is away"
        is_well = True
        done = collect_run(Judged, OraclePolicy(), **given)
        assert (done.n_before, done.n_failed, done.n_finished) == (0, 0, 3)
        assert [t.status for t in read_trajectories(tmp_path / "run")] == ["ok"] * 3

    def test_nothing_but_errors_stops_it_and_what_was_played_is_kept(self, tmp_path: Path) -> None:
        kept = {"out": tmp_path / "run", "settings": {"policy": "x"}, "resume": True, "max_retries": 0}
        kept["max_concurrency"] = 1
        collect_run(NumbersEnv, OraclePolicy(), n_groups=5, **kept)
        with pytest.raises(
            RolloutFailedError, match=r"7 episodes in a row failed, the last in policy with \w+: .*resume"
        ):
            collect_run(NumbersEnv, with_failures(OraclePolicy(), 1.0), n_groups=1000, max_errors_in_a_row=7, **kept)
        assert Counter(t.status for t in read_trajectories(tmp_path / "run")) == {"ok": 5, "errored": 7}
        done = collect_run(NumbersEnv, OraclePolicy(), n_groups=20, **kept)
        assert (done.n_before, done.n_finished) == (5, 20)


class TestExport:
    @pytest.fixture
    def run(self, tmp_path: Path, model: Path) -> Path:
        command = [CALCULATOR, "-n", "3", "--group-size", "2", "--out", tmp_path / "run", "--tokenizer", model]
        assert collect(*command) == 0
        return tmp_path / "run"

    @pytest.mark.parametrize(("form", "keys"), [("messages", {"messages", "tools"}), ("sft", {"input_ids", "labels"})])
    def test_lines(
        self, run: Path, tmp_path: Path, form: str, keys: set[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out.jsonl"
        assert main(["export", str(run), str(out), "--to", form]) == 0
        records = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(records) == 6 and all({*record} == keys for record in records)
        assert f"of 6 episodes are in {out}" in capsys.readouterr().out
        assert main(["export", str(run), str(out), "--to", form]) == 2
        assert "exists already" in capsys.readouterr().err

    def test_a_dataset(self, run: Path, tmp_path: Path) -> None:
        import datasets

        from llm_envs.data import from_dataset

        assert main(["export", str(run), str(tmp_path / "table"), "--to", "dataset"]) == 0
        assert from_dataset(datasets.load_from_disk(str(tmp_path / "table"))) == read_trajectories(run)

    def test_a_disk_that_is_full_leaves_nothing(self, run: Path, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        for form in ("messages", "dataset"):
            command = [sys.executable, "-m", "llm_envs.cli.main", "export", str(run), str(folder / form), "--to", form]
            limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *command]
            ended = subprocess.run(limited, capture_output=True, text=True, timeout=120)
            assert ended.returncode == 1
            assert f"{folder / form} cannot be written (File too large); nothing was left" in ended.stderr
            assert list(folder.iterdir()) == []

    def test_pairs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out, again = tmp_path / "p.jsonl", tmp_path / "q.jsonl"
        policy = HashingTokenPolicy(ByteCodec(), [str(digit) for digit in range(10)])
        collect_run(NumbersEnv, policy, out=tmp_path / "run", n_groups=20, group_size=8, codec=ByteCodec())
        assert main(["export", str(tmp_path / "run"), str(out), "--to", "pairs"]) == 0
        pairs = [json.loads(line) for line in out.read_text().splitlines()]
        assert 0 < len(pairs) < 20  # some groups of 8 never said the right digit
        assert {(pair["chosen_reward"], pair["rejected_reward"]) for pair in pairs} == {(1.0, 0.0)}
        assert main(["export", str(tmp_path / "run"), str(again), "--to", "pairs", "--margin", "1"]) == 2
        assert "every group's rewards are equal, or within --margin" in capsys.readouterr().err
        assert not again.exists()

    def test_nothing_left(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert collect(CALCULATOR, "-n", "2", "--policy", "random", "--out", tmp_path / "run") == 0
        arguments = ["export", str(tmp_path / "run"), str(tmp_path / "x"), "--to", "messages", "--keep", "successes"]
        assert main(arguments) == 2
        assert "no episode is left to export. Try --keep all" in capsys.readouterr().err
        assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "x"), "--to", "sft"]) == 1
        assert "does not exist" in capsys.readouterr().err
