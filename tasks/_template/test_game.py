"""The contract of my/Template-v0, which every task keeps, and the rules of its game."""

import gymnasium as gym
import pytest

import llm_envs

ID = "my/Template-v0"


@pytest.mark.parametrize("level", gym.make(ID).get_wrapper_attr("difficulties"))
def test_it_keeps_the_contract(level: str) -> None:
    assert llm_envs.check_task(ID, difficulty=level).passed


# The tests below are about the game that `llm-envs new-task` wrote. When you replace it, replace them too.


def play(*moves: str) -> list[tuple[str, float, bool]]:
    """Play from 3 to 13; return (observation, reward, terminated) of each move."""
    env = gym.make(ID)
    env.reset(options={"problem": {"start": 3, "goal": 13}})
    return [(text, float(reward), over) for text, reward, over, *_ in map(env.step, moves)]


def test_the_goal_is_reached() -> None:
    moves = play("<answer>double</answer>", "<answer>I will **double**.</answer>", "<answer>Add one.</answer>")
    assert moves[0] == ("The counter stands at 6. 29 moves left.", 0.0, False)
    assert moves[2] == ("The counter stands at 13. You win.", 1.0, True)


def test_the_goal_is_passed() -> None:
    assert play(*["<answer>double</answer>"] * 3)[-1] == (
        "The counter stands at 24. You have gone past the goal.",
        0.0,
        True,
    )


def test_a_reply_that_is_no_move_costs_and_play_goes_on() -> None:
    for answer in ("halve", "double or add one", "double, add one"):
        text, reward, over = play(f"<answer>{answer}</answer>")[0]
        assert text.startswith("Error: ") and reward == pytest.approx(-0.1) and not over
