"""One pass over the prefix tree of a micro-batch: the same step as with each row by itself."""

from functools import partial

import pytest
import torch
from architectures import MIXING, NAMES, TOKENIZER, llama_like, model_of, tiny, vision_language_model
from peft import LoraConfig, get_peft_model
from transformers import BloomConfig, GPT2Config, GPTNeoConfig, MambaConfig
from trl.trainer.utils import add_fused_lm_head

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.inference.positions import pass_positions
from llm_envs.trainers import EnvGRPOConfig, EnvGRPOTrainer, EnvPPOConfig, EnvPPOTrainer
from llm_envs.trainers.forward.prefix_tree import build_tree
from llm_envs.trainers.forward.tree_rows import TreeRows, check_tree, reads_tree

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]
CPU = torch.device("cpu")


def rows():
    """Ids, mask and labels of rows of up to 14 tokens, padded on both sides, scored from a column on.

    Three samples of one prompt, and two of them fork again; a row that rewrites a turn in its middle; the beginning
    of a row; and one that shares nothing.
    """
    a = torch.randint(5, 90, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    told = [
        a[:6] + a[6:12],
        a[:6] + a[12:16],
        a[:6] + a[12:14] + a[16:20],
        a[:4] + a[20:23] + a[8:12],
        a[:8],
        a[30:39],
    ]
    ids, mask = torch.full((6, 14), 3), torch.zeros(6, 14, dtype=torch.long)
    for row, (left, tokens) in enumerate(zip([0, 1, 0, 2, 3, 5], told, strict=True)):
        ids[row, left : left + len(tokens)], mask[row, left : left + len(tokens)] = torch.tensor(tokens), 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :6] = -100
    return ids, mask, labels


N_PREFIXES = 12 + 4 + 4 + 7 + 9


def compare(model, causal, exact=1e-5):
    """Compare a tree with one pass for each row, without padding: log-probabilities, entropies and gradients."""
    ids, mask, labels = rows()
    weights = torch.linspace(1, 2, 13)
    found = []
    for is_tree in (False, True):
        model.zero_grad()
        logps, entropies = torch.zeros(6, 13), torch.zeros(6, 13)
        parts = [(slice(0, 6), slice(0, 14))] if is_tree else []
        if not is_tree:
            for row in range(6):
                places = torch.nonzero(mask[row])[:, 0]
                parts.append((slice(row, row + 1), slice(int(places[0]), int(places[-1]) + 1)))
        for part, columns in parts:
            called = TreeRows(model, causal) if is_tree else model
            given = {"input_ids": ids, "attention_mask": mask, "labels": labels}
            given = {name: value[part, columns] for name, value in given.items()}
            outputs = called(**given, fused_lm_head=True)
            scored = given["labels"][:, 1:] != -100
            (outputs.log_probs * scored * weights[columns.start : columns.stop - 1]).sum().backward()
            where = slice(columns.start, columns.stop - 1)
            logps[part, where] = outputs.log_probs.detach() * scored
            entropies[part, where] = outputs.entropy.detach() * scored
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((logps, entropies, gradients))
    (logps, entropies, gradients), (own_logps, own_entropies, own_gradients) = found
    torch.testing.assert_close(own_logps, logps, rtol=0, atol=exact)
    torch.testing.assert_close(own_entropies, entropies, rtol=0, atol=exact)
    largest = max(float(g.abs().max()) for g in gradients.values())
    assert gradients.keys() == own_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(own_gradients[name], gradient, rtol=0, atol=exact * largest, msg=name)


def with_head(model):
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_is_exact_for_many_architectures(name):
    model = with_head(tiny(name)).eval()
    check_tree(model, model, CPU)
    has_experts = any("expert" in part for part, _ in model.named_parameters())
    compare(model, model, exact=1e-4 if has_experts else 1e-5)


