"""CustomerService."""

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.tools.shop import allowed, decisions

assert llm_envs  # registers
ID = "llm/CustomerService-v0"
ASK = "What is your order number, and your e-mail address?"


def thing(**changes):
    return {
        **{"size": "M", "price": 40, "final_sale": False, "state": "bought", "status": "delivered", "days": 30},
        **changes,
    }


def asks(kind, item="", *, order="10001", size="", address=""):
    return {"order": order, "kind": kind, "item": item, "size": size, "address": address}


def case(kind="refund", *, item="Rain Coat", size="", address="", email="ada1@example.org", more=(), **state):
    """Return a case about an order whose items are all in one state."""
    items = {"Rain Coat": thing(**state), "Linen Shirt": thing(final_sale=True, **state)}
    new = {name: thing(status="processing", days=0) for name in items}
    requests = [asks(kind, item, size=size, address=address), *more]
    customer = {"email": email, "requests": requests, "n_opening": 1, "tone": 0, "insists": True}
    return {
        "orders": {
            "10001": {"email": "ada1@example.org", "address": "1 Mill Lane", "items": items},
            "10002": {"email": "bo@example.org", "address": "2 Oak Avenue", "items": new},
        },
        "stock": {"Rain Coat": {"S": 1, "L": 0}, "Linen Shirt": {"S": 5}},
        "customer": customer,
    }


def serve(given, *actions):
    """Play the actions; return the sum of the rewards and whether it was a success."""
    env = gym.make(ID)
    env.reset(options={"problem": given})
    total = 0.0
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        if terminated or truncated:
            break
    return total, info.get("is_success")


def call(name, **arguments):
    return format_tool_call(name, order="10001", **arguments)


VERIFY = call("verify", email="ada1@example.org")
DONE = format_answer("done")


@pytest.mark.parametrize(
    ("given", "decided"),
    [
        (case(), ("refund", {"item": "Rain Coat"})),
        (case(days=31), ("refuse", {"rule": 3})),
        (case(status="shipped"), ("refuse", {"rule": 2})),
        (case(item="Linen Shirt"), ("refuse", {"rule": 4})),
        (case(item="Linen Shirt", days=31), ("refuse", {"rule": 3})),  # the lowest
        (case(email="eve@example.net"), ("refuse", {"rule": 1})),
        (case(email="Ada1@Example.org"), ("refund", {"item": "Rain Coat"})),
        (case("exchange", size="S"), ("exchange", {"item": "Rain Coat", "size": "S"})),
        (case("exchange", size="L"), ("refuse", {"rule": 5})),
        (case("exchange or refund", size="L"), ("refund", {"item": "Rain Coat"})),
        (case("exchange or refund", size="S", days=40), ("refuse", {"rule": 3})),
        (case("cancel", item=""), ("refuse", {"rule": 6})),
        (case("cancel", item="", status="processing"), ("cancel_order", {})),
        (case("address", item="", address="9 Oak Avenue", status="shipped"), ("refuse", {"rule": 6})),
        (
            case("address", item="", address="9 Oak Avenue", status="processing"),
            ("change_address", {"address": "9 Oak Avenue"}),
        ),
    ],
)
def test_the_policy_worked_by_hand(given, decided):
    name, arguments = decided
    assert decisions(given) == [(name, {"order": "10001", **arguments})]
    verify = call("verify", email=given["customer"]["email"])
    assert serve(given, verify, call(name, **arguments), DONE) == (1.0, True)
    assert serve(given, call(name, **arguments), DONE)[1] is False  # nobody was verified
    assert serve(given, verify, DONE) == (0.0, False)
    for wrong in (call("refuse", rule=5 if arguments.get("rule") != 5 else 4), call("refund", item="Linen Shirt")):
        total, success = serve(given, verify, call(name, **arguments), wrong, DONE)
        assert (total <= 0.0, success) == (True, False)


def test_breaking_the_policy_does_not_pay():
    refund = call("refund", item="Rain Coat")
    assert serve(case(days=31), VERIFY, refund, DONE) == (-0.5, False)
    assert serve(case(), refund, VERIFY, DONE) == (-0.5, False)  # right, but before the check
    assert serve(case(), VERIFY, refund, call("cancel_order"), call("cancel_order"), DONE) == (-0.5, False)
    assert serve(case(email="eve@example.net"), call("verify", email="eve@example.net"), refund, DONE) == (-0.5, False)
    # Allowed, but nobody asked for it.
    assert serve(case(), VERIFY, call("exchange", item="Rain Coat", size="S"), DONE) == (0.0, False)
    # What the system cannot do breaks no rule.
    assert serve(case(), VERIFY, call("exchange", item="Rain Coat", size="L"), refund, DONE) == (1.0, True)


