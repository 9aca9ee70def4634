"""Servers beside a trainer: the warning of whole weights for many servers."""

import warnings

import pytest
from accelerate import Accelerator

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.vllm.transfer import MAX_CHECKPOINT_SERVERS, warn_of_slow_transport
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.engines.servers import ServerEngines, ServerSettings


def test_whole_weights_for_many_servers_are_warned_of():
    with pytest.warns(UserWarning, match=r"17 servers.*vllm_transport='delta'.*'nccl'"):
        warn_of_slow_transport("checkpoint", MAX_CHECKPOINT_SERVERS + 1)
    with warnings.catch_warnings(action="error"):
        warn_of_slow_transport("checkpoint", MAX_CHECKPOINT_SERVERS)
        for transport in ("delta", "nccl", "gloo"):
            warn_of_slow_transport(transport, 1000)


@pytest.mark.parametrize(
    ("n", "transport", "n_warnings"), [(17, "checkpoint", 1), (17, "delta", 0), (16, "checkpoint", 0)]
)
def test_a_trainer_warns_with_its_servers(n, transport, n_warnings):
    """Before it asks the servers, whose addresses are wrong here so that it asks none."""
    tokenizer = tiny_tokenizer()
    settings = ServerSettings(vllm_server_urls=["nowhere"] * n, vllm_transport=transport)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(InvalidConfigError, match="nowhere"):
        warnings.simplefilter("always")
        ServerEngines(
            tiny_model(tokenizer), Accelerator(), tokenizer, settings=settings, version=int, max_concurrency=1, seed=0
        )
    assert sum("read all weights" in str(warning.message) for warning in caught) == n_warnings


@pytest.mark.smoke
def test_a_transport_that_is_not_known_is_refused_before_a_model_is_loaded(tmp_path):
    with pytest.raises(InvalidConfigError, match=r"vllm_transport='rdma'.*checkpoint, delta"):
        EnvGRPOConfig(str(tmp_path), use_vllm=True, vllm_mode="server", vllm_transport="rdma")
