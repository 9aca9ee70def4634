"""A teacher in the same process: who it may be, what it is asked, and that every way of training asks the same."""

from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from device import rounding, spy_on_batches
from fake_server import Answer, fake_server, vllm_answers
from preferences import message_pairs
from tiny_folders import save_tiny
from trainings import DENSE, logged
from transformers import TrainerCallback

from llm_envs.errors import BridgeError, InvalidConfigError, ModelError
from llm_envs.policies.inference import load_model, load_tokenizer, token_logps
from llm_envs.policies.vllm.routing import Backoff
from llm_envs.policies.vllm.scoring import TokenScorer
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer, load_teacher
from llm_envs.trainers.forward.teacher import ServedTeacher
from llm_envs.trainers.functional.algorithm import DISTILL, GRPO, PPO
from llm_envs.trainers.functional.references import frozen_copy
from llm_envs.trainers.grpo.quickstart import quick_start_training
from llm_envs.trainers.loop import create_training_state, training_iteration
from llm_envs.trainers.schedules import create_linear

pytestmark = pytest.mark.trainings

SGD = {"optim": "sgd", "learning_rate": 0.03, "max_grad_norm": 0.0}


class KeepGradients(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = kwargs["model"].named_parameters()
        self.kept.append({name: parameter.grad.clone() for name, parameter in named if parameter.requires_grad})


@pytest.fixture
def train(tiny_folder, teacher_folder, config):
    """Return a function that distils and returns the trainer, its batches and its gradients."""
    trainers = []

    def run(changes=None, *, algorithm="distill", **given):
        callback = KeepGradients()
        given = {"ref_model_fn": load_teacher(teacher_folder)} | given
        args = config(**SGD | (changes or {}))
        trainer = EnvGRPOTrainer(tiny_folder, DENSE, args, algorithm=algorithm, callbacks=[callback], **given)
        batches = spy_on_batches(trainer)
        trainers.append(trainer)
        trainer.train()
        return trainer, batches, callback.kept

    yield run
    for trainer in trainers:
        trainer.close()


def assert_same(given, expected):
    assert given.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(given[name], gradient, rtol=0, atol=rounding(1e-6))


def gaps_by_hand(played, student_folder, teacher_folder):
    """Return log teacher - log student at the sampled tokens of each episode, from the rows themselves."""
    rows = [trajectory.rows[0] for trajectory in played]
    scored = [token_logps(load_model(folder), [row.ids for row in rows]) for folder in (teacher_folder, student_folder)]
    return [(t - s)[row.mask] for t, s, row in zip(*scored, rows, strict=True)]


def test_each_sampled_token_of_every_turn_earns_what_the_teacher_says_of_it(train, tiny_folder, teacher_folder):
    trainer, (batch,), _ = train()
    expected = gaps_by_hand(trainer.last_trajectories, tiny_folder, teacher_folder)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert {len(trajectory.turns) for trajectory in trainer.last_trajectories} == {2}
    for row, gaps in enumerate(expected):
        np.testing.assert_allclose(batch["advantages"][row][mask[row]], gaps, rtol=0, atol=rounding(1e-5))
    assert logged(trainer, "kl") == pytest.approx([-np.concatenate(expected).mean()], abs=rounding(1e-5))
    teacher = trainer.accelerator.unwrap_model(trainer.ref_model)
    assert teacher.config.num_hidden_layers == 1 and not any(p.requires_grad for p in teacher.parameters())


def test_a_mixture_adds_them_to_the_advantages_of_the_task_by_a_schedule(train, tiny_folder, teacher_folder):
    """Steps 0, 1, 2 of three have the coefficients 0.5, 0.25, 0."""
    mixture = replace(GRPO, name="mixture", normalisation="token", kl_coef=create_linear(0.5, 0.0), kl_in="advantage")
    trainer, batches, _ = train({"max_steps": 3, "learning_rate": 1e-9}, algorithm=mixture)
    assert logged(trainer, "kl_coef") == [0.5, 0.25, 0.0]
    task, _, _ = train({"max_steps": 3, "learning_rate": 1e-9}, algorithm=replace(GRPO, kl_coef=1e-9))
    assert [t.reward for t in task.last_trajectories] == [t.reward for t in trainer.last_trajectories]
    rewards = torch.tensor([t.reward for t in trainer.last_trajectories]).view(-1, 4)
    own = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    last = batches[-1]  # the teacher's share is 0 by now
    mask = (last["completion_mask"] * last["tool_mask"]).bool()
    torch.testing.assert_close(last["advantages"][mask], own[:, None].expand(mask.shape)[mask], rtol=0, atol=1e-5)
    first = batches[0]
    mask = (first["completion_mask"] * first["tool_mask"]).bool()
    assert all(len(row[m].unique()) > 2 for row, m in zip(first["advantages"], mask, strict=True))


@pytest.mark.parametrize("name", ["distill", "distill_loss"])
@pytest.mark.parametrize(
    "changes",
    [
        {"forward": "prefix_tree"},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    ],
    ids=["prefix_tree", "micro-batches"],
)
def test_however_the_rows_are_passed_the_gradient_is_the_same(train, name, changes):
    _, _, (expected,) = train(algorithm=name)
    _, _, (given,) = train(changes, algorithm=name)
    assert_same(given, expected)


def test_an_adapter_learns_from_the_teacher_and_not_from_its_base(train, tiny_folder, teacher_folder):
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer, (batch,), (gradients,) = train(peft_config=lora)
    gaps = np.concatenate(gaps_by_hand(trainer.last_trajectories, tiny_folder, teacher_folder))
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    np.testing.assert_allclose(batch["advantages"][mask], gaps, rtol=0, atol=rounding(1e-5))
    assert all("lora_" in name for name in gradients) and max(g.abs().max() for g in gradients.values()) > 1e-3


# What is refused.


def test_a_student_without_a_teacher_is_told_so(tiny_folder, config):
    words = "'distill' learns only from a teacher.*give ref_model_fn=load_teacher"
    with pytest.raises(InvalidConfigError, match=words):
        EnvGRPOTrainer(tiny_folder, DENSE, config(), algorithm="distill")
    with pytest.raises(InvalidConfigError, match=words):
        quick_start_training(tiny_folder, env=DENSE, algorithm="distill")
    with pytest.raises(InvalidConfigError, match=r"ref_model_fn.*kl_coef"):
        quick_start_training(tiny_folder, env=DENSE, ref_model_fn=frozen_copy)
    with pytest.raises(InvalidConfigError, match=r"'distill'.*kl_coef=1\.0.*ref_model_fn="):
        training_iteration(create_training_state(load_model(tiny_folder)), [], algorithm=DISTILL)


def test_ppo_takes_the_kl_from_the_reward(tiny_folder, teacher_folder, tmp_path):
    algorithm = replace(PPO, kl_coef=0.1, kl_in="advantage")
    with pytest.raises(InvalidConfigError, match='kl_in="advantage"'):
        EnvPPOTrainer(tiny_folder, DENSE, EnvPPOConfig(output_dir=str(tmp_path)), algorithm=algorithm)


@pytest.fixture(scope="module")
def strange_folder(tmp_path_factory):
    """A model with two words more than the student's."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["one", "more"])
    return str(save_tiny(tmp_path_factory.mktemp("strange"), tokenizer, hidden_size=32, n_heads=2))


def test_a_teacher_may_know_more_words_and_not_others(train, tiny_folder, strange_folder, tmp_path):
    trainer, _, _ = train(ref_model_fn=load_teacher(strange_folder))
    assert np.isfinite(logged(trainer, "kl")).all()
    student = load_model(strange_folder)
    with pytest.raises(InvalidConfigError, match=r"tokenizer .2 of"):
        create_training_state(student, ref_model_fn=load_teacher(tiny_folder))
    with pytest.raises(ModelError, match="nowhere"):
        create_training_state(student, ref_model_fn=load_teacher(str(tmp_path / "nowhere")))


# A server that does what a real one does not do on request; a real one: test_teacher_vllm.py.

NO_WAIT = Backoff(first_s=0.0, max_s=0.0)


def scores(entries):
    return Answer(
        body={"choices": [{"index": number, "prompt_logprobs": given} for number, given in enumerate(entries)]}
    )


def entries_of(ids):
    return [None, *({str(token): {"logprob": -float(token)}} for token in ids[1:])]


def scored_by(respond, rows, **settings):
    tokenizer = tiny_tokenizer()
    with fake_server(vllm_answers(tokenizer, respond)) as server:
        scorer = TokenScorer(server.url, backoff=NO_WAIT, **settings)
        try:
            return scorer.score_tokens(rows), server.paths("/v1/completions")
        finally:
            scorer.close()


def test_rows_are_sent_in_parts_and_come_back_in_order_after_failures():
    rows = [np.arange(5 + n, 8 + n) for n in range(20)]

    def respond(asked, n_before):
        if n_before < 2:
            return Answer(503, {"error": "starting"})
        return scores([entries_of(ids) for ids in asked.body["prompt"]])

    given, asked = scored_by(respond, rows)
    assert sorted(len(one.body["prompt"]) for one in asked)[-2:] == [16, 16] and len(asked) == 4
    for row, logps in zip(rows, given, strict=True):
        assert np.isnan(logps[0]) and logps[1:].tolist() == [-float(token) for token in row[1:]]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (scores([None]), ModelError, "returned no log-probabilities of the prompt.*`prompt_logprobs`"),
        (scores([entries_of([1, 2])]), ModelError, r"prompt_logprobs is \[None, .* list of 3"),
        (scores([entries_of([5, 7, 6])]), ModelError, r"prompt_logprobs\[1\].6 is missing"),
        (scores([[None, {"6": {"logprob": "-1"}}, {"7": {"logprob": -1}}]]), ModelError, "prompt_logprobs.* is '-1'"),
        (scores([]), ModelError, r"choices is \[\]"),
        (
            Answer(400, {"error": {"message": "Token id 999 is out of vocabulary"}}),
            InvalidConfigError,
            "out of vocabulary",
        ),
        (Answer(503, {"error": "no"}), BridgeError, "could not be scored in 3 attempts; at last: .*503"),
    ],
    ids=["none", "short", "others", "text", "empty", "refused", "down"],
)
def test_an_answer_that_cannot_be_used_says_why(answer, kind, words):
    with pytest.raises(kind, match=words):
        scored_by(lambda asked, n_before: answer, [np.array([5, 6, 7])], max_retries=2)


def test_a_row_must_fit_the_servers_context():
    with pytest.raises(InvalidConfigError, match=r"64 tokens .*--max-model-len 65"):
        scored_by(lambda asked, n_before: scores([]), [np.arange(64)])


def test_a_server_that_is_not_there_and_one_of_another_family_are_refused(tiny_folder, strange_folder):
    with pytest.raises(BridgeError, match=r"127\.0\.0\.1:9"):
        TokenScorer("http://127.0.0.1:9")
    with pytest.raises(InvalidConfigError, match="'teacher:8000'"):
        TokenScorer("teacher:8000")
    with pytest.raises(InvalidConfigError, match="max_concurrency=0"):
        TokenScorer("http://127.0.0.1:9", max_concurrency=0)
    other = load_tokenizer(strange_folder)
    other.add_special_tokens({"additional_special_tokens": ["Übung"]})
    strange = vllm_answers(other, lambda asked, n_before: scores([]))
    words = "whose tokenizer is another than the policy's"
    with fake_server(strange) as server, pytest.raises(ModelError, match=words):
        create_training_state(load_model(tiny_folder), ref_model_fn=load_teacher(server.url))


def test_what_a_server_cannot_score_is_refused(tiny_folder, config, tmp_path):
    ids, mask = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)
    tokenizer = load_tokenizer(tiny_folder)
    with fake_server(vllm_answers(tokenizer, lambda asked, n_before: scores([]))) as server:
        teacher = ServedTeacher(TokenScorer(server.url))
        for settings, words in (
            ({"temperature": 0.7}, "temperature=0.7: a server scores"),
            ({"keeps_mask": True}, "keep_"),
        ):
            with pytest.raises(InvalidConfigError, match=words):
                teacher.logps(ids, mask, 2, **settings)
        served = load_teacher(server.url)
        with pytest.raises(InvalidConfigError, match=r"temperature=0.7: a server scores"):
            EnvGRPOTrainer(tiny_folder, DENSE, config(temperature=0.7), algorithm="distill", ref_model_fn=served)
        with pytest.raises(InvalidConfigError, match="reference_update_fn"):
            moved = {"ref_model_fn": served, "reference_update_fn": lambda reference, policy, **_: reference}
            EnvGRPOTrainer(tiny_folder, DENSE, config(), algorithm="distill", **moved)
        with pytest.raises(InvalidConfigError, match="EnvDPOTrainer"):
            args = EnvDPOConfig(output_dir=str(tmp_path))
            EnvDPOTrainer(tiny_folder, args, source=message_pairs(), ref_model_fn=served)
