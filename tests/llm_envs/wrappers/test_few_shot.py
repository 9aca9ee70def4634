"""`FewShot`: solved problems before the question, on real tasks."""

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from dense_env import DenseEnv

from llm_envs.chat import ChatCodec
from llm_envs.data import sft_rows
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, parse_reply
from llm_envs.policies import OraclePolicy, ReplayPolicy
from llm_envs.rollout import Collector
from llm_envs.testing import HashingTokenPolicy
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import inspect_trajectory
from llm_envs.wrappers import AddTools, FewShot
from llm_envs.wrappers.few_shot import _play_written

GUESS, SUM, CALCULATOR = "llm/GuessNumber-v0", "llm/Arithmetic-v0", "llm/Calculator-v0"


def secret(n):
    return {"problem": {"low": 1, "high": 10, "secret": n}}


def roles(messages):
    return [message["role"] for message in messages]


def found(messages):
    """Return the numbers of the last replies before each question."""
    ends = [n for n, message in enumerate(messages) if n and message["content"].startswith("I am thinking")]
    return [int(parse_reply(messages[n - 1]["content"]).answer) for n in ends]


def test_earlier_turns_are_solved_problems_of_the_train_split():
    env = FewShot(gym.make(SUM, split="test"), 3)
    observation, info = env.reset(seed=5)
    messages = info["messages"]
    assert roles(messages) == ["user", "assistant"] * 3 + ["user"]
    assert observation == "\n".join(message["content"] for message in messages)
    assert messages[-1]["content"] == gym.make(SUM, split="test").reset(seed=5)[0]
    train = gym.make(SUM, split="train")
    task = train.unwrapped
    keys = set()
    for question, reply in zip(messages[:-1:2], messages[1::2], strict=True):
        expression = question["content"].removeprefix("What is ").removesuffix("?")
        train.reset(options={"problem": {"expression": expression}})
        assert train.step(reply["content"])[4]["is_success"]
        keys.add(task.split_key({"expression": expression}))
    assert len(keys) == 3
    another = env.reset(seed=6)[1]["messages"]
    assert another[:-1] == messages[:-1]
    assert another[-1] != messages[-1]
    assert FewShot(gym.make(SUM, split="test"), 3, seed=1).reset(seed=5)[1]["messages"][:-1] != messages[:-1]


def test_the_asked_problem_is_never_shown():
    env = FewShot(gym.make(GUESS), 4)
    shown = {n: found(env.reset(options=secret(n))[1]["messages"]) for n in range(1, 11)}
    assert all(len(set(numbers)) == 4 and n not in numbers for n, numbers in shown.items())
    assert Counter(map(tuple, shown.values())).most_common(1)[0][1] == 6  # the other four ask for an example

    env = FewShot(gym.make(SUM), 1)
    expression = env.reset(seed=0)[1]["messages"][0]["content"].removeprefix("What is ").removesuffix("?")
    first, sign, second = expression.partition("+")
    same = f"{second}{sign}{first}"  # in another order it is the same problem
    (question, _, _) = env.reset(options={"problem": {"expression": same}})[1]["messages"]
    assert question["content"] != f"What is {expression}?"


def test_calls_and_their_results_are_turns():
    env = FewShot(gym.make(CALCULATOR), 2)
    _, info = env.reset(seed=0)
    assert roles(info["messages"]) == ["user", "assistant", "tool", "assistant"] * 2 + ["user"]
    assert info["messages"][2]["name"] == "calculator"
    assert env.step(env.unwrapped.oracle())[4]["messages"][0]["role"] == "tool"


def test_examples_in_the_prompt():
    env = FewShot(gym.make(GUESS), 2, form="prompt")
    observation, info = env.reset(seed=0)
    assert "messages" not in info
    assert observation.startswith("Here are 2 solved examples.\n\nExample 1\nUser: I am thinking of a whole number")
    assert "\n\nExample 2\nUser: " in observation
    assert "Example 3" not in observation
    question = gym.make(GUESS).reset(seed=0)[0]
    assert observation.endswith(f"\n\nNow it is your turn.\n\n{question}")


