"""Wrappers for text and environments made of several, on real tasks and worked out by hand."""

import json
import pickle

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import InvalidConfigError, ResetNeededError, UnknownTaskError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import OraclePolicy
from llm_envs.registration import register_task
from llm_envs.rewards import weighted_sum
from llm_envs.rollout import Collector
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.wrappers import (
    AddTools,
    CurriculumEnv,
    FewShot,
    FormatObservation,
    MixtureEnv,
    StepCost,
    StripThinking,
    TruncateObservation,
    TurnLimit,
)

GUESS, SUM, CALCULATOR = "llm/GuessNumber-v0", "llm/Arithmetic-v0", "llm/Calculator-v0"
SECRET = {"problem": {"low": 1, "high": 10, "secret": 7}}
QUESTION = {"problem": {"expression": "37*24"}}


def guess(env, *numbers):
    """Guess in turn; return the steps."""
    return [env.step(format_answer(number)) for number in numbers]


def double(n: int) -> int:
    """Double a number."""
    return 2 * n


# Each must survive what Gymnasium does with environments, and keep the rewards' books.

WRAPPED = {
    "TurnLimit": lambda: TurnLimit(gym.make(GUESS), 2),
    "StepCost": lambda: StepCost(gym.make(GUESS), 0.01),
    "StripThinking": lambda: StripThinking(gym.make(GUESS)),
    "TruncateObservation": lambda: TruncateObservation(gym.make(GUESS), 60),
    "FormatObservation": lambda: FormatObservation(gym.make(GUESS), "{observation} [{turn}/{max_turns}]"),
    "AddTools": lambda: AddTools(gym.make(SUM), [double]),
    "FewShot": lambda: FewShot(gym.make(GUESS), 2),
    "FewShot, in the prompt": lambda: FewShot(gym.make(SUM), 2, form="prompt"),
    "all": lambda: FormatObservation(
        StepCost(TurnLimit(AddTools(gym.make(SUM), [double]), 3), 0.01), "{turns_left}: {observation}"
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_environment_is_made_again_pickled_and_adds_up(name):
    env = WRAPPED[name]()
    if name not in ("AddTools", "all"):  # functions cannot be written as JSON
        env_again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert env_again.reset(seed=3)[0] == env.reset(seed=3)[0]
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    actions = [format_tool_call("double", n=4), "nonsense", *[format_answer(1)] * 10]
    over = False
    while not over:
        action = actions.pop(0)
        step = env.step(action)
        assert copy.step(action) == step
        _, reward, terminated, truncated, info = step
        over = terminated or truncated
        assert reward == pytest.approx(weighted_sum(info["reward_components"], env.get_wrapper_attr("reward_weights")))
        assert ("is_success" in info) == over
    assert len(actions) > 2


@pytest.mark.parametrize("name", WRAPPED)
def test_a_collector_plays_it(name):
    codec = ByteCodec()
    policy = HashingTokenPolicy(
        codec, ["nonsense", format_answer(5), format_tool_call("double", n=4), "<think>a</think>"]
    )
    with Collector(WRAPPED[name], policy, codec=codec, max_concurrency=4, progress=False) as collector:
        episodes = [episode for group in collector.collect(6) for episode in group]
    assert [episode.status for episode in episodes] == ["ok"] * 6
    for episode in episodes:
        assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.reward)


# One by one.


def test_turn_limit():
    env = TurnLimit(gym.make(GUESS), 2)
    env.reset(options=SECRET)
    first, second = guess(env, 1, 2)
    assert first[2:4] == (False, False) and second[2:4] == (False, True)
    assert second[4]["is_success"] is False
    assert env.max_turns == 2 and TurnLimit(gym.make(GUESS), 99).max_turns == 4
    env.reset(options=SECRET)
    assert guess(env, 1, 7)[1][2:4] == (True, False)


def test_step_cost():
    env = StepCost(gym.make(GUESS), 0.25)
    env.reset(options=SECRET)
    steps = guess(env, 1, 7)
    assert [step[1] for step in steps] == [-0.25, 0.75]
    assert steps[1][4]["reward_components"] == {"correct": 1.0, "malformed": 0.0, "steps": 1.0}
    assert env.reward_weights == {"correct": 1.0, "malformed": -0.1, "steps": -0.25}
    with pytest.raises(InvalidConfigError, match="has a reward component 'steps'"):
        StepCost(env, 0.1)
    assert StepCost(env, 0.5, component="more").reward_weights["more"] == -0.5


@pytest.mark.parametrize(
    ("reply", "played"),
    [
        ("<think>a</think>left<think>b\nc</think>", "left"),
        ("from the prompt</think>left", "left"),
        ("<think>never ends", "<think>never ends"),
        ("<think>a <think>b</think> left", "<think>a  left"),
        ("nothing", "nothing"),
    ],
)
def test_thinking_is_taken_out(reply, played):
    seen = []

    class Seeing(gym.Wrapper):
        def step(self, action):
            seen.append(action)
            return super().step(action)

    env = StripThinking(Seeing(gym.make(GUESS)))
    env.reset(seed=0)
    env.step(reply)
    assert seen == [played]


def test_taking_thoughts_out_takes_time_in_proportion():
    env = StripThinking(gym.make(GUESS))
    env.reset(seed=0)
    env.step("<think>" * 20_000)  # minutes, if every opening tag looked through the rest


def test_long_observations_are_cut_in_the_middle():
    env = TruncateObservation(gym.make(GUESS), 60, "[{n} more]")
    observation, _ = env.reset(options=SECRET)
    whole = "I am thinking of a whole number from 1 to 10. You have 4 guesses."
    assert len(observation) <= 60 and observation.startswith("I am thinking of a whole ")
    assert observation.endswith("10. You have 4 guesses.") and " more]" in observation
    hidden = int(observation.split("[")[1].split(" ")[0])
    assert len(whole) - hidden == len(observation) - len(f"[{hidden} more]")
    assert guess(env, 1)[0][0] == "Higher. 3 guesses left."


def test_messages_keep_their_roles():
    env = FormatObservation(TruncateObservation(gym.make(CALCULATOR), 40, "[cut]"), "<< {observation} >> turn {turn}")
    env.reset(options=QUESTION)
    call = format_tool_call("calculator", expression="2+2")
    long = format_tool_call("calculator", expression="9**40")
    observation, *_, info = env.step(call + long)
    first, last = info["messages"]
    assert first == {"role": "tool", "name": "calculator", "content": "<< 4"}
    assert last["role"] == "tool" and last["content"].endswith(" >> turn 2")
    assert "\n".join([first["content"], last["content"]]) == observation


def test_words_around_observations():
    env = FormatObservation(
        gym.make(GUESS),
        "{observation} ({turns_left} left)",
        first="Turn {turn} of {max_turns}. {observation}",
        last="{observation} Over.",
    )
    assert env.reset(options=SECRET)[0].startswith("Turn 1 of 4. I am thinking")
    assert [step[0] for step in guess(env, 1, 7)] == ["Higher. 3 guesses left. (3 left)", "Correct. Over."]
    for wrong, message in [
        ("no field", "once"),
        ("{observation}{observation}", "once"),
        ("{observation} {x}", "KeyError"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            FormatObservation(gym.make(GUESS), wrong)


def test_tools_for_a_task_that_has_none():
    env = AddTools(gym.make(SUM), [double], max_turns=3)
    env.reset(options={"problem": {"expression": "20+22"}})
    assert [tool["function"]["name"] for tool in env.get_wrapper_attr("tools")] == ["double"]
    observation, reward, terminated, truncated, info = env.step(format_tool_call("double", n=21))
    assert (observation, reward, terminated, truncated) == ("42", 0.0, False, False)
    assert info["messages"] == [{"role": "tool", "name": "double", "content": "42"}]
    assert [result.output for result in env.tool_results] == ["42"]
    assert env.step(format_tool_call("halve", n=1))[1] == pytest.approx(-0.1)
    observation, reward, terminated, *_ = env.step(format_answer(42))
    assert (observation, reward, terminated) == ("Correct.", 1.0, True)
    env.reset(seed=0)
    steps = [env.step(format_tool_call("double", n=1)) for _ in range(3)]
    assert [step[3] for step in steps] == [False, False, True] and steps[2][4]["is_success"] is False
    with pytest.raises(InvalidConfigError, match="already has tools"):
        AddTools(gym.make(CALCULATOR), [double]).reset(seed=0)


def test_malformed_calls_of_added_tools_count_as_those_of_the_task_do():
    env = AddTools(gym.make(SUM), [double], max_turns=40)
    for _ in range(2):
        env.reset(seed=0)
        assert -0.5 <= sum(env.step(format_tool_call("nope"))[1] for _ in range(40)) < -0.49


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: TurnLimit(env, 0),
        lambda env: StepCost(env, 0),
        lambda env: TruncateObservation(env, 5),
        lambda env: TurnLimit(env, True),
        lambda env: AddTools(env, [double], max_turns=1),
    ],
)
def test_settings_that_make_no_sense(wrap):
    with pytest.raises(InvalidConfigError, match="it must be"):
        wrap(gym.make(SUM))


# Several in one.


def test_a_mixture_is_drawn_by_weight_and_by_seed():
    env = MixtureEnv({GUESS: 3, CALCULATOR: {"weight": 1, "difficulty": "hard"}}, split="test")
    assert env.reward_weights == {"correct": 1.0, "malformed": -0.1}
    ids = [env.reset(seed=seed)[1]["env_id"] for seed in range(400)]
    assert 0.68 < ids.count(GUESS) / 400 < 0.82
    assert ids == [env.reset(seed=seed)[1]["env_id"] for seed in range(400)]
    calculator = ids.index(CALCULATOR)
    first, _ = env.reset(seed=calculator)
    assert env.reset(seed=calculator)[0] == first and first.count("(") == 1
    assert env.tools[0]["function"]["name"] == "calculator" and env.problem["expression"] in first
    assert env.current.unwrapped.split == "test"
    _, info = env.reset(seed=0, options={"env_id": GUESS, **SECRET})
    assert info["env_id"] == GUESS and env.max_turns == 4 and env.tools == []
    assert "Correct." in guess(env, 7)[0][0]


def test_a_mixture_is_a_task_of_its_own():
    register_task("my/Mixed-v0", MixtureEnv, envs={GUESS: 1, SUM: 1})
    try:
        env = gym.make(EnvSpec.from_json(gym.make("my/Mixed-v0").spec.to_json()))
        with Collector("my/Mixed-v0", OraclePolicy(), max_concurrency=4, progress=False) as collector:
            episodes = [episode for group in collector.collect(12) for episode in group]
        assert all(episode.is_success for episode in episodes)
        assert len({len(episode.messages) > 3 for episode in episodes}) == 2
        copy = pickle.loads(pickle.dumps(env))
        assert copy.reset(seed=5)[0] == env.reset(seed=5)[0]
        vector = gym.make_vec("my/Mixed-v0", 2, vectorization_mode="sync")
        assert len(vector.reset(seed=[1, 2])[0]) == 2
        json.dumps(env.reset(seed=1)[1])
    finally:
        gym.registry.pop("my/Mixed-v0")


@pytest.mark.parametrize(
    ("envs", "error", "message"),
    [
        ({}, InvalidConfigError, "at least one"),
        ({GUESS: 0}, InvalidConfigError, "above 0"),
        ({GUESS: {"weight": "x"}}, InvalidConfigError, "above 0"),
        ({"llm/Gues-v0": 1}, UnknownTaskError, "llm/Gues-v0"),
    ],
)
def test_mixtures_that_are_none(envs, error, message):
    with pytest.raises(error, match=message):
        MixtureEnv(envs)


def test_a_mixture_says_what_is_missing():
    env = MixtureEnv({GUESS: 1})
    with pytest.raises(ResetNeededError, match="call reset"):
        env.step("x")
    with pytest.raises(InvalidConfigError, match="no part 'llm/Other-v0'; known are 'llm/GuessNumber-v0'"):
        env.reset(options={"env_id": "llm/Other-v0"})


def test_levels_open_as_they_are_mastered():
    env = CurriculumEnv(GUESS, window=8, min_episodes=4)
    levels = []
    env.reset(seed=0)
    for _ in range(40):
        _, info = env.reset()
        levels.append(info["difficulty"])
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(env.oracle())
            over = terminated or truncated
    assert levels[:4] == ["easy"] * 4
    assert levels.index("medium") < levels.index("hard") and env.curriculum.n_open == 3
    again = CurriculumEnv(GUESS, window=8, min_episodes=4)
    again.load_state_dict(json.loads(json.dumps(env.state_dict())))
    assert again.curriculum.shares == env.curriculum.shares
    idle = CurriculumEnv(GUESS, window=8, min_episodes=4)
    idle.reset(seed=0)
    for _ in range(20):
        _, info = idle.reset()
        while not any(idle.step("nonsense")[2:4]):
            pass
    assert info["difficulty"] == "easy" and idle.curriculum.n_open == 1
    with pytest.raises(InvalidConfigError, match="different names"):
        CurriculumEnv(GUESS, levels=["easy", "easy"])
