"""A tiny model and some of its episodes, for programs that run on several processes."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A saved tiny model whose every byte is a token."""
    from tiny_folders import save_tiny

    return str(save_tiny(tmp_path_factory.mktemp("model"), hidden_size=64, n_heads=2, max_length=192, seed=3))


@pytest.fixture(scope="session")
def episodes(tmp_path_factory, model_folder):
    """The folder of a run: twenty groups of two episodes that the model has played."""
    from dense_env import DenseEnv
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llm_envs.chat import ChatCodec
    from llm_envs.policies import TransformersPolicy
    from llm_envs.rollout import Collector, EnvChoice, TrajectoryWriter
    from llm_envs.types import SamplingParams

    folder = tmp_path_factory.mktemp("run") / "episodes"
    codec = ChatCodec(AutoTokenizer.from_pretrained(model_folder))
    policy = TransformersPolicy(AutoModelForCausalLM.from_pretrained(model_folder), codec.tokenizer)
    sampling = SamplingParams(max_new_tokens=6)
    with TrajectoryWriter(folder) as writer:
        options = {"codec": codec, "sampling": sampling, "seed": 5, "progress": False}
        with Collector(EnvChoice("dense", factory=DenseEnv), policy, **options) as collector:
            for group in collector.collect(20, 2):
                for trajectory in group:
                    writer.write(trajectory)
    return str(folder)
