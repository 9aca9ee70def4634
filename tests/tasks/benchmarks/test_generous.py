"""`form="generous"` of the benchmarks: which replies are paid, and which are not (`generous_forms.yaml`)."""

from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.benchmarks.generous import read_letter, read_number

LISTED = yaml.safe_load(Path(__file__).with_name("generous_forms.yaml").read_text(encoding="utf-8"))
CHOICES = ["5 apples", "a round stone or none", "the river", "no 12"]


def rows(kind):
    return [(form, verdict == "right") for verdict, forms in LISTED[kind].items() for form in forms]


def filled(form, **words):
    for name, text in words.items():
        form = form.replace(name, text)
    return form


def read(reader, *arguments):
    try:
        return reader(*arguments)
    except InvalidActionError:
        return None


def is_paid(env, problem, reply):
    env.reset(seed=0, options={"problem": problem})
    return env.step(reply)[4].get("is_success", False)


@pytest.mark.parametrize("answer", ["18", "1234", "7.5", "0"])
def test_a_number(answer):
    env = gym.make("llm/GSM8K-v0", data="sample", form="generous")
    failed = []
    for form, is_right in rows("number"):
        if (answer == "0" and form == "#### -RIGHT") or (answer in ("0", "7.5") and form == "#### RIGHT0"):
            continue  # it is right
        if answer == "7.5" and form in ("#### RIGHT.00", "#### $RIGHT.00"):
            continue  # no number
        text = filled(form, RIGHT=answer, WRONG="26")
        if is_paid(env, {"question": "How many?", "answer": answer}, text) != is_right:
            failed.append(text)
    assert not failed
    assert read(read_number, "#### 1,234") == "1234" and read(read_number, "#### $1,234.50") == "1234.5"


BETWEEN = ("\n", " ", " or ", ". ", "\n\nActually, ", ", ", "/", " and ", "\nOr: ", "; or rather ")


@pytest.mark.parametrize("kind", ["number", "letter"])
def test_two_answers_are_none_in_whatever_forms(kind):
    reader, first, second = (read_number, "18", "26") if kind == "number" else (read_letter, "B", "D")
    forms = [form for form in LISTED[kind]["right"][::4] if "WRONG" not in form and "TEXT" not in form]
    texts = [[filled(form, RIGHT=right, SMALL=right.lower()) for form in forms] for right in (first, second)]
    said = [a + between + b for a in texts[0] for b in texts[1] for between in BETWEEN]
    assert len(said) > 400
    assert [text for text in said if read(reader, text) is not None] == []


@pytest.mark.parametrize("right", "ABCD")
@pytest.mark.parametrize("name", ["MMLU", "GPQA"])
def test_a_letter(name, right):
    wrong = "ABCD"["ABCD".index(right) - 1]
    text, other = (CHOICES["ABCD".index(letter)] for letter in (right, wrong))
    env = gym.make(f"llm/{name}-v0", data="sample", form="generous")
    problem = {"question": "Which?", "choices": CHOICES, "answer": right}
    failed = []
    for form, is_right in rows("letter"):
        reply = filled(form, OTHERTEXT=other, TEXT=text, RIGHT=right, WRONG=wrong, SMALL=right.lower())
        if is_paid(env, problem, reply) != is_right:
            failed.append(reply)
    assert not failed


@pytest.mark.parametrize(
    "right", ["Black Forest", "The Taming of the Shrew", "12 May 1904", "Trinidad and Tobago", "yes"]
)
def test_a_span(right):
    env = gym.make("llm/HotpotQA-v0", data="sample", form="generous")
    problem = {"question": "Which?", "answer": right, "passages": []}
    failed = []
    for form, is_right in rows("span"):
        reply = filled(form, RIGHT=right, WRONG="Lake Como", SMALL=right.lower())
        if is_paid(env, problem, reply) != is_right:
            failed.append(reply)
    assert not failed


def test_an_answer_with_words_of_doubt_and_reason_in_it_is_still_right():
    env = gym.make("llm/HotpotQA-v0", data="sample", form="generous")
    for right in ("Because of You", "Not Without Laughter", "Maybe I'm Amazed", "It Is Written", "Now or Never"):
        problem = {"question": "Which?", "answer": right, "passages": []}
        for form in ("<answer>RIGHT</answer>", "<answer>The answer is RIGHT.</answer>", "\\boxed{RIGHT}", "RIGHT"):
            assert is_paid(env, problem, filled(form, RIGHT=right)), (form, right)


def test_a_search_goes_on_and_an_answer_in_prose_ends_it():
    env = gym.make("llm/HotpotQA-v0", data="sample", difficulty="search", form="generous")
    env.reset(seed=0)
    assert env.step(env.unwrapped.oracle())[2] is False
    answer = env.unwrapped.problem["answer"]
    assert env.step(f"The answer is {answer}.")[1:3] == (1.0, True)


def test_a_grid():
    env = gym.make("llm/ARC-v0", form="generous")
    env.reset(seed=0, options={"problem": {"id": "0d3d703e"}})
    grid, bad = [["9", "5", "4"]] * 3, "9 5 4\n9 5 4\n9 5 5"
    lines = ["| " + " | ".join(row) + " |" for row in grid]
    texts = {
        "ROWS": "\n".join(map(" ".join, grid)),
        "TABLE": "\n".join(lines),
        "RULED": "\n".join([lines[0], "|---|:-:|---|", *lines[1:]]),
        "JSON": str(grid).replace("'", ""),
        "BAD": bad,
    }
    failed = [f for f, is_right in rows("grid") if is_paid(env, {"id": "0d3d703e"}, filled(f, **texts)) != is_right]
    assert not failed


@pytest.mark.parametrize("name", ["GSM8K", "MMLU", "GPQA", "HotpotQA"])
def test_the_official_form_is_the_default_and_the_generous_one_takes_the_oracles_reply(name):
    for form in ("official", "generous"):
        env = gym.make(f"llm/{name}-v0", data="sample", form=form)
        for seed in range(5):
            env.reset(seed=seed)
            assert env.step(env.unwrapped.oracle())[4]["is_success"]
    assert gym.make(f"llm/{name}-v0", data="sample").unwrapped.form == "official"


def test_a_form_that_a_task_does_not_have_is_refused():
    with pytest.raises(InvalidConfigError, match="form is 'loose'; known are official, generous"):
        gym.make("llm/MMLU-v0", data="sample", form="loose")
    with pytest.raises(InvalidConfigError, match="form is 'generous'; known are official"):
        gym.make("llm/MBPP-v0", data="sample", form="generous")


@pytest.mark.parametrize("mark", ["Answer: ", "\\boxed{", "#### ", "<answer>", "the answer is ", "**", "(A) "])
def test_long_hostile_replies_are_read_quickly(mark):
    for reader in (read_number, read_letter):
        assert read(reader, mark * 20_000) is None
