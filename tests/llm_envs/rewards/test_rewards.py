"""Pure rewards against hand-worked values."""

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError, JudgeError, MissingExtraError, SandboxError
from llm_envs.parsers import PARSERS
from llm_envs.rewards import (
    combine_rewards,
    contains_all,
    copied_words,
    create_batch_reward,
    create_code_tests,
    create_contains,
    create_exact_match,
    create_format,
    create_gated,
    create_length_penalty,
    create_lexicographic,
    create_overlong_penalty,
    create_repetition_penalty,
    create_safety_penalty,
    create_self_verification,
    create_tool_count_penalty,
    create_tool_success,
    create_turn_efficiency,
    create_weighted_sum,
    exact_match,
    final_reply,
    keyword_share,
    length_of,
    lift,
    math_match,
    maximum,
    mean,
    minimum,
    named_rewards,
    numeric_match,
    own_messages,
    own_words,
    parse_integer,
    passed_share,
    problem_field,
    product,
    prompt_texts,
    regex_match,
    repeated_share,
    schema_match,
    score_trajectories,
    split_words,
    total,
    weighted_sum,
    with_name,
)
from llm_envs.tools import BUDGET_EXCEEDED, INVALID_ARGUMENTS
from llm_envs.types import Message, Row, StopReason, ToolCall, ToolResult, Trajectory, Turn


def episode(*messages: tuple[str, str], results=(), success: bool | None = True, **changes) -> Trajectory:
    """Return a finished episode of these (role, content) messages; each assistant's is a turn."""
    said = tuple(Message(role, content) for role, content in messages)
    n_turns = sum(role == "assistant" for role, _ in messages)
    turns = tuple(Turn(0.0, {"r": 0.0}) for _ in range(n_turns))
    if results:
        turns = (replace(turns[0], tool_results=tuple(results)), *turns[1:])
    made = replace(make_trajectory(0.0), messages=said, turns=turns, is_success=success)
    return replace(made, **changes)


def reply(text: str, prompt: str = "What is the capital of that country, if it has one?") -> Trajectory:
    return episode(("user", prompt), ("assistant", text))


# Numbers and texts


def test_weighted_sum():
    weights = {"correct": 1.0, "malformed": -0.1}
    assert weighted_sum({"correct": 1.0, "malformed": 0.0}, weights) == 1.0
    assert weighted_sum({"correct": 0.5, "malformed": 2.0}, weights) == pytest.approx(0.3)
    assert weighted_sum({}, {}) == 0.0
    with pytest.raises(KeyError):
        weighted_sum({"correct": 1.0}, weights)


@pytest.mark.parametrize(
    ("answer", "target", "value"),
    [
        ("a b", "a b", 1.0),
        (" a \n b ", "a b", 1.0),
        ("A b", "a b", 0.0),
        ("ab", "a b", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
    ],
)
def test_exact_match(answer, target, value):
    assert exact_match(answer, target) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("888", 888),
        (" 888 ", 888),
        ("-13", -13),
        ("+5", 5),
        ("007", 7),
        ("12.0", 12),
        ("1,234", 1234),
        ("-1,234,567.00", -1234567),
        ("9" * 400, int("9" * 400)),
        ("", None),
        ("12.5", None),
        ("1,23", None),
        ("12,3456", None),
        ("1 2", None),
        ("--1", None),
        ("1e3", None),
        ("0x10", None),
        ("1_000", None),
        ("²", None),
        ("٣", None),
        ("\uff18", None),
        ("\ud800", None),
        ("nan", None),
        ("True", None),
        ("9" * 401, None),
        ("9" * 100_000, None),
        ("12\n", 12),
    ],
)
def test_parse_integer(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    ("answer", "target", "tolerances", "value"),
    [
        ("0.1", 0.1, {}, 1.0),
        ("0.10", "0.1", {}, 1.0),
        ("1,000.5", 1000.5, {}, 1.0),
        ("1e3", 1000, {}, 1.0),
        (".5", 0.5, {}, 1.0),
        ("0.3", 0.30000000000000004, {}, 0.0),
        ("105", 100, {"rel_tol": 0.05}, 1.0),
        ("105.1", 100, {"rel_tol": 0.05}, 0.0),
        ("-95", -100, {"rel_tol": 0.05}, 1.0),
        ("0.01", 0, {"rel_tol": 0.5}, 0.0),
        ("0.01", 0, {"abs_tol": 0.01}, 1.0),
        ("1e999", 1, {"rel_tol": 0.5}, 0.0),
        ("3 4", 3, {}, 0.0),
        ("3 km", 3, {}, 0.0),
        ("nan", 3, {"abs_tol": 1e9}, 0.0),
        ("inf", 3, {"abs_tol": 1e9}, 0.0),
        ("", 0, {}, 0.0),
        ("1e9999999999", 3, {"abs_tol": 1e9}, 0.0),
    ],
)
def test_numeric_match(answer, target, tolerances, value):
    assert numeric_match(answer, target, **tolerances) == value


