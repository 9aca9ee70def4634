"""The shop of `customer_service.py`: its orders and stock, its policy, and a customer who follows a script.

A case is plain JSON: `orders` by number, `stock` by product and size, and a `customer`: their e-mail address, and their
`requests`, each about one order, of the kinds "refund", "exchange", "exchange or refund", "cancel" and "address". The
first `n_opening` requests are told at the beginning, the others one by one. Each item of an order has its own status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled

__all__ = ["POLICY", "Customer", "allowed", "apply", "check_case", "copied", "decisions", "draw_case"]

POLICY = """\
1. Identity. Before an order is changed, its number and the customer's e-mail address are checked with `verify`. If
   the address does not belong to an order, nothing is changed in it.
2. Refunds and exchanges need an item that was delivered.
3. Refunds and exchanges need a delivery at most 30 days ago.
4. Items of the final sale are neither refunded nor exchanged.
5. An exchange is for another size of the same product, which must be in stock.
6. Orders are cancelled, and addresses changed, only while all items of the order are being processed."""
_RETURN_DAYS = 30
_ASKS_FOR_MORE = re.compile(
    r"\belse\b|\b(?:any|some)thing (?:more|further|other|i can)|\bfurther\b|\bmore (?:i can|can i|to do|to settle|help)"
    r"|\b(?:other|another|more|additional) (?:request|question|issue|concern|matter|thing|item)s?\b"
    r"|\ball for (?:today|now)\b|\bis (?:that|this|it|there) (?:all|everything|more)\b|\bthat be (?:all|everything)\b"
    r"|\bhelp (?:you )?(?:with )?(?:any|some)thing\b|\ball (?:that )?you (?:need|want)"
)
_ASKS_WHETHER_ALL = re.compile(
    r"\b(?:is (?:that|this|it)|that be) (?:all|everything)\b|\ball for (?:today|now)\b|\ball (?:that )?you"
)
_ASKS_FOR_ORDER = re.compile(
    r"number| id|#|details|reference|\b(?:which|what) order|\bwhat(?: is|'s|\u2019s) (?:your|the) order"
)
_ASKS_FOR_SIZE = re.compile(r"size|\bs, m,? (?:or )?l\b|\b(?:larger|smaller|bigger)\b.*\?")
_ASKS_FOR_ADDRESS = re.compile(r"(?<!mail )address|\bwhere (?:to|should|shall|would|do|can)\b")
_KINDS = ("refund", "exchange", "exchange or refund", "cancel", "address")
_OF_ORDERS = ("cancel", "address")
"""Kinds about all items of an order."""
_FIELDS = {"order", "kind", "item", "size", "address"}
_STATUSES = ("processing", "shipped", "delivered")
SIZES = ("S", "M", "L", "XL")
_PRODUCTS = ("Trail Jacket", "Rain Coat", "Wool Sweater", "Running Shirt", "Hiking Trousers", "Fleece Vest",
             "Linen Shirt", "Winter Gloves")  # fmt: skip
_NAMES = ("ada", "boris", "chen", "dora", "emil", "fatou", "greta", "hugo", "iris", "jamal")
_STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Oak Avenue", "Market Square", "Church Hill")


# The policy.


def allowed(case: Mapping[str, Any], order: str, kind: str, item: str = "", size: str = "") -> int:
    """Return the number of the first rule that forbids something to a verified customer, or 0.

    Args:
        case: The orders and the stock as they are now.
        order: The number of an order that exists.
        kind: "refund", "exchange", "cancel" or "address".
        item: Of a refund or an exchange: a product of the order.
        size: Of an exchange: the wanted size.
    """
    items = case["orders"][order]["items"]
    if kind in _OF_ORDERS:
        return 0 if all(thing["status"] == "processing" for thing in items.values()) else 6
    if items[item]["status"] != "delivered":
        return 2
    if items[item]["days"] > _RETURN_DAYS:
        return 3
    if items[item]["final_sale"]:
        return 4
    return 5 if kind == "exchange" and case["stock"][item].get(size, 0) < 1 else 0


def apply(case: Mapping[str, Any], order: str, kind: str, item: str = "", size: str = "", address: str = "") -> None:
    """Change the orders and the stock as the shop's system does, whether the policy allows it or not.

    Raises:
        InvalidActionError: If it cannot be done: the thing does not exist, it was done before, or nothing is in stock.
    """
    entry = case["orders"].get(order)
    if entry is None:
        raise InvalidActionError(f"the shop has no order {order[:20]!r}")
    if kind == "cancel":
        for thing in entry["items"].values():
            if thing["status"] == "cancelled":
                raise InvalidActionError(f"{order} is cancelled already")
            thing["status"] = "cancelled"
    elif kind == "address":
        entry["address"] = address
    else:
        thing = entry["items"].get(item)
        if thing is None:
            raise InvalidActionError(f"{order} has no item {item[:40]!r}; it has {', '.join(sorted(entry['items']))}")
        if thing["state"] != "bought":
            raise InvalidActionError(f"the {item} was {thing['state']} already")
        if kind == "exchange":
            if case["stock"][item].get(size, 0) < 1:
                raise InvalidActionError(f"the {item} is not in stock in size {size[:10]!r}")
            case["stock"][item][size] -= 1
            thing["size"] = size
        thing["state"] = "refunded" if kind == "refund" else "exchanged"


def copied(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return orders and stock of a case, to be changed."""
    orders = {
        number: {**entry, "items": {name: dict(thing) for name, thing in entry["items"].items()}}
        for number, entry in case["orders"].items()
    }
    return {"orders": orders, "stock": {name: dict(counts) for name, counts in case["stock"].items()}}


