"""Every oracle acts on what was shown, and its plan fits into the turns that the agent is told of."""

import json
import random
import re
from itertools import count

import gymnasium as gym
import pytest

from llm_envs.checker.catalogue import suite_ids
from llm_envs.checker.hostile import mutate
from llm_envs.env import ToolEnv
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import parse_reply

pytestmark = pytest.mark.levels

TASK_IDS = suite_ids()
LEVELS = [(id, level) for id in TASK_IDS for level in gym.make(id).unwrapped.difficulties]
SMOKE = {("llm/GuessNumber-v0", "easy"), ("llm/Search-v0", "easy"), ("llm/CustomerService-v0", "easy")}
TOOL_LEVELS = [(id, level) for id, level in LEVELS if isinstance(gym.make(id).unwrapped, ToolEnv)]

# What of a problem the first observation does not show, or only a part of. Of the other tasks it shows everything.
HIDDEN = {
    "llm/APINavigation-v0": ("users", "failing"),
    "llm/Assistant-v0": ("events", "messages", "people"),
    "llm/CliffWalking-v0": ("seed",),
    "llm/ConnectFour-v0": ("seed",),
    "llm/CustomerService-v0": ("orders", "stock", "customer"),
    "llm/FileSystem-v0": ("files", "folders"),
    "llm/FixRepository-v0": ("parts", "mistakes", "tests", "integers", "lists"),
    "llm/FrozenLake-v0": ("seed",),
    "llm/GuessNumber-v0": ("secret",),
    "llm/Hangman-v0": ("word",),
    "llm/InformationSeeking-v0": ("facts",),
    "llm/Mastermind-v0": ("code",),
    "llm/Maze-v0": ("rows",),
    "llm/Minesweeper-v0": ("rows",),
    "llm/Negotiation-v0": ("costs", "limit", "likened"),
    "llm/PlayedUser-v0": ("wishes",),
    "llm/SQLExplorer-v0": ("world",),
    "llm/Search-v0": ("world",),
    "llm/SelfVerification-v0": ("secrets",),
    "llm/Taxi-v0": ("seed",),
    "llm/TicTacToe-v0": ("seed",),
    "llm/TwentyQuestions-v0": ("name",),
    "llm/Wordle-v0": ("word",),
}
SEES_ALL = {("llm/FrozenLake-v0", "easy"), ("llm/CliffWalking-v0", "easy"), ("llm/Taxi-v0", "easy"), *(
    ("llm/Maze-v0", level) for level in ("starter", "easy", "medium")
)}  # fmt: skip
"""Levels at which nothing is hidden after all."""


def smoked(pairs):
    """Return parameters for levels, of which CI plays some."""
    return [pytest.param(*pair, marks=pytest.mark.smoke) if pair in SMOKE else pair for pair in pairs]


def wishes_for_another(env, problem, rng):
    """Wishes of another customer with the same catalogue."""
    items = problem["items"]
    wanted = rng.choice(list(items.values()))
    keys = rng.sample(sorted(wanted), len(problem["wishes"]))
    return {key: wanted[key] for key in keys}


def other_secrets(env, problem, rng):
    """Of an open question the other number that fits."""
    from llm_envs.tasks.tools.self_verification import candidates

    return [rng.choice(candidates(*question)) for question in problem["questions"]]


SPECIAL = {
    "wishes": wishes_for_another,
    "secrets": other_secrets,
    "name": lambda env, problem, rng: rng.choice(problem["rows"])[0],
}
FIELDS = {"name": "secret"}
"""Of those that are not called by their field."""


def changed(env, problem, others, hidden, rng):
    """Return the problem with something hidden changed: a value inside it, or the whole of it."""
    problem = json.loads(json.dumps(problem))
    key = rng.choice(hidden)
    if key in SPECIAL:
        problem[FIELDS.get(key, key)] = SPECIAL[key](env, problem, rng)
        return problem
    parent, place = problem, key
    while isinstance(parent[place], dict | list) and parent[place]:
        parent = parent[place]
        place = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    old = parent[place]
    siblings = [
        value for value in (parent.values() if isinstance(parent, dict) else parent) if type(value) is type(old)
    ]
    if isinstance(old, bool):
        parent[place] = not old
    elif isinstance(old, int):
        parent[place] = rng.choice([old + 1, max(0, old - 1), rng.choice(siblings)])
    elif isinstance(old, str) and "\n" in old:  # a file: a line of another one
        lines, spare = old.split("\n"), rng.choice(siblings).split("\n")
        at = rng.randrange(1, len(lines))
        parent[place] = "\n".join([*lines[:at], spare[at], *lines[at + 1 :]])
    elif isinstance(old, str) and key == "rows":  # a field: another order of a row's cells
        parent[place] = "".join(rng.sample(old, len(old)))
    else:
        parent[place] = rng.choice(siblings)
    if parent is problem:
        problem[key] = rng.choice(others)[key]
    return problem


