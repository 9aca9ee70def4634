"""`llm/FunctionCalling-v0`: exactly the right calls, no call where none fits, a question where something is missing."""

import json
import random

import gymnasium as gym
import pytest

import llm_envs  # noqa: F401  # registers the tasks
from llm_envs.env import split_of
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call, parse_reply
from llm_envs.tasks.tools.functions import NESTED, PARAMETERS, function_name, nouns_of

ID = "llm/FunctionCalling-v0"
LEVELS = ("easy", "medium", "hard", "expert")


def function(verb, noun, parameters, required, sizes="", word=None):
    word = word or verb
    return {"verb": verb, "noun": noun, "sizes": sizes, "word": word, "parameters": parameters, "required": required}


FERRY = function("reserve", "ferry", ["date", "people", "meals", "max_price"], ["date", "people"], "small", "book")
FERRY_GROUP = FERRY | {"sizes": "large"}
INSURE = function("insure", "ferry", ["cover", "days"], ["cover"])
CANCEL = function("cancel", "ferry", ["reason"], ["reason"])
RESERVE = {"verb": "reserve", "noun": "ferry", "arguments": {"date": "2031-05-04", "people": 3, "meals": False}}
CALL = format_tool_call("book_ferry", date="2031-05-04", people=3, meals=False)


def start(*parts, functions=(FERRY, FERRY_GROUP, INSURE, CANCEL)):
    env = gym.make(ID, max_turns=9)
    problem = {"functions": list(functions), "parts": list(parts), "salt": 1}
    prompt, _ = env.reset(options={"problem": problem})
    return env, prompt


def part(*steps, missing=""):
    return {"steps": list(steps), "missing": missing}


def won(env, *actions):
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
    return (terminated or truncated) and info["is_success"]


def test_one_call():
    env, prompt = start(part(RESERVE))
    assert prompt == "1. Reserve a ferry, on 4 May 2031, for a party of 3, without meals."
    assert [tool["function"]["name"] for tool in env.unwrapped.tools] == [
        "book_ferry", "book_ferry_group", "insure_ferry", "cancel_ferry",
    ]  # fmt: skip
    properties = env.unwrapped.tools[0]["function"]["parameters"]
    assert properties["required"] == ["date", "people"] and properties["properties"]["meals"] == {"type": "boolean"}
    assert won(env, CALL, format_answer("done"))


@pytest.mark.parametrize(
    "actions",
    [
        [format_answer("done")],
        [CALL, CALL, format_answer("done")],
        [f"{CALL}\n{CALL}", format_answer("done")],
        [CALL, format_tool_call("cancel_ferry", reservation_id="R10000", reason="other"), format_answer("done")],
        [format_tool_call("book_ferry_group", date="2031-05-04", people=3, meals=False), format_answer("done")],
        [format_tool_call("book_ferry", date="2031-05-04", people=3), format_answer("done")],
        [format_tool_call("book_ferry", date="2031-05-04", people="3", meals=False), CALL, format_answer("done")],
        [format_tool_call("book_ferry", date="4 May 2031", people=3, meals=False), format_answer("done")],
        [format_tool_call("book_ferry", date="2031-05-04", people=3, meals=0), CALL, format_answer("done")],
        [format_tool_call("book_ferry", date="2031-05-04", people=3, meals=False, max_price=50), format_answer("done")],
        [format_tool_call("reserve_ferry", date="2031-05-04", people=3, meals=False), CALL, format_answer("done")],
        ["ask 1: max_price", CALL, format_answer("done")],
        [CALL, format_answer("impossible: 1")],
    ],
    ids=[
        "nothing", "twice", "twice in a reply", "one too many", "the look-alike", "an argument left out",
        "a text for a number", "another format", "0 for false", "an argument made up", "a name made up",
        "a needless question", "the wrong answer",
    ],
)  # fmt: skip
def test_anything_but_the_right_call_fails(actions):
    assert not won(start(part(RESERVE))[0], *actions)


def test_numbers_are_compared_by_value():
    step = {"verb": "reserve", "noun": "ferry", "arguments": RESERVE["arguments"] | {"max_price": 50.0}}
    call = format_tool_call("book_ferry", date="2031-05-04", people=3, meals=False, max_price=50)
    assert won(start(part(step))[0], call, format_answer("done"))


def test_where_no_function_fits_the_agent_must_say_so():
    for functions in ((FERRY_GROUP, INSURE, CANCEL), (INSURE, CANCEL)):
        assert won(start(part(RESERVE), functions=functions)[0], format_answer("impossible: 1"))
        assert not won(start(part(RESERVE), functions=functions)[0], format_answer("done"))
    call = format_tool_call("book_ferry_group", date="2031-05-04", people=3, meals=False)
    assert not won(start(part(RESERVE), functions=(FERRY_GROUP, INSURE))[0], call, format_answer("impossible: 1"))


