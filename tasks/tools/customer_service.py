"""`llm/CustomerService-v0`: serve a customer of a shop, within its policy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.env import Difficulty, Outcome, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.spaces import MAX_TEXT_LENGTH
from llm_envs.tasks.tools.shop import POLICY, SIZES, Customer, allowed, apply, check_case, copied, decisions, draw_case
from llm_envs.tasks.wording import in_words
from llm_envs.tools.toolset import Toolset, tool
from llm_envs.types import ToolResult

__all__ = ["CustomerServiceEnv"]

_RETURNS = ("refund", "exchange")
_DONE = re.compile(r"(?:(?:all|it is|i am|i'm|everything is|we are) )?done[.!]*", re.IGNORECASE)


class Desk(Toolset):
    """The shop's system. It obeys every call; the agent is responsible for the policy."""

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Open the day with the case's orders and stock."""
        self.case: dict[str, Any] = copied(problem)
        self.tried: set[tuple[str, str]] = set()
        """Numbers and addresses given to `verify`."""
        self.log: list[tuple[str, dict[str, Any]]] = []
        """The changes and refusals."""
        self.looked_up: set[str] = set()
        self.n_violations = 0

    @tool
    def verify(self, order: str, email: str) -> str:
        """Check that an e-mail address belongs to an order.

        Args:
            order: The order's number.
            email: The address.
        """
        number, address = order.strip(), email.strip().casefold()
        if number not in self.case["orders"]:
            raise InvalidActionError(f"the shop has no order {number[:20]!r}")
        self.tried.add((number, address))
        return "verified" if self._is_verified(number) else "not verified: the address does not belong to that order"

    @tool
    def look_up(self, order: str) -> str:
        """Show an order: its address and items, each with its state.

        Args:
            order: The order's number.
        """
        entry = self.case["orders"].get(order.strip())
        if entry is None:
            raise InvalidActionError(f"the shop has no order {order.strip()[:20]!r}")
        self.looked_up.add(order.strip())
        lines = [f"Order {order.strip()}, to {entry['address']}"]
        for name, thing in sorted(entry["items"].items()):
            when = f" {in_words(thing['days'], 'day')} ago" if thing["status"] == "delivered" else ""
            sale = ", final sale" if thing["final_sale"] else ""
            after = "" if thing["state"] == "bought" else f", {thing['state']}"
            lines.append(f"- {name}, size {thing['size']}, {thing['price']} EUR{sale}, {thing['status']}{when}{after}")
        return "\n".join(lines)

    @tool
    def stock(self, product: str) -> str:
        """Show how many of a product are in stock, by size.

        Args:
            product: Its name.
        """
        name = self._product(product)
        self.looked_up.add(name)
        counts = self.case["stock"][name]
        return ", ".join(f"{size}: {counts[size]}" for size in SIZES if size in counts)

    @tool
    def refund(self, order: str, item: str) -> str:
        """Give the money for an item back.

        Args:
            order: The order's number.
            item: The product's name.
        """
        return self._change("refund", {"order": order.strip(), "item": self._product(item)})

    @tool
    def exchange(self, order: str, item: str, size: str) -> str:
        """Exchange an item for another size.

        Args:
            order: The order's number.
            item: The product's name.
            size: The new size: S, M, L or XL.
        """
        wanted = size.strip().upper()
        if wanted not in SIZES:
            raise InvalidActionError(f"the size is {size[:10]!r}; it must be one of {', '.join(SIZES)}")
        return self._change("exchange", {"order": order.strip(), "item": self._product(item), "size": wanted})

    @tool
    def cancel_order(self, order: str) -> str:
        """Cancel an order.

        Args:
            order: The order's number.
        """
        return self._change("cancel", {"order": order.strip()})

    @tool
    def change_address(self, order: str, address: str) -> str:
        """Change the address that an order is sent to.

        Args:
            order: The order's number.
            address: The new address.
        """
        return self._change("address", {"order": order.strip(), "address": " ".join(address.split())})

    @tool
    def refuse(self, order: str, rule: int) -> str:
        """Record that a request was refused.

        Args:
            order: The order's number.
            rule: The number of the rule that forbids it; of several the lowest.
        """
        if order.strip() not in self.case["orders"] or not 1 <= rule <= 6:
            raise InvalidActionError("a refusal needs the number of an order and a rule from 1 to 6")
        self.log.append(("refuse", {"order": order.strip(), "rule": rule}))
        return "recorded"

    def _is_verified(self, order: str) -> bool:
        return (order, self.case["orders"][order]["email"].casefold()) in self.tried

    def _product(self, name: str) -> str:
        for product in self.case["stock"]:
            if product.casefold() == name.strip().casefold():
                return str(product)
        raise InvalidActionError(
            f"the shop has no product {name[:40]!r}; its products are {', '.join(sorted(self.case['stock']))}"
        )

    def _change(self, kind: str, arguments: dict[str, Any]) -> str:
        """Change something; count it if the policy forbids it."""
        order = arguments["order"]
        entry = self.case["orders"].get(order)
        is_forbidden = False
        if entry is not None and (kind not in _RETURNS or arguments["item"] in entry["items"]):
            rule = allowed(self.case, order, kind, arguments.get("item", ""), arguments.get("size", ""))
            is_forbidden = bool(rule) or not self._is_verified(order)
        apply(self.case, kind=kind, **arguments)
        self.n_violations += is_forbidden
        self.log.append(({"cancel": "cancel_order", "address": "change_address"}.get(kind, kind), arguments))
        return "done"


