"""APINavigation."""

import json

import gymnasium as gym
import pytest
from task_play import finish

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call

assert llm_envs  # registers
ID = "llm/APINavigation-v0"


def user(number, name, orders=(), moved_to=""):
    listed = [{"id": f"o{number}{place}", "amount": amount} for place, amount in enumerate(orders)]
    return {"id": f"u{number}", "name": name, "email": f"{name}@x.org", "moved_to": moved_to, "orders": listed}


USERS = [
    *(user(number, f"N{number}") for number in range(6)),
    user(6, "Ada", moved_to="u8"),
    user(7, "Bo", [10]),
    user(8, "Ada", [5, 30, 7, 8, 9, 21]),
]


def problem(asked, name="Ada", failing=(), users=USERS):
    return {"problem": {"users": users, "failing": list(failing), "asked": asked, "name": name}}


def get(env, *paths):
    """Request the paths in one turn; return what each came to."""
    return env.step("".join(format_tool_call("get", path=path) for path in paths))[4]["messages"]


def test_lists_come_in_pages():
    env = gym.make(ID)
    assert env.reset(options=problem("email"))[0] == "What is the e-mail address of the user Ada?"
    first, second, orders = (
        message["content"] for message in get(env, "/users", "/users?after=u4", "/users/u8/orders")
    )
    status, body = first.split("\n")
    assert status == "200 OK"
    assert [row["id"] for row in json.loads(body)["items"]] == ["u0", "u1", "u2", "u3", "u4"]
    assert json.loads(body)["next"] == "/users?after=u4"
    assert json.loads(second.split("\n")[1])["items"][-1] == {"id": "u8", "name": "Ada"}
    assert json.loads(second.split("\n")[1])["next"] is None
    assert json.loads(orders.split("\n")[1])["next"] == "/users/u8/orders?after=o84"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", '200 OK\n{"paths"'),
        ("/users/u7", '200 OK\n{"id": "u7", "name": "Bo", "email": "Bo@x.org"}'),
        ("/users/u6", '301 Moved Permanently\n{"location": "/users/u8"}'),
        ("/users/u6/orders", '301 Moved Permanently\n{"location": "/users/u8/orders"}'),
        ("/users/u7/orders", '200 OK\n{"items": [{"id": "o70"}], "next": null}'),
        ("/users/u1/orders", '200 OK\n{"items": [], "next": null}'),
        ("/orders/o70", '200 OK\n{"id": "o70", "amount": 10}'),
        ("/users/u99", "404 Not Found"),
        ("/orders/o1", "404 Not Found"),
        ("/nothing", "404 Not Found"),
        ("/users?page=2", '400 Bad Request\n{"error": "unknown parameter \'page\'; known: after"}'),
        ("/users?after=u99", "400 Bad Request"),
        ("users", "400 Bad Request"),
        ("http://x/users", "400 Bad Request"),
        ("http://[", "400 Bad Request"),
        ("", "400 Bad Request"),
        ("/" * 300, "414 URI Too Long"),
    ],
)
def test_what_a_path_comes_to(path, said):
    env = gym.make(ID)
    env.reset(options=problem("email"))
    assert get(env, path)[0]["content"].startswith(said)


def test_a_request_that_failed_succeeds_when_repeated():
    env = gym.make(ID)
    env.reset(options=problem("count", failing=["/users"]))
    assert [message["content"][:3] for message in get(env, "/users", "/users")] == ["503", "200"]
    env.reset(options=problem("count", failing=["/users"]))
    assert get(env, "/users")[0]["content"].startswith("503")


def test_more_than_three_requests_a_turn_are_turned_away():
    env = gym.make(ID)
    env.reset(options=problem("count"))
    assert [message["content"][:3] for message in get(env, "/", "/", "/", "/", "/")] == ["200"] * 3 + ["429"] * 2
    assert get(env, "/")[0]["content"].startswith("200")


@pytest.mark.parametrize(
    ("asked", "name", "right", "wrong"),
    [
        ("email", "Bo", "BO@X.ORG.", "ada@x.org"),
        ("email", "Ada", "Ada@x.org", "bo@x.org"),
        ("count", "Ada", "6", "5"),  # 5 on the first page
        ("count", "N1", "0", "1"),
        ("sum", "Ada", "80", "59"),  # 59 on the first page
        ("largest", "Ada", "30", "21"),
    ],
)
def test_answers_worked_by_hand(asked, name, right, wrong):
    env = gym.make(ID)
    for answer, reward in ((right, 1.0), (wrong, 0.0)):
        env.reset(options=problem(asked, name))
        assert env.step(format_answer(answer))[1:3] == (reward, True)


def test_a_number_is_asked_for_as_a_number():
    env = gym.make(ID)
    env.reset(options=problem("count"))
    assert env.step(format_answer("six"))[1:3] == (pytest.approx(-0.1), False)


def test_an_address_is_asked_for_as_an_address():
    env = gym.make(ID)
    env.reset(options=problem("email", "Ada"))
    for answer in ("Ada", "Ada@x.org Bo@x.org", "Ada@x.org or Bo@x.org"):
        assert env.step(format_answer(answer))[0] == "Error: the answer is not an e-mail address."


@pytest.mark.parametrize(("level", "longest"), [("easy", 6), ("medium", 11), ("hard", 17)])
def test_the_oracle_gets_there_through_pages_failures_and_redirections(level, longest):
    env = gym.make(ID, difficulty=level).unwrapped
    seen = set()
    for seed in range(40):
        env.reset(seed=seed)
        steps = finish(env, env.oracle)
        assert steps[-1][1:4] == (1.0, True, False)
        seen |= {line[:3] for observation, *_ in steps for line in observation.splitlines()}
        assert env.n_turns <= longest
    assert {"easy": set(), "medium": {"503"}, "hard": {"503", "301"}}[level] <= seen
    assert "404" not in seen
    assert "429" not in seen


@pytest.mark.parametrize(
    "given",
    [
        problem("email", "Nobody"),
        problem("weight"),
        problem("sum", "N1"),  # no orders
        problem("email", "Ada", users=[*USERS, user(9, "Ada")]),  # two of one name
        problem("email", "Ada", users=[*USERS, user(8, "Zoe")]),  # two of one id
        problem("email", "Ada", users=[{"id": "u1"}]),
        problem("email", "Ada", users=[1]),
        problem("email", "Ada", failing=[["/users"]]),
        problem("email", "A/b", users=[{**user(1, "A/b"), "id": "u/1"}]),
    ],
)
def test_what_cannot_be_asked_is_refused(given):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options=given)
