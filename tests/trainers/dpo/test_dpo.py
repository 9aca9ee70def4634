"""EnvDPOTrainer: what a pair is, what its loss sees, where pairs come from, and that it learns."""

import json
import math
import runpy
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from device import on_cpu, rounding, to_device
from families import family_tokenizer
from peft import LoraConfig
from trainings import DENSE
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from llm_envs.chat import ChatCodec
from llm_envs.data import preference_pairs, to_dataset, to_groups, write_jsonl
from llm_envs.errors import InvalidConfigError, TimeLimitError
from llm_envs.policies import ConstantPolicy, OraclePolicy, TransformersPolicy
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvDPOConfig, EnvDPOTrainer
from llm_envs.trainers.dpo.pairs import check_tokenizer, fit_pairs, pair_rows
from llm_envs.trainers.functional.pairs import all_pairs, dpo_loss, hinge_loss, ipo_loss, pair_log_ratios
from llm_envs.types import SamplingParams, TrajectoryGroup

pytestmark = pytest.mark.trainings

ENV = "test/Say-v0"
TRL_LOSSES = [
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
]


@pytest.fixture
def settings(configure):
    return partial(configure, EnvDPOConfig, max_steps=-1, per_device_train_batch_size=4)


@pytest.fixture
def make(tiny_folder, settings):
    def build(args=None, **kwargs):
        return EnvDPOTrainer(tiny_folder, args or settings(), **kwargs)

    return build


@pytest.fixture(scope="module")
def codec(tiny_folder):
    return ChatCodec(AutoTokenizer.from_pretrained(tiny_folder))


@pytest.fixture(scope="module")
def played(tiny_folder, codec):
    """Eight groups of four episodes of two turns, each reply with a reward of its own."""
    policy = TransformersPolicy(AutoModelForCausalLM.from_pretrained(tiny_folder), codec.tokenizer)
    sampling = SamplingParams(max_new_tokens=8)
    with Collector(DENSE, policy, codec=codec, sampling=sampling, seed=5, progress=False) as collector:
        return [t for group in collector.collect(8, 4) for t in group]


def rewarded(trajectory, reward, group="g", member=0):
    turns = [replace(turn, reward=0.0) for turn in trajectory.turns]
    turns[0] = replace(turns[0], reward=reward)
    return replace(trajectory, turns=tuple(turns), group_id=group, member=member)


