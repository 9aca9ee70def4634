"""The contract of my/Template-v0, which every task keeps, and the rules of its game."""

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.parsers import format_tool_call

ID = "my/Template-v0"


@pytest.mark.parametrize("level", gym.make(ID).get_wrapper_attr("difficulties"))
def test_it_keeps_the_contract(level: str) -> None:
    assert llm_envs.check_task(ID, difficulty=level).passed


# The tests below are about the game that `llm-envs new-task` wrote. When you replace it, replace them too.


def test_an_order_is_looked_up_and_added_up() -> None:
    env = gym.make(ID)
    problem = {"prices": {"dates": 7, "eggs": 5}, "order": {"dates": 3, "eggs": 2}}
    observation, _ = env.reset(options={"problem": problem})
    assert observation == "What does this order cost: 3 dates, 2 eggs? The tool gives prices for one piece."
    assert env.step(format_tool_call("price", item="eggs"))[0] == "5"
    assert env.step(format_tool_call("price", item="ham"))[0].startswith("Error: the shop does not have the item 'ham'")
    _, reward, terminated, *_ = env.step("<answer>30 or 31</answer>")
    assert reward == pytest.approx(-0.1) and not terminated
    observation, reward, terminated, _, info = env.step("<answer>**31**</answer>")
    assert (observation, reward, terminated, info["is_success"]) == ("Correct.", 1.0, True, True)
