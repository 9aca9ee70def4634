"""The user's functions: what they take and what they are called."""

import functools

import pytest

from llm_envs.agents import AgentEnv
from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy
from llm_envs.rewards import named_rewards, named_shaping, with_name
from llm_envs.rewards.functions import check_function, gives_one_number
from llm_envs.rollout import converse
from llm_envs.sources.prompt_task import PromptTask


def theirs(completions, **kwargs):
    return [1.0 for _ in completions]


def two_arguments(row, reply):
    return 1.0


async def waits(trajectory):
    return 1.0


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (theirs, r"'theirs' takes \(completions, \*\*kwargs\).*trl_reward"),
        (functools.partial(theirs, extra=1), r"'theirs' takes \(completions, .*trl_reward"),
        (two_arguments, r"'two_arguments' takes \(row, reply\), but it is called with \(trajectory\)"),
        (waits, "'waits' is asynchronous"),
        ({"speed": 3}, "'speed' is 3; it must be callable"),
    ],
)
@pytest.mark.parametrize("door", [named_rewards, named_shaping])
def test_a_function_that_cannot_be_meant_is_refused_before_it_is_called(door, function, match):
    with pytest.raises(InvalidConfigError, match=match):
        door(function)


@pytest.mark.parametrize(
    ("use", "called"),
    [
        (lambda function: PromptTask(["Hello."], function), r"\(row, reply\)"),
        (lambda function: AgentEnv(print, [{"question": "?"}], function), r"\(result, trajectory\)"),
        (lambda function: converse(ConstantPolicy("x"), "?", reward_fn=function), r"trl_reward\(function\)"),
    ],
)
def test_every_place_that_takes_a_reward_function_recognises_one_of_trl(use, called):
    with pytest.raises(InvalidConfigError, match=f"takes .*completions.*{called}"):
        use(theirs)
    with pytest.raises(InvalidConfigError, match=r"takes .*, but it is called with"):
        use(lambda a, b, c: 1.0)


def test_a_function_without_a_signature_is_taken_as_it_is():
    check_function(min, "the least", ("trajectory",))


def test_lambdas_are_named_by_their_places():
    first = lambda trajectory: 1.0  # noqa: E731
    second = lambda trajectory: 2.0  # noqa: E731
    line = first.__code__.co_firstlineno
    assert named_rewards([first, second]) == {
        f"test_functions.py:{line}": first, f"test_functions.py:{line + 1}": second,
    }  # fmt: skip


def test_one_number_is_declared_by_an_annotation():
    def number(trajectory) -> float:
        return 1.0

    def parts(trajectory) -> dict[str, float]:
        return {"a": 1.0}

    assert gives_one_number(number) and gives_one_number(with_name("other", number))
    assert not gives_one_number(parts) and not gives_one_number(lambda trajectory: 1.0)