def test_the_natural_form_is_shown_as_it_is_asked_for():
    _, info = FewShot(gym.make(SUM, answer_form="natural"), 1).reset(seed=0)
    assert info["messages"][1]["content"].startswith("The answer is ")


@pytest.mark.parametrize("env_id", [SUM, CALCULATOR])
def test_examples_are_context_and_never_trained_on(env_id):
    tokenizer = tiny_tokenizer()
    codec = ChatCodec(tokenizer)
    policy = HashingTokenPolicy(codec, [format_answer(1), format_answer(2)])
    with Collector(
        lambda: FewShot(gym.make(env_id), 2), policy, codec=codec, max_concurrency=2, progress=False
    ) as collector:
        episodes = [episode for group in collector.collect(3) for episode in group]
    for episode in episodes:
        (row,) = episode.rows
        assert episode.status == "ok"
        assert (
            episode.n_example_replies == sum(m.role == "assistant" for m in episode.messages) - len(episode.turns) > 0
        )
        replies = [m.content for m in episode.messages if m.role == "assistant"][episode.n_example_replies :]
        trained = [codec.decode_reply(row.ids[start:stop]) for start, stop in row.spans]
        assert trained == replies
        assert not row.mask[: row.prompt_length].any()
        assert row.mask.sum() == sum(stop - start for start, stop in row.spans)
        shown = tokenizer.decode(row.ids[: row.prompt_length])
        assert all(message.content in shown for message in episode.messages[: 2 * episode.n_example_replies])
    labels = [np.array(row["labels"]) for row in sft_rows(episodes)]
    for episode, kept in zip(episodes, labels, strict=True):
        assert (kept[: episode.rows[0].prompt_length] == -100).all()


def test_a_stored_episode_is_replayed_and_shown_without_its_examples():
    def make():
        return FewShot(gym.make(SUM), 2)

    with Collector(make, OraclePolicy(), progress=False) as collector:
        ((episode,),) = collector.collect(1)
    with Collector(make, ReplayPolicy.of(episode), progress=False) as collector:
        ((again,),) = collector.collect(1)
    assert again.is_success
    lines = inspect_trajectory(episode).splitlines()
    assert [line for line in lines if "[reward" in line] == ["    [reward 1, stop]"]
    assert lines[-1] == "    [reward 1, stop]"


def test_examples_go_through_the_inner_wrappers():
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    env = FewShot(AddTools(gym.make(SUM), [double]), 1)
    assert roles(env.reset(seed=0)[1]["messages"]) == ["user", "assistant", "user"]
    assert [tool["function"]["name"] for tool in env.get_wrapper_attr("tools")] == ["double"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_in_a_vector_environment(mode):
    vector = gym.make_vec(GUESS, 2, vectorization_mode=mode, wrappers=[lambda env: FewShot(env, 2)])
    observations, infos = vector.reset(seed=0)
    vector.close()
    alone = FewShot(gym.make(GUESS), 2)
    for n in range(2):
        observation, info = alone.reset(seed=n)
        assert observations[n] == observation
        assert infos["messages"][n] == info["messages"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FewShot(gym.make(SUM), 0), "k is 0; it must be an integer of at least 1"),
        (lambda: FewShot(gym.make(SUM), True), "k is True"),
        (lambda: FewShot(gym.make(SUM), 1, form="text"), "no form 'text'"),
        (lambda: FewShot(DenseEnv(), 1), "DenseEnv has no oracle"),
        (lambda: FewShot(gym.make(SUM).unwrapped.__class__(), 1), "has no spec"),
        (lambda: FewShot(gym.make(GUESS), 10), "solved 10 different problems of the train split, but k=10 needs 11"),
    ],
)
def test_clear_errors(make, message):
    with pytest.raises(InvalidConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_the_examples_are_played_once_for_all_environments_of_a_run():
    """A collector makes an environment for each episode."""
    before = _play_written.cache_info()
    with Collector(lambda: FewShot(gym.make(GUESS), 3, seed=7), OraclePolicy(), progress=False) as collector:
        collector.collect(4)
    after = _play_written.cache_info()
    assert after.misses - before.misses == 1
    assert after.hits - before.hits >= 3