def moved(trainer, seed=0):
    """Move the policy away from its reference, the same for any two trainers of one model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_((0.05 * torch.randn(parameter.shape, generator=generator)).to(parameter.device))
    return trainer


def batch_of(trainer, n=4):
    return collated(trainer, [trainer.train_dataset[index] for index in range(n)])


def collated(trainer, rows):
    return to_device(trainer.data_collator(rows), trainer.model.device)


# What the loss sees.


def test_the_mask_is_on_the_agents_tokens_alone(make, played, codec):
    trainer = make(source=played)
    batch = on_cpu(batch_of(trainer))
    assert len(batch["input_ids"]) == 8  # four chosen, four rejected
    said = {tuple(m.content for m in t.messages if m.role == "assistant") for t in played}
    for ids, own in zip(batch["input_ids"], batch["completion_mask"].bool(), strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], own.numpy(), [0]])))
        runs = [codec.decode_reply(ids[start:stop].numpy()) for start, stop in edges.reshape(-1, 2)]
        assert tuple(runs) in said
        assert "Go on." in codec.decode(ids[~own].numpy()) and "Go on." not in codec.decode(ids[own].numpy())


@pytest.mark.smoke
def test_the_loss_by_hand(make, played):
    """A head of zeros gives each of V tokens -log V; the references are given, so the log-ratios are 2 and -1."""
    trainer = make(source=played)
    torch.nn.init.zeros_(trainer.model.get_output_embeddings().weight)
    row = trainer.train_dataset[0]
    each = -math.log(trainer.model.config.vocab_size)
    row["ref_chosen_logps"] = sum(row["chosen_mask"]) * each - 2.0
    row["ref_rejected_logps"] = sum(row["rejected_mask"]) * each + 1.0
    assert sum(row["chosen_mask"]) < len(row["chosen_ids"])
    trainer.precompute_ref_logps = True
    loss = trainer.compute_loss(trainer.model, collated(trainer, [row]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.1 * 3.0)), abs=1e-5)


@pytest.mark.parametrize(
    ("loss_type", "loss_fn", "average"), [("sigmoid", dpo_loss, 0), ("hinge", hinge_loss, 0), ("ipo", ipo_loss, 1)]
)
def test_loss_and_gradient_are_those_of_the_masked_equation(make, played, settings, loss_type, loss_fn, average):
    """From plain logits, where masked places are cut off: no token of the environment's has a gradient."""
    trainer = moved(make(source=played, args=settings(beta=0.3, loss_type=loss_type)))
    batch = batch_of(trainer)
    loss = trainer.compute_loss(trainer.model, batch)
    gradients = torch.autograd.grad(loss, list(trainer.model.parameters()), allow_unused=True)

    def logps(model):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]

    pairs = torch.tensor([[i, i + 4] for i in range(4)], device=trainer.model.device)
    with torch.no_grad():
        reference = logps(trainer.ref_model)
    mask = batch["completion_mask"][:, 1:]
    ratios = pair_log_ratios(logps(trainer.model), reference, mask, pairs, average=bool(average))
    expected = loss_fn(*ratios, beta=0.3).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, list(trainer.model.parameters()), allow_unused=True), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=rounding(1e-6))