def twins(env, seed, others, hidden, rng):
    """Yield problems with another hidden state whose first observation is the same."""
    first, _ = env.reset(seed=seed)
    problem = env.problem
    for _ in range(40):
        twin = changed(env, problem, others, hidden, rng)
        try:
            shown, _ = env.reset(seed=seed, options={"problem": twin})
        except InvalidConfigError:
            continue
        if twin != problem and shown == first:
            yield twin


def spoilt(action, rng):
    """Return a reply that is not the oracle's: nonsense, a wrong call, words that ask for something else."""
    return rng.choice([mutate(action, rng), "hello", "", action.replace("1", "2"), action.replace("m1", "m2")])


def compare_oracles(first, second, share, rng):
    """Play both as the first one's oracle says, a share of the turns spoilt, as long as both show the same."""
    while True:
        action = first.oracle()
        assert second.oracle() == action, f"turn {first.n_turns + 1} of {first.problem}"
        if rng.random() < share:
            action = spoilt(action, rng)
        here, there = first.step(action), second.step(action)
        if here[0] != there[0] or here[2] or here[3] or there[2] or there[3]:
            return


@pytest.mark.parametrize(("id", "level"), smoked(pair for pair in LEVELS if pair[0] in HIDDEN and pair not in SEES_ALL))
def test_the_same_shown_history_under_another_hidden_state_gives_the_same_action(id, level):
    first, second = (gym.make(id, difficulty=level).unwrapped for _ in range(2))
    rng, n_twins, others = random.Random(0), 0, []
    for seed in range(40):
        first.reset(seed=seed)
        others.append(first.problem)
    for seed in count():
        for twin, share in zip(twins(second, seed, others, HIDDEN[id], rng), (0, 0, 0.3, 0.6, 0.8, 0.95), strict=False):
            first.reset(seed=seed)
            second.reset(seed=seed, options={"problem": twin})
            compare_oracles(first, second, share, rng)
            n_twins += 1
        if n_twins >= 40 or seed == 60:
            break
    assert n_twins >= 10


@pytest.mark.smoke
@pytest.mark.parametrize("level", ["medium", "hard"])
def test_the_oracle_of_blackjack_does_not_know_the_hidden_card(level):
    env, actions = gym.make("llm/Blackjack-v0", difficulty=level).unwrapped, set()
    for seed in range(60):
        env.reset(seed=seed)
        action = env.oracle()
        actions.add(action)
        for card in range(1, 11):
            env._table.dealer[1] = card
            assert env.oracle() == action
    assert len(actions) == 2


# Calls name what the agent has seen.


def arguments(calls):
    """Return what is in the arguments of calls: the ids, names and addresses that must have been seen somewhere."""
    for call in calls:
        for name, value in call.arguments.items():
            if name in ("title", "order", "email", "item", "product", "message", "event", "person", "size", "address"):
                yield str(value)
            elif name == "path":
                yield from re.findall(r"[a-z]\d{3}", value)
            elif name == "attendees":
                yield from value


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("id", "level"),
    [(id, level) for id, level in TOOL_LEVELS if re.search("APINav|Assistant|CustomerService|Search", id)],
)
def test_the_oracle_names_nothing_in_a_call_that_it_has_not_seen(id, level):
    env, n_named = gym.make(id, difficulty=level).unwrapped, 0
    for seed in range(60):
        shown, _ = env.reset(seed=seed)
        seen, over = f"{env.system_prompt}\n{shown}", False
        while not over:
            action = env.oracle()
            for value in arguments(parse_reply(action).tool_calls):
                assert value in seen, (seed, action)
                n_named += 1
            observation, _, terminated, truncated, _ = env.step(action)
            seen, over = f"{seen}\n{observation}", terminated or truncated
    assert n_named >= 60


# Turns.


@pytest.mark.parametrize(("id", "level"), smoked(TOOL_LEVELS))
def test_the_oracles_plan_fits_with_one_call_in_each_reply(id, level):
    env = gym.make(id, difficulty=level).unwrapped
    for seed in range(100):
        env.reset(seed=seed)
        n_replies, over = 0, False
        while not over:
            action = env.oracle()
            n_replies += max(1, len(parse_reply(action).tool_calls))
            *_, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        assert n_replies <= env.max_turns


@pytest.mark.smoke
@pytest.mark.parametrize(("id", "level"), TOOL_LEVELS)
def test_a_tool_task_tells_how_many_replies_there_are(id, level):
    for env in (gym.make(id, difficulty=level), gym.make(id, difficulty=level, max_turns=7)):
        env.reset(seed=0)
        system_prompt, n = env.get_wrapper_attr("system_prompt"), env.get_wrapper_attr("max_turns")
        assert system_prompt.endswith(f"\nYou have {n} replies.")
    assert n == 7
