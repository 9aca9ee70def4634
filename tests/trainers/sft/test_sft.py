"""Warm start: only the agent's words are trained, and they are learned."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset, load_dataset
from device import on_cpu
from families import family_tokenizer
from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.cli.main import main
from llm_envs.data import best_of, fit_rows, sft_rows, to_dataset, to_groups
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies import ConstantPolicy, OraclePolicy, TransformersPolicy
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvSFTConfig, EnvSFTTrainer
from llm_envs.trainers.sft import oracle_trajectories
from llm_envs.trainers.sft.source import in_tokens_of, load_source, rows_of
from llm_envs.types import SamplingParams

pytestmark = [pytest.mark.transformers, pytest.mark.trainings]
ENV = "test/Say-v0"


@pytest.fixture
def settings(configure, tmp_path):
    rate = {"learning_rate": 3e-3, "lr_scheduler_type": "linear"}
    return partial(configure, EnvSFTConfig, output_dir=str(tmp_path), per_device_train_batch_size=8, **rate)


def play(codec, n=8):
    with Collector(ENV, ConstantPolicy("bbbbbb"), codec=codec, progress=False) as collector:
        return [t for group in collector.collect(n) for t in group]


@pytest.mark.smoke
def test_labels_are_the_agents_tokens_and_nothing_else(tiny_folder, settings):
    codec = ChatCodec(AutoTokenizer.from_pretrained(tiny_folder))
    trajectories = play(codec)
    trainer = EnvSFTTrainer(tiny_folder, args=settings(), source=trajectories)
    batch = on_cpu(next(iter(trainer.get_train_dataloader())))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        trained = labels != -100
        assert torch.equal(labels[trained], ids[trained])
        text = codec.tokenizer.decode(labels[trained])
        assert text == "bbbbbb<|im_end|>" * 2
        rest = codec.tokenizer.decode(ids[~trained], skip_special_tokens=False)
        assert "<tool_response>\nbbbbbbbb\n</tool_response>" in rest  # the tool's own b are context, not a target


def test_a_model_learns_what_it_is_shown(tiny_folder, settings):
    trajectories = play(ChatCodec(AutoTokenizer.from_pretrained(tiny_folder)), 32)
    trainer = EnvSFTTrainer(tiny_folder, args=settings(max_steps=80), source=trajectories)
    trainer.train()
    policy = TransformersPolicy(trainer.model, trainer.processing_class)
    sampling = SamplingParams(max_new_tokens=8)
    result = evaluate(ENV, policy, n=20, codec=policy.codec, sampling=sampling, progress=False)
    assert result.success_rate > 0.9
    assert result.trajectories[0].messages[1].content == "bbbbbb"


@pytest.mark.smoke
def test_the_oracle_plays_where_an_environment_is_given(settings):
    args = settings(num_episodes=5, env_kwargs={"difficulty": "easy"})
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, hidden_size=32, n_heads=2, n_layers=1, max_length=1024)
    trainer = EnvSFTTrainer(model, "llm/GuessNumber-v0", args, processing_class=tokenizer)
    assert isinstance(trainer.train_dataset, Dataset)
    assert len(trainer.train_dataset) == 5
    codec = ChatCodec(trainer.processing_class)
    played = oracle_trajectories("llm/GuessNumber-v0", codec, 5, env_kwargs={"difficulty": "easy"}, seed=args.seed)
    assert all(t.is_success and t.env_kwargs["split"] == "train" for t in played)
    assert trainer.train_dataset[0]["input_ids"] == played[0].rows[0].ids[: played[0].rows[0].spans[-1][1]].tolist()
    trainer.train()


def test_what_to_train_on_must_be_said_once(tiny_folder, settings):
    for arguments in ({}, {"env": ENV, "source": []}):
        with pytest.raises(InvalidConfigError, match=r"source= .*: give one"):
            EnvSFTTrainer(tiny_folder, args=settings(), **arguments)
    with pytest.raises(InvalidConfigError, match="none of 0 trajectories"):
        EnvSFTTrainer(tiny_folder, args=settings(), source=[])


def test_long_episodes_are_trained_whole(tiny_folder, settings):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    with Collector(ENV, ConstantPolicy("b" * 1500), codec=ChatCodec(tokenizer), progress=False) as collector:
        long = [t for group in collector.collect(8) for t in group]
    model = tiny_model(tokenizer, hidden_size=32, n_heads=2, n_layers=1, max_length=4096)
    trainer = EnvSFTTrainer(model, args=settings(), source=long, processing_class=tokenizer)
    assert {len(row["input_ids"]) for row in trainer.train_dataset} == {long[0].rows[0].spans[-1][1]}
    with pytest.raises(InvalidConfigError, match=r"all 8 .*max_length=256"):  # the model's context
        EnvSFTTrainer(tiny_folder, args=settings(), source=long)


def test_an_oracle_that_fails_is_reported(tiny_folder, settings):
    with pytest.raises(InvalidConfigError, match=r"8 of 8 .*test/Say-v0 .*no oracle"):
        EnvSFTTrainer(tiny_folder, ENV, settings(num_episodes=8))


# What is chosen, and what is too long.


def with_reward(trajectory, reward, group, member):
    turns = [replace(turn, reward=0.0) for turn in trajectory.turns]
    turns[0] = replace(turns[0], reward=reward)
    return replace(trajectory, turns=tuple(turns), group_id=group, member=member)


def test_the_best_of_each_group_above_a_threshold():
    (one,) = play(ChatCodec(family_tokenizer("qwen2_5")), 1)
    rewards = {"a": [0.2, 0.9, 0.9, 0.5], "b": [0.1, 0.3], "c": [1.0]}
    played = [with_reward(one, r, g, i) for g, rs in rewards.items() for i, r in enumerate(rs)]
    failed = replace(with_reward(one, 2.0, "b", 2), status="unscored")
    groups = to_groups([*played, failed])
    assert [(t.group_id, t.member) for t in best_of(groups)] == [("a", 1), ("b", 1), ("c", 0)]
    assert [(t.group_id, t.member) for t in best_of(groups, 2, min_reward=0.5)] == [("a", 1), ("a", 2), ("c", 0)]
    with pytest.raises(InvalidConfigError, match="n is 0"):
        best_of(groups, 0)


def test_rows_that_are_too_long_are_dropped_cut_behind_a_turn_or_refused():
    row = {"input_ids": [*range(10)], "labels": [-100, -100, 2, 3, -100, -100, 6, 7, -100, 9]}
    short = {"input_ids": [1, 2], "labels": [-100, 2]}
    assert fit_rows([row, short], None) == ([row, short], {"overlong": 0, "dropped": 0, "cut": 0})
    assert fit_rows([row, short], 10, "error")[0] == [row, short]
    assert fit_rows([row, short], 9) == ([short], {"overlong": 1, "dropped": 1, "cut": 0})
    for length, kept in ((9, 8), (8, 8), (7, 4), (4, 4)):
        cut = {"input_ids": row["input_ids"][:kept], "labels": row["labels"][:kept]}
        assert fit_rows([row, short], length, "cut") == ([cut, short], {"overlong": 1, "dropped": 0, "cut": 1})
    assert fit_rows([row, short], 3, "cut") == ([short], {"overlong": 1, "dropped": 1, "cut": 0})
    with pytest.raises(InvalidConfigError, match=r"row 1 .*10 tokens.*max_length=9"):
        fit_rows([short, row], 9, "error")
    with pytest.raises(InvalidConfigError, match="overlong is 'keep'"):
        fit_rows([row], 9, "keep")


def test_the_trainer_counts_and_logs_what_is_too_long(tiny_folder, settings):
    codec = ChatCodec(AutoTokenizer.from_pretrained(tiny_folder))
    played = play(codec, 4)
    (first, second) = played[0].rows[0].spans
    args = settings(max_length=second[1] - 1, overlong="cut", logging_steps=1)
    trainer = EnvSFTTrainer(tiny_folder, args=args, source=played)
    assert trainer.overlong_rows == {"overlong": 4, "dropped": 0, "cut": 4}
    assert {len(row["input_ids"]) for row in trainer.train_dataset} == {first[1]}
    trainer.train()
    assert trainer.state.log_history[0]["rows/cut"] == 4.0
    with pytest.raises(InvalidConfigError, match=r"all 4 .*max_length=9"):
        EnvSFTTrainer(tiny_folder, args=settings(max_length=9), source=played)
    with pytest.raises(InvalidConfigError, match="overlong='keep'"):
        settings(overlong="keep")


def test_every_row_of_a_forked_trajectory_is_learned_each_token_once(tiny_folder, settings):
    """A template that hides earlier thinking gives a row for each answer that it would show otherwise."""
    tokenizer = family_tokenizer("qwen3")
    codec = ChatCodec(tokenizer)
    with Collector(
        "llm/GuessNumber-v0", ThinkingOracle(), codec=codec, history="template", progress=False
    ) as collector:
        (trajectory,) = [t for group in collector.collect(1) for t in group]
    assert len(trajectory.rows) > 1
    model = tiny_model(tokenizer, hidden_size=32, n_heads=2, n_layers=1, max_length=4096)
    trainer = EnvSFTTrainer(model, args=settings(), source=[trajectory], processing_class=tokenizer)
    assert len(trainer.train_dataset) == len(trajectory.rows)
    trained = sum(label != -100 for row in trainer.train_dataset for label in row["labels"])
    assert trained == trajectory.n_sampled_tokens
    assert sum(
        "<think>" in codec.decode(np.array(labels)[np.array(labels) != -100])
        for labels in trainer.train_dataset["labels"]
    ) == len(trajectory.rows)


class ThinkingOracle(OraclePolicy):
    def act(self, env, observation):
        return f"<think>\nhm\n</think>\n\n{super().act(env, observation)}"


def test_no_thinking_is_learned_behind_a_closed_block(tmp_path):
    """thinking=False: the prompt ends with an empty block of thinking, and the model writes none behind it."""
    codec = ChatCodec(family_tokenizer("qwen3"), thinking=False)
    said = {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"}
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}, said]}) + "\n")
    with Collector("llm/GuessNumber-v0", ThinkingOracle(), codec=codec, progress=False) as collector:
        played = [t for group in collector.collect(1) for t in group]
    for source in (load_source(path, codec), played):
        rows = rows_of(source, codec)
        text = codec.decode(np.array(rows[0]["input_ids"]))
        assert "<|im_start|>assistant\n<think>\n\n</think>\n\n" in text
        learned = [codec.decode(np.array([i for i in row["labels"] if i != -100])) for row in rows]
        assert all(words and "think>" not in words and "hm" not in words.lower() for words in learned)
    assert rows == sft_rows(played)  # its tokens are this model's already


# Packed rows.


def opt_model(tokenizer):
    """A model that does not look at positions to tell packed rows apart."""
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 1}
    return OPTForCausalLM(OPTConfig(vocab_size=len(tokenizer), num_attention_heads=2, **sizes))


@pytest.mark.smoke
def test_packed_rows_are_never_mixed(tiny_folder, settings):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    played = play(ChatCodec(tokenizer))
    with pytest.raises(InvalidConfigError, match="packing_strategy='wrapped'"):
        settings(packing=True, packing_strategy="wrapped", max_length=256)
    for changes in ({"packing": True, "max_length": 256}, {"padding_free": True}):
        trainer = EnvSFTTrainer(
            opt_model(tokenizer), args=settings(**changes), source=played, processing_class=tokenizer
        )
        with pytest.raises(ModelError, match=r"padding-free.*OPTForCausalLM"):
            trainer.train()
    losses = []
    for changes in ({}, {"packing": True, "max_length": 256}):
        trainer = EnvSFTTrainer(tiny_folder, args=settings(**changes, logging_steps=1), source=played)
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


# Saved data sets.


@pytest.mark.smoke
def test_every_saved_form_gives_the_same_rows(tmp_path):
    tokenizer = family_tokenizer("qwen2_5")
    codec = ChatCodec(tokenizer)
    with Collector("llm/Calculator-v0", OraclePolicy(), codec=codec, progress=False) as collector:
        played = [t for group in collector.collect(3) for t in group]
    rows = sft_rows(played)
    with TrajectoryWriter(tmp_path / "run") as writer:
        for trajectory in played:
            writer.write(trajectory)
    for form in ("sft", "messages", "dataset"):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / form), "--to", form]) == 0
    table = to_dataset(played)
    for source in (tmp_path / "run", tmp_path / "sft", tmp_path / "messages", tmp_path / "dataset", table):
        assert rows_of(load_source(source, codec), codec) == rows, source
    assert rows_of(load_source(table, codec), codec, n_best=1, min_reward=1.5) == []
    with pytest.raises(InvalidConfigError, match="best_of and min_reward"):
        rows_of(load_source(tmp_path / "sft", codec), codec, min_reward=0.5)
    with pytest.raises(InvalidConfigError, match="nothing"):
        load_source(tmp_path / "nothing", codec)
    with pytest.raises(InvalidConfigError, match=r"columns \['text'\]"):
        load_source(Dataset.from_dict({"text": ["a"]}), codec)
    (tmp_path / "wrong.jsonl").write_text(json.dumps({"input_ids": [1, 2], "labels": [1]}) + "\n")
    with pytest.raises(InvalidConfigError, match=r"row \d+ .*label.* 2 tokens"):
        load_source(tmp_path / "wrong.jsonl", codec)
    for row, message in (
        ({"input_ids": [1, -2], "labels": [1, -2]}, "the id -2"),
        ({"input_ids": [1, 2.0], "labels": [1, 2]}, r"the id 2\.0"),
        ({"input_ids": [1, 2], "labels": [-100, 3]}, "the label 3 at the token 2"),
    ):
        (tmp_path / "wrong.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(InvalidConfigError, match=f"token row 0 has {message}"):
            load_source(tmp_path / "wrong.jsonl", codec)


def test_episodes_of_another_tokenizer_or_none_are_encoded_from_their_messages():
    codec = ChatCodec(family_tokenizer("qwen2_5"))
    played = {}
    for name, other in (("same", codec), ("llama", ChatCodec(family_tokenizer("llama3_1"))), ("none", None)):
        with Collector("llm/GuessNumber-v0", OraclePolicy(), codec=other, progress=False) as collector:
            played[name] = [t for group in collector.collect(2) for t in group]
    assert in_tokens_of(codec, played["same"]) == played["same"]
    rows = sft_rows(played["same"])
    assert sft_rows(played["llama"]) != rows
    assert sft_rows(in_tokens_of(codec, played["llama"])) == sft_rows(in_tokens_of(codec, played["none"])) == rows


def test_a_trainer_learns_from_a_saved_data_set(tiny_folder, settings, tmp_path):
    path = tmp_path / "talks.jsonl"
    talks = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": word}]} for word in "ab"]
    path.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    trainer = EnvSFTTrainer(tiny_folder, args=settings(), source=path)
    codec = ChatCodec(trainer.processing_class)
    learned = [codec.decode(np.array([i for i in row["labels"] if i != -100])) for row in trainer.train_dataset]
    assert learned == ["a<|im_end|>", "b<|im_end|>"]
    trainer.train()


# Stock TRL on what `llm-envs export` writes.


def stock(kind, tmp_path, **changes):
    settings = {"output_dir": str(tmp_path), "max_steps": 1, "per_device_train_batch_size": 4, "report_to": "none"}
    settings |= {"gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    return kind(**{**settings, "max_length": None, **changes})


def save_model(tmp_path, tokenizer):
    tiny_model(tokenizer, hidden_size=32, n_heads=2, n_layers=1, max_length=2048).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def export(tmp_path, trajectories, form):
    with TrajectoryWriter(tmp_path / "run") as writer:
        for trajectory in trajectories:
            writer.write(trajectory)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out.jsonl"), "--to", form]) == 0
    return load_dataset("json", data_files=str(tmp_path / "out.jsonl"), split="train", cache_dir=str(tmp_path / "hf"))


@pytest.fixture(scope="module")
def calculations():
    """Groups of a right and a wrong answer to a question, of one and of two turns."""
    codec = ChatCodec(family_tokenizer("qwen3_instruct_2507"))
    played = []
    for env in ("llm/Arithmetic-v0", "llm/Calculator-v0"):
        for member, policy in enumerate((OraclePolicy(), ConstantPolicy("<answer>0</answer>"))):
            with Collector(env, policy, codec=codec, progress=False) as collector:
                played += [replace(t, member=member) for group in collector.collect(2) for t in group]
    return codec, codec.tokenizer, played


def test_stock_sft_trains_our_token_rows_as_they_are(tmp_path, calculations):
    _, tokenizer, played = calculations
    args, rows = stock(SFTConfig, tmp_path), export(tmp_path, played, "sft")
    trainer = SFTTrainer(save_model(tmp_path, tokenizer), args=args, train_dataset=rows, processing_class=tokenizer)
    assert list(trainer.train_dataset) == sft_rows(played)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0


def test_stock_sft_trains_our_messages_on_the_assistants_words(tmp_path, calculations):
    """TRL's training template marks them, where it has one for the model; the tokens are the template's, not ours."""
    codec, tokenizer, played = calculations
    talks = export(tmp_path, [t for t in played if t.env_id == "llm/Calculator-v0" and t.is_success], "messages")
    args = stock(SFTConfig, tmp_path, assistant_only_loss=True)
    trainer = SFTTrainer(save_model(tmp_path, tokenizer), args=args, train_dataset=talks, processing_class=tokenizer)
    trained = [codec.decode(np.array([i for i in row["labels"] if i != -100])) for row in trainer.train_dataset]
    assert len(trained) == 2
    for text, talk in zip(trained, talks, strict=True):
        assert '<tool_call>\n{"name": "calculator"' in text and talk["messages"][-1]["content"] in text
        assert "<tool_response>" not in text and "What is" not in text
    trainer.train()


def test_stock_dpo_trains_our_pairs(tmp_path, calculations):
    """One turn: TRL's tokens are ours. Several: it trains what the tool said as well (docs/guides/trl.md)."""
    codec, tokenizer, played = calculations
    pairs = export(tmp_path, [replace(t, group_id=f"{t.env_id}{t.group_id}") for t in played], "pairs")
    assert len(pairs) == 4
    before = list(pairs)
    args = stock(DPOConfig, tmp_path)
    trainer = DPOTrainer(save_model(tmp_path, tokenizer), args=args, train_dataset=pairs, processing_class=tokenizer)
    newline = tokenizer("\n")["input_ids"]
    for ours, theirs in zip(before, trainer.train_dataset, strict=True):
        assert theirs["prompt_ids"] == ours["prompt_ids"]
        assert theirs["chosen_ids"] == ours["chosen_ids"] + newline
        assert theirs["rejected_ids"] == ours["rejected_ids"] + newline
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    trained = [
        codec.decode(ids[mask.bool()].numpy())
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    assert [("<tool_response>" in text) for text in trained[:4]] == [len(row["chosen"]) > 1 for row in before]
    assert sum(len(row["chosen"]) > 1 for row in before) == 2
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(np.log(2), abs=1e-3)  # nothing learned yet
