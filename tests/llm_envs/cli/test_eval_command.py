"""`llm-envs eval`, as a user has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from llm_envs.cli.main import main
from llm_envs.data.folder import read_manifest
from llm_envs.evaluation import Results, Suite, SuiteEntry
from llm_envs.evaluation.run import extend_run
from llm_envs.rollout import TrajectoryWriter, read_trajectories

CALCULATOR, NUMBER = "llm/Calculator-v0", "llm/GuessNumber-v0"
Capture = pytest.CaptureFixture[str]


def evaluate(*arguments: str | Path) -> int:
    return main(["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An oracle's evaluation, which the tests only read."""
    folder = tmp_path_factory.mktemp("eval") / "run"
    assert evaluate(CALCULATOR, "-n", "4", "-k", "2", "--out", folder) == 0
    return folder


class TestPlaying:
    def test_tables_and_a_folder(self, tmp_path: Path, capsys: Capture) -> None:
        out = tmp_path / "run"
        command = [CALCULATOR, NUMBER, "-n", "3", "-k", "2", "--difficulty", "easy,hard", "--seed", "4"]
        command += ["--window", "2", "--history", "template", "--max-turns", "2"]
        assert evaluate(*command, "--policy", "random", "--out", out) == 0
        shown = capsys.readouterr().out
        names = [f"{env_id} {level}" for env_id in (CALCULATOR, NUMBER) for level in ("easy", "hard")]
        assert [line.split("  ")[0] for line in shown.splitlines()[1:5]] == names
        assert "mean of the tasks" in shown and shown.splitlines()[-1] == f"{out}: results.json and the trajectories"
        results = Results.load(out)
        assert [task.name for task in results] == names and list(results.by_difficulty) == ["easy", "hard"]
        assert results.settings["seed"] == 4 and results.settings["policy"] == "random"
        limits = {"window": 2, "history": "template", "limits.max_turns": 2}
        assert limits.items() <= dict(results.settings).items()
        episodes = read_trajectories(out)
        assert max(len(t.turns) for t in episodes) == 2
        assert len(episodes) == 4 * 3 * 2 and {t.env_kwargs["split"] for t in episodes} == {"test"}

    def test_the_same_again_is_refused_unless_resumed(self, run: Path, capsys: Capture) -> None:
        command = [CALCULATOR, "-n", "4", "-k", "2", "--out", run]
        assert evaluate(*command) == 1
        assert "holds a run already" in capsys.readouterr().err
        before = read_trajectories(run)
        assert evaluate(*command, "--resume") == 0
        assert read_trajectories(run) == before

    def test_more_problems_later(self, tmp_path: Path, capsys: Capture) -> None:
        out, command = tmp_path / "run", ["--policy", "random", "-k", "2", "--seed", "3"]
        assert evaluate(CALCULATOR, NUMBER, *command, "-n", "3", "--out", out) == 0
        first = {(t.group_id, t.member): t for t in read_trajectories(out)}
        assert evaluate(CALCULATOR, NUMBER, *command, "-n", "5", "--out", out, "--resume") == 0
        assert evaluate(CALCULATOR, NUMBER, *command, "-n", "5", "--out", tmp_path / "whole") == 0
        grown = {(t.group_id, t.member): t for t in read_trajectories(out)}
        assert len(grown) == 2 * 5 * 2 and first.items() <= grown.items()  # nothing was played twice
        ours, whole = Results.load(out), Results.load(tmp_path / "whole")
        assert [task.problems for task in ours] == [task.problems for task in whole]
        assert [task.success for task in ours] == [task.success for task in whole]
        assert dict(ours.settings) == dict(whole.settings)
        capsys.readouterr()
        # What makes it another run is said as before, and changes nothing.
        assert evaluate(CALCULATOR, NUMBER, *command, "-n", "9", "--out", out, "--resume", "--max-turns", "1") == 1
        assert "limits.max_turns: not set there, 1 here): choose" in capsys.readouterr().err
        assert evaluate(CALCULATOR, NUMBER, *command, "-n", "4", "--out", out, "--resume") == 2
        said = f"{out} is an evaluation of 5 problems of {CALCULATOR}, but -n asks for 4: an evaluation can grow"
        assert said in capsys.readouterr().err
        assert evaluate(CALCULATOR, *command, "-n", "5", "--out", out, "--resume") == 1
        assert "holds another run" in capsys.readouterr().err
        assert evaluate("--replay", out) == 0

    def test_one_that_was_to_grow_and_was_killed_is_half_written(self, tmp_path: Path, capsys: Capture) -> None:
        out = tmp_path / "run"
        assert evaluate(CALCULATOR, "-n", "3", "--group-size", "2", "--out", out) == 0
        suite = Suite((SuiteEntry(CALCULATOR, {"split": "test"}, n=4, k=2),), samples=2)
        extend_run(out, suite, read_manifest(out).settings)
        assert evaluate("--replay", out) == 2
        assert "is half-written: it has 6 of 8 episodes. Finish it with --resume" in capsys.readouterr().err
        # Another k, within the samples, is no other run: nothing else is played by it.
        assert evaluate(CALCULATOR, "-n", "4", "-k", "2", "--group-size", "2", "--out", out, "--resume") == 0
        assert Results.load(out).tasks[0].k == 2

    @pytest.mark.vllm
    def test_a_model_on_vllm(self, tmp_path: Path) -> None:
        from tiny_folders import save_tiny

        save_tiny(tmp_path / "model", n_layers=1)
        command = [CALCULATOR, "-n", "3", "-k", "2", "--policy", "vllm", "--model", tmp_path / "model"]
        out = ["--out", tmp_path / "run", "--max-turn-tokens", "4", "--max-turns", "2"]
        assert evaluate(*command, *out) == 0
        (task,) = Results.load(tmp_path / "run")
        assert (task.n_episodes, task.n_scored, task.error_rate) == (6, 6, 0)
        assert 1 <= task.sampled_tokens <= 8 and task.tokens > task.sampled_tokens and task.seconds > 0
        settings = Results.load(tmp_path / "run").settings
        assert (settings["engine"], settings["model"]) == ("vllm", str(tmp_path / "model"))
        assert "vllm" in Results.load(tmp_path / "run").versions

    @pytest.mark.vllm
    @pytest.mark.parametrize("how", [["--engine", "vllm"], ["--serve", "1"]])
    def test_an_adapter_plays_on_its_base_whatever_the_engine(self, tmp_path: Path, how: list[str]) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from tiny_folders import save_tiny

        from llm_envs.policies.inference.loading import load_model, load_tokenizer

        base = save_tiny(tmp_path / "base", n_layers=2)
        model = get_peft_model(load_model(base, dtype="float32"), LoraConfig(r=4, target_modules="all-linear"))
        torch.manual_seed(0)
        for name, value in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value, std=0.3)
        model.save_pretrained(tmp_path / "adapter")
        load_tokenizer(base).save_pretrained(tmp_path / "adapter")
        told = {}
        for name, folder, options in (("base", base, []), ("own", tmp_path / "adapter", []), ("vllm", None, how)):
            command = [CALCULATOR, "-n", "3", "--model", folder or tmp_path / "adapter", "--temperature", "0", *options]
            out = ["--out", tmp_path / f"run-{name}", "--max-turn-tokens", "4", "--max-turns", "2"]
            assert evaluate(*command, *out) == 0
            told[name] = [row.ids.tolist() for t in read_trajectories(tmp_path / f"run-{name}") for row in t.rows]
        assert told["vllm"] == told["own"] != told["base"]

    def test_json(self, capsys: Capture) -> None:
        assert evaluate(CALCULATOR, "-n", "2", "--json", "--confidence", "0.9") == 0
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert data["confidence"] == 0.9 and data["tasks"][0]["success"]["value"] == 1.0
        assert data["versions"]["python"] and data["settings"]["policy"] == "oracle"
        assert len(data["tasks"][0]["problems"]) == 2

    def test_thresholds_decide_the_exit_code(self, capsys: Capture) -> None:
        command = [CALCULATOR, "-n", "2", "-k", "2", "--policy", "random"]
        assert evaluate(*command, "--min-success", "0", "--min-pass-hat-k", "0") == 0
        assert evaluate(*command, "--min-success", "0.8", "--min-mean-reward", "0.5", "--min-pass-at-k", "0.1") == 1
        reached = ["success is 0, below 0.8", "reward is -0.4, below 0.5", "pass@2 is 0, below 0.1"]
        assert capsys.readouterr().err.splitlines() == [f"llm-envs: {CALCULATOR}: {line}" for line in reached]

    def test_episodes_that_error_fail_it(self, capsys: Capture) -> None:
        gym.register("test/Faulty-v0", "llm_envs.testing:NumbersEnv", kwargs={"raise_at": 1})
        try:
            command = ["test/Faulty-v0", "-n", "3"]
            assert evaluate(*command) == 1
            said = "3 of 3 episodes errored (3 x env.step: RuntimeError: the environment broke), more than 0 of"
            shown = capsys.readouterr()
            assert said in shown.err and "test/Faulty-v0: 3 errored (3 x env.step: RuntimeError: the" in shown.out
            assert evaluate(*command, "--max-errors", "1") == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("llm-envs: test/Faulty-v0: none of 3 episodes was scored (3 x env.step: ")
        finally:
            del gym.registry["test/Faulty-v0"]

    def test_a_suite(self, tmp_path: Path, capsys: Capture) -> None:
        rows = [{"env": CALCULATOR, "min_success": 1.0}, {"env": NUMBER, "name": "guessing", "min_success": 1.01}]
        (tmp_path / "suite.json").write_text(json.dumps({"n": 2, "k": 2, "environments": rows}))
        assert evaluate("--suite", tmp_path / "suite.json", "--out", tmp_path / "run") == 1
        shown = capsys.readouterr()
        failure = "llm-envs: guessing: success is 1, below 1.01"
        assert shown.err.splitlines() == [failure, f"next: llm-envs report {tmp_path / 'run'}"]
        assert [line.split()[0] for line in shown.out.splitlines()[1:3]] == [CALCULATOR, "guessing"]
        assert evaluate("--suite", tmp_path / "suite.json", "--replay", tmp_path / "run") == 1
        assert capsys.readouterr().err.splitlines() == [failure]
        asked = {CALCULATOR: {"min_success": 1.0}, "guessing": {"min_success": 1.01}}
        assert Results.load(tmp_path / "run").thresholds == asked  # the report shows them
        assert evaluate("--replay", tmp_path / "run", "--out", tmp_path / "run") == 0
        assert Results.load(tmp_path / "run").thresholds == asked
        assert evaluate("--replay", tmp_path / "run", "--out", tmp_path / "run", "--max-errors", "0.5") == 0
        assert Results.load(tmp_path / "run").thresholds == {name: {"max_errors": 0.5} for name in asked}


