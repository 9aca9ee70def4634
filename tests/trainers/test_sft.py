"""Warm start: only the agent's words are trained, and they are learned."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluate import evaluate
from llm_envs.policies.scripted import ConstantPolicy
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.trainers.sft import EnvSFTConfig, EnvSFTTrainer, oracle_trajectories
from llm_envs.types import SamplingParams

ENV = "test/Say-v0"


@pytest.fixture
def settings(tmp_path):
    def make(**changes):
        base = {
            "output_dir": str(tmp_path),
            "max_steps": 1,
            "per_device_train_batch_size": 8,
            "learning_rate": 3e-3,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        return EnvSFTConfig(**{**base, **changes})

    return make


def play(codec, n=8):
    with Collector(ENV, ConstantPolicy("bbbbbb"), codec=codec, progress=False) as collector:
        return [t for group in collector.collect(n) for t in group]


def test_labels_are_the_agents_tokens_and_nothing_else(tiny_folder, settings):
    codec = ChatCodec(AutoTokenizer.from_pretrained(tiny_folder))
    trajectories = play(codec)
    trainer = EnvSFTTrainer(tiny_folder, args=settings(), trajectories=trajectories)
    batch = next(iter(trainer.get_train_dataloader()))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        trained = labels != -100
        assert torch.equal(labels[trained], ids[trained])
        text = codec.tokenizer.decode(labels[trained])
        assert text == "bbbbbb<|im_end|>" * 2
        rest = codec.tokenizer.decode(ids[~trained], skip_special_tokens=False)
        assert "<tool_response>\nbbbbbbbb\n</tool_response>" in rest  # the tool's own b are context, not a target


def test_a_model_learns_what_it_is_shown(tiny_folder, settings):
    trajectories = play(ChatCodec(AutoTokenizer.from_pretrained(tiny_folder)), 32)
    trainer = EnvSFTTrainer(tiny_folder, args=settings(max_steps=80), trajectories=trajectories)
    trainer.train()
    policy = TransformersPolicy(trainer.model, trainer.processing_class)
    sampling = SamplingParams(max_new_tokens=8)
    result = evaluate(ENV, policy, n=20, codec=policy.codec, sampling=sampling, progress=False)
    assert result.success_rate > 0.9
    assert result.trajectories[0].messages[1].content == "bbbbbb"


def test_the_oracle_plays_where_an_environment_is_given(tiny_folder, settings):
    args = settings(num_episodes=5, env_kwargs={"difficulty": "easy"})
    trainer = EnvSFTTrainer(tiny_folder, "llm/GuessNumber-v0", args)
    assert isinstance(trainer.train_dataset, Dataset)
    assert len(trainer.train_dataset) == 5
    codec = ChatCodec(trainer.processing_class)
    played = oracle_trajectories("llm/GuessNumber-v0", codec, 5, env_kwargs={"difficulty": "easy"}, seed=args.seed)
    assert all(t.is_success and t.env_kwargs["split"] == "train" for t in played)
    assert trainer.train_dataset[0]["input_ids"] == played[0].rows[0].ids[: played[0].rows[0].spans[-1][1]].tolist()
    trainer.train()


def test_what_to_train_on_must_be_said_once(tiny_folder, settings):
    for arguments in ({}, {"env": ENV, "trajectories": []}):
        with pytest.raises(InvalidConfigError, match="just one"):
            EnvSFTTrainer(tiny_folder, args=settings(), **arguments)
    with pytest.raises(InvalidConfigError, match="none of 0 trajectories"):
        EnvSFTTrainer(tiny_folder, args=settings(), trajectories=[])


def test_long_episodes_are_trained_whole(tiny_folder, settings):
    codec = ChatCodec(AutoTokenizer.from_pretrained(tiny_folder))
    with Collector(ENV, ConstantPolicy("b" * 1500), codec=codec, progress=False) as collector:
        long = [t for group in collector.collect(8) for t in group]
    trainer = EnvSFTTrainer(tiny_folder, args=settings(), trajectories=long)
    assert {len(row["input_ids"]) for row in trainer.train_dataset} == {long[0].rows[0].spans[-1][1]}


def test_an_oracle_that_fails_is_reported(tiny_folder, settings):
    with pytest.raises(InvalidConfigError, match=r"8 of 8 episodes of the oracle of test/Say-v0 failed.*has no oracle"):
        EnvSFTTrainer(tiny_folder, ENV, settings(num_episodes=8))
