"""The base classes: what they do for a task, and what they refuse."""

import pickle

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.env import Difficulty, Outcome, SingleTurnEnv, TextEnv, ToolEnv, canonical_json, split_of
from llm_envs.errors import (
    EnvContractError,
    InvalidActionError,
    InvalidConfigError,
    LLMEnvsError,
    ResetNeededError,
    UnknownTaskError,
)
from llm_envs.parsers import PARSERS, format_answer, format_tool_call
from llm_envs.spaces import MAX_TEXT_LENGTH


class Double(SingleTurnEnv):
    """Double a number."""

    difficulties = {
        "small": Difficulty("up to 1000", chance_rate=0.001, n_problems=1000, settings={"highest": 1000}),
        "tiny": Difficulty(
            "one to three", chance_rate=0.34, n_problems=3, disjoint_splits=False, settings={"highest": 3}
        ),
    }
    default_difficulty = "small"
    problem_fields = {"n": int}
    instructions = "Double it."

    def generate(self):
        return {"n": 1 + int(self.np_random.random() * self.settings["highest"])}

    def check_problem(self, problem):
        if problem["n"] < 0:
            raise InvalidActionError("n must not be negative")

    def prompt(self):
        return f"2*{self.problem['n']}?"

    def solution(self):
        return str(2 * self.problem["n"])


class Vault(ToolEnv):
    """Ask a tool for the code, then say it."""

    difficulties = {"only": Difficulty("a code", chance_rate=0.01)}
    default_difficulty = "only"
    problem_fields = {"code": int}

    def make_tools(self):
        return [self.ask, self.fail]

    def ask(self, times: int = 1) -> str:
        """Ask for the code."""
        return f"{self.problem['code']} " * times

    def fail(self) -> str:
        """Fail."""
        raise RuntimeError("broken \ud800")

    def generate(self):
        return {"code": int(self.np_random.random() * 10**6)}

    def prompt(self):
        return "The code?"

    def is_correct(self, answer):
        if not answer.isdigit():
            raise InvalidActionError("a code is digits")
        return int(answer) == self.problem["code"]

    def next_action(self):
        if self.tool_results:
            return format_answer(self.problem["code"])
        return format_tool_call("ask")


def started(env, code=7):
    env.reset(seed=0, options={"problem": {"code": code}})
    return env


# Splits and problems.


def test_split_is_a_hash_of_the_canonical_problem():
    assert canonical_json({"b": [1, "ä"], "a": None}) == '{"a":null,"b":[1,"\\u00e4"]}'
    assert split_of({"a": 1, "b": 2}) == split_of({"b": 2, "a": 1})
    # Locked: a change here moves problems between the splits of every task.
    assert [n for n in range(40) if split_of({"n": n}) == "test"] == [1, 3, 10, 14, 28, 31, 33, 36, 39]
    n_test = sum(split_of({"n": n}) == "test" for n in range(10_000))
    assert 1_880 < n_test < 2_120  # one in five, within three standard deviations


def test_a_split_has_only_its_own_problems():
    for split in ("train", "test"):
        env = Double(split)
        for seed in range(100):
            env.reset(seed=seed)
            assert split_of(env.problem) == split