def test_a_closed_standard_error_is_no_failure() -> None:
    command = f"exec {sys.executable} -m llm_envs.cli.main eval {CALCULATOR} -n 2 2>&-"
    ended = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert ended.returncode == 0 and "100.0%" in ended.stdout and "error" not in ended.stdout.splitlines()[0]


class TestReplayAndCompare:
    def test_replay_is_what_was_measured(self, run: Path, tmp_path: Path, capsys: Capture) -> None:
        assert evaluate("--replay", run, "--json", "--out", tmp_path) == 0
        assert json.loads(capsys.readouterr().out) == json.loads((run / "results.json").read_text())
        assert Results.load(tmp_path) == Results.load(run)
        assert evaluate("--replay", run, "--min-success", "1.5") == 1
        assert capsys.readouterr().err == f"llm-envs: {CALCULATOR}: success is 1, below 1.5\n"

    def test_two_players(self, run: Path, capsys: Capture) -> None:
        command = [CALCULATOR, "-n", "4", "--policy", "random", "--compare", run]
        assert evaluate(*command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "this: random" in lines and f"that: {run}" in lines
        assert lines[-1].split() == [CALCULATOR, "0", "4", "0", "0", "0", "4", "0"]
        assert evaluate(*command, "--json") == 0
        assert json.loads(capsys.readouterr().out)["comparison"]["success"]["value"] == -1.0
        assert evaluate("--replay", run, "--compare", run / "results.json") == 0
        assert capsys.readouterr().out.splitlines()[-1].split()[1:4] == ["0", "0", "4"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ([], "give at least one environment"),
            (
                [CALCULATOR, "-k", "4", "--group-size", "2"],
                "-k 4 is above --group-size 2: pass@k needs at least k episodes",
            ),
            (["llm/Calculater-v0"], CALCULATOR),
            (["llm/Nothing*"], "no task matches"),
            ([f"{CALCULATOR}:2"], "plays n problems of each task; leave the weight out"),
            (["CartPole-v1", "--split", "none"], "CartPole-v1 has the spaces Box("),
            ([CALCULATOR, "--difficulty", "easy,harrd"], "harrd"),
            ([CALCULATOR, "--difficulty", "easy,easy"], "occurs twice"),
            ([CALCULATOR, "--split", "test", "--env-kwargs", '{"split": "train"}'], "give only one"),
            ([CALCULATOR, "--difficulty", "easy", "--env-kwargs", '{"difficulty": "hard"}'], "give only one"),
            ([CALCULATOR, "--model", "no-such-folder"], "there is no such folder"),
            ([CALCULATOR, "--resume"], "--resume needs --out"),
            ([CALCULATOR, "--partial"], "--partial needs --replay"),
            ([CALCULATOR, "--suite", "s.yaml"], "--suite lists the tasks"),
            ([CALCULATOR, "--replay", "x"], "--replay plays nothing: leave out llm/Calculator-v0"),
            (["--replay", "x", "--model", "m"], "--replay plays nothing: leave out --model"),
            (["--replay", "x", "--policy", "random"], "--replay plays nothing: leave out --policy"),
            (["--replay", "x", "-n", "3"], "--replay plays nothing: leave out -n;"),
            (["--replay", "x", "--seed", "0"], "--replay plays nothing: leave out --seed;"),
            (["--replay", "x", "--max-turns", "3"], "--replay plays nothing: leave out --max-turns;"),
            (["--replay", "x", "--difficulty", "easy"], "--replay plays nothing: leave out --difficulty;"),
            (["--replay", "no-such-run"], "holds no run"),
            (["--suite", "no-such.yaml"], "cannot be read"),
            ([CALCULATOR, "--compare", "no-such-run"], "does not exist: give the folder of a run"),
        ],
    )
    def test_a_clear_line(self, arguments: list[str], expected: str, capsys: Capture) -> None:
        assert evaluate(*arguments) == 2
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1 and expected in shown.err and shown.out == ""

    def test_runs_and_results_that_do_not_fit(self, run: Path, tmp_path: Path, capsys: Capture) -> None:
        settings = {"group_size": 2}
        with TrajectoryWriter(tmp_path / "empty", settings=settings):
            pass
        with TrajectoryWriter(tmp_path / "half", settings=settings) as writer:
            writer.write(read_trajectories(run)[0])
        ours = json.loads((run / "results.json").read_text())
        (tmp_path / "other.json").write_text(json.dumps(ours | {"version": 99}))
        (tmp_path / "older.json").write_text(json.dumps(ours | {"version": 0}))
        (tmp_path / "foreign.json").write_text(json.dumps({"results": {"success": 0.5}}))
        (tmp_path / "cut.json").write_text(json.dumps(ours)[:200])
        (tmp_path / "holed.json").write_text(json.dumps({**ours, "tasks": [{"name": "x"}]}))
        (tmp_path / "nothing").mkdir()
        said = {
            ("--replay", tmp_path / "empty"): "is empty",
            ("--replay", tmp_path / "half"): "is half-written: it has 1 of 2 episodes",
            ("--replay", run, "-k", "3"): "k is 3, but no problem",
            ("--replay", run, "--out", tmp_path / "half"): "holds another run",
            ("--replay", run, "--out", tmp_path / "other.json"): "cannot be written (File exists)",
            ("--replay", run, "--compare", tmp_path / "empty"): "is empty",
            ("--replay", run, "--compare", tmp_path / "half"): "is half-written",
            ("--replay", run, "--compare", tmp_path / "other.json"): "is of version 99, which is newer: this llm-envs",
            (
                "--replay",
                run,
                "--compare",
                tmp_path / "older.json",
            ): "is of version 0; this llm-envs reads 1. Score its",
            ("--replay", run, "--compare", tmp_path / "foreign.json"): "was not written by `llm-envs eval --out`",
            ("--replay", run, "--compare", tmp_path / "cut.json"): "is damaged: it is not JSON",
            ("--replay", run, "--compare", tmp_path / "holed.json"): "is damaged (KeyError: ",
            ("--replay", run, "--compare", tmp_path / "nothing"): "holds no run: it has no manifest.json",
            ("--replay", tmp_path / "nothing"): "holds no run: it has no manifest.json",
            ("--replay", run, "-k", "2", "--compare", run, "--partial", "--resume"): "leave out --resume",
            (CALCULATOR, "-n", "4", "--seed", "1", "--compare", run): "the seeds do not match",
            (NUMBER, "-n", "4", "--compare", run): "have different tasks or arguments",
        }
        for arguments, expected in said.items():
            assert evaluate(*arguments) == 2, arguments
            shown = capsys.readouterr()
            assert shown.err.count("\n") == 1 and expected in shown.err, arguments
        assert evaluate("--replay", tmp_path / "half", "--partial") == 0

    def test_a_comparison_that_cannot_be_is_said_before_anything_is_played(self, run: Path, tmp_path: Path) -> None:
        assert evaluate(CALCULATOR, "-n", "5", "--out", tmp_path / "new", "--compare", run) == 2
        assert not (tmp_path / "new").exists()

    def test_a_confidence_and_a_threshold_that_are_none(self, capsys: Capture) -> None:
        for arguments in (["--confidence", "1"], ["--min-success", "nan"], ["-n", "0"]):
            with pytest.raises(SystemExit) as exit_:
                evaluate(CALCULATOR, *arguments)
            assert exit_.value.code == 2
        assert "1 is not between 0 and 1" in capsys.readouterr().err


def test_help_loads_no_numbers() -> None:
    code = "import sys; from llm_envs.cli.main import main\ntry: main(['eval', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('llm_envs.evaluation', 'llm_envs.evaluation.suite', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "--min-success" in done.stdout
