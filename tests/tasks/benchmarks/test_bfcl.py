"""`llm/BFCL-v0`: verdicts, tools as the benchmark's package makes them, several turns, limits, and hostile calls."""

import os
import subprocess
import sys
import time

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.parsers import format_tool_call
from llm_envs.tasks.benchmarks import bfcl_data
from llm_envs.tasks.benchmarks.bfcl_data import CATEGORIES, entries, tool_of

SAME_TOOLS = """
import sys
from types import ModuleType

class Unused(ModuleType):  # what the package imports beside the functions that are compared
    def __getattr__(self, name):
        return lambda *args, **kwargs: self

unused = ("tree_sitter", "tree_sitter_java", "tree_sitter_javascript", "tenacity", "overrides")
for name in (*unused, "bfcl_eval.constants.model_config"):
    sys.modules[name] = Unused(name)
from bfcl_eval.constants.enums import ModelStyle
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.model_handler.utils import convert_to_tool
from bfcl_eval.utils import load_dataset_entry
from llm_envs.tasks.benchmarks.bfcl_data import CATEGORIES, entries, tool_of

n = 0
for category in CATEGORIES:
    ours = entries(category)
    for row in load_dataset_entry(category):
        entry = ours[row["id"]]
        official = convert_to_tool(row["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
        assert [tool_of(function, category) for function in entry.functions] == official, row["id"]
        assert entry.turns == row["question"], row["id"]
        late = {int(turn): [each["name"] for each in found] for turn, found in row.get("missed_function", {}).items()}
        assert late == {turn: [each["name"] for each in found] for turn, found in entry.late_functions.items()}
        n += 1
print(n)
"""
"""Run in a process of its own, since it replaces modules."""


def start(category, entry_id=None):
    env = gym.make("llm/BFCL-v0", difficulty=category)
    observation, _ = env.reset(seed=0, options=None if entry_id is None else {"problem": {"id": entry_id}})
    return env, observation


def one_turn(category, entry_id, reply):
    env, _ = start(category, entry_id)
    return env.step(reply)[1]


def area(**arguments):
    return format_tool_call("calculate_triangle_area", **arguments)


@pytest.mark.parametrize(
    ("reply", "paid"),
    [
        (area(base=10, height=5), 1),
        (area(base=10, height=5, unit="Units"), 1),  # texts are compared without case
        ("[calculate_triangle_area(base=10, height=5)]", 1),
        (area(base=10, height=6), 0),
        (area(base="10", height=5), 0),
        (area(base=10), 0),
        (area(base=10, height=5, colour="red"), 0),
        (area(base=10, height=5) * 2, 0),
        ("The area is 25.", 0),
        ("", 0),
        (f"<think>{area(base=10, height=5)}</think>", 0),
        (format_tool_call("__import__", name="os"), 0),
    ],
)
def test_one_call_is_judged_by_the_benchmarks_checker(reply, paid):
    assert one_turn("simple_python", "simple_python_0", reply) == paid


def test_names_with_dots_are_written_with_underscores():
    env, prompt = start("simple_python", "simple_python_1")
    assert prompt == "Calculate the factorial of 5 using math functions."
    assert [tool["function"]["name"] for tool in env.unwrapped.tools] == ["math_factorial"]
    assert one_turn("simple_python", "simple_python_1", format_tool_call("math_factorial", number=5)) == 1
    assert one_turn("simple_python", "simple_python_1", format_tool_call("math.factorial", number=5)) == 1


@pytest.mark.parametrize(
    ("reply", "paid"),
    [
        ("No function computes an area.", 1),
        (format_tool_call("determine_body_mass_index", weight=10, height=5), 0),
        ("", 0),
        ("<tool_call>{", 0),
    ],
)
def test_words_are_right_where_no_function_fits(reply, paid):
    assert one_turn("irrelevance", "irrelevance_0", reply) == paid


