"""The weights and versions of servers when requests fail. The servers are fake, and their workers are real."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_server import Answer, fake_server
from fake_worker import FakeWorker, save_weights, weights

from llm_envs.errors import BridgeError, InvalidConfigError, ModelError
from llm_envs.policies import VLLMServerPolicy
from llm_envs.policies.vllm import control
from llm_envs.policies.vllm.exchange import WeightStore
from llm_envs.policies.vllm.routing import Backoff
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import SamplingParams

TOKENIZER = tiny_tokenizer()
pytestmark = pytest.mark.transformers


@pytest.fixture
def worker(tmp_path):
    return FakeWorker(TOKENIZER, save_weights(tmp_path / "model", 5))


@pytest.fixture
def server(worker):
    with fake_server(worker.respond) as server:
        yield server


def make_policy(urls, **settings):
    quick = {"backoff": Backoff(first_s=0.01, max_s=0.05), "connect_timeout_s": 1.0, "max_retries": 4}
    policy = VLLMServerPolicy(urls, TOKENIZER, **quick | settings)
    policy.router.cooldown = Backoff(first_s=0.05, max_s=0.2, jitter=0.0)
    return policy


def sample(policy, n=1):
    """Return the first token and the version of some turns."""

    async def run():
        prompt, params = np.arange(4, 12, dtype=np.int32), SamplingParams(max_new_tokens=4)
        asked = [policy.sample(prompt, params, seed=i, session=f"episode {i}") for i in range(n)]
        try:
            return await asyncio.wait_for(asyncio.gather(*asked), timeout=300)
        finally:
            await policy._clients.aclose()

    return {(int(turn.token_ids[0]), turn.weight_version) for turn in asyncio.run(run())}


def chain(policy, *values):
    """Send weights, one version each: the token is the version plus 10."""
    for value in values:
        policy.update_weights(weights(10 + value), value)


@pytest.mark.parametrize("path", ["/resume", "/collective_rpc", "/pause", "/update_weight_version"])
def test_a_request_of_a_push_whose_answer_is_lost(worker, server, path):
    """The weights may have changed or not: the next turn has the new ones, says so, and is not left waiting."""
    policy = make_policy(server.url)
    chain(policy, 1)
    n_lost = iter(["lost", "lost"])
    worker.refuses = lambda asked: asked.path == path and next(n_lost, False)
    try:
        policy.update_weights(weights(12), 2)
    except BridgeError as error:
        assert "no server loaded the weights of version 2" in str(error)
    assert sample(policy) == {(12, 2)}
    assert not worker.is_paused
    assert server.paths("/v1/completions")[-1].body["cache_salt"] == policy.checkpoint.tag


def test_a_server_that_another_client_has_brought_up_to_date_is_known_by_its_new_version(worker, server):
    one, other = make_policy(server.url), make_policy(server.url)
    other_push = one.prepare(weights(11), 1)
    other.follow(other_push)
    assert sample(other) == {(11, 1)}  # it did not wait for the first one's push
    one.send(other_push)
    assert worker.loads == ["whole"]  # nothing was loaded twice
    assert sample(one) == sample(other) == {(11, 1)}


def test_a_client_that_only_plays_is_told_before_the_servers_change_and_reports_the_versions(worker, server):
    trainer, player, told = make_policy(server.url), make_policy(server.url), []

    def follow(checkpoint):
        told.append((checkpoint.version, worker.token))
        player.follow(checkpoint)

    trainer.followers.append(follow)
    for version in (1, 2):
        trainer.update_weights(weights(10 + version), version)
        assert sample(player) == {(10 + version, version)}
    assert told == [(1, 5), (2, 11)]
    late = make_policy(server.url)  # the server has the weights already
    late.follow(trainer.checkpoint)
    assert sample(late) == {(12, 2)}
    assert worker.loads == ["whole", "whole"]  # the player sent nothing


def test_a_foreign_trainer_is_noticed_by_one_that_has_sent_weights_itself(server):
    one, other = make_policy(server.url), make_policy(server.url)
    one.update_weights(weights(11), 1)
    with pytest.raises(BridgeError, match="another client"):
        other.update_weights(weights(19), 1)
    assert sample(one) == {(11, 1)}


def test_a_restarted_server_gets_the_whole_and_all_deltas_in_one_change(worker, server):
    policy = make_policy(server.url, transport="delta")
    chain(policy, 1, 2, 3, 4)
    assert worker.loads == ["whole", "deltas", "deltas", "deltas"]
    worker.process, worker.tag, worker.token = "2", "default", 5
    worker.llm_envs_tag = worker.llm_envs_copy = None
    worker.loads.clear()
    policy._endpoints[0].is_trusted = False
    assert sample(policy) == {(14, 4)}
    assert worker.loads == ["deltas"]


def test_deltas_by_http_come_once_and_the_whole_comes_if_one_is_missing(worker, server, monkeypatch):
    monkeypatch.setattr(control, "is_local", lambda url: False)
    policy = make_policy(server.url, transport="delta")
    chain(policy, 1, 2, 3)
    assert worker.loads == ["whole", "deltas", "deltas"]
    for n, asked in enumerate(server.paths("/collective_rpc")):
        deltas = asked.body["kwargs"]["deltas"]
        assert [list(delta) for delta in deltas] == [["tag", "sha256"]] * (n - 1) + [["tag", "sha256", "data"]] * (
            n > 0
        )
    assert sample(policy) == {(13, 3)}
    write = policy._exchange._write_delta

    def unreadable(*args):
        checkpoint = write(*args)
        checkpoint.deltas[-1].path.unlink()
        return checkpoint

    monkeypatch.setattr(policy._exchange, "_write_delta", unreadable)
    policy.update_weights(weights(14), 4)
    assert worker.loads[3:] == ["whole"]
    assert sample(policy) == {(14, 4)}


def test_a_server_that_refuses_deltas_gets_whole_checkpoints_that_do_not_pile_up(worker, server, tmp_path):
    policy = make_policy(server.url, transport="delta", exchange_dir=tmp_path / "exchange")
    chain(policy, 1)
    worker.refuses = lambda asked: asked.path == "/collective_rpc" and bool(asked.body["kwargs"]["deltas"])
    for value in range(2, 12):
        chain(policy, value)
        assert sample(policy) == {(10 + value, value)}
        assert len(list((tmp_path / "exchange").iterdir())) == 1
    worker.refuses = lambda asked: False
    chain(policy, 12)
    assert worker.loads[-1] == "deltas" and sample(policy) == {(22, 12)}
    asyncio.run(policy.aclose())
    assert list((tmp_path / "exchange").iterdir()) == []


def test_a_change_that_fails_half_way_is_not_sampled_from(worker, server):
    """As by one of several workers. The turns under way are aborted, and the server waits for weights that load."""
    policy = make_policy(server.url, max_retries=1)
    chain(policy, 1)
    reload = worker.reload_weights

    def torn(**source):
        worker.token = 77
        raise RuntimeError("out of memory")

    worker.reload_weights = torn
    with pytest.raises(BridgeError, match="out of memory"):
        policy.update_weights(weights(12), 2)
    assert worker.is_paused and worker.tag.endswith(control.CHANGING)
    with pytest.raises(BridgeError, match="out of memory"):
        sample(policy)
    worker.reload_weights = reload
    assert sample(policy) == {(12, 2)}
    worker.reload_weights = torn
    with pytest.raises(BridgeError, match="out of memory"):
        policy.update_weights(weights(13), 3)
    later = make_policy(server.url)  # another client, after the first has given up
    worker.reload_weights = reload
    chain(later, 4)
    assert sample(later) == {(14, 4)}


def test_weights_of_a_killed_process_are_deleted_by_the_next(monkeypatch):
    """Those of a process that lives stay."""
    prefix = f"test-of-llm-envs-weights-{os.getpid()}-"  # no other program on this machine deletes these
    monkeypatch.setattr("llm_envs.policies.vllm.exchange._PREFIX", prefix)
    code = (
        "import os, signal, sys\nfrom llm_envs.policies.vllm import exchange as module\n"
        f"module._PREFIX = {prefix!r}\n"
        "exchange = module.WeightStore(None)\nprint(exchange._folder, flush=True)\n"
        "sys.stdin.read() or os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL and left.is_dir()
    living = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    used = Path(living.stdout.readline().strip())
    exchange = WeightStore(None)
    own = exchange._folder
    assert own.is_dir() and used.is_dir() and not left.exists()
    exchange.close()
    living.communicate("end")
    assert not own.exists() and not used.exists()


def test_a_disk_that_is_full_leaves_nothing(server, tmp_path, monkeypatch):
    policy = make_policy(server.url, exchange_dir=tmp_path / "exchange")
    chain(policy, 1)
    before = set((tmp_path / "exchange").iterdir())

    def refuse(*args, **kwargs):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(
            "safetensors.torch.save_file", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("no space"))
        )
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                policy.update_weights(weights(12), 2)
    assert set((tmp_path / "exchange").iterdir()) == before
    assert sample(policy) == {(11, 1)}


def test_weights_are_not_written_where_no_server_sees_them(worker, server, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("llm_envs.policies.vllm.server.is_local", lambda url: False)
        elsewhere = make_policy(server.url)
    with pytest.raises(InvalidConfigError, match="set exchange_dir"):
        elsewhere.update_weights(weights(11), 1)
    policy = make_policy(server.url)
    prepared = policy.prepare(weights(11), 1)
    (prepared.path / "model.safetensors").unlink()
    with pytest.raises(BridgeError, match=r"\*\.safetensors"):
        policy.send(prepared)
    assert worker.loads == [] and worker.token == 5  # the model was not touched


def test_an_error_of_a_push_does_not_show_the_key(worker, server):
    policy = make_policy(server.url, api_key="sk-secret-1234567890")
    worker.refuses = lambda asked: asked.path == "/collective_rpc"
    with pytest.raises(BridgeError) as caught:
        policy.update_weights(weights(11), 1)
    assert "no: " in str(caught.value) and "secret" not in str(caught.value)


def test_a_server_that_does_not_say_its_weights_is_refused(worker, server):
    respond = worker.respond

    def without(asked, n):
        return Answer(404, {}) if asked.path == "/weight_info" else respond(asked, n)

    server.respond = without
    policy = make_policy(server.url)
    with pytest.raises(ModelError, match="/weight_info"):
        policy.update_weights(weights(11), 1)
