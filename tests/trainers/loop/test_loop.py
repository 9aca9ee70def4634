"""The functional loop: its step by hand and against TRL's, sums of its parts, learning, and going on after a kill."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import os
import pickle
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from device import rounding
from looped_run import start_run
from otlp_receiver import receiving
from preloaded import variables
from torch.optim.lr_scheduler import LambdaLR
from trainings import DENSE, spy_on_episodes
from transformers import get_scheduler

from llm_envs.errors import InvalidConfigError, ModelError, ReplayError, RolloutFailedError, StoreError, TimeLimitError
from llm_envs.policies import ConstantPolicy, TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer
from llm_envs.rollout import Collector, EnvChoice, PromptBuffer, PromptSource, PromptTask, RolloutLimits
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.tracking import tracing
from llm_envs.trainers.episodes.advantages import with_advantages
from llm_envs.trainers.episodes.batches import make_batch
from llm_envs.trainers.episodes.guard import sampling_gaps
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes
from llm_envs.trainers.forward.filtered import without_filters
from llm_envs.trainers.functional import algorithm as algorithms
from llm_envs.trainers.functional.algorithm import GRPO, create_algorithm_schedule
from llm_envs.trainers.functional.importance import importance_weights
from llm_envs.trainers.functional.kl import k1, mean_kl
from llm_envs.trainers.functional.references import create_ema_update, frozen_copy
from llm_envs.trainers.functional.turn_advantages import per_turn
from llm_envs.trainers.loop import (
    LoopSettings,
    best_checkpoint,
    create_checkpoint_fn,
    create_eval_fn,
    create_optimizer_step,
    create_training_state,
    hold_out,
    is_held_out,
    latest_checkpoint,
    load_training_state,
    save_training_state,
    share_weights,
    train,
    training_iteration,
    training_step,
)
from llm_envs.trainers.loop.batch import micro_batch_rows, minibatch_rows, score_batch
from llm_envs.trainers.loop.run import _means, _prepared, _with_max_length
from llm_envs.trainers.run.finite import MAX_SKIPPED_STEPS
from llm_envs.types import Row, SamplingParams, StopReason, Trajectory, TrajectoryGroup, Turn

pytestmark = [pytest.mark.trainings, pytest.mark.smoke]

ROOT = Path(__file__).parents[3]


def episode(ids, spans, rewards, *, group="g", member=0, logps=None, status="ok", rows=1):
    """Return an episode of given tokens: one turn a span; of several rows, each the same."""
    mask = np.zeros(len(ids), np.bool_)
    for start, stop in spans:
        mask[start:stop] = True
    values = np.where(mask, -1.0 if logps is None else logps, 0.0).astype(np.float32)
    row = Row(np.array(ids, np.int32), mask, values, tuple(spans))
    turns = tuple(
        Turn(reward, {"reward": reward}, row=number // len(spans), span=number % len(spans))
        for number, reward in enumerate(rewards)
    )
    return Trajectory(
        "test", {}, 0, group, member, (), (), (row,) * rows, turns, True, False, StopReason.TERMINATED, status, None
    )  # fmt: skip


class Bigram(torch.nn.Module):
    """A language model whose logits depend on the last token alone: a table that a hand can differentiate."""

    def __init__(self, n_vocabulary=5, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(n_vocabulary, n_vocabulary, generator=generator))

    def forward(self, input_ids, logits_to_keep=0, **_):
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.table[input_ids][:, -logits_to_keep:])


def sgd_state(model, lr=0.5, **settings):
    return create_training_state(model, optimizer=torch.optim.SGD(model.parameters(), lr=lr), **settings)


def as_batch(trajectories, algorithm=GRPO, **settings):
    paid = score_episodes(trajectories, RewardSettings(), {})
    return with_advantages(make_batch(paid, pad_id=0, **settings), algorithm, paid)[0]


FOUR = [
    episode([1, 2, 3, 4], [(2, 4)], [1.0], member=0),
    episode([1, 2, 4], [(2, 3)], [0.0], member=1),
    episode([2, 1, 3, 2, 0, 4], [(2, 3), (5, 6)], [0.25, 0.25], group="h", member=0),
    episode([2, 1, 0, 0], [(2, 4)], [0.0], group="h", member=1),
]
NO_CLIP = create_optimizer_step(None)


def test_a_step_is_what_a_hand_makes_of_it():
    """REINFORCE with a group mean: theta + lr/B sum_b A_b sum_t grad log pi, from the softmax's own derivative."""
    model = Bigram()
    table = model.table.detach().clone()
    expected = torch.zeros_like(table)
    for trajectory, advantage in zip(FOUR, [0.5, -0.5, 0.25, -0.25], strict=True):
        row = trajectory.rows[0]
        for place in np.flatnonzero(row.mask):
            before, token = row.ids[place - 1], row.ids[place]
            expected[before] -= advantage * torch.softmax(table[before], 0)
            expected[before, token] += advantage
    mean = dataclasses.replace(algorithms.DR_GRPO, loss_fn=algorithms.RLOO.loss_fn, constant=1.0)
    state, stats = training_step(
        sgd_state(model), as_batch(FOUR, mean), algorithm=mean, optimizer_step_fn=NO_CLIP, settings=LoopSettings()
    )
    torch.testing.assert_close(model.table.detach(), table + 0.5 * expected / 4, rtol=0, atol=1e-6)
    assert (state.step, stats["learning_rate"]) == (1, 0.5)
    assert stats["grad_norm"] == pytest.approx((expected / 4).norm().item(), rel=1e-5)


def test_a_batch_has_the_tokens_masks_rewards_and_groups():
    seen = []
    whitened = dataclasses.replace(GRPO, advantage_fn=lambda *given: seen.append(given) or GRPO.advantage_fn(*given))
    batch = as_batch(FOUR, whitened)
    assert batch.prompt_ids.tolist() == [[1, 2], [1, 2], [2, 1], [2, 1]]
    assert batch.completion_ids.tolist() == [[3, 4, 0, 0], [4, 0, 0, 0], [3, 2, 0, 4], [0, 0, 0, 0]]
    assert batch.completion_mask.sum(1).tolist() == [2, 1, 4, 2]
    assert batch.mask_BT.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 1], [1, 1, 0, 0]]
    assert batch.sampled_logps_BT[batch.mask_BT].tolist() == [-1.0] * 7
    assert batch.rewards_B.tolist() == [1.0, 0.0, 0.5, 0.0] and batch.group_ids_B.tolist() == [0, 0, 1, 1]
    ((rewards_B, group_ids_B, turn_rewards_BK),) = seen
    assert rewards_B.tolist() == batch.rewards_B.tolist() and group_ids_B.tolist() == batch.group_ids_B.tolist()
    assert turn_rewards_BK.nan_to_num(9).tolist() == [[1, 9], [0, 9], [0.25, 0.25], [0, 9]]
    part = batch.select(torch.tensor([1, 3]))
    assert part.completion_ids.shape == (2, 2) and part.n_tokens == 3


