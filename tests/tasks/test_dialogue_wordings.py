"""Partners in dialogues understand the messages of dialogue_wordings.yaml."""

import re
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

import llm_envs
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.dialogue.catalogue import CATALOGUES
from llm_envs.tasks.dialogue.information_seeking import THEMES
from llm_envs.tasks.dialogue.packages import THEMES as DEALS
from llm_envs.tasks.dialogue.packages import read_package
from llm_envs.tasks.dialogue.said import read_answer
from llm_envs.tasks.tools.office import times_in
from llm_envs.tasks.tools.shop import Customer

assert llm_envs  # registers
WORDINGS = yaml.safe_load(Path(__file__).with_name("dialogue_wordings.yaml").read_text())
TOLD = {"flats": "district", "trips": "activity", "parcel": "handover", "party": "weekday"}
"""Asked about in the first message only."""


def wordings(task):
    """Return (theme, subject, message) of all parts of the file; a part may lack a theme, or the task."""
    found = []
    for part in (WORDINGS, WORDINGS["ruled"], WORDINGS["later"]):
        by_theme = dict(part.get(task, {}))
        common = by_theme.pop("nothing", [])
        found += [
            (theme, subject, text)
            for theme, lists in by_theme.items()
            for subject, texts in lists.items()
            for text in texts
        ]
        found += [(next(iter(by_theme)), "nothing", text) for text in common]
    return found


def misread(task, read):
    """Return the messages that are not read as what they are filed under, with what they are read as."""
    return {(subject, text): got for theme, subject, text in wordings(task) if (got := read(theme, text)) != subject}


def ask(env, problem, theme, text):
    env.reset(options={"problem": problem})
    if theme in TOLD:
        env.step(f"What {TOLD[theme]}, please?")
    return env.step(text)[0].removesuffix("\n(This message does not count.)")


def test_the_customer_of_the_catalogue_understands():
    env = gym.make("llm/PlayedUser-v0", difficulty="expert")
    problems = {}
    for theme in ("flats", "trips"):
        wanted = {key: values[-1] for key, values in CATALOGUES[theme].properties.items()}
        other = {key: values[0] for key, values in CATALOGUES[theme].properties.items()}
        wanted |= {"meals": "breakfast"} if theme == "trips" else {}
        problems[theme] = {"theme": theme, "items": {"Robin": wanted, "Wren": other}, "wishes": wanted}

    def read(theme, text):
        said = ask(env, problems[theme], theme, text)
        answers = {f"Customer: I would like {value}.": key for key, value in problems[theme]["wishes"].items()}
        assert len(answers) == len(problems[theme]["wishes"])
        return answers.get(said, "nothing")

    assert misread("played_user", read) == {}


def test_the_customer_of_the_tariff_understands():
    env = gym.make("llm/InformationSeeking-v0", difficulty="expert")
    problems = {}
    for theme in ("parcel", "party"):
        topics = THEMES[theme].topics
        choices = [name for name in THEMES[theme].of_kind("choice") if name not in (TOLD[theme], "music")]
        price = ["price", 1, [[name, 2] for name in topics if not topics[name].options]]
        first, second, *third = ([name, dict.fromkeys(topics[name].options[:2], price)] for name in choices)
        first[1] = dict.fromkeys(first[1], second)
        tariff = [TOLD[theme], dict(zip(topics[TOLD[theme]].options, [first, *third], strict=False))]
        facts = {name: topics[name].options[0] for name in (*choices, TOLD[theme])}
        facts |= {name: 11 + place for place, name in enumerate(THEMES[theme].of_kind("number"))}
        problems[theme] = {"theme": theme, "facts": facts, "tariff": tariff}

    def read(theme, text):
        facts, wishes = problems[theme]["facts"], THEMES[theme].of_kind("wish")

        def said(wished):
            wanted = facts | {wish: wish == wished for wish in wishes}
            return ask(env, problems[theme] | {"facts": wanted}, theme, text).removeprefix("Customer: ")

        words = said("")
        if words == "No, thanks.":
            return next((wish for wish in wishes if said(wish) == "Yes, please."), "nothing")
        answers = {THEMES[theme].topics[name].said(value): name for name, value in facts.items()}
        return answers.get(words, "nothing")

    assert misread("information_seeking", read) == {}


def test_the_other_side_of_a_deal_understands():
    env = gym.make("llm/Negotiation-v0", difficulty="expert")

    def read(theme, text):
        n = len(DEALS[theme].things)
        rows = {"own": [[9, 5, 2, 0]] * n, "costs": [[7, 3, 1, 0]] * n}
        problem = {"theme": theme, "things": [*range(n)], **rows, "limit": 8, "patience": 1, "likened": []}
        said = ask(env, problem, theme, text)
        return said.split(":")[0].removeprefix("As to the ") if said.startswith("As to") else "nothing"

    assert misread("negotiation", read) == {}


