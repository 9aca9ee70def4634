"""What real engines are handed: adapters of every kind on one engine and one server, and wrapped models."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm

import peft  # noqa: E402  (after the skip)
from accelerate import Accelerator  # noqa: E402
from train_wrapped import torchvision_stand_in  # noqa: E402
from trainings import save_biased  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from wrapped import WRAPPED, tiny_wrapped  # noqa: E402

from llm_envs.errors import InvalidConfigError, ModelError  # noqa: E402
from llm_envs.tiny_model import tiny_tokenizer  # noqa: E402
from llm_envs.trainers.engines.probe import mean_gap, probe_ids, probe_logps, shifted  # noqa: E402
from llm_envs.trainers.engines.servers import ServerEngines, ServerSettings  # noqa: E402
from llm_envs.trainers.engines.weight_sync import ColocatedEngine  # noqa: E402

SUPPORT = Path(__file__).parents[2] / "support"
LAYERS = ["q_proj", "v_proj"]


def lora(**changes):
    settings = {"r": 4, "lora_alpha": 8, "target_modules": LAYERS, "task_type": "CAUSAL_LM"}
    return peft.LoraConfig(**{**settings, **changes})


SERVED = {
    "dora": lora(use_dora=True, use_rslora=True),
    "pissa": lora(init_lora_weights="pissa"),
    "olora": lora(init_lora_weights="olora"),
    "all at once": lora(bias="all", trainable_token_indices=[5, 6], modules_to_save=["norm"]),
    "parameters": lora(target_modules=[], target_parameters=["self_attn.q_proj.weight"]),
    "ia3": peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
}
NOT_SERVED = {
    "modules_to_save": lora(modules_to_save=["lm_head"]),
    "embed_tokens": lora(target_modules=["embed_tokens", "q_proj"]),
    "lm_head": lora(target_modules=["lm_head", "q_proj"]),
    "alora_invocation_tokens": lora(alora_invocation_tokens=[5, 6]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_biased(tmp_path_factory.mktemp("biased"), n_layers=2, tie_word_embeddings=True)


@pytest.fixture(scope="module", params=["colocate", "server"])
def engine(request, folder):
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tiny_tokenizer()
    common = {"seed": 0, "version": int, "max_model_length": 192}
    if request.param == "server":
        settings = ServerSettings(server_args="--max-num-seqs 8")
        engine = ServerEngines(model, Accelerator(), tokenizer, settings=settings, max_concurrency=8, **common)
    else:
        engine = ColocatedEngine(
            model, Accelerator(), tokenizer, gpu_memory_utilization=0.3, max_num_seqs=8, model_impl="auto", **common
        )
    yield engine
    engine.close()


def sync(engine, model):
    """Hand a model to the engine as a run does before its first generation."""
    engine.model, engine._is_checked = model, False
    engine.sync_weights()


@pytest.mark.parametrize("name", SERVED)
def test_an_engine_has_what_each_adapter_trains(engine, folder, name):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.get_peft_model(base, copy.deepcopy(SERVED[name]))
    sync(engine, model)
    ids = probe_ids(model)
    before = probe_logps(model, ids)
    assert mean_gap(engine._score(ids), before) < 1e-4
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with shifted(trained, lambda: probe_logps(model, ids)) as (expected, moved):
        engine.sync_weights()
        assert mean_gap(engine._score(ids), expected) < 1e-4
    assert moved > 1e-2


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_an_engine_cannot_have_is_refused_by_name(engine, folder, name):
    config = copy.deepcopy(NOT_SERVED[name])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), config)
    with pytest.raises(InvalidConfigError, match=rf"peft_config=.*{name}.*use_vllm=False"):
        sync(engine, model)


def test_a_model_of_other_names_or_shapes_is_refused(engine, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(400)
    with pytest.raises(ModelError, match=r"embed_tokens\.weight .*\(400, 64\)"):
        sync(engine, model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.layers[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.extra\.bias"):
        sync(engine, model)


@pytest.mark.parametrize(
    ("kind", "mode", "adapter"),
    [
        pytest.param("gemma3", "colocate", "", marks=pytest.mark.smoke),
        ("qwen3_5", "colocate", "lora"),
        ("gemma4", "colocate", "lora"),
        ("qwen3_5", "server", ""),
        ("gemma4", "server", ""),
    ],
)
def test_a_wrapped_model_is_followed_by_its_engine(tmp_path, kind, mode, adapter):
    """Two steps at a high learning rate: the second generation is sampled from weights that the first has changed."""
    assert kind in WRAPPED
    tiny_wrapped(kind, tmp_path / "model")
    torchvision_stand_in(tmp_path / "path")
    run = subprocess.run(
        [sys.executable, str(SUPPORT / "train_wrapped.py"), kind, mode, str(tmp_path / "model"), adapter],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path / "path")])},
        capture_output=True,
        text=True,
    )
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("LOG")] or [run.stderr[-3000:]]
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = json.loads(line.removeprefix("LOG"))
    tolerance = 0.1 if kind == "qwen3_5" else 1e-4  # bfloat16, else float32
    assert first["sampling/guard_logps_gap"] < tolerance
    assert second["sampling/sampling_logp_difference/mean"] < tolerance
