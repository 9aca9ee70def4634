"""PagedRecall: pages that pass once, later prices, and notes that are all that is left of them."""

import re

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import Collector, Summarize
from llm_envs.testing import ByteCodec
from llm_envs.types import Message

ID = "llm/PagedRecall-v0"
PROBLEM = {
    "things": ["bell", "oaken kettle"],
    "pages": [[["bell", 41], ["oaken kettle", 17]], [["bell", 58]]],
    "asked": ["oaken kettle", "bell"],
    "seed": 1,
    "n_characters": 0,
}


def begun(**changes):
    env = gym.make(ID).unwrapped
    observation, _ = env.reset(seed=0, options={"problem": {**PROBLEM, **changes}})
    return env, observation


def asked():
    env, _ = begun()
    for _ in range(3):
        env.step("<answer>next</answer>")
    return env


def test_by_hand():
    env, observation = begun()
    assert observation == (
        "A shop sells: bell, oaken kettle. Its prices are on 2 pages; a later price replaces an earlier one. "
        "You have 8 replies."
    )
    steps = [env.step(f"<answer>{word}</answer>") for word in ("next", "Next page.", "next", "17, 58")]
    assert [step[0] for step in steps] == [
        "Page 1 of 2. The bell costs 41. The oaken kettle costs 17.",
        "Page 2 of 2. The bell costs 58.",
        "What is the price of: oaken kettle, bell?",
        "Correct.",
    ]
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 3 + [(1.0, True, False)]
    assert steps[-1][4]["is_success"] is True


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("17, 58", 1.0),
        ("oaken kettle: 17, bell: 58", 1.0),
        ("The oaken kettle costs $17 and the bell costs $58.", 1.0),
        ("17\n58", 1.0),
        ("58, 17", 0.0),
        ("17, 41", 0.0),
        ("17", 0.0),
        ("17, 58, 41", 0.0),
        ("bell: 58, oaken kettle: 17", -0.1),
        ("17 or 41, 58", -0.1),
        ("the wrong prices are 17, 58", -0.1),
        ("next", -0.1),
    ],
)
def test_answers(answer, reward):
    assert asked().step(f"<answer>{answer}</answer>")[1] == reward


def test_a_price_that_follows_another_changes_with_it():
    follows = [[["bell", 41]], [["oaken kettle", ["bell", 3]]], [["bell", 58]]]
    env, observation = begun(pages=follows)
    assert "always costs so much more than another thing changes with its price, until it has another" in observation
    shown = [env.step("<answer>next</answer>")[0] for _ in range(4)]
    assert shown[1] == "Page 2 of 3. The oaken kettle always costs 3 more than the bell."
    assert env.shortcuts()["reader(48)"] == env.write_answer("44, 58")
    assert env.step("<answer>61, 58</answer>")[0] == "Correct."
    env, _ = begun(pages=[*follows, [["oaken kettle", 7]]])
    for _ in range(5):
        env.step("<answer>next</answer>")
    assert env.step("<answer>7, 58</answer>")[0] == "Correct."


def test_a_page_needs_next_and_replies_run_out():
    env, _ = begun()
    observation, reward, *_ = env.step("<answer>17, 58</answer>")
    assert reward == -0.1
    assert (
        observation == "Error: '17, 58' is not next; before the question, write next for the next page. 7 replies left."
    )
    for _ in range(6):
        env.step("no")
    *_, truncated, info = env.step("no")
    assert truncated and not info["is_success"]


@pytest.mark.parametrize("difficulty", ["medium", "hard", "expert"])
def test_harder_levels_change_prices_and_hide_them_in_long_pages(difficulty):
    env = gym.make(ID, difficulty=difficulty).unwrapped
    for seed in range(5):
        env.reset(seed=seed)
        first = env.unwrapped.shortcuts()["the first prices"]
        lengths = [len(env.step("<answer>next</answer>")[0]) for _ in env.problem["pages"]]
        env.step("<answer>next</answer>")
        assert env.oracle() != first
        characters = env.settings["characters"]
        assert characters * 0.97 - 500 < min(lengths) <= max(lengths) < characters * 1.03 + 600


@pytest.mark.parametrize(
    "changes",
    [
        {"things": ["bell", "bell"]},
        {"things": ["Bell", "oaken kettle"]},
        {"pages": [[["horn", 1]]]},
        {"pages": [[["bell", "1"]]]},
        {"pages": [[["bell", 1], ["oaken kettle", 2], ["bell", ["oaken kettle", 1]]]]},  # in a circle
        {"pages": [[["oaken kettle", ["bell", 1]]]], "asked": ["oaken kettle"]},
        {"pages": [[["bell", 1], ["oaken kettle", ["bell", "1"]]]]},
        {"pages": [[]] * 7},
        {"asked": []},
        {"asked": ["horn"]},
        {"asked": [["bell"]]},
        {"n_characters": -1},
    ],
)
def test_problems_that_cannot_be_played_are_refused(changes):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        begun(**changes)


class Reader:
    """Turns pages, writes the prices down when it is asked to, and answers from what it sees."""

    def __init__(self, notes):
        self.notes = notes

    async def reply(self, messages, tools, params):
        seen = "\n".join(message.content for message in messages if message.role == "user")
        prices = dict(re.findall(r"The (\w+) costs (\d+)|$", seen)) | dict(re.findall(r"(\w+) = (\d+)", seen))
        last = messages[-1].content
        if last == "Note.":
            said = "; ".join(f"{thing} = {price}" for thing, price in prices.items() if thing)
            return Message("assistant", said if self.notes else "Nothing.")
        if not last.startswith("What"):
            return Message("assistant", "<answer>next</answer>")
        return Message("assistant", f"<answer>{prices.get(last.split(': ')[1][:-1], 0)}</answer>")


def play_with(notes):
    settings = {"codec": ByteCodec(), "context_fn": Summarize(history_tokens=700, prompt="Note."), "progress": False}
    with Collector(ID, Reader(notes), **settings) as collector:
        return [t for group in collector.collect(20) for t in group]


def test_where_the_history_does_not_fit_notes_are_all_that_is_left():
    assert all(t.is_success and t.n_forks for t in play_with(notes=True))
    played = play_with(notes=False)
    shown = [ByteCodec().decode_reply(t.rows[-1].ids) for t in played]
    things = [text.split("price of: ")[1].split("?")[0] for text in shown]
    kept = [f"The {thing} costs" in text for thing, text in zip(things, shown, strict=True)]  # on the newest pages
    assert [t.is_success for t in played] == kept and 0 < sum(kept) < 12
