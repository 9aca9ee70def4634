"""`llm/Blackjack-v0`: Gymnasium's Blackjack as text, several hands in a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymnasiumBlackjack
from gymnasium.envs.toy_text.blackjack import sum_hand, usable_ace

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, in_words

__all__ = ["BlackjackEnv"]

_MAX_SEED = 2**31
_CHOICE = re.compile(
    r"(?:i(?: will| would|'ll| choose to)? )?"
    r"(?:(hit|draw|take(?: a| another)? card)(?: me)?|stick|stand|stay)(?: again)?!?",
    re.IGNORECASE,
)
_ALLOWED = 0.02
"""The most that a player may give away a hand, on average, at the easy level. It leaves room for slips."""
_ALLOWED_OF_TABLES = 0.002
"""The same at the medium and hard levels, where a simple table by the dealer's card (Sutton and Barto's, rounded) gives
away 0.0008."""
_FACTOR = 4.0
"""How much more than its loss a decision costs: good play and poor play differ by less than a quarter of a hand."""
_TINY = 1e-9
"""Sums of nothing given away may differ from 0 by less."""
_CARDS = ((1, 1 / 13), *((value, 1 / 13) for value in range(2, 10)), (10, 4 / 13))
"""Value of a card (an ace is 1) and its probability, from an endless deck."""


class BlackjackEnv(GameEnv):
    """Play hands of Blackjack against the dealer; the score counts good decisions, not luck.

    ## Description
    Teaches to decide under uncertainty by the odds: when another card is more likely to help than to bust, given what
    the dealer shows. The rules are those of Gymnasium's Blackjack (Sutton and Barto, example 5.1): no splitting,
    doubling or insurance, a natural counts as any 21, equal sums are a draw.

    ## Observation
    First the rules and the first hand. After each reply its result, the present hand, the hands that are over, and the
    replies that are left.

    ## Action
    `<answer>hit</answer>` or `<answer>stick</answer>`. "Hit me.", "I stand" and the like are understood. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `skill` (weight 1): at the end of a hand 1 less four times what its decisions gave away, but at least -1, divided by
    the number of hands. A decision gives away the expected result of the best decision less its own; a hand won counts
    1, a hand lost -1. This is the hand's result with the luck of the cards taken out. Hands are drawn again if one can
    stick from some sum on, whatever the dealer has, and succeed. `malformed` (weight -0.1): 1 for a reply that is
    neither hit nor stick. Success is that all hands were played and at most 0.02 a hand was given away (0.002 at the
    medium and hard levels, 0.0005 at the expert level).

    ## Episode End
    Terminates after the last hand. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no shuffle of the cards is in both. All hands are of one kind, so that the same first
      hand can begin problems of both.
    - `difficulty`: "easy" (default): 5 hands, both cards of the dealer's are shown; "medium": 10 hands, one card of
      the dealer's is shown; "hard": 20 hands, likewise, and the player adds up the cards; "expert": 40
      hands, both cards are shown, the player adds up, and at most 0.0005 a hand may be given away. The oracle's play is
      the best there is for the expected result, and gives nothing away.
    - `max_turns`: the number of replies, if it is to be another than 25, 50, 80 and 160.
    - `reset(options={"problem": {"seed": 1}})` plays the hands of a given seed of Gymnasium's environment.

    ## Version History
    - v0: first version.
    """

    # Always sticking, and sticking from some sum on, whatever the dealer has, never succeed: such hands are drawn
    # again. Sticking from 15 on would succeed in 0.17, 0.52, 0.65 and 0. Always sticking earns 0.3 to 0.5.
    difficulties = {
        "easy": Difficulty(
            "5 hands, the dealer's cards are open",
            chance_rate=0.06,
            n_problems=_MAX_SEED,
            settings={"hands": 5, "is_open": True, "has_sums": True, "turns": 25, "allowed": _ALLOWED},
        ),
        "medium": Difficulty(
            "10 hands, one card of the dealer's is open",
            chance_rate=0.01,
            n_problems=_MAX_SEED,
            settings={"hands": 10, "is_open": False, "has_sums": True, "turns": 50, "allowed": _ALLOWED_OF_TABLES},
        ),
        "hard": Difficulty(
            "20 hands, one card of the dealer's is open, no sums",
            chance_rate=0.005,
            n_problems=_MAX_SEED,
            settings={"hands": 20, "is_open": False, "has_sums": False, "turns": 80, "allowed": _ALLOWED_OF_TABLES},
        ),
        "expert": Difficulty(
            "40 hands, the dealer's cards are open, no sums, next to nothing may be given away",
            chance_rate=0.002,
            n_problems=_MAX_SEED,
            settings={"hands": 40, "is_open": True, "has_sums": False, "turns": 160, "allowed": 0.0005},
            expected_hard="With both of the dealer's cards open, the tables that are known by heart do not hold: "
            "close decisions are worked out over the dealer's draws. A good rule of thumb (stick from 13 on, from 12 "
            "where the dealer has 12 to 16, from 17 where the dealer has 7 to 11) succeeds in 40%.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "hands are drawn until no rule that does not look at the dealer's cards succeeds"
    reward_weights = {"skill": 1.0, "malformed": -0.1}
    min_return = -1.5  # -1 in every hand, and the most that malformed replies cost
    problem_fields = {"seed": int}
    instructions = "Play Blackjack. In each reply, answer with one word: hit or stick."
    answer_example = "hit"

    def generate(self) -> dict[str, Any]:
        """Draw the seed of the cards, until no rule that does not look at the dealer's cards succeeds."""
        table = GymnasiumBlackjack(natural=False, sab=False)
        while True:
            seed = int(self.np_random.random() * _MAX_SEED)
            if not any(self._is_enough(table, seed, least) for least in _BLIND_RULES):
                return {"seed": seed}

    def _is_enough(self, table: GymnasiumBlackjack, seed: int, least: tuple[int, int]) -> bool:
        """Whether it succeeds to stick from these sums on, without and with an ace that counts 11."""
        left = self.settings["allowed"] * self.settings["hands"]
        table.reset(seed=seed)
        for _ in range(self.settings["hands"]):
            is_over = False
            while not is_over:
                choice = "stick" if sum_hand(table.player) >= least[bool(usable_ace(table.player))] else "hit"
                worth = _worth(table, self.settings["is_open"])
                left -= max(worth.values()) - worth[choice]
                if left < -_TINY:
                    return False
                is_over = table.step(int(choice == "hit"))[2]
            table.reset()
        return True

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seed that Gymnasium does not take."""
        if not 0 <= problem["seed"] < _MAX_SEED:
            raise InvalidActionError(f"its seed must be at least 0 and below {_MAX_SEED}")

    def begin(self) -> None:
        """Deal the first hand."""
        self._table = GymnasiumBlackjack(natural=False, sab=False)
        self._table.reset(seed=self.problem["seed"])
        self._results: list[int] = []
        self._given_away: list[float] = [0.0]
        """The loss by the decisions of each hand, the present one last."""

    def prompt(self) -> str:
        """Return the rules and the first hand."""
        dealer = "both of the dealer's cards" if self.settings["is_open"] else "one of the dealer's two cards"
        return (
            f"Play {in_words(self.settings['hands'], 'hand')} of Blackjack. Cards count their number, J, Q and K count "
            "10 and are written as 10, an ace A counts 11, or 1 if the sum would be over 21 otherwise; every card is "
            f"drawn from a full deck. You get two cards and see {dealer}. hit: you get another card, and lose at once "
            "if your sum is over 21. stick: the dealer draws until the sum is 17 or more; if it is over 21 you win, "
            "else the higher sum wins, and equal sums are a draw. You cannot split, double or insure. A hand "
            "won counts 1, a hand lost -1. Your decisions are scored, not your luck: what each gives away is the "
            "expected result of the best decision less that of your own. Give away at most "
            f"{self.settings['allowed']} a hand on average. "
            f"You have {in_words(self.max_turns, 'reply')}.\n{self._shown()}"
        )

    def _shown(self) -> str:
        table, shows_sum = self._table, self.settings["has_sums"]
        dealer = f"{_cards(table.dealer[:1])} and one hidden"
        if self.settings["is_open"]:
            dealer = _cards(table.dealer, shows_sum)
        return (
            f"Hand {len(self._results) + 1} of {self.settings['hands']}. Your cards: {_cards(table.player, shows_sum)}."
            f" The dealer's cards: {dealer}."
        )

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        text = f"Error: {problem}. {self.turns_left()}"
        return Outcome(text, {"skill": 0.0, "malformed": 1.0})

    def move(self, answer: str) -> Outcome:
        """Hit or stick; deal the next hand where one is over."""
        named = _CHOICE.fullmatch(" ".join(answer.split()))
        if named is None:
            raise InvalidActionError("the answer is neither hit nor stick")
        choice = "hit" if named[1] else "stick"
        table, worth = self._table, _worth(self._table, self.settings["is_open"])
        self._given_away[-1] += max(worth.values()) - worth[choice]
        _, result, is_over, _, _ = table.step(int(choice == "hit"))
        if not is_over:
            return Outcome(f"{self._shown()}\n{self.turns_left()}", {"skill": 0.0, "malformed": 0.0})
        self._results.append(int(result))
        note = f"Your cards: {_cards(table.player, True)}."
        if choice == "stick":
            note += f" The dealer's cards: {_cards(table.dealer, True)}."
        note += f" {('A draw', 'You win', 'You lose')[int(result)]}. The result is {sum(self._results):+d}."
        n_hands = self.settings["hands"]
        components = {"skill": max(-1.0, 1.0 - _FACTOR * self._given_away[-1]) / n_hands, "malformed": 0.0}
        if len(self._results) == n_hands:
            return Outcome(note, components, True, sum(self._given_away) <= self.settings["allowed"] * n_hands + _TINY)
        table.reset()
        self._given_away.append(0.0)
        return Outcome(f"{note}\n{self._shown()}\n{self.turns_left()}", components)

    def legal_answers(self) -> Sequence[str]:
        """Return both choices."""
        return "hit", "stick"

    def next_action(self) -> str:
        """Hit where that is worth more on average."""
        worth = _worth(self._table, self.settings["is_open"])
        return self.write_answer("hit" if worth["hit"] > worth["stick"] else "stick")


_BLIND_RULES = ((0, 0), *((hard, soft) for hard in range(12, 18) for soft in (17, 18)))
"""From which sums on a player sticks who does not look at the dealer's cards, without and with a usable ace."""


