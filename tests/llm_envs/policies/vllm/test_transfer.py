"""Weights by vLLM's own weight transfer, with gloo in NCCL's place: two real servers on CPUs, one of which dies."""

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

from tool_model import tool_folder  # noqa: E402  (after the skip)

from llm_envs.errors import BridgeError, InvalidConfigError, ModelError  # noqa: E402
from llm_envs.policies import VLLMServerPolicy, start_servers  # noqa: E402
from llm_envs.policies.inference import load_model, token_logps  # noqa: E402
from llm_envs.policies.inference.loading import load_tokenizer  # noqa: E402
from llm_envs.policies.vllm import transfer  # noqa: E402
from llm_envs.policies.vllm.launcher import is_healthy  # noqa: E402
from llm_envs.types import SamplingParams  # noqa: E402

PROMPT = np.arange(200, 226, dtype=np.int32)
ARGS = ("--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32", "--enforce-eager")
folder = pytest.fixture(scope="module")(tool_folder)


@pytest.fixture(scope="module")
def servers(folder, tmp_path_factory):
    args = (*ARGS, *transfer.transfer_args("gloo"))
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    logs = tmp_path_factory.mktemp("logs")
    with start_servers(folder, 2, args=args, env=env, log_dir=logs, start_timeout_s=1200, max_restarts=1) as servers:
        yield servers


class Calls:
    """The phases that servers were asked for, and the weights that they read from files."""

    def __init__(self, control):
        self.asked, self._ask = [], control.ask
        control.ask = self

    def __call__(self, url, body=None, **kwargs):
        name = url.rpartition("/")[2]
        self.asked.append(body["method"] if name == "collective_rpc" else name)
        return self._ask(url, body, **kwargs)

    def count(self, name):
        n = self.asked.count(name)
        self.asked = [other for other in self.asked if other != name]
        return n


@pytest.fixture
def policy(servers, folder):
    policy = VLLMServerPolicy(
        servers.urls, load_tokenizer(folder), model=folder, transport="gloo", connect_timeout_s=60
    )
    policy.calls = Calls(policy._control)
    yield policy
    policy.load_checkpoint(folder, 0)
    asyncio.run(policy.aclose())


def sample(policy, n=12, **params):
    settings = SamplingParams(**{"max_new_tokens": 12, **params})

    async def run():
        asked = [policy.sample(PROMPT[i % 3 :], settings, seed=i, session=f"episode {i}") for i in range(n)]
        return await asyncio.gather(*asked)

    return asyncio.run(run())


def largest_gap(model, sampled):
    ids = [np.concatenate([PROMPT[i % 3 :], s.token_ids]) for i, s in enumerate(sampled)]
    scored = token_logps(model, ids)
    return max(np.abs(a[-len(s.logps) :] - s.logps).max() for a, s in zip(scored, sampled, strict=True))


