"""The mask of kept tokens: what filters left at sampling is what is trained over, and every ratio is 1."""

import asyncio

import numpy as np
import pytest
import torch
from device import on_cpu, rounding, spy_on_batches
from trainings import DENSE, play_filtered, save_sharp

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import TransformersPolicy
from llm_envs.policies.chat_api import chat_request
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.policies.vllm.engine_format import to_vllm
from llm_envs.policies.vllm.formats import SGLangFormat, TurnRequest, VLLMFormat
from llm_envs.rollout import RowBuilder
from llm_envs.rollout.turn import join_pieces
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.forward.kept import KeptRows
from llm_envs.trainers.functional.algorithm import GRPO
from llm_envs.trainers.functional.logits import entropies_from_logits, keep_tokens, logps_from_logits
from llm_envs.trainers.loop import LoopSettings, create_training_state, training_iteration
from llm_envs.trainers.loop.batch import score_batch
from llm_envs.types import FinishReason, KeptTokens, Sampled, SamplingParams

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]

FILTERS = [{"top_p": 0.7}, {"top_k": 5, "temperature": 1.5}, {"min_p": 0.1}, {"top_p": 0.9, "top_k": 20, "min_p": 0.02}]


def kept(*lists):
    return KeptTokens(np.concatenate(lists).astype(np.int32), np.cumsum([len(ids) for ids in lists]))


def test_the_kept_tokens_by_hand():
    """Probabilities 1/2, 1/4, 1/8, 1/8. Of {0, 1} the first has 2/3; of {1, 2, 3} the second has 1/2."""
    logits_V = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    logits_BTV = logits_V.expand(1, 3, 4).clone().requires_grad_()
    mask = kept([0, 1], [1, 2, 3])
    places = torch.tensor([[0, 0], [0, 2]])  # the place between is the environment's
    out_BTV = keep_tokens(logits_BTV, places, torch.from_numpy(mask.ids).long(), torch.from_numpy(mask.stops))
    logps_BT = logps_from_logits(out_BTV, torch.tensor([[0, 0, 1]]))
    assert logps_BT[0].tolist() == pytest.approx(np.log([2 / 3, 1 / 2, 1 / 2]))
    assert entropies_from_logits(out_BTV)[0].tolist() == pytest.approx([0.6365142, 1.2130076, 1.0397208])
    logps_BT.sum().backward()
    expected = [[1 / 3, -1 / 3, 0, 0], [1 / 2, -1 / 4, -1 / 8, -1 / 8], [0, 1 / 2, -1 / 4, -1 / 4]]
    torch.testing.assert_close(logits_BTV.grad[0], torch.tensor(expected))  # what was dropped learns nothing
    assert torch.equal(keep_tokens(logits_BTV, places[:0], torch.zeros(0).long(), torch.zeros(0).long()), logits_BTV)


def test_pieces_and_rows_keep_what_belongs_to_their_tokens():
    one, two = kept([1], [2, 3]), kept([4, 5, 6])
    whole = KeptTokens.join([one, two])
    assert whole.ids.tolist() == [1, 2, 3, 4, 5, 6] and whole.stops.tolist() == [1, 3, 6]
    assert whole.first(2).ids.tolist() == [1, 2, 3] and len(whole.first(0).ids) == len(whole.first(0)) == 0
    ids, logps = np.array([1, 2], np.int32), np.zeros(2, np.float32)
    pieces = [Sampled(ids, logps, FinishReason.ABORT, 0, one), Sampled(ids[:1], logps[:1], FinishReason.STOP, 0, two)]
    assert join_pieces(pieces, (), str).kept.stops.tolist() == [1, 3, 6]
    row = RowBuilder()
    row.append_context(ids)
    row.append_sampled(ids, logps, one)
    row.append_context(ids)
    row.append_sampled(ids[:1], logps[:1], two)
    assert row.build().kept.stops.tolist() == [1, 3, 6]
    row.forget_turn()
    assert row.build().kept.stops.tolist() == [1, 3]
    row.append_sampled(ids[:1], logps[:1])
    assert row.build().kept is None  # one turn has none
    row.truncate(4)
    assert row.build().kept.stops.tolist() == [1, 3]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_policy_says_what_it_chose_from(folder, filters):
    policy = TransformersPolicy(load_model(folder), load_tokenizer(folder))
    params = SamplingParams(max_new_tokens=4, keep_mask=True, **filters)
    prompt = np.array([70, 71, 72], np.int32)

    async def sample(params):
        return await policy.sample(prompt, params, seed=1, session="s")

    sampled = asyncio.run(sample(params))
    ids = prompt.tolist()
    for place, token in enumerate(sampled.token_ids.tolist()):
        start = sampled.kept.stops[place - 1] if place else 0
        own = sampled.kept.ids[start : sampled.kept.stops[place]]
        with torch.no_grad():
            asked = torch.tensor([ids], device=policy.model.device)
            logits = on_cpu(policy.model(asked).logits[0, -1]) / params.temperature
        assert token in own
        assert logits[own].log_softmax(-1)[own.tolist().index(token)].item() == pytest.approx(
            float(sampled.logps[place]), abs=rounding(1e-5)
        )
        ids.append(token)
    assert asyncio.run(sample(SamplingParams(max_new_tokens=4, **filters))).kept is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_sharp(tmp_path_factory.mktemp("sharp"))


