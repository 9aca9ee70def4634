"""Answers in prose: one is read, decoration goes, and hedges have none."""

import time

import gymnasium as gym
import pytest

import llm_envs  # noqa: F401  (registers the tasks)
from llm_envs.parsers import natural_answers, plain_answer, without_unit

PLAIN = {
    **dict.fromkeys(["42", " 42 ", "42.", "42\u3002", "**42**", "`42`", "$42$", r"\(42\)", r"\boxed{42}"], "42"),
    **dict.fromkeys([r"$\boxed{42}$", "```\n42\n```", "The answer is 42.", "**Final answer: 42**", '"42"'], "42"),
    r"The answer is $\boxed{\frac{1}{2}}$.": r"\frac{1}{2}",
    "\u221242": "-42",
    "1{,}000": "1,000",
    r"\text{up}": "up",
    **{"**3*4 + 2**": "3*4 + 2", r"\(\frac{1}{2}\)": r"\frac{1}{2}"},
    "Here is the query:\n```sql\nSELECT 1\n```\nIt counts.": "SELECT 1",
    "```python\ndef f(xs):\n    return xs\n```": "def f(xs):\n    return xs",
    **dict.fromkeys(
        ["\u200b42", "42\ufeff", "Answer\uff1a42", "\u7b54\u6848\u662f 42\u3002", "\u7b54\u6848\uff1a42"], "42"
    ),
    **dict.fromkeys(["**Answer:** 42", "**Answer**: 42", "# Answer\n42", "## Final answer\n\n**42**"], "42"),
    **dict.fromkeys(["Answer\n42", "**Answer**\n42", "*Answer:* 42", "__Answer:__ 42", "### Answer: 42"], "42"),
    "**Answer:** Norbert Quayle": "Norbert Quayle",
    "# Answer\n12 34\n56 78": "12 34\n56 78",
    # These say something else without the characters, or are not decorated as a whole.
    **{text: text for text in ["3.5", "**a** or **b**", "$x$ + $y$", "`a` `b`", r"\frac12", "...", "-", "", "3 or 4"]},
    **{text: text for text in ["The answer is 3. The answer is 4", r"\(x\) or \(y\)", "*a* or *b*", "2**3**4"]},
}


@pytest.mark.parametrize("text", PLAIN)
def test_decoration_goes_and_the_answer_stays(text):
    assert plain_answer(text) == PLAIN[text]
    assert plain_answer(PLAIN[text]) == PLAIN[text]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("To add 7 and 5, you simply add them together: 7 + 5 = 12.", "12"),
        ("The answer is 12. I hope this helps!", "12"),
        ("The answer is 12. So the answer is 12.", "12"),
        ("Answer:\n42", "42"),
        ("**Answer:** 12", "12"),
        ("The next move is **up**.", "up"),
        ("I will stick.", "stick"),
        ("A -> B -> C", "A -> B -> C"),
        (r"7 + 5 is \boxed{12}, not 13.", "12"),
        ("57", "57"),
        *(
            (text, "12")
            for text in (
                *(
                    "It's 12.",
                    "That's 12.",
                    "The answer's 12.",
                    "I got 12.",
                    "This yields 12.",
                    "Therefore, 12.",
                    "#### 12",
                ),
                *(
                    "So, 12",
                    "The answer is exactly 12.",
                    "The answer is equal to 12.",
                    "The answer is 12!",
                    "Total: 12",
                ),
                *(r"So $3*4 = 12$.", r"$3 \times 4 = 12$", r"\[ 3*4 = 12 \]", "The answer is:\n\\[\n12\n\\]"),
                *("Since 5 is not even, the answer is 12.", "3*4 = 6+6 = 12", "I think that the answer is 12."),
                "Not 13, I made a mistake there. The answer is 12.",
            )
        ),
        *(
            (text, "12")
            for text in (
                *("The answer is 12, because 1+1=2.", "The answer is 12 since 3 = 3.", "12, because 1+1=2."),
                *("The answer is 12, which equals 6+6.", "The answer is **12**, so x = 3.", "So 12 is the answer."),
                *(
                    "12 is the correct answer.",
                    "We are done. 12 is the answer",
                    "Hence 12 is the answer.\nThe answer is 12.",
                ),
                *("```\n12\n```", "```text\n12\n```", "Here it is:\n```\n12\n```", "The answer is:\n```\n12\n```"),
                *(
                    "Answer\uff1a12",
                    "\u7b54\u6848\u662f 12\u3002",
                    "\u6240\u4ee5\u7b54\u6848\u662f 12\u3002",
                    "12\u200b",
                    "The answer is 12\u200b.",
                ),
                *("The answer is 12 \u2705", "The answer should be 12.", "It comes out to 12.", "This is equal to 12."),
                *("*Answer:* 12", "# Answer\n12", "> 12", "The answer is \u200b**12**."),
            )
        ),
        (r"Thus $x = \frac{27}{10}$.", r"\frac{27}{10}"),
        ("The kinds are:\n- Ada: knight\n- Ben: knave", "- Ada: knight\n- Ben: knave"),
        ("The answer is:\n\n1. Valid\n2. Invalid\n\nI hope this helps.", "1. Valid\n2. Invalid"),
        ("x = 1\ny = 2", "x = 1\ny = 2"),
        ("```\n1 2\n2 1\n```", "1 2\n2 1"),
        ("The grid is:\n```\n1 2\n2 1\n```", "1 2\n2 1"),
        ("The answer is Norbert Quayle, because he was born there.", "Norbert Quayle"),
    ],
)
def test_one_answer_is_found_in_prose(text, first):
    assert natural_answers(text)[0] == first


