"""Who plays, as commands are asked for it: models that are not in this process. Real servers: test_server.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from fake_server import Answer, completion, fake_server, vllm_answers

from llm_envs.cli.main import main
from llm_envs.cli.policy_options import add_player_arguments, player_settings
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import Results
from llm_envs.rollout import read_run

CALCULATOR = "llm/Calculator-v0"


def collect(*arguments: str | Path) -> int:
    return main(["collect", *map(str, arguments)])


def says(text: str) -> Answer:
    return Answer(body={"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, which is all that is needed where the model is elsewhere."""
    pytest.importorskip("transformers")
    from llm_envs.tiny_model import tiny_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_model_on_servers_that_run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_envs.policies.inference.loading import load_tokenizer

    monkeypatch.setenv("LLM_ENVS_API_KEY", "secret")
    answers = vllm_answers(
        load_tokenizer(model), lambda asked, n: completion([5, 6, 2]), root=str(model), max_model_len=4096
    )
    run = tmp_path / "run"
    with fake_server(answers) as one, fake_server(answers) as two:
        command = [CALCULATOR, "--out", run, "--model", model, "--resume", "--max-turns", "1"]
        assert collect(*command, "-n", "3", "--url", one.url, "--url", two.url) == 0
        assert one.paths("/v1/completions") and two.paths("/v1/completions")
        assert {asked.headers["Authorization"] for asked in one.asked} == {"Bearer secret"}
        assert collect(*command, "-n", "4", "--url", two.url + "/v1", "--engine", "server") == 0
    stored = read_run(run)
    chosen = {"policy": "model", "model": str(model), "engine": "server", "limits.max_turns": 1}
    assert stored.settings == {"envs": [[CALCULATOR, 1.0, {}]], "seed": 0, "group_size": 1} | chosen
    assert [t.status for t in stored.trajectories] == ["ok"] * 4
    assert all(t.rows[0].logps[t.rows[0].mask].tolist() == [-0.5] * 3 for t in stored.trajectories)


def test_an_adapter_on_servers_of_its_base(tmp_path: Path, model: Path) -> None:
    from llm_envs.policies.inference.loading import load_tokenizer

    adapter, tokenizer = tmp_path / "adapter", load_tokenizer(model)
    tokenizer.save_pretrained(adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": str(model)}))
    answers = {"root": str(model), "max_model_len": 4096, "max_lora_rank": 16}
    with fake_server(vllm_answers(tokenizer, lambda asked, n: completion([5, 6, 2]), **answers)) as server:
        command = [CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--max-turns", "1"]
        assert collect(*command, "--model", adapter, "--url", server.url) == 0
        (load,) = server.paths("/v1/load_lora_adapter")
        assert load.body["lora_path"] == str(adapter)
        assert {asked.body["model"] for asked in server.paths("/v1/completions")} == {load.body["lora_name"]}
    assert read_run(tmp_path / "run").settings["model"] == str(adapter)


@pytest.mark.parametrize("how", [[], ["--engine", "vllm"], ["--serve", "1"]])
def test_an_adapter_whose_base_has_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str], how: list[str]) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4, "base_model_name_or_path": "/gone/model"}')
    assert collect(CALCULATOR, "-n", "1", "--out", tmp_path / "run", "--model", tmp_path, *how) == 2
    assert f"--model {tmp_path} has an adapter whose base is /gone/model" in capsys.readouterr().err


