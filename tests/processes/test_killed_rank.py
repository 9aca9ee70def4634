"""A process that ends takes the others with it, at once: they are not left to wait for it."""

from __future__ import annotations

import pytest
from launched import SUPPORT, launch

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param("killed", "Signal 9 (SIGKILL)", marks=pytest.mark.smoke),
        ("raises", "ArithmeticError: what nobody expected"),
    ],
)
def test_the_launch_ends_with_an_error(tmp_path, model_folder, how, said):
    """Long before `ddp_timeout`, half an hour: the launcher sees the end of a process that it has begun."""
    done = launch(SUPPORT / "killed_rank.py", model_folder, str(tmp_path), how, limit_s=600)
    assert "process 1 ends" in done.output, done.output[-4000:]
    assert done.code not in (0, None), done.output[-4000:]
    assert "training has ended" not in done.output
    assert said in done.output  # which one it was, and why
