"""Read JSON files that may be damaged, with plain error messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llm_envs.data.files import read_text

__all__ = ["NO_JSON", "problem_of", "read_json"]

NO_JSON = (ValueError, RecursionError)
"""The errors for a text that is not JSON or is nested too deeply, and for bytes that are not UTF-8."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ValueError: If it cannot be read; the message has the reason, without the file's name.
    """
    try:
        return json.loads(read_text(path))
    except (OSError, *NO_JSON) as error:
        raise ValueError(problem_of(error)) from error


def problem_of(error: Exception) -> str:
    """Return a readable description of an error while reading a file, without the system's error number."""
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror or error})"
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    return str(error)
