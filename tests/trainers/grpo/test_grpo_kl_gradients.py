"""The KL in a real step of every driver: its exact expected gradient, and 0 where the policy is its reference.

The gradients are exact since the batch is the whole distribution: episodes of one token, a model whose probabilities
are sixteenths, and each token as often among sixteen episodes as it is probable.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_env import DenseEnv
from device import on_cpu, rounding, spy_on_batches
from trainings import QUIET
from transformers import TrainerCallback

from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer, token_logps
from llm_envs.rewards import create_kl_penalty
from llm_envs.rollout import Collector, EnvChoice, RolloutLimits
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.functional.advantages import group_centred
from llm_envs.trainers.functional.algorithm import DISTILL, DISTILL_LOSS, GRPO, PAIRWISE
from llm_envs.trainers.functional.algorithm import PPO as PPO_LOSS
from llm_envs.trainers.functional.kl import KL_ESTIMATORS, exact_kl, k1
from llm_envs.trainers.functional.references import frozen_copy
from llm_envs.trainers.loop import LoopSettings, create_training_state, training_iteration
from llm_envs.types import SamplingParams, TrajectoryGroup

pytestmark = pytest.mark.trainings

COUNTS = (6, 4, 3, 2, 1)
"""Of sixteen episodes, how many say the first letter, the second, ..."""
PROBABILITIES, REFERENCE = torch.tensor(COUNTS) / 16, torch.tensor([0.2, 0.4, 0.1, 0.1, 0.2])
SETTINGS = {
    "max_steps": 1,
    "per_device_train_batch_size": 16,
    "num_generations": 16,
    "max_completion_length": 8,
    "max_turn_tokens": 1,
    "optim": "sgd",
    "max_grad_norm": 0.0,
    **QUIET,
    "num_train_seeds": 16,
    "save_trajectories": False,
    "logps_tolerance": None,
}
PPO = {"gamma": 1.0, "lam": 1.0, "whiten_advantages": False, "value_trains_trunk": False}


class WordEnv(DenseEnv):
    """One turn, one prompt for all seeds, no reward."""

    def question(self):
        return "Say a letter"

    def step(self, action):
        return "", 0.0, True, False, {"is_success": True}


WORD = EnvChoice("word", factory=WordEnv)


class Letters:
    """A model and a reference with given probabilities of the letters a to e behind the prompt, in a folder each."""

    def __init__(self, folder):
        self.tokenizer = tiny_tokenizer()
        self.ids = [self.tokenizer.encode(letter)[0] for letter in "abcde"]
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": "Say a letter"}], tokenize=False, add_generation_prompt=True
        )
        self.prompt = torch.tensor([self.tokenizer.encode(text)])
        model = tiny_model(self.tokenizer, hidden_size=32, n_heads=2, max_length=64, seed=3)
        model.config.tie_word_embeddings = False
        self.folders = {}
        for name, probabilities in (("policy", PROBABILITIES), ("reference", REFERENCE)):
            one = copy.deepcopy(model)
            with torch.no_grad():
                state = one.model(self.prompt).last_hidden_state[0, -1]
                wanted = torch.full((one.config.vocab_size,), -30.0)
                wanted[self.ids] = probabilities.log()
                one.lm_head.weight = torch.nn.Parameter(torch.outer(wanted, state) / state.square().sum())
            self.folders[name] = str(folder / name)
            one.save_pretrained(folder / name)
            self.tokenizer.save_pretrained(folder / name)

    def gradients(self, function):
        """Return the gradients of a function of the logits of policy and reference, by parameter."""
        policy, reference = (load_model(self.folders[name]) for name in ("policy", "reference"))
        logits, referred = (model(self.prompt.to(model.device)).logits[0, -1] for model in (policy, reference))
        torch.testing.assert_close(on_cpu(logits.softmax(-1)[self.ids]), PROBABILITIES)
        function(logits, referred.detach()).backward()
        return {name: parameter.grad for name, parameter in policy.named_parameters()}

    def enumerate(self, trajectories):
        """Return the episodes with each letter as often as it is probable."""
        ids = [id_ for id_, count in zip(self.ids, COUNTS, strict=True) for _ in range(count)]
        logps = PROBABILITIES.log().repeat_interleave(torch.tensor(COUNTS)).tolist()
        said = []
        for trajectory, id_, logp in zip(trajectories, ids, logps, strict=True):
            (row,), ((start, stop),) = trajectory.rows, trajectory.rows[0].spans
            assert stop == start + 1 and row.ids[:start].tolist() == self.prompt[0].tolist()
            new_ids, new_logps = row.ids.copy(), row.logps.copy()
            new_ids[start], new_logps[start] = id_, logp
            said.append(replace(trajectory, rows=(replace(row, ids=new_ids, logps=new_logps),)))
        return said


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return Letters(tmp_path_factory.mktemp("letters"))


class KeepGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.kept = {name: parameter.grad.clone() for name, parameter in kwargs["model"].named_parameters()}


def trainer_gradients(letters, tmp_path, kind, settings, **hooks):
    """Return the gradients of a trainer's step on the enumerated episodes."""
    callback = KeepGradients()
    ppo = kind == "ppo"
    config, cls = (EnvPPOConfig, EnvPPOTrainer) if ppo else (EnvGRPOConfig, EnvGRPOTrainer)
    args = config(**SETTINGS | (PPO if ppo else {}) | {"output_dir": str(tmp_path)} | settings)
    reference = load_model(letters.folders["reference"])
    trainer = cls(
        letters.folders["policy"], WORD, args, ref_model_fn=lambda policy: reference, callbacks=[callback], **hooks
    )
    play = trainer._player.play
    trainer._player.play = lambda *given, **further: letters.enumerate(play(*given, **further))
    trainer.train()
    trainer.close()
    return callback.kept


