"""Texts of the tasks: one of a thing is singular, several are plural."""

import inspect
import re

import gymnasium as gym
import pytest

from llm_envs.checker.catalogue import suite_ids
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.code.pipelines import RESULTS, STEPS
from llm_envs.tasks.dialogue.catalogue import CATALOGUES, scripted_answer
from llm_envs.tasks.tools.functions import EXTRA, PARAMETERS
from llm_envs.tasks.wording import in_words

NOUNS = (
    "replie guesse message move turn page part question day night star pet time minute letter word number guest hand"
)
WRONG = re.compile(
    rf"\b1 (?:{'|'.join(NOUNS.split())})s\b|\b(?:[02-9]|[1-9][0-9]+) (?:reply|guess|message|move|page|night|star)\b"
    r"|\bfirst 1\b|\ban? an? |\bthe the\b",
    re.IGNORECASE,
)


def test_a_count_with_its_noun():
    assert [in_words(n, "reply") for n in (0, 1, 2)] == ["0 replies", "1 reply", "2 replies"]
    assert (in_words(1, "move"), in_words(3, "move"), in_words(1, "guess")) == ("1 move", "3 moves", "1 guess")


def test_a_step_of_one():
    said = [step.say(k) for step in [*STEPS.values(), *RESULTS.values()] for k in (1, 2)]
    assert not [text for text in said if re.search(r"\b1 numbers|first 1\b", text)]
    assert STEPS["drop"].say(1) == "drop the first number" and STEPS["drop"].say(2) == "drop the first 2 numbers"


def test_parameters_of_one():
    listed = {name: each for kind in [*PARAMETERS.values(), EXTRA] for name, each in kind.items()}
    for name in ("people", "nights", "pets", "visits", "days", "stars", "instalments"):
        assert WRONG.search(f"{listed[name].say(1)} {listed[name].say(2)}") is None, name
    said = [listed["area"].say("box"), listed["view"].say("sea"), listed["nights"].say(1), listed["visits"].say(1)]
    assert said == ["with seats in the box", "with a view of the sea", "for 1 night", "1 time in all"]


def test_a_property_that_does_not_matter():
    for catalogue in CATALOGUES.values():
        item = {name: values[0] for name, values in catalogue.properties.items()}
        for name in catalogue.properties:
            verb = "do" if name.endswith("s") else "does"
            assert scripted_answer(f"What about the {name}?", {"Acorn": item}, {}) == (
                f"The {name} {verb} not matter to me."
            )
    plural = {name for each in CATALOGUES.values() for name in each.properties if name.endswith("s")}
    assert not {name for name in plural if name.endswith("ss")}


@pytest.mark.parametrize("turns", [1, 2])
def test_what_tasks_show_with_one_reply_left(turns):
    """The first observation, one after a malformed reply and one after an answer of nothing."""
    wrong = set()
    for name in suite_ids():
        if "max_turns" not in inspect.signature(type(gym.make(name).unwrapped)).parameters:
            continue
        try:
            env = gym.make(name, max_turns=turns)
        except InvalidConfigError:  # it needs more
            continue
        shown = [env.reset(seed=0)[0], env.get_wrapper_attr("system_prompt") or ""]
        for action in ("", format_answer("zzz"))[:turns]:
            observation, _, terminated, truncated, _ = env.step(action)
            shown.append(observation)
            if terminated or truncated:
                break
        wrong |= {(name, match[0]) for text in shown for match in WRONG.finditer(text)}
        env.close()
    assert not wrong