def test_turns_have_advantages_of_their_own():
    per_turns = dataclasses.replace(GRPO, advantage_fn=per_turn)
    batch = as_batch(FOUR, per_turns)
    assert batch.advantages.tolist()[:2] == [[1, 1, 0, 0], [-1, 0, 0, 0]]
    assert batch.advantages.tolist()[2] == [0.5, 0, 0, 0.25]  # the first turn's return is 0.5, the second's 0.25


def test_an_unscored_episode_is_no_zero_and_moves_nothing():
    failed = episode([1, 2, 3], [(2, 3)], [1.0], member=2, status="unscored")
    batch = as_batch([*FOUR, failed], algorithms.DR_GRPO)
    assert batch.advantages.tolist() == [0.5, -0.5, 0.25, -0.25, 0.0] and not batch.mask_BT[4].any()
    model = Bigram()
    before = model.table.detach().clone()
    state, stats = training_step(sgd_state(model), as_batch([failed]))
    assert stats == {"skipped": 1.0} and state.step == 0 and torch.equal(model.table.detach(), before)


@pytest.mark.parametrize("name", sorted(algorithms.ALGORITHMS))
def test_micro_batches_add_up(name):
    algorithm = dataclasses.replace(algorithms.ALGORITHMS[name], entropy_coef=0.01, kl_coef=0.1)
    paid = score_episodes(FOUR, RewardSettings(), {})
    tables = {}
    for size in (None, 1, 3):
        model = Bigram()
        batch = make_batch(paid, pad_id=0)
        own = {"policy_logps_BT": score_batch(model, batch), "ref_logps_BT": score_batch(Bigram(seed=1), batch)}
        batch, _ = with_advantages(
            dataclasses.replace(batch, **own), algorithm, paid, state_fn=lambda t: range(len(t.turns))
        )
        settings = LoopSettings(micro_batch_size=size, max_length=4)
        _, tables[size, "stats"] = training_step(
            sgd_state(model), batch, algorithm=algorithm, optimizer_step_fn=NO_CLIP, settings=settings
        )
        tables[size] = model.table.detach()
    moved = (tables[None] - Bigram().table.detach()).abs().max()
    assert moved > 1e-4
    for size in (1, 3):
        torch.testing.assert_close(tables[size], tables[None], rtol=0, atol=1e-6)
        assert tables[size, "stats"] == pytest.approx(tables[None, "stats"], abs=1e-6)


def test_prompts_weigh_the_same_however_the_batch_is_cut():
    """Each prompt has 3 and 4 tokens; REINFORCE with 1 for every token: the gradient of the mean of two means."""
    algorithm = dataclasses.replace(
        algorithms.RLOO,
        normalisation="prompt",
        constant=None,
        advantage_fn=lambda rewards_B, ids_B, turns_BK: torch.ones(4),
    )
    model = Bigram()
    table = model.table.detach().clone()
    expected = torch.zeros_like(table)
    for trajectory, n_tokens in zip(FOUR, [3, 3, 4, 4], strict=True):
        row = trajectory.rows[0]
        for place in np.flatnonzero(row.mask):
            before, token = row.ids[place - 1], row.ids[place]
            expected[before] -= torch.softmax(table[before], 0) / n_tokens / 2
            expected[before, token] += 1 / n_tokens / 2
    for size in (None, 1, 3):
        model = Bigram()
        training_step(
            sgd_state(model), as_batch(FOUR, algorithm), algorithm=algorithm, optimizer_step_fn=NO_CLIP,
            settings=LoopSettings(micro_batch_size=size),
        )  # fmt: skip
        torch.testing.assert_close(model.table.detach(), table + 0.5 * expected, rtol=0, atol=1e-6)


def test_an_episode_that_is_not_trained_on_counts_in_the_baseline():
    paid = score_episodes(FOUR, RewardSettings(), {})
    batch = make_batch(paid, pad_id=0, trajectory_filter=lambda trajectory: trajectory.member == 0)
    batch, _ = with_advantages(batch, algorithms.DR_GRPO, paid)
    assert batch.mask_BT.any(1).tolist() == [True, False, True, False]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.25, -0.25]
    state, settings = (
        sgd_state(Bigram()),
        LoopSettings(trajectory_filter=lambda trajectory: False, logps_tolerance=None),
    )
    groups = [TrajectoryGroup("g", "test", 0, tuple(FOUR[:2])), TrajectoryGroup("h", "test", 0, tuple(FOUR[2:]))]
    after, metrics = training_iteration(state, groups, settings=settings)
    assert metrics["skipped"] == 1.0 and metrics["reward/reward"] == 0.375
    assert (after.step, after.n_episodes, after.n_tokens) == (0, 0, 0)
    # Of two steps, one takes place; of its two episodes, one has a trained token.
    chosen = {"trajectory_filter": lambda t: (t.group_id, t.member) == ("g", 0)}
    settings = dataclasses.replace(settings, n_minibatches=2, **chosen)
    after, _ = training_iteration(state, groups, settings=settings)
    assert (after.step, after.n_episodes, after.n_tokens) == (1, 1, 2)


def test_an_episode_that_is_not_trained_on_forms_no_pair():
    """As in `EnvGRPOTrainer`: with the best row masked, a pair with it would only push the other row down."""
    three = [episode([1, 2, 3 + n % 2], [(2, 3)], [reward], member=n) for n, reward in enumerate((1.0, 0.5, 0.0))]
    batch = as_batch(three, algorithms.PAIRWISE, trajectory_filter=lambda trajectory: trajectory.member > 0)
    assert algorithms.PAIRWISE.pair_selector(batch.rewards_B, batch.group_ids_B).tolist() == [[1, 2]]


def test_pairs_stay_together_and_minibatches_are_whole_groups():
    batch = as_batch(FOUR)
    assert [part.tolist() for part in micro_batch_rows(batch, 3)] == [[0, 1, 2], [3]]
    assert [part.tolist() for part in micro_batch_rows(batch, 3, whole_groups=True)] == [[0, 1], [2, 3]]
    parts = minibatch_rows(batch, 2, seed=3)
    assert sorted(part.tolist() for part in parts) == [[0, 1], [2, 3]]
    orders = {tuple(minibatch_rows(batch, 2, seed=seed)[0].tolist()) for seed in range(8)}
    assert orders == {(0, 1), (2, 3)}  # the seed decides
    other_ids = dataclasses.replace(batch, group_ids_B=torch.tensor([7, 7, -3, -3]))
    assert sorted(part.tolist() for part in minibatch_rows(other_ids, 2, seed=3)) == [[0, 1], [2, 3]]
    with pytest.raises(InvalidConfigError, match="n_minibatches=3 of 2 groups"):
        minibatch_rows(batch, 3, seed=0)