def loop_gradients(letters, algorithm):
    """Return the gradients of a step of the plain loop on the enumerated episodes."""
    kept = {}

    def keep(state):
        kept.update({name: parameter.grad.clone() for name, parameter in state.model.named_parameters()})
        return {}

    policy = TransformersPolicy(load_model(letters.folders["policy"]), letters.tokenizer)
    limits = RolloutLimits(max_turn_tokens=1)
    with Collector(WORD, policy, codec=policy.codec, limits=limits, progress=False) as collector:
        played = [trajectory for group in collector.collect(1, group_size=16) for trajectory in group]
    reference = load_model(letters.folders["reference"])
    state = create_training_state(policy.model, ref_model_fn=lambda model: reference)
    group = TrajectoryGroup(played[0].group_id, "word", 0, tuple(letters.enumerate(played)))
    training_iteration(state, [group], algorithm=algorithm, optimizer_step_fn=keep, settings=LoopSettings())
    return kept


def assert_same_gradients(given, expected):
    assert given.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            given[name], gradient, rtol=0, atol=rounding(2e-6), msg=lambda text, name=name: name + text
        )


def kl_pi_rho(policy, reference):
    return exact_kl(policy, reference)


def kl_rho_pi(policy, reference):
    return exact_kl(reference, policy)


def twice_the_total_variation(policy, reference):
    return (policy.softmax(-1) - reference.softmax(-1)).abs().sum()


TABLE = {
    "k1": None,
    "k2": kl_pi_rho,
    "k3": kl_rho_pi,
    "absolute": twice_the_total_variation,
    "k1_weighted": kl_pi_rho,
    "k3_weighted": kl_pi_rho,
}
"""That of docs/concepts/kl.md: of which divergence an estimator in the loss has the gradient; None: of none, 0."""


def expected_of(letters, function):
    return letters.gradients(function or (lambda policy, reference: 0.0 * policy.sum()))