def test_numeric_match_wants_a_number_as_target():
    with pytest.raises(InvalidConfigError, match="'many'"):
        numeric_match("3", "many")


@pytest.mark.parametrize(
    ("answer", "target", "value"),
    [
        ("888", "888", 1.0),
        ("37*24", "888", 0.0),
        ("37 \\times 24", "888", 0.0),
        ("1776/2", "888", 0.0),
        ("\\frac{1776}{2}", "888", 0.0),
        ("\\frac{1}{2}", "0.5", 1.0),
        ("1/2", "0.5", 1.0),
        ("2/4", "0.5", 0.0),
        ("2^{10}", "1024", 0.0),
        ("2**10", "1024", 0.0),
        ("\\sqrt{9}", "3", 0.0),
        ("888+0", "888", 0.0),
        ("-5", "-5", 1.0),
        ("1.5 \\times 10^3", "1500", 1.0),
        ("1000", "10^3", 1.0),
        ("10*100", "10^3", 0.0),
        ("90^\\circ", "90", 1.0),
        ("90^{\\circ}", "90", 1.0),
        ("5 cm^2", "5", 1.0),
        ("2^3 cm", "8", 0.0),
        ("\\operatorname{lcm}(4, 6)", "12", 0.0),
        ("\\gcd(12, 18)", "6", 0.0),
        ("|-5|", "5", 0.0),
        ("\\left|-5\\right|", "5", 0.0),
        ("|x|", "|x|", 1.0),
        ("\\lfloor 3.5 \\rfloor", "3", 0.0),
        ("12:4", "3", 0.0),
        ("{24 \\over 6}", "4", 0.0),
        ("{5 \\choose 2}", "10", 0.0),
        ("\\Gamma(4)", "6", 0.0),
        ("\\begin{vmatrix} 1 & 2 \\\\ 3 & 4 \\end{vmatrix}", "-2", 0.0),
    ],
)
def test_math_match_wants_the_final_form(answer, target, value):
    assert math_match(answer, target) == value


def test_math_match_of_values_alone():
    assert math_match("37*24", "888", final_form=False) == 1.0


def test_regex_match_is_whole():
    assert regex_match(" ab ", "a.") == 1.0
    assert regex_match("abc", "a.") == 0.0
    assert regex_match("", ".*") == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"x": 1}', 1.0),
        (' {"x": 1}\n', 1.0),
        ('{"x": "1"}', 0.0),
        ('{"x": 1, "x": 1}', 0.0),
        ('{"x": 1} {"x": 1}', 0.0),
        ('{"x": NaN}', 0.0),
        ("{'x': 1}", 0.0),
        ("[" * 100_000, 0.0),
        ("[" * 50_000 + "]" * 50_000, 0.0),
        ("", 0.0),
    ],
)
def test_schema_match(text, value):
    schema = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    assert schema_match(text, schema) == value


def test_a_wrong_schema_is_refused():
    with pytest.raises(InvalidConfigError, match="JSON Schema"):
        schema_match("{}", {"type": "thing"})