class CustomerServiceEnv(ToolEnv):
    """Serve a customer of a shop: learn their wishes, check the policy, and fulfil or refuse each wish.

    ## Description
    A customer (scripted) writes their requests: money back, another size, an order cancelled, another address. The
    agent asks for the facts it needs, verifies the customer, looks the orders up, and does the things that the shop's
    policy allows or records which rule forbids them: one of the requests, and it may be any. The system obeys every
    call; the agent must follow the policy. Some customers ask for exceptions, some for changes of an order that is not
    theirs. The state at the end counts: orders, stock, checks and refusals, compared exactly. Teaches to follow rules
    under pressure, and to ask before acting.

    ## Observation
    First the customer's message. The customer answers plain text, the system answers calls. After a malformed reply a
    readable error.

    ## Action
    Plain text goes to the customer; calls of the tools go to the system; `<answer>done</answer>` ends the
    conversation. The system prompt has the policy.

    ## Reward
    `correct` (weight 1): 1 for "done" if every request was done or refused as the policy demands, nothing else
    was changed, and no rule was broken on the way. `violation` (weight -0.5): 1 for the first turn that
    changes something against the policy, or for a customer who was not verified. `malformed` (weight -0.1): 1 for
    an empty or broken reply, a call that does not exist, or an answer other than "done".

    ## Episode End
    Terminates with "done". Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): three refunds or cancellations at once; "medium": also exchanges and addresses,
      and orders of others; "hard": each request only after the agent asks for more, and an exchange that becomes a
      refund; "expert": four requests.
    - `max_turns`: 16, 24, 24 and 32 by default.
    - `reset(options={"problem": {"orders": ..., "stock": ..., "customer": ...}})`: a case as
      `tasks/tools/shop.py` has it.

    ## Version History
    - v0: first version.
    """

    # A player that decides only by the kinds of the requests is right in one of as many cases as there are ways to
    # refuse one of them: in 14%, 9%, 9% and 5% (of 3,000 cases a level). To do or to refuse everything is never right.
    difficulties = {
        "easy": Difficulty(
            "three refunds or cancellations",
            chance_rate=0.17,
            settings={
                "kinds": ("refund", "refund", "refund", "cancel"),
                "outcomes": ("done", "done", "refused"),
                "n_opening": 3,
                "strangers": False,
                "turns": 16,
            },
        ),
        "medium": Difficulty(
            "also exchanges and addresses; orders of others",
            chance_rate=0.12,
            settings={
                "kinds": ("refund", "exchange", "exchange", "exchange", "cancel", "address"),
                "outcomes": ("done", "done", "refused"),
                "n_opening": 3,
                "strangers": True,
                "turns": 24,
            },
        ),
        "hard": Difficulty(
            "three requests, one after the other; an exchange that becomes a refund",
            chance_rate=0.12,
            settings={
                "kinds": ("refund", "exchange", "exchange or refund", "exchange or refund", "address"),
                "outcomes": ("done", "refunded", "refused"),
                "n_opening": 1,
                "strangers": True,
                "turns": 24,
            },
        ),
        "expert": Difficulty(
            "four requests, one after the other; an exchange that becomes a refund",
            chance_rate=0.08,
            settings={
                "kinds": ("refund", "exchange", "exchange or refund", "exchange or refund", "address"),
                "outcomes": ("done", "done", "refunded", "refused"),
                "n_opening": 1,
                "strangers": True,
                "turns": 32,
            },
            expected_hard="Four requests must all end in exactly the state that the policy wants; at one mistake in "
            "six requests, 48% do.",
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 16
    problem_fields = {"orders": dict, "stock": dict, "customer": dict}
    reward_weights = {"correct": 1.0, "violation": -0.5, "malformed": -0.1}
    min_return = -1.0  # one violation, and the most that malformed replies cost
    instructions = (
        "You serve a customer of a shop. To write to the customer, use plain text without tags. To work in the shop's "
        f"system, call your tools. The policy:\n{POLICY}\n"
        "Fulfil each request if the policy allows it, and do nothing else. If the policy forbids a request, change "
        "nothing and record the refusal with `refuse`, once for each request, with the number of the rule that forbids "
        "it (of several rules the lowest). Make no exceptions. Check every order of a request with `verify`, even if "
        "you will refuse the request. Ask the customer for the facts you need. At the end, ask whether there is "
        "anything else. When all is settled, answer with the word done."
    )
    answer_example = "done"
    has_natural_form = False

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> Toolset:
        """Return the shop's system."""
        self.desk = Desk()
        return self.desk

    def generate(self) -> dict[str, Any]:
        """Draw a case of the level."""
        settings = self.settings
        drawn: dict[str, Any] = draw_case(
            self.np_random.random,
            settings["kinds"],
            settings["outcomes"],
            settings["n_opening"],
            settings["strangers"],
        )
        return drawn

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a case that does not hang together."""
        try:
            check_case(problem)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its orders, stock or customer are wrong: {error!r}") from error

    def begin(self) -> None:
        """Send the customer in, and work out the right decisions."""
        self.customer = Customer(self.problem["customer"])
        self._calls = decisions(self.problem)
        self._n_violations = 0
        self._heard_all = False

    def prompt(self) -> str:
        """Return the customer's first message."""
        return self.customer.opening()

    def play(self, action: str) -> Outcome:
        """Let the customer answer plain text; calls and answers are those of any tool task."""
        if len(action) <= MAX_TEXT_LENGTH:
            reply = self.parse_reply(action)
            if reply.tool_calls:
                return self._play_calls(reply)
            if reply.content and not reply.problems and reply.answer is None:
                self.tool_results = ()
                said = self.customer.answer(reply.content)
                self._heard_all |= said.endswith("that is all.")
                return Outcome(said, self.score(reply, (), correct=False, malformed=False))
        return super().play(action)

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Return the turn's components: the first violation of an episode costs."""
        is_first = self._n_violations == 0 and self.desk.n_violations > 0
        self._n_violations = self.desk.n_violations
        return {"correct": float(correct), "violation": float(is_first), "malformed": float(malformed)}

    def is_correct(self, answer: str) -> bool:
        """Compare the changes and refusals with those that the policy demands."""
        if _DONE.fullmatch(answer) is None:
            raise InvalidActionError('answer "done" when all is settled')
        customer = self.problem["customer"]
        email = customer["email"].casefold()
        has_tried = all((request["order"], email) in self.desk.tried for request in customer["requests"])
        return has_tried and not self.desk.n_violations and _sorted(self.desk.log) == _sorted(self._calls)

    def next_action(self) -> str:
        """Ask, verify, look up, decide; ask for more; answer."""
        customer, desk, told = self.problem["customer"], self.desk, self.customer.told
        if self.n_turns + 1 >= self.max_turns:
            return self.write_answer("done")
        if not {"order", "mail"} <= told:
            return "Gladly. What is your order number, and what is your e-mail address?"
        settled: list[tuple[str, dict[str, Any]]] = []
        for request, call in zip(customer["requests"][: self.customer.n_told], self._calls, strict=False):
            settled.append(call)
            if desk.log.count(call) >= settled.count(call):
                continue
            (name, arguments), order = call, request["order"]
            if (order, customer["email"].casefold()) not in desk.tried:
                return format_tool_call("verify", order=order, email=customer["email"])
            if arguments.get("rule") != 1:
                if order not in desk.looked_up:
                    return format_tool_call("look_up", order=order)
                if request["size"] and f"size {request['item']}" not in told:
                    return "Which size do you need?"
                if request["size"] and request["item"] not in desk.looked_up:
                    return format_tool_call("stock", product=request["item"])
                if request["address"] and f"address {request['address']}" not in told:
                    return "Which address should it go to?"
            return format_tool_call(name, **arguments)
        if not self._heard_all:
            return "That is settled. Is there anything else?"
        return self.write_answer("done")


def _sorted(log: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return sorted(f"{name} {sorted(arguments.items())}" for name, arguments in log)
