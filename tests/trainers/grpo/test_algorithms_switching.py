"""Algorithms as values in EnvGRPOTrainer: TRL's steps and the functional loss, pairs, and a switch in the middle."""

import copy
import json
import math
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from dense_env import DenseEnv
from device import spy_on_batches, to_device
from trainings import COIN, DENSE, assert_same, distance, logged, spy_on_episodes, trained

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference import load_model
from llm_envs.rollout import Curriculum, EnvChoice
from llm_envs.trainers import EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.episodes.generation import STATE_FILE
from llm_envs.trainers.functional.advantages import leave_one_out
from llm_envs.trainers.functional.algorithm import (
    CISPO,
    DAPO,
    DR_GRPO,
    GRPO,
    PAIRWISE,
    RLOO,
    algorithm_loss,
    create_algorithm_schedule,
)
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import k1
from llm_envs.trainers.functional.losses import clipped_surrogate, policy_gradient
from llm_envs.trainers.functional.pairs import all_pairs, dpo_loss, ipo_loss, pair_slopes
from llm_envs.trainers.functional.references import frozen_copy
from llm_envs.trainers.grpo.pairs import keep_groups_together

pytestmark = pytest.mark.trainings

LEARNING = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 2, "seed": 5, "max_grad_norm": 0.0}
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
TORN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
UNEVEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "steps_per_generation": 4}


@pytest.fixture
def make(tiny_folder, config, keep):
    def build(settings=None, env=DENSE, **hooks):
        return keep(EnvGRPOTrainer(tiny_folder, env, config(**LEARNING | (settings or {})), **hooks))

    return build


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({"loss_type": "grpo"}, GRPO),
        ({"loss_type": "dr_grpo", "scale_rewards": "none"}, DR_GRPO),
        ({"loss_type": "dapo", "epsilon_high": 0.28}, replace(DAPO, dynamic_sampling=False, overlong=0.0)),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, CISPO),
    ],
)
def test_an_algorithm_takes_the_steps_of_trls_loss(make, settings, algorithm):
    """Two passes over a generation in micro-batches: advantages, ratio, clip, normalisation and KL are TRL's."""
    passes = {"num_iterations": 2, **SPLIT}
    trainer = make(settings | passes | {"beta": 0.05, "use_bias_correction_kl": False})
    start = copy.deepcopy(trainer.model.state_dict())
    plain = trained(trainer)
    assert distance(start, plain) > 1e-3
    assert_same(plain, trained(make(passes, algorithm=replace(algorithm, kl_coef=0.05))))


OWN = replace(
    GRPO, name="own", advantage_fn=leave_one_out, loss_fn=policy_gradient, entropy_coef=0.3, normalisation="token"
)
"""Nobody's: REINFORCE with leave-one-out, over tokens, and an entropy bonus."""
MIXED = replace(PAIRWISE, name="mixed", loss_fn=policy_gradient, advantage_fn=leave_one_out, kl_coef=0.2)
AVERAGED = replace(PAIRWISE, name="ipo", pair_loss_fn=partial(ipo_loss, beta=0.5))
PROMPTS = replace(GRPO, name="prompts", normalisation="prompt", kl_coef=0.1)
TURNS = replace(GRPO, name="turns", loss_fn=partial(clipped_surrogate, clip_low=1e-3, clip_high=1e-3, level="turn"))
MANY = replace(PAIRWISE, name="many", pair_selector=all_pairs)


def expected_weights(folder, trainer, algorithm, batch, played, n_steps):
    """Take SGD steps with the functional loss on the whole generation."""
    model, reference = load_model(folder), load_model(folder)
    batch, rewards_B = to_device((batch, torch.tensor([t.reward for t in played])), model.device)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    mask = batch["completion_mask"] * batch["tool_mask"]
    n = batch["completion_ids"].shape[1]

    def score(scorer):
        logits = scorer(input_ids=ids, attention_mask=attention, position_ids=positions).logits[:, -n - 1 : -1]
        logps = logits.log_softmax(-1)
        taken = logps.gather(-1, batch["completion_ids"][..., None]).squeeze(-1)
        return taken, -(logps.exp() * logps).sum(-1)

    with torch.no_grad():
        sampled = score(model)[0]
    for _ in range(n_steps):
        logps, entropies = score(model)
        given = Batch(
            mask,
            logps_BT=logps,
            advantages=batch["advantages"],
            old_logps_BT=sampled,
            ref_logps_BT=score(reference)[0].detach(),
            entropies_BT=entropies,
            rewards_B=rewards_B,
            group_ids_B=torch.arange(len(played), device=model.device) // 4,
            max_length=80.0,
        )
        loss, _ = algorithm_loss(algorithm, given)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    return model.state_dict()