def test_keywords():
    assert keyword_share("A red Fox, red.", ["fox", "RED", "dog", "cat"]) == 0.5
    assert keyword_share("foxes", ["fox"]) == 0.0
    assert keyword_share("the polar bear", ["polar bear", "bear polar"]) == 0.5
    assert keyword_share("fox " * 101, ["fox"]) == 0.0
    assert contains_all("by Paris, France", ["paris", "france"]) == 1.0
    assert contains_all("Paris", ["paris", "france"]) == 0.0
    with pytest.raises(InvalidConfigError, match="empty"):
        keyword_share("a", [])
    with pytest.raises(InvalidConfigError, match="no word"):
        keyword_share("a", ["!"])


def test_repeated_share():
    assert repeated_share("a b c a b c", 3) == pytest.approx(1 / 4)  # abc bca cab abc
    assert repeated_share("a a a a", 1) == 0.75
    assert repeated_share("a b", 3) == 0.0


def test_copied_words():
    words = split_words("yes the quick brown fox jumps now")
    assert copied_words(words, ["The quick, brown fox jumps."]) == [False, True, True, True, True, True, False]
    assert copied_words(words, ["a the quick brown fox b"]) == [False] * 7  # four in a row
    assert copied_words(split_words("say yes"), ["Say yes!"]) == [True, True]
    assert copied_words(split_words("yes"), ["yes"]) == [False]


# Aggregators


def test_aggregators():
    parts = {"a": 0.5, "b": 1.0, "c": 0.0}
    assert (total(parts), minimum(parts), maximum(parts), mean(parts)) == (1.5, 0.0, 1.0, 0.5)
    assert product(parts) == 0.0
    assert product({"a": 0.5, "b": 0.5}) == 0.25
    assert create_weighted_sum({"a": 2.0, "b": -1.0, "c": 5.0})(parts) == 0.0
    with pytest.raises(InvalidConfigError, match="at least 0"):
        product({"a": -1.0, "b": -1.0})
    with pytest.raises(InvalidConfigError, match="weights"):
        create_weighted_sum({"a": 1.0})(parts)
    with pytest.raises(InvalidConfigError, match="no part"):
        minimum({})


def test_gated():
    parts = {"safe": 1.0, "right": 0.5}
    assert create_gated("safe", 1.0)(parts) == 1.5
    assert create_gated("safe", 1.0)({"safe": 0.4, "right": 0.5}) == 0.4
    assert create_gated("safe", 1.0, product)({"safe": 0.4, "right": 0.5}) == 0.0
    with pytest.raises(InvalidConfigError, match="the part 'fast' does not exist"):
        create_gated("fast", 1.0)(parts)


def test_lexicographic():
    value = create_lexicographic(["a", "b"], levels=10)
    assert value({"a": 1.0, "b": 1.0}) == 1.0
    assert value({"a": 0.0, "b": 0.0}) == 0.0
    assert value({"a": 0.35, "b": 0.72}) == pytest.approx(37 / 99)
    assert value({"a": 0.3, "b": 0.0}) == pytest.approx(30 / 99)  # 0.3 is on the third step, and not below it
    grid = [(a / 10, b / 10) for a in range(10) for b in range(10)]
    assert sorted(grid, key=lambda ab: value({"a": ab[0], "b": ab[1]})) == sorted(grid)
    with pytest.raises(InvalidConfigError, match="float"):
        create_lexicographic([str(i) for i in range(20)], levels=10)


# What the agent wrote


def test_own_messages_are_the_turns():
    plain = episode(("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"), ("assistant", "b"))
    assert own_messages(plain) == (2, 4)
    assert own_words(plain) == "a\nb"
    assert prompt_texts(plain) == ("s", "u")