def test_the_customer_tells_what_they_are_asked_for():
    second = asks("address", address="9 Oak Avenue")
    env = gym.make(ID, difficulty="hard")
    said = env.reset(options={"problem": case("exchange", size="S", more=[second])})[0]
    assert said == "Hello! I bought the Rain Coat, but in the wrong size. I would like another one."
    for words, answer in (
        ("How can I help?", "All right. If you need something from me, such as a number or an address, ask for it."),
        ("What is your order number?", "My order number is 10001."),
        ("And your e-mail address?", "My e-mail address is ada1@example.org."),
        ("Which size?", "I need the Rain Coat in size S."),
        ("Which address?", "All right. If you need something from me, such as a number or an address, ask for it."),
        ("I am sorry, that is not possible.", "Please make an exception."),
        ("I am sorry, that is not possible.", "Well, if it has to be so."),
        ("Is there anything else?", "Yes, one more thing. Please send my order to another address."),
        ("Which address?", "The new address is 9 Oak Avenue."),
        ("Anything else?", "No, that is all."),
    ):
        observation, reward, terminated, *_ = env.step(words)
        assert observation.startswith(answer)
        assert (reward, terminated) == (0.0, False)


@pytest.mark.parametrize(
    "words",
    [
        "Is there anything else?",
        "Anything more?",
        "Anything further I can help with?",
        "What else can I do?",
        "Do you have any other requests?",
        "Do you have another question?",
        "Can I help you with anything?",
        "Is there more I can do for you?",
        "Is that all?",
        "Will that be all for today?",
    ],
)
def test_the_customer_understands_whether_there_is_more(words):
    second = asks("address", address="9 Oak Avenue")
    env = gym.make(ID, difficulty="hard")
    env.reset(options={"problem": case(more=[second])})
    assert "one more thing. Please send my order to another address." in env.step(words)[0]
    assert env.step(words)[0].endswith(", that is all.")


@pytest.mark.parametrize("answer", ["done", "Done.", "**done**", "DONE!", "All done.", "I am done", '"done"'])
def test_done_in_natural_forms(answer):
    assert serve(case(), VERIFY, call("refund", item="Rain Coat"), format_answer(answer)) == (1.0, True)


@pytest.mark.parametrize("answer", ["not done", "done or not", "finished", "done, refunded", "almost done"])
def test_other_words_do_not_end_the_conversation(answer):
    assert serve(case(), VERIFY, call("refund", item="Rain Coat"), format_answer(answer)) == (pytest.approx(-0.1), None)


def test_what_was_told_is_not_told_instead_of_an_answer():
    second = asks("address", address="9 Oak Avenue")
    env = gym.make(ID, difficulty="hard")
    env.reset(options={"problem": case("exchange", size="S", more=[second])})
    for words, answer in (
        ("Your order number and e-mail address?", "My order number is 10001. My e-mail address is ada1@example.org."),
        ("What size, and what was your order number?", "I need the Rain Coat in size S."),
        ("Your order, which you mailed us about, cannot be exchanged for that size.", "Please make an exception."),
        ("Your order number is 10001, right?", "My order number is 10001."),
        ("Order number 10001 is dealt with, size S is sent. Anything else?", "Yes, one more thing."),
    ):
        assert env.step(words)[0].startswith(answer)


def test_two_requests_are_settled_one_after_the_other():
    cancel = asks("cancel")
    address = asks("address", address="9 Oak Avenue")
    given = case("cancel", item="", status="processing", more=[address])
    assert decisions(given) == [("cancel_order", {"order": "10001"}), ("refuse", {"order": "10001", "rule": 6})]
    given = case("refund", status="shipped", more=[cancel])
    assert serve(given, VERIFY, call("refuse", rule=2), call("refuse", rule=6), DONE) == (1.0, True)
    assert serve(given, VERIFY, call("refuse", rule=2), DONE) == (0.0, False)
    assert serve(given, VERIFY, call("refuse", rule=2), call("refuse", rule=2), DONE) == (0.0, False)


@pytest.mark.parametrize(
    ("action", "complaint", "reward"),
    [
        (format_tool_call("look_up", order="1"), "the shop has no order '1'", 0.0),
        (call("refund", item="Hat"), "the shop has no product 'Hat'", 0.0),
        (call("exchange", item="Rain Coat", size="XXL"), "must be one of S, M, L, XL", 0.0),
        (call("refuse", rule=7), "a rule from 1 to 6", 0.0),
        (format_tool_call("verify", order="10009", email="x"), "the shop has no order", 0.0),
        (format_answer("finished"), 'answer "done"', -0.1),
        ("<think>hm</think>", "the reply has no", -0.1),
        (format_tool_call("gift"), "there is no tool", -0.1),
    ],
)
def test_what_is_wrong_is_said(action, complaint, reward):
    env = gym.make(ID)
    env.reset(options={"problem": case()})
    observation, paid, terminated, *_ = env.step(action)
    assert observation.startswith("Error: ")
    assert complaint in observation
    assert paid == pytest.approx(reward)
    assert not terminated


