"""`llm-envs eval --suite standard`: every row once, examples, protocols, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest

from llm_envs.cli.main import main
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import Results, evaluate_suite
from llm_envs.evaluation.standard import PROTOCOLS, parse_data, standard_suite
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import read_trajectories
from llm_envs.tasks.benchmarks.bfcl_data import CATEGORIES

WITH_SAMPLE = [name for name, protocol in PROTOCOLS.items() if protocol.has_sample]
ONE_TURN = [name for name in WITH_SAMPLE if name not in ("HumanEval", "MBPP")]


def run(*arguments: str | Path) -> int:
    return main(["eval", "--suite", "standard", *map(str, arguments)])


class TestPlaying:
    @pytest.mark.parametrize("name", WITH_SAMPLE)
    def test_every_row_is_played_once_and_in_order(self, name: str, tmp_path: Path) -> None:
        suite = standard_suite(name, "sample", samples=1)
        task = gym.make(PROTOCOLS[name].env_id, split="test", data="sample").unwrapped
        assert suite.entries[0].n == len(task.rows)  # type: ignore[attr-defined]
        results = evaluate_suite(suite, OraclePolicy(), out=tmp_path / "run", max_concurrency=4)
        assert results.tasks[0].success.value == 1 and results.tasks[0].n_episodes == suite.entries[0].n
        played = sorted(read_trajectories(tmp_path / "run"), key=lambda episode: episode.group_id)
        asked = [[m.content for m in episode.messages if m.role == "user"][PROTOCOLS[name].shots] for episode in played]
        assert asked == [task.reset(options={"problem": problem})[0] for problem in suite.entries[0].problems or ()]
        assert len(set(asked)) == len(asked)
        assert all(episode.n_example_replies == PROTOCOLS[name].shots for episode in played)

    def test_examples_are_worked_and_of_the_train_split(self, tmp_path: Path) -> None:
        evaluate_suite(standard_suite("GSM8K", "sample", n=2), OraclePolicy(), out=tmp_path / "run")
        train = {row["question"]: row["answer"] for row in gym.make("llm/GSM8K-v0", data="sample").unwrapped.rows}  # type: ignore[attr-defined]
        for episode in read_trajectories(tmp_path / "run"):
            said = [message.content for message in episode.messages if message.role in ("user", "assistant")]
            assert len(said) == 2 * 5 + 2
            for question, answer in zip(said[0:10:2], said[1:10:2], strict=True):
                assert train[next(text for text in train if question.startswith(text))] == answer
                assert "\n" in answer  # steps, and not only the number
            assert not any(said[10].startswith(text) for text in train)

    def test_a_resumed_run_plays_only_what_is_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ("--data", "MMLU=sample", "--policy", "oracle", "--out", tmp_path)
        assert run(*command, "-n", 3) == 0
        first = read_trajectories(tmp_path / "MMLU")
        assert run(*command, "-n", 5, "--resume") == 0
        again = read_trajectories(tmp_path / "MMLU")
        assert len(first) == 3 and len(again) == 5
        assert [e for e in again if e.group_id in {f.group_id for f in first}] == first


class TestCommand:
    def test_settings_and_tables_are_printed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert (
            run("--data", "GSM8K=sample", "--data", "AIME=sample", "-n", 2, "--policy", "oracle", "--out", tmp_path)
            == 0
        )
        shown = capsys.readouterr().out
        assert (
            "GSM8K: 2 rows of sample, split test; 5 solved examples; 1 sample of each; greedy, at most 512 tokens a "
            "turn; as lm-evaluation-harness, gsm8k\n"
        ) in shown
        assert (
            "AIME: 2 rows of sample, split test; 0 solved examples; 64 samples of each; temperature 0.6, top-p 0.95, "
            in shown
        )
        results = Results.load(tmp_path / "AIME")
        assert results.tasks[0].n_episodes == 2 * 64 and results.settings["protocol"].startswith("DeepSeek-R1")
        assert results.settings["sampling.top_p"] == 0.95 and results.settings["sampling.temperature"] == 0.6
        assert Results.load(tmp_path / "GSM8K").settings["sampling.temperature"] == 0

    def test_options_change_a_protocol_and_are_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--temperature", 0.5, "--max-turn-tokens", 9, "--group-size", 2, "-k", 2, "-n", 1)
        assert run("--data", "MMLU=sample", *options, "--policy", "oracle", "--json") == 0
        shown = capsys.readouterr()
        assert "2 samples of each; temperature 0.5, top-p 1, at most 9 tokens a turn" in shown.err
        assert shown.err.rstrip().endswith("changed by options")
        assert json.loads(shown.out)["MMLU"]["tasks"][0]["pass_hat"].keys() == {"1", "2"}

    def test_a_missed_threshold_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--data", "AIME=sample", "-n", 2, "--group-size", 1, "--policy", "random", "--min-success", 0.9) == 1
        assert "AIME: success is 0, below 0.9" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "--suite standard and --data NAME=DATA go together"),
            (("--data", "GSM9K=x"), "--data GSM9K=x: give NAME=DATA"),
            (("--data", "GSM8K"), "--data GSM8K: give NAME=DATA"),
            (("--data", "sample", "--data", "GSM8K=x"), "--data names GSM8K twice"),
            (("--data", "IFEval=sample"), "it has no sample; give google/IFEval"),
            (("--data", "BFCL=bfcl.jsonl"), "its data are in its package; give BFCL=package"),
            (("--data", "GSM8K=gsm8k.jsonl"), "write {split} in its place"),
            (("--data", "ARC=sample"), "its data are in its package; give ARC=package"),
            (("--data", "ARC", "--env-kwargs", '{"user_policy": "x"}'), "ARCEnv has no argument 'user_policy'"),
            (("--data", "sample", "--split", "train"), "leave out --split"),
            (("--data", "sample", "--compare", "x"), "leave out --compare"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(
        self,
        arguments: tuple[str, ...],
        said: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (tmp_path / "gsm8k.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n')
        monkeypatch.chdir(tmp_path)
        assert run(*arguments, "--policy", "oracle") == 2
        assert said in capsys.readouterr().err

    def test_data_without_the_suite_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", "llm/Calculator-v0", "--data", "sample"]) == 2
        assert "--suite standard and --data" in capsys.readouterr().err

    def test_arc_has_two_attempts_that_do_not_see_each_other(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("--data", "ARC", "-n", 2, "--policy", "oracle", "--out", tmp_path) == 0
        assert (
            "ARC: 4 rows of package, split test; max_turns 1; 0 solved examples; 2 samples of each; temperature 1, "
            "top-p 1, at most 10000 tokens a turn; pass@k and pass^k up to k = 2; as ARC Prize, arc-agi-benchmarking\n"
        ) in capsys.readouterr().out
        results = Results.load(tmp_path / "ARC")
        assert [task.name for task in results] == ["ARC arc-agi-1", "ARC arc-agi-2"]
        assert all(task.n_episodes == 4 and task.pass_at.keys() == {1, 2} for task in results)
        for episode in read_trajectories(tmp_path / "ARC"):
            roles = [message.role for message in episode.messages]
            assert roles.count("assistant") == 1
            assert "You have 1." in episode.messages[roles.index("user")].content

    def test_fewer_samples_than_published_lower_k(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--data", "ARC", "-n", 1, "--group-size", 1, "--policy", "oracle", "--json") == 0
        shown = capsys.readouterr()
        assert "1 sample of each" in shown.err and "pass@k" not in shown.err
        assert json.loads(shown.out)["ARC"]["tasks"][0]["pass_hat"].keys() == {"1"}

    @pytest.mark.suites
    def test_tau2_plays_both_splits_and_names_its_user(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ("--data", "Tau2", "-n", 1, "--group-size", 1, "--policy", "oracle")
        assert run(*command, "--out", tmp_path) == 0
        shown = capsys.readouterr().out
        assert (
            "Tau2: 3 rows of package, splits train and test; 0 solved examples; 1 sample of each; greedy, at most 4096 "
            "tokens a turn; as tau2-bench, arXiv:2506.07982; a script plays the user, which is easier than the "
            "published user, a model; changed by options\n"
        ) in shown
        user = {"user_policy": "llm_envs.tasks.benchmarks.tau2:ScriptedUser"}
        assert run(*command, "--env-kwargs", json.dumps(user)) == 0
        assert "a script plays the user" not in capsys.readouterr().out


class TestProtocols:
    @pytest.mark.suites
    def test_tau2_has_the_tasks_of_the_leaderboard(self) -> None:
        suite = standard_suite("Tau2", "package")
        sizes = {entry.label: (entry.n, entry.k) for entry in suite.entries}
        assert sizes == {"Tau2 retail": (114, 4), "Tau2 airline": (50, 4), "Tau2 telecom": (114, 4)}
        assert all(len({problem["id"] for problem in entry.problems or ()}) == entry.n for entry in suite.entries)
        assert suite.samples == 4

    def test_arc_has_the_public_evaluation_tasks(self) -> None:
        assert [entry.n for entry in standard_suite("ARC", "package").entries] == [400, 120]

    def test_all_data(self) -> None:
        assert parse_data(["sample"]) == dict.fromkeys(WITH_SAMPLE, "sample")
        hub = parse_data(["hub"])
        assert hub["GSM8K"] == "openai/gsm8k" and hub["BFCL"] == "package" and hub.keys() == PROTOCOLS.keys()
        assert parse_data(["BFCL"]) == parse_data(["BFCL=package"]) == {"BFCL": "package"}

    @pytest.mark.parametrize("name", WITH_SAMPLE)
    def test_names_on_the_hub_are_those_of_the_tasks(self, name: str) -> None:
        task = gym.make(PROTOCOLS[name].env_id, data="sample", split="test").unwrapped
        assert PROTOCOLS[name].hub == task.layout.hub  # type: ignore[attr-defined]

    def test_a_file_for_each_split(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            rows = [{"question": f"{split} {n}?", "answer": f"It is so.\n#### {n}"} for n in range(9)]
            (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (data,) = parse_data([f"GSM8K={tmp_path}/{{split}}.jsonl"]).values()
        suite = standard_suite("GSM8K", data)
        assert [problem["answer"] for problem in suite.entries[0].problems or ()] == [str(n) for n in range(9)]
        assert evaluate_suite(suite, OraclePolicy()).tasks[0].success.value == 1

    def test_every_category_of_bfcl_is_a_task(self) -> None:
        pytest.importorskip("bfcl_eval")
        suite = standard_suite("BFCL", "package", n=3)
        assert {entry.kwargs["difficulty"] for entry in suite.entries} == CATEGORIES.keys()
        assert {entry.n for entry in suite.entries} == {3}

    def test_ifeval_needs_rows(self, tmp_path: Path) -> None:
        pytest.importorskip("if_verifiable")
        row = {"prompt": "Do not use commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        (tmp_path / "x.jsonl").write_text(json.dumps(row))
        suite = standard_suite("IFEval", str(tmp_path / "x.jsonl"))
        assert suite.entries[0].problems == [row]
        with pytest.raises(InvalidConfigError, match="prompts are made here"):
            gym.make("llm/IFEval-v0", split="test").unwrapped.problems()  # type: ignore[attr-defined]

    def test_the_seed_orders_choices(self) -> None:
        first, same, other = (standard_suite("GPQA", "sample", seed=seed).entries[0].problems for seed in (0, 0, 1))
        assert first == same != other
        assert len({problem["answer"] for problem in first or ()}) > 1
