"""`llm/Entailment-v0`: does it follow, and if not, when is it false?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.logic.formulas import Formula, formula_pool, is_formula, letters_in, meaning, write

__all__ = ["EntailmentEnv"]

_LETTERS = ("pqrstuvw", "abcdefgh", "uvwxyzab")
_TRIES = 200
_ROUNDS = 2
"""Of looking at where letters stand: after so many, letters that differ have different ranks but for rare cases."""
_Known = tuple[Formula, int, int]
_LINE = re.compile(
    r"(?:[-*\u2022]\s+)?(?:conclusion\s*)?\(?(\d{1,3})\)?\s*(?:->|[:.)\u2013-]|(?=\s(?:follows|does)))\s*(.+)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[;\n]|,\s*(?=\(?\d{1,3}\s*[:.)]\s)")
_DECORATION = re.compile("\\*\\*|[`$\"'\u201c\u201d]")
_FOLLOWS = re.compile(
    r"(?:yes,? )?(?:it |the conclusion )?(?:follows|does follow)(?: from the premises)?", re.IGNORECASE
)
_REFUTED = re.compile(
    r"^(?:(?:no,? )?(?:it |the conclusion )?(?:does not follow|doesn't follow|doesnt follow)"
    r"|(?:a )?counter-?example)\b[\s:,(-]*(?:(?:a )?counter-?example\b[\s:,(-]*)?(?:with |when |if |for example )?",
    re.IGNORECASE,
)
_VALUE = re.compile(r"([a-z])[=:](true|false|t|f|1|0)", re.IGNORECASE)
_TRUE = ("true", "t", "1")


class EntailmentEnv(SingleTurnEnv):
    """Decide what follows from propositional premises, with a counterexample for what does not.

    ## Description
    Some formulas are premises, others are conclusions. A conclusion follows if it is true in every valuation in which
    all premises are. Where it does not, a valuation must be given in which the premises are true and the conclusion is
    false; any such valuation counts. At least one conclusion does not follow, so that saying "follows" throughout is
    never right. Teaches to derive, and to refute by example.

    ## Observation
    The signs, the premises and the numbered conclusions. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    `<answer>1: follows; 2: p=true q=false r=true</answer>`: one line (or part between semicolons) for each conclusion,
    with the values of all letters where it does not follow. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all verdicts are right and every counterexample is one. `malformed`
    (weight -0.1): 1 for a reply without an answer, with broken tags, or whose answer does not say "follows" or give a
    value to each letter for every conclusion.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): three letters, two premises, two conclusions; "medium": four letters, three
      premises, three conclusions; "hard": five letters, four premises, four conclusions; "expert": eight letters,
      eight premises, twelve conclusions.
    - `reset(options={"problem": {"letters": "pq", "premises": [["if", "p", "q"]], "conclusions": [["if", "q", "p"],
      ["or", ["not", "p"], "q"]]}})` asks given questions. Formulas: a letter, `["not", f]`, `["and", f, g]`, `["or", f,
      g]`, `["if", f, g]`, `["iff", f, g]`.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the best constant answer: "follows" for some, one and the same valuation for the others.
    # Measured 5%, 1.9%, 0.8%, 0%.
    difficulties = {
        "easy": Difficulty("three letters", chance_rate=0.07, settings={"letters": 3, "premises": 2, "conclusions": 2}),
        "medium": Difficulty(
            "four letters", chance_rate=0.03, settings={"letters": 4, "premises": 3, "conclusions": 3}
        ),
        "hard": Difficulty("five letters", chance_rate=0.01, settings={"letters": 5, "premises": 4, "conclusions": 4}),
        "expert": Difficulty(
            "eight letters",
            chance_rate=0.001,
            settings={"letters": 8, "premises": 8, "conclusions": 12},
            expected_hard="Twelve conclusions are each proved, or refuted by one of the few among 256 valuations in "
            "which eight premises are true; at one wrong verdict in 17, 48% are right throughout.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "formulas are compared without their letters' names, so that no problem is in both splits"
    problem_fields = {"letters": str, "premises": list, "conclusions": list}
    instructions = (
        "For each conclusion, write its number and the word follows if it follows from the premises. If it does not "
        "follow, write its number and a value for every letter, such that all premises are true and the conclusion is "
        "false. Write semicolons between the conclusions."
    )
    answer_example = "1: follows; 2: p=true q=false; 3: follows"

    def generate(self) -> dict[str, Any]:
        """Draw premises that can be true, and conclusions: some follow, and at least one does not."""
        random, n = self.np_random.random, self.settings["letters"]
        letters, every = pick(random, _LETTERS)[:n], (1 << 2**n) - 1
        pool = formula_pool(letters)
        while True:
            premises = sample(random, pool, self.settings["premises"])
            models = every
            for _, truth, _ in premises:
                models &= truth
            if not 1 < models.bit_count() <= 2 ** (n - 1) or not all(size for _, _, size in premises):
                continue
            if len(set().union(*(letters_in(formula) for formula, _, _ in premises))) == n:
                break
        count = self.settings["conclusions"]
        refutable = set(sample(random, range(count), between(random, 1, count)))
        alone = [truth for _, truth, _ in premises]
        conclusions = [_draw_conclusion(random, pool, alone, models, 2**n, i not in refutable) for i in range(count)]
        return {"letters": letters, "premises": [formula for formula, _, _ in premises], "conclusions": conclusions}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse formulas that have the wrong form."""
        letters = problem["letters"]
        if not re.fullmatch(r"[a-z]{1,8}", letters) or len(set(letters)) < len(letters):
            raise InvalidActionError("letters must be 1 to 8 different small letters")
        if not 1 <= len(problem["conclusions"]) <= 100:
            raise InvalidActionError("there must be 1 to 100 conclusions")
        for formula in [*problem["premises"], *problem["conclusions"]]:
            if not is_formula(formula, letters):
                raise InvalidActionError(f"{str(formula)[:60]} is not a formula over {letters}")

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return the formulas without the letters' names: other letters, or another order, make no other problem.

        A letter is told by where it stands: in which formulas, among which other letters, and so on.
        """
        said = [(key, formula) for key in ("premises", "conclusions") for formula in problem[key]]
        ranks = dict.fromkeys(problem["letters"], 0)
        for _ in range(_ROUNDS):
            places: dict[str, list[str]] = {letter: [] for letter in ranks}
            for key, formula in said:
                for letter in letters_in(formula):
                    places[letter].append(f"{key} {_unnamed(formula, {**ranks, letter: -1})}")
            profiles = {letter: sorted(where) for letter, where in places.items()}
            order = sorted(map(str, profiles.values()))
            ranks = {letter: order.index(str(profile)) for letter, profile in profiles.items()}
        return [sorted(_unnamed(f, ranks) for key, f in said if key == part) for part in ("premises", "conclusions")]

    def begin(self) -> None:
        """Find the counterexamples to each conclusion."""
        letters = self.problem["letters"]
        models = (1 << 2 ** len(letters)) - 1
        for premise in self.problem["premises"]:
            models &= meaning(premise, letters)
        self._refuting = [models & ~meaning(conclusion, letters) for conclusion in self.problem["conclusions"]]

    def prompt(self) -> str:
        """Return signs, premises and conclusions."""
        lines = ["~ is not, & is and, | is or (or both), -> is if-then, <-> is if and only if."]
        lines.append(f"Letters: {', '.join(self.problem['letters'])}")
        lines.append("Premises:")
        lines += [f"- {write(premise)}" for premise in self.problem["premises"]]
        lines.append("Conclusions:")
        lines += [f"{i}. {write(conclusion)}" for i, conclusion in enumerate(self.problem["conclusions"], 1)]
        return "\n".join(lines)

    def solution(self) -> str:
        """Return "follows", or the first counterexample, for each conclusion."""
        parts = []
        for i, refuting in enumerate(self._refuting, 1):
            first = (refuting & -refuting).bit_length() - 1
            values = [f"{x}={str(bool(first >> k & 1)).lower()}" for k, x in enumerate(self.problem["letters"])]
            parts.append(f"{i}: {' '.join(values) if refuting else 'follows'}")
        return "; ".join(parts)

    def is_correct(self, answer: str) -> bool:
        """Check the answer to each conclusion."""
        said: dict[int, int | None] = {}
        check_length(answer)
        lines = [line.strip(" .,*") for line in _BETWEEN.split(_DECORATION.sub("", answer).strip(" \n;."))]
        lines = [line for line in lines if line and not (line.endswith(":") and not line[0].isdigit())]
        if len(lines) == len(self._refuting) and not any(map(_LINE.fullmatch, lines)):
            lines = [f"{i}: {line}" for i, line in enumerate(lines, 1)]
        for line in lines:
            match = _LINE.fullmatch(line)
            if match is None or not 1 <= int(match[1]) <= len(self._refuting):
                raise InvalidActionError(f"{line[:40]!r} is not of the form 1: follows, with a conclusion's number")
            if int(match[1]) in said:
                raise InvalidActionError(f"conclusion {match[1]} has two answers")
            said[int(match[1])] = _read_valuation(match[2], self.problem["letters"])
        if len(said) < len(self._refuting):
            raise InvalidActionError(f"the answer has {len(said)} of {len(self._refuting)} conclusions")
        for i, refuting in enumerate(self._refuting, 1):
            valuation = said[i]
            if refuting if valuation is None else not refuting >> valuation & 1:
                return False
        return True


def _draw_conclusion(
    random: Random, pool: Sequence[_Known], premises: list[int], models: int, n_valuations: int, shall_follow: bool
) -> Formula:
    """Draw a conclusion that follows, or one with few counterexamples, which has an example, too.

    Not everything that follows needs all premises; one that follows from a single premise is taken when nothing better
    was found for a while.
    """
    tries = 0
    while True:
        tries += 1
        conclusion, truth, size = pick(random, pool)
        refuting = models & ~truth
        if shall_follow:
            if not refuting and (tries > _TRIES or all(premise & ~truth for premise in premises)):
                return conclusion
        elif refuting and size and 4 * refuting.bit_count() <= n_valuations and (models & truth or tries > _TRIES):
            return conclusion


def _unnamed(formula: Formula, ranks: Mapping[str, int]) -> str:
    """Return a formula with ranks for letters; the sides of "and", "or" and "iff" in the order of texts."""
    if isinstance(formula, str):
        return str(ranks[formula])
    sides = [_unnamed(side, ranks) for side in formula[1:]]
    return f"({formula[0]} {' '.join(sides if formula[0] == 'if' else sorted(sides))})"


def _read_valuation(text: str, letters: str) -> int | None:
    """Return a valuation by its number; None for "follows"."""
    if _FOLLOWS.fullmatch(text.strip()):
        return None
    text = _REFUTED.sub("", text.strip()).strip(" ,.()[]{}")
    if not text:
        raise InvalidActionError("for a conclusion that does not follow, give a value for every letter, such as p=true")
    values: dict[str, bool] = {}
    text = re.sub(r"\s*(?:[=:]|\bis\b|->|\u2192|\\mapsto)\s*", "=", text, flags=re.IGNORECASE)
    for part in re.split(r"\s*(?:,|\band\b|&|\s)\s*", text):
        if not part:
            continue
        match = _VALUE.fullmatch(part)
        if match is None or match[1].lower() not in letters or match[1].lower() in values:
            raise InvalidActionError(f"{part[:40]!r} is not a value of one of {', '.join(letters)}, such as p=true")
        values[match[1].lower()] = match[2].lower() in _TRUE
    if len(values) < len(letters):
        raise InvalidActionError(f"a counterexample needs the values of all of {', '.join(letters)}")
    return sum(1 << i for i, letter in enumerate(letters) if values[letter])