def test_rows_of_a_fork_share_the_credit_of_their_episode():
    fork = episode([1, 2, 3], [(2, 3)], [0.0, 1.0], rows=2)
    other = episode([1, 2, 4], [(2, 3)], [0.0], member=1)
    token = dataclasses.replace(algorithms.DR_GRPO, normalisation="token")
    batch = as_batch([fork, other], token)
    assert batch.advantages.tolist() == [0.5, -0.5, 0.5] and batch.owners_B.tolist() == [0, 1, 0]
    assert batch.rewards_B.isnan().tolist() == [False, False, True] and batch.n_episodes == 2
    with pytest.raises(InvalidConfigError, match="'grpo'"):
        as_batch([fork, other], GRPO)


def test_an_episode_that_cannot_be_replayed_shares_no_state():
    """A warning names the error. The advantages equal those for an episode whose keys no other has."""
    token = dataclasses.replace(algorithms.ALGORITHMS["gigpo"], normalisation="token")

    def keys(trajectory, lost=None):
        if trajectory is FOUR[0] and lost is not None:
            return lost(trajectory)
        return ["s", *range(1, len(trajectory.turns))]

    def fails(trajectory):
        raise ReplayError("the tool ran out of time", part="tool results", turn=0, found="", stored="5")

    paid = score_episodes(FOUR, RewardSettings(), {})
    alone, shared = (
        with_advantages(make_batch(paid, pad_id=0), token, paid, state_fn=partial(keys, lost=lost))[0].advantages
        for lost in (lambda trajectory: ["its own"], None)
    )
    assert not torch.equal(alone, shared)
    with pytest.warns(UserWarning, match=r"1 of 4 .*out of time"):
        batch, _ = with_advantages(make_batch(paid, pad_id=0), token, paid, state_fn=partial(keys, lost=fails))
    assert torch.equal(batch.advantages, alone)
    with pytest.raises(ReplayError, match="out of time"):
        with_advantages(make_batch(paid, pad_id=0), token, paid, state_fn=fails)


def test_the_kl_in_the_reward_is_taken_from_each_turn():
    algorithm = dataclasses.replace(algorithms.DR_GRPO, kl_coef=0.5, kl_in="reward", kl_fn=k1)
    paid = score_episodes(FOUR, RewardSettings(), {})
    batch = make_batch(paid, pad_id=0)
    reference = torch.where(batch.mask_BT, -3.0, 0.0)  # each token has a KL of 2, and costs 1
    own = {"policy_logps_BT": batch.sampled_logps_BT, "ref_logps_BT": reference}
    batch, scored = with_advantages(dataclasses.replace(batch, **own), algorithm, paid)
    assert mean_kl(scored.kl_BT, batch.mask_BT) == 2.0
    # Rewards 1, 0, 0.5, 0 less 2, 1, 2, 2 tokens: -1, -1, -1.5, -2.
    assert batch.advantages.tolist() == [0.0, 0.0, 0.25, -0.25]
    with pytest.raises(InvalidConfigError, match="policy_logps_BT and ref_logps_BT"):
        with_advantages(make_batch(paid, pad_id=0), algorithm, paid)


def test_the_kl_in_the_advantages_is_taken_from_each_token_alone():
    """Advantages 0.5, -0.5, 0.25, -0.25 less half of each token's KL; beside a mask of turns, and in a fork's row."""
    algorithm = dataclasses.replace(algorithms.DR_GRPO, kl_coef=0.5, kl_in="advantage")
    paid = score_episodes(FOUR, RewardSettings(), {})
    batch = make_batch(paid, pad_id=0)
    steps = torch.arange(batch.mask_BT.shape[1]).float()
    own = {"policy_logps_BT": batch.sampled_logps_BT, "ref_logps_BT": batch.sampled_logps_BT - steps}
    batch, scored = with_advantages(dataclasses.replace(batch, **own), algorithm, paid)
    expected = [[0.5, 0.0], [-0.5], [0.25, -1.25], [-0.25, -0.75]]  # the third's turns are its first and fourth token
    assert [row[mask].tolist() for row, mask in zip(batch.advantages, batch.mask_BT, strict=True)] == expected
    assert mean_kl(scored.kl_BT, batch.mask_BT) == pytest.approx((1 + 3 + 1) / 7)
    alone, _ = with_advantages(batch, algorithms.DISTILL, paid, kl_coef=2.0)
    expected = [[0.0, -2.0], [0.0], [0.0, -6.0], [0.0, -2.0]]
    assert [row[mask].tolist() for row, mask in zip(alone.advantages, batch.mask_BT, strict=True)] == expected
    fork, other = episode([1, 2, 3], [(2, 3)], [0.0, 1.0], rows=2), episode([1, 2, 4], [(2, 3)], [0.0], member=1)
    paid = score_episodes([fork, other], RewardSettings(), {})
    batch = make_batch(paid, pad_id=0)
    own = {"policy_logps_BT": batch.sampled_logps_BT, "ref_logps_BT": batch.sampled_logps_BT - 1.0}
    token = dataclasses.replace(algorithm, normalisation="token")
    batch, _ = with_advantages(dataclasses.replace(batch, **own), token, paid)
    assert batch.advantages[:, 0].tolist() == [0.0, -1.0, 0.0]


def test_epochs_minibatches_and_reference():
    groups = [TrajectoryGroup("g", "test", 0, tuple(FOUR[:2])), TrajectoryGroup("h", "test", 0, tuple(FOUR[2:]))]
    seen = []

    def update(reference, policy, *, step, kl):
        seen.append(step)
        return create_ema_update(0.5)(reference, policy, step=step, kl=kl)

    state = sgd_state(Bigram(), ref_model_fn=frozen_copy)
    start = state.model.table.detach().clone()
    state, metrics = training_iteration(
        state,
        groups,
        algorithm=dataclasses.replace(GRPO, kl_coef=0.1),
        reference_update_fn=update,
        iteration_hook=lambda state, groups, metrics: {"mine": float(state.iteration)},
        settings=LoopSettings(n_epochs=2, n_minibatches=2, logps_tolerance=None),
    )
    assert (state.step, state.iteration, state.n_episodes, state.n_tokens, seen) == (4, 1, 4, 7, [1, 2, 3, 4])
    assert metrics["reward/reward"] == 0.375 and metrics["scored"] == 1.0 and metrics["mine"] == 1.0
    assert {"loss", "kl", "ratio", "grad_norm", "sampling_gap"} <= metrics.keys()
    middle = state.reference.table - start
    assert 0 < middle.abs().max() < (state.model.table - start).abs().max()  # on its way to the policy
    with pytest.raises(ModelError, match=r"logps_tolerance=0\.1"):  # those logps were made up
        training_iteration(sgd_state(Bigram()), groups)


