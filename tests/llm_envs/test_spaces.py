"""TextSpace, alone and in Gymnasium's vector environments."""

import copy
import json
import multiprocessing
import pickle
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Text, flatdim, flatten
from gymnasium.vector.utils import batch_space, create_empty_array
from gymnasium.vector.utils.shared_memory import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.errors import InvalidConfigError
from llm_envs.spaces import MAX_TEXT_LENGTH, TextSpace, encodable

HARD_TEXTS = ["", "plain", "two\nlines\r\n\ttab", "🙂🙃 中文 äöü", "\x00 null", "lone \ud800 surrogate", "\U0010ffff"]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_contains_any_string(text):
    assert text in TextSpace()


@pytest.mark.parametrize("value", [None, 1, b"bytes", ["a"], np.array("a")])
def test_contains_nothing_else(value):
    assert value not in TextSpace()


def test_length_is_inclusive():
    assert "x" * 5 in TextSpace(5)
    assert "x" * 6 not in TextSpace(5)
    assert "x" * MAX_TEXT_LENGTH in TextSpace()


def test_membership_does_not_read_the_text():
    short, long = "x" * 10, "x" * MAX_TEXT_LENGTH
    space = TextSpace()

    def seconds(text):
        started = time.thread_time()
        for _ in range(20_000):
            space.contains(text)
        return time.thread_time() - started

    # Stock Text reads every character: 26,000 times as long for the longer text.
    assert min(seconds(long) for _ in range(3)) < 20 * min(seconds(short) for _ in range(3))


def test_sample_is_short_seeded_and_varied():
    first, second = TextSpace(seed=3), TextSpace(seed=3)
    samples = [first.sample() for _ in range(50)]
    assert samples == [second.sample() for _ in range(50)]
    assert len(set(samples)) > 40
    assert max(map(len, samples)) <= 32
    assert all(sample in first for sample in samples)
    assert all(len(TextSpace(2, seed=0).sample()) <= 2 for _ in range(5))


def test_sample_refuses_masks():
    with pytest.raises(InvalidConfigError, match="neither"):
        TextSpace().sample(mask=(1, None))


@pytest.mark.parametrize("max_length", [0, -1, 2.5, "3", True, None])
def test_bad_max_length_is_named(max_length):
    with pytest.raises(InvalidConfigError, match="max_length"):
        TextSpace(max_length)


def test_equality():
    assert TextSpace() == TextSpace(MAX_TEXT_LENGTH)
    assert TextSpace() != TextSpace(5)
    assert TextSpace(5) != Text(5)
    assert Text(5) != TextSpace(5)


def test_virtual_alphabet():
    space = TextSpace()
    assert len(space.character_set) == 0x110000
    assert "\ud800" in space.character_set
    assert "ab" not in space.character_set
    assert space.character_list[0x1F642] == "🙂"
    assert space.character_list[-1] == "\U0010ffff"
    assert space.character_list[97:100] == ("a", "b", "c")
    assert space.character_index("🙂") == 0x1F642
    assert space.characters[65] == "A"


def test_pickle_copy_and_json():
    space = TextSpace(7, seed=1)
    for again in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert again == space
        assert again.sample() == copy.deepcopy(space).sample()
    assert json.loads(json.dumps(space.to_jsonable(HARD_TEXTS))) == HARD_TEXTS
    assert space.from_jsonable(HARD_TEXTS) == HARD_TEXTS
    assert repr(space) == "TextSpace(7)"


def test_gymnasium_utilities_take_it():
    space = TextSpace(4)
    assert flatdim(space) == 4
    assert flatten(space, "a🙂").tolist() == [97, 0x1F642, 0x110000, 0x110000]
    assert create_empty_array(space, 2) == ("", "")
    assert batch_space(space, 2).spaces == (space, space)


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=20), min_size=3, max_size=3))
def test_shared_memory_returns_what_was_written(texts):
    space = TextSpace(20)
    memory = create_shared_memory(space, n=3, ctx=multiprocessing)
    view = read_from_shared_memory(space, memory, n=3)
    for index, text in enumerate(texts):
        write_to_shared_memory(space, index, text, memory)
    assert tuple(view) == tuple(texts)
    kept = copy.deepcopy(view)
    write_to_shared_memory(space, 0, "changed", memory)
    assert kept == tuple(texts)
    assert view[0] == "changed"


def test_shared_memory_holds_the_longest_text_of_the_widest_characters():
    space = TextSpace(50)
    memory = create_shared_memory(space, n=2, ctx=multiprocessing)
    write_to_shared_memory(space, 1, "right", memory)
    write_to_shared_memory(space, 0, "🙂" * 50, memory)
    assert tuple(read_from_shared_memory(space, memory, n=2)) == ("🙂" * 50, "right")


@pytest.mark.parametrize("value", ["x" * 51, None, 3])
def test_shared_memory_refuses_what_is_outside_the_space(value):
    space = TextSpace(50)
    memory = create_shared_memory(space, n=1, ctx=multiprocessing)
    write_to_shared_memory(space, 0, "before", memory)
    with pytest.raises(ValueError, match=r"TextSpace\(50\)"):
        write_to_shared_memory(space, 0, value, memory)
    assert read_from_shared_memory(space, memory, n=1)[0] == "before"


class Echo(gym.Env):
    """Answers with the action."""

    def __init__(self, max_length=100):
        self.observation_space = self.action_space = TextSpace(max_length)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "start 🙂\n", {}

    def step(self, action):
        return action, 0.0, False, False, {}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_async_vector_environment_gives_the_right_strings_back(context):
    actions = ("🙂" * 100, "a\nb\x00\ud800")
    # Stock Text gives "000..." here.
    env = gym.vector.AsyncVectorEnv([Echo, Echo], context=context, shared_memory=True)
    try:
        first, _ = env.reset(seed=1)
        second, *_ = env.step(actions)
    finally:
        env.close()
    assert first == ("start 🙂\n",) * 2
    assert second == actions


def test_async_vector_environment_reports_an_observation_that_does_not_fit():
    env = gym.vector.AsyncVectorEnv([Echo], shared_memory=True)
    env.reset(seed=1)
    with pytest.raises(ValueError, match="an observation of 101 characters"):
        env.step(("x" * 101,))
    env.close(terminate=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("🙂ä", "🙂ä"), ("a\ud800b", "a�b"), ("\udfff", "�"), ("\ud83d\ude42", "🙂")],
)
def test_encodable(text, expected):
    assert encodable(text) == expected
    encodable(text).encode()
