"""`llm/Blackjack-v0`: Gymnasium's Blackjack as text, several hands in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymnasiumBlackjack
from gymnasium.envs.toy_text.blackjack import sum_hand, usable_ace

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_answer
from llm_envs.tasks.games.game import GameEnv, in_words

__all__ = ["BlackjackEnv"]

_MAX_SEED = 2**31
_CARDS = ((1, 1 / 13), *((value, 1 / 13) for value in range(2, 10)), (10, 4 / 13))
"""Value of a card (an ace is 1) and how often it is drawn: from a deck without end."""


class BlackjackEnv(GameEnv):
    """Play hands of Blackjack against the dealer; the result is hands won less hands lost.

    ## Description
    Teaches to decide under uncertainty by the odds: when another card is more likely to help than to bust, given what
    the dealer shows. The rules are those of Gymnasium's Blackjack (Sutton and Barto, example 5.1): no splitting,
    doubling or insurance, a natural counts as any 21, equal sums are a draw.

    ## Observation
    First the rules and the first hand. After each reply what came of it, the present hand, the hands that are over, and
    the replies that are left.

    ## Action
    `<answer>hit</answer>` or `<answer>stick</answer>`. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `net` (weight 1): at the end of a hand 1, 0 or -1, for a win, a draw or a loss, divided by the number of hands.
    `malformed` (weight -0.1): 1 for a reply that is neither hit nor stick. Success is that all hands were played and
    not more of them were lost than won.

    ## Episode End
    Terminates after the last hand. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): 5 hands, both cards of the dealer's are shown; "medium": 10 hands, one card of
      the dealer's is shown; "hard": 20 hands, likewise, and the player adds up the cards. The oracle's play is the best
      there is for the expected result; it earns 0.034, -0.047 and -0.047 on average,
      and succeeds in 55%, 50% and 43%.
    - `max_turns`: the number of replies, if it is to be another than 25, 50 and 80.
    - `reset(options={"problem": {"seed": 1}})` plays the hands of a given seed of Gymnasium's environment.

    ## Version History
    - v0: first version.
    """

    # Measured on 2,000 games each: always sticking, the best of what does not look at the cards, succeeds in 0.36,
    # 0.34, 0.24; hit or stick at random in 0.15, 0.1, 0.04.
    difficulties = {
        "easy": Difficulty(
            "5 hands, the dealer's cards are open",
            chance_rate=0.4,
            n_problems=_MAX_SEED,
            settings={"hands": 5, "is_open": True, "has_sums": True, "turns": 25},
        ),
        "medium": Difficulty(
            "10 hands, one card of the dealer's is open",
            chance_rate=0.36,
            n_problems=_MAX_SEED,
            settings={"hands": 10, "is_open": False, "has_sums": True, "turns": 50},
        ),
        "hard": Difficulty(
            "20 hands, one card of the dealer's is open, no sums",
            chance_rate=0.27,
            n_problems=_MAX_SEED,
            settings={"hands": 20, "is_open": False, "has_sums": False, "turns": 80},
        ),
    }
    default_difficulty = "easy"
    oracle_is_exact = False
    reward_weights = {"net": 1.0, "malformed": -0.1}
    problem_fields = {"seed": int}
    instructions = "Play Blackjack. Reply with hit or stick as <answer>...</answer>."

    def generate(self) -> dict[str, Any]:
        """Draw the seed of the cards."""
        return {"seed": int(self.np_random.random() * _MAX_SEED)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seed that Gymnasium does not take."""
        if not 0 <= problem["seed"] < _MAX_SEED:
            raise InvalidActionError(f"its seed must be at least 0 and below {_MAX_SEED}")

    def begin(self) -> None:
        """Deal the first hand."""
        self._table = GymnasiumBlackjack(natural=False, sab=False)
        self._table.reset(seed=self.problem["seed"])
        self._results: list[int] = []

    def prompt(self) -> str:
        """Return the rules and the first hand."""
        dealer = "both of the dealer's cards" if self.settings["is_open"] else "one of the dealer's two cards"
        return (
            f"Play {in_words(self.settings['hands'], 'hand')} of Blackjack. Cards count their number, J, Q and K count "
            "10 and are written as 10, an ace A counts 11, or 1 if the sum would be over 21 otherwise; every card is "
            f"drawn from a full deck. You get two cards and see {dealer}. hit: you get another card, and lose at once "
            "if your sum is over 21. stick: the dealer draws until the sum is 17 or more; if it is over 21 you win, "
            "else the higher sum wins, and equal sums are a draw. There is no splitting, doubling or insurance. A hand "
            "won counts 1, a hand lost -1; end with a result as high as you can, not below 0. "
            f"You have {self.max_turns} replies.\n{self._shown()}"
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
        return Outcome(text, {"net": 0.0, "malformed": 1.0})

    def move(self, answer: str) -> Outcome:
        """Hit or stick; deal the next hand where one is over."""
        choice = answer.strip().lower().rstrip(".")
        if choice not in ("hit", "stick"):
            raise InvalidActionError("the answer is neither hit nor stick")
        table = self._table
        _, result, is_over, _, _ = table.step(int(choice == "hit"))
        if not is_over:
            return Outcome(f"{self._shown()}\n{self.turns_left()}", {"net": 0.0, "malformed": 0.0})
        self._results.append(int(result))
        note = f"Your cards: {_cards(table.player, True)}."
        if choice == "stick":
            note += f" The dealer's cards: {_cards(table.dealer, True)}."
        note += f" {('A draw', 'You win', 'You lose')[int(result)]}. The result is {sum(self._results):+d}."
        components = {"net": result / self.settings["hands"], "malformed": 0.0}
        if len(self._results) == self.settings["hands"]:
            return Outcome(note, components, True, sum(self._results) >= 0)
        table.reset()
        return Outcome(f"{note}\n{self._shown()}\n{self.turns_left()}", components)

    def next_action(self) -> str:
        """Hit where that is worth more on average."""
        table, is_open = self._table, self.settings["is_open"]
        hand = (int(sum_hand(table.player)), bool(usable_ace(table.player)))
        dealer = _dealer_from(tuple(table.dealer)) if is_open else _dealer_showing(table.dealer[0])
        return format_answer("hit" if _worth_of_hit(*hand, dealer) > _worth_of_stick(hand[0], dealer) else "stick")


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