@pytest.mark.parametrize("driver", ["grpo", "ppo", "loop"])
@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_in_the_loss_an_estimator_has_the_gradient_that_the_table_says(letters, tmp_path, driver, name):
    expected, kl_fn = expected_of(letters, TABLE[name]), KL_ESTIMATORS[name]
    assert TABLE[name] is None or max(gradient.abs().max() for gradient in expected.values()) > 0.01
    algorithm = replace(PPO_LOSS if driver == "ppo" else GRPO, kl_fn=kl_fn, kl_coef=1.0)
    if driver == "loop":
        given = loop_gradients(letters, algorithm)
    else:
        given = trainer_gradients(letters, tmp_path, driver, {}, algorithm=algorithm)
    assert_same_gradients(given, expected)


@pytest.mark.parametrize(
    ("settings", "function"), [({}, kl_pi_rho), ({"use_bias_correction_kl": False}, kl_rho_pi)], ids=["with", "without"]
)
@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_trls_own_estimator_with_and_without_its_importance_weight(letters, tmp_path, kind, settings, function):
    given = trainer_gradients(letters, tmp_path, kind, {"beta": 1.0, **settings})
    assert_same_gradients(given, letters.gradients(function))


def gradients_of(letters, tmp_path, driver, algorithm):
    if driver == "loop":
        return loop_gradients(letters, algorithm)
    return trainer_gradients(letters, tmp_path, driver, {}, algorithm=algorithm)


@pytest.mark.parametrize("driver", ["grpo", "ppo", "loop"])
def test_in_the_reward_the_default_has_the_gradient_of_kl_pi_rho(letters, tmp_path, driver):
    own = replace(
        PPO_LOSS if driver == "ppo" else replace(GRPO, advantage_fn=group_centred), kl_coef=1.0, kl_in="reward"
    )
    assert_same_gradients(gradients_of(letters, tmp_path, driver, own), letters.gradients(kl_pi_rho))


@pytest.mark.parametrize("driver", ["grpo", "loop"])
@pytest.mark.parametrize("algorithm", [DISTILL, DISTILL_LOSS], ids=lambda algorithm: algorithm.name)
def test_distillation_has_the_gradient_of_kl_pi_rho(letters, tmp_path, driver, algorithm):
    assert_same_gradients(gradients_of(letters, tmp_path, driver, algorithm), letters.gradients(kl_pi_rho))


@pytest.mark.parametrize("name", ["distill", "distill_loss"])
def test_a_student_ends_at_its_teacher(letters, tmp_path, name):
    """The divergence of the two distributions, 0.19 nats at first, after 40 steps on 64 episodes of one token."""
    settings = {"max_steps": 40, "per_device_train_batch_size": 64, "num_train_seeds": 256, "learning_rate": 4e-3}
    args = EnvGRPOConfig(**SETTINGS | settings | {"output_dir": str(tmp_path), "optim": "adamw_torch"})
    reference = load_model(letters.folders["reference"])
    trainer = EnvGRPOTrainer(
        letters.folders["policy"], WORD, args, algorithm=name, ref_model_fn=lambda policy: reference
    )
    trainer.train()
    trainer.close()
    with torch.no_grad():
        models = (load_model(letters.folders["policy"]), trainer.model.eval())
        prompt = letters.prompt.to(reference.device)
        before, after = (exact_kl(*(m(prompt).logits[0, -1] for m in (one, reference))) for one in models)
    assert before.item() == pytest.approx(0.1912, abs=1e-3)
    assert after < 0.02 * before