@pytest.mark.smoke
def test_single_turn_pairs_are_trls_own_under_every_loss(make, settings, tiny_folder, tmp_path):
    """The template writes nothing behind a turn here: elsewhere TRL trains that, too (docs/dpo.md)."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n} + 1?"}],
            "chosen": [{"role": "assistant", "content": str(n + 1)}],
            "rejected": [{"role": "assistant", "content": f"It is {n}."}],
        }
        for n in range(4)
    ]
    data = Dataset.from_list(rows)
    common = {"label_smoothing": 0.1, "report_to": "none", "gradient_checkpointing": False, "bf16": False}
    common |= {"loss_type": ["robust"]}  # smooths labels
    stock = moved(
        DPOTrainer(
            tiny_folder,
            args=DPOConfig(output_dir=str(tmp_path), **common),
            train_dataset=data,
            processing_class=tokenizer,
        )
    )
    ours = moved(make(source=data, args=settings(**common), processing_class=tokenizer))
    expected, batch = batch_of(stock), batch_of(ours)
    for name in ("input_ids", "attention_mask", "completion_mask"):
        assert torch.equal(batch[name], expected[name])
    for loss_type in TRL_LOSSES:
        stock.loss_types = ours.loss_types = [loss_type]
        one, other = (t.compute_loss(t.model, b) for t, b in ((stock, expected), (ours, batch)))
        assert one.item() == pytest.approx(other.item(), abs=rounding(1e-6)), loss_type


# What a pair is.


def ordered_pairs(rewards_B, group_ids_B):
    """Select ties and the wrong way round, too."""
    return torch.cartesian_prod(torch.arange(len(rewards_B)), torch.arange(len(rewards_B)))


@pytest.mark.smoke
def test_a_pair_has_one_seed_and_no_tie(played, settings):
    groups = to_groups(played)
    rows = pair_rows(groups, settings(), ordered_pairs)
    assert len(rows) > 8
    assert all(row["chosen_reward"] > row["rejected_reward"] for row in rows)
    seeds = {t.group_id: t.seed for t in played}
    prompts = {t.group_id: t.rows[0].ids[: t.rows[0].prompt_length].tolist() for t in played}
    assert len(set(seeds.values())) == 8
    assert all(row["prompt_ids"] == prompts[row["group_id"]] for row in rows)
    tied = [rewarded(t, 0.5, "g", n) for n, t in enumerate(played[:4])]
    assert pair_rows(to_groups(tied), settings(), ordered_pairs) == []
    mixed = [rewarded(played[0], 1.0, "g", 0), rewarded(played[4], 0.0, "g", 1)]
    one = TrajectoryGroup("g", mixed[0].env_id, mixed[0].seed, tuple(mixed))
    with pytest.raises(InvalidConfigError, match=r"group g .* 2 seeds"):
        pair_rows([one], settings())
    twice = [rewarded(played[0], 1.0, "g", 0), rewarded(played[0], 0.0, "g", 1)]
    assert pair_rows(to_groups(twice), settings()) == []  # equal tokens say nothing


def test_each_group_is_selected_from_by_the_settings(played, settings):
    """Two groups of rewards 0, 0.5, 1 and 0.9; the best episode has three times the tokens of the worst."""
    lengths = [10, 14, 30, 12]
    members = [
        long(rewarded(played[4 * g + n], reward, str(g), n), lengths[n])
        for g in range(2)
        for n, reward in enumerate([0.0, 0.5, 1.0, 0.9])
    ]

    def chosen(selector=None, **changes):
        rows = pair_rows(to_groups(members), settings(**changes), selector)
        return [
            [(row["chosen_member"], row["rejected_member"]) for row in rows if row["group_id"] == group]
            for group in ("0", "1")
        ]

    every = [(1, 0), (2, 0), (2, 1), (2, 3), (3, 0), (3, 1)]
    assert chosen() == [[(2, 0)]] * 2
    assert chosen(pair_selector="all") == chosen(all_pairs) == [every] * 2
    assert chosen(pair_selector="all", pair_margin=0.45) == [[(1, 0), (2, 0), (2, 1), (3, 0)]] * 2
    assert chosen(pair_selector="length") == [[(3, 0)]] * 2
    drawn = chosen(pair_selector="random", pairs_per_group=2, pair_margin=0.45)
    assert all(len(set(pairs)) == 2 and set(pairs) <= {(1, 0), (2, 0), (2, 1), (3, 0)} for pairs in drawn)
    assert drawn == chosen(pair_selector="random", pairs_per_group=2, pair_margin=0.45)
    draws = [chosen(pair_selector="random", seed=seed) for seed in range(20)]
    assert len({one[0] for one, _ in draws}) > 2 and any(one != other for one, other in draws)


def long(trajectory, n):
    """Return an episode whose one turn has `n` tokens, which tell it from others."""
    row = trajectory.rows[0]
    tail = np.full(n, 1 + trajectory.member, dtype=np.int32)
    grown = replace(
        row,
        ids=np.concatenate([row.ids[: row.prompt_length], tail]),
        mask=np.concatenate([row.mask[: row.prompt_length], np.ones(n, dtype=bool)]),
        logps=np.zeros(row.prompt_length + n, dtype=np.float32),
        spans=((row.prompt_length, row.prompt_length + n),),
    )
    return replace(trajectory, rows=(grown,))


def test_long_pairs_are_dropped_or_cut_behind_a_turn():
    row = {"prompt_ids": [1, 2], "chosen_reward": 1.0, "rejected_reward": 0.0}
    row |= {"chosen_ids": [3, 4, 9, 5], "chosen_mask": [1, 1, 0, 1], "rejected_ids": [6], "rejected_mask": [1]}
    kept, counts = fit_pairs([row], 5, "cut")
    assert kept[0]["chosen_ids"] == [3, 4] and kept[0]["chosen_mask"] == [1, 1] and kept[0]["rejected_ids"] == [6]
    assert counts == {"overlong": 1, "dropped": 0, "cut": 1}
    assert fit_pairs([row], 5, "drop") == ([], {"overlong": 1, "dropped": 1, "cut": 0})
    assert fit_pairs([row], 6, "drop")[0] == [row]
    with pytest.raises(InvalidConfigError, match="6 tokens"):
        fit_pairs([row], 5, "error")


# Sources.


def token_columns(trainer):
    names = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")
    return [{name: row[name] for name in names} for row in trainer.train_dataset]


def test_every_form_on_disk_gives_the_same_pairs(make, played, tmp_path):
    expected = token_columns(make(source=played))
    assert len(expected) == 8
    with TrajectoryWriter(tmp_path / "run") as writer:
        for trajectory in played:
            writer.write(trajectory)
    to_dataset(played).save_to_disk(str(tmp_path / "table"))
    pairs = preference_pairs(to_groups(played))
    write_jsonl(pairs, tmp_path / "pairs.jsonl")
    for source in (tmp_path / "run", tmp_path / "table", tmp_path / "pairs.jsonl", Dataset.from_list(pairs)):
        assert token_columns(make(source=source)) == expected, source


def test_messages_are_encoded_with_what_the_environment_said_masked(make, codec, tmp_path):
    def talk(first, last):
        tool = {"role": "tool", "content": "bbbb"}
        return [{"role": "assistant", "content": first}, tool, {"role": "assistant", "content": last}]

    rows = [{"prompt": [{"role": "user", "content": "Go"}], "chosen": talk("aa", "ab"), "rejected": talk("ac", "ad")}]
    write_jsonl(rows, tmp_path / "messages.jsonl")
    row = make(source=tmp_path / "messages.jsonl").train_dataset[0]
    own = [token for token, mask in zip(row["chosen_ids"], row["chosen_mask"], strict=True) if mask]
    assert codec.decode(np.array(own)) == "aa<|im_end|>ab<|im_end|>"
    assert "<tool_response>\nbbbb\n</tool_response>" in codec.decode(np.array(row["chosen_ids"]))
    whole = [{name: rows[0]["prompt"] + rows[0][name] for name in ("chosen", "rejected")}]  # the prompt not set apart
    assert token_columns(make(source=Dataset.from_list(whole)))[0]["chosen_ids"] == row["chosen_ids"]
    scored = [
        {"messages": rows[0]["prompt"] + rows[0][name], "reward": reward, "group_id": "7"}
        for name, reward in (("rejected", 0.0), ("chosen", 2.0))
    ]
    write_jsonl(scored, tmp_path / "scored.jsonl")
    assert token_columns(make(source=tmp_path / "scored.jsonl"))[0]["chosen_ids"] == row["chosen_ids"]


def test_it_learns_from_a_fixed_data_set(make, played, settings, tmp_path):
    args = settings(max_steps=12, learning_rate=3e-3, eval_strategy="steps", eval_steps=12)
    trainer = make(source=played, args=args, eval_source=played)
    trainer.train()
    logged = trainer.state.log_history
    assert logged[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    (evaluated,) = [entry for entry in logged if "eval_rewards/margins" in entry]
    assert evaluated["eval_rewards/accuracies"] == 1.0 and evaluated["eval_rewards/margins"] > 1.0


def test_precomputed_references_are_the_references_and_are_cached(make, played, settings, monkeypatch):
    plain = moved(make(source=played))
    args = settings(precompute_ref_log_probs=True)
    trainer = moved(make(source=played, args=args))
    assert trainer.ref_model is None
    losses = [t.compute_loss(t.model, batch_of(t)).item() for t in (plain, trainer)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and losses[0] != pytest.approx(math.log(2), abs=1e-3)

    def fail(*arguments):
        raise AssertionError("computed again")

    monkeypatch.setattr(EnvDPOTrainer, "compute_ref_log_probs", fail)
    again = make(source=played, args=args)
    assert again.train_dataset["ref_chosen_logps"][:] == trainer.train_dataset["ref_chosen_logps"][:]


def test_lora_takes_the_model_without_its_adapter_as_reference(make, played, settings):
    adapter = LoraConfig(target_modules=["q_proj"], r=2)
    trainer = make(source=played, args=settings(max_steps=2, learning_rate=0.05), peft_config=adapter)
    trainer.train()
    assert trainer.ref_model is None
    first, second = (entry["loss"] for entry in trainer.state.log_history[:2])
    assert first == pytest.approx(math.log(2), abs=1e-6) and second != pytest.approx(first, abs=1e-4)


@pytest.mark.smoke
def test_a_checkpoint_of_online_dpo_is_refused_by_name(make, played, settings):
    """Earlier versions had it: such a checkpoint names itself in its state."""
    args = settings(max_steps=1, save_strategy="steps", save_steps=1)
    make(args, source=played).train()
    file = Path(args.output_dir) / "checkpoint-1" / "llm_envs_state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "online": True, "round": 0}))
    with pytest.raises(InvalidConfigError, match=r'checkpoint-1 .*algorithm="pairwise"'):
        make(settings(max_steps=2), source=played).train(resume_from_checkpoint=str(file.parent))


def test_the_example_trains_from_a_file(tiny_folder, tmp_path, monkeypatch):
    says = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    write_jsonl([{"prompt": [{"role": "user", "content": "Go"}]} | says], tmp_path / "pairs.jsonl")
    options = {"source": tmp_path / "pairs.jsonl", "model_name_or_path": tiny_folder, "output_dir": tmp_path / "out"}
    options |= {"max_steps": 2, "per_device_train_batch_size": 1, "report_to": "none", "save_strategy": "no"}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    program = Path(__file__).parents[3] / "examples" / "train_dpo.py"
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    runpy.run_path(str(program), run_name="__main__")
    assert (tmp_path / "out" / "model.safetensors").exists()


# Bad input.


def test_nothing_to_compare_is_refused(make, played, settings, tmp_path):
    tied = [rewarded(t, 0.5, t.group_id, t.member) for t in played]
    with pytest.raises(InvalidConfigError, match=r"pair_margin=0\.0"):
        make(source=tied)
    with pytest.raises(InvalidConfigError, match="pair_margin=5"):
        make(source=played, args=settings(pair_margin=5))
    with pytest.raises(InvalidConfigError, match=r"all 8 .* 9 tokens \(max_length=9"):
        make(source=played, args=settings(max_length=9))
    long = {name: [{"role": "assistant", "content": name * 64}] for name in ("chosen", "rejected")}
    write_jsonl([{"prompt": [{"role": "user", "content": "Go"}]} | long], tmp_path / "long.jsonl")
    for changes in ({}, {"max_length": 10_000}):  # the model's context is 256
        with pytest.raises(InvalidConfigError, match=r"all 1 .* 256 tokens"):
            make(source=str(tmp_path / "long.jsonl"), args=settings(**changes))
    rows = [{"chosen_reward": 0.0, "rejected_reward": 0.0, **row} for row in preference_pairs(to_groups(played))]
    equal = Dataset.from_list([row | {"chosen_reward": 0.0, "rejected_reward": 0.0} for row in rows])
    with pytest.raises(InvalidConfigError, match=r" 8 pairs"):
        make(source=equal)


def test_tokens_without_masks_or_beyond_the_vocabulary_are_refused(make, played, settings):
    pairs = Dataset.from_list(preference_pairs(to_groups(played)))
    with pytest.raises(InvalidConfigError, match=r"pair 0 .*chosen_mask.*--to pairs"):
        make(source=pairs.remove_columns(["chosen_mask"]))
    short = [row | {"rejected_mask": row["rejected_mask"][:-1]} for row in pairs]
    with pytest.raises(InvalidConfigError, match="pair 0: rejected_mask"):
        make(source=Dataset.from_list(short))
    beyond = [row | {"chosen_ids": [10**6, *row["chosen_ids"][1:]]} for row in pairs]
    with pytest.raises(InvalidConfigError, match=r"\b1000000\b"):
        make(source=Dataset.from_list(beyond))
    wordless = [replace(t, rows=(), turns=tuple(replace(u, row=-1, span=-1) for u in t.turns)) for t in played]
    with pytest.raises(InvalidConfigError, match="encode_messages=True"):
        make(source=wordless)
    assert len(make(source=wordless, args=settings(encode_messages=True)).train_dataset) == 8


def test_episodes_of_another_tokenizer_are_refused_or_encoded_anew(make, settings, tiny_folder):
    other = tiny_tokenizer(["Say something about", "Go on. Say more."], vocab_size=300)
    policy = TransformersPolicy(tiny_model(other, hidden_size=16, n_heads=2, max_length=192), other)
    sampling = SamplingParams(max_new_tokens=8)
    with Collector(DENSE, policy, codec=ChatCodec(other), sampling=sampling, progress=False) as collector:
        foreign = [t for group in collector.collect(8, 2) for t in group]
    with pytest.raises(InvalidConfigError, match=r"pair \d .*encode_messages=True"):
        make(source=foreign)
    assert len(make(source=foreign, args=settings(encode_messages=True)).train_dataset) == 8


@pytest.mark.parametrize("family", ["gptoss", "gemma4", "glm4moe", "qwen3"])
def test_words_in_a_models_own_format_are_its_own(family, settings):
    """An oracle's call stands in the tokens as the model would write it, not as in the message."""
    codec = ChatCodec(family_tokenizer(family))
    members = []
    for member, policy in enumerate([OraclePolicy(), ConstantPolicy("I say 42. "), ConstantPolicy("")]):
        with Collector("llm/Calculator-v0", policy, codec=codec, seed=1, progress=False) as collector:
            members += [rewarded(t, -member, t.group_id, member) for group in collector.collect(2) for t in group]
    rows = pair_rows(to_groups(members), settings(pair_selector="all"))
    assert len(rows) == 6
    check_tokenizer(rows, codec)
    row = rows[0]
    wrong = [token - 1 if own else token for token, own in zip(row["chosen_ids"], row["chosen_mask"], strict=True)]
    with pytest.raises(InvalidConfigError, match=r"pair \d .*encode_messages=True"):
        check_tokenizer([row | {"chosen_ids": wrong}], codec)


