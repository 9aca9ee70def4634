"""What `llm-envs collect` is given wrongly: one line says what is wrong, and nothing that was there is lost.

| bad input | test |
|---|---|
| an output folder that holds another run, or something else | `test_a_folder_with_another_run` |
| a shard, or a whole run, from another version | `test_a_shard_from_another_version` |
| a server that answers 401, 404 or 429 when it is met | `test_a_server_that_refuses_at_once`, `..._is_busy_at_once` |
| ... in the middle of a run | `test_a_server_that_refuses_later`, `..._is_busy_later`, `test_an_api_that_refuses` |
| a model that is not the server's, another tokenizer | `test_a_server_of_another_model` |
| a server whose log-probabilities mode is not the trainer's | `test_a_server_in_another_mode` |
| an address where nobody answers | `test_nobody_there` |
| weights whose names or shapes do not match | `test_weights_that_do_not_fit`; on real servers: test_server.py |
| an engine that fails to start | `test_an_engine_that_does_not_start` (vLLM's own); test_launcher.py |
| a `group_size` of 0, or no groups | `test_no_group` |
| no environment left | `test_no_environment_left` |
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import Answer, Asked, FakeServer, completion, fake_server, vllm_answers

from llm_envs.cli.main import main
from llm_envs.errors import BridgeError, InvalidConfigError, ModelError
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, SeedSource, collect_run, group_specs, read_trajectories
from llm_envs.testing import NumbersEnv

CALCULATOR = "llm/Calculator-v0"


def collect(*arguments: str | Path) -> int:
    return main(["collect", *map(str, arguments)])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "writer.lock"}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the command's last words: one line, and no traceback anywhere."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    said = [line for line in error.splitlines() if line.startswith("llm-envs: error: ")]
    assert len(said) == 1 and error.endswith(said[0] + "\n")
    return said[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, which is all that is needed where the model is elsewhere."""
    pytest.importorskip("transformers")
    from llm_envs.tiny_model import tiny_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(path)
    return path


def serving(folder: Path, sample: Any = None, **model: Any) -> Any:
    """Return what a server of the folder's model says."""
    from llm_envs.policies.inference.loading import load_tokenizer

    well = sample or (lambda asked, n_before: completion([5, 6, 2]))
    return vllm_answers(load_tokenizer(folder), well, **{"root": str(folder), "max_model_len": 4096} | model)


@pytest.fixture
def server(folder: Path) -> Iterator[FakeServer]:
    with fake_server(serving(folder)) as server:
        yield server


def test_a_folder_with_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert collect(CALCULATOR, "-n", "2", "--out", run) == 0
    before = contents(run)
    for wrong, said in (
        ([CALCULATOR, "-n", "2"], "holds a run already"),
        (["llm/GuessNumber-v0", "-n", "2", "--resume"], "holds another run (envs: "),
        ([CALCULATOR, "-n", "2", "--resume", "--policy", "random"], "policy: 'oracle' there, 'random' here"),
    ):
        assert collect(*wrong, "--out", run) == 1
        assert said in one_line(capsys)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("300 pages")
    assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "mine") == 1
    assert "is not empty and holds no run" in one_line(capsys)
    assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "mine" / "thesis.txt") == 1
    assert "is a file" in one_line(capsys)
    assert contents(run) == before and contents(tmp_path / "mine") == {"thesis.txt": b"300 pages"}


