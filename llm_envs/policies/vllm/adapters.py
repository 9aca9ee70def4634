"""Adapters (LoRA) of an engine or of servers: their files, and who still needs each.

vLLM loads an adapter from a folder in PEFT's form, and reads it again if it has dropped it, so a folder stays as long
as a turn may need it. Each version is another adapter for vLLM, with its own name: a turn keeps the one it began with.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, ModelError, extra_needed

__all__ = [
    "RANKS",
    "Adapter",
    "AdapterShelf",
    "adapter_config",
    "check_bare",
    "n_adapter_bytes",
    "rank_setting",
    "write_adapter",
]

RANKS = (8, 16, 32, 64, 128, 256, 512)
"""Values of vLLM's `max_lora_rank` that we start engines with; it also has 1 and 320."""
_NUMBERS = count(1)


@dataclass(frozen=True)
class Adapter:
    """An adapter in a folder."""

    path: Path
    version: int
    name: str
    """By which servers know it; no other client gives it."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """By which an engine in this process knows it."""


def write_adapter(tensors: Mapping[str, Any], folder: Path) -> None:
    """Write an adapter in PEFT's form. It appears under its name only when it is complete.

    Args:
        tensors: By PEFT's names: `base_model.model.LAYER.lora_A.weight`, shape (r, in), and `...lora_B.weight`, shape
            (out, r). BA is added to the layer's weight, with no other scale. Layers may differ in r.
        folder: The new folder; it must not exist.

    Raises:
        MissingExtraError: If safetensors is not installed.
    """
    with extra_needed("sending adapters needs safetensors: pip install 'llm-envs[train]'."):
        from safetensors.torch import save_file
    rank = max(len(value) for name, value in tensors.items() if name.endswith(".lora_A.weight"))
    layers = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": layers}
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True)
    (partial / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    copies = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(copies, partial / "adapter_model.safetensors", metadata={"format": "pt"})
    partial.rename(folder)


def n_adapter_bytes(folder: Path) -> int:
    """Return the size of an adapter's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def adapter_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter that PEFT has saved.

    Raises:
        InvalidConfigError: If the folder has none.
    """
    path = folder / "adapter_config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{str(folder)!r} has no adapter ({error}): give a folder that PEFT saved.") from error
    return config


def rank_setting(folder: Path) -> int:
    """Return the `max_lora_rank` that a saved adapter needs. Refuse an adapter that vLLM would read wrongly.

    Raises:
        InvalidConfigError: If the folder has no adapter, its layers have different ranks or scales, or the rank is too
            large.
    """
    config = adapter_config(folder)
    if wrong := [f"{name}={config[name]}" for name in ("rank_pattern", "alpha_pattern") if config.get(name)]:
        raise InvalidConfigError(
            f"{str(folder)!r}: vLLM takes one rank and one scale for all layers, and this adapter has "
            f"{', '.join(wrong)}. Merge it into the model (load_model(..., merge_adapter=True))."
        )
    if (rank := config.get("r", 1)) > RANKS[-1]:
        raise InvalidConfigError(f"{str(folder)!r}: the adapter has r={rank}, and vLLM's largest rank is {RANKS[-1]}.")
    return next(value for value in RANKS if value >= rank)


def check_bare(device: str | None, n_loaded: int, max_loras: int | None) -> None:
    """Check that a turn without an adapter gets none.

    vLLM's kernels for the CPU read the slot -1, which is the last one, for such a turn.

    Args:
        device: Of the engine.
        n_loaded: Adapters that it has loaded so far.
        max_loras: Its slots; None: it takes no adapters.

    Raises:
        ModelError: If the last slot may have an adapter.
    """
    if device == "cpu" and max_loras is not None and n_loaded >= max_loras:
        raise ModelError(
            f"a turn without an adapter on a CPU, where vLLM has loaded {n_loaded} adapters into max_loras={max_loras} "
            "slots: its kernels would take the last one. Use another engine for the base, or raise max_loras."
        )


class AdapterShelf:
    """The adapters that are loaded, and how many turns and policies use each. Callable from any thread."""

    def __init__(self) -> None:
        self.n_loaded = 0
        """Adapters that were loaded so far."""
        self.present: Adapter | None = None
        """Of turns that name no adapter; None: the model without one."""
        self._loaded: list[Adapter] = []
        self._users: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, adapter: Adapter) -> None:
        """Note an adapter as loaded."""
        with self._lock:
            self._loaded.append(adapter)
            self.n_loaded += 1

    @contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[Adapter | None]:
        """Count a user of an adapter, or of the present one for None, during the block."""
        used = self.take(adapter)
        try:
            yield used
        finally:
            if used is not None:
                self.give_back(used)

    def take(self, adapter: Adapter | None = None) -> Adapter | None:
        """Count a user of an adapter, or of the present one for None, and return it."""
        with self._lock:
            adapter = adapter or self.present
            if adapter is not None:
                self._users[adapter.name] += 1
        return adapter

    def give_back(self, adapter: Adapter) -> None:
        """Count a user less."""
        with self._lock:
            self._users[adapter.name] -= 1

    def clear(self) -> list[Adapter]:
        """Forget all adapters, and return those that are loaded."""
        with self._lock:
            loaded, self._loaded, self.present = self._loaded, [], None
        return loaded

    def drop_unused(self, n_kept: int = 0, in_use: Iterable[Adapter | None] = ()) -> list[Adapter]:
        """Forget the unused adapters, and return them.

        Args:
            n_kept: The newest are kept, this many; their turns in other processes are not counted here.
            in_use: Further adapters that are used.
        """
        with self._lock:
            kept = {self.present, *in_use}
            old = self._loaded[: max(len(self._loaded) - n_kept, 0)] if n_kept else list(self._loaded)
            dropped = [adapter for adapter in old if adapter not in kept and not self._users[adapter.name]]
            self._loaded = [adapter for adapter in self._loaded if adapter not in dropped]
        return dropped