def test_offers_are_read_as_they_are_written():
    names = ["weekday", "music", "cleaning"]

    def read(text):
        try:
            return read_answer(text, lambda answer: read_package(DEALS["hall"], names, answer))
        except InvalidActionError:
            return None

    offers = WORDINGS["negotiation_offers"]
    assert {text: read(text) for text in offers["offer"] if read(text) != [2, 3, 0]} == {}
    assert {text: read(text) for text in offers["nothing"] if read(text)} == {}


@pytest.mark.parametrize("intent", WORDINGS["customer_service"])
def test_the_customer_of_the_shop_understands(intent):
    facts = {
        "order": "My order number is 12345.",
        "mail": "My e-mail address is ada1@example.org.",
        "size": "I need the Wool Sweater in size L.",
        "address": "The new address is 7 Oak Avenue.",
        "more": "No, that is all.",
        "nothing": "All right. If you need something from me, such as a number or an address, ask for it.",
    }
    exchange = {"order": "12345", "kind": "exchange", "item": "Wool Sweater", "size": "L", "address": ""}
    move = {"order": "12345", "kind": "address", "item": "", "size": "", "address": "7 Oak Avenue"}
    script = {"email": "ada1@example.org", "n_opening": 1, "tone": 0, "insists": False}
    request = move if intent == "address" else exchange
    said = {
        text: Customer(script | {"requests": [request]}).answer(text) for text in WORDINGS["customer_service"][intent]
    }
    wanted = " ".join(facts[fact] for fact in intent.split(" and "))
    assert {text: words for text, words in said.items() if words.replace("Yes, that", "No, that") != wanted} == {}


def test_days_and_times_are_read_as_they_are_written():
    wrong = {}
    for part in (WORDINGS, WORDINGS["later"]):
        for when, texts in part["assistant"].items():
            for text in texts:
                days, clocks = times_in(text)
                got = f"{days[0]} {clocks[0]}" if len(days) == len(clocks) == 1 else "nothing"
                if got != when:
                    wrong[text] = got
    assert wrong == {}


@pytest.mark.parametrize("task", ["PlayedUser", "InformationSeeking", "Negotiation"])
def test_the_first_message_that_is_not_understood_does_not_count(task):
    env = gym.make(f"llm/{task}-v0").unwrapped
    for n_unclear in range(3):
        observation, _ = env.reset(seed=1)
        allowed = env.turns_allowed()
        assert f"You have {allowed} messages" in observation
        question = env.oracle()
        said = [env.step("What is your name?") for _ in range(n_unclear)]
        assert ["does not count" in step[0] for step in said] == [True, False][:n_unclear]
        while not (said and (said[-1][2] or said[-1][3])):
            said.append(env.step(question))
        assert said[-1][3]
        assert len(said) == allowed + (n_unclear > 0) <= env.max_turns


# The oracle's questions in other words.


def reworded_episode(env, seed, reword):
    """Play the oracle's actions as `reword(action, last observation)`, and return the last reward."""
    observation, _ = env.reset(seed=seed)
    while True:
        observation, reward, terminated, truncated, _ = env.step(reword(env.oracle(), observation))
        if terminated or truncated:
            return reward


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_asking_by_two_options_after_naming_the_last_answer_wins(level):
    played = gym.make("llm/PlayedUser-v0", difficulty=level).unwrapped
    seeking = gym.make("llm/InformationSeeking-v0", difficulty=level).unwrapped

    def by_values(action, observation):
        if action.startswith("<"):
            return action
        key = action.split()[1]
        values = CATALOGUES[played.problem["theme"]].properties[key]
        last = observation.removeprefix("Customer: I would like ") if "I would like" in observation else "thanks."
        return f"So {last} Would you like {values[0]} or {values[1]}?"

    def by_options(action, observation):
        topic = THEMES[seeking.problem["theme"]].topics.get(action.removesuffix("?").split()[-1])
        last = observation.removeprefix("Customer: That would be ") if "That would" in observation else "thanks."
        return f"So {last} Is it {topic.options[0]} or {topic.options[1]}?" if topic and topic.options else action

    for seed in range(25):
        assert reworded_episode(played, seed, by_values) == 1.0
        assert reworded_episode(seeking, seed, by_options) == 1.0


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_asking_what_an_option_costs_wins(level):
    env = gym.make("llm/Negotiation-v0", difficulty=level).unwrapped

    def by_option(action, _):
        option = DEALS[env.problem["theme"]].things.get(action.split()[-3] if action.startswith("What") else "")
        return f"How much does {option[0]} or {option[1]} cost you?" if option else action

    for seed in range(25):
        assert reworded_episode(env, seed, by_option) == 1.0


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_replies_with_twelve_hours_win(level):
    env = gym.make("llm/Assistant-v0", difficulty=level).unwrapped

    def twelve_hours(action, _):
        def clock(match):
            hour, minute = int(match[1]), match[2]
            return f"at {(hour - 1) % 12 + 1}:{minute} {'PM' if hour >= 12 else 'AM'}"

        return re.sub(r"at (\d\d):(\d\d)", clock, action)

    for seed in range(20):
        assert reworded_episode(env, seed, twelve_hours) == 1.0
