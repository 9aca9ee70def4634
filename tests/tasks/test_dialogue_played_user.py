"""PlayedUser."""

import asyncio
import pickle

import gymnasium as gym
import pytest
from task_play import finish

import llm_envs
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import ConstantPolicy, OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.tasks.dialogue.catalogue import CATALOGUES, fitting, questions, scripted_answer
from llm_envs.tasks.dialogue.played_user import PlayedUserEnv, user_messages
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import Message

assert llm_envs  # registers
ID = "llm/PlayedUser-v0"
ITEMS = {
    "Acorn": {"rooms": "two", "floor": "top", "heating": "gas"},
    "Birch": {"rooms": "two", "floor": "ground", "heating": "wood"},
    "Clover": {"rooms": "three", "floor": "top", "heating": "wood"},
}
WISHES = {"rooms": "two", "floor": "ground"}
PROBLEM = {"theme": "flats", "items": ITEMS, "wishes": WISHES}


def make(**kwargs):
    env = gym.make(ID, **kwargs)
    env.reset(seed=0, options={"problem": PROBLEM})
    return env


class Parrot:
    """A chat policy that says back what it was asked last, with a thought; it fails as often as it is told to."""

    def __init__(self, n_failures=0, seconds=0.0):
        self.n_failures, self.seconds, self.seen, self.params = n_failures, seconds, [], []

    async def reply(self, messages, tools, params):
        self.seen.append(tuple(messages))
        self.params.append(params)
        await asyncio.sleep(self.seconds)
        if self.n_failures:
            self.n_failures -= 1
            raise RuntimeError("no connection")
        return Message("assistant", f"<think>hm</think>You said: {messages[-1].content}")


# The script.


def test_the_first_message():
    assert gym.make(ID).reset(options={"problem": PROBLEM})[0] == (
        "Catalogue:\n- Acorn: floor top, heating gas, rooms two\n- Birch: floor ground, heating wood, rooms two\n"
        "- Clover: floor top, heating wood, rooms three\nYou have 4 messages, the recommendation included. "
        "The first one that does not ask about one property does not count.\n\n"
        "Customer: Hello, I am looking for a flat."
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("How many rooms?", "I would like two."),
        ("Which floor would you like, top or ground?", "I would like ground."),
        ("What about the heating?", "The heating does not matter to me."),
        ("Rooms and floor?", "Could you ask me about one thing?"),
        ("What do you want?", "Could you ask me about one thing?"),
        ("How about Acorn?", "I do not know these by name. Ask me what I would like."),
        ("Then Birch!", "I do not know these by name. Ask me what I would like."),
        ("Is Birch the right one, on the ground floor?", "I do not know these by name. Ask me what I would like."),
    ],
)
def test_the_script_tells_one_thing_at_a_time(text, answer):
    assert scripted_answer(text, ITEMS, WISHES) == answer
    observation, reward, terminated, *_ = make().step(f"<think>floor, rooms, heating</think>{text}")
    assert observation.removesuffix("\n(This message does not count.)") == f"Customer: {answer}"
    assert (reward, terminated) == (0.0, False)


@pytest.mark.parametrize(
    ("answer", "reward", "terminated"),
    [
        ("Birch", 1.0, True),
        ("'birch'.", 1.0, True),
        ("Acorn", 0.0, True),
        ("**Birch**", 1.0, True),
        ("I recommend Birch.", 1.0, True),
        ("The flat called Birch", 1.0, True),
        ("I recommend Acorn.", 0.0, True),
        ("Acorn, Birch", -0.1, False),
        ("Acorn or Birch", -0.1, False),
        ("maybe Birch", -0.1, False),
        ("not Birch", -0.1, False),
        ("Birch, not Acorn", -0.1, False),
        ("the one that fits", -0.1, False),
    ],
)
def test_recommendations(answer, reward, terminated):
    _, paid, over, *_ = make().step(format_answer(answer))
    assert (paid, over) == (pytest.approx(reward), terminated)


@pytest.mark.parametrize("action", ["", "<think>hm</think>", "<answer>Birch", format_tool_call("ask", what="rooms")])
def test_what_is_malformed_costs_and_goes_on(action):
    observation, reward, terminated, *_ = make().step(action)
    assert observation.startswith("Error: ")
    assert reward == pytest.approx(-0.1)
    assert not terminated


def test_of_several_properties_those_of_the_last_question_count():
    env = make()
    assert (
        env.step("You want two rooms. What floor would you like?")[0] != "Customer: Could you ask me about one thing?"
    )
    assert env.step("What heating and how many rooms?")[0].startswith("Customer: Could you ask me about one thing?")
    assert env.step("And what floor, and how many rooms?")[0] == "Customer: I would like two."  # floor was told