def test_bad_settings_are_one_line_errors(make, played, settings, tiny_folder):
    for arguments in ({}, {"env": ENV}, {"source": played, "group_filter": len}, {"args": "llm/Calculator-v0"}):
        with pytest.raises(InvalidConfigError, match=r'source|args.*algorithm="pairwise"'):
            make(**arguments)
    for name, value in [
        ("pair_selector", "best"), ("pair_margin", -1.0), ("overlong", "keep"), ("pair_length_ratio", 0.5),
        ("pairs_per_group", 0),
    ]:  # fmt: skip
        with pytest.raises(InvalidConfigError, match=f"{name}="):
            settings(**{name: value})
    with pytest.raises(InvalidConfigError, match="use EnvDPOConfig"):
        make(source=played, args=DPOConfig(output_dir="x", bf16=False))
    with pytest.raises(InvalidConfigError, match=r"source=.*train_dataset"):
        make(source=played, train_dataset=None)
    text = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(InvalidConfigError, match="prompt, chosen, rejected"):
        make(source=text)
    with pytest.raises(InvalidConfigError, match="--to pairs"):
        make(source=Dataset.from_list([{"input_ids": [1, 2], "labels": [-100, 2]}]))


def test_a_selector_that_never_ends_ends_the_run(make, settings, played):
    def never_ends(rewards_B, group_ids_B):
        time.sleep(600.0)

    with pytest.raises(TimeLimitError, match="the selector"):
        make(settings(max_function_s=0.2), source=played, selector=never_ends)
