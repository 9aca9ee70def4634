"""No false alarm: `certify` passes each of our tasks, at its default level."""

from __future__ import annotations

import pytest

from llm_envs.checker import certify
from llm_envs.errors import MissingExtraError
from llm_envs.registration import task_ids


@pytest.mark.levels
@pytest.mark.parametrize("env_id", [name for name in task_ids() if name.startswith("llm/")])
def test_no_false_alarm_on_our_tasks(env_id: str) -> None:
    try:
        certificate = certify(env_id)
    except MissingExtraError as missing:
        pytest.skip(str(missing))
    assert certificate.passed, str(certificate)