def test_what_the_system_shows():
    env = gym.make(ID)
    env.reset(options={"problem": case()})
    assert env.step(call("look_up"))[0] == (
        "Order 10001, to 1 Mill Lane\n"
        "- Linen Shirt, size M, 40 EUR, final sale, delivered 30 days ago\n"
        "- Rain Coat, size M, 40 EUR, delivered 30 days ago"
    )
    assert env.step(format_tool_call("stock", product="rain coat"))[0] == "S: 1, L: 0"
    assert env.step(call("verify", email="eve@example.net"))[0].startswith("not verified")
    assert env.step(call("verify", email=" ADA1@example.org"))[0] == "verified"
    assert env.step(call("refund", item="rain coat"))[0] == "done"
    assert env.step(call("refund", item="rain coat"))[0] == "Error: the Rain Coat was refunded already"
    assert "days ago, refunded" in env.step(call("look_up"))[0]


def test_each_request_is_about_its_own_order_and_item():
    """Items of one order differ, and each order needs its own check."""
    given = case("refund", more=[asks("refund", "Linen Shirt"), asks("cancel", order="10002")])
    given["customer"]["n_opening"] = 3
    given["orders"]["10001"]["items"]["Linen Shirt"] = thing(status="shipped")
    assert decisions(given)[1] == ("refuse", {"order": "10001", "rule": 2})
    assert decisions(given)[2] == ("refuse", {"order": "10002", "rule": 1})
    given["orders"]["10002"]["email"] = "ada1@example.org"
    assert decisions(given)[2] == ("cancel_order", {"order": "10002"})
    second = format_tool_call("verify", order="10002", email="ada1@example.org")
    work = [call("refund", item="Rain Coat"), call("refuse", rule=2), format_tool_call("cancel_order", order="10002")]
    assert serve(given, VERIFY, second, *work, DONE) == (1.0, True)
    assert serve(given, VERIFY, *work, DONE) == (-0.5, False)
    given["orders"]["10002"]["items"]["Rain Coat"]["status"] = "shipped"
    assert decisions(given)[2] == ("refuse", {"order": "10002", "rule": 6})
    env = gym.make(ID)
    said = env.reset(options={"problem": given})[0]
    assert said == (
        "Hello! I would like my money back for the Rain Coat. Also, I would like my money back for the Linen Shirt. "
        "Also, please cancel my order 10002, the whole of it."
    )
    assert env.step(ASK)[0].startswith("My order numbers are 10001 and 10002.")


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_no_decision_is_right_without_a_look_at_the_items(level):
    """Refusing everything, doing everything, a table of decisions by kinds, and the state of an order's first item."""
    env = gym.make(ID, difficulty=level).unwrapped
    table, n_played, n_right, n_by_first = {}, 0, 0, 0
    for seed in range(1_500):
        env.reset(seed=seed)
        requests = env.problem["customer"]["requests"]
        made = tuple(str(arguments.get("rule", name)) for name, arguments in decisions(env.problem))
        assert sum(map(str.isdigit, made)) == 1  # exactly one request is refused: at most a third
        if level in ("hard", "expert"):
            decided = {(request["kind"], name) for request, name in zip(requests, made, strict=True)}
            assert ("exchange or refund", "refund") in decided
        counts = table.setdefault(tuple(request["kind"] for request in requests), {})
        if seed < 500:
            counts[made] = counts.get(made, 0) + 1
            continue
        n_played += 1
        n_right += bool(counts) and max(counts, key=counts.get) == made
        n_by_first += by_first_items(env.problem) == [rule if rule.isdigit() else "" for rule in made]
    assert n_right / n_played <= env.chance_rate
    assert n_by_first / n_played <= 0.25


def by_first_items(given):
    """Return by which rules a player refuses that takes an order's first item for all of it; "": it does not."""
    rules = []
    for request in given["customer"]["requests"]:
        entry = given["orders"][request["order"]]
        first = entry["items"][min(entry["items"])]
        if entry["email"] != given["customer"]["email"]:
            rules.append("1")
        elif request["kind"] in ("cancel", "address"):
            rules.append("" if first["status"] == "processing" else "6")
        else:
            late = "3" if first["days"] > 30 else "4" if first["final_sale"] else ""
            rules.append("2" if first["status"] != "delivered" else late)
    return rules


def test_the_last_rule_that_is_asked_is_the_first_that_forbids():
    given = case(days=31)
    assert allowed(given, "10001", "exchange", "Linen Shirt", "L") == 3
    assert allowed(given, "10002", "refund", "Rain Coat") == 2
    assert allowed(given, "10002", "cancel") == 0


def test_what_cannot_be_played_is_refused():
    bad = [
        {**case(), "orders": {}},
        case(status="lost"),
        case(item="Wool Sweater"),
        case("gift"),
        {**case(), "stock": {}},
        {**case(), "customer": {}},
        case(more=[{}, {}]),
        case(more=[{"order": "10001", "kind": "cancel", "item": ""}]),
        case("cancel", item="", size="S"),
        case("exchange", size="huge"),
        case("address", item=""),
    ]
    for given in bad:
        with pytest.raises(InvalidConfigError, match="cannot be played"):
            gym.make(ID).unwrapped.reset(options={"problem": given})