def test_the_split_is_that_of_the_split_key():
    class Even(Double):
        def split_key(self, problem):
            return problem["n"] // 2

    splits = {}
    for split in ("train", "test"):
        env = Even(split)
        for seed in range(300):
            env.reset(seed=seed)
            splits.setdefault(env.problem["n"] // 2, set()).add(split)
    assert {len(found) for found in splits.values()} == {1}
    assert len(splits) > 200


def test_a_level_declared_too_small_has_all_problems_in_both_splits():
    for split in ("train", "test"):
        env = Double(split, "tiny")
        env.reset(seed=0)
        seen = set()
        for _ in range(100):
            env.reset()
            seen.add(env.problem["n"])
        assert seen == {1, 2, 3}


def test_a_space_that_is_too_small_and_not_declared_is_reported():
    class One(Double):
        def generate(self):
            return {"n": 1}

    other = "test" if split_of({"n": 1}) == "train" else "train"
    with pytest.raises(EnvContractError, match="disjoint_splits=False"):
        One(other).reset(seed=0)


@pytest.mark.parametrize(
    ("drawn", "complaint"),
    [
        ({"n": np.int64(3)}, r"\['n'\] is np.int64\(3\), of type int64\. Convert numpy's values with int"),
        ({"n": [0, {"m": np.arange(2)}]}, r"\['n'\]\[1\]\['m'\] is array\(\[0, 1\]\), of type ndarray"),
        ({"n": {1}}, r"\['n'\] is \{1\}, of type set"),
        ({"n": float("nan")}, r"\['n'\] is nan, of type float"),
        ({"n": {(1, 2): 3}}, r"\['n'\] is \{\(1, 2\): 3\}, of type dict.*keys must be str"),
    ],
)
def test_a_drawn_problem_that_is_not_json_is_shown(drawn, complaint):
    class Drawn(Double):
        def generate(self):
            return drawn

    with pytest.raises(EnvContractError, match=complaint):
        Drawn().reset(seed=0)


def test_a_given_problem_is_played_and_copied():
    env = Double()
    problem = {"n": 21}
    observation, info = env.reset(seed=0, options={"problem": problem})
    assert (observation, info) == ("2*21?", {})
    problem["n"] = 5
    assert env.step("<answer>42</answer>")[1] == 1.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["problem"], r"options is \['problem'\]; it must be a dict: \{\"problem\": \{...\}\}"),
        ("problem", "options is 'problem'; it must be a dict"),
        ({"problems": {}}, "no option 'problems'; known are 'problem'"),
        ({"problem": {}}, r"has \[\]; it must have the keys \['n'\]"),
        ({"problem": {"n": 1, "m": 2}}, r"\['m', 'n'\]"),
        ({"problem": 3}, "has int"),
        ({"problem": {"n": "1"}}, "'n' of the problem is '1'; it must be of type int"),
        ({"problem": {"n": True}}, "must be of type int"),
        ({"problem": {"n": 1.0}}, "must be of type int"),
        ({"problem": {"n": {1}}}, "not made of JSON types"),
        ({"problem": {"n": float("nan")}}, "not made of JSON types"),
        ({"problem": {"n": -1}}, "cannot be played: n must not be negative"),
    ],
)
def test_bad_options_are_refused(options, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        Double().reset(options=options)


def test_empty_options_draw_a_problem():
    first, _ = Double().reset(seed=4)
    assert Double().reset(seed=4, options={})[0] == first
    assert Double().reset(seed=4, options={"problem": None})[0] == first


# Arguments.


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"split": "val"}, "no split 'val'; known are 'train', 'test'"),
        ({"split": None}, "no split None"),
        ({"difficulty": "huge"}, "no difficulty 'huge'; known are 'small', 'tiny'"),
        ({"difficulty": 3}, "no difficulty 3"),
        ({"render_mode": "human"}, "no render_mode 'human'; known are None, 'ansi'"),
        ({"colour": 1}, "Double has no argument 'colour'; known are split, difficulty, render_mode"),
        ({"max_turns": 2}, "Double has no argument 'max_turns'"),
    ],
)
def test_bad_arguments_name_the_known_ones(kwargs, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        Double(**kwargs)


def test_a_task_without_a_natural_form_says_why():
    class Long(Double):
        has_natural_form = False

    with pytest.raises(InvalidConfigError, match="Long has no answer_form 'natural': its answers are too long"):
        Long(answer_form="natural")
    with pytest.raises(InvalidConfigError, match="no answer_form 'prose'; known are None, 'natural'"):
        Double(answer_form="prose")


@pytest.mark.parametrize("max_turns", [0, -1, 2.0, True, "3"])
def test_bad_max_turns(max_turns):
    with pytest.raises(InvalidConfigError, match="max_turns is"):
        Vault(max_turns=max_turns)


def test_numbers_of_the_level_and_of_the_class():
    assert (Double.chance_rate, Double.n_problems) == (0.001, 1000)
    env = Double(difficulty="tiny")
    assert (env.chance_rate, env.n_problems, env.settings["highest"]) == (0.34, 3, 3)


# Calls out of order, and actions of the wrong type.


@pytest.mark.parametrize(
    ("ours", "gymnasiums", "standard"),
    [
        (ResetNeededError, gym.error.ResetNeeded, RuntimeError),
        (InvalidActionError, gym.error.InvalidAction, ValueError),
        (UnknownTaskError, gym.error.NameNotFound, LookupError),
    ],
)
def test_our_errors_are_gymnasiums_too(ours, gymnasiums, standard):
    assert ours.__mro__[1:3] == (LLMEnvsError, gymnasiums) and issubclass(ours, standard)
    raised = pickle.loads(pickle.dumps(ours("the reason")))
    assert type(raised) is ours and str(raised) == "the reason"


def test_an_episode_must_begin_with_wrappers_and_without():
    env = gym.make("llm/Arithmetic-v0")
    for unbegun in (env, env.unwrapped):
        with pytest.raises(gym.error.ResetNeeded):
            unbegun.step("x")


def test_step_and_oracle_need_an_episode():
    env = Double()
    for call in (lambda: env.step("x"), env.oracle, env.render):
        with pytest.raises(ResetNeededError, match=r"reset\(\)"):
            call()
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(ResetNeededError, match="after the end"):
        env.step("x")
    with pytest.raises(ResetNeededError):
        env.oracle()


@pytest.mark.parametrize("action", [None, 3, b"x", ["x"], {"role": "assistant"}])
def test_an_action_that_is_no_text_is_refused_by_type(action):
    env = Double()
    env.reset(seed=0)
    with pytest.raises(InvalidActionError, match=f"the action is of type {type(action).__name__}"):
        env.step(action)
    assert env.step(env.oracle())[1] == 1.0  # the refused action cost nothing


# A single turn.


@pytest.mark.parametrize(
    ("action", "reward", "success", "observation"),
    [
        ("<answer>14</answer>", 1.0, True, "Correct."),
        ("<answer> 14 </answer>", 1.0, True, "Correct."),
        ("<think>7+7</think><answer>14</answer>", 1.0, True, "Correct."),
        (
            "<answer>1</answer><answer>14</answer>",
            -0.1,
            False,
            "Error: the reply cannot be read: there are two answers; give one.",
        ),
        ("<answer>14</answer><answer>14</answer>", 1.0, True, "Correct."),
        ("<answer>14</answer><answer>15</answer>", -0.1, False, None),
        ("<answer>15</answer>", 0.0, False, "Incorrect."),
        ("14", -0.1, False, "Error: the reply has no <answer>...</answer>."),
        ("<answer>14", -0.1, False, "Error: the reply cannot be read: <answer> is not closed by </answer>."),
        ("<think><answer>14</answer></think>", -0.1, False, "Error: the reply has no <answer>...</answer>."),
        ("<answer>14</answer></answer>", -0.1, False, None),
    ],
)
def test_single_turn(action, reward, success, observation):
    env = Double()
    env.reset(options={"problem": {"n": 7}})
    got, paid, terminated, truncated, info = env.step(action)
    assert paid == pytest.approx(reward)
    assert (terminated, truncated) == (True, False)
    assert info == {
        "reward_components": {"correct": float(success), "malformed": float(reward < 0)},
        "is_success": success,
    }
    assert observation is None or got == observation


def test_a_reply_that_is_too_long_is_malformed():
    env = Double()
    env.reset(options={"problem": {"n": 7}})
    observation, reward, *_ = env.step("x" * MAX_TEXT_LENGTH + "<answer>14</answer>")
    assert reward == pytest.approx(-0.1)
    assert f"over {MAX_TEXT_LENGTH}" in observation


# Tools.


def test_tools_are_set_by_reset():
    env = Vault()
    assert env.tools == []
    started(env)
    assert [tool["function"]["name"] for tool in env.tools] == ["ask", "fail"]
    env.tools.append("mine")
    started(env)
    assert len(env.tools) == 2
    assert env.system_prompt == "You have 4 replies."
    assert started(Vault(max_turns=1)).system_prompt == "You have 1 reply."


def test_a_call_and_then_the_answer():
    env = started(Vault())
    observation, reward, terminated, truncated, info = env.step(format_tool_call("ask", times=2))
    assert (observation, reward, terminated, truncated) == ("7 7 ", 0.0, False, False)
    assert info == {
        "reward_components": {"correct": 0.0, "malformed": 0.0},
        "messages": [{"role": "tool", "name": "ask", "content": "7 7 "}],
    }
    (result,) = env.tool_results
    assert (result.name, result.arguments, result.output, result.success) == ("ask", {"times": 2}, "7 7 ", True)
    assert result.seconds > 0
    observation, reward, terminated, truncated, info = env.step("<answer>7</answer>")
    assert (observation, reward, terminated, truncated) == ("Correct.", 1.0, True, False)
    assert info == {"reward_components": {"correct": 1.0, "malformed": 0.0}, "is_success": True}
    assert env.tool_results == ()


def test_several_calls_in_one_reply_are_run_in_order():
    env = started(Vault())
    call = '<tool_call>{"id": "c9", "name": "fail"}</tool_call>'
    observation, reward, _, _, info = env.step(format_tool_call("ask") + call)
    assert reward == 0.0
    assert info["messages"] == [
        {"role": "tool", "name": "ask", "content": "7 "},
        {"role": "tool", "name": "fail", "content": "Error: RuntimeError: broken �", "tool_call_id": "c9"},
    ]
    assert observation == "7 \nError: RuntimeError: broken �"
    assert [result.error for result in env.tool_results] == [None, "RuntimeError"]


def test_an_answer_beside_a_call_is_not_taken():
    env = started(Vault())
    observation, reward, terminated, _, _ = env.step(format_tool_call("ask") + "<answer>7</answer>")
    assert (observation, reward, terminated) == ("7 ", 0.0, False)


def test_an_answer_in_a_tools_output_is_not_taken():
    class Leaky(Vault):
        def ask(self, times: int = 1) -> str:
            """Ask."""
            return format_answer(self.problem["code"])

    env = started(Leaky())
    observation, reward, terminated, _, _ = env.step(format_tool_call("ask"))
    assert (observation, reward, terminated) == ("<answer>7</answer>", 0.0, False)
    assert env.step("As the tool says.")[1] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("hello", "Error: the reply has no tool call or <answer>...</answer>."),
        ("<tool_call>{</tool_call>", "Error: the reply cannot be read: a tool call is not valid JSON"),
        (format_tool_call("nope"), "Error: there is no tool 'nope'; known: ask, fail"),
        (format_tool_call("ask", times="x"), "Error: argument times of ask is 'x'; it must be a whole number"),
        ("<answer>seven</answer>", "Error: a code is digits."),
    ],
)
def test_malformed_replies_cost_and_the_episode_goes_on(action, observation):
    env = started(Vault())
    got, reward, terminated, truncated, _ = env.step(action)
    assert got.startswith(observation)
    assert reward == pytest.approx(-0.1)
    assert (terminated, truncated) == (False, False)
    assert env.step("<answer>7</answer>")[1] == 1.0


