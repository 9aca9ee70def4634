"""A sandbox as a tool of an environment."""

import json
import pickle

import pytest

pytest.importorskip("pydantic_monty")

from llm_envs.sandbox import MontySandbox, PythonTool, SandboxLimits, shared_sandbox
from llm_envs.tools import Tool


@pytest.fixture(scope="module")
def sandbox():
    with MontySandbox(n_workers=1, limits=SandboxLimits(timeout_s=30)) as sandbox:
        yield sandbox


def test_it_is_a_tool(sandbox):
    python = PythonTool(sandbox)
    tool = Tool(python.python)
    assert tool.name == "python"
    assert tool.parameters == {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code."}},
        "required": ["code"],
    }
    assert tool.description.startswith("Run Python code.")
    json.dumps(tool.schema)
    result = tool({"code": "x = 6\nprint(x * 7)"})
    assert (result.output, result.success) == ("42", True)
    assert tool({"code": "x + 1"}).output == "7"


def test_an_exception_in_the_code_is_output(sandbox):
    python = PythonTool(sandbox)
    result = Tool(python.python)({"code": "1 / 0"})
    assert result.success
    assert result.output.endswith("ZeroDivisionError: division by zero")
    assert python.last_result is not None and python.last_result.error == "ZeroDivisionError"


def test_an_episode_begins_without_variables_and_with_its_seed(sandbox):
    python = PythonTool(sandbox)
    code = "import random\nrandom.random()"
    drawn = []
    for seed in (1, 1, 2):
        python.reset(seed)
        assert python.last_result is None
        assert "NameError" in python.python("x")
        python.python("x = 1")
        drawn.append(python.python(code))
    assert drawn[0] == drawn[1] != drawn[2]


def test_limits_of_its_own(sandbox):
    python = PythonTool(sandbox, limits=SandboxLimits(timeout_s=20, output_characters=100))
    assert python.python("print('a' * 500)") == "a" * 100 + "\n[cut: 401 more characters]"


def test_it_pickles_as_its_settings(sandbox):
    python = PythonTool(sandbox)
    python.python("x = 1")
    copy = pickle.loads(pickle.dumps(python))
    assert "NameError" in copy.python("x")


def test_the_shared_sandbox_is_one_for_the_process():
    assert shared_sandbox() is shared_sandbox()
    assert PythonTool().python("1 + 1") == "2"
