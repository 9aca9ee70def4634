"""What the tests of the policies share: kernels that do not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from device import exact_kernels


@pytest.fixture(scope="module", autouse=True)
def exact() -> Iterator[None]:
    """Turns in a batch are compared with turns alone."""
    with exact_kernels():
        yield