def sharp(folder):
    """Return the tiny model far from the uniform distribution, so that filters and temperatures have an effect."""
    model = load_model(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


FILTERS = [{"top_p": 0.7}, {"top_k": 5, "temperature": 1.5}, {"min_p": 0.1}, {"repetition_penalty": 1.5}]


@pytest.mark.parametrize("filters", FILTERS)
def test_the_guard_recomputes_filtered_sampling(tiny_folder, filters):
    model = sharp(tiny_folder)
    policy, sampling = (
        TransformersPolicy(model, load_tokenizer(tiny_folder)),
        SamplingParams(max_new_tokens=8, **filters),
    )
    with Collector(DENSE, policy, codec=policy.codec, sampling=sampling, progress=False) as collector:
        groups = collector.collect(3, 2)
    paid = score_episodes([t for g in groups for t in g], RewardSettings(), {})
    batch = make_batch(paid, pad_id=0, sampling=sampling, device=model.device)
    unfiltered = without_filters(model, batch)
    assert sampling_gaps(score_batch(model, unfiltered), unfiltered).mean() < rounding(1e-5)
    assert sampling_gaps(score_batch(model, batch), batch).mean() > 0.01  # the filters did something
    with pytest.raises(ModelError, match="logps_tolerance"):
        training_iteration(
            create_training_state(sharp_other(tiny_folder)), groups, sampling=sampling, settings=LoopSettings()
        )


def test_a_resumed_run_checks_its_sampler_too(tiny_folder, collect):
    """Its first batch is not that of step 0. The weights never reach the policy."""
    state = dataclasses.replace(create_training_state(sharp_other(tiny_folder)), step=3, iteration=3)
    with pytest.raises(ModelError, match=r"logps_tolerance=0\.1"):
        train(state, collect(), n_iterations=4, weight_sync_fn=lambda policy, state: None)


def sharp_other(folder):
    """Return a model of other weights."""
    model = sharp(folder)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    return model


def test_the_guard_sees_groups_beyond_the_first_minibatch():
    def row(logps, group):
        return episode([1, 2, 3, 4], [(2, 4)], [1.0], group=group, logps=logps)

    table = Bigram().table.detach().log_softmax(-1)
    right = [0.0, 0.0, float(table[2, 3]), float(table[3, 4])]
    wrong = [0.0, 0.0, right[2] - 1.0, right[3] - 1.0]  # half of all tokens are one nat off: 0.5 on average
    groups = [TrajectoryGroup(g, "test", 0, (row(logps, g),)) for g, logps in (("a", right), ("b", wrong))]
    state, settings = sgd_state(Bigram()), LoopSettings(n_minibatches=2)
    with pytest.raises(ModelError, match=r"by 0\.5 nats"):
        training_iteration(state, groups, settings=settings)
    assert state.step == 0
    assert torch.equal(state.model.table, Bigram().table)
    training_iteration(sgd_state(Bigram()), [groups[0]])


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [  # ratios e^1, e^-1 | e^2, 1: of a sequence their products, 1 and e^2
        (importance_weights, [[math.e, 1 / math.e], [3.0, 1.0]]),
        (partial(importance_weights, mode="token_mask", minimum=0.5), [[math.e, 0.0], [0.0, 1.0]]),
        (partial(importance_weights, mode="sequence_truncate", maximum=2.0), [[1.0], [2.0]]),
        (None, None),
    ],
)
def test_the_importance_correction_is_a_function(weigh, expected):
    model = Bigram()
    table = model.table.detach().log_softmax(-1)
    own = [float(table[2, 3]), float(table[3, 4])]
    gaps = [(1.0, -1.0), (2.0, 0.0)]
    played = [
        episode([1, 2, 3, 4], [(2, 4)], [float(member)], member=member, logps=[0, 0, own[0] - a, own[1] - b])
        for member, (a, b) in enumerate(gaps)
    ]
    settings = LoopSettings(old_logps="recomputed", importance_fn=weigh, logps_tolerance=None)
    paid = score_episodes(played, RewardSettings(), {})
    batch, _ = _prepared(sgd_state(model), make_batch(paid, pad_id=0), paid, GRPO, settings)
    if expected is None:
        assert batch.weights is None
    else:
        torch.testing.assert_close(batch.weights, torch.tensor(expected), rtol=1e-5, atol=0)
    part = batch.select(torch.tensor([1, 0]))
    assert part.weights is None or torch.equal(part.weights, batch.weights.flip(0))


def test_an_importance_correction_without_effect_or_sense_is_refused():
    with pytest.raises(InvalidConfigError, match=r"importance_fn=None has no effect with old_logps='sampled'"):
        LoopSettings(importance_fn=None)
    with pytest.raises(InvalidConfigError, match=r"importance_fn=.*mode is 'truncate'; it must be"):
        LoopSettings(old_logps="recomputed", importance_fn=partial(importance_weights, mode="truncate"))


def test_the_learning_rate_follows_a_scheduler_of_transformers():
    floor = {"min_lr_rate": 0.1}
    schedule = partial(get_scheduler, "cosine_with_min_lr", num_warmup_steps=2, num_training_steps=10)
    state = sgd_state(Bigram(), lr=2.0, schedule=partial(schedule, scheduler_specific_kwargs=floor))
    rates = []
    for _ in range(10):
        state, stats = training_step(state, as_batch(FOUR), settings=LoopSettings())
        rates.append(stats["learning_rate"])
    assert [rates[step] for step in (0, 1, 2, 6)] == pytest.approx([0.0, 1.0, 2.0, 1.1])
    assert state.scheduler.get_last_lr() == pytest.approx([0.2])


def test_clipping_scales_the_whole_gradient_and_nan_changes_nothing():
    state = sgd_state(Bigram(), lr=1.0, schedule=partial(LambdaLR, lr_lambda=lambda step: 0.5**step))
    before = state.model.table.detach().clone()
    state.model.table.grad = torch.full((5, 5), 2.0)  # norm 10
    stats = create_optimizer_step(1.0)(state)
    assert stats == {"grad_norm": pytest.approx(10.0), "learning_rate": 1.0, "skipped": 0.0}
    torch.testing.assert_close(before - state.model.table.detach(), torch.full((5, 5), 0.2))
    before = state.model.table.detach().clone()
    state.model.table.grad = torch.full((5, 5), torch.nan)
    assert create_optimizer_step(1.0)(state)["skipped"] == 1.0
    assert torch.equal(before, state.model.table.detach()) and state.scheduler.get_last_lr() == [0.5]