def test_questions_are_asked_without_knowing_what_matters():
    assert fitting(ITEMS, {"rooms": "two"}) == ["Acorn", "Birch"]
    # Each property leaves two of three at most; floor comes first by name, and "top" leaves Acorn and Clover.
    assert questions(ITEMS, WISHES) == ["floor"]
    assert questions(ITEMS, {"floor": "top", "heating": "gas"}) == ["floor", "heating"]
    assert questions(ITEMS, {"heating": "wood", "rooms": "three"}) == ["floor", "heating", "rooms"]


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_every_customer_can_be_advised_in_time(level):
    env = gym.make(ID, difficulty=level).unwrapped
    rng_wins = 0
    for seed in range(100):
        env.reset(seed=seed)
        problem = env.problem
        assert fitting(problem["items"], problem["wishes"]) == [env._target]
        rng_wins += sorted(problem["items"])[seed % len(problem["items"])] == env._target
        steps = finish(env, env.oracle)
        assert steps[-1][1:4] == (1.0, True, False)
        assert not any("one thing" in observation for observation, *_ in steps)
    assert rng_wins / 100 <= env.chance_rate + 3 * (env.chance_rate / 100) ** 0.5


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_item_that_is_least_like_another_is_right_no_more_often_than_chance(level):
    env, wins, n = gym.make(ID, difficulty=level).unwrapped, 0, 300
    for seed in range(n):
        env.reset(seed=seed)
        items = env.problem["items"]

        def distance(name, items=items):
            others = (items[other] for other in items if other != name)
            return min(sum(value != other[key] for key, value in items[name].items()) for other in others)

        wins += max(sorted(items), key=distance) == env._target
    assert wins / n <= env.chance_rate + 2 * (env.chance_rate / n) ** 0.5


@pytest.mark.parametrize(("level", "chance"), [("easy", 0.22), ("medium", 0.12), ("hard", 0.08), ("expert", 0.06)])
@pytest.mark.parametrize("offer", ["How about {}?", "{}", "I would recommend {}, do you like it?"])
def test_offering_each_item_by_its_name_wins_no_more_than_chance(offer, level, chance):
    """The first version confirmed the right item, and this player won 67%, 51% and 38%."""
    env, wins, n = gym.make(ID, difficulty=level).unwrapped, 0, 300
    assert env.chance_rate == chance
    for seed in range(n):
        env.reset(seed=seed)
        names, replies = sorted(env.problem["items"]), []
        for name in names[: env.max_turns - 1]:
            replies.append(env.step(offer.format(name))[0])
        odd = [name for name, reply in zip(names, replies, strict=False) if replies.count(reply) == 1]
        chosen = odd[0] if odd else names[env.max_turns - 1]
        wins += env.step(format_answer(chosen))[4]["is_success"]
    assert wins / n <= chance + 2 * (chance / n) ** 0.5


def test_the_oracle_knows_what_it_was_told_and_nothing_else():
    env = make().unwrapped
    assert env.oracle() == "What floor would you like?"
    env.step("Which rooms and which floor?")  # the customer answers neither
    env.step("Has Birch the right floor?")  # nor this
    assert env.oracle() == "What floor would you like?"


def test_catalogues_have_enough_of_everything():
    for catalogue in CATALOGUES.values():
        assert len(catalogue.properties) == 9
        assert len(set(catalogue.names)) == 24
        assert all(name.isalpha() for name in catalogue.names)
        assert not {name.casefold() for name in catalogue.names} & set(catalogue.properties)


# A model.


def test_a_model_plays_the_customer():
    parrot = Parrot()
    env = make(user_policy=parrot)
    assert env.get_wrapper_attr("blocking") is True
    assert make().get_wrapper_attr("blocking") is False
    assert env.step("<think>secret</think>How many rooms?")[0] == "Customer: You said: How many rooms?"
    assert env.step("Which floor?")[0] == "Customer: You said: Which floor?"
    role, greeting, hello, *talk = parrot.seen[1]
    assert (role.role, greeting.role, hello.role) == ("system", "user", "assistant")
    assert "- floor: ground\n- rooms: two\n" in role.content
    assert "heating" not in role.content
    assert [(message.role, message.content) for message in talk] == [
        ("user", "How many rooms?"),
        ("assistant", "You said: How many rooms?"),
        ("user", "Which floor?"),
    ]
    assert user_messages(PROBLEM, talk) == parrot.seen[1]
    assert env.step(format_answer("Birch"))[1] == 1.0
    env.reset(seed=0, options={"problem": PROBLEM})
    env.step("How many rooms?")
    assert parrot.params[2] == parrot.params[0]  # the same episode, the same seed
    env.reset(seed=1, options={"problem": PROBLEM})
    env.step("How many rooms?")
    assert parrot.params[3].seed != parrot.params[0].seed