HEDGED = ["", "  \n", "I think it is 3 or 4.", "Either 3 or 4.", "Maybe 3.", "The answer is 3.\nNo, the answer is 4."]
HEDGED += ["The answer is 3 or 4.", r"\boxed{3} and \boxed{4}", "The answer is maybe 3.", "It might be 3."]
HEDGED += ["\\boxed{3}\n\nThe answer is 4.", r"The answer is 3. \boxed{4}"]
HEDGED += [
    "The answer is 3. Wait, that is wrong.",
    "The answer is 3. No, it is something else.",
    r"\boxed{3} is wrong.",
]
HEDGED += ["3 is the answer. 4 is the answer.", "The answer is 3. So 4 is the answer.", "3 or 4 is the answer."]
HEDGED += ["It could be this:\n```\n3\n4\n```", "The answer is 3.\n```\n4\n```\nThe answer is 4."]
HEDGED += ["\u7b54\u6848\u662f 3\u3002\u7b54\u6848\u662f 4\u3002", "The answer is 3, or rather 4, because 1 = 1."]
HEDGED += [r"It is not \boxed{3}.", "The answer is 3. I am not sure."]


@pytest.mark.parametrize("text", HEDGED)
def test_a_text_that_hedges_has_no_answer(text):
    assert natural_answers(text) == ()


DENIED = ["I will not go up.", "It isn't **5**.", "I do not think the answer is 5.", "it is not 5", "5 is wrong", "5?"]
DENIED += ["The wrong answer is 5.", "One incorrect guess: 5", "I doubt the answer is 5.", "No way will I go up."]
DENIED += ["It is false that the answer is 5.", "The answer is 5? No.", "**5** is wrong.", "Nobody would say 5."]
DENIED += [
    "I disagree with those who get 5",
    "The answer is unlikely: 5",
    "definitely wrong: 5",
    "13, no: 5",
    "2+3 = 6 = 5",
]
DENIED += [
    "Under no circumstances: up",
    "The worst move is up",
    "It is silly to go up",
    "anything except 5",
    "5 thousand",
]
DENIED += [
    "I doubt that 5 is the answer.",
    "5 is not the answer.",
    "The answer is 5, which is wrong.",
    "5 (or 6)",
    "5 (thousand)",
]
DENIED += [
    "It is not so that 5 is the answer.",
    "The answer is 5, because I am not sure.",
    "Not this:\n5",
    "Not this:\n```\n5\n```",
]
DENIED += ["5 but negative", "5 dozen", "5 squared", "5k", "5%", "minus 5", "half of 5", "5 if lucky"]


@pytest.mark.parametrize("text", DENIED)
def test_a_denied_or_changed_answer_is_no_answer(text):
    assert not {"up", "5"} & set(natural_answers(text))
    env = gym.make("llm/GuessNumber-v0", answer_form="natural")
    for reply in (text, f"<answer>{text}</answer>"):
        env.reset(options={"problem": {"low": 1, "high": 10, "secret": 5}})
        assert env.step(reply)[1] == pytest.approx(-0.1)


def test_a_remark_beside_tools_is_no_answer():
    env = gym.make("llm/Search-v0", answer_form="natural")
    env.reset(seed=0)
    for reply in ("I need more information.", "Searching now", "ok"):
        _, reward, terminated, *_ = env.step(reply)
        assert (reward, terminated) == (pytest.approx(-0.1), False)
    assert env.step(env.unwrapped.oracle())[1] >= 0


@pytest.mark.parametrize(("text", "number"), [("57 apples", "57"), ("$40", "40"), ("12.5 km/h", "12.5"), ("30%", "30")])
def test_units_go(text, number):
    assert without_unit(text) == number
    assert without_unit("57 red apples", {"red", "apples"}) == "57" != without_unit("57 pears", {"red", "apples"})


@pytest.mark.parametrize("text", ["3 or 4", "12 or more", "3, 4", "at least 5", "5 times 3", "x", "5 k"])
def test_what_is_no_number_with_a_unit_stays(text):
    assert without_unit(text) == text


@pytest.mark.parametrize("part", ["The answer is 1. ", "**", "\\boxed{", "= ", "```\n", "$", "answer is ", "a is b\n"])
def test_time_is_linear(part):
    def seconds(n):
        started = time.process_time()
        natural_answers(part * n)
        plain_answer(part * n)
        return time.process_time() - started

    assert min(seconds(40_000) for _ in range(3)) < 30 * max(min(seconds(4_000) for _ in range(3)), 0.01)


def test_a_task_reads_natural_answers_where_it_is_asked_to():
    env = gym.make("llm/Arithmetic-v0", answer_form="natural")
    env.reset(options={"problem": {"expression": "18+39"}})
    assert env.unwrapped.system_prompt.endswith("Answer in this form: The answer is -307.")
    assert env.unwrapped.oracle() == "The answer is 57."
    assert env.step("18 + 39 = 57")[1] == 1.0
    env.reset(options={"problem": {"expression": "18+39"}})
    assert env.step("It is 57 or 58.")[1] == pytest.approx(-0.1)
    env.reset(options={"problem": {"expression": "18+39"}})
    assert env.step("<answer>57</answer>")[1] == 1.0
    for first, second in ((57, 58), (58, 57)):
        env.reset(options={"problem": {"expression": "18+39"}})
        assert env.step(f"<answer>The answer is {first}. The answer is {second}.</answer>")[1] == pytest.approx(-0.1)


def test_tags_are_needed_where_nothing_else_is_asked_for():
    env = gym.make("llm/Arithmetic-v0")
    for action, reward in [("18 + 39 = 57", -0.1), ("<answer>18 + 39 = **57**.</answer>", 1.0)]:
        env.reset(options={"problem": {"expression": "18+39"}})
        assert env.step(action)[1] == pytest.approx(reward)
