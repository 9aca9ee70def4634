"""Several adapters on one real engine: each turn has one, equal to PEFT's, and unused ones are unloaded."""

import asyncio

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

import peft  # noqa: E402  (after the skip)
from trainings import save_biased  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from llm_envs.errors import InvalidConfigError, ModelError  # noqa: E402
from llm_envs.policies import VLLMEnginePolicy  # noqa: E402
from llm_envs.policies.inference import token_logps  # noqa: E402
from llm_envs.rollout import PastVersions  # noqa: E402
from llm_envs.trainers.engines.adapter_sync import adapter_tensors  # noqa: E402
from llm_envs.types import SamplingParams  # noqa: E402

PROMPT = np.arange(200, 226, dtype=np.int32)
LONG = SamplingParams(max_new_tokens=60, extra={"ignore_eos": True})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_biased(tmp_path_factory.mktemp("biased"), n_layers=2, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def policy(folder):
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    policy = VLLMEnginePolicy.from_pretrained(folder, dtype="float32", max_model_len=192, max_num_seqs=8, **lora)
    policy.codec.stop_token_ids = ()  # a minimum of tokens would leave the end out of the log-probabilities
    yield policy
    asyncio.run(policy.aclose())


def adapted(folder, seed, rank=4):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=rank, lora_alpha=8, target_modules="all-linear"))
    torch.manual_seed(seed)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    return model.eval()


def turns(*policies, params=LONG):
    async def run():
        asked = [policy.sample(PROMPT, params, seed=n, session=str(n)) for n, policy in enumerate(policies)]
        return await asyncio.gather(*asked)

    return asyncio.run(run())


def gap(model, turn):
    (scored,) = token_logps(model, [np.concatenate([PROMPT, turn.token_ids])])
    return np.abs(scored[-len(turn.logps) :] - turn.logps).max()


def loaded(policy):
    return policy.llm.llm_engine.list_loras()


def test_two_checkpoints_play_side_by_side_and_differ(policy, folder, tmp_path):
    one, other = adapted(folder, 1), adapted(folder, 2)
    one.save_pretrained(tmp_path / "one")
    other.save_pretrained(tmp_path / "other")
    first, second = policy.with_adapter(tmp_path / "one", 10), policy.with_adapter(tmp_path / "other", 20)
    with_one, with_other = turns(first, second)
    assert max(gap(one, with_one), gap(other, with_other)) < 1e-4
    assert min(gap(one, with_other), gap(other, with_one)) > 0.1
    assert [turn.weight_version for turn in (with_one, with_other)] == [10, 20]
    asyncio.run(first.aclose())
    asyncio.run(second.aclose())
    with pytest.raises(ModelError, match=r"on a CPU.*max_loras=2"):
        turns(policy)
    assert loaded(policy) == set()
    assert (tmp_path / "one").exists()


def test_a_running_turn_keeps_its_adapter_which_is_unloaded_afterwards(policy, folder):
    models = [adapted(folder, seed) for seed in (1, 2)]
    policy.update_adapter(adapter_tensors(models[0]), 1)
    before = policy.shelf.present

    async def run():
        running = asyncio.ensure_future(policy.sample(PROMPT, LONG, seed=0, session="a"))
        while policy.n_open_tokens < 3:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(policy.update_adapter, adapter_tensors(models[1]), 2)
        assert not running.done()
        assert before.path.exists()
        return await running, await policy.sample(PROMPT, LONG, seed=0, session="b")

    for turn, model, version in zip(asyncio.run(run()), models, (1, 2), strict=True):
        assert gap(model, turn) < 1e-4
        assert [(span.version, span.start) for span in turn.version_spans] == [(version, 0)]
    assert loaded(policy) == {policy.shelf.present.number}
    assert not before.path.exists()


def test_past_versions_stay_as_they_were(policy, folder):
    """A pool of one copy, of every second version: version 5 pushes out version 3."""
    pool, models = PastVersions(every=2, size=1), {version: adapted(folder, version) for version in (3, 4, 5)}
    played = []
    for version, model in models.items():
        policy.update_adapter(adapter_tensors(model), version)
        past = pool.choose(policy, seed=0)
        (turn,) = turns(past)
        played.append(turn.weight_version)
        assert gap(models[turn.weight_version], turn) < 1e-4
    assert played == [3, 3, 5]
    assert len(loaded(policy)) == 1


def test_what_vllm_refuses_leaves_the_present_adapter(policy, folder):
    model = adapted(folder, 1)
    policy.update_adapter(adapter_tensors(model), 6)
    with pytest.raises(ModelError, match="rank 16"):
        policy.update_adapter(adapter_tensors(adapted(folder, 2, rank=16)), 7)
    (turn,) = turns(policy)
    assert (gap(model, turn) < 1e-4, turn.weight_version) == (True, 6)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    policy.update_weights(base.named_parameters(), 8)
    with pytest.raises(InvalidConfigError, match="no adapter yet"):
        policy.with_adapter()