def test_a_step_with_a_gradient_that_is_not_finite_does_not_count():
    model = Bigram()
    model.table.data[3, 4] = torch.nan
    before = model.table.detach().clone()
    state, stats = training_step(sgd_state(model), as_batch(FOUR), settings=LoopSettings())
    assert (stats["skipped"], state.step) == (1.0, 0)
    assert torch.equal(before.nan_to_num(9), model.table.detach().nan_to_num(9))


def test_bad_steps_in_a_row_end_the_run_and_a_good_one_begins_the_count_anew():
    good, bad = Bigram(), Bigram()
    bad.table.data[3, 4] = torch.nan
    state, n = sgd_state(bad), MAX_SKIPPED_STEPS
    for _ in range(n - 1):
        state, _ = training_step(state, as_batch(FOUR))
    assert (state.n_skipped, state.step) == (n - 1, 0)
    assert training_step(dataclasses.replace(sgd_state(good), n_skipped=n - 1), as_batch(FOUR))[0].n_skipped == 0
    with pytest.raises(ModelError, match=f"step 1 .*nan .{n} "):
        training_step(state, as_batch(FOUR))
    for _ in range(n):  # a step function may skip for its own reasons
        state, _ = training_step(state, as_batch(FOUR), optimizer_step_fn=lambda state: {"skipped": 1.0})
    assert state.n_skipped == n - 1


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = Bigram()
    model.table.data[3, 4] = torch.inf
    with pytest.raises(ModelError, match=r"step 0, 1 of 1 .*table"):
        save_training_state(tmp_path / "saved", sgd_state(model))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["reward", "trajectory_filter", "pair_selector", "advantage_fn"])
def test_a_function_that_never_ends_ends_the_run(name):
    def never_ends(*given):
        time.sleep(600.0)

    keeps = never_ends if name == "trajectory_filter" else None
    settings = LoopSettings(max_function_s=0.2, trajectory_filter=keeps, logps_tolerance=None)
    rewards = RewardSettings(reward_fns={"mine": never_ends}) if name == "reward" else None
    algorithm = GRPO
    if name == "pair_selector":
        algorithm = dataclasses.replace(algorithms.PAIRWISE, pair_selector=never_ends)
    if name == "advantage_fn":
        algorithm = dataclasses.replace(GRPO, advantage_fn=never_ends)
    with pytest.raises(TimeLimitError, match="'mine'" if name == "reward" else name):
        training_iteration(
            sgd_state(Bigram()),
            [TrajectoryGroup("g", "x", 0, tuple(FOUR))],
            algorithm=algorithm,
            rewards=rewards,
            settings=settings,
        )


# With a model and a collector.


@pytest.fixture
def policy(tiny_folder):
    return TransformersPolicy(load_model(tiny_folder), load_tokenizer(tiny_folder))


@pytest.fixture
def collect(policy):
    """Return a factory of collectors of the tiny model."""
    made = []

    def make(envs=DENSE, player=policy, **changes):
        settings = {"codec": policy.codec, "sampling": SamplingParams(max_new_tokens=8), "progress": False}
        made.append(Collector(envs, player, **{**settings, **changes}))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def test_a_filter_that_never_ends_ends_the_run_and_a_logger_that_fails_does_not(policy, collect, caplog):
    def never_ends(group):
        time.sleep(600.0)

    def down(step, metrics):
        raise ConnectionError("the tracker is down")

    state, settings = create_training_state(copy.deepcopy(policy.model)), LoopSettings(max_function_s=0.2)
    play = {"n_iterations": 1, "n_groups": 1, "group_size": 2, "weight_sync_fn": lambda *_: None}
    collector = collect(group_filter=never_ends)
    with pytest.raises(TimeLimitError, match=r"group_filter.*max_function_s=0\.2 s"):
        train(state, collector, settings=settings, **play)
    assert collector.group_filter is never_ends
    with pytest.raises(TimeLimitError, match=r"context_fn.*max_function_s=0\.2 s for \d messages"):
        train(state, collect(context_fn=never_ends), settings=settings, **play)
    assert train(state, collect(), logger=down, **play).iteration == 1
    assert "the logger failed, and the run continues without it: ConnectionError" in caplog.text


def test_its_steps_are_those_of_trls_trainer(tiny_folder, config, tmp_path):
    """The same episodes give the parameters of EnvGRPOTrainer (and so TRL's) to 1e-6, after three steps of SGD."""
    from llm_envs.trainers import EnvGRPOTrainer

    args = config(
        max_steps=3, per_device_train_batch_size=8, gradient_accumulation_steps=2, optim="sgd", learning_rate=0.5
    )  # fmt: skip
    model = load_model(tiny_folder)
    trainer = EnvGRPOTrainer(model, DENSE, args, processing_class=load_tokenizer(tiny_folder))
    generations = spy_on_episodes(trainer)
    trainer.train()
    trainer.close()
    ours = load_model(tiny_folder)
    before = copy.deepcopy(ours.state_dict())
    state = sgd_state(ours)
    dapo = dataclasses.replace(GRPO, normalisation="token")  # TRL's default loss_type
    for trajectories in generations:
        ids = dict.fromkeys(t.group_id for t in trajectories)
        groups = [
            TrajectoryGroup(i, "dense", 0, tuple(t for t in trajectories if t.group_id == i)) for i in ids
        ]  # fmt: skip
        settings = LoopSettings(micro_batch_size=8)
        state, _ = training_iteration(state, groups, algorithm=dapo, settings=settings)
    assert max((ours.state_dict()[name] - value).abs().max().item() for name, value in before.items()) > 1e-3
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=rounding(1e-6))