def test_what_is_missing_must_be_asked_for():
    missing = part(RESERVE, missing="date")
    env, prompt = start(missing)
    assert prompt == "1. Reserve a ferry, for a party of 3, without meals."
    assert env.step("ask 1: date")[0] == "1: on 4 May 2031."
    assert won(env, CALL, format_answer("done"))
    assert not won(start(missing)[0], CALL, format_answer("done"))  # a lucky guess
    assert not won(start(missing)[0], "ask 1: date\nask 1: meals", CALL, format_answer("done"))
    env, _ = start(missing)
    assert env.step("Which date?")[1] == pytest.approx(-0.1)  # no question of the form, and no answer


def test_a_chain_takes_the_id_that_was_returned():
    chain = part(RESERVE, {"verb": "insure", "noun": "ferry", "arguments": {"cover": "full"}})
    env, prompt = start(chain)
    assert prompt.endswith("; then insure that reservation, with the cover full.")
    returned = json.loads(env.step(CALL)[0])["reservation_id"]
    assert won(env, format_tool_call("insure_ferry", reservation_id=returned, cover="full"), format_answer("done"))
    guess = format_tool_call("insure_ferry", reservation_id="R10000", cover="full")
    assert not won(start(chain)[0], CALL, guess, format_answer("done"))


def test_parts_in_one_reply():
    other = {"verb": "cancel", "noun": "ferry", "arguments": {"reservation_id": "R55555", "reason": "illness"}}
    unknown = {"verb": "rate", "noun": "ferry", "arguments": {"reservation_id": "R44444", "stars": 4}}
    env, prompt = start(part(RESERVE), part(unknown), part(other))
    assert "2. Rate the reservation R44444 of a ferry, with 4 stars." in prompt
    calls = f"{format_tool_call('cancel_ferry', reservation_id='R55555', reason='illness')}\n{CALL}"
    assert won(env, calls, format_answer("impossible: 2"))


QUOTE = function("quote", "ferry", ["people", "contact", "parcels"], ["people"], "large", "price")
CHECK = function("check", "ferry", ["date", "people"], ["date"], "", "check")


def step_of(verb, **arguments):
    return {"verb": verb, "noun": "ferry", "arguments": arguments}


def test_references_and_corrections():
    """Part 1 has 10 people in the end and not 5, so that part 2 has 8 and not 3, and part 3 has 12 and not 7."""
    parts = [
        part(step_of("check", date="2031-05-04", people=10)) | {"first": {"people": 5, "date": "2031-05-01"}},
        part(step_of("reserve", date="2031-05-09", people=8)) | {"as": {"people": 1, "date": 1}},
        part(step_of("quote", people=12)) | {"as": {"people": 2}},
    ]
    env, prompt = start(*parts, functions=(FERRY_GROUP, QUOTE, CHECK))
    assert prompt.splitlines() == [
        "1. Check whether a ferry is free, on 1 May 2031, for a party of 5.",
        "2. Reserve a ferry, 5 days after the date of part 1, for a party of 2 fewer than in part 1.",
        "3. Work out what a ferry costs, for a party of 4 more than in part 2.",
        "I must correct myself. All that I told by reference to these values, also through other parts, changes too:",
        "- Part 1 is for a party of 10, not for a party of 5.",
        "- Part 1 is on 4 May 2031, not on 1 May 2031.",
    ]
    calls = [
        format_tool_call("check_ferry", date="2031-05-04", people=10),
        format_tool_call("price_ferry_group", people=12),
    ]
    assert won(env, *calls, format_answer("impossible: 2"))
    as_read = format_tool_call("price_ferry_group", people=7)
    assert not won(start(*parts, functions=(FERRY_GROUP, QUOTE, CHECK))[0], calls[0], as_read, format_answer("done"))
    assert env.unwrapped.shortcuts() == {"reader(3)": format_answer("impossible: 2, 3")}  # 3 and 7 people: no groups


def test_a_party_as_large_and_a_date_before():
    parts = [
        part(step_of("check", date="2031-05-02", people=3)) | {"as": {"people": 2, "date": 2}},
        part(step_of("reserve", date="2031-05-03", people=3)),
        part(step_of("check", date="2031-05-03", people=1)) | {"as": {"date": 2}},
    ]
    env, prompt = start(*parts, functions=(FERRY, CHECK))
    assert prompt.splitlines() == [
        "1. Check whether a ferry is free, 1 day before the date of part 2, for a party as large as in part 2.",
        "2. Reserve a ferry, on 3 May 2031, for a party of 3.",
        "3. Check whether a ferry is free, on the date of part 2, for a party of 1.",
    ]
    assert env.unwrapped.shortcuts() == {}


