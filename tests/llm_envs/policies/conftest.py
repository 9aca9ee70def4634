"""Kernels that do not depend on the machine, for all tests of the policies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device import exact_kernels


@pytest.fixture(scope="module", autouse=True)
def exact() -> Iterator[None]:
    """Turns in a batch are compared with turns alone."""
    with exact_kernels():
        yield