FILTERS = [{"top_p": 0.9}, {"top_k": 5, "temperature": 1.5}, {"repetition_penalty": 1.2}, {"temperature": 0.7}]
DENSE = EnvChoice("dense", factory=DenseEnv)


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_a_policy_that_is_its_reference_pays_nothing_however_it_is_sampled(tiny_folder, tmp_path, kind, sampling):
    """The KL is exactly 0; in PPO every return is the reward of the following turns."""
    own = {"output_dir": str(tmp_path), "max_completion_length": 80, "max_turn_tokens": 8, "num_generations": 4}
    algorithm = replace(PPO_LOSS if kind == "ppo" else GRPO, kl_coef=0.5, kl_in="reward")
    if kind == "ppo":
        args = EnvPPOConfig(**SETTINGS | PPO | own | sampling)
        trainer = EnvPPOTrainer(tiny_folder, DENSE, args, algorithm=algorithm)
    else:
        trainer = EnvGRPOTrainer(tiny_folder, DENSE, EnvGRPOConfig(**SETTINGS | own | sampling), algorithm=algorithm)
    kept = spy_on_batches(trainer)
    trainer.train()
    trainer.close()
    (batch,) = kept
    assert [entry["kl"] for entry in trainer.state.log_history if "kl" in entry] == [0.0]
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    gap = (batch["sampling_per_token_logps"] - batch["ref_per_token_logps"])[mask].abs().mean()
    assert (gap > 1e-3) == (sampling != {"temperature": 0.7})  # what the sampler said would have cost something
    if kind == "ppo":
        for row, trajectory in enumerate(trainer.last_trajectories):
            (tokens,) = trajectory.rows
            columns = np.flatnonzero(tokens.mask) - tokens.prompt_length
            rewards = [turn.reward for turn in trajectory.turns]
            n_first = tokens.spans[0][1] - tokens.spans[0][0]
            to_go = [sum(rewards)] * n_first + [rewards[1]] * (len(columns) - n_first)
            assert batch["returns"][row, columns].tolist() == pytest.approx(to_go, abs=1e-6)


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_the_same_in_the_loop_for_rewards_and_for_pairs(tiny_folder, sampling):
    """Without a reference pairs are measured against the policy itself: the first loss is log 2 exactly."""
    policy = TransformersPolicy(load_model(tiny_folder), load_tokenizer(tiny_folder))
    params = SamplingParams(max_new_tokens=8, **sampling)
    with Collector(DENSE, policy, codec=policy.codec, sampling=params, progress=False) as collector:
        groups = collector.collect(2, group_size=4)
    groups = [TrajectoryGroup(group.group_id, "dense", 0, tuple(group)) for group in groups]
    settings = LoopSettings(logps_tolerance=None)
    algorithm = replace(GRPO, kl_coef=0.5, kl_in="reward")
    for chosen, further in ((algorithm, {"ref_model_fn": frozen_copy}), (PAIRWISE, {})):
        state = create_training_state(load_model(tiny_folder), **further)
        _, metrics = training_iteration(state, groups, algorithm=chosen, sampling=params, settings=settings)
        if chosen is PAIRWISE:
            assert metrics["loss"] == pytest.approx(np.log(2.0), abs=1e-6)
        else:
            assert metrics["kl"] == 0.0


def test_the_penalty_of_turns_is_measured_on_the_policys_own_probabilities(tiny_folder):
    """Against itself, at the sampling temperature, the policy has no penalty, although it was sampled with top_p."""
    policy = TransformersPolicy(load_model(tiny_folder), load_tokenizer(tiny_folder))
    params = SamplingParams(max_new_tokens=8, top_p=0.8, temperature=0.7)
    with Collector(DENSE, policy, codec=policy.codec, sampling=params, progress=False) as collector:
        ((trajectory,),) = collector.collect(1)

    def logps_fn(played):
        return token_logps(policy.model, [row.ids for row in played.rows], temperature=0.7)

    assert create_kl_penalty(1.0, logps_fn, logps_fn)(trajectory).tolist() == [0.0, 0.0]
    reference = load_model(tiny_folder)
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.1)

    def ref_logps_fn(played):
        return token_logps(reference, [row.ids for row in played.rows], temperature=0.7)

    (row,) = trajectory.rows
    differences = (logps_fn(trajectory)[0] - ref_logps_fn(trajectory)[0]).astype(np.float64)
    expected = [-0.5 * differences[start:stop].sum() for start, stop in row.spans]
    assert create_kl_penalty(0.5, logps_fn, ref_logps_fn)(trajectory).tolist() == pytest.approx(expected)
    assert k1(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1)).item() == -1.0