@pytest.mark.parametrize("filters", FILTERS[:2], ids=str)
def test_the_loop_trains_over_the_kept_tokens(folder, filters):
    params = SamplingParams(max_new_tokens=8, keep_mask=True, **filters)
    groups = play_filtered(folder, params)
    model = load_model(folder)
    paid = score_episodes([t for g in groups for t in g], RewardSettings(), {})
    batch = make_batch(paid, pad_id=0, sampling=params, device=model.device)
    logps_BT = score_batch(model, batch, micro_batch_size=3)
    torch.testing.assert_close(
        logps_BT[batch.mask_BT], batch.sampled_logps_BT[batch.mask_BT], rtol=0, atol=rounding(2e-5)
    )  # as sampled, filter included
    state = create_training_state(model, learning_rate=0.0)
    settings = LoopSettings(logps_tolerance=rounding(2e-5), micro_batch_size=3)
    _, metrics = training_iteration(state, groups, algorithm=GRPO, sampling=params, settings=settings)
    assert metrics["ratio"] == pytest.approx(1.0, abs=rounding(1e-5)) and metrics["grad_norm"] > 0
    without = play_filtered(folder, SamplingParams(max_new_tokens=8, **filters))
    with pytest.raises(InvalidConfigError, match="keep_mask=True"):
        training_iteration(state, without, sampling=params)


def trainer_of(kind, folder, config, **changes):
    if kind == "grpo":
        return EnvGRPOTrainer(folder, DENSE, config(**changes))
    names = ("output_dir", "per_device_train_batch_size", "max_completion_length", "max_turn_tokens", "bf16")
    own = {name: getattr(config(), name) for name in names}
    further = {"gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "num_train_seeds": 64}
    return EnvPPOTrainer(folder, DENSE, EnvPPOConfig(**own | further | {"logging_steps": 1} | changes))


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_the_trainers_train_over_the_kept_tokens(folder, config, kind):
    """Two shuffled steps a generation at a rate of 0, with a reference: ratios are 1 and the KL is 0."""
    settings = {"max_steps": 2, "learning_rate": 0.0, "steps_per_generation": 2, "per_device_train_batch_size": 8}
    settings |= {
        "top_p": 0.7,
        "temperature": 1.3,
        "keep_sampling_mask": True,
        "logps_tolerance": rounding(2e-5),
        "beta": 0.1,
    }
    trainer = trainer_of(kind, folder, config, **settings)
    output, fresh, score = spy_on_batches(trainer), [], trainer._get_per_token_logps_and_entropies

    def scored(*args, **kwargs):
        result = score(*args, **kwargs)
        if torch.is_grad_enabled():
            fresh.append(result[0].detach())
        return result

    trainer._get_per_token_logps_and_entropies = scored
    trainer.train()
    trainer.close()
    mask = (output[0]["completion_mask"] * output[0]["tool_mask"]).bool()
    old, sampled = output[0]["old_per_token_logps"][mask], output[0]["sampling_per_token_logps"][mask]
    torch.testing.assert_close(old, sampled, rtol=0, atol=rounding(2e-5))
    logged = [entry for entry in trainer.state.log_history if "kl" in entry]
    assert [entry["kl"] for entry in logged] == [0.0, 0.0] and logged[0]["entropy"] > 0
    assert len(fresh) == 2
    rows = trainer.generations["train"].kept
    again = KeptRows()
    again.load(rows.state())  # as a checkpoint inside a generation does
    assert again._rows.keys() == rows._rows.keys() and len(rows._rows) > 4
    for key, row in rows._rows.items():
        assert np.array_equal(again._rows[key].kept.ids, row.kept.ids)
        assert again._rows[key].spans == row.spans


def test_who_cannot_say_it_refuses(config):
    params = SamplingParams(keep_mask=True)
    turn = TurnRequest(np.array([1], np.int32), params, 4, 0, (2,))
    with pytest.raises(InvalidConfigError, match="keep_mask=True: vLLM"):
        to_vllm(params, 4, 0, ())
    for form in (VLLMFormat(), SGLangFormat()):
        with pytest.raises(InvalidConfigError, match="keep_mask=True"):
            form.request(turn, model="m", salt="")
    with pytest.raises(InvalidConfigError, match="keep_mask=True"):
        chat_request("m", [], [], params, max_tokens_name="max_tokens")
    with pytest.raises(ValueError, match=r"keep_mask.*repetition_penalty"):
        SamplingParams(keep_mask=True, repetition_penalty=1.1)
    with pytest.raises(InvalidConfigError, match=r"use_vllm=True.*keep_sampling_mask"):
        config(use_vllm=True, top_p=0.9, keep_sampling_mask=True)
    with pytest.raises(InvalidConfigError, match="keep_sampling_mask=True"):
        config(keep_sampling_mask=True)
