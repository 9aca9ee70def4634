"""Adapters on servers: which one a turn asks for, what is sent to a restarted server, and what is unloaded when."""

import asyncio

import numpy as np
import pytest
import torch
from fake_server import completion, fake_server, vllm_answers

from llm_envs.errors import ModelError
from llm_envs.policies import VLLMServerPolicy
from llm_envs.policies.vllm.routing import Backoff
from llm_envs.rollout import PastVersions
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import SamplingParams

TOKENIZER = tiny_tokenizer()
PROMPT = np.array([5, 6, 7], np.int32)
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS = {f"{LAYER}.lora_A.weight": torch.ones(2, 8), f"{LAYER}.lora_B.weight": torch.ones(4, 2)}


def answers(**settings):
    return vllm_answers(TOKENIZER, lambda asked, n: completion([5, 6, 2]), max_lora_rank=16, **settings)


@pytest.fixture
def server():
    with fake_server(answers()) as server:
        yield server


@pytest.fixture
def policy(server, tmp_path):
    policy = VLLMServerPolicy(server.url, TOKENIZER, exchange_dir=tmp_path, backoff=Backoff(0.01, max_s=0.05))
    policy.router.cooldown = Backoff(first_s=0.05, max_s=0.2, jitter=0.0)
    yield policy
    asyncio.run(policy.aclose())


def turn(policy, clients=None):
    async def run():
        try:
            return await policy.sample(PROMPT, SamplingParams(max_new_tokens=4), seed=0, session="a")
        finally:
            await (clients or policy)._clients.aclose()

    return asyncio.run(run())


def asked_for(server):
    return [asked.body["model"] for asked in server.paths("/v1/completions")]


def loads(server):
    return [asked.body["lora_name"] for asked in server.paths("/v1/load_lora_adapter")]


def unloads(server):
    return [asked.body["lora_name"] for asked in server.paths("/v1/unload_lora_adapter")]


def test_each_version_is_an_adapter_of_its_own_and_the_one_before_is_unloaded(policy, server, tmp_path):
    assert turn(policy).weight_version == 0
    versions = []
    for version in (1, 2):
        policy.update_adapter(TENSORS, version)
        versions.append(turn(policy).weight_version)
    assert versions == [1, 2]
    one, two = loads(server)
    assert asked_for(server) == ["m", one, two]
    assert unloads(server) == [one]
    assert list(tmp_path.iterdir()) == [policy.shelf.present.path]
    assert not server.paths("/collective_rpc") and not server.paths("/pause")  # nothing but the adapter


@pytest.mark.smoke
def test_a_restarted_server_gets_the_adapter_before_its_next_turn(policy, server):
    policy.update_adapter(TENSORS, 1)
    turn(policy)
    server.respond = answers(process="2")
    assert turn(policy).weight_version == 1
    (name,) = set(loads(server))
    assert len(loads(server)) == 2
    assert asked_for(server)[-1] == name


def test_a_client_that_follows_asks_for_the_adapter_of_the_one_that_sends(policy, server):
    other = VLLMServerPolicy(server.url, TOKENIZER)
    policy.followers.append(other.follow)
    policy.n_adapters_kept = 2
    for version in (1, 2):
        policy.update_adapter(TENSORS, version)
    assert unloads(server) == []
    assert turn(other).weight_version == 2
    assert asked_for(server) == [policy.shelf.present.name]


def test_past_versions_stay_loaded_until_the_pool_drops_them(policy, server):
    pool = PastVersions(every=1, size=1)
    policy.update_adapter(TENSORS, 1)
    pool.choose(policy, seed=0)
    policy.update_adapter(TENSORS, 2)
    past = pool.choose(policy, seed=0)  # pushes version 1 out
    assert past.weight_version == 2
    policy.update_adapter(TENSORS, 3)
    one, two, _ = loads(server)
    assert unloads(server) == [one]
    past = next(iter(pool.versions.values()))
    assert turn(past, policy).weight_version == 2
    assert asked_for(server) == [two]


def test_a_refused_adapter_is_an_error_and_the_one_before_stays(server, policy):
    policy.update_adapter(TENSORS, 1)
    server.respond = vllm_answers(TOKENIZER, lambda asked, n: completion([5, 6, 2]))
    with pytest.raises(ModelError, match=r"(?s)does not load the adapter.*--enable-lora"):
        policy.update_adapter(TENSORS, 2)
    assert policy.shelf.present.version == policy.weight_version == 1


def test_a_client_that_is_closed_leaves_no_adapter_on_the_servers(server):
    policy = VLLMServerPolicy(server.url, TOKENIZER)
    policy.n_adapters_kept = 2
    for version in (1, 2):
        policy.update_adapter(TENSORS, version)
    paths = [adapter.path for adapter in policy.shelf._loaded]
    asyncio.run(policy.aclose())
    assert unloads(server) == loads(server) and len(paths) == 2
    assert not any(path.exists() for path in paths)


def test_an_update_survives_a_server_that_has_just_been_restarted(policy, server):
    policy.update_adapter(TENSORS, 1)
    turn(policy)
    server.respond = answers(process="2")
    policy.update_adapter(TENSORS, 2)
    assert turn(policy).weight_version == 2
    assert asked_for(server)[-1] == policy.shelf.present.name
