"""Loads a data set by its name with the library `datasets`: a saved folder, or a data set of a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_envs.errors import MissingExtraError

__all__ = ["FILES", "load_data_set"]

FILES = (".jsonl", ".csv", ".parquet")
"""Suffixes of files that are read without `datasets`."""


def load_data_set(name: str, subset: str | None, split: str) -> Any:
    """Return one split as a `datasets.Dataset`.

    Args:
        name: A folder of `save_to_disk`, or anything else that `datasets.load_dataset` loads.
        subset: The configuration, for `load_dataset`.
        split: Name of the split in the data set.

    Raises:
        MissingExtraError: If `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"the data set {name!r} needs `datasets`: pip install 'llm-envs[train]'.") from error
    if (Path(name) / "dataset_info.json").is_file() or (Path(name) / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(name)
        return loaded[split] if isinstance(loaded, dict) else loaded
    return datasets.load_dataset(name, subset, split=split)