def test_two_steps_of_a_generation_are_those_of_the_trainer(tiny_folder, config, monkeypatch):
    """Tokens, pairs and entropies are counted over the generation: parameters are equal to 1e-6 after four steps."""
    from llm_envs.trainers import EnvGRPOTrainer
    from llm_envs.trainers.loop import run

    pairs = {"pair_selector": algorithms.best_worst_pairs, "pair_loss_fn": algorithms.dpo_loss, "pair_average": True}
    algorithm = dataclasses.replace(GRPO, normalisation="token", entropy_coef=0.5, **pairs)
    args = config(
        max_steps=4, per_device_train_batch_size=8, gradient_accumulation_steps=1, steps_per_generation=2, optim="sgd",
        learning_rate=0.5,
    )  # fmt: skip
    folder = {"processing_class": load_tokenizer(tiny_folder)}
    trainer = EnvGRPOTrainer(load_model(tiny_folder), DENSE, args, algorithm=algorithm, **folder)
    compute_loss, generations, steps = trainer._compute_loss, spy_on_episodes(trainer), []

    def watched_loss(model, inputs):
        steps.append(inputs["row"].sort().values.cpu())
        return compute_loss(model, inputs)

    trainer._compute_loss = watched_loss
    trainer.train()
    trainer.close()
    state = sgd_state(load_model(tiny_folder))
    before = copy.deepcopy(state.model.state_dict())
    for number, trajectories in enumerate(generations):
        rows = steps[2 * number : 2 * number + 2]
        n_tokens = {sum(int(trajectories[row].rows[0].mask.sum()) for row in part) for part in rows}
        assert len(n_tokens) == 2  # equal steps would not tell the two ways to count apart
        monkeypatch.setattr(run, "minibatch_rows", lambda batch, n, *, seed, rows=rows: rows)
        ids = dict.fromkeys(t.group_id for t in trajectories)
        groups = [TrajectoryGroup(i, "dense", 0, tuple(t for t in trajectories if t.group_id == i)) for i in ids]
        state, _ = training_iteration(state, groups, algorithm=algorithm, settings=LoopSettings(n_minibatches=2))
    assert state.step == 4
    assert max((state.model.state_dict()[name] - value).abs().max().item() for name, value in before.items()) > 1e-3
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(state.model.state_dict()[name], value, rtol=0, atol=rounding(1e-6))


def test_it_learns(policy, collect):
    """The share of b in two replies rises, with a filter and a schedule, on seeds fixed in advance."""
    logged = []
    n = 18
    state = train(
        create_training_state(policy.model, learning_rate=5e-3),
        collect(
            "test/Say-v0",
            limits=RolloutLimits(max_turn_tokens=8, max_completion_tokens=64),
            group_filter=create_spread_filter(),
        ),
        n_iterations=n,
        n_groups=4,
        group_size=16,
        algorithm=create_algorithm_schedule({0: GRPO, 5: algorithms.DAPO}),
        logger=lambda step, metrics: logged.append((step, metrics)),
    )
    rewards = [metrics["env/reward"] for _, metrics in logged]
    assert [step for step, _ in logged] == list(range(1, n + 1)) and state.step == n
    assert sum(rewards[:3]) / 3 < 0.01 and sum(rewards[-3:]) / 3 > 0.1, rewards
    assert policy.weight_version == n


def test_an_iteration_is_a_step_of_the_trace_with_its_episodes(policy, collect, monkeypatch):
    with receiving(monkeypatch) as receiver, tracing():
        limits = RolloutLimits(max_turn_tokens=8, max_completion_tokens=64)
        play = {"n_iterations": 2, "n_groups": 2, "group_size": 2}
        train(create_training_state(policy.model), collect("test/Say-v0", limits=limits), **play)
    steps = [span.span_id for span in receiver.spans if span.name == "training_step"]
    episodes = [span.parent_span_id for span in receiver.spans if span.name == "invoke_agent test/Say-v0"]
    assert len(steps) == 2 and sorted(episodes) == sorted(4 * steps)


def test_gradient_checkpointing_and_dropout(tiny_folder):
    """Activations computed again give the same gradients; dropout is off unless it is asked for."""
    grads = {}
    for again in (False, True):
        model = load_model(tiny_folder, attention_dropout=0.5)
        assert model.model.layers[0].self_attn.attention_dropout == 0.5
        state = sgd_state(model, gradient_checkpointing=again)
        newer = hasattr(model, "is_activation_checkpointing")  # releases of transformers differ in the name
        assert (model.is_activation_checkpointing if newer else model.is_gradient_checkpointing) is again
        take = create_optimizer_step(None)
        training_step(state, as_batch(FOUR, device=model.device), optimizer_step_fn=take)
        grads[again] = copy.deepcopy(model.state_dict())
    for name, value in grads[False].items():
        torch.testing.assert_close(grads[True][name], value, rtol=0, atol=1e-6)
    with pytest.raises(InvalidConfigError, match="Bigram"):
        create_training_state(Bigram(), gradient_checkpointing=True)


def test_ten_iterations_are_a_kill_and_the_rest(tiny_folder, tmp_path):
    """Weights, reference, best checkpoint and everything that was logged are those of the run that was not killed."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = start_run(tiny_folder, str(whole))
    program = ROOT / "tests" / "support" / "looped_run.py"
    done = subprocess.run(
        ["python", program, tiny_folder, parts, "8"], capture_output=True, timeout=300, check=False, env=variables()
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    newest = latest_checkpoint(parts)
    assert newest is not None and newest.name == "iteration-000005"
    first = load_training_state(newest, create_again(tiny_folder)).model.state_dict()
    resumed = start_run(tiny_folder, str(parts), resume=str(newest))
    for part in ("model", "reference"):
        for name, value in getattr(straight, part).state_dict().items():
            torch.testing.assert_close(getattr(resumed, part).state_dict()[name], value, rtol=0, atol=1e-6)
    moved = [(straight.model.state_dict()[name] - value).abs().max().item() for name, value in first.items()]
    assert max(moved) > 1e-3
    assert resumed.source_state["source"] == straight.source_state["source"]
    # The loss and the KL are sums of terms near 1 that cancel, in float32: their error is of the terms' size.
    assert resumed.source_state["reference_update"] == pytest.approx(
        straight.source_state["reference_update"], abs=1e-7
    )
    assert (resumed.best, resumed.step, resumed.n_tokens) == (straight.best, 20, straight.n_tokens)
    assert best_checkpoint(parts).name == best_checkpoint(whole).name == f"iteration-{straight.best[1]:06d}"
    lines = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (whole, parts)]
    again = lines[1][7:]  # after seven lines of the killed run, the sixth iteration again
    assert [line["step"] for line in again] == [6, 7, 8, 9, 10]
    for expected, line in zip(lines[0][5:], again, strict=True):
        same = {name: value for name, value in expected.items() if not name.startswith("time/")}
        assert {name: line[name] for name in same} == pytest.approx(same, abs=1e-6)


def create_again(folder):
    schedule = partial(get_scheduler, "cosine", num_warmup_steps=3, num_training_steps=20)
    return create_training_state(load_model(folder), schedule=schedule, ref_model_fn=frozen_copy, seed=3)


def test_a_checkpoint_that_does_not_fit_is_refused(tiny_folder, tmp_path):
    state = create_again(tiny_folder)
    save = create_checkpoint_fn(tmp_path, keep=1)
    save(dataclasses.replace(state, iteration=1, best=(0.5, 1)), is_best=True)
    for iteration in (2, 3):
        save(dataclasses.replace(state, iteration=iteration, best=(0.5, 1)), is_best=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000001", "iteration-000003"]
    newest = latest_checkpoint(tmp_path)
    model, constant = load_model(tiny_folder), partial(get_scheduler, "constant")
    for settings, message in (
        ({}, "the saved state has a scheduler, the given one has none"),
        ({"schedule": constant, "seed": 3}, "the saved state has a reference"),
        ({"schedule": constant, "ref_model_fn": frozen_copy}, "seed 3, the given one 0"),
    ):
        with pytest.raises(StoreError, match=message):
            load_training_state(newest, create_training_state(model, **settings))
    with pytest.raises(StoreError, match="nothing"):
        load_training_state(tmp_path / "nothing", state)
    assert load_training_state(newest, state).best == (0.5, 1)
    values = json.loads((newest / "state.json").read_text())
    (newest / "state.json").write_text(json.dumps(values | {"statistics": {}}))
    with pytest.raises(StoreError, match="another version: statistics"):
        load_training_state(newest, state)


class Intruder:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_loading_a_checkpoint_runs_no_code_of_it(tiny_folder, tmp_path):
    state = create_again(tiny_folder)
    left = tmp_path / "left"
    for name, is_refused in (("optimizer.bin", True), ("random_states_0.pkl", False)):
        folder = save_training_state(tmp_path / "run", state)
        torch.save({"step": Intruder(str(left))}, folder / name)
        with pytest.raises(StoreError, match="does not fit") if is_refused else contextlib.nullcontext():
            load_training_state(folder, state)
        assert not left.exists()


KILLED_WHILE_WRITING = """
import os, signal, sys
from test_loop import create_again
from llm_envs.trainers.loop import save_training_state