@pytest.mark.parametrize(
    ("change", "is_right"),
    [
        ({}, True),
        ({"parcels": [{"content": "wine", "kilos": 2}, {"kilos": 1, "content": "books"}]}, True),
        ({"parcels": [{"content": "books", "kilos": 1}, {"content": "wine", "kilos": 2}]}, False),
        ({"parcels": [{"content": "wine", "kilos": "2"}, {"content": "books", "kilos": 1}]}, False),
        ({"parcels": [{"content": "wine"}, {"content": "books", "kilos": 1}]}, False),
        ({"contact": {"name": "omar", "hours": {"first": "09:00", "last": "05:30"}}}, False),
        ({"contact": {"name": "omar", "hours": {"first": "09:00", "last": "17:30", "zone": "UTC"}}}, False),
        ({"contact": {"name": "omar", "hours": "09:00"}}, False),
        ({"contact": "omar"}, False),
    ],
)
def test_nested_arguments(change, is_right):
    arguments = {
        "people": 9,
        "contact": {"name": "omar", "hours": {"first": "09:00", "last": "17:30"}},
        "parcels": [{"content": "wine", "kilos": 2}, {"content": "books", "kilos": 1}],
    }
    env, prompt = start(part(step_of("quote", **arguments)), functions=(QUOTE,))
    assert prompt == (
        "1. Work out what a ferry costs, for a party of 9, with omar to be called from 9:00 in the morning to 5:30 in "
        "the afternoon or evening, with 2 kilos of wine and 1 kilo of books."
    )
    shown = env.unwrapped.tools[0]["function"]["parameters"]["properties"]
    assert shown["contact"]["required"] == ["name", "hours"] and shown["parcels"]["items"]["required"] == [
        "content",
        "kilos",
    ]
    call = format_tool_call("price_ferry_group", **(arguments | change))
    assert won(env, call, format_answer("done")) == is_right


def test_expert_parts_refer_to_others_and_are_corrected():
    """The calls are those of the corrected values; the reader that forgets what follows is mostly misled."""
    env = gym.make(ID, difficulty="expert")
    n_links = n_nested = n_misled = 0
    for seed in range(20):
        env.reset(seed=seed)
        task = env.unwrapped
        parts = task.problem["parts"]
        n_links += sum(len(each.get("as", {})) for each in parts)
        n_nested += sum(name in NESTED for each in parts for s in each["steps"] for name in s["arguments"])
        assert 1 <= sum(len(each.get("first", {})) for each in parts) <= 4
        n_misled += [*task.shortcuts().values()] != [task._answer(task._impossible())]
    assert n_links >= 100 and n_nested >= 60 and n_misled >= 10
    for level in LEVELS[:3]:
        env = gym.make(ID, difficulty=level)
        env.reset(seed=0)
        assert not any({"as", "first"} & each.keys() for each in env.unwrapped.problem["parts"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"as": {"people": 3}}, {}),
        ({"as": {"people": 1}}, {}),
        ({"as": {"people": 2}}, {"as": {"people": 1}}),
        ({"as": {"date": 2}}, {"missing": "date"}),
        ({"as": {"date": 2}, "missing": "date"}, {}),
        ({"as": {"meals": 2}}, {}),
        ({"as": {"people": 2}, "first": {"people": 5}}, {}),
        ({"first": {"people": 3}}, {}),
        ({"first": {"people": "5"}}, {}),
        ({"first": {"date": "soon"}}, {}),
    ],
)
def test_references_to_nothing_are_refused(first, second):
    problem = {"functions": [FERRY], "parts": [part(RESERVE) | first, part(RESERVE) | second], "salt": 1}
    with pytest.raises(InvalidConfigError):
        gym.make(ID).reset(options={"problem": problem})