def test_examples_in_the_prompt_are_not_the_agents():
    said = (("user", "u"), ("assistant", "example"), ("user", "v"), ("assistant", "b"))
    shown = replace(episode(*said), turns=(Turn(0.0, {}),))
    assert own_words(shown) == "b"
    assert prompt_texts(shown) == ("u", "example", "v")
    cut = replace(shown, terminated=False, truncated=True, stop_reason=StopReason.MAX_TURNS)
    assert own_words(cut) == ""  # the last may be what the environment said


def test_a_chat_policys_calls_count_as_calls():
    called = episode(("user", "u"), ("assistant", "<answer>5</answer>"))
    said = replace(called.messages[1], tool_calls=(ToolCall("f", {}),))
    assert len(final_reply(replace(called, messages=(called.messages[0], said))).tool_calls) == 1
    assert create_exact_match("5")(called) == 1.0
    assert create_exact_match("5")(replace(called, messages=(called.messages[0], said))) == 0.0


def test_lift_sees_the_last_message_alone():
    exact = create_exact_match("Oslo")
    assert exact(reply("<think>hm</think><answer>Oslo</answer>")) == 1.0
    earlier = episode(("user", "u"), ("assistant", "<answer>Oslo</answer>"), ("user", "sure?"), ("assistant", "No."))
    assert exact(earlier) == 0.0
    assert exact(reply("<answer>Oslo</answer><answer>Oslo</answer>")) == 1.0
    assert exact(reply("<answer>Oslo</answer>" * 3)) == 0.0
    assert lift(exact_match, "Oslo", of="content")(reply("<think>a</think> Oslo")) == 1.0
    assert lift(exact_match, "Oslo", of="text")(reply("Oslo")) == 1.0
    assert lift(exact_match, "Oslo", missing=-1.0)(reply("Oslo")) == -1.0
    assert create_exact_match("Oslo", parser=PARSERS["boxed"])(reply("\\boxed{Oslo}")) == 1.0
    with pytest.raises(InvalidConfigError, match="of='all'"):
        lift(exact_match, "Oslo", of="all")


def test_a_target_from_the_problem():
    asked = replace(reply("<answer>7</answer>"), metadata={"options": {"problem": {"answer": "7"}}})
    assert create_exact_match(problem_field("answer"))(asked) == 1.0
    with pytest.raises(InvalidConfigError, match="no field 'answer'"):
        create_exact_match(problem_field("answer"))(reply("<answer>7</answer>"))


def test_copies_of_the_prompt_are_dropped():
    paris = create_contains("paris")
    prompt = "The tower was built in Paris in 1889. Where is it?"
    assert paris(reply("<answer>It stands in Paris.</answer>", prompt)) == 1.0
    assert paris(reply("<answer>The tower was built in Paris in 1889</answer>", prompt)) == 0.0


# Several


def test_named_parts_keep_their_names():
    vector = with_name("judge", lambda t: {"style": 0.5, "facts": 1})
    scored = score_trajectories([make_trajectory(1.0)], {"length": lambda t: 2, "judge": vector})
    assert scored[0].components == {"length": 2.0, "style": 0.5, "facts": 1.0}
    assert list(named_rewards([create_turn_efficiency(3), vector])) == ["turn_efficiency", "judge"]
    with pytest.raises(InvalidConfigError, match="part called 'style'"):
        score_trajectories([make_trajectory(1.0)], {"style": lambda t: 1.0, "judge": vector})
    with pytest.raises(InvalidConfigError, match="two reward functions"):
        named_rewards([create_exact_match("a"), create_exact_match("b")])
    with pytest.raises(InvalidConfigError, match="empty"):
        named_rewards([])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "high", [1.0]])
def test_a_score_is_a_finite_number(value):
    with pytest.raises(InvalidConfigError, match="it must be"):
        score_trajectories([make_trajectory(1.0)], {"r": lambda t: value})


