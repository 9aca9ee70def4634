"""Checkpoints for servers: write them from named tensors, and compare them before any server is touched.

A server that loads weights of another shape does not refuse them: it crashes. So names and shapes are compared here,
from the headers of the files, without reading any weights.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_envs.errors import ModelError, extra_needed

__all__ = [
    "check_same_tensors",
    "dtype_of",
    "find_checkpoint",
    "n_vocabulary",
    "read_tensors",
    "served_folder",
    "tensor_dtypes",
    "tensor_shapes",
    "write_checkpoint",
]

# A safetensors file begins with the header's length in 8 bytes; 100,000 tensors need a header of about 20 MB.
_MAX_HEADER_BYTES = 100_000_000

Shapes = Mapping[str, tuple[int, ...]]


def tensor_shapes(folder: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors in a folder's `*.safetensors`.

    Raises:
        ModelError: If the folder has no such file, or one cannot be read.
    """
    return {name: tuple(entry["shape"]) for name, entry in _headers(folder).items()}


def tensor_dtypes(folder: str | Path) -> dict[str, str]:
    """Return the names of the tensors in a folder's `*.safetensors`, with their dtypes: "BF16", "F32", ...

    Raises:
        ModelError: As for `tensor_shapes`.
    """
    return {name: entry["dtype"] for name, entry in _headers(folder).items()}


def read_tensors(folder: str | Path, names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return some tensors of a folder's `*.safetensors`, by name."""
    from safetensors import safe_open

    wanted, tensors = set(names), []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors += [(name, file.get_tensor(name)) for name in file.keys() if name in wanted]  # noqa: SIM118
    return tensors


def dtype_of(stored: str | None, computed: str | None, value: Any) -> Any:
    """Return the dtype in which to send a tensor: the dtype in the served checkpoint if the server has it too.

    Args:
        stored: From `tensor_dtypes`; None if unknown.
        computed: The server's dtype ("torch.bfloat16"); None if unknown.
        value: The tensor.
    """
    import torch

    known = {"BF16": torch.bfloat16, "F16": torch.float16}.get(stored or "")
    return known if known is not None and str(known) == computed else value.dtype


def _headers(folder: str | Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in Path(folder).glob("*.safetensors") if path.is_file())  # no pipes
    if not files:
        raise ModelError(f"{str(folder)!r} has no *.safetensors file; save the model with save_pretrained.")
    entries: dict[str, dict[str, Any]] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
            header.pop("__metadata__", None)
            entries |= {name: {"shape": list(e["shape"]), "dtype": str(e["dtype"])} for name, e in header.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise ModelError(f"{str(path)!r} cannot be read as safetensors: {error}") from error
    return entries


def check_same_tensors(sent: Shapes, expected: Shapes, where: str) -> None:
    """Check that a checkpoint has the tensors of a model; an output layer tied to the embedding may be missing.

    Args:
        sent: Names and shapes of the new checkpoint.
        expected: Names and shapes of the served model.
        where: Name of the new checkpoint in the message.

    Raises:
        ModelError: If a name is missing or unknown, or a shape differs. The message has the first few of each.
    """
    missing = sorted(name for name in expected.keys() - sent.keys() if not name.endswith("lm_head.weight"))
    unknown = sorted(name for name in sent.keys() - expected.keys() if not name.endswith("lm_head.weight"))
    differing = sorted(name for name in sent.keys() & expected.keys() if sent[name] != expected[name])
    complaints = [
        f"{len(names)} {what}: {names[:3]}" for what, names in (("missing", missing), ("unknown", unknown)) if names
    ]
    complaints += [f"{name} has shape {sent[name]}, the model's is {expected[name]}" for name in differing[:3]]
    if complaints:
        raise ModelError(
            f"the weights in {where} differ from the served model's: {'; '.join(complaints)}. Nothing was changed. "
            "Merge adapters first, and start the servers on the model that is trained."
        )


def find_checkpoint(name_or_path: str) -> Path | None:
    """Return the folder of a model on this machine: the path itself, or a hub's model in the local cache."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name_or_path, local_files_only=True))
    except Exception:  # not installed, not in the cache, or no such name: in each case it is not on this machine
        return None


def served_folder(model: str | None, root: str) -> Path:
    """Return the folder of the model that servers were started on as `root`, known here as `model`.

    Raises:
        ModelError: If it is not on this machine.
    """
    folder = find_checkpoint(model or root) or find_checkpoint(root)
    if folder is None:
        raise ModelError(
            f"{root!r} is not on this machine, so new weights cannot be compared with it, and wrong weights "
            "crash a server. Pass model=..., a folder with the served model."
        )
    return folder


def n_vocabulary(name_or_path: str) -> int:
    """Return how many token ids a model on this machine has, often more than its tokenizer; 0 if it is not here."""
    folder = find_checkpoint(name_or_path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder is not None else {}
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size", 0))
    except (OSError, ValueError, AttributeError):  # the server has loaded it; here it is only needed for a bound
        return 0
    return size if isinstance(size, int) else 0


def write_checkpoint(named_parameters: Iterable[tuple[str, Any]], folder: Path, like: Path | None) -> None:
    """Write tensors as a checkpoint. It appears under its name only when it is complete.

    Args:
        named_parameters: Pairs of name and tensor.
        folder: The new folder; it must not exist.
        like: A checkpoint whose `*.json` files (the model's configuration) are copied.

    Raises:
        MissingExtraError: If safetensors is not installed.
    """
    with extra_needed("sending weights to servers needs safetensors: pip install 'llm-envs[train]'."):
        from safetensors.torch import save_file
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True)
    for path in [] if like is None else like.glob("*.json"):
        if not path.name.endswith(".index.json"):
            shutil.copy(path, partial / path.name)
    tensors = {name: value.detach().cpu().contiguous() for name, value in named_parameters}
    save_file(_without_aliases(tensors), partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(folder)


def _without_aliases(tensors: dict[str, Any]) -> dict[str, Any]:
    """Drop a tied output layer: it shares its memory with the embedding, and safetensors refuses aliases."""
    head = tensors.get("lm_head.weight")
    others = {value.data_ptr() for name, value in tensors.items() if name != "lm_head.weight"}
    if head is not None and head.data_ptr() in others:
        return {name: value for name, value in tensors.items() if name != "lm_head.weight"}
    return tensors
