"""vLLM for two processes, an engine on each or servers: GRPO with LoRA, PPO, pairs; sharded, too."""

from __future__ import annotations

import pytest
import torch
from launched import CONFIGS, SUPPORT, launch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = [pytest.mark.processes, pytest.mark.vllm, pytest.mark.slow]

from llm_envs.policies import start_servers  # noqa: E402  (after the skip)
from llm_envs.policies.vllm.transfer import transfer_args  # noqa: E402


def results(out, part):
    return [torch.load(out / f"{part}-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory, model_folder, episodes):
    out = tmp_path_factory.mktemp("engines")
    launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, "engines", limit_s=1200).check()
    return results(out, "engines")


@pytest.fixture(scope="module")
def shards(tmp_path_factory, model_folder, episodes):
    out = tmp_path_factory.mktemp("shards")
    launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, "shards", limit_s=1200).check()
    return results(out, "shards")


@pytest.fixture(scope="module")
def servers(tmp_path_factory, model_folder, episodes):
    """Two servers for both processes: each is a client, the first sends the weights, by every transport."""
    out = tmp_path_factory.mktemp("servers")
    args = ("--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "32", *transfer_args("gloo"))
    with start_servers(model_folder, 2, args=args, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}) as started:
        env = {"SERVER_URLS": " ".join(started.urls)}
        launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, "servers", limit_s=1200, env=env).check()
    return results(out, "servers")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, model_folder, episodes):
    """Separate servers: on a CPU, turns without an adapter are refused once some were loaded."""
    out = tmp_path_factory.mktemp("adapters")
    args = ("--dtype", "float32", "--max-model-len", "192", "--max-num-seqs", "32")
    args += ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "4")
    with start_servers(model_folder, 1, args=args, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}) as started:
        env = {"SERVER_URLS": " ".join(started.urls)}
        launch(SUPPORT / "ranks.py", model_folder, str(out), episodes, "adapters", limit_s=1200, env=env).check()
    return results(out, "adapters")


@pytest.mark.parametrize("kind", ["engine", "server"])
def test_an_adapter_is_sent_as_such_and_the_processes_stay_alike(adapters, kind):
    one, other = (rank[kind] for rank in adapters)
    for rank in (one, other):
        assert rank["step"] == 3 and rank["sends"]
        assert len(rank["gaps"]) == 3 and max(rank["gaps"]) < 1e-4
        assert rank["turns"] == [[[step]] * len(turns) for step, turns in enumerate(rank["turns"])]
        assert rank["present"] == 2
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


def test_turns_that_are_played_ahead_have_one_adapter_each_and_old_ones_are_unloaded(adapters):
    one, other = (rank["ahead"] for rank in adapters)
    for rank in (one, other):
        assert rank["step"] == 6 and rank["sends"] and rank["present"] == 5
        assert all(len(versions) == 1 for turns in rank["turns"] for versions in turns)
        for step, turns in enumerate(rank["turns"]):
            assert all(max(step - 2, 0) <= version <= step for (version,) in turns)
        assert any(version < step for step, turns in enumerate(rank["turns"]) for (version,) in turns)
        assert rank["loaded"] <= 2 + 2
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


@pytest.mark.parametrize("name", ["grpo", "ppo", "pairwise"])
@pytest.mark.parametrize("kind", ["engines", "servers", "shards"])
def test_engines_follow_and_weights_stay_alike(request, kind, name):
    """Three generations, each compared with the weights of then; no episode of process 1 ends before those of 0."""
    one, other = (rank[name] for rank in request.getfixturevalue(kind))
    assert one["step"] == other["step"] == 3
    for rank in (one, other):
        assert len(rank["gaps"]) == 3 and max(rank["gaps"]) < 1e-4
    assert one["texts"] != other["texts"]  # episodes of its own on each
    assert one["weights"].keys() == other["weights"].keys()
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    assert len(one["changed"]) > 4
    assert set(one["versions"]) == set(other["versions"]) == {2}


def test_a_shared_engine_has_a_part_of_each_layer_in_each_process(shards, engines):
    for one, whole in zip(shards, engines, strict=True):
        assert 0.5 <= one["grpo"]["share"] < 0.6 and whole["grpo"]["share"] == 1  # both have the only key-value head


@pytest.mark.parametrize("n", [1, 4])
def test_generations_that_are_played_ahead_are_no_older_than_the_bound(servers, n):
    """Two processes on two servers, whose weights change while episodes run."""
    one, other = (rank[f"ahead-{n}"] for rank in servers)
    assert one["step"] == other["step"] == 6
    assert one["ages"] == other["ages"] == [min(step, n) for step in range(6)]
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())


def test_weights_went_by_the_transports_that_were_asked_for(servers):
    sent = [{name: rank[name]["by_group"] for name in rank} for rank in servers]
    by_group = {"grpo": True, "ppo": False, "pairwise": False, "ahead-1": False, "ahead-4": True}
    assert sent == [by_group, dict.fromkeys(by_group, False)]  # the second process only follows


@pytest.mark.parametrize("kind", ["engines", "servers"])
def test_an_adapter_is_merged_for_the_engine_and_the_base_is_bit_equal(request, kind):
    for rank in request.getfixturevalue(kind):
        changed = set(rank["grpo"]["changed"])
        assert changed == {key for key in rank["grpo"]["weights"] if "lora_" in key}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, model_folder, episodes):
    out = tmp_path_factory.mktemp("sharded")
    options = ["--mixed_precision", "no"]
    arguments = [model_folder, str(out), episodes, "engine_lora", "engine_ppo"]
    launch(SUPPORT / "sharded.py", *arguments, config=CONFIGS / "fsdp2.yaml", options=options, limit_s=900).check()
    return {part: results(out, part) for part in ("engine_lora", "engine_ppo")}


@pytest.mark.parametrize("part", ["engine_lora", "engine_ppo"])
def test_engines_follow_a_sharded_model(sharded, part):
    one, other = sharded[part]
    for rank in (one, other):
        assert rank["fsdp"] and rank["share"] == pytest.approx(0.5, abs=0.05)
        assert len(rank["gaps"]) == 3 and max(rank["gaps"]) < 1e-4
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    if "critic" in one:
        assert all(torch.equal(value, other["critic"][key]) for key, value in one["critic"].items())
        assert one["critic"]["head.weight"].abs().max() > 1e-4


def test_the_base_of_a_sharded_adapter_is_bit_equal(sharded, model_folder):
    from llm_envs.policies.inference import load_model

    start = load_model(model_folder, dtype=torch.float32).state_dict()
    for rank in sharded["engine_lora"]:
        base = {n.replace("base_model.model.", "").replace(".base_layer", ""): v for n, v in rank["weights"].items()}
        assert all(torch.equal(base[name], value) for name, value in start.items())
        assert any("lora_B" in name and value.abs().max() > 0 for name, value in base.items())
