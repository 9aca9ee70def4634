"""Tools of a real MCP server, over its standard input and output and over HTTP."""

import gc
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_server import Answer, fake_server

pytest.importorskip("mcp")

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import BridgeError, InvalidConfigError, MissingExtraError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tools import INVALID_ARGUMENTS, TOOL_TIMEOUT, run_calls
from llm_envs.tools.mcp import _text_of, mcp_tools
from llm_envs.types import ToolCall

SERVER = str(Path(__file__).with_name("mcp_server.py"))


def started(**options):
    return mcp_tools(sys.executable, [SERVER], **options)


@pytest.fixture(scope="module")
def toolset():
    with started(env={"COLOUR": "green"}, timeout_s=60, shared=True) as made:
        yield made


@pytest.fixture
def box(toolset):
    toolset.open()
    return {tool.name: tool for tool in toolset.tools()}


def calls(*given):
    return [ToolCall(name, arguments) for name, arguments in given]


def test_the_servers_schemas_are_the_tools(box):
    assert list(box) == ["add", "remember", "fail", "sleep", "crash", "read", "pid", "complain", "meet"]
    schema = box["add"].schema["function"]
    assert (schema["name"], schema["description"]) == ("add", "Add two numbers.")
    assert schema["parameters"]["properties"] == {
        "a": {"title": "A", "type": "integer"},
        "b": {"default": 1, "title": "B", "type": "integer"},
    }
    assert schema["parameters"]["required"] == ["a"]


def test_results_and_errors(box):
    assert box["add"]({"a": "2"}).output == "3"
    assert box["read"]({"variable": "COLOUR"}).output == "green"
    wrong = box["add"]({"a": "x"})
    assert (wrong.error, wrong.output) == (INVALID_ARGUMENTS, "Error: argument a of add: 'x' is not of type 'integer'")
    failed = box["fail"]({})
    assert (failed.success, failed.error) == (False, "InvalidActionError")
    assert "Error executing tool fail" in failed.output


def test_calls_run_side_by_side(box):
    """Each waits for the others: one after another, they would reach their limit."""
    results = run_calls(box, calls(*[("meet", {"n": 4})] * 4, ("add", {"a": 1})))
    assert [result.output for result in results] == ["met"] * 4 + ["2"]


def test_calls_that_may_not_run_side_by_side_keep_their_order(toolset):
    toolset.parallel = False
    try:
        box = {tool.name: tool for tool in toolset.tools()}
    finally:
        toolset.parallel = True
    results = run_calls(box, calls(*[("remember", {"key": "order"})] * 5))
    assert [result.output for result in results] == ["1", "2", "3", "4", "5"]


def test_a_call_that_takes_too_long(toolset, box):
    hung, quick = run_calls({**box, "sleep": toolset.tools()[3]}, calls(("sleep", {"s": 0.1}), ("add", {"a": 1})))
    assert hung.success and quick.success
    box["sleep"].timeout_s = 0.1
    hung, quick = run_calls(box, calls(("sleep", {"s": 3600}), ("add", {"a": 1})))
    assert (hung.error, quick.output) == (TOOL_TIMEOUT, "2")
    assert box["add"]({"a": 4}).output == "5"


def test_what_a_server_writes_beside_is_not_kept_for_ever(toolset, box):
    assert box["complain"]({"n": 5}).success
    output = toolset._connection._output
    output.seek(0)
    assert "complaint complaint" in output.read()
    toolset.reset({}, None)
    output.seek(0)
    assert output.read() == ""
    assert box["complain"]({"n": 1}).success
    output.seek(0)
    assert output.read() == "complaint "


def test_a_crashed_server_is_an_error_until_the_next_episode(toolset, box):
    first = box["pid"]({}).output
    results = run_calls(box, calls(("sleep", {"s": 3600}), ("crash", {})))
    assert [result.error for result in results] == ["BridgeError", "BridgeError"]
    assert box["add"]({"a": 1}).output == "Error: BridgeError: the tool's server has gone away"
    toolset.reset({}, None)
    assert box["add"]({"a": 1}).output == "2"
    assert box["pid"]({}).output != first


def test_pickled_it_makes_its_own_connection(box):
    again = pickle.loads(pickle.dumps(box["pid"]))
    try:
        assert again({}).output != box["pid"]({}).output
        assert again.schema == box["pid"].schema
    finally:
        again.toolset.close()


def process_lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_closing_ends_the_server_and_use_starts_it_again():
    toolset = started(include=["pid"])
    (tool,) = toolset.tools()
    first = int(tool({}).output)
    assert process_lives(first)
    toolset.close()
    toolset.close()
    assert not process_lives(first)
    second = int(tool({}).output)
    assert second != first
    del toolset, tool  # a toolset that nobody closed
    gc.collect()
    for _ in range(6_000):
        if not process_lives(second):
            break
        time.sleep(0.01)
    assert not process_lives(second)