class Killer:
    def save_pretrained(self, folder):
        os.kill(os.getpid(), signal.SIGKILL)

save_training_state(sys.argv[2], create_again(sys.argv[1]), tokenizer=Killer())
"""


@pytest.mark.parametrize("place", ["iteration-000001", "iteration-000002"])
def test_a_checkpoint_that_was_killed_in_the_writing_is_never_found(tiny_folder, tmp_path, place):
    """The new one is not there, an older one of the same name is still whole, and the next run can write it."""
    state = dataclasses.replace(create_again(tiny_folder), iteration=1)
    save = create_checkpoint_fn(tmp_path)
    save(state, is_best=False)
    paths = [str(ROOT / "tests" / "support"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        ["python", "-c", KILLED_WHILE_WRITING, tiny_folder, str(tmp_path / place)],
        capture_output=True,
        timeout=300,
        check=False,
        env=variables() | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert (tmp_path / f".{place}.partial" / "state.json").exists()
    newest = latest_checkpoint(tmp_path)
    assert newest is not None and newest.name == "iteration-000001"
    assert load_training_state(newest, create_again(tiny_folder)).iteration == 1
    for iteration in (1, 2):
        save(dataclasses.replace(state, iteration=iteration), is_best=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-000001", "iteration-000002"]


def test_a_checkpoint_replaces_links_of_its_name(tiny_folder, tmp_path):
    state, run, folder = create_again(tiny_folder), tmp_path / "run", tmp_path / "folder"
    run.mkdir()
    folder.mkdir()
    (folder / "state.json").write_text("important")
    for name in ("iteration-000001", ".iteration-000001.partial"):
        (run / name).symlink_to(folder)
    create_checkpoint_fn(run)(dataclasses.replace(state, iteration=1), is_best=False)
    assert [path.name for path in run.iterdir()] == ["iteration-000001"]
    assert load_training_state(run / "iteration-000001", state).iteration == 1
    assert [path.read_text() for path in folder.iterdir()] == ["important"]


def test_random_numbers_go_on(tiny_folder, tmp_path):
    import random

    state = create_again(tiny_folder)
    create_checkpoint_fn(tmp_path)(state, is_best=False)
    drawn = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    load_training_state(latest_checkpoint(tmp_path), state)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == drawn


def test_prompts_may_be_given(policy, collect, tmp_path):
    rows = [{"prompt": f"Say {word}"} for word in ("a", "b", "c", "d", "e")]
    task = PromptTask(rows, lambda row, reply: float(len(reply.content) % 3), disjoint_splits=False)
    asked = []
    buffer = PromptBuffer(rows, seed=1)
    collector = collect(task, on_trajectory=lambda t: asked.append(t.messages[0].content))
    state = create_training_state(policy.model)
    state = train(state, collector, n_iterations=2, n_groups=3, group_size=2, prompt_loader=buffer)
    expected = [row["prompt"] for row in PromptBuffer(rows, seed=1).get_prompts(6)]
    assert sorted(asked) == sorted(expected * 2) and state.source_state["prompts"]["position"] == 6
    again = PromptBuffer(rows, seed=1)
    state = train(state, collector, n_iterations=3, n_groups=3, group_size=2, prompt_loader=again)
    assert again.position == 9  # it went on at 6
    with pytest.raises(InvalidConfigError, match=r"prompts, source.*source"):
        train(state, collector, n_iterations=4, prompt_loader=lambda n: rows[:n])


def test_held_out_problems_are_never_trained_on(collect):
    played, kept = hold_out("llm/Arithmetic-v0", share=0.3)
    parts = []
    for envs in (played, kept):
        with Collector(envs, ConstantPolicy("x"), progress=False) as collector:
            episodes = [t for group in collector.collect(150) for t in group]
        assert {t.env_kwargs["split"] for t in episodes} == {"train"}
        assert {t.status for t in episodes} == {"ok"}
        parts.append({t.messages[1].content for t in episodes})
    assert len(parts[0]) > 100 and len(parts[1]) > 100 and not parts[0] & parts[1]
    assert 250 < sum(is_held_out(number, 0.3) for number in range(1000)) < 350
    assert pickle.loads(pickle.dumps(kept[0].factory)) == kept[0].factory  # so workers can make it
    rows = [{"prompt": str(number)} for number in range(50)]
    parts = [choice.problems for part in hold_out(PromptSource(PromptTask(rows, max)).choices) for choice in part]
    assert sum(map(len, parts)) == len(PromptTask(rows, max).rows("train")) and len(parts[1]) < len(parts[0])
    assert not {row["prompt"] for row in parts[0]} & {row["prompt"] for row in parts[1]}
    with pytest.raises(InvalidConfigError, match="split='test'"):
        hold_out("llm/Arithmetic-v0", env_kwargs={"split": "test"})
    with pytest.raises(InvalidConfigError, match="split='test'"):
        create_eval_fn(EnvChoice("llm/Arithmetic-v0", kwargs={"split": "test"}), ConstantPolicy("x"))
    with pytest.raises(InvalidConfigError, match="share is 1"):
        hold_out("llm/Arithmetic-v0", share=1)


def test_the_best_checkpoint_may_lie_in_the_folder_of_an_earlier_run(tmp_path):
    state = dataclasses.replace(sgd_state(Bigram()), iteration=9, best=(0.5, 7))
    create_checkpoint_fn(tmp_path)(state, is_best=False)
    assert latest_checkpoint(tmp_path).name == "iteration-000009" and best_checkpoint(tmp_path) is None


def test_the_best_is_kept(policy, collect, tmp_path):
    values = iter([0.5, 0.9, 0.9, float("nan"), 0.1])
    saved = []
    train(
        create_training_state(policy.model),
        collect(),
        n_iterations=5,
        n_groups=1,
        group_size=2,
        eval_fn=lambda state: {"success": next(values)},
        eval_every=1,
        checkpoint_fn=lambda state, is_best: saved.append((state.iteration, is_best, state.best)),
    )
    assert saved == [(1, True, (0.5, 1)), (2, True, (0.9, 2)), (5, False, (0.9, 2))]


class OtherModel:
    """A policy with weights of its own."""

    def __init__(self, policy):
        self.policy, self.max_model_len, self.versions = policy, policy.max_model_len, []

    async def sample(self, *args, **kwargs):
        return await self.policy.sample(*args, **kwargs)

    def update_weights(self, named_parameters, version):
        self.versions.append(version)
        self.policy.update_weights(named_parameters, version)


def test_an_engine_is_handed_the_merged_weights_of_an_adapter(tiny_folder):
    class Engine:
        def update_weights(self, named_parameters, version):
            self.weights = {name: value.clone() for name, value in named_parameters}

    base = load_model(tiny_folder, dtype=torch.float32)
    names = dict(base.named_parameters()).keys()
    lora = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    state, engine = create_training_state(peft.get_peft_model(base, lora), learning_rate=1e-3), Engine()
    share_weights(engine, state)
    assert engine.weights.keys() == names
    merged = dict(state.model.merge_and_unload().named_parameters())
    for name, value in engine.weights.items():
        torch.testing.assert_close(value, merged[name], rtol=0, atol=1e-6)


def test_weights_reach_a_policy_of_its_own(tiny_folder, policy, collect):
    other = OtherModel(policy)
    model = load_model(tiny_folder)
    state = create_training_state(model, learning_rate=1e-2)
    settings = LoopSettings(old_logps="recomputed", autocast_dtype=torch.bfloat16)
    train(state, collect(player=other), n_iterations=2, n_groups=2, group_size=4, settings=settings)
    assert other.versions == [0, 1, 2]
    for name, value in model.state_dict().items():
        assert torch.equal(policy.model.state_dict()[name], value)
    with pytest.raises(InvalidConfigError, match="ConstantPolicy"):
        share_weights(ConstantPolicy("x"), state)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_completion_tokens": 40}, {"dapo": 40.0, "dr_grpo": 40.0}),
        ({"max_turns": 1}, {"dapo": 8.0, "dr_grpo": 8.0}),
        ({"max_turns": 1, "max_turn_tokens": 5}, {"dapo": 5.0, "dr_grpo": 5.0}),
        ({"max_turns": 3}, {"dapo": "max_completion_tokens", "dr_grpo": 24.0}),
        ({}, {"dapo": "max_completion_tokens", "dr_grpo": "max_completion_tokens", "grpo": None}),
    ],
)
def test_the_limit_of_a_turn_is_not_that_of_an_episode(collect, limits, expected):
    collector = collect(limits=RolloutLimits(**limits))
    for name, length in expected.items():
        call = partial(_with_max_length, LoopSettings(), algorithms.ALGORITHMS[name], collector)
        if isinstance(length, str):
            with pytest.raises(InvalidConfigError, match=length):
                call()
        else:
            assert call().max_length == length


def test_what_contradicts_itself_is_refused(policy, collect):
    state = create_training_state(policy.model)
    for changes, message in (
        ({"algorithm": dataclasses.replace(GRPO, kl_coef=0.1)}, "frozen_copy or load_teacher"),
        ({"algorithm": algorithms.DAPO}, "group_filter=create_spread_filter"),
        ({"algorithm": algorithms.DR_GRPO}, "'dr_grpo' divides by the greatest length"),
        ({"eval_every": 2}, "eval_fn go together"),
        ({"save_every": 2}, "without a checkpoint_fn"),
        ({"n_groups": 0}, "must be at least 1"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            train(state, collect(), n_iterations=1, **changes)
    with pytest.raises(InvalidConfigError, match="temperature=0"):
        train(state, collect(sampling=SamplingParams(temperature=0.0)), n_iterations=1)
    with pytest.raises(RolloutFailedError, match=r"server is gone.*3 generations"):
        failing = EnvChoice("test/Say-v0", kwargs={"fail_always": True})
        train(state, collect(failing, max_retries=0), n_iterations=5, n_groups=1, group_size=2)
    with pytest.raises(InvalidConfigError, match="autocast_dtype=float16"):
        train(state, collect(), n_iterations=1, settings=LoopSettings(autocast_dtype=torch.float16))


def test_a_loop_that_stops_for_failures_saves_first(policy, collect, caplog):
    """The reward function fails for every episode from the second iteration on."""
    calls, saved = [], []

    def flaky(trajectory):
        calls.append(trajectory)
        return 1.0 if len(calls) <= 2 else 1 / 0

    state = create_training_state(policy.model)
    settings = {"n_iterations": 9, "n_groups": 1, "group_size": 2, "rewards": flaky}
    with pytest.raises(RolloutFailedError, match=r"3 generations.*after 3 iterations is saved"):
        train(state, collect(), checkpoint_fn=lambda state, *, is_best: saved.append(state.iteration), **settings)
    assert saved == [3] and "2 of 2 episodes failed" in caplog.text and "flaky: ZeroDivisionError" in caplog.text


def test_the_means_of_a_generation_are_over_its_tokens_pairs_and_steps():
    """Minibatches of one token and of three; the second has two pairs, the first none, and a third step was skipped."""
    one = {"loss": 1.0, "ratio": 1.0, "ratio_max": 1.5, "pairs": 0.0, "pair_accuracy": 0.0}
    two = {"loss": 3.0, "ratio": 2.0, "ratio_max": 1.2, "pairs": 2.0, "pair_accuracy": 0.5}
    assert _means([one, two, {"skipped": 1.0}], [1, 3, 0]) == {
        "loss": 2.0,
        "ratio": 1.75,
        "ratio_max": 1.5,
        "pairs": 1.0,
        "pair_accuracy": 0.5,
        "skipped": 1.0,
    }
