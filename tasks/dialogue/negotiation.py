"""`llm/Negotiation-v0`: agree on a package with somebody whose costs and limit are not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_answer
from llm_envs.tasks.dialogue.packages import (
    THEMES,
    asked_about,
    best_package,
    check_deal,
    cost_of,
    draw_deal,
    points_of,
    read_package,
    told,
)
from llm_envs.tasks.dialogue.said import said_by

__all__ = ["SUCCESS_SHARE", "NegotiationEnv"]

SUCCESS_SHARE = 0.9
"""Share of what could be had from which a deal is a success."""


class NegotiationEnv(TextEnv):
    """Agree on a package of options with somebody whose costs and limit must be found out.

    ## Description
    Several things have to be settled, each with one of four options. The agent knows how many points each option is
    worth to itself. The counterpart (scripted) has costs for the options and a limit for their sum, both hidden, and
    takes any offer within the limit. Asked about one thing, it tells in words what the options cost it, some by
    comparison with another option. Refusing an offer, it tells what the package costs it and by how much that is too
    much. It refuses few offers and then leaves, so who concedes by a fixed plan rarely finds a good package. Teaches
    to find out what the other side cares for, to give way where that costs least and brings most, and to use what a
    refusal tells.

    ## Observation
    First the things, their options with the points, and how many messages and refusals there are. Then the
    counterpart's replies. After a malformed reply a readable error.

    ## Action
    Plain text is said to the counterpart, who answers when it names one of the things.
    `<answer>wood: oak; lamps: no lamps</answer>` offers a package, an option for each thing;
    `<answer>leave</answer>` ends without a deal.

    ## Reward
    `surplus` (weight 1): with a deal, the agent's share of what could be had: 1 for the best package within the
    counterpart's limit, 0 for the best one that costs the counterpart nothing, and for anything worse. Without a deal
    0. `malformed` (weight -0.1): 1 for a reply that is broken, empty, or offers something that is not a package. The
    episode is a success if the share is at least 0.9.

    ## Episode End
    Terminates with a deal, or when one side leaves. Truncated after `max_turns` messages, without a deal.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): 3 things; "medium": 4; "hard": 5, with three costs told by comparison; "expert":
      7, with eight of these.
    - `max_turns`: 6, 7, 8 and 10 by default: a question for each thing, two offers, and one message more.
    - `reset(options={"problem": {"theme": "kitchen", "things": [0, 3], "own": [[9, 5, 2, 0], [0, 1, 4, 8]], "costs":
      [[7, 3, 1, 0], [0, 2, 3, 9]], "limit": 8, "patience": 1, "likened": []}})`: by place what each option is worth and
      costs; `likened` as in `tasks/dialogue/packages.py`.

    ## Version History
    - v0: first version.
    """

    # Players that ask nothing and make two offers, over 1,000 problems a level. Packages in equal steps of points win
    # 0.215, 0.095, 0.025, 0.015. Keeping what one values most and giving way in the rest: 0.206, 0.123, 0.101, 0.044.
    # The best packages, were costs and limits as they are on average: 0.124, 0.05, 0.022, 0.008. At random: 0.041,
    # 0.017, 0.013, 0.001.
    difficulties = {
        "easy": Difficulty("3 things", chance_rate=0.25, settings={"things": 3, "likened": 0}),
        "medium": Difficulty("4 things", chance_rate=0.18, settings={"things": 4, "likened": 0}),
        "hard": Difficulty("5 things, three comparisons", chance_rate=0.13, settings={"things": 5, "likened": 3}),
        "expert": Difficulty(
            "7 things, eight comparisons",
            chance_rate=0.08,
            settings={"things": 7, "likened": 8},
            expected_hard="Of 16,384 packages one of the best tenth is to be found within a limit that two refusals "
            "tell at most, from costs of which eight are told by comparison: a search in the head that trying by "
            "feeling misses.",
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 6
    problem_fields = {
        "theme": str,
        "things": list,
        "own": list,
        "costs": list,
        "limit": int,
        "patience": int,
        "likened": list,
    }
    reward_weights = {"surplus": 1.0, "malformed": -0.1}
    instructions = (
        "You negotiate. Plain words ask the other side about one thing in each message. Offer a package as "
        "<answer>thing: option; thing: option</answer> with an option for each thing, or reply with "
        "<answer>leave</answer> to end without a deal."
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
            self.max_turns = self.settings["things"] + 3

    def generate(self) -> dict[str, Any]:
        """Draw the points, the costs and the limit."""
        return draw_deal(self.np_random, self.settings["things"], self.settings["likened"], patience=1)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse what leaves nothing to negotiate about."""
        try:
            check_deal(problem)
        except (TypeError, ValueError, IndexError) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its things, points or costs are wrong: {error!r}") from error

    def begin(self) -> None:
        """Meet the counterpart."""
        self._theme = THEMES[self.problem["theme"]]
        known = list(self._theme.things)
        self._names = [known[place] for place in self.problem["things"]]
        self._told: set[int] = set()
        self._limit_told: int | None = None
        self._n_refused = 0

    def prompt(self) -> str:
        """Return what has to be settled, and the rules."""
        other, patience = self._theme.other, self.problem["patience"]
        lines = []
        for name, points in zip(self._names, self.problem["own"], strict=True):
            options = zip(self._theme.things[name], points, strict=True)
            lines.append(f"- {name}: {', '.join(f'{option} ({value})' for option, value in options)}")
        return "\n".join(
            [
                f"Agree with the {other} on {self._theme.what}. These things have to be settled; after each option "
                "stand the points that it is worth to you:",
                *lines,
                f"Each option also costs the {other} something, and there is a limit to what the {other} can bear in "
                f"all. You know neither. If you ask about one thing, the {other} tells what its options cost. The "
                f"{other} takes any offer within the limit, refuses {patience} above it, telling what is too much, "
                f"and leaves with the next one. You have {self.max_turns} messages. Get as many points as can be had.",
            ]
        )

    def play(self, action: str) -> Outcome:
        """Let the counterpart answer, or take or refuse an offer."""
        said = said_by(self, action)
        if said.words:
            return self._outcome(self._answer(said.words))
        if (said.answer or "").strip(" .").casefold() == "leave":
            return self._outcome("You left. There is no deal.", terminated=True)
        if said.answer is None:
            return self._outcome(f"Error: {said.problem}.", malformed=True)
        try:
            package = read_package(self._theme, self._names, said.answer)
        except InvalidActionError as refusal:
            return self._outcome(f"Error: {refusal}.", malformed=True)
        cost, limit = cost_of(self.problem, package), self.problem["limit"]
        if cost <= limit:
            share = self._share(package)
            return self._outcome(f"Deal: {round(100 * share)}% of what could be had is yours.", share, terminated=True)
        self._n_refused += 1
        if self._n_refused > self.problem["patience"]:
            return self._outcome("We get nowhere. Goodbye. There is no deal.", terminated=True)
        self._limit_told = limit
        costs = [row[place] for row, place in zip(self.problem["costs"], package, strict=True)]
        worst = self._names[costs.index(max(costs))]
        return self._outcome(
            f"No. That would cost me {cost}, which is {cost - limit} too much. What hurts me most is the {worst}."
        )

    def _answer(self, words: str) -> str:
        numbers = asked_about(words, self._names)
        if len(numbers) != 1:
            return "One thing at a time, please." if numbers else f"Ask me about {', '.join(self._names)}; or offer."
        self._told.add(numbers[0])
        return told(self._theme, self._names, self.problem, numbers[0])

    def _share(self, package: list[int]) -> float:
        """Return the share of what could be had, from the best package that costs nothing on."""
        own, costs = self.problem["own"], self.problem["costs"]
        least, most = best_package(own, costs, 0)[0], best_package(own, costs, self.problem["limit"])[0]
        return max(0.0, (points_of(self.problem, package) - least) / (most - least))

    def _outcome(
        self, said: str, surplus: float = 0.0, *, terminated: bool = False, malformed: bool = False
    ) -> Outcome:
        components = {"surplus": surplus, "malformed": float(malformed)}
        return Outcome(said, components, terminated, surplus >= SUCCESS_SHARE)

    def next_action(self) -> str:
        """Ask about each thing, have one offer refused to hear the limit, and offer the best package within it."""
        for number, name in enumerate(self._names):
            if number not in self._told:
                return f"What do the options for the {name} cost you?"
        own = self.problem["own"]
        package = [values.index(max(values)) for values in own]
        if self._limit_told is not None:
            package = best_package(own, self.problem["costs"], self._limit_told)[1]
        chosen = zip(self._names, package, strict=True)
        return format_answer("; ".join(f"{name}: {self._theme.things[name][place]}" for name, place in chosen))