class Counting(ToolEnv):
    """How often was x remembered?"""

    difficulties = {"only": Difficulty("twice", chance_rate=1.0)}
    default_difficulty = "only"

    def make_tools(self):
        return [started(include=["remember", "pid"], restart=True)]

    def generate(self):
        return {"n": int(self.np_random.random() * 10**6)}

    def prompt(self):
        return "Remember x."

    def is_correct(self, answer):
        return answer == "1"

    def next_action(self):
        return format_answer("1")


def test_in_an_environment_with_a_server_for_each_episode():
    env = Counting()
    try:
        assert not env.blocking  # only its own episode waits
        pids = []
        for _ in range(2):
            env.reset(seed=0)
            assert [tool["function"]["name"] for tool in env.tools] == ["remember", "pid"]
            observations = [env.step(format_tool_call("remember", key="x"))[0] for _ in range(2)]
            assert observations == ["1", "2"]
            pids.append(int(env.step(format_tool_call("pid"))[0]))
        assert not process_lives(pids[0])
    finally:
        env.close()
    assert not process_lives(pids[1])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def http_server():
    """Start the server on a port that is free; try another one if some other program takes it first."""
    for _ in range(5):
        port = free_port()
        server = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while server.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return port, server
            time.sleep(0.02)
        server.kill()
        server.wait()
    raise AssertionError("the server does not start")


def test_over_http():
    port, server = http_server()
    try:
        for headers in ({}, {"X-Test": "1"}):
            with mcp_tools(
                url=f"http://127.0.0.1:{port}/mcp", headers=headers, include={"add"}, timeout_s=60
            ) as toolset:
                (add,) = toolset.tools()
                assert add({"a": 2, "b": 3}).output == "5"
        toolset.open()
        server.kill()
        server.wait()
        assert not add({"a": 2}).success
        with pytest.raises(BridgeError, match="cannot be reached"):
            toolset.close()
            toolset.open()
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"command": "no-such-program"}, "no-such-program cannot be reached: FileNotFoundError"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('oh no')"]}, "it wrote: oh no"),
        ({"url": "http://127.0.0.1:9/mcp"}, "127.0.0.1:9/mcp cannot be reached: ConnectError"),
        (
            {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"], "connect_timeout_s": 0.3},
            "did not answer within connect_timeout_s=0.3 s",
        ),
    ],
)
def test_a_server_that_cannot_be_reached(options, complaint):
    with pytest.raises(BridgeError, match=complaint):
        mcp_tools(**options).open()


SECRET = "sk-hunter2-hunter2"
REPEATS = "import os, sys; sys.exit(' '.join([*sys.argv, os.environ.get('KEY', '')]))"


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"http://127.0.0.1:9/mcp?token={SECRET}"},
        {"url": f"http://user:{SECRET}@127.0.0.1:9/mcp"},
        {"command": sys.executable, "args": ["-c", REPEATS, f"--token={SECRET}"]},
        {"command": sys.executable, "args": ["-c", REPEATS, "--token", SECRET]},
        {"command": sys.executable, "args": ["-c", REPEATS, f"https://host/sse?token={SECRET}"]},
        {"command": sys.executable, "args": ["-c", REPEATS], "env": {"KEY": SECRET}},
        {"command": f"/nowhere/{sys.platform}", "args": [SECRET]},
    ],
)
def test_no_secret_of_a_server_is_in_an_error(options):
    tools = mcp_tools(**options)
    with pytest.raises(BridgeError, match="cannot be reached") as refusal:
        tools.open()
    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(tools.server)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_no_secret_of_an_address_is_in_the_error_of_a_server_that_refuses(status):
    with fake_server(lambda asked, n: Answer(status, {"error": "no"})) as server:
        with pytest.raises(BridgeError, match=f"{server.url}/mcp cannot be reached") as refusal:
            mcp_tools(url=f"{server.url}/mcp?token={SECRET}").open()
        assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "give one of them"),
        ({"command": "a", "url": "b"}, "give one of them"),
        ({"url": "b", "args": ["c"]}, "are for a command"),
        ({"command": "a", "headers": {"b": "c"}}, "headers are for a url"),
        ({"command": "a", "args": "b c"}, "args is a text; it must be a list"),
        ({"command": "a", "shared": True, "restart": True}, "a shared server cannot restart"),
    ],
)
def test_bad_options_are_refused(options, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        mcp_tools(**options)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llm-envs\[bridges\]'"):
        started()


def test_an_unknown_name_in_include_names_the_known(toolset):
    toolset.include = ("add", "nope")
    try:
        with pytest.raises(InvalidConfigError, match="has no tool 'nope'; known are add, remember"):
            toolset.tools()
    finally:
        toolset.include = None


def test_content_that_is_no_text_is_named():
    import mcp_types as types

    blocks = [
        types.TextContent(text="see"),
        types.ImageContent(data="AAAA", mime_type="image/png"),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a", text="inside")),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob="AAAA", mime_type="a/b")),
    ]
    expected = "see\n[image: image/png]\ninside\n[resource: a/b]"
    assert _text_of(types.CallToolResult(content=blocks)) == expected
    assert _text_of(types.CallToolResult(content=[], structured_content={"n": 1})) == '{"n": 1}'
