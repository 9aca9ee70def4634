"""Adapters: their files, and when one is no longer needed."""

import json

import pytest
import torch
from safetensors.torch import load_file

from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.policies.vllm.adapters import (
    Adapter,
    AdapterShelf,
    check_bare,
    n_adapter_bytes,
    rank_setting,
    write_adapter,
)
from llm_envs.policies.vllm.exchange import WeightStore, version_of

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS = {f"{LAYER}.lora_A.weight": torch.ones(2, 8), f"{LAYER}.lora_B.weight": torch.full((4, 2), 3.0)}


def test_an_adapter_is_written_with_the_scale_1(tmp_path):
    write_adapter(TENSORS, tmp_path / "one")
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 2, ["q_proj"])
    kept = load_file(tmp_path / "one" / "adapter_model.safetensors")
    assert kept.keys() == TENSORS.keys()
    assert all(torch.equal(kept[name], value) for name, value in TENSORS.items())
    assert n_adapter_bytes(tmp_path / "one") < 4 * (16 + 8) + 1000  # nothing but these 24 numbers and two headers
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_each_version_has_a_name_a_number_and_a_folder_of_its_own(tmp_path):
    store = WeightStore(tmp_path)
    one, other = store.write_adapter(TENSORS, 7), store.write_adapter(TENSORS, 7)
    assert len({one.name, other.name, one.number, other.number, one.path, other.path}) == 6
    assert version_of(one.name) == one.version == 7
    store.delete_adapter(one)
    assert (one.path.exists(), other.path.exists()) == (False, True)
    given = Adapter(tmp_path, 0, "given")
    store.delete_adapter(given)
    assert tmp_path.exists()
    store.close()
    assert not other.path.exists()


def test_an_adapter_is_dropped_when_the_last_user_has_given_it_back():
    shelf, (one, two, three) = AdapterShelf(), [Adapter("", n, f"v{n}") for n in (1, 2, 3)]
    for adapter in (one, two, three):
        shelf.add(adapter)
    shelf.present = three
    with shelf.using(one), shelf.using(None) as present:
        assert shelf.take(one) == one and present == three
        assert shelf.drop_unused(in_use=[two, None]) == []
        assert shelf.drop_unused(n_kept=2) == []
        assert shelf.drop_unused() == [two]
    assert shelf.drop_unused() == []
    shelf.give_back(one)
    assert shelf.drop_unused() == [one]
    shelf.present = None
    assert shelf.drop_unused(n_kept=1) == []
    assert shelf.drop_unused() == [three]


def test_a_turn_without_an_adapter_on_a_cpu_needs_a_slot_that_was_never_filled():
    for device, n_loaded, slots in (("cpu", 1, 2), ("cpu", 5, None), ("cuda", 5, 2)):
        check_bare(device, n_loaded, slots)
    with pytest.raises(ModelError, match="loaded 2 adapters into max_loras=2"):
        check_bare("cpu", 2, 2)


def test_a_folder_that_vllm_would_read_wrongly_is_refused(tmp_path):
    with pytest.raises(InvalidConfigError, match="has no adapter"):
        rank_setting(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "alpha_pattern": {"q_proj": 4}, "rank_pattern": {}}')
    with pytest.raises(InvalidConfigError, match=r"alpha_pattern=\{'q_proj': 4\}"):
        rank_setting(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "alpha_pattern": {}}')
    assert rank_setting(tmp_path) == 8
    (tmp_path / "adapter_config.json").write_text('{"r": 9}')
    assert rank_setting(tmp_path) == 16
    (tmp_path / "adapter_config.json").write_text('{"r": 600}')
    with pytest.raises(InvalidConfigError, match=r"r=600.*512"):
        rank_setting(tmp_path)
