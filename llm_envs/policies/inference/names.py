"""The names of models: folders, and names on a hub. A wrong one is refused before anything is asked of the network."""

from __future__ import annotations

import re
from pathlib import Path

from llm_envs.errors import ModelError

__all__ = ["check_hub", "name_problem"]

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TIMEOUT_S = 10.0


def name_problem(name: str) -> str | None:
    """Return the problem of a name that is neither an existing folder nor a name on a hub; None for the others."""
    path = Path(name)
    if path.is_dir():
        return None
    is_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists()
    if is_local or _HUB_NAME.fullmatch(name) is None:
        return "the folder does not exist"
    if path.parent != Path(".") and path.parent.is_dir():
        return f"the folder {path.parent} does not contain {path.name}"
    return None


def check_hub(name: str) -> None:
    """Ask the hub once for a model that is neither a folder nor in the cache.

    huggingface_hub repeats a failed request five times, with pauses of 45 seconds in all.

    Raises:
        ModelError: If the hub cannot be reached.
    """
    from huggingface_hub import HfApi, is_offline_mode, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if Path(name).is_dir() or is_offline_mode() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        HfApi().model_info(name, timeout=_TIMEOUT_S)
    except HfHubHTTPError:
        return  # it answered: transformers has the words for a missing or gated model
    except Exception as error:
        raise ModelError(
            f"the folder {name!r} does not exist, and the hub cannot be asked for it ({type(error).__name__}: "
            f"{error}). Give the folder of a model, or connect this machine."
        ) from error