def test_malformed_replies_of_an_episode_count_five_at_most():
    env = Vault(max_turns=80)
    assert env.return_range == (-0.5, 1.0)
    for _ in range(2):  # each episode has its own limit
        env.reset(seed=0)
        steps = [env.step("") for _ in range(80)]
        marks = [step[4]["reward_components"]["malformed"] for step in steps]
        assert marks[:8] == [1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
        assert min(marks) > 0  # every malformed turn can be told from the others
        assert [step[1] for step in steps] == [-0.1 * mark for mark in marks]
        assert -0.5 <= sum(step[1] for step in steps) < -0.49


def test_the_declared_range_of_returns():
    assert Double().return_range == (-0.1, 1.0)  # one turn
    assert Vault().return_range == (-0.4, 1.0)  # four

    class Costly(Vault):
        reward_weights = {"correct": 1.0, "draw": 0.5, "cost": -0.25, "malformed": -1.0}
        component_limits = {"malformed": 2.0}
        difficulties = {**Vault.difficulties, "dear": Difficulty("a code", chance_rate=0.01, min_return=-7.0)}

    assert Costly(max_turns=10).return_range == (-4.5, 1.5)
    assert Costly(difficulty="dear").return_range == (-7.0, 1.5)


def test_calls_beyond_the_limit_are_not_run():
    env = started(Vault())
    observation, reward, _, _, info = env.step(format_tool_call("ask") * 20)
    assert len(env.tool_results) == 16
    assert reward == pytest.approx(-0.1)
    assert info["messages"][-1] == {
        "role": "user",
        "content": "Error: 20 tool calls in one reply; only the first 16 were run.",
    }
    assert observation == "\n".join(message["content"] for message in info["messages"])


def test_the_turn_limit_truncates():
    env = started(Vault(max_turns=2))
    assert env.step("a")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step("b")
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


def test_an_answer_with_the_last_turn_terminates():
    env = started(Vault(max_turns=1))
    assert env.step("<answer>7</answer>")[2:4] == (True, False)


def test_nothing_is_shared_between_steps():
    env = started(Vault())
    first = env.step(format_tool_call("ask"))[4]
    second = env.step(format_tool_call("ask"))[4]
    assert first == second
    first["messages"][0]["content"] = "changed"
    first["reward_components"]["correct"] = 5.0
    assert env.step(format_tool_call("ask"))[4] == second


def test_two_tools_of_one_name_are_refused():
    class Twice(Vault):
        def make_tools(self):
            return [self.ask, self.ask]

    with pytest.raises(InvalidConfigError, match="two tools have one name"):
        Twice()


def test_pickled_in_mid_episode_with_tools_bound_to_the_copy():
    env = started(Vault(), code=5)
    env.step(format_tool_call("ask"))
    copy = pickle.loads(pickle.dumps(env))
    copy.problem["code"] = 6
    assert copy.step(format_tool_call("ask"))[0] == "6 "
    assert env.step(format_tool_call("ask"))[0] == "5 "


# Other things.


class Wrong(TextEnv):
    """Returns components that it does not declare."""

    difficulties = {"only": Difficulty("none", chance_rate=0.0)}
    default_difficulty = "only"

    def generate(self):
        return {"n": int(self.np_random.random() * 10**6)}

    def prompt(self):
        return "surrogate \ud800"

    def play(self, action):
        return Outcome("ok", {"bonus": 1.0})

    def next_action(self):
        return ""


def test_undeclared_components_are_an_error_that_names_both():
    env = Wrong()
    assert env.reset(seed=0)[0] == "surrogate �"
    with pytest.raises(EnvContractError, match=r"\['bonus'\].*\['correct', 'malformed'\]"):
        env.step("x")


def test_render():
    env = Double(render_mode="ansi")
    env.reset(options={"problem": {"n": 7}})
    assert env.render() == "[Double, small, turn 0 of 1]\nsystem: Double it.\nenvironment: 2*7?"
    env.step("14")
    assert env.render() == (
        "[Double, small, turn 1 of 1]\nagent: 14\nenvironment: Error: the reply has no <answer>...</answer>."
    )
    silent = Double()
    silent.reset(seed=0)
    assert silent.render() is None


def test_seeding():
    env = Double()
    first = [env.reset(seed=9)[0], env.reset()[0], env.reset()[0]]
    assert [env.reset(seed=9)[0], env.reset()[0], env.reset()[0]] == first
    assert len(set(first)) > 1


@pytest.mark.parametrize("parser", [PARSERS["boxed"], PARSERS["xml"], lambda self, text: PARSERS["boxed"](text)])
def test_a_parser_of_ones_own_is_used_and_its_feedback_is_not_of_tags(parser):
    """A function, a partial, a method."""
    form = "\\boxed{...}" if parser is not PARSERS["xml"] else "<answer>...</answer>"
    own = type("Own", (Double,), {"parse_reply": parser, "answer_template": form})
    env = own()
    env.reset(seed=0)
    action = env.oracle()
    assert action == form.replace("...", env.solution())
    assert env.step(action)[1] == 1.0
    env.reset(seed=0)
    observation, reward, *_ = env.step("no idea")
    expected = "answer" if parser is PARSERS["xml"] else form  # tags are the default form; the parser may have others
    assert (observation, reward) == (f"Error: the reply has no {expected}.", -0.1)


def test_tags_are_no_answer_to_another_parser():
    own = type("Own", (Double,), {"parse_reply": PARSERS["boxed"]})
    env = own()
    env.reset(seed=0)
    assert env.step(f"<answer>{env.solution()}</answer>")[:2] == ("Error: the reply has no answer.", -0.1)
