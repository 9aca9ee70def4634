"""The shop of `customer_service.py`: its orders and stock, its policy, and a customer who follows a script.

A case is plain JSON: `orders` by number, `stock` by product and size, and a `customer`: their order number, their
e-mail address, and their `requests`, of the kinds "refund", "exchange", "exchange or refund", "cancel" and "address".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from llm_envs.errors import InvalidActionError

__all__ = ["POLICY", "Customer", "allowed", "apply", "check_case", "copied", "decisions", "draw_case"]

POLICY = """\
1. Identity. Before anything is changed, the customer's order number and e-mail address are checked with `verify`.
   If a customer cannot be verified, nothing is changed for them.
2. Refunds and exchanges need an order that was delivered.
3. Refunds and exchanges need a delivery at most 30 days ago.
4. Items of the final sale are neither refunded nor exchanged.
5. An exchange is for another size of the same product, which must be in stock.
6. Orders are cancelled, and addresses changed, only while the order is being processed."""
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
    entry = case["orders"][order]
    if kind in ("cancel", "address"):
        return 0 if entry["status"] == "processing" else 6
    if entry["status"] != "delivered":
        return 2
    if entry["days"] > _RETURN_DAYS:
        return 3
    if entry["items"][item]["final_sale"]:
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
        if entry["status"] == "cancelled":
            raise InvalidActionError(f"{order} is cancelled already")
        entry["status"] = "cancelled"
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
    order = customer["order"]
    calls: list[tuple[str, dict[str, Any]]] = []
    for request in customer["requests"]:
        kind, item, size = request["kind"], request["item"], request["size"]
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
        if entry["status"] not in _STATUSES or not entry["items"]:
            raise InvalidActionError(f"an order has items and one of the states {', '.join(_STATUSES)}")
        for name, thing in entry["items"].items():
            if thing["state"] != "bought" or not isinstance(case["stock"][name], dict):
                raise InvalidActionError("its items are bought, and of products in stock")
            [thing[field] for field in ("size", "price", "final_sale")]
    customer = case["customer"]
    if not 1 <= len(customer["requests"]) <= 4:
        raise InvalidActionError("the customer has one to four requests")
    for request in customer["requests"]:
        if request.keys() != {"kind", "item", "size", "address"} or not all(type(v) is str for v in request.values()):
            raise InvalidActionError("a request has a kind, an item, a size and an address; some of them are empty")
        if bool(request["address"]) != (request["kind"] == "address") or request["size"] not in (
            SIZES if request["kind"].startswith("exchange") else ("",)
        ):
            raise InvalidActionError("an exchange has a new size, and a change of address an address, and no other")
        needs_item = request["kind"] not in ("cancel", "address")
        if request["kind"] not in _KINDS or (
            needs_item and request["item"] not in case["orders"][customer["order"]]["items"]
        ):
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
        self.n_told = 1
        """How many of the requests were told."""
        self.told: set[str] = set()
        """Other facts that were told: "order", "mail", "address" with it, and "size" with the item."""
        self._said: set[str] = set()
        self.has_insisted = False

    def opening(self) -> str:
        """Return the first message."""
        return ("Hello! ", "Hi! ", "Good morning. ")[self.script["tone"] % 3] + self._wish(0)

    def _wish(self, number: int) -> str:
        request = self.script["requests"][number]
        item = request["item"]
        return {
            "refund": f"I would like my money back for the {item}.",
            "exchange": f"I bought the {item}, but in the wrong size. I would like another one.",
            "exchange or refund": (
                f"I bought the {item}, but in the wrong size. I would like another one; if you cannot do that, I "
                "want my money back."
            ),
            "cancel": "Please cancel my order, the whole of it.",
            "address": "Please send my order to another address.",
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
            facts.append(f"My order number is {self.script['order']}.")
        if "mail" in words:
            self.told.add("mail")
            facts.append(f"My e-mail address is {self.script['email']}.")
        for request in self.script["requests"][: self.n_told]:
            if _ASKS_FOR_SIZE.search(words) and request["size"]:
                self.told.add(f"size {request['item']}")
                facts.append(f"I need the {request['item']} in size {request['size']}.")
            if _ASKS_FOR_ADDRESS.search(words) and request["address"]:
                self.told.add(f"address {request['address']}")
                facts.append(f"The new address is {request['address']}.")
        return facts


# Drawing a case.


def draw_case(rng: np.random.Generator, kinds: tuple[str, ...], n_requests: int, impostors: float) -> dict[str, Any]:
    """Draw a case.

    Args:
        rng: The source of randomness.
        kinds: The possible kinds of requests.
        n_requests: The number of requests.
        impostors: How often the customer's e-mail address is not that of the order.
    """
    draws: Callable[[], float] = iter(rng.random(160).tolist()).__next__

    def below(n: int) -> int:
        return int(draws() * n)

    stock = {name: {size: below(4) for size in SIZES} for name in _PRODUCTS}
    orders: dict[str, dict[str, Any]] = {}
    while len(orders) < 3:
        first = below(len(_PRODUCTS))
        items = {
            _PRODUCTS[(first + place) % len(_PRODUCTS)]: {
                "size": SIZES[below(4)], "price": 20 + 5 * below(20), "final_sale": draws() < 0.3, "state": "bought"
            }
            for place in range(max(2, n_requests))
        }  # fmt: skip
        status = _STATUSES[below(3)]
        orders[f"{10_000 + below(90_000)}"] = {
            "email": f"{_NAMES[below(len(_NAMES))]}{below(100)}@example.org",
            "status": status,
            "days": 1 + below(60) if status == "delivered" else 0,
            "address": _address(below),
            "items": items,
        }
    order = list(orders)[below(len(orders))]
    entry = orders[order]
    kind = kinds[below(len(kinds))]
    _settle(entry, stock, kind, next(iter(entry["items"])), below)
    requests = []
    for place in range(n_requests):
        kind = kind if place == 0 else kinds[below(len(kinds))]
        item = list(entry["items"])[place]
        size = SIZES[(SIZES.index(entry["items"][item]["size"]) + 1 + below(3)) % 4]
        requests.append(
            {
                "kind": kind,
                "item": item if kind not in ("cancel", "address") else "",
                "size": size if kind.startswith("exchange") else "",
                "address": _address(below) if kind == "address" else "",
            }
        )
        if kind.startswith("exchange"):
            stock[item][size] = below(2)
    email = entry["email"]
    if draws() < impostors:
        email = f"{_NAMES[below(len(_NAMES))]}{below(100)}@example.net"
    customer = {"order": order, "email": email, "requests": requests, "tone": below(3), "insists": draws() < 0.5}
    return {"orders": orders, "stock": stock, "customer": customer}


def _address(below: Callable[[int], int]) -> str:
    return f"{1 + below(99)} {_STREETS[below(len(_STREETS))]}"


def _settle(entry: dict[str, Any], stock: Any, kind: str, item: str, below: Callable[[int], int]) -> None:
    """Change the order so that rules 2, 3, 4 and no rule, or rule 6 and no rule, decide equally often."""
    if kind in ("cancel", "address"):
        status = ("processing", "processing", "shipped", "delivered")[below(4)]
        entry["status"], entry["days"] = status, 1 + below(60) if status == "delivered" else 0
        return
    case = below(4)
    entry["status"] = ("processing", "shipped")[below(2)] if case == 0 else "delivered"
    entry["days"] = {0: 0, 1: 31 + below(40)}.get(case, 1 + below(30))
    entry["items"][item]["final_sale"] = case == 2