@pytest.mark.smoke
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_tree_is_exact_whatever_computes_its_attention(attention, is_checkpointed):
    """Flash attention knows no trees, so that they are left to PyTorch's SDPA."""
    model = with_head(model_of(llama_like(), attn_implementation="eager" if attention == "eager" else "sdpa")).train()
    seen = []
    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if attention != "flash_attention_2":
        compare(model, model)
    else:
        ids, mask, labels = rows()
        before = TreeRows(model, model)(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        model.config._attn_implementation = attention
        after = TreeRows(model, model)(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        torch.testing.assert_close(after.log_probs, before.log_probs, rtol=0, atol=1e-6)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    ids, mask, labels = rows()
    assert len(build_tree(ids, mask)) == N_PREFIXES
    TreeRows(model, model)(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    assert seen == [(1, N_PREFIXES)]


@pytest.mark.smoke
def test_a_tree_is_exact_with_an_adapter():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = get_peft_model(with_head(model_of(llama_like())), LoraConfig(init_lora_weights=False)).train()
    compare(model, model.get_base_model())


@pytest.mark.smoke
def test_rows_without_tokens_to_score_take_a_pass_too():
    model = with_head(model_of(llama_like()))
    ids, mask, labels = rows()
    for own_mask, own_labels in ((mask, torch.full_like(labels, -100)), (mask * 0, labels)):
        outputs = TreeRows(model, model)(
            input_ids=ids,
            attention_mask=own_mask,
            labels=own_labels.masked_fill(own_mask == 0, -100),
            fused_lm_head=True,
        )
        assert not outputs.log_probs.any() and outputs.log_probs.requires_grad and outputs.log_probs.shape == (6, 13)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_that_read_one_token_after_another_are_refused_by_name_whatever_the_dtype(dtype):
    exact = ("gpt_oss", "afmoe", "opt", "falcon", "xglm", "biogpt")
    recurrent = {name: make for name, make in MIXING.items() if name not in exact}
    others = {
        "mamba": lambda: MambaConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=1, state_size=4),
        "bloom": lambda: BloomConfig(vocab_size=len(TOKENIZER), hidden_size=32, n_layer=1, n_head=2),
        "gpt_neo": lambda: GPTNeoConfig(vocab_size=len(TOKENIZER), hidden_size=32, num_layers=2, num_heads=2,
                                        attention_types=[[["global", "local"], 1]]),
    }  # fmt: skip
    for model in [model_of(make()) for make in (recurrent | others).values()]:
        model = model.to(dtype)
        with pytest.raises(ModelError, match=f'forward="prefix_tree": {type(model).__name__}'):
            check_tree(model, pass_positions(model), CPU)
    for model in (tiny("qwen3"), tiny("gpt2"), tiny("gemma3_text"), tiny("gpt_oss"), vision_language_model()):
        check_tree(model.to(dtype).train(), pass_positions(model), CPU)
        assert model.training and not any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.smoke
def test_who_reads_a_tree():
    exact, recurrent = model_of(llama_like()).train(), model_of(MIXING["lfm2"]())
    assert reads_tree("auto", exact, exact, CPU) and reads_tree("prefix_tree", exact, exact, CPU)
    assert not reads_tree("padded", exact, exact, CPU)
    assert not reads_tree("auto", exact, exact, torch.device("cuda"))  # not measured there
    assert not reads_tree("auto", exact, exact, CPU, has_router_loss=True)
    assert not reads_tree("auto", recurrent, recurrent, CPU)
    with pytest.raises(ModelError, match=r"prefix_tree.*Lfm2ForCausalLM.*conv"):
        reads_tree("prefix_tree", recurrent, recurrent, CPU)
    with pytest.raises(ModelError, match="router's loss"):
        TreeRows(exact, exact)(input_ids=None, attention_mask=None, labels=None, output_router_logits=True)
    dropping = model_of(GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2)).train()
    with pytest.warns(UserWarning, match=r"dropout \(0\.1.*disable_dropout"):
        assert not reads_tree("prefix_tree", dropping, dropping, CPU)
    with pytest.raises(InvalidConfigError, match="forward='packed'"):
        EnvGRPOConfig(output_dir="x", forward="packed", bf16=False)


def step_of(folder, args, env="test/Say-v0", kind=EnvGRPOTrainer, **kwargs):
    """Train; return the weights, and how many tokens the model read for the losses."""
    trainer, n_tokens = kind(folder, env, args, **kwargs), []
    compute = trainer._compute_loss

    def counted(*given):
        hook = trainer.model.register_forward_pre_hook(
            lambda module, positional, given: n_tokens.append(
                given["input_ids"].numel() if "input_ids" in given else 0
            ),
            with_kwargs=True,
        )
        loss = compute(*given)
        hook.remove()
        return loss

    trainer._compute_loss = counted
    trainer.train()
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    weights |= trainer.critic.state_dict() if kind is EnvPPOTrainer else {}
    trainer.close()
    return weights, sum(n_tokens)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta": 0.1, "num_iterations": 2, "gradient_checkpointing": True},
        {"algorithm": "pairwise"},
        {"history": "template", "top_p": 0.9, "keep_sampling_mask": True},
        {"peft_config": LoraConfig(init_lora_weights=False, r=2)},
        {"kind": EnvPPOTrainer},
    ],
    ids=["plain", "kl", "pairs", "kept", "lora", "ppo"],
)
def test_a_training_ends_with_the_same_weights(tiny_folder, configure, config, settings):
    kwargs = {name: settings[name] for name in ("algorithm", "peft_config", "kind") if name in settings}
    changes = {"max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "optim": "sgd",
               "learning_rate": 0.1, **{k: v for k, v in settings.items() if k not in kwargs}}  # fmt: skip
    make = partial(configure, EnvPPOConfig, **config.keywords) if "kind" in settings else config
    padded, n_padded = step_of(tiny_folder, make(**changes, forward="padded"), **kwargs)
    tree, n_tree = step_of(tiny_folder, make(**changes, forward="prefix_tree"), **kwargs)
    for name, value in padded.items():
        torch.testing.assert_close(tree[name], value, rtol=0, atol=1e-5, msg=name)
    assert n_tree < 0.8 * n_padded
