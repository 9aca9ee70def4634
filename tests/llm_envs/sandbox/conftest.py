"""A session of the sandbox that a test file makes."""

import pytest


@pytest.fixture
def session(sandbox):
    session = sandbox.session()
    yield session
    session.close()
