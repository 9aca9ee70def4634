"""A damaged file of a checkpoint is named before anything is loaded, with what to do."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from llm_envs.errors import StoreError
from llm_envs.trainers.run.checkpoints import check_files, make_base_absolute

FILES = ("model.safetensors", "optimizer.pt", "scheduler.bin", "trainer_state.json", "critic/head.safetensors")


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with files of each kind, and an earlier one beside it."""
    folder = tmp_path / "checkpoint-4"
    (tmp_path / "checkpoint-2").mkdir()
    (folder / "critic").mkdir(parents=True)
    for name in FILES:
        path = folder / name
        if path.suffix == ".safetensors":
            save_file({"a": torch.arange(300.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}, path)
        elif path.suffix == ".json":
            path.write_text(json.dumps({"step": 4, "loss": float("nan")}))
        else:
            torch.save({"state": torch.arange(300.0)}, path)
    (folder / "README.md").symlink_to("nowhere")  # nobody loads it
    return folder


def replaced_by(data):
    def damage(path):
        path.write_bytes(data)

    return damage


def to_a_folder(path):
    path.unlink()
    path.mkdir()


def to_a_link(path):
    path.unlink()
    path.symlink_to("nowhere")


def to_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = [replaced_by(b""), replaced_by(b"\xff" * 100), replaced_by(b"[" * 100_000), to_a_folder, to_a_link, cut_off]
DAMAGES += [to_a_pipe] if hasattr(os, "mkfifo") else []


def test_a_whole_checkpoint_passes(checkpoint):
    check_files(checkpoint)
    save_file({}, checkpoint / "model.safetensors")
    check_files(checkpoint)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(checkpoint, name, damage):
    damage(checkpoint / name)
    with pytest.raises(StoreError) as raised:
        check_files(checkpoint)
    message = str(raised.value)
    assert message.startswith(f"{checkpoint / name} is damaged (")
    assert "Move this checkpoint elsewhere, and resume from an earlier one" in message
    assert message.endswith("Beside it: checkpoint-2.")


def test_an_adapter_names_its_base_by_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    configs = {name: SimpleNamespace(base_model_name_or_path=name) for name in ("base", "owner/name")}
    make_base_absolute(SimpleNamespace(peft_config=configs))
    assert configs["base"].base_model_name_or_path == str(tmp_path / "base")
    assert configs["owner/name"].base_model_name_or_path == "owner/name"
