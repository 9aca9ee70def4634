"""Loads a data set by its name with the library `datasets`: a saved folder, or a data set of a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError

__all__ = ["FILES", "load_data_set"]

FILES = (".jsonl", ".csv", ".parquet")
"""Suffixes of files that are read without `datasets`."""
_EXPECTED = (
    f"a file that ends in {', '.join(FILES)}, a folder that `datasets` saved, or the name of a data set of the hub"
)


def load_data_set(name: str, subset: str | None, split: str) -> Any:
    """Return one split as a `datasets.Dataset`.

    Args:
        name: A folder of `save_to_disk`, or anything else that `datasets.load_dataset` loads.
        subset: The configuration, for `load_dataset`.
        split: Name of the split in the data set.

    Raises:
        InvalidConfigError: If it cannot be found or loaded.
        MissingExtraError: If `datasets` is not installed.
    """
    if not name or Path(name).is_file():
        raise InvalidConfigError(f"data is {name!r}; it must be {_EXPECTED}.")
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"the data set {name!r} needs `datasets`: pip install 'llm-envs[train]'.") from error
    try:
        if (Path(name) / "dataset_info.json").is_file() or (Path(name) / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(name)
            return loaded[split] if isinstance(loaded, dict) else loaded
        return datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # of many kinds
        raise InvalidConfigError(
            f"the split {split!r} of {name!r} (configuration {subset!r}) cannot be loaded: {error}. "
            f"Data must be {_EXPECTED}."
        ) from error