def test_a_chat_api(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ENVS_API_KEY", "secret")
    run = tmp_path / "run"
    with fake_server(lambda asked, n: says("<answer>7</answer>")) as server:
        command = ["llm/Arithmetic-v0", "-n", "4", "--out", run, "--model", "some-model", "--engine", "api"]
        options = ["--url", server.url, "--max-concurrent-requests", "2", "--requests-per-minute", "1000"]
        others = ["--max-tokens-name", "max_completion_tokens", "--tokenizer", model, "--temperature", "0.5"]
        assert collect(*command, *options, *others) == 0
    assert {asked.path for asked in server.asked} == {"/v1/chat/completions"} and len(server.asked) == 4
    asked = server.asked[0]
    assert (asked.headers["Authorization"], asked.body["model"]) == ("Bearer secret", "some-model")
    assert asked.body["max_completion_tokens"] == 512 and "max_tokens" not in asked.body
    stored = read_run(run)
    assert {t.messages[-1].content for t in stored.trajectories} == {"<answer>7</answer>"}
    assert all(t.n_sampled_tokens > 0 for t in stored.trajectories)  # the tokenizer's, for a warm start
    chosen = {"policy": "model", "model": "some-model", "engine": "api", "tokenizer": str(model)}
    assert chosen.items() <= stored.settings.items() and server.url not in str(stored.settings)


def lists(*names: str, status: int = 200) -> Answer:
    return Answer(status, {"data": [{"id": name} for name in names]} if status == 200 else {"error": "who are you?"})


class TestAModelByItsAddress:
    """`--model URL`, as `--engine api --url URL --model NAME`."""

    def test_the_only_one_there_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LLM_ENVS_API_KEY", "secret")
        run = tmp_path / "run"
        command = ["eval", "llm/Arithmetic-v0", "-n", "4", "-k", "2", "--out", str(run), "--policy", "api"]
        with fake_server(
            lambda asked, n: lists("the-model") if asked.path == "/v1/models" else says("<answer>7</answer>")
        ) as server:
            assert main([*command, "--model", server.url]) == 0
            (listed,) = server.paths("/v1/models")
            asked = server.paths("/v1/chat/completions")
            assert main(["collect", "llm/Arithmetic-v0", "-n", "1", "--out", str(run), "--model", server.url]) == 1
        assert len(asked) == 8 and {request.body["model"] for request in asked} == {"the-model"}
        assert {request.headers["Authorization"] for request in (listed, *asked)} == {"Bearer secret"}
        results = Results.load(run)
        chosen = {"policy": "model", "model": "the-model", "engine": "api"}
        assert chosen.items() <= dict(results.settings).items() and server.url not in str(results.settings)
        assert (results.tasks[0].n_scored, results.tasks[0].k) == (8, 2)

    def test_its_name_may_be_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        with fake_server(lambda asked, n: says("<answer>7</answer>")) as server:
            arguments = ["play", "llm/Arithmetic-v0", "--model", server.url + "/v1", "--model-name", "mine"]
            assert main(arguments) == 0
        (asked,) = server.asked
        assert (asked.path, asked.body["model"]) == ("/v1/chat/completions", "mine")

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (lists("a", "b"), "there are several models; choose one with --model-name: a, b."),
            (lists(*map(str, range(10))), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more."),
            (lists(), "it lists no models ("),
            (lists(status=401), "/v1/models answers 401: who are you?): give --model-name NAME."),
            (Answer(body="no JSON"), "it lists no models"),
        ],
    )
    def test_else_it_must_be(self, answer: Answer, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
        with fake_server(lambda asked, n: answer) as server:
            assert main(["eval", "llm/Arithmetic-v0", "--model", server.url]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and expected in error

    def test_a_key_that_the_server_says_back_is_not_shown(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("LLM_ENVS_API_KEY", "sk-hunter2-hunter2")
        with fake_server(lambda asked, n: Answer(401, {"message": asked.headers["Authorization"]})) as server:
            assert main(["eval", "llm/Arithmetic-v0", "--model", server.url]) == 2
        assert "answers 401: Bearer ***)" in capsys.readouterr().err

    def test_nobody_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", "llm/Arithmetic-v0", "--model", "http://127.0.0.1:1"]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "--model http://127.0.0.1:1: there is no answer (ConnectError" in error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "oracle", "--model", "a/b"], "--policy oracle is a script and uses no model: leave"),
        (["--policy", "vllm", "--engine", "api", "--model", "a/b"], "--policy vllm and --engine api contradict"),
        (["--policy", "vllm"], "--policy vllm plays a model: give --model"),
        (["--policy", "transformers", "--model", "./nowhere"], "no such folder"),
        (
            ["--policy", "vllm", "--model", "http://127.0.0.1:1"],
            "is the address of a chat API (--engine api): --engine",
        ),
        (
            ["--serve", "1", "--model", "http://127.0.0.1:1"],
            "is the address of a chat API (--engine api): --serve needs",
        ),
        (["--model", "http://h", "--url", "http://i"], "--model and --url are both addresses"),
        (["--model", "http://", "--model-name", "m"], "--model"),
        (["--model", "a/b", "--model-name", "m"], "--model-name needs --model URL; otherwise --model is the name"),
        (["--model-name", "m"], "--model-name needs --model URL"),
        (
            ["--model", "http://me:hunter2@h/v1", "--model-name", "m"],
            "--model has more than http://h/v1: a user or a password",
        ),
        (["--model", "http://h/v1?key=hunter2", "--model-name", "m"], "--model has more than http://h/v1:"),
        (["--model", "a/b", "--serve", "1", "--server-args=--api-key hunter2"], "set VLLM_API_KEY instead"),
        (["--model", "a/b", "--serve", "1", "--server-args=--api_key=hunter2"], "set VLLM_API_KEY instead"),
    ],
)
@pytest.mark.parametrize("command", ["eval", "collect", "play"])
def test_contradictions_are_one_line(
    command: str, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-n", "1", "--out", str(tmp_path / "run")] if command == "collect" else []
    assert main([command, CALCULATOR, *out, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("llm-envs: error: ") and error.count("\n") == 1 and expected in error
    assert "hunter2" not in error and not (tmp_path / "run").exists()


def test_a_policy_and_an_engine_say_the_same() -> None:
    parser = argparse.ArgumentParser()
    add_player_arguments(parser)

    def settings(*given: str) -> dict[str, object]:
        return player_settings(parser.parse_args(given))

    for engine in ("transformers", "vllm", "server"):
        expected = {"policy": "model", "model": "a/b", "engine": engine}
        where = ["--url", "http://h"] if engine == "server" else []
        for option in ("--policy", "--engine"):
            assert settings("--model", "a/b", option, engine, *where) == expected
    assert settings("--model", "a/b") == {"policy": "model", "model": "a/b", "engine": "transformers"}
    assert (settings(), settings("--policy", "random")) == ({"policy": "oracle"}, {"policy": "random"})
    by_address = settings("--model", "https://h/v1", "--model-name", "m")
    assert by_address == settings("--model", "m", "--engine", "api", "--url", "https://h/v1")


def test_play_takes_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(lambda asked, n: says("<answer>7</answer>")) as server:
        arguments = ["play", "llm/Arithmetic-v0", "--model", "x", "--engine", "api", "--url", server.url]
        assert main(arguments) == 0
    assert "<answer>7</answer>" in capsys.readouterr().out


def test_what_was_started_is_recorded_and_where_is_not() -> None:
    parser = argparse.ArgumentParser()
    add_player_arguments(parser)
    given = ["--model", "a/b", "--serve", "2", "--server-args=--dtype bfloat16", "--devices", "0", "1"]
    assert player_settings(parser.parse_args(given)) == {
        "policy": "model",
        "model": "a/b",
        "engine": "server",
        "server_args": "--dtype bfloat16",
    }


def test_each_server_gets_a_gpu_or_says_how_to_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_envs.cli.policy_options import _one_gpu_each

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert _one_gpu_each(2) == ["2", "5"]
    with pytest.raises(InvalidConfigError, match="--devices 2 2 2 2, with --server-args='--gpu-memory-util"):
        _one_gpu_each(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _one_gpu_each(2) is None


def test_help_shows_how_and_names_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("collect", "play"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert "examples:\n  llm-envs " + command in shown and "LLM_ENVS_API_KEY" in shown