def _worth(table: GymnasiumBlackjack, is_open: bool) -> dict[str, float]:
    """Return the expected result of each decision, with the best play after it, by what the player sees."""
    total, has_ace = int(sum_hand(table.player)), bool(usable_ace(table.player))
    dealer = _dealer_from(tuple(sorted(table.dealer))) if is_open else _dealer_showing(table.dealer[0])
    return {"hit": _worth_of_hit(total, has_ace, dealer), "stick": _worth_of_stick(total, dealer)}


def _cards(cards: Sequence[int], shows_sum: bool = False) -> str:
    text = " ".join("A" if card == 1 else str(card) for card in cards)
    return f"{text} (sum {sum_hand(list(cards))})" if shows_sum else text


Sums = tuple[tuple[int, float], ...]
"""Sum at which the dealer ends (0: over 21), and its probability."""


@lru_cache(maxsize=4096)
def _dealer_from(cards: tuple[int, ...]) -> Sums:
    """Return how the dealer ends who has these cards and draws below 17."""
    total = sum_hand(list(cards))
    if total >= 17:
        return ((int(total) if total <= 21 else 0, 1.0),)
    sums: dict[int, float] = {}
    for card, share in _CARDS:
        for end, probability in _dealer_from(tuple(sorted((*cards, card)))):
            sums[end] = sums.get(end, 0.0) + share * probability
    return tuple(sums.items())


@lru_cache(maxsize=16)
def _dealer_showing(card: int) -> Sums:
    """Return how the dealer ends of whose two cards one is seen."""
    sums: dict[int, float] = {}
    for hidden, share in _CARDS:
        for end, probability in _dealer_from(tuple(sorted((card, hidden)))):
            sums[end] = sums.get(end, 0.0) + share * probability
    return tuple(sums.items())


def _worth_of_stick(total: int, dealer: Sums) -> float:
    """Return the expected result of sticking."""
    return sum(probability * ((total > end) - (total < end)) for end, probability in dealer)


@lru_cache(maxsize=16_384)
def _worth_of_hit(total: int, has_usable_ace: bool, dealer: Sums) -> float:
    """Return the expected result of another card and the best play after it."""
    worth = 0.0
    for card, share in _CARDS:
        after, is_usable = total + card, has_usable_ace
        if card == 1 and after + 10 <= 21:
            after, is_usable = after + 10, True
        if after > 21 and is_usable:
            after, is_usable = after - 10, False
        if after > 21:
            worth -= share
        else:
            worth += share * max(_worth_of_stick(after, dealer), _worth_of_hit(after, is_usable, dealer))
    return worth
