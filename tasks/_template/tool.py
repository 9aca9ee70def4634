"""`my/Template-v0`: add up what an order costs, with a tool that knows the prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer

__all__ = ["TemplateEnv"]

_ITEMS = ("apple", "bread", "cheese", "dates", "eggs", "flour", "grapes", "honey")


class TemplateEnv(ToolEnv):
    """Add up what an order costs, with a tool that knows the prices.

    ## Description
    Each episode has its own prices, so nobody can know them: the tool `price(item)` returns one at a time. Teaches to
    gather what is missing before answering.

    ## Observation
    First the order, such as "What does this order cost: 3 dates, 2 eggs?". After a call the price, as a message of the
    role "tool"; for an item that the shop does not have "Error: ...". After a malformed reply a readable error.

    ## Action
    A tool call, `<tool_call>{"name": "price", "arguments": {"item": "eggs"}}</tool_call>`, or the final answer,
    `<answer>31</answer>`. Thinking in `<think>...</think>` is allowed before either.

    ## Reward
    `correct` (weight 1): 1 for the right sum. `malformed` (weight -0.1): 1 for each reply that is neither a call nor an
    answer, is broken, calls another tool or with wrong arguments, or answers with no whole number.

    ## Episode End
    Terminates with the first answer that is a whole number. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): two items; "hard": five.
    - `max_turns`: 8 by default.
    - `reset(options={"problem": {"prices": {"eggs": 5}, "order": {"eggs": 2}}})` gives prices and order.

    ## Version History
    - v0: first version.
    """

    # Totals of two items lie between 2 and 1,782; none is drawn more often than once in two hundred.
    difficulties = {
        "easy": Difficulty("two items", chance_rate=0.005, settings={"n_items": 2}),
        "hard": Difficulty("five items", chance_rate=0.005, settings={"n_items": 5}),
    }
    default_difficulty = "easy"
    default_max_turns = 8
    problem_fields = {"prices": dict, "order": dict}
    instructions = "Look up the prices with the tool, then answer with the total, a whole number."
    answer_example = "2345"

    def make_tools(self) -> Sequence[Callable[..., Any]]:
        """Return the tools: typed functions with a docstring; a method sees the episode."""
        return [self.price]

    def price(self, item: str) -> int:
        """Return the price of one piece of an item."""
        if item not in self.problem["prices"]:
            raise InvalidActionError(
                f"the shop does not have the item {item!r}; it has {', '.join(self.problem['prices'])}"
            )
        return int(self.problem["prices"][item])

    def generate(self) -> dict[str, Any]:
        """Draw prices and an order; only `self.np_random` is random here."""
        random = self.np_random.random
        prices = {item: 1 + int(random() * 99) for item in _ITEMS}
        left = list(_ITEMS)
        chosen = [left.pop(int(random() * len(left))) for _ in range(self.settings["n_items"])]
        return {"prices": prices, "order": {item: 1 + int(random() * 9) for item in sorted(chosen)}}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that somebody gives to `reset` and that cannot be played."""
        numbers = [*problem["prices"].values(), *problem["order"].values()]
        if not problem["order"] or not problem["order"].keys() <= problem["prices"].keys():
            raise InvalidActionError("every item of the order must have a price, and there must be one")
        if not all(type(number) is int and number > 0 for number in numbers):
            raise InvalidActionError("prices and amounts must be whole numbers above 0")

    def prompt(self) -> str:
        """Return the question. It must have everything except the prices."""
        amounts = [f"{amount} {item}" for item, amount in self.problem["order"].items()]
        return f"What does this order cost: {', '.join(amounts)}? The tool gives prices for one piece."

    def is_correct(self, answer: str) -> bool:
        """Compare as numbers. `read_integer` refuses any other answer, with an error that a model can learn from."""
        return read_integer(answer) == self._total()

    def next_action(self) -> str:
        """Ask for all prices in one turn, then answer. The oracle uses what the agent was shown, and nothing else."""
        if self.tool_results and all(result.success for result in self.tool_results):
            return self.write_answer(self._total())
        return "\n".join(format_tool_call("price", item=item) for item in self.problem["order"])

    def _total(self) -> int:
        prices, order = self.problem["prices"], self.problem["order"]
        return sum(int(prices[item]) * int(amount) for item, amount in order.items())