def test_tools_and_requests_are_those_of_the_package(tmp_path):
    environment = {**os.environ, "BFCL_PROJECT_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SAME_TOOLS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert int(done.stdout) == sum(category.n for category in CATEGORIES.values()) == 4_441


def test_calls_change_the_state_of_services_from_turn_to_turn():
    env, prompt = start("multi_turn_base", "multi_turn_base_0")
    assert prompt.startswith("Move 'final_report.pdf'")
    observation, _, terminated, _, info = env.step(format_tool_call("cd", folder="document"))
    assert info["messages"] == [{"role": "tool", "name": "cd", "content": '{"current_working_directory": "document"}'}]
    calls = [
        format_tool_call("mkdir", dir_name="temp"),
        format_tool_call("mv", source="final_report.pdf", destination="temp"),
    ]
    observation, *_ = env.step("\n".join(calls))
    assert "final_report.pdf" in observation
    observation, reward, terminated, _, _ = env.step("I have moved it.")
    assert observation.startswith("Perform a detailed search") and (reward, terminated) == (0, False)
    for _ in range(7):
        observation, reward, terminated, _, info = env.step(env.unwrapped.oracle())
        if terminated:
            break
    assert (reward, info["is_success"]) == (1, True)


@pytest.mark.parametrize(("junk", "paid"), [(True, 0), (False, 1)])
def test_a_wrong_state_fails_the_episode_though_the_rest_is_right(junk, paid):
    env, _ = start("multi_turn_base", "multi_turn_base_0")
    right = env.unwrapped.oracle()
    if junk:
        env.step(format_tool_call("touch", file_name="junk.txt"))
    env.step(right)
    terminated = False
    while not terminated:
        _, reward, terminated, _, _ = env.step(env.unwrapped.oracle())
    assert reward == paid


def test_a_function_that_comes_later_is_told_in_its_turn():
    entry_id = next(iter(entries("multi_turn_miss_func")))
    entry = entries("multi_turn_miss_func")[entry_id]
    (turn, late), *_ = entry.late_functions.items()
    env, _ = start("multi_turn_miss_func", entry_id)
    assert late[0]["name"] not in [tool["function"]["name"] for tool in env.unwrapped.tools]
    for _ in range(turn):
        observation, *_ = env.step("I cannot do that.")
    assert observation.endswith("What about now?") and f'"{late[0]["name"]}"' in observation


@pytest.mark.parametrize(
    "call",
    [
        ("exit", {"x": 1}),
        ("print", {"x": "y"}),
        ("__init__", {}),
        ("_load_scenario", {"scenario": {}}),
        ("globals", {}),
    ],
)
def test_python_is_out_of_reach(call):
    env, _ = start("multi_turn_base", "multi_turn_base_0")
    observation, reward, terminated, _, info = env.step(format_tool_call(call[0], **call[1]))
    assert observation.startswith("Error") and (reward, terminated, info["is_success"]) == (0, True, False)


def test_code_as_a_value_is_a_text(tmp_path):
    env, _ = start("multi_turn_base", "multi_turn_base_0")
    path = tmp_path / "made"
    code = f"__import__('os').mkdir({str(path)!r})"
    observation, *_ = env.step(format_tool_call("cd", folder=code))
    assert observation.startswith('{"error"') and not path.exists()


def test_calls_over_the_limits_fail_the_episode_and_no_other():
    mathematics = next(
        name for name, entry in entries("multi_turn_base").items() if "MathAPI" in entry.world["involved_classes"]
    )
    env, _ = start("multi_turn_base", mathematics)
    started = time.perf_counter()
    observation, _, terminated, _, info = env.step(
        format_tool_call("logarithm", value=3, base=7, precision=100_000_000)
    )
    assert "over the limits" in observation and terminated and info["is_success"] is False
    assert time.perf_counter() - started < 60
    env, _ = start("multi_turn_base", mathematics)
    assert "result" in env.step(format_tool_call("logarithm", value=8, base=2, precision=5))[0]


def test_a_turn_has_at_most_twenty_replies_with_calls():
    env, _ = start("multi_turn_base", "multi_turn_base_0")
    for _ in range(20):
        assert not env.step(format_tool_call("ls"))[2]
    assert env.step(format_tool_call("ls"))[2]


def test_the_oracle_fails_only_where_no_call_is_accepted():
    failed = set()
    for category in ("simple_java", "simple_javascript", "live_simple", "live_parallel_multiple"):
        env, _ = start(category)
        for entry_id in entries(category):
            env.reset(options={"problem": {"id": entry_id}})
            if env.step(env.unwrapped.oracle())[1] != 1:
                failed.add(entry_id)
    java, live = (
        {"simple_java_36", "simple_java_64", "simple_java_65"},
        {"live_simple_106-63-0", "live_simple_112-68-0"},
    )
    assert failed == java | live


def test_java_values_are_texts():
    function = next(iter(entries("simple_java").values())).functions[0]
    parameters = tool_of(function, "simple_java")["function"]["parameters"]["properties"]
    assert {parameter["type"] for parameter in parameters.values()} == {"string"}


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(InvalidConfigError, match="'train'"):
        gym.make("llm/BFCL-v0", split="train")
    with pytest.raises(InvalidConfigError, match="no entry 'simple_java_0'"):
        start("simple_python", "simple_java_0")
    monkeypatch.setattr(bfcl_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="--no-deps bfcl-eval"):
        gym.make("llm/BFCL-v0")
