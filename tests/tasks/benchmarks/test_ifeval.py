"""`llm/IFEval-v0`: the checkers' verdicts, data in the benchmark's layouts, hostile texts, and limits."""

import json
import time

import gymnasium as gym
import pytest

from llm_envs.checker import check_task
from llm_envs.errors import InvalidConfigError
from llm_envs.tasks.benchmarks.ifeval_instructions import INSTRUCTIONS

# The first rows as the repository of the benchmark and as the hub have them.
PUBLISHED = [
    {
        "key": 1000,
        "prompt": "Write a 300+ word summary of the page. Do not use any commas and highlight at least 3 sections that "
        "has titles in markdown format, for example *highlighted section part 1*.",
        "instruction_id_list": [
            "punctuation:no_comma",
            "detectable_format:number_highlighted_sections",
            "length_constraints:number_words",
        ],
        "kwargs": [{}, {"num_highlights": 3}, {"relation": "at least", "num_words": 300}],
    },
    {
        "key": 1012,
        "prompt": "Write a letter to a friend. Include at least four hashtags, starting with '#'.",
        "instruction_id_list": ["keywords:letter_frequency"],
        "kwargs": [{"let_relation": "at least", "letter": "#", "let_frequency": 4}],
    },
]
NOTHING = dict.fromkeys(sorted({key for each in INSTRUCTIONS.values() for key in each.types}))
ON_THE_HUB = [{**row, "kwargs": [{**NOTHING, **given} for given in row["kwargs"]]} for row in PUBLISHED]


def make(**kwargs):
    return gym.make("llm/IFEval-v0", **kwargs)


def reward(reply, *instructions, **kwargs):
    """Return (reward, share of instructions that are followed)."""
    env = make(**kwargs)
    names, given = [name for name, _ in instructions], [arguments for _, arguments in instructions]
    env.reset(options={"problem": {"prompt": "Write.", "instruction_id_list": names, "kwargs": given}})
    _, paid, _, _, info = env.step(reply)
    return paid, info["reward_components"]["instructions"]


NO_COMMA = ("punctuation:no_comma", {})
TWO_BULLETS = ("detectable_format:number_bullet_lists", {"num_bullets": 2})
GERMAN = ("language:response_language", {"language": "de"})


@pytest.mark.parametrize(
    ("reply", "paid"),
    [
        ("* one\n* two", (1, 1)),
        ("* one, two\n* three", (0, 0.5)),
        ("one two", (0, 0.5)),
        ("* one\n* two, three\n* four", (0, 0)),
        ("", (0, 0)),
        ("<think>* one\n* two", (0, 0)),
        ("<think>Hm, let me see.</think>* one\n* two", (1, 1)),
    ],
)
def test_all_instructions_must_be_followed(reply, paid):
    assert reward(reply, NO_COMMA, TWO_BULLETS) == paid


def test_loose_accuracy_forgives_a_first_line_and_asterisks():
    title = ("startend:quotation", {})
    assert reward('Here you are:\n"The text."', title) == (0, 0)
    assert reward('Here you are:\n"The text."', title, loose=True) == (1, 1)


def test_sentences_are_counted_by_punkt_not_by_full_stops():
    four = ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"})
    assert reward("Dr. Smith met Mr. Jones at 5 p.m. in St. Ives.", four) == (1, 1)
    assert reward("He came. He went.", four) == (0, 0)


@pytest.mark.parametrize("reply", ["12345", "!!!", "\U0001f600", "\ud800", "Good morning to all of you, my friends."])
def test_a_text_whose_language_cannot_be_told_is_not_in_the_language(reply):
    assert reward(reply, GERMAN) == (0, 0)
    assert reward("Guten Morgen zusammen, wie geht es euch heute?", GERMAN) == (1, 1)


def test_characters_that_are_no_letters_are_counted():
    hashtags = ("keywords:letter_frequency", PUBLISHED[1]["kwargs"][0])
    assert reward("#a #b #c #d", hashtags) == (1, 1)
    assert reward("abcdefghijklmnopqrstuvwxyz" * 9 + "###", hashtags) == (0, 0)


@pytest.mark.parametrize(
    ("reply", "name", "kwargs"),
    [
        ("[" * 200_000, "detectable_content:number_placeholders", {"num_placeholders": 1}),  # quadratic
        ("<<" * 100_000, "detectable_format:title", {}),  # quadratic
        ("[" * 200_000, "detectable_format:json_format", {}),  # exhausts the stack
        ("x" * 2_000_000, "punctuation:no_comma", {}),  # longer than an action may be
    ],
)
def test_hostile_texts_earn_nothing_and_cost_little_time(reply, name, kwargs):
    started = time.perf_counter()
    assert reward(reply, (name, kwargs)) == (0, 0)
    assert reward("* one\n* two", NO_COMMA, TWO_BULLETS) == (1, 1)  # the next one finds another child
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize("rows", [PUBLISHED, ON_THE_HUB])
def test_published_data_are_the_test_split(tmp_path, rows):
    path = tmp_path / "input_data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = make(split="test", data=str(path))
    prompts = {env.reset(seed=seed)[0] for seed in range(20)}
    assert prompts == {row["prompt"] for row in PUBLISHED}
    env.reset(seed=1)
    assert env.step(env.unwrapped.oracle())[1] == 1
    assert make(split="train", data=str(path)).reset(seed=0)[0] not in prompts


def test_the_contract_holds_with_data():
    check_task("llm/IFEval-v0", data=PUBLISHED, difficulty="hard")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"instruction_id_list": ["punctuation:no_comma", "x:y", "x:z"]}, "instruction 'x:y' is unknown"),
        ({"kwargs": [{}, {}, {"relation": "at least", "num_words": 300}]}, "num_highlights=None"),
        ({"kwargs": [{}, {"num_highlights": 3}, {"relation": "about", "num_words": 3}]}, "relation='about'"),
        ({"kwargs": [{}]}, "of one length"),
        ({"kwargs": [{"commas": 1}, {"num_highlights": 3}, {"relation": "at least", "num_words": 3}]}, "'commas'"),
    ],
)
def test_wrong_rows_are_named(changed, message):
    with pytest.raises(InvalidConfigError, match=f"row 0 of the data: .*{message}"):
        make(split="test", data=[{**PUBLISHED[0], **changed}])


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard", "expert"])
def test_the_oracle_follows_every_kind_of_instruction(difficulty):
    env, seen = make(difficulty=difficulty), set()
    env.reset(seed=0)
    for _ in range(150):
        env.reset()
        seen |= set(env.unwrapped.problem["instruction_id_list"])
        action = env.unwrapped.oracle()
        observation, paid, *_ = env.step(action)
        assert paid == 1, (env.unwrapped.problem, action, observation)
    alone = {name for name, each in INSTRUCTIONS.items() if each.alone_but is not None}
    assert seen >= INSTRUCTIONS.keys() - alone - {"punctuation:no_comma", "keywords:forbidden_words"}
