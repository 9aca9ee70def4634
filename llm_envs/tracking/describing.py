"""Errors of what only describes a run: trackers, tables, cards, records. They are warnings, and the run continues."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["describing"]

logger = logging.getLogger(__name__)


@contextmanager
def describing(what: str) -> Iterator[None]:
    """Turn an error inside the block into a warning.

    Args:
        what: Name of what the block writes, for the warning.
    """
    try:
        yield
    except Exception as error:
        logger.warning("%s failed, and the run continues without it: %s: %s", what, type(error).__name__, error)