@pytest.mark.parametrize(
    "algorithm", [PAIRWISE, MANY, AVERAGED, MIXED, OWN, PROMPTS, TURNS], ids=lambda algorithm: algorithm.name
)
def test_however_the_rows_are_cut_the_steps_are_those_of_the_functional_loss(make, tiny_folder, algorithm):
    """Two steps on one generation; with pairs the second has log-ratios of its own, that another micro-batch holds."""
    ends = []
    for cut in (SPLIT, TORN):
        further = {"ref_model_fn": frozen_copy} if algorithm.pair_loss_fn is not None else {}
        trainer = make({"num_iterations": 2, **cut}, algorithm=algorithm, **further)
        batches = spy_on_batches(trainer)
        ends.append(trained(trainer))
    expected = expected_weights(tiny_folder, trainer, algorithm, batches[0], trainer.last_trajectories, n_steps=2)
    assert distance(load_model(tiny_folder).state_dict(), expected) > 1e-4
    for end in ends:
        assert_same(expected, end, atol=2e-6)
    if algorithm.pair_loss_fn is not None:
        rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
        differ = [
            (group[:, None] > group).sum().item() if algorithm is MANY else int(group.max() > group.min())
            for group in rewards
        ]
        assert logged(trainer, "pairs/count")[0] == sum(differ) > 0
        assert 0.0 <= logged(trainer, "pairs/accuracy")[-1] <= 1.0


def test_pairs_against_the_policy_that_sampled(make, tiny_folder):
    """Without a reference the first step is `-beta / 2` times the mean difference of the pairs' log-probabilities."""
    trainer = make({"max_steps": 1, **TORN}, algorithm="pairwise")
    assert trainer.ref_model is None
    batches = spy_on_batches(trainer)
    after = trained(trainer)
    model = load_model(tiny_folder)
    (batch,) = to_device(batches, model.device)
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(4, 4)
    weight = torch.zeros(16, device=model.device)
    for group in range(4):
        weight[4 * group + rewards[group].argmax()] += 1.0
        weight[4 * group + rewards[group].argmin()] -= 1.0
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    n = batch["completion_ids"].shape[1]
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits[:, -n - 1 : -1]
    logps = logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None]).squeeze(-1)
    sums = (logps * batch["completion_mask"] * batch["tool_mask"]).sum(1)
    (-0.1 / 2 * (weight * sums).sum() / 4).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad
    assert_same(model.state_dict(), after, atol=2e-6)
    assert logged(trainer, "loss") == pytest.approx([math.log(2.0)], abs=1e-3)  # of pairs that do not differ yet


def test_slopes_by_hand():
    """`-log sigmoid(b (c - r))` has the slope `-b sigmoid(-b (c - r))` at c and its negative at r."""
    ratios, pairs = torch.tensor([0.2, -0.1, 0.4, 9.0]), torch.tensor([[0, 1], [2, 1]])
    losses, slopes = pair_slopes(ratios, pairs, lambda chosen, rejected: dpo_loss(chosen, rejected, beta=0.5))
    first, second = (0.5 / (1 + math.exp(0.5 * gap)) for gap in (0.3, 0.5))
    assert slopes.tolist() == pytest.approx([-first, first + second, -second, 0.0])
    one, two = (math.log(1 + math.exp(-0.5 * gap)) for gap in (0.3, 0.5))
    assert losses.tolist() == pytest.approx([one / 2, (one + two) / 2, two / 2, 0.0])
    nothing = pair_slopes(ratios, pairs[:0], dpo_loss)
    assert [part.tolist() for part in nothing] == [[0.0] * 4] * 2


def test_groups_are_put_together_in_the_order_of_the_shuffle():
    rows = torch.tensor([5, 0, 2, 7, 1, 3, 4, 6])  # groups of 2: 2, 0, 1, 3
    buffer = [{"row": rows[:4], "text": list("abcd"), "n": torch.tensor(9)}, {"row": rows[4:], "text": list("efgh")}]
    buffer[1]["n"] = torch.tensor(9)
    first, second = keep_groups_together(buffer, 2)
    assert first["row"].tolist() == [5, 4, 0, 1] and second["row"].tolist() == [2, 3, 7, 6]
    assert first["text"] == list("agbe") and second["text"] == list("cfdh") and second["n"] == 9


