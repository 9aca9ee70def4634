"""Generations that are played before they are asked for: the same episodes, and nothing lost."""

import threading
import time

import pytest
from trl.trainer.utils import RepeatSampler

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import Collector
from llm_envs.trainers import EnvGRPOConfig
from llm_envs.trainers.episodes.generation import GenerationPlayer
from llm_envs.trainers.episodes.items import RecordedSampler, SeedItems, upcoming_rows
from llm_envs.trainers.functional.algorithm import ALGORITHMS
from llm_envs.trainers.grpo.algorithms import AlgorithmState

ENV, SIZE = "llm/Arithmetic-v0", 2


def items():
    return {"train": SeedItems(ENV, "train", 64, seed=3, env_kwargs={"difficulty": "easy"})}


def rows(generation):
    return [{"index": 4 * generation + place // SIZE, "split": "train"} for place in range(8)]


@pytest.fixture
def make_player():
    players = []

    def make(policy=None, **settings):
        own = items()
        collector = Collector(
            own["train"].source, policy or ConstantPolicy("<answer>5</answer>"), progress=False, seed=3
        )
        players.append(GenerationPlayer(collector, own, process_index=0, folder=None, settings={}, **settings))
        return players[-1]

    yield make
    for player in players:
        player.close()


def play(player, n, *, ahead, start=0, stop=10):
    """Return the episodes of `n` generations; each call begins the `ahead` next ones, up to number `stop`."""
    played = []
    for g in range(start, start + n):
        upcoming = [(g + k, rows(g + k)) for k in range(1, ahead + 1) if g + k < stop]
        got = player.play(rows(g), mode="train", step=g, group_size=SIZE, upcoming=upcoming)
        played.append((got, list(player.played)))
    return played


def assert_same(one, other):
    assert len(one) == len(other)
    for pair, expected in zip(one, other, strict=True):
        for episodes, wanted in zip(pair, expected, strict=True):
            assert [t.to_dict(timings=False) for t in episodes] == [t.to_dict(timings=False) for t in wanted]


def passes_some(group):
    """Drop about half of the groups, always the same."""
    return group.seed % 2 == 0


@pytest.mark.parametrize("settings", [{}, {"group_filter": passes_some, "max_refills": 3}], ids=["all", "filter"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_the_episodes_are_those_of_playing_one_generation_at_a_time(make_player, ahead, settings):
    expected = play(make_player(**settings), 10, ahead=0)
    found = play(make_player(is_ahead=True, **settings), 10, ahead=ahead)
    assert_same(found, expected)
    if settings:
        assert any(len(played) > len(got) for got, played in found)  # some were dropped and replaced


@pytest.mark.parametrize("n_after", [0, 2])
def test_a_checkpoint_has_the_generations_that_had_begun(make_player, tmp_path, n_after):
    """The rest of a run, whatever it plays ahead itself; a filter drops some groups."""
    settings = {"group_filter": passes_some, "max_refills": 3, "is_ahead": True}
    expected = play(make_player(**settings), 8, ahead=2)
    killed = make_player(**settings)
    play(killed, 3, ahead=2)
    assert killed.n_ahead == 2
    killed.save_ahead(tmp_path)
    state = killed.state_dict()
    policy = Counting("<answer>5</answer>")
    resumed = make_player(policy, **settings)
    resumed.load_state_dict(state)
    resumed.load_begun(tmp_path, 2)
    first = play(resumed, 2, ahead=0, start=3)
    assert policy.n == 0  # nothing is played again
    assert_same([*first, *play(resumed, 3, ahead=n_after, start=5)], expected[3:])


def test_a_checkpoint_of_another_run_or_without_a_file_is_refused(make_player, tmp_path):
    player = make_player(is_ahead=True)
    play(player, 1, ahead=1)
    player.save_ahead(tmp_path)
    other = make_player(is_ahead=True)
    other.load_begun(tmp_path, 1)
    with pytest.raises(InvalidConfigError, match=r"groups \['train-1-.*plays \['train-5-"):
        play(other, 1, ahead=0, start=5)
    (tmp_path / "0-kept-0.jsonl").unlink()
    with pytest.raises(InvalidConfigError, match=r"lacks 0-kept-0\.jsonl"):
        make_player(is_ahead=True).load_begun(tmp_path, 1)


class Counting(ConstantPolicy):
    """How often it was asked."""

    n = 0

    def act(self, env, observation):
        self.n += 1
        return super().act(env, observation)


def test_the_next_generations_are_played_while_this_thread_does_something_else(make_player):
    policy = Counting("<answer>5</answer>")
    player = make_player(policy, is_ahead=True)
    play(player, 1, ahead=2)
    deadline = time.monotonic() + 120
    while policy.n < 3 * 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    play(player, 2, ahead=0, start=1)
    assert policy.n == 3 * 8


def test_stopping_drops_what_has_begun_and_the_next_run_names_it_alike(make_player):
    player = make_player(is_ahead=True)
    expected = play(make_player(), 3, ahead=0)
    first = play(player, 1, ahead=4)
    player.stop()
    assert player.n_ahead == 0
    assert_same([*first, *play(player, 2, ahead=1, start=1)], expected)
    player.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name == "llm-envs-background" and thread.is_alive()
    ]


def test_an_error_beside_the_training_is_raised_where_its_episodes_are_wanted(make_player):
    def broken(group):
        if group.trajectories[0].group_id.startswith("train-1-"):
            raise KeyError("broken")
        return True

    player = make_player(is_ahead=True, group_filter=broken)
    play(player, 1, ahead=2)
    with pytest.raises(KeyError, match="broken"):
        play(player, 1, ahead=2, start=1)


@pytest.mark.parametrize("n_processes", [1, 2])
@pytest.mark.parametrize("uses", [1, 3])
def test_the_rows_are_those_that_the_sampler_gives_next(n_processes, uses):
    groups = 4
    sampler = RecordedSampler(RepeatSampler(range(21), SIZE, groups, repeat_count=uses, shuffle=True, seed=1))
    order = list(sampler)
    assert order == sampler.order and len(sampler) == len(order)
    size, local = groups * SIZE, groups * SIZE // n_processes
    wanted = [order[g * size * uses : g * size * uses + size] for g in range(5)]
    for process in range(n_processes):
        mine = [some[process * local : (process + 1) * local] for some in wanted]
        for g in range(5):
            now = [{"index": i, "split": "train"} for i in mine[g]]
            found = upcoming_rows(sampler.order, now, n=3, stride=size * uses, uses=uses, n_accumulated=1)
            assert [[row["index"] for row in some] for _, some in found] == mine[g + 1 : g + 4]
    with pytest.raises(InvalidConfigError, match="async_generations=0"):
        upcoming_rows(sampler.order, [{"index": 99, "split": "train"}], n=1, stride=8, uses=1, n_accumulated=1)


@pytest.mark.parametrize(
    ("uses", "n_accumulated", "steps"),
    [
        (4, 2, [0, 2, 4, 6, 8]),  # two steps a generation
        (1, 2, [0, 0, 1, 1, 2]),  # two generations a step
        (3, 2, [0, 1, 3, 4, 6]),  # the second begins inside step 1
        (2, 3, [0, 0, 1, 2, 2]),
    ],
)
def test_each_generation_is_numbered_by_the_step_that_it_begins_in(uses, n_accumulated, steps):
    """Micro-batch m of an epoch belongs to its step m // n_accumulated, and generation g begins at g * uses."""
    order = list(RepeatSampler(range(20), 1, 4, repeat_count=uses, shuffle=False))
    for g, step in enumerate(steps):
        now = [{"index": index, "split": "train"} for index in range(4 * g, 4 * g + 4)]
        found = upcoming_rows(order, now, n=5, stride=4 * uses, uses=uses, n_accumulated=n_accumulated)
        assert [step + after for after, _ in found] == steps[g + 1 :]


def test_settings_that_cannot_be_played_ahead_are_refused(tmp_path):
    with pytest.raises(InvalidConfigError, match=r"async_generations=1.*use_vllm"):
        EnvGRPOConfig(str(tmp_path), async_generations=1)
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(InvalidConfigError, match=rf"async_generations={wrong!r}"):
            EnvGRPOConfig(str(tmp_path), async_generations=wrong, use_vllm=True)
    args = EnvGRPOConfig(str(tmp_path), async_generations=1, use_vllm=True)
    with pytest.raises(InvalidConfigError, match=r"async_generations=1.*dynamic_sampling"):
        AlgorithmState(args, {0: "grpo", 5: "dapo"}, known=ALGORITHMS, n_items=64, has_critic=False, may_fork=False)