def filled(schema):
    """Return a value that fits a schema."""
    if schema["type"] == "object":
        return {name: filled(schema["properties"][name]) for name in schema["required"]}
    if schema["type"] == "array":
        return [filled(schema["items"])]
    return schema.get("enum", [{"integer": 3, "number": 3, "boolean": True, "string": "x"}[schema["type"]]])[0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_player_that_calls_everything_wins_nothing(level):
    """It fills each function with values of the right types, and answers."""
    env = gym.make(ID, difficulty=level)
    for seed in range(40):
        env.reset(seed=seed)
        calls = []
        for tool in env.unwrapped.tools:
            arguments = filled(tool["function"]["parameters"])
            calls.append(format_tool_call(tool["function"]["name"], **arguments))
        assert not won(env, "\n".join(calls[:16]), "\n".join(calls[16:]) or "Hm.", format_answer("done"))


@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_of_part_is_drawn_and_look_alikes_are_near(level):
    env = gym.make(ID, difficulty=level)
    n_impossible = n_missing = n_done = n_chained = 0
    for seed in range(60):
        env.reset(seed=seed)
        task = env.unwrapped
        problem = task.problem
        assert len(problem["functions"]) >= task.settings["tools"] and len(problem["parts"]) == task.settings["parts"]
        n_impossible += len(task._impossible())
        n_missing += len(task._parts_lacking())
        n_done += sum(bool(calls) for calls in task._needed)
        n_chained += sum(len(calls) > 1 for calls in task._needed)
        wanted = {(step["verb"], step["noun"]) for p in problem["parts"] for step in p["steps"]}
        others = [f for f in problem["functions"] if (f["verb"], f["noun"]) not in wanted]
        near = [f for f in others if any((f["verb"] == verb) != (f["noun"] == noun) for verb, noun in wanted)]
        assert len(near) >= len(others) / 2
    assert min(n_impossible, n_missing, n_done) >= 10
    assert (n_chained > 0) == (level != "easy")


def test_no_function_and_no_thing_is_in_both_splits():
    seen = {}
    for split in ("train", "test"):
        env = gym.make(ID, split=split, difficulty="hard")
        seen[split] = set()
        for seed in range(50):
            env.reset(seed=seed)
            functions = env.unwrapped.problem["functions"]
            seen[split] |= {f["noun"] for f in functions}
            assert split_of(env.unwrapped.split_key(env.unwrapped.problem)) == split
    assert not seen["train"] & seen["test"] and min(map(len, seen.values())) >= 10
    assert not set(nouns_of("train")) & set(nouns_of("test"))


def test_names_and_words_are_clear():
    """No two functions of an episode have one name, and each parameter has other words than the others of its kind."""
    env = gym.make(ID, difficulty="expert")
    for seed in range(20):
        env.reset(seed=seed)
        names = [function_name(f) for f in env.unwrapped.problem["functions"]]
        assert len(set(names)) == len(names)
    draw = random.Random(0).random
    for kind, parameters in PARAMETERS.items():
        if kind != "common":
            known = {**PARAMETERS["common"], **parameters}
            said = {name: parameter.say(parameter.draw(draw)) for name, parameter in known.items()}
            assert len(set(said.values())) == len(said)


@pytest.mark.parametrize(
    "change",
    [{"functions": []}, {"parts": []}, {"parts": [part()]}, {"parts": [part(RESERVE, missing="meals")]},
     {"parts": [part({"verb": "reserve", "noun": "ferry", "arguments": {"date": 3}})]},
     {"parts": [part({"verb": "reserve", "noun": "castle", "arguments": {}})]},
     {"functions": [FERRY, FERRY]}],
)  # fmt: skip
def test_problems_that_do_not_hang_together_are_refused(change):
    problem = {"functions": [FERRY, INSURE], "parts": [part(RESERVE)], "salt": 1}
    with pytest.raises(InvalidConfigError):
        gym.make(ID).reset(options={"problem": problem | change})


def test_the_limit_of_turns_is_told_and_enough():
    for level, turns in zip(LEVELS, (4, 6, 14, 58), strict=True):
        env = gym.make(ID, difficulty=level)
        env.reset(seed=0)
        assert env.unwrapped.system_prompt.endswith(f"You have {turns} replies.")
        for seed in range(40):
            env.reset(seed=seed)
            over, n_turns = False, 0
            while not over:
                action = env.unwrapped.oracle()
                assert parse_reply(action).problems == ()
                _, _, terminated, truncated, info = env.step(action)
                over, n_turns = terminated or truncated, n_turns + 1
            assert info["is_success"] and n_turns <= turns


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("impossible: 1", True),
        ("Impossible: part 1.", True),
        ("**impossible: 1**", True),
        ("impossible: 1 and 2", False),
        ("impossible: 1 or done", False),
        ("done", False),
        ("done or impossible: 1", False),
    ],
)
def test_natural_forms(answer, is_right):
    env, _ = start(part(RESERVE), functions=(FERRY_GROUP, INSURE, CANCEL))
    _, _, _, _, info = env.step(format_answer(answer))
    assert info.get("is_success", False) == is_right


@pytest.mark.parametrize("question", ["ask 1: date", "Ask 1: `date`", "- ask part 1: date.", "**ask 1: date**"])
def test_questions_in_natural_forms(question):
    env, _ = start(part(RESERVE, missing="date"))
    observation, reward, *_ = env.step(question)
    assert observation == "1: on 4 May 2031." and reward == 0
    observation, reward, *_ = env.step("What is the date?")
    assert observation == "Error: the reply has no tool call or answer in the form <answer>done</answer>."
    assert reward == pytest.approx(-0.1)