def test_what_cannot_be_scored_is_unscored_and_not_0():
    def failing(trajectory: Trajectory) -> float:
        if trajectory.member == 1:
            raise JudgeError("no verdict")
        if trajectory.member == 2:
            raise SandboxError("gone")
        return 0.0

    members = [make_trajectory(1.0, member=member) for member in range(4)] + [make_trajectory(None)]
    later: list[int] = []

    def noting(trajectory: Trajectory) -> float | None:
        later.append(trajectory.member)
        return None if trajectory.member == 3 else 1.0

    scored = score_trajectories(members, {"a": failing, "b": noting})
    assert [each.components for each in scored] == [{"a": 0.0, "b": 1.0}, None, None, None, None]
    assert [each.why for each in scored] == [
        None, "a: JudgeError: no verdict", "a: SandboxError: gone", "b: it gave None", "the episode is errored",
    ]  # fmt: skip
    assert later == [0, 3]  # what is unscored already is not asked about


def test_a_bug_in_a_reward_function_is_raised_unless_asked_otherwise():
    def broken(trajectory: Trajectory) -> float:
        raise KeyError("x")

    with pytest.raises(KeyError):
        score_trajectories([make_trajectory(1.0)], broken)
    (scored,) = score_trajectories([make_trajectory(1.0)], broken, on_error="unscored")
    assert scored == (None, "broken: KeyError: 'x'")


def test_a_mistake_in_the_settings_is_always_raised():
    reads_a_field = lift(lambda text, target: 1.0, problem_field("answer"), of="content")
    with pytest.raises(InvalidConfigError, match="no field 'answer'"):
        score_trajectories([make_trajectory(1.0)], reads_a_field, on_error="unscored")


def test_batch_rewards_are_asked_once():
    asked: list[int] = []

    def lengths(trajectories):
        asked.append(len(trajectories))
        return [float(len(own_words(t))) for t in trajectories]

    batch = create_batch_reward(lengths)
    members = [make_trajectory(1.0, "ab"), make_trajectory(None), make_trajectory(1.0, "abc")]
    scored = score_trajectories(members, combine_rewards([batch], weights={"lengths": 0.5}))
    assert [each.components for each in scored] == [{"lengths": 1.0}, None, {"lengths": 1.5}]
    assert asked == [2]
    assert batch(members[0]) == 2.0
    assert with_name("n", batch).score_batch(members[:1]) == [2.0]
    with pytest.raises(InvalidConfigError, match="1 scores for 2"):
        score_trajectories([members[0]] * 2, create_batch_reward(lambda ts: [1.0], name="one"))


def test_combine_rewards_weighs_parts_under_their_names():
    combined = combine_rewards(
        [create_exact_match("Oslo"), create_length_penalty(low=4, unit="words")], weights={"length": 0.1}
    )
    assert combined(reply("<answer>Oslo</answer>")) == {"exact_match": 1.0, "length": pytest.approx(-0.025)}
    with pytest.raises(InvalidConfigError, match="weight for 'size'"):
        combine_rewards(create_exact_match("a"), weights={"size": 1.0})(reply("a"))
    with pytest.raises(InvalidConfigError, match="finite"):
        combine_rewards(create_exact_match("a"), weights={"exact_match": float("nan")})
    with pytest.raises(JudgeError, match="none: it gave None"):
        combine_rewards({"none": lambda t: None})(reply("a"))


def test_builders_pickle():
    combined = combine_rewards(
        [create_exact_match("5"), create_tool_success(), create_safety_penalty(["bad"]), create_code_tests([("1", 1)])]
    )
    again = pickle.loads(pickle.dumps(combined))
    assert again(reply("<answer>5</answer>")) == combined(reply("<answer>5</answer>"))


# Conduct


def test_lengths():
    wordy = reply("a b c d e f")
    assert length_of(wordy, "words") == 6
    assert length_of(wordy, "characters") == 11
    assert create_length_penalty(low=8, unit="words")(wordy) == -0.25
    assert create_length_penalty(high=4, unit="words")(wordy) == -0.5
    assert create_length_penalty(high=2, unit="words")(wordy) == -1.0
    assert create_length_penalty(low=6, high=6, unit="words")(wordy) == 0.0
    with pytest.raises(InvalidConfigError, match="no tokens"):
        create_length_penalty(low=1)(wordy)
    with pytest.raises(InvalidConfigError, match="low <= high"):
        create_length_penalty(low=3, high=2)