def test_a_generation_of_several_steps_has_each_pair_in_one_step(make):
    """Two steps of two groups each: the order of the groups is the shuffle's, no pair is lost or torn."""
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
    trainer = make(settings, algorithm="pairwise", ref_model_fn=frozen_copy)
    seen, original = [], trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: seen.append(inputs["row"].tolist()) or original(model, inputs)
    trainer.train()
    steps = [list(chain.from_iterable(seen[:4])), list(chain.from_iterable(seen[4:]))]
    assert sorted(steps[0] + steps[1]) == list(range(16))
    for rows in steps:
        assert all(rows.count(4 * group + member) == 1 for group in {row // 4 for row in rows} for member in range(4))


class LevelEnv(DenseEnv):
    """With levels that a curriculum may choose; they differ in nothing."""

    def __init__(self, split="train", level=1):
        super().__init__(split)


SWITCH = {0: "grpo", 2: "pairwise", 4: GRPO}


def test_grpo_then_pairwise_then_grpo_resumes_as_if_nothing_had_been(make, tmp_path):
    """Six steps with two switches and a curriculum, and the same from a checkpoint in the middle of the pairs."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, **TORN}

    def run(folder, resume=None, schedule=SWITCH):
        levels = Curriculum({"one": {"level": 1}, "two": {"level": 2}}, band=(0.0, 1e-9), window=16, min_episodes=4)
        settings["output_dir"] = str(tmp_path / folder)
        trainer = make(settings, EnvChoice("level", factory=LevelEnv), algorithm=schedule, curriculum=levels)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole")
    assert logged(whole, "algorithm/grpo") == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert logged(whole, "algorithm/pairwise") == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert len(logged(whole, "pairs/count")) == 2
    middle = str(tmp_path / "whole" / "checkpoint-3")
    resumed = run("resumed", middle, create_algorithm_schedule({0: GRPO, 2: PAIRWISE, 4: GRPO}))
    assert_same(whole.model.state_dict(), resumed.model.state_dict())
    assert logged(resumed, "algorithm/pairwise") == logged(whole, "algorithm/pairwise")
    known = [trainer.items["train"].source.state_dict() for trainer in (whole, resumed)]
    assert known[0] == known[1] and known[0]["curricula"]
    for schedule in ("rloo", None):
        with pytest.raises(InvalidConfigError, match=r"checkpoint-3 .*'pairwise'"):
            run("other", middle, None if schedule is None else {0: schedule})
    path = Path(middle) / STATE_FILE
    former = json.loads(path.read_text())
    del former["learned_by"], former["generations"], former["kl"]  # a former version had TRL's own loss
    path.write_text(json.dumps(former))
    with pytest.raises(InvalidConfigError, match=r"checkpoint-3 .*'trl_dapo'"):
        run("other", middle, None)


@pytest.mark.parametrize(
    "algorithm", [RLOO, replace(DAPO, dynamic_sampling=False)], ids=lambda algorithm: algorithm.name
)
def test_the_second_generation_is_learned_by_the_second_algorithm(make, algorithm):
    """Its advantages and its loss are the functional ones on the rows that were played."""
    trainer = make({"max_steps": 2}, algorithm=lambda generation: algorithm if generation else "grpo")
    batches, losses, original = spy_on_batches(trainer), [], trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: losses.append(original(model, inputs)) or losses[-1]
    trainer.train()
    batch = batches[1]
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories])
    advantages = algorithm.advantage_fn(rewards, torch.arange(16) // 4, None)
    torch.testing.assert_close(batch["advantages"], advantages, rtol=0, atol=1e-5)
    mask = batch["completion_mask"] * batch["tool_mask"]
    loss, _ = algorithm_loss(algorithm, Batch(mask, logps_BT=batch["sampling_per_token_logps"], advantages=advantages))
    assert losses[1].item() == pytest.approx(loss.item(), abs=1e-4)


def test_each_algorithm_has_its_own_kl(make):
    """None in the first generation, in the loss in the second, in the reward in the third."""
    schedule = {
        0: GRPO,
        1: replace(GRPO, name="in-loss", kl_coef=0.5),
        2: replace(GRPO, name="in-reward", kl_coef=0.25, kl_in="reward", kl_fn=k1),
    }
    trainer = make({"max_steps": 3}, algorithm=schedule)
    assert trainer.ref_model is not None and trainer.args.beta == 0.0
    batches = spy_on_batches(trainer)
    trainer.train()
    assert logged(trainer, "kl_coef") == [0.0, 0.5, 0.25]
    assert len(logged(trainer, "kl")) == 2
    assert [logged(trainer, f"algorithm/{name}") for name in ("grpo", "in-loss", "in-reward")] == [
        [1.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0],
    ]
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories])
    unpaid = GRPO.advantage_fn(rewards, torch.arange(16) // 4, None)
    assert (batches[2]["advantages"] - unpaid).abs().max() > 1e-5


def test_only_generations_that_sample_dynamically_replace_groups(make):
    trainer = make({"max_steps": 2, "num_train_seeds": 16}, env=COIN, algorithm={0: "grpo", 1: "dapo"})
    played = spy_on_episodes(trainer)
    trainer.train()
    first, second = ({t.seed % 2 for t in generation} for generation in played)
    assert 0 in first and second == {1}


def test_a_schedule_is_asked_for_the_whole_run_beforehand(make):
    """What a late generation needs is there from the start, and what it cannot have is refused at the start."""
    late = make({"max_steps": 9}, algorithm=lambda n: GRPO if n < 8 else replace(GRPO, kl_coef=0.1))
    assert late.ref_model is not None
    with pytest.raises(InvalidConfigError, match=r"'ppo'.*pairwise"):
        make({"max_steps": 9}, algorithm=lambda n: "grpo" if n < 8 else "ppo")
    # The generations of a data set are counted by its rows.
    rows = Dataset.from_dict({"env": ["test/Say-v0"] * 160, "seed": list(range(160))})
    one_epoch = {"max_steps": -1, "num_train_epochs": 1, "num_train_seeds": 16}
    with pytest.raises(InvalidConfigError, match=r"'ppo'.*pairwise"):
        make(one_epoch, env=rows, algorithm=lambda n: "grpo" if n < 30 else "ppo")


def test_a_schedule_that_changes_its_mind_says_so(make):
    """A schedule that does not depend on the generation alone gives an algorithm that nothing was prepared for."""
    chosen = ["grpo"]
    trainer = make({}, algorithm=lambda n: chosen[0])
    chosen[0] = "pairwise"
    with pytest.raises(InvalidConfigError, match=r"generation 0 .*'pairwise'"):
        trainer.train()


@pytest.mark.parametrize(
    ("settings", "hooks", "match"),
    [
        ({"loss_type": "grpo", "epsilon": 0.1}, {"algorithm": GRPO}, "epsilon=0.1, loss_type='grpo'"),
        ({"beta": 0.1}, {"algorithm": GRPO}, r"beta=0.1: "),
        ({}, {"algorithm": GRPO, "ref_model_fn": frozen_copy}, "nothing is measured against a reference"),
        ({}, {"algorithm": {1: "grpo"}}, "must hold from iteration 0"),
        ({}, {"algorithm": 7}, "algorithm=7 is not known; give an Algorithm or one of grpo"),
        ({"history": "template"}, {"algorithm": "grpo"}, "weighs each row alike"),
        ({"history": "template"}, {"algorithm": "pairwise"}, "weighs each row alike"),
        (UNEVEN, {"algorithm": {0: "grpo", 5: "pairwise"}}, r"'pairwise'.* = 2 .*num_generations=4"),
    ],
)
def test_contradictions(make, settings, hooks, match):
    with pytest.raises(InvalidConfigError, match=match):
        make(settings, **hooks)


def test_ppo_takes_algorithms_without_advantages_only(tiny_folder, tmp_path):
    args = EnvPPOConfig(output_dir=str(tmp_path), report_to="none")
    for given, match in (
        (GRPO, "'grpo' has an advantage_fn, and the critic makes PPO's advantages"),
        ("grpo", "algorithm='grpo' is not known; give an Algorithm or one of ppo"),
        (replace(PAIRWISE, advantage_fn=None), "'pairwise' learns from pairs, which EnvPPOTrainer does not play"),
    ):
        with pytest.raises(InvalidConfigError, match=match):
            EnvPPOTrainer(tiny_folder, DENSE, args, algorithm=given)


def test_pairs_from_play_raise_the_reward(make):
    """Seeds fixed in advance; the mean reward of the last five steps against the first five."""
    settings = {"optim": "adamw_torch", "max_grad_norm": 1.0, "learning_rate": 1e-2, "max_steps": 20, "seed": 1}
    settings |= {"per_device_train_batch_size": 64, "num_generations": 8}
    trainer = make(settings, "test/Say-v0", algorithm="pairwise", ref_model_fn=frozen_copy)
    trainer.train()
    rewards = logged(trainer, "reward")
    assert sum(rewards[:5]) / 5 < 0.2
    assert sum(rewards[-5:]) / 5 > 0.5