def change(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.filterwarnings("ignore:.*exceeds buffer_size_bytes")
@pytest.mark.parametrize("buffer_bytes", [1, 100_000, 1 << 28])
def test_five_updates_are_bit_equal_to_the_whole_checkpoint(policy, folder, tmp_path, monkeypatch, buffer_bytes):
    """One tensor in a buffer, several, and all; on both servers, a tied output layer too."""
    monkeypatch.setattr(transfer, "_BUFFER_BYTES", buffer_bytes)
    model = load_model(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings
    for version in range(1, 6):
        change(model, version)
        policy.update_weights(model.named_parameters(), version)
        sampled = sample(policy)
        assert largest_gap(model, sampled) < 1e-4
        assert {s.weight_version for s in sampled} == {version}
    assert policy.calls.count("init_weight_transfer_engine") == 2  # one group of both
    assert policy.calls.count("update_weights") == 10
    assert policy.calls.count("llm_envs_bring_up") == 0
    model.save_pretrained(tmp_path)
    policy.load_checkpoint(tmp_path, 6)
    assert policy.calls.count("llm_envs_bring_up") == 2
    for one, other in zip(sampled, sample(policy), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logps.tobytes() == other.logps.tobytes()


def test_turns_under_way_go_on_and_each_token_carries_its_version(policy, folder):
    settings = SamplingParams(max_new_tokens=400, extra={"ignore_eos": True, "stop_token_ids": []})
    model = load_model(folder, dtype=torch.float32)

    async def run(pause_s):
        tasks = [asyncio.create_task(policy.sample(PROMPT, settings, seed=i, session=str(i))) for i in range(4)]
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(policy.update_weights, model.named_parameters(), 7)
        return await asyncio.gather(*tasks)

    for pause_s in (0.1, 0.2, 0.4, 0.05):  # on a busy machine a turn may begin late, and end before the update
        policy.load_checkpoint(folder, 0)
        change(model, 1)
        turns = asyncio.run(run(pause_s))
        if all(len(turn.versions) == 2 for turn in turns):
            break
    for turn in turns:
        assert [span.version for span in turn.versions] == [0, 7]
        assert turn.versions[0].stop == turn.versions[1].start < len(turn.token_ids) == 400


def test_weights_that_do_not_fit_are_refused_and_the_present_ones_stay_at_hand(policy, folder):
    model = load_model(folder, dtype=torch.float32)
    policy.update_weights(model.named_parameters(), 1)
    policy.calls.asked.clear()
    with pytest.raises(ModelError, match=r"missing: \['model.*Nothing"):
        policy.update_weights([("model.norm.weight", torch.ones(64))], 2)
    assert policy.calls.asked == []
    assert policy._exchange.tensors(policy.checkpoint) is not None
    assert {s.weight_version for s in sample(policy, 4)} == {1}


def test_a_client_and_servers_that_cannot_are_told_what_to_do(policy, servers, folder):
    tokenizer = load_tokenizer(folder)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidConfigError, match=r"transport='nccl'.*'gloo'"):
            VLLMServerPolicy(servers.urls, tokenizer, transport="nccl")
    with pytest.raises(InvalidConfigError, match=r"'rdma'.*'checkpoint', 'delta', 'nccl', 'gloo'"):
        VLLMServerPolicy(servers.urls, tokenizer, transport="rdma")
    with pytest.raises(InvalidConfigError, match=r"transfer_address .*http://trainer:1"):
        VLLMServerPolicy(servers.urls, tokenizer, transport="gloo", transfer_address="http://trainer:1")
    with pytest.raises(InvalidConfigError, match=r"transport='gloo'.*server='sglang'"):
        VLLMServerPolicy(servers.urls, tokenizer, transport="gloo", server="sglang")
    facts = policy._endpoints[0].facts
    assert (facts.transfer, facts.device) == ("gloo", "cpu")
    nccl = transfer.WeightTransfer("nccl", None, policy._control)
    with pytest.raises(ModelError, match="transport='nccl'"):
        nccl.check(facts)
    on_gpu = replace(facts, device="cuda")
    right = r"""vllm serve \S+ --logprobs-mode processed_logprobs --weight-transfer-config '{"backend": "nccl"}'"""
    for changes, found in (({}, r"\('gloo', "), ({"transfer": None}, r"\(None, "), ({"extension": None}, "None\\)")):
        with pytest.raises(ModelError, match=rf"{found}.*\('nccl', .*{right}"):
            nccl.check(replace(on_gpu, **{"transfer": "gloo", **changes}))
    nccl.check(replace(on_gpu, transfer="nccl"))
    with pytest.raises(ModelError, match=r"""'{"backend": "gloo"}' --worker-extension-cls \S+WorkerExtension$"""):
        policy._transfer.check(replace(facts, transfer=None))


def test_the_address_is_the_one_by_which_servers_reach_this_machine():
    assert transfer._address(None, ["http://127.0.0.1:8000"])[0] == "127.0.0.1"
    assert transfer._address("trainer", ["http://10.0.0.7:8000"])[0] == "trainer"
    assert transfer._address("trainer:29600", []) == ("trainer", 29600)


def test_a_second_client_waits_for_weights_that_only_the_first_can_send(policy, servers, folder):
    """As the second process of a training, whose episodes run while the first sends."""
    other = VLLMServerPolicy(servers.urls, load_tokenizer(folder), model=folder, transport="gloo")
    model = load_model(folder, dtype=torch.float32)
    change(model, 4)
    checkpoint = policy.prepare(model.named_parameters(), 4)
    other.follow(checkpoint)
    turns = []
    asking = threading.Thread(target=lambda: turns.extend(sample(other, 4)))
    asking.start()
    time.sleep(0.5)
    assert turns == []
    policy.send(checkpoint)
    asking.join(300)
    assert {turn.weight_version for turn in turns} == {4}
    assert largest_gap(model, turns) < 1e-4
    asyncio.run(other.aclose())


def test_without_a_shared_folder_a_restarted_server_gets_the_next_weights(servers, folder, monkeypatch):
    """The servers are treated as if they were on other machines."""
    tokenizer, model = load_tokenizer(folder), load_model(folder, dtype=torch.float32)
    with monkeypatch.context() as patched:
        patched.setattr("llm_envs.policies.vllm.server.is_local", lambda url: False)
        policy = VLLMServerPolicy(servers.urls[0], tokenizer, model=folder, transport="gloo", max_retries=1)
    first = policy._endpoints[0].facts.tag
    policy.update_weights(model.named_parameters(), 1)
    assert {s.weight_version for s in sample(policy, 4)} == {1}
    policy._control._set_tag(policy._endpoints[0].facts, first)  # as a restarted one has the tag of its first weights
    policy._endpoints[0].is_trusted = False
    with pytest.raises(BridgeError, match=r"version 1 .*exchange_dir"):
        sample(policy, 1)
    change(model, 2)
    policy.update_weights(model.named_parameters(), 2)
    sampled = sample(policy, 4)
    assert {s.weight_version for s in sampled} == {2}
    assert largest_gap(model, sampled) < 1e-4
    assert policy._exchange._temporary is None  # nothing was written
    asyncio.run(policy.aclose())


@pytest.mark.filterwarnings("ignore:.*exceeds buffer_size_bytes")
def test_a_server_that_is_killed_in_the_middle_of_a_transfer(policy, servers, folder, monkeypatch):
    """The other one gets a file, the restarted one too, and the next update makes a group of both."""
    model = load_model(folder, dtype=torch.float32)
    policy.update_weights(model.named_parameters(), 1)
    send, killed = transfer._Tensors.__iter__, servers.pids[1]

    def send_half(tensors):
        for number, pair in enumerate(send(tensors)):
            if number == 3:
                os.killpg(killed, signal.SIGKILL)
                time.sleep(0.5)
            yield pair

    with monkeypatch.context() as patched:
        patched.setattr(transfer._Tensors, "__iter__", send_half)
        patched.setattr(transfer, "_BUFFER_BYTES", 1)
        policy._transfer.close()
        change(model, 2)
        policy.calls.asked.clear()
        policy.update_weights(model.named_parameters(), 2)
    assert policy.calls.count("llm_envs_bring_up") == 1
    sampled = sample(policy)
    assert {s.weight_version for s in sampled} == {2}
    assert largest_gap(model, sampled) < 1e-4
    deadline_s = time.monotonic() + 1200
    while not is_healthy(servers.urls[1], 2.0):
        assert time.monotonic() < deadline_s, servers.logs[1].read_text()[-2000:]
        time.sleep(0.5)
    policy.look_after()  # without a turn of this client
    assert policy.calls.count("llm_envs_bring_up") == 1
    assert policy._endpoints[1].facts.tag == policy.checkpoint.tag
    other = VLLMServerPolicy(servers.urls[1], load_tokenizer(folder), model=folder, transport="gloo")

    policy.calls.asked.clear()
    change(model, 3)
    policy.update_weights(model.named_parameters(), 3)
    assert policy.calls.count("llm_envs_bring_up") == 0
    assert policy.calls.count("init_weight_transfer_engine") == 2
    other.follow(policy.checkpoint)
    sampled = sample(other)
    assert {s.weight_version for s in sampled} == {3}
    assert largest_gap(model, sampled) < 1e-4
    asyncio.run(other.aclose())


@pytest.mark.slow
def test_all_workers_of_a_tensor_parallel_server_join(folder):
    args = (*ARGS, *transfer.transfer_args("gloo"), "--tensor-parallel-size", "2")
    model = load_model(folder, dtype=torch.float32)
    with start_servers(folder, 1, args=args, start_timeout_s=1200) as servers:
        policy = VLLMServerPolicy(servers.urls, load_tokenizer(folder), model=folder, transport="gloo")
        policy.calls = Calls(policy._control)
        for version in (1, 2):
            change(model, version)
            policy.update_weights(model.named_parameters(), version)
            assert largest_gap(model, sample(policy)) < 1e-4
        assert policy.calls.count("llm_envs_bring_up") == 0
        asyncio.run(policy.aclose())
