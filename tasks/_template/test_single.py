"""The contract of my/Template-v0, which every task keeps, and the rules of its game."""

import gymnasium as gym
import pytest

import llm_envs

ID = "my/Template-v0"


@pytest.mark.parametrize("level", gym.make(ID).get_wrapper_attr("difficulties"))
def test_it_keeps_the_contract(level: str) -> None:
    assert llm_envs.check_task(ID, difficulty=level).passed


# The tests below are about the game that `llm-envs new-task` wrote. When you replace it, replace them too.


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("<answer>12</answer>", 1.0),
        ("<think>4 + 0 + 7 + 1</think><answer> 12 </answer>", 1.0),
        ("<answer>The answer is **12**.</answer>", 1.0),
        ("<answer>4 + 0 + 7 + 1 = 12</answer>", 1.0),
        ("<answer>12 or 13</answer>", -0.1),
        ("<answer>4071</answer>", 0.0),
        ("<answer>twelve</answer>", -0.1),
        ("12", -0.1),
    ],
)
def test_rewards(reply: str, reward: float) -> None:
    env = gym.make(ID)
    observation, _ = env.reset(options={"problem": {"number": "4071"}})
    assert observation == "What is the sum of the digits of 4071?"
    assert env.step(reply)[1] == pytest.approx(reward)


def test_natural_answers() -> None:
    env = gym.make(ID, answer_form="natural")
    env.reset(options={"problem": {"number": "4071"}})
    assert env.step("4 + 0 + 7 + 1 is 12, so the answer is 12.")[1] == 1.0
