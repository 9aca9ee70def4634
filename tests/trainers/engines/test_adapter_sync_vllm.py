"""An adapter as such on a real engine and a real server: the trainer's log-probabilities, and nothing else is sent."""

import warnings

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

import peft  # noqa: E402  (after the skip)
from accelerate import Accelerator  # noqa: E402
from trainings import save_biased  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from llm_envs.policies.vllm.exchange import is_ours  # noqa: E402
from llm_envs.tiny_model import tiny_tokenizer  # noqa: E402
from llm_envs.trainers.engines.probe import mean_gap, probe_ids, probe_logps, shifted  # noqa: E402
from llm_envs.trainers.engines.servers import ServerEngines, ServerSettings  # noqa: E402
from llm_envs.trainers.engines.weight_sync import ColocatedEngine  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_biased(tmp_path_factory.mktemp("biased"), n_layers=2, tie_word_embeddings=True)


@pytest.fixture
def start(folder, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    engines = []

    def run(kind, **changes):
        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | changes
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model = peft.get_peft_model(base, peft.LoraConfig(**settings))
        common = {"seed": 0, "version": int, "max_model_length": 192, "lora_sync": "adapter"}
        if kind == "server":
            settings = ServerSettings(server_args="--max-num-seqs 8")
            engine = ServerEngines(
                model, Accelerator(), tiny_tokenizer(), settings=settings, max_concurrency=8, **common
            )
        else:
            common |= {"gpu_memory_utilization": 0.3, "max_num_seqs": 8}
            engine = ColocatedEngine(model, Accelerator(), tiny_tokenizer(), **common)
        engines.append(engine)
        return engine, model

    yield run
    for engine in engines:
        engine.close()


def assert_follows(engine, model):
    ids = probe_ids(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine.sync_weights()
    with shifted(trained, lambda: probe_logps(model, ids)) as (expected, moved):
        engine.sync_weights()
        assert mean_gap(engine._score(ids), expected) < 1e-4
    assert moved > 1e-2


@pytest.mark.smoke
def test_a_server_gets_the_adapter_and_no_weights(start):
    engine, model = start("server")
    assert_follows(engine, model)
    assert engine.policy.checkpoint is None
    assert not any(is_ours(facts.tag) for facts in engine.policy.facts)


def test_a_base_that_is_not_the_checkpoint_is_sent_once(start, monkeypatch):
    """PiSSA takes its first adapter out of the base."""
    engine, model = start("colocate", init_lora_weights="pissa")
    sent = []
    update = engine.policy.update_weights
    monkeypatch.setattr(engine.policy, "update_weights", lambda *args: sent.append(update(*args)))
    with warnings.catch_warnings(action="error", category=UserWarning):
        assert_follows(engine, model)
    assert len(sent) == 1


def test_what_the_engine_refuses_is_merged_and_named(start, monkeypatch):
    """The engine is started for rank 1, as a layer that vLLM does not adapt would be found out: at the first update."""
    monkeypatch.setattr("llm_envs.trainers.engines.weight_sync.adapter_rank", lambda model: 1)
    engine, model = start("colocate", r=16)
    with pytest.warns(UserWarning, match=r"lora_sync='merged' is used: vLLM refuses the adapter.*rank 16"):
        assert_follows(engine, model)
