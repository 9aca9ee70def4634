"""The critic: what it reads, which ones are refused, its optimizer and its files."""

import copy

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference import load_model
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers.forward.trunk import captured_states, trunk_of
from llm_envs.trainers.ppo.critic import Critic, CriticOptimizer, load_critic


@pytest.fixture
def policy(tiny_folder):
    return load_model(tiny_folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder)


def spread(critic):
    """Give the head weights that tell states apart."""
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, critic.head.in_features)[None])
        critic.head.bias.fill_(0.5)
    return critic


def test_an_untrained_critic_values_everything_zero_and_a_trained_one_is_linear():
    critic = Critic(3)
    states = torch.tensor([[[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]]])
    assert critic.is_shared and critic.read(states).tolist() == [[0.0, 0.0]]
    with torch.no_grad():
        critic.head.weight.copy_(torch.tensor([[1.0, 0.5, -2.0]]))
        critic.head.bias.fill_(0.25)
    assert critic.read(states).tolist() == [[-3.75, -8.25]]
    assert critic.read(states.bfloat16()).dtype == torch.float32
    with pytest.raises(ValueError, match="trunk"):
        critic(torch.ones(1, 2), torch.ones(1, 2))


@pytest.mark.parametrize("with_adapter", [False, True])
def test_the_policys_own_pass_gives_the_states_with_gradient(policy, with_adapter):
    if with_adapter:
        policy = peft.get_peft_model(policy, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    ids = torch.arange(10, 22).view(2, 6)
    with captured_states(policy) as states:
        expected = policy(ids, output_hidden_states=True).hidden_states[-1]
    policy(ids)
    assert len(states) == 1  # nothing is kept of passes outside the block
    assert torch.equal(states[0], expected) and states[0].requires_grad


def test_a_separate_critic_does_not_see_the_padding(policy, tokenizer, tiny_folder):
    critic = spread(load_critic(tiny_folder, policy, tokenizer))
    ids, mask = torch.arange(10, 22).view(2, 6), torch.ones(2, 6, dtype=torch.long)
    wide = torch.nn.functional.pad(ids, (3, 2), value=7), torch.nn.functional.pad(mask, (3, 2))
    assert not critic.is_shared
    assert torch.allclose(critic(*wide)[:, 3:9], critic(ids, mask), atol=1e-5)
    expected = critic.read(policy(ids, output_hidden_states=True).hidden_states[-1])
    assert torch.allclose(critic(ids, mask), expected, atol=1e-5)


def test_a_critic_is_read_as_it_was_written(policy, tokenizer, tiny_folder, tmp_path):
    ids, mask = torch.arange(10, 22).view(2, 6), torch.ones(2, 6, dtype=torch.long)
    shared, separate = spread(Critic(64)), spread(load_critic(tiny_folder, policy, tokenizer))
    with torch.no_grad():
        separate.trunk.get_input_embeddings().weight.mul_(2.0)
    shared.save(tmp_path / "shared")
    separate.save(tmp_path / "separate")
    again = load_critic(tmp_path / "shared", policy, tokenizer)
    assert again.is_shared and torch.equal(again.head.weight, shared.head.weight)
    again = load_critic(str(tmp_path / "separate"), policy, tokenizer)
    assert torch.equal(again(ids, mask), separate(ids, mask))
    resumed = load_critic(tiny_folder, policy, tokenizer)
    resumed.load(tmp_path / "separate")
    assert torch.equal(resumed(ids, mask), separate(ids, mask))


def test_other_files_are_refused(policy, tokenizer, tiny_folder, tmp_path):
    Critic(64).save(tmp_path / "shared")
    with pytest.raises(ModelError, match="EnvPPOTrainer"):
        Critic(64).load(tmp_path)
    with pytest.raises(ModelError, match=r"shared.*`critic`"):
        load_critic(tiny_folder, policy, tokenizer).load(tmp_path / "shared")
    with pytest.raises(ModelError, match=r"shared.*`critic`"):
        Critic(32).load(tmp_path / "shared")


def test_models_with_other_heads_and_widths_are_critics(policy, tokenizer, tiny_folder):
    classifier = AutoModelForSequenceClassification.from_pretrained(tiny_folder, num_labels=1)
    assert load_critic(classifier, policy, tokenizer).trunk is classifier.base_model
    narrow = tiny_model(tokenizer, hidden_size=32, n_heads=2, max_length=192)
    assert load_critic(narrow, policy, tokenizer).head.in_features == 32


def test_a_critic_may_know_further_tokens(policy, tokenizer, tmp_path):
    """As a reference may: it is only asked about the policy's tokens."""
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["<one-more>"])
    tiny_model(larger, hidden_size=32, n_heads=2, max_length=192).save_pretrained(tmp_path)
    larger.save_pretrained(tmp_path)
    assert load_critic(str(tmp_path), policy, tokenizer).head.in_features == 32


def test_what_cannot_be_a_critic_is_refused(policy, tokenizer, tmp_path):
    # As large, and each id another word: only the tokenizer beside it tells.
    other = tiny_tokenizer(["the cat sat on the mat, the dog on the log"] * 3, vocab_size=290)
    tiny_model(other, hidden_size=32, n_heads=2, max_length=192).save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"tokenizer.*vocabulary"):
        load_critic(str(tmp_path), policy, tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(InvalidConfigError, match="its vocabulary differs"):
        load_critic(loaded, policy, tokenizer)
    nameless = tiny_model(other, hidden_size=32, n_heads=2, max_length=192)
    with pytest.raises(InvalidConfigError, match=r"\d+ ids, the policy \d+"):
        load_critic(nameless, policy, tokenizer)
    with pytest.raises(ModelError, match="the policy itself"):
        load_critic(policy, policy, tokenizer)
    with pytest.raises(ModelError, match=r"critic .*int"):
        load_critic(3, policy, tokenizer)
    adapted = peft.get_peft_model(
        tiny_model(tokenizer, hidden_size=32, n_heads=2),
        peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    )
    with pytest.raises(ModelError, match="merge its adapter"):
        load_critic(adapted, policy, tokenizer)
    with pytest.raises(ModelError, match=r"trunk.*`critic=`"):
        trunk_of(policy.base_model)


def test_the_step_is_cut_to_its_norm_and_gradients_are_gone(tmp_path):
    class OneProcess:
        num_processes = 1

    critic = Critic(2)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.5, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    steps = CriticOptimizer(critic, optimizer, schedule, max_grad_norm=1.0)
    critic.read(torch.tensor([[3.0, 4.0]])).sum().backward()  # (3, 4) and 1 for the bias
    critic.head.bias.grad = None  # a parameter without gradient has one of 0
    assert steps.learning_rate == 0.5
    assert steps.clip(OneProcess()) == pytest.approx(5.0)
    steps.step()
    assert critic.head.weight[0].tolist() == pytest.approx([-0.3, -0.4], abs=1e-5)
    assert critic.head.bias.item() == 0 and critic.head.weight.grad is None
    assert steps.learning_rate == 0.25
    steps.save(tmp_path)
    fresh = torch.optim.SGD(critic.parameters(), lr=0.5, momentum=0.5)
    again = CriticOptimizer(
        critic, fresh, torch.optim.lr_scheduler.LambdaLR(fresh, lambda step: 1.0 / (1 + step)), max_grad_norm=1.0
    )
    again.load(tmp_path)
    again.clip(OneProcess())
    again.step()  # of no gradient: momentum 0.5 of (0.6, 0.8) at 0.25
    assert critic.head.weight[0].tolist() == pytest.approx([-0.375, -0.5], abs=1e-5)