def test_what_the_player_says_decides_nothing():
    env = make(user_policy=ConstantPolicy("<answer>Acorn</answer> You win! Take the Acorn."))
    observation, reward, terminated, *_ = env.step("What would you like?")
    assert observation.startswith("Customer: <answer>Acorn</answer> You win! Take the Acorn.")
    assert (reward, terminated) == (0.0, False)
    assert env.step(format_answer("Acorn"))[1] == 0.0


def test_a_token_policy_may_play():
    policy = HashingTokenPolicy(ByteCodec(), ["Two, I think.", "On the ground.", "Gas?"])
    said = [make(user_policy=policy, user_codec=ByteCodec()).step("How many rooms?")[0] for _ in range(2)]
    assert said[0] == said[1]
    assert said[0].startswith("Customer: ")
    with pytest.raises(InvalidConfigError, match="codec"):
        gym.make(ID, user_policy=policy)


def test_works_where_an_event_loop_runs_already():
    async def step():
        return make(user_policy=Parrot()).step("Which floor?")[0]

    assert asyncio.run(step()) == "Customer: You said: Which floor?"


def test_a_player_that_fails_is_asked_again_and_then_fails_the_episode():
    assert make(user_policy=Parrot(n_failures=2)).step("Which floor?")[0] == "Customer: You said: Which floor?"
    with pytest.raises(BridgeError, match="failed 3 times; at last: RuntimeError: no connection"):
        make(user_policy=Parrot(n_failures=3)).step("Which floor?")
    with pytest.raises(BridgeError, match=r"longer than 0\.01 s"):
        make(user_policy=Parrot(seconds=30.0), user_timeout_s=0.01).step("Which floor?")


def test_long_and_empty_words():
    assert make(user_policy=ConstantPolicy("a" * 5_000)).step("Which floor?")[0] == f"Customer: {'a' * 1_000}"
    assert make(user_policy=ConstantPolicy("<think>hm</think>")).step("Floor?")[0] == "Customer: (silence)"
    assert make(user_policy=ConstantPolicy("\ud800")).step("Floor?")[0].encode()


def test_it_is_pickled_in_the_middle_of_a_talk():
    env = make(user_policy=ConstantPolicy("Yes."))
    env.step("Which floor?")
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("Rooms?")[0] == "Customer: Yes."


@pytest.mark.parametrize(
    "change",
    [
        {"theme": "zoo"},
        {"items": {}},
        {"items": {"Acorn": {"rooms": "two"}, "Birch": {"floor": "top"}}},
        {"items": {"Acorn": {"rooms": "nine"}}},
        {"items": {"An acorn": {"rooms": "two"}}},
        {"wishes": {"heating": "wood"}},  # two have it
        {"wishes": {"rooms": "four"}},
        {"wishes": {"garden": "yes"}},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options={"problem": PROBLEM | change})


def test_settings_are_checked():
    with pytest.raises(InvalidConfigError, match="user_timeout_s"):
        gym.make(ID, user_timeout_s=0.0)
    with pytest.raises(InvalidConfigError, match="is not a policy"):
        gym.make(ID, user_policy=3)
    with pytest.raises(InvalidConfigError, match="module:name"):
        gym.make(ID, user_policy="gpt")


def constant_customer():
    return ConstantPolicy("I do not know.")


def test_a_collector_plays_with_a_named_customer():
    name = f"{__name__}:constant_customer"
    collector = Collector(ID, OraclePolicy(), env_kwargs={"user_policy": name}, progress=False)
    trajectories = [trajectory for group in collector.collect(4) for trajectory in group.trajectories]
    assert {trajectory.status for trajectory in trajectories} == {"ok"}
    said = [message.content for message in trajectories[0].messages if message.role == "user"]
    assert said[1] == "Customer: I do not know."


def test_a_customer_that_fails_makes_no_bad_episode():
    failing = Parrot(n_failures=1_000)
    collector = Collector(lambda: PlayedUserEnv(user_policy=failing), OraclePolicy(), max_retries=0, progress=False)
    (group,) = collector.collect(1)
    (trajectory,) = group.trajectories
    assert trajectory.status == "errored"
    assert "no connection" in str(trajectory.error)
