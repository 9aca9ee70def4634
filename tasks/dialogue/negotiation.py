"""`llm/Negotiation-v0`: agree on a price with somebody whose limit is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_answer
from llm_envs.rewards import parse_integer
from llm_envs.tasks.dialogue.said import said_by

__all__ = ["SUCCESS_SHARE", "Counterpart", "NegotiationEnv"]

SUCCESS_SHARE = 0.8
"""Share of the surplus from which a deal is a success."""
_MOST = 1_000_000
_ITEMS = ("a used bicycle", "an old piano", "a camera", "a boat engine", "a market stall", "a painting", "a sofa",
          "a telescope", "a trailer", "a violin")  # fmt: skip


class Counterpart:
    """The other side, who follows a script. Everything is in prices from the buyer's point of view.

    A seller is described as a buyer of negative prices: `sign` is 1 if the agent buys, −1 if it sells, and inside all
    prices are multiplied by it, so that the agent always wants less and the counterpart more.

    1. The counterpart takes an offer that is at least what it asks, and nothing less.
    2. It comes down by `pace` percent of what the agent came up since its best offer, of which no more than `stride`
       counts at a time, and never below its limit. The first offer is no concession, wherever it is.
    3. An offer that is no better than the best one, or below the floor, uses up patience; when there is none left, it
       leaves.
    4. Once it comes down to `bluff` and no further, and says that this is its last word. (0: it does not.)
    """

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.sign = 1 if problem["role"] == "buyer" else -1
        self.limit: int = self.sign * problem["reserve"]
        self.ask: int = self.sign * problem["ask"]
        self.floor: int = self.sign * problem["floor"]
        self.pace: int = problem["pace"]
        self.stride: int = problem["stride"]
        self.patience: int = problem["patience"]
        self.bluff: int | None = self.sign * problem["bluff"] if problem["bluff"] else None
        self.best: int | None = None
        """The agent's best offer so far."""

    def hears(self, offer: int) -> str:
        """Take an offer; return "deal", "leaves", "moves", "stays", "bluffs" or "insulted"."""
        offer = self.sign * offer
        if offer >= self.ask:
            return "deal"
        if offer < self.floor or (self.best is not None and offer <= self.best):
            self.patience -= 1
            if self.patience < 0:
                return "leaves"
            return "insulted" if offer < self.floor else "stays"
        came_up = 0 if self.best is None else min(offer - self.best, self.stride)
        self.best = offer
        ask = max(self.limit, self.ask - came_up * self.pace // 100)
        if self.bluff is not None and ask <= self.bluff:
            self.ask, self.bluff = self.bluff, None
            return "bluffs"
        before, self.ask = self.ask, ask
        return "moves" if ask < before else "stays"

    def needed(self, ask: int) -> int:
        """Return by how much the agent must come up for the counterpart to come down from `ask` to its limit."""
        return -(-100 * (ask - self.limit) // self.pace)


class NegotiationEnv(TextEnv):
    """Agree on a price with somebody whose limit is not known, and get as much of the surplus as can be.

    ## Description
    The agent buys or sells one thing and knows what it is worth to itself; the counterpart (scripted) has a limit of
    its own that it never tells. Between the two lies a surplus. The counterpart comes down only as far as the agent
    comes up, at a pace of its own; who comes up a long way at once has given away what is too much. It loses patience
    with whoever does not move, and may say that something is its last word when it is not. Teaches to begin low, to
    concede in steps, to watch what a concession brings, and to see where the other's limit is.

    ## Observation
    First what is traded, what it is worth, what the counterpart asks, and how many messages there are. Then the
    counterpart's replies with its present price. After a malformed reply a readable error.

    ## Action
    `<answer>120</answer>` offers a price, `<answer>accept</answer>` takes the counterpart's present one, and
    `<answer>leave</answer>` ends without a deal. Plain words are answered with the present price, and move nothing.

    ## Reward
    `surplus` (weight 1): with a deal, the agent's share of the surplus, (worth − price) / (worth − limit) for a
    buyer: 1 at the counterpart's limit, 0 at the agent's own worth, below 0 at a loss, and never below −1. Without a
    deal 0. `malformed` (weight -0.1): 1 for a reply that is broken, empty, or answers with something else. The
    episode is a success if the share is at least 0.8.

    The most that can be had is the whole surplus: begin at the lowest offer that is taken seriously, come up until
    the counterpart has come down to its limit, and take that. Every problem leaves room for it.

    ## Episode End
    Terminates with a deal, or when one side leaves. Truncated after `max_turns` messages, without a deal.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): the counterpart comes down further than the agent comes up, and is patient;
      "medium": about as far; "hard": less far, with little patience and a last word that is none.
    - `max_turns`: 9, 9 and 8 by default.
    - `reset(options={"problem": {"role": "buyer", "item": "a sofa", "worth": 500, "reserve": 400, "ask": 480,
      "floor": 300, "pace": 100, "stride": 30, "patience": 2, "bluff": 0}})`: the rules are those of `Counterpart`.

    ## Version History
    - v0: first version.
    """

    # A plan that looks at nothing but the first observation (equal steps from the lowest serious offer halfway to one's
    # own worth, `accept` in the last message) does well: 100%, 93% and 25%; to 80% of the way 90%, 81% and 77%. It is
    # no guess, and the steps are what is to be learned; what the counterpart answers matters for the rest.
    # Who offers prices drawn evenly from what is taken seriously up to its own worth is a success in under 1% of
    # 1,000 problems a level; in 12%, 11% and 5% if they are offered in order, lowest first. Taking the first price
    # never is.
    difficulties = {
        "easy": Difficulty(
            "a counterpart that comes down further",
            chance_rate=0.15,
            settings={"paces": (130, 220), "patience": 3, "turns": 9},
        ),
        "medium": Difficulty(
            "a counterpart that comes down as far",
            chance_rate=0.15,
            settings={"paces": (80, 120), "patience": 2, "turns": 9},
        ),
        "hard": Difficulty(
            "a firm counterpart that bluffs",
            chance_rate=0.1,
            settings={"paces": (45, 80), "patience": 1, "bluffs": True, "turns": 8},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 9
    problem_fields = {
        "role": str,
        "item": str,
        "worth": int,
        "reserve": int,
        "ask": int,
        "floor": int,
        "pace": int,
        "stride": int,
        "patience": int,
        "bluff": int,
    }
    reward_weights = {"surplus": 1.0, "malformed": -0.1}
    instructions = (
        "You negotiate about a price. Reply with <answer>120</answer> to offer 120, with <answer>accept</answer> to "
        "take the other side's present price, or with <answer>leave</answer> to end without a deal."
    )

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

    def generate(self) -> dict[str, Any]:
        """Draw what is traded, both limits, and how the counterpart behaves, such that its limit can be reached."""
        rng, settings = self.np_random, self.settings
        draws: Callable[[], float] = chain(rng.random(12).tolist(), iter(rng.random, None)).__next__

        def between(low: int, high: int) -> int:
            return low + int(draws() * (high - low + 1))

        is_buyer = draws() < 0.5
        surplus = between(60, 200)
        gap = surplus * between(65, 125) // 100
        pace = between(*settings["paces"])
        bluff = gap * between(25, 60) // 100 if "bluffs" in settings else 0
        # What the agent must come up by at most; a bluff breaks its way into two, each rounded up.
        need = -(-100 * gap // pace) + 2
        room = need + need * between(8, 25) // 100
        reserve = room + between(50, 500) if is_buyer else gap + surplus + between(50, 500)
        sign = 1 if is_buyer else -1
        return {
            "role": "buyer" if is_buyer else "seller",
            "item": _ITEMS[between(0, len(_ITEMS) - 1)],
            "worth": reserve + sign * surplus,
            "reserve": reserve,
            "ask": reserve + sign * gap,
            "floor": reserve - sign * room,
            "pace": pace,
            "stride": max(2, need * between(25, 45) // 100),
            "patience": settings["patience"],
            "bluff": reserve + sign * bluff if bluff else 0,
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse what leaves no surplus, or a limit that cannot be reached."""
        prices = [problem[name] for name in ("worth", "reserve", "ask", "floor")]
        if problem["role"] not in ("buyer", "seller"):
            raise InvalidActionError('its role is "buyer" or "seller"')
        if not all(0 < price <= _MOST for price in prices) or not 0 <= problem["bluff"] <= _MOST:
            raise InvalidActionError(f"its prices must be from 1 to {_MOST}")
        if not (1 <= problem["pace"] <= 1_000 and 0 <= problem["patience"] <= 100 and 1 <= problem["stride"] <= _MOST):
            raise InvalidActionError("its pace must be from 1 to 1000 percent, its patience from 0, its stride from 1")
        other = Counterpart(problem)
        worth = other.sign * problem["worth"]
        if not other.limit < worth or not other.floor < other.limit <= other.ask:
            raise InvalidActionError("for a buyer it must have floor < reserve < worth and reserve <= ask")
        if other.bluff is not None and not other.limit < other.bluff < other.ask:
            raise InvalidActionError("the bluff must stand between the reserve and the ask, or be 0")
        if other.floor + other.needed(other.ask) + 1 >= other.limit:
            raise InvalidActionError("the counterpart would not come down to its reserve: the floor is too near")

    def begin(self) -> None:
        """Meet the counterpart."""
        self._other = Counterpart(self.problem)

    def prompt(self) -> str:
        """Return what both sides know."""
        problem = self.problem
        is_buyer = problem["role"] == "buyer"
        verb, loss, far = ("buy", "more", "below") if is_buyer else ("sell", "less", "above")
        other, asks, comes = ("seller", "asks", "down") if is_buyer else ("buyer", "offers", "up")
        moves = "up" if is_buyer else "down"
        return (
            f"You want to {verb} {problem['item']}. It is worth {problem['worth']} to you; with {loss} you make a "
            f"loss. The {other} has a limit that you do not know, and now {asks} {problem['ask']}. Offers {far} "
            f"{problem['floor']} are not taken seriously. The {other} comes {comes} when you come {moves}, as "
            f"far as it likes and no further for a great step than for a middling one, and leaves if you do not move "
            f"too often. You have {self.max_turns} messages. The nearer the price is to "
            f"the {other}'s limit, the better."
        )

    def play(self, action: str) -> Outcome:
        """Let the counterpart react."""
        said = said_by(self, action)
        price = self._other.sign * self._other.ask
        if said.words:
            return self._outcome(f"Let us talk about the price. Mine is {price}.")
        word = (said.answer or "").strip(" .").casefold()
        if word == "accept":
            return self._deal(price)
        if word == "leave":
            return self._outcome("You left. There is no deal.", terminated=True)
        offer = None if said.answer is None else parse_integer(said.answer)
        if offer is None or not 0 < offer <= 10 * _MOST:
            problem = said.problem or "answer with a price as a whole number above 0, accept, or leave"
            return self._outcome(f"Error: {problem}. The present price is {price}.", malformed=True)
        reaction = self._other.hears(offer)
        price = self._other.sign * self._other.ask
        if reaction == "deal":
            return self._deal(offer)
        if reaction == "leaves":
            return self._outcome("We get nowhere. Goodbye. There is no deal.", terminated=True)
        return self._outcome(
            {
                "moves": f"Let us say {price}.",
                "stays": f"My price is {price}.",
                "bluffs": f"{price} is my last word.",
                "insulted": f"That is no serious offer. My price is {price}.",
            }[reaction]
        )

    def _deal(self, price: int) -> Outcome:
        """End with a deal at a price."""
        share = self._share(price)
        said = f"Deal at {price}: {round(100 * share)}% of the surplus is yours."
        return self._outcome(said, surplus=share, terminated=True)

    def _share(self, price: int) -> float:
        worth, reserve = self.problem["worth"], self.problem["reserve"]
        return max(-1.0, (worth - price) / (worth - reserve))

    def _outcome(
        self, said: str, *, surplus: float = 0.0, terminated: bool = False, malformed: bool = False
    ) -> Outcome:
        components = {"surplus": surplus, "malformed": float(malformed)}
        return Outcome(said, components, terminated, surplus >= SUCCESS_SHARE)

    def next_action(self) -> str:
        """Begin at the floor, come up by what is needed, take the price when it is the limit."""
        other = self._other
        price = other.sign * other.ask
        if other.ask == other.limit:
            return format_answer("accept")
        if self.n_turns + 1 >= self.max_turns:
            return format_answer("accept" if self._share(price) > 0 else "leave")
        if other.best is None:
            return format_answer(other.sign * other.floor)
        goal = other.limit if other.bluff is None else other.bluff
        step = max(1, -(-100 * (other.ask - goal) // other.pace))
        return format_answer(other.sign * min(other.best + min(step, other.stride), other.ask - 1))