@pytest.mark.parametrize(("n", "value"), [(5, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (11, -1.0)])
def test_overlong(n, value):
    assert create_overlong_penalty(10, 4, unit="words")(reply("a " * n)) == value


def test_overlong_counts_what_max_completion_length_limits():
    """Twelve tokens behind a prompt of three, of which the agent wrote four: the limit of twelve was reached."""
    ids, mask = np.arange(15, dtype=np.int32), np.zeros(15, np.bool_)
    mask[3:5] = mask[13:15] = True
    row = Row(ids, mask, np.zeros(15, np.float32), ((3, 5), (13, 15)))
    said = replace(reply("a b"), rows=(row,))
    assert (said.n_sampled_tokens, said.n_completion_tokens) == (4, 12)
    assert create_overlong_penalty(12, 4)(said) == -1.0
    assert create_overlong_penalty(14, 4)(said) == -0.5
    stopped = replace(said, stop_reason=StopReason.MAX_TOKENS, terminated=False, truncated=True)
    assert create_overlong_penalty(14, 4)(stopped) == -1.0  # a further turn had no room in the two tokens left
    assert create_overlong_penalty(20, 4)(stopped) == 0.0  # another, tighter limit ended it
    assert create_overlong_penalty(12, 4, unit="tokens")(said) == 0.0
    assert length_of(said) == 4 and length_of(said, "completion_tokens") == 12
    with pytest.raises(InvalidConfigError, match="known are tokens, completion_tokens, words, characters"):
        length_of(said, "bytes")


def test_repetition_and_safety():
    twice = episode(("user", "u"), ("assistant", "a b c"), ("tool", "x y z x y z"), ("assistant", "a b c"))
    assert create_repetition_penalty(3)(twice) == -0.25
    assert create_repetition_penalty(3, of="last")(twice) == 0.0
    assert create_safety_penalty(["y"])(twice) == 0.0  # a tool said it
    assert create_safety_penalty(["b c"])(twice) == -1.0
    assert create_safety_penalty(["c a"])(twice) == -1.0
    assert create_safety_penalty(["c a"], of="last")(twice) == 0.0
    for hidden in ("<think>I am BAD</think>", "b\u200bad", "\uff42\uff41\uff44"):
        assert create_safety_penalty(["bad"])(reply(hidden)) == -1.0
    assert create_safety_penalty(["bad"])(reply("badly")) == 0.0


def results(*kinds: str | None) -> list[ToolResult]:
    return [ToolResult("check", {}, "", kind is None, kind) for kind in kinds]


def test_tools():
    used = episode(("user", "u"), ("assistant", "x"), results=results(None, None, "E", INVALID_ARGUMENTS))
    assert create_tool_count_penalty(low=5)(used) == pytest.approx(-0.2)
    assert create_tool_count_penalty(low=1, high=4)(used) == 0.0
    assert create_tool_count_penalty(high=3)(used) == pytest.approx(-1 / 3)
    assert create_tool_count_penalty(high=0)(used) == -1.0
    assert create_tool_count_penalty(high=0, tools=["other"])(used) == 0.0
    assert create_tool_success()(used) == 0.5
    assert create_tool_success()(replace(used, is_success=False)) == 0.0
    assert create_tool_success()(reply("x")) == 0.0


def test_turn_efficiency():
    three = episode(("user", "u"), *[("assistant", "x"), ("user", "y")] * 2, ("assistant", "z"))
    assert create_turn_efficiency(4)(three) == 0.5
    assert create_turn_efficiency(4)(reply("x")) == 1.0
    assert create_turn_efficiency(1)(three) == 0.0
    assert create_turn_efficiency(4)(replace(three, is_success=False)) == 0.0


def test_self_verification_weighs_quality_against_what_checks_cost():
    checked = episode(
        ("user", "u"),
        ("assistant", "<answer>5</answer>"),
        results=results(None, "ValueError", INVALID_ARGUMENTS, BUDGET_EXCEEDED),
    )
    svrl = create_self_verification(create_exact_match("5"), {"check": 2.0}, 8.0, cost_weight=0.5)
    assert svrl(checked) == {"quality": 1.0, "cost": -0.25}  # two calls were run, of 2 each: half the budget
    assert create_self_verification(create_exact_match("6"), {"check": 9.0}, 8.0)(checked) == {
        "quality": 0.0,
        "cost": -0.5,
    }
    assert create_self_verification(lambda t: None, {}, 8.0)(checked) is None
    with pytest.raises(InvalidConfigError, match="total"):
        create_self_verification(create_exact_match("5"), {}, 0.0)


# Code


CODE = "```python\ndef add(a, b):\n    return a + b\n```"


def test_code_tests():
    tests = [("add(1, 2)", 3), ("add(0.1, 0.2)", 0.3), ("add('a', 'b')", "ab"), ("add([1], [])", [1])]
    assert create_code_tests(tests)(reply(CODE)) == 1.0
    assert create_code_tests([*tests, ("add(1, 1)", 3)])(reply(CODE)) == 0.0
    assert create_code_tests([*tests, ("add(1, 1)", 3)], partial_credit=True)(reply(CODE)) == 0.8
    assert create_code_tests(lambda t: tests)(reply(CODE)) == 1.0
    assert create_code_tests(tests)(reply(CODE + "\n" + CODE)) == 0.0  # two answers
    with pytest.raises(InvalidConfigError, match="empty"):
        create_code_tests([])


@pytest.mark.parametrize(
    ("value", "share"),
    [("{(3, 4), 10, 1}", 1.0), ("{1, 10, (3, 4), 5}", 0.0), ("{1, 10}", 0.0), ("[1, 10, (3, 4)]", 0.0)],
)
def test_a_set_may_be_in_any_order(value, share):
    assert passed_share(f"x = {value}", [("x", {1, 10, (3, 4)})]) == share


@pytest.mark.parametrize(
    "code",
    [
        "def add(a, b):\n    raise ValueError",
        "def add(a, b):\n    print(3)",
        "def add(a, b):\n    return '3'",
        "class Same:\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Same()",
        "raise SystemExit(0)",
        "import sys\nsys.exit(0)",
        "3",
        "",
        "def add(:",
    ],
)
def test_code_that_cheats_passes_nothing(code):
    assert passed_share(code, [("add(1, 2)", 3)]) == 0.0


def test_a_sandbox_that_is_gone_leaves_code_unscored():
    class Gone:
        def session(self, limits=None, *, seed=None):
            raise SandboxError("the sandbox is closed")

    (scored,) = score_trajectories([reply(CODE)], create_code_tests([("add(1, 2)", 3)], sandbox=Gone()))
    assert scored.components is None


def test_without_jsonschema_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[tools\]"):
        schema_match("{}", {"type": "object", "title": "never compiled before"})


def test_form():
    called = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert create_format(["tool_calls"])(reply(called)) == 1.0
    assert create_format()(reply(f"<answer>5</answer>{called}")) == 0.0
    assert create_format(["thinking", "answer"])(reply("<answer>5</answer>")) == 0.0
    example = "Answer as in this example: <answer>number</answer>, with your number in it."
    assert create_format()(reply(example, prompt=example)) == 0.0
    assert create_format()(reply(f"{example} <answer>5</answer>", prompt=example)) == 0.0  # two answers
    assert create_format()(reply(f"What is asked is 2 + 3. {'So ' * 30}<answer>5</answer>", prompt=example)) == 1.0
    wordy = f"<think>{'hm ' * 5_000}</think><answer>5</answer>"
    assert create_format()(reply(wordy)) == 1.0
    assert create_format()(reply(f"<answer>{'5 ' * 1_001}</answer>")) == 0.0
    assert create_format(max_words=None)(reply(f"<answer>{'5 ' * 1_001}</answer>")) == 1.0