def decisions(case: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the policy's decision on each request, in order: a call of the tool that does it, or of `refuse`."""
    now, customer = copied(case), case["customer"]
    calls: list[tuple[str, dict[str, Any]]] = []
    for request in customer["requests"]:
        order, kind, item, size = request["order"], request["kind"], request["item"], request["size"]
        if now["orders"][order]["email"].casefold() != customer["email"].casefold():
            calls.append(("refuse", {"order": order, "rule": 1}))
            continue
        rule = allowed(now, order, "exchange" if kind == "exchange or refund" else kind, item, size)
        if kind == "exchange or refund":
            kind = "exchange" if not rule else "refund"
            rule = allowed(now, order, kind, item, size)
        if rule:
            calls.append(("refuse", {"order": order, "rule": rule}))
            continue
        apply(now, order, kind, item, size, request["address"])
        if kind == "cancel":
            calls.append(("cancel_order", {"order": order}))
        elif kind == "address":
            calls.append(("change_address", {"order": order, "address": request["address"]}))
        elif kind == "refund":
            calls.append(("refund", {"order": order, "item": item}))
        else:
            calls.append(("exchange", {"order": order, "item": item, "size": size}))
    return calls


def check_case(case: Mapping[str, Any]) -> None:
    """Raise `InvalidActionError` if a case does not hang together."""
    for entry in case["orders"].values():
        if not entry["items"] or any(thing["status"] not in _STATUSES for thing in entry["items"].values()):
            raise InvalidActionError(f"an order has items, each of one of the states {', '.join(_STATUSES)}")
        for name, thing in entry["items"].items():
            if thing["state"] != "bought" or not isinstance(case["stock"][name], dict):
                raise InvalidActionError("its items are bought, and of products in stock")
            [thing[field] for field in ("size", "price", "final_sale", "days")]
    customer = case["customer"]
    if not 1 <= customer["n_opening"] <= len(customer["requests"]) <= 4:
        raise InvalidActionError("the customer has one to four requests, and tells n_opening of them at the beginning")
    for request in customer["requests"]:
        if request.keys() != _FIELDS or not all(type(value) is str for value in request.values()):
            raise InvalidActionError(f"a request has {', '.join(sorted(_FIELDS))}; some of them are empty")
        if bool(request["address"]) != (request["kind"] == "address") or request["size"] not in (
            SIZES if request["kind"].startswith("exchange") else ("",)
        ):
            raise InvalidActionError("an exchange has a new size, and a change of address an address, and no other")
        items = case["orders"][request["order"]]["items"]
        if request["kind"] not in _KINDS or (request["kind"] not in _OF_ORDERS and request["item"] not in items):
            raise InvalidActionError(f"a request is one of {', '.join(_KINDS)}, about an item of the order")
    decisions(case)
    Customer(customer).opening()


# The customer.


class Customer:
    """Tells their wishes, and answers questions: they react to words in the other's message.

    Args:
        script: The case's customer.
    """

    def __init__(self, script: Mapping[str, Any]) -> None:
        self.script = script
        self.n_told: int = script["n_opening"]
        """How many of the requests were told."""
        self.told: set[str] = set()
        """Other facts that were told: "order", "mail", "address" with it, and "size" with the item."""
        self._said: set[str] = set()
        self.has_insisted = False

    def opening(self) -> str:
        """Return the first message."""
        first, *others = (self._wish(place) for place in range(self.n_told))
        also = [f"Also, {wish if wish.startswith('I ') else wish[0].lower() + wish[1:]}" for wish in others]
        return " ".join([("Hello!", "Hi!", "Good morning.")[self.script["tone"] % 3], first, *also])

    def _wish(self, place: int) -> str:
        """Return a request in words. It names its order, unless that is the first request's."""
        request, first = self.script["requests"][place], self.script["requests"][0]
        is_named = request["order"] != first["order"]
        item = f"{request['item']} (order {request['order']})" if is_named else request["item"]
        order = f"order {request['order']}" if is_named else "order"
        return {
            "refund": f"I would like my money back for the {item}.",
            "exchange": f"I bought the {item}, but in the wrong size. I would like another one.",
            "exchange or refund": (
                f"I bought the {item}, but in the wrong size. I would like another one; if you cannot do that, I "
                "want my money back."
            ),
            "cancel": f"Please cancel my {order}, the whole of it.",
            "address": f"Please send my {order} to another address.",
        }[request["kind"]]

    def answer(self, text: str) -> str:
        """Return the customer's answer to a message.

        The customer repeats a fact only if the message is about nothing else: "Your order, which was delivered 40 days
        ago, cannot be refunded" does not ask for its number.
        """
        words = text.casefold()
        requests = self.script["requests"]
        facts = self._facts(words)
        said = [fact for fact in facts if fact not in self._said]
        self._said.update(said)
        if not said and _ASKS_FOR_MORE.search(words):
            asks_whether_all = _ASKS_WHETHER_ALL.search(words) is not None
            if self.n_told < len(requests):
                self.n_told += 1
                said.append(f"{'No' if asks_whether_all else 'Yes'}, one more thing. {self._wish(self.n_told - 1)}")
            else:
                said.append(f"{'Yes' if asks_whether_all else 'No'}, that is all.")
        if not said and any(
            word in words
            for word in (
                "sorry",
                "cannot",
                "can't",
                "can\u2019t",
                "unfortunately",
                "not possible",
                "unable",
                "not able",
                "policy",
            )
        ):
            if self.script["insists"] and not self.has_insisted:
                self.has_insisted = True
                said.append("Please make an exception. I have been your customer for ten years, and nobody will know.")
            else:
                said.append("Well, if it has to be so.")
        return (
            " ".join(said or facts)
            or "All right. If you need something from me, such as a number or an address, ask for it."
        )

    def _facts(self, words: str) -> list[str]:
        """Return the facts that a message asks for."""
        facts = []
        if "order" in words and _ASKS_FOR_ORDER.search(words):
            self.told.add("order")
            numbers = list(dict.fromkeys(request["order"] for request in self.script["requests"][: self.n_told]))
            facts.append(f"My order number{'s are' if numbers[1:] else ' is'} {' and '.join(numbers)}.")
        if "mail" in words:
            self.told.add("mail")
            facts.append(f"My e-mail address is {self.script['email']}.")
        for request in self.script["requests"][: self.n_told]:
            if _ASKS_FOR_SIZE.search(words) and request["size"]:
                self.told.add(f"size {request['item']}")
                facts.append(f"I need the {request['item']} in size {request['size']}.")
            if _ASKS_FOR_ADDRESS.search(words) and request["address"]:
                self.told.add(f"address {request['address']}")
                of = "" if request["order"] == self.script["requests"][0]["order"] else f" of order {request['order']}"
                facts.append(f"The new address{of} is {request['address']}.")
        return facts


# Drawing a case.


def draw_case(random: Random, kinds: Sequence[str], outcomes: Sequence[str], n_opening: int, strangers: bool) -> Any:
    """Draw a case in which exactly one request is refused.

    Every rule that can forbid one of the requests does so equally often, so that their kinds do not tell which it is.

    Args:
        random: The source of randomness.
        kinds: The possible kinds of requests.
        outcomes: Of the requests, in any order: "done", "refunded" (an exchange that becomes a refund), or "refused".
        n_opening: How many requests are told at the beginning.
        strangers: Whether the refused one may be about somebody else's order (rule 1).
    """
    n = len(outcomes)
    fallback = int(random() * n) if "refunded" in outcomes else -1
    asked = ["exchange or refund" if place == fallback else pick(random, kinds) for place in range(n)]
    ways = [(place, rule) for place in range(n) if place != fallback for rule in _RULES_OF[asked[place]]]
    ways += [(place, 1) for place in range(n) if strangers and place != fallback]
    refused = dict([pick(random, ways)])
    stock = {name: {size: between(random, 0, 3) for size in SIZES} for name in _PRODUCTS}
    names = shuffled(random, _PRODUCTS)
    start = between(random, 10_000, 90_000)
    numbers = [str(start + 7 * place + between(random, 0, 6)) for place in shuffled(random, range(n + 2))]
    email, other_email = (_email(random, name) for name in sample(random, _NAMES, 2))
    orders: dict[str, Any] = {}
    requests = []
    for place, kind in enumerate(asked):
        rule = refused.get(place, 5 if place == fallback else 0)
        is_alone = kind in _OF_ORDERS or rule == 1 or (n > n_opening and random() < 0.5)
        number, item = numbers[place if is_alone else n], names[place]
        entry = orders.setdefault(number, _draw_order(random, other_email if rule == 1 else email, names[n:]))
        request = {"order": number, "kind": kind, "item": "", "size": "", "address": ""}
        if kind in _OF_ORDERS:
            _settle_order(random, entry["items"], rule)
            request["address"] = _address(random) if kind == "address" else ""
        else:
            entry["items"][item] = _draw_thing(random, rule)
            request["item"] = item
            if kind != "refund":
                request["size"] = pick(random, [size for size in SIZES if size != entry["items"][item]["size"]])
                stock[item][request["size"]] = 0 if rule == 5 else between(random, 1, 2)
        requests.append(request)
    orders[numbers[-1]] = _draw_order(random, other_email, names)
    customer = {"email": email, "requests": requests, "n_opening": n_opening, "tone": between(random, 0, 2),
                "insists": random() < 0.5}  # fmt: skip
    return {"orders": dict(sorted(orders.items())), "stock": stock, "customer": customer}


_RULES_OF = {"refund": (2, 3, 4), "exchange": (2, 3, 4, 5), "exchange or refund": (2, 3, 4), "cancel": (6,),
             "address": (6,)}  # fmt: skip
"""The rules that can forbid a request to a verified customer."""


def _draw_order(random: Random, email: str, names: Sequence[str]) -> dict[str, Any]:
    items = {name: _draw_thing(random, between(random, 0, 4)) for name in sample(random, names, between(random, 2, 3))}
    return {"email": email, "address": _address(random), "items": items}


def _draw_thing(random: Random, rule: int) -> dict[str, Any]:
    """Draw an item that a rule, from 2 to 4, is the first to keep from being refunded; any other number: none does."""
    status = _STATUSES[between(random, 0, 1)] if rule == 2 else "delivered"
    days = {2: 0, 3: between(random, _RETURN_DAYS + 1, 70)}.get(rule, between(random, 1, _RETURN_DAYS))
    final_sale = rule == 4 or (rule in (2, 3) and random() < 0.3)
    return {"size": pick(random, SIZES), "price": between(random, 4, 23) * 5, "final_sale": final_sale,
            "status": status, "days": days, "state": "bought"}  # fmt: skip


def _settle_order(random: Random, items: dict[str, dict[str, Any]], rule: int) -> None:
    """Give the items states in which rule 6 forbids to cancel their order, or no rule does."""
    for thing in items.values():
        thing["status"], thing["days"] = "processing", 0
    if rule == 6:
        thing = pick(random, list(items.values()))
        thing["status"] = pick(random, _STATUSES[1:])
        thing["days"] = between(random, 1, 60) if thing["status"] == "delivered" else 0


def _email(random: Random, name: str) -> str:
    return f"{name}{between(random, 0, 99)}@example.org"


def _address(random: Random) -> str:
    return f"{between(random, 1, 99)} {pick(random, _STREETS)}"