def test_a_shard_from_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = tmp_path / "run"
    assert collect(CALCULATOR, "-n", "2", "--out", run) == 0
    shard, manifest = run / "shard-00000.parquet", run / "manifest.json"
    ours = shard.read_bytes()
    table = parquet.read_table(shard)
    parquet.write_table(table.replace_schema_metadata({b"llm_envs_format": b"9"}), shard)
    before = contents(run)
    assert collect(CALCULATOR, "-n", "3", "--out", run, "--resume") == 1
    assert "shard-00000.parquet has shard format '9'; this version reads '2'" in one_line(capsys)
    assert contents(run) == before
    shard.write_bytes(ours)
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(said | {"format": 99}))
    before = contents(run)
    assert collect(CALCULATOR, "-n", "3", "--out", run, "--resume") == 1
    assert "has format 99; this version reads" in one_line(capsys)
    assert contents(run) == before
    manifest.write_text(json.dumps(said))
    assert collect(CALCULATOR, "-n", "3", "--out", run, "--resume") == 0
    assert len(read_trajectories(run)) == 3


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, 2, "answered 401: no. The server expects another API key: pass api_key=..., or set LLM_ENVS_API_KEY"),
        (404, 1, "answered 404: no. GET /v1/models lists its models; check the URL too."),
    ],
)
def test_a_server_that_refuses_at_once(
    status: int, code: int, said: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(lambda asked, n: Answer(status, {"error": {"message": "no."}})) as server:
        assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", folder, "--url", server.url) == code
    assert said in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_busy_at_once(folder: Path) -> None:
    from llm_envs.policies import VLLMServerPolicy
    from llm_envs.policies.inference.loading import load_tokenizer

    with fake_server(lambda asked, n: Answer(429, "full")) as server:
        with pytest.raises(BridgeError, match="answered 429: full"):
            VLLMServerPolicy(server.url, load_tokenizer(folder), connect_timeout_s=2.0)
        well = serving(folder)
        server.respond = lambda asked, n: well(asked, n) if n else Answer(429, "full")
        server.asked.clear()
        VLLMServerPolicy(server.url, load_tokenizer(folder), connect_timeout_s=60)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(401, "no"), "(1 x policy: InvalidConfigError: http"),
        (Answer(404, "no"), "(1 x policy: ModelError: http"),
    ],
)
def test_a_server_that_refuses_later(
    answer: Answer, said: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was played stays, what failed is said, and the same command plays it when the server is well again."""
    run = tmp_path / "run"
    command = [CALCULATOR, "--out", run, "--model", folder, "--max-turns", "1", "--resume", "--max-concurrency", "1"]

    def sample(asked: Asked, n_before: int) -> Answer:
        return completion([5, 6, 2]) if n_before < 2 else answer

    with fake_server(serving(folder, sample)) as server:
        assert collect(*command, "-n", "3", "--url", server.url) == 1
        error = one_line(capsys)
        assert (
            "1 episode failed" in error
            and said in error
            and "Repeat the command with --resume to play them again" in error
        )
        assert [t.status for t in read_trajectories(run)] == ["ok", "ok", "errored"]
        server.respond = serving(folder)
        assert collect(*command, "-n", "3", "--url", server.url) == 0
    assert [t.status for t in read_trajectories(run)] == ["ok"] * 3


def test_a_server_that_is_busy_later(tmp_path: Path, folder: Path) -> None:
    def sample(asked: Asked, n_before: int) -> Answer:
        return Answer(429, "full", {"Retry-After": "0"}) if 2 <= n_before < 6 else completion([5, 6, 2])

    with fake_server(serving(folder, sample)) as server:
        command = [CALCULATOR, "-n", "3", "--out", tmp_path / "run", "--model", folder, "--max-turns", "1"]
        assert collect(*command, "--url", server.url, "--max-concurrency", "1") == 0
        assert len(server.paths("/v1/completions")) == 7
    assert [t.status for t in read_trajectories(tmp_path / "run")] == ["ok"] * 3


def test_an_api_that_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is noticed at the first turns: a large run stops."""
    with fake_server(lambda asked, n: Answer(401, {"error": {"message": "no."}})) as server:
        command = [CALCULATOR, "-n", "100000", "--out", tmp_path / "run", "--max-concurrency", "4"]
        assert collect(*command, "--model", "m", "--engine", "api", "--url", server.url) == 1
    error = one_line(capsys)
    assert "100 episodes in a row failed" in error and "answered 401: no." in error
    assert len(read_trajectories(tmp_path / "run")) < 120


def test_a_server_of_another_model(
    tmp_path: Path, folder: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from llm_envs.policies.inference.loading import load_tokenizer

    command = [CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--url", server.url]
    assert collect(*command, "--model", "other/model", "--tokenizer", folder) == 1
    error = one_line(capsys)
    assert f"serves 'm' (started on '{folder}'), not 'other/model'. Start it as: " in error
    assert "vllm serve other/model --logprobs-mode processed_logprobs" in error
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["Answer"])  # one that sees our text otherwise
    server.respond = vllm_answers(tokenizer, server.respond, root=str(folder), max_model_len=4096)
    assert collect(*command, "--model", folder) == 1
    assert "does not tokenize like the trainer's tokenizer" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_server_in_another_mode(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(serving(folder, logprobs_mode="raw_logprobs")) as server:
        assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", folder, "--url", server.url) == 1
    error = one_line(capsys)
    assert "has the logprobs mode raw_logprobs" in error
    assert f"vllm serve {folder} --logprobs-mode processed_logprobs" in error
    assert not (tmp_path / "run").exists()


def test_nobody_there(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from llm_envs.policies import VLLMServerPolicy
    from llm_envs.policies.inference.loading import load_tokenizer

    with pytest.raises(BridgeError, match=r"127\.0\.0\.1:9/v1/models: ConnectError"):
        VLLMServerPolicy("http://127.0.0.1:9", load_tokenizer(folder), connect_timeout_s=0.1)
    assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", folder, "--url", "127.0.0.1:9") == 2
    assert "must begin with http:// or https://" in one_line(capsys)


def test_weights_that_do_not_fit(folder: Path, server: FakeServer, tmp_path: Path) -> None:
    from llm_envs.policies import VLLMServerPolicy
    from llm_envs.policies.inference.loading import load_tokenizer
    from llm_envs.tiny_model import tiny_model

    tokenizer = load_tokenizer(folder)
    tiny_model(tokenizer, hidden_size=32, n_layers=1).save_pretrained(tmp_path / "served")
    server.respond = serving(folder, root=str(tmp_path / "served"))
    policy = VLLMServerPolicy(server.url, tokenizer, model=tmp_path / "served")
    with pytest.raises(ModelError, match=r"has shape .*, the model's is .*Nothing was changed"):
        policy.update_weights(tiny_model(tokenizer, hidden_size=64, n_layers=1).named_parameters(), 1)
    with pytest.raises(ModelError, match=r"\d+ unknown: \['model\.layers\.1\."):
        policy.update_weights(tiny_model(tokenizer, hidden_size=32, n_layers=2).named_parameters(), 1)
    assert server.paths("/collective_rpc") == [] and policy.weight_version == 0
    asyncio.run(policy.aclose())


@pytest.mark.vllm
@pytest.mark.parametrize("how", [["--engine", "vllm"], ["--serve", "1"]])
def test_an_engine_that_does_not_start(
    how: list[str], tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own last error is shown, not that something failed somewhere."""
    from llm_envs.policies.inference.loading import load_tokenizer
    from llm_envs.tiny_model import tiny_model

    tiny_model(load_tokenizer(folder), hidden_size=32, n_layers=1).save_pretrained(tmp_path / "model")
    load_tokenizer(folder).save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["NoSuchModelForCausalLM"]}))
    assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", tmp_path / "model", *how) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("llm-envs: error: ") and "NoSuchModelForCausalLM" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
@pytest.mark.parametrize("how", [["--engine", "vllm"], ["--serve", "2"]])
def test_an_engine_that_is_not_installed(
    how: list[str], tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(CALCULATOR, "-n", "2", "--out", tmp_path / "run", "--model", folder, *how) == 1
    assert "pip install 'llm-envs[vllm]'" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_no_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["-n", "0"], ["-n", "2", "--group-size", "0"]):
        with pytest.raises(SystemExit) as caught:
            collect(CALCULATOR, *wrong, "--out", tmp_path / "run")
        assert caught.value.code == 2 and "0 is not an integer of at least 1" in capsys.readouterr().err
    with pytest.raises(InvalidConfigError, match="group_size=0"):
        collect_run(NumbersEnv, OraclePolicy(), out=tmp_path / "run", n_groups=1, group_size=0)
    with Collector(NumbersEnv, OraclePolicy(), progress=False) as collector:
        with pytest.raises(InvalidConfigError, match="group_size=0"):
            collector.collect(1, 0)
        with pytest.raises(InvalidConfigError, match="group_size=0"):
            next(collector.stream(0))
        with pytest.raises(InvalidConfigError, match="a group without members"):
            collector.play_each([()])
    with pytest.raises(InvalidConfigError, match="group_size is 0"):
        group_specs(SeedSource(NumbersEnv).spec(0), 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody/*"], "no task matches 'nobody/*'; `llm-envs list` prints all tasks."),
        (["llm/*", "--exclude", "llm/*"], "no task is left to play: --exclude llm/* removes all"),
        ([CALCULATOR, "--exclude", CALCULATOR], f"no task is left to play: --exclude {CALCULATOR} removes all 1."),
        ([CALCULATOR, "--exclude", "llm/Calc-v0"], f"--exclude llm/Calc-v0: it matches none of {CALCULATOR}."),
        (["llm/*:0"], "llm/*:0: the weight must be a number above 0."),
        (["llm/C*", "llm/*"], "is given twice"),
    ],
)
def test_no_environment_left(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(*arguments, "-n", "2", "--out", tmp_path / "run") == 2
    assert said in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_no_environment_left_from_python() -> None:
    with pytest.raises(InvalidConfigError, match="no environments given"):
        SeedSource([])
    with pytest.raises(InvalidConfigError, match="the weight is 0; it must be above 0"):
        SeedSource({CALCULATOR: 0, "llm/GuessNumber-v0": 0})
