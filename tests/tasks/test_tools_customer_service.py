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
    return {"size": "M", "price": 40, "final_sale": False, "state": "bought", **changes}


def case(kind="refund", *, item="Rain Coat", size="", address="", email="ada1@example.org", more=(), **order):
    items = {"Rain Coat": thing(), "Linen Shirt": thing(final_sale=True)}
    entry = {"email": "ada1@example.org", "status": "delivered", "days": 30, "address": "1 Mill Lane", "items": items}
    request = {"kind": kind, "item": item, "size": size, "address": address}
    customer = {"order": "10001", "email": email, "requests": [request, *more], "tone": 0, "insists": True}
    other = {"email": "bo@example.org", "status": "processing", "days": 0, "address": "2 Oak Avenue", "items": items}
    return {
        "orders": {"10001": {**entry, **order}, "10002": other},
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
    second = {"kind": "address", "item": "", "size": "", "address": "9 Oak Avenue"}
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
    second = {"kind": "address", "item": "", "size": "", "address": "9 Oak Avenue"}
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
    second = {"kind": "address", "item": "", "size": "", "address": "9 Oak Avenue"}
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
    cancel = {"kind": "cancel", "item": "", "size": "", "address": ""}
    address = {"kind": "address", "item": "", "size": "", "address": "9 Oak Avenue"}
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
        "Order 10001: delivered 30 days ago; to 1 Mill Lane\n"
        "- Linen Shirt, size M, 40 EUR, final sale, bought\n- Rain Coat, size M, 40 EUR, bought"
    )
    assert env.step(format_tool_call("stock", product="rain coat"))[0] == "S: 1, L: 0"
    assert env.step(call("verify", email="eve@example.net"))[0].startswith("not verified")
    assert env.step(call("verify", email=" ADA1@example.org"))[0] == "verified"
    assert env.step(call("refund", item="rain coat"))[0] == "done"
    assert env.step(call("refund", item="rain coat"))[0] == "Error: the Rain Coat was refunded already"


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_fixed_decisions_win_no_more_than_the_chance_rate(level):
    env = gym.make(ID, difficulty=level).unwrapped
    n, wins = 400, {}
    for seed in range(n):
        env.reset(seed=seed)
        customer = env.problem["customer"]
        kinds = tuple(request["kind"] for request in customer["requests"])
        made = tuple(str(arguments.get("rule", name)) for name, arguments in decisions(env.problem))
        wins[kinds, made] = wins.get((kinds, made), 0) + 1
    assert max(wins.values()) / n <= env.chance_rate
    always_yes = sum(count for (_, made), count in wins.items() if not any(rule.isdigit() for rule in made))
    assert always_yes / n <= env.chance_rate


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
        case(more=[{"kind": "cancel", "item": ""}]),
        case("cancel", item="", size="S"),
        case("exchange", size="huge"),
        case("address", item=""),
    ]
    for given in bad:
        with pytest.raises(InvalidConfigError, match="cannot be played"):
            gym.make(ID).unwrapped.reset(options={"problem": given})
