"""`llm/Negotiation-v0`: agree on a package with a counterpart whose costs and limit are hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.dialogue.packages import (
    THEMES,
    asked_for,
    best_package,
    check_deal,
    cost_of,
    draw_deal,
    points_of,
    read_package,
    told,
)
from llm_envs.tasks.dialogue.said import ConversationEnv, read_answer, said_by
from llm_envs.tasks.wording import in_words

__all__ = ["SUCCESS_SHARE", "NegotiationEnv"]

_LEAVE = re.compile(r"(?:i(?: will|'ll)? )?(?:leave|walk away)(?: without a deal)?|no deal", re.IGNORECASE)
SUCCESS_SHARE = 0.9
"""A deal is a success from this share of the possible points on."""


class NegotiationEnv(ConversationEnv):
    """Agree on a package of options with a counterpart whose costs and limit are hidden.

    ## Description
    Several things have to be settled, each with one of four options. The agent knows how many points each option is
    worth to itself. The counterpart (scripted) has costs for the options and a limit for their sum, both hidden, and
    accepts any offer within the limit. If the agent asks about one thing, the counterpart tells the cost of each of
    its options, some by comparison with another option. If it refuses an offer, it tells the cost of the package and
    by how much that is too much. It refuses few offers and then leaves, so a player that concedes by a fixed plan
    rarely finds a good package. Teaches to find out which things matter to the other side, to give way where that
    costs least and brings most, and to use the facts in a refusal.

    ## Observation
    First the things, their options with the points, and how many messages and refusals there are. Then the
    counterpart's replies. After a malformed reply a readable error.

    ## Action
    Plain text goes to the counterpart, who answers if it asks about one of the things, by its name or options.
    `<answer>wood: oak; lamps: no lamps</answer>` offers a package, an option for each thing; commas and line breaks
    between the things are understood, too. `<answer>leave</answer>` ends without a deal.

    ## Reward
    `surplus` (weight 1): with a deal, the agent's share of the possible points: 1 for the best package within the
    counterpart's limit, 0 for the best one that costs the counterpart nothing, and for anything worse. Without a deal
    0. `malformed` (weight -0.1): 1 for a reply that is broken, empty, or offers something that is not a package. The
    episode is a success if the share is at least 0.9.

    ## Episode End
    Terminates with a deal, or when one side leaves. Truncated after `max_turns` messages, without a deal.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): 3 things; "medium": 4; "hard": 5, with three costs told by comparison; "expert":
      7, with eight of these.
    - `max_turns`: 7, 8, 9 and 11 by default: a question for each thing, two offers, one message more, and one that does
      not count.
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
            expected_hard="The player must find one of the best tenth of 16,384 packages, within a limit that at most "
            "two refusals reveal. Eight of the costs are told by comparison. That takes a search in the head; trying "
            "by feeling fails.",
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 7
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
    has_natural_form = False
    instructions = (
        "You negotiate. To ask the other side, write plain text without tags, and ask about one thing in each message. "
        "To make an offer, answer with a package: one option for each thing. To end without a deal, answer with the "
        "word leave."
    )
    answer_example = "wood: oak; lamps: no lamps; payment: at once"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["things"] + 4

    def generate(self) -> dict[str, Any]:
        """Draw the points, the costs and the limit."""
        return draw_deal(self.np_random, self.settings["things"], self.settings["likened"], patience=1)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that leaves nothing to negotiate."""
        try:
            check_deal(problem)
        except (TypeError, ValueError, IndexError) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its things, points or costs are wrong: {error!r}") from error

    def begin(self) -> None:
        """Meet the counterpart."""
        super().begin()
        self._theme = THEMES[self.problem["theme"]]
        known = list(self._theme.things)
        self._names = [known[place] for place in self.problem["things"]]
        self._told: set[int] = set()
        self._limit_told: int | None = None
        self._n_refused = 0

    def written_instructions(self) -> str:
        """Return the system prompt, with an offer of this problem's things as the example."""
        known = list(THEMES[self.problem["theme"]].things.items())
        offer = "; ".join(f"{known[place][0]}: {known[place][1][-1]}" for place in self.problem["things"])
        leave = self.write_answer("leave")
        return f"{self.instructions} Leave in this form: {leave} Make an offer in this form: {self.write_answer(offer)}"

    def prompt(self) -> str:
        """Return the things to settle, and the rules."""
        other, patience = self._theme.other, self.problem["patience"]
        refusals = in_words(patience, "offer")
        lines = []
        for name, points in zip(self._names, self.problem["own"], strict=True):
            options = zip(self._theme.things[name], points, strict=True)
            lines.append(f"- {name}: {', '.join(f'{option} ({value})' for option, value in options)}")
        return "\n".join(
            [
                f"Agree with the {other} on {self._theme.what}. You have to settle these things. The number after each "
                "option is its worth to you in points:",
                *lines,
                f"Each option also costs the {other} something. The costs of all options in an offer must not add up "
                f"to more than a limit. You know neither the costs nor the limit. If you ask about one thing, the "
                f"{other} tells you the cost of each of its options. The {other} accepts any offer within the limit. "
                f"If an offer is above the limit, the {other} refuses it and tells you by how much it is too "
                f"expensive. The {other} refuses {refusals} in this way. If another offer is above the limit, "
                f"the {other} ends the talks and you get no points. You have "
                f"{in_words(self.turns_allowed(), 'message')}. The first question that is not about one thing does not "
                "count. Try to get as many points as possible.",
            ]
        )

    def play(self, action: str) -> Outcome:
        """Let the counterpart answer, or take or refuse an offer."""
        said = said_by(self, action)
        if said.words:
            return self._outcome(self._answer(said.words))
        try:
            if said.answer is None:
                raise InvalidActionError(said.problem)
            package = read_answer(said.answer, self._read)
        except InvalidActionError as refusal:
            return self._outcome(f"Error: {refusal}.", malformed=True)
        if package is None:
            return self._outcome("You left without a deal.", terminated=True)
        cost, limit = cost_of(self.problem, package), self.problem["limit"]
        if cost <= limit:
            share = self._share(package)
            return self._outcome(f"Deal: you get {round(100 * share)}% of the possible points.", share, terminated=True)
        self._n_refused += 1
        if self._n_refused > self.problem["patience"]:
            return self._outcome("That is too expensive again. I end the talks without a deal.", terminated=True)
        self._limit_told = limit
        costs = [row[place] for row, place in zip(self.problem["costs"], package, strict=True)]
        worst = self._names[costs.index(max(costs))]
        return self._outcome(
            f"No. That would cost me {cost}, which is {cost - limit} too much. The most expensive part for me is the "
            f"{worst}."
        )

    def _read(self, answer: str) -> list[int] | None:
        """Read an offer; None if the agent leaves."""
        if _LEAVE.fullmatch(answer):
            return None
        return read_package(self._theme, self._names, answer)

    def _answer(self, words: str) -> str:
        """Tell the costs of the one thing that a message asks about; things told before count only on their own."""
        numbers = asked_for(words, self._theme, self._names, [self._names[number] for number in self._told])
        if len(numbers) != 1:
            known = ", ".join(self._names)
            unclear = "One thing at a time, please." if numbers else f"Ask me about one of {known}, or make an offer."
            return unclear + self.not_understood()
        self._told.add(numbers[0])
        return told(self._theme, self._names, self.problem, numbers[0])

    def _share(self, package: list[int]) -> float:
        """Return the share of the points above those of the best package that costs nothing."""
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
        return self.write_answer("; ".join(f"{name}: {self._theme.things[name][place]}" for name, place in chosen))
