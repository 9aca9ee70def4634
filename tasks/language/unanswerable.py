"""`llm/Unanswerable-v0`: answer what notes tell, and say of each other question that it cannot be answered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import between, pick, sample, shuffled

__all__ = ["UnanswerableEnv", "possible_answers"]

_THEMES = (
    ("team", "house", "caretaker", "home town", "mayor", "hobby", "cousin"),
    ("teacher", "choir", "hall", "designer", "birthplace", "locker", "favourite dish"),
    ("ship", "captain", "home port", "river", "bridge", "label", "weight class"),
    ("keeper", "deputy", "village", "church", "painter", "collar", "nickname"),
)
"""The links that lead from one name to the next, in order; some names have the last two, but no question does."""
_N_LINKS = 5
_FILLERS = (5, 6)
_HEADS = (
    *("Bar", "Cor", "Dal", "Fen", "Gor", "Hel", "Jun", "Kas", "Lor"),
    *("Mir", "Nor", "Pel", "Ros", "Sel", "Tam", "Vor", "Wen", "Zal"),
)
_TAILS = ("an", "by", "da", "el", "ga", "is", "ka", "mo", "na", "os", "ra", "sen", "tis", "vik", "wa", "zo")
_NAMES = tuple(map("".join, product(_HEADS, _TAILS)))
_ABSTAIN = "unanswerable"
REASONS = ("missing", "none", "contradiction", "ambiguous")
_LINE = re.compile(r"(?:question |q)?\(?(\d{1,3})(?:\*\*)?\s*[:.)=-](?:\*\*)?\s*(.+)", re.IGNORECASE)
_BREAK = re.compile(r"[;\n]|(?<!question),?\s+(?=(?:\*\*)?\d{1,3}(?:\*\*)?\s?[:.)](?:\*\*)?\s)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:the answer|it|(?:the )?[\w ]+ of \w+) is (?:the )?(\w+)")
_OPEN = re.compile(r"(?:it is |it's )?(?:not answerable|cannot be answered|can't be answered)")
_MOST_FACTS = 400
Fact = Sequence[Any]
"""[number of the link, name, the name it leads to; "" for nowhere]."""


class UnanswerableEnv(SingleTurnEnv):
    """Answer questions about notes, and abstain from exactly those that the notes leave open.

    ## Description
    Notes, in sentences or tables, lead from name to name: the team of Barda is Corvik, the house of Corvik is Fenna.
    Questions ask for "the house of the team of Barda". Half of them, on average, cannot be answered: a step is not told
    (missing), or does not exist, so that the question presupposes something false (none); two notes about a step
    contradict each other (contradiction); or the question could mean several things (ambiguous). At the hard and expert
    levels two notes about one step may lead to the same answer some steps later: then it can be answered all the same,
    so that each chain has to be followed to its end. At the expert level the reason is asked for, too.

    Nothing on the surface tells which questions are open. Each question has a twin of the same form about another name;
    the notes about one of the two are complete and clear, and those about the other are not. A coin decides which of
    the two is asked, so neither the notes nor the words and the length of a question say anything. Teaches to abstain
    when there is a reason, and only then. The expert level, which asks for five chains of four or five steps without a
    slip, should be hard for many models today.

    ## Observation
    The rules, the notes and numbered questions: at least one can be answered, and at least one cannot. After the reply
    "Correct.", "Incorrect." or what was malformed.

    ## Action
    One answer with a line (or part between semicolons) for each question: `<answer>1: Corvik; 2:
    unanswerable</answer>`; at the expert level with the reason, `2: unanswerable, missing`. Lines without numbers are
    read in the order of the questions. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all questions are treated rightly; a right answer and a right abstention count alike. A
    player who always answers earns 0, and so does one who always abstains. A player who reads every answer, but
    abstains in a fixed pattern, wins 17%, 8%, 8% and 4% at the four levels at most. A player who takes the first of two
    notes earns 0; so does, at the hard and expert levels, one who abstains wherever there are two. `malformed` (weight
    -0.1): 1 for a reply without an answer, with broken tags, or whose answer does not speak of every question once.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Problems that differ only in names are in the same split.
    - `difficulty`: "easy" (default): three questions of 1 or 2 steps; "medium": four of 2 or 3 steps; "hard": four of 3
      or 4 steps, with two notes that lead to one answer; "expert": five of 4 or 5 steps, with reasons.
    - `reset(options={"problem": {"theme": 0, "table": false, "several": [1], "facts": [[0, "Ada", "Red"], [1, "Red",
      "Elm"], [1, "Blue", ""]], "questions": [[0, 2, "Ada"], [1, 1, "Blue"]], "reasons": false}})` asks given questions:
      [first link, number of steps, name]. A fact is [link, name, where it leads; "" for nowhere]; links are 0 to 4, and
      two more that are never asked for. `several` are the links of which a name may have several.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a player wins who reads every answer and abstains in a fixed pattern: 1 in 6, 12,
    # 12 and 26. Blind answers win nothing: they know no name.
    difficulties = {
        "easy": Difficulty(
            "3 questions, 1 or 2 steps", 0.17, settings={"n": 3, "steps": (1, 2), "merging": False, "reasons": False}
        ),
        "medium": Difficulty(
            "4 questions, 2 or 3 steps", 0.085, settings={"n": 4, "steps": (2, 3), "merging": False, "reasons": False}
        ),
        "hard": Difficulty(
            "4 questions, 3 or 4 steps, merging ways",
            0.085,
            settings={"n": 4, "steps": (3, 4), "merging": True, "reasons": False},
        ),
        "expert": Difficulty(
            "5 questions, 4 or 5 steps, merging ways, reasons",
            0.04,
            settings={"n": 5, "steps": (4, 5), "merging": True, "reasons": True},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {
        **{"theme": int, "table": bool, "several": list, "facts": list, "questions": list},
        "reasons": bool,
    }
    slow_reset_reason = "each problem draws up to 100 notes with new names"
    instructions = (
        "Answer the questions only from the notes. Write one answer with a line for each question: its number, a "
        "colon, and the name, or the word unanswerable."
    )
    answer_example = "1: Ada\n2: unanswerable"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw pairs of chains, each with one flawed chain, and ask about one of the two."""
        random, n = self.np_random.random, self.settings["n"]
        names = iter(sample(random, _NAMES, len(_NAMES)))
        facts: list[Fact] = []
        questions: list[Fact] = []
        # Of two questions with doubled notes, one can be answered and one cannot; the others are drawn freely.
        flaws = [("doubled", True), ("doubled", False)]
        flaws += [(pick(random, ("missing", "none", "doubled")), random() < 0.5) for _ in range(n - 2)]
        for flaw, is_open in shuffled(random, flaws):
            n_steps = between(random, *self.settings["steps"])
            first = between(random, 0, _N_LINKS - n_steps)
            place = between(random, 0, n_steps - (2 if flaw == "doubled" and self.settings["merging"] else 1))
            starts = [
                self._draw_chain(names, facts, flaw if is_flawed else f"not {flaw}", first, n_steps, place)
                for is_flawed in (True, False)
            ]
            questions.append([first, n_steps, starts[0 if is_open else 1]])
        return {
            "theme": int(random() * len(_THEMES)),
            "table": random() < 0.5,
            "several": sorted(sample(random, range(_N_LINKS), 2)),
            "facts": shuffled(random, facts),
            "questions": questions,
            "reasons": self.settings["reasons"],
        }

    def _draw_chain(self, names: Any, facts: list[Fact], flaw: str, first: int, n_steps: int, place: int) -> str:
        """Add the notes about a chain, flawed at a place or not; return its first name.

        A flawed chain and its twin, which is not flawed, name their first names equally often: where one has a note
        fewer, it has one more that is never asked for.
        """
        random = self.np_random.random
        chain = [next(names) for _ in range(n_steps + 1)]
        facts.append([pick(random, _FILLERS), chain[place], next(names)])
        for i in range(n_steps):
            if i == place and flaw in ("missing", "none"):
                facts.append(
                    [pick(random, _FILLERS), chain[i], next(names)] if flaw == "missing" else [first + i, chain[i], ""]
                )
            else:
                facts.append([first + i, chain[i], chain[i + 1]])
        if not flaw.endswith("doubled"):
            return chain[0]
        merging = self.settings["merging"]
        joint = between(random, place + 2, n_steps) if flaw == "not doubled" and merging else n_steps + 1
        branch = [next(names) for _ in range(place + 1, min(joint, n_steps + 1))]
        branch += [chain[joint]] if joint <= n_steps else []
        if flaw == "doubled" or merging:
            facts.append([first + place, chain[place], branch[0]])
        else:
            facts.append([pick(random, _FILLERS), chain[place], next(names)])
        facts.extend([first + place + 1 + i, a, b] for i, (a, b) in enumerate(pairwise(branch)))
        return chain[0]

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse notes and questions of another form."""
        facts, questions, several = problem["facts"], problem["questions"], problem["several"]
        if not 0 <= problem["theme"] < len(_THEMES):
            raise InvalidActionError(f"the theme must be from 0 to {len(_THEMES) - 1}")
        if not all(type(link) is int and 0 <= link < _N_LINKS for link in several):
            raise InvalidActionError(f"'several' must have links from 0 to {_N_LINKS - 1}")
        if not all(_is_fact(fact) for fact in facts) or len(facts) > _MOST_FACTS:
            raise InvalidActionError(f'facts, {_MOST_FACTS} at most, must be of the form [0, "Ada", "Red"]')
        if any([fact[0], fact[1], ""] in facts and fact[2] for fact in facts):
            raise InvalidActionError("a fact says that there is one, and another that there is none")
        if not 1 <= len(questions) <= 50 or not all(_is_question(question) for question in questions):
            raise InvalidActionError('questions, 1 to 50, must be [first link, number of steps, "name"]')

    def split_key(self, problem: Mapping[str, Any]) -> list[Any]:
        """Return how the chains branch and end, and which are asked about, without the names."""
        after = _by_name(problem["facts"])
        reached = {name for _, _, name in problem["facts"]}
        starts = sorted({(link, name) for link, name in after if name not in reached and link < _N_LINKS})

        def shape(link: int, name: str) -> str:
            if not name or link == _N_LINKS:
                return "0" if not name else "1"
            return f"({','.join(sorted(shape(link + 1, other) for other in after.get((link, name), [])))})"

        asked = sorted(f"{first} {n} {shape(first, name)}" for first, n, name in problem["questions"])
        return [asked, sorted(f"{link} {shape(link, name)}" for link, name in starts), problem["several"]]

    def begin(self) -> None:
        """Find the possible answers to each question."""
        after, several = _by_name(self.problem["facts"]), self.problem["several"]
        self._names = {name.lower() for fact in self.problem["facts"] for name in fact[1:] if name}
        self._answers = [possible_answers(after, several, question) for question in self.problem["questions"]]

    def prompt(self) -> str:
        """Return the rules, the notes and the questions."""
        problem, links = self.problem, _THEMES[self.problem["theme"]]
        several = [links[link] for link in problem["several"]]
        lines = [
            "The notes below are not complete. Nobody and nothing has more than one "
            + ", ".join(links[i] for i in range(_N_LINKS) if i not in problem["several"])
            + (f"; there may be more than one {' or '.join(several)}." if several else "."),
            "Where notes contradict each other, one of them is wrong, and nobody knows which.",
            "A question is unanswerable if a step of it is not told (missing) or does not exist (none). It is also "
            "unanswerable if notes about a step contradict each other (contradiction), or a step could mean more than "
            "one (ambiguous), so that more than one answer is possible. If all that is possible leads to the same "
            "answer, then this is the answer. At least one question can be answered, and at least one is unanswerable.",
        ]
        if problem["reasons"]:
            lines.append(
                f"Say why a question is unanswerable, in the form 2: unanswerable, missing ({', '.join(REASONS)})."
            )
        lines += ["Notes:", *(_tables if problem["table"] else _sentences)(problem, links), "Questions:"]
        for i, (first, n_steps, name) in enumerate(problem["questions"], 1):
            steps = "".join(f"the {links[link]} of " for link in range(first + n_steps - 1, first - 1, -1))
            lines.append(f"{i}. What is {steps}{name}?")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return an answer, or "unanswerable", for each question."""
        parts = []
        for i, (answer, reasons) in enumerate(self._answers, 1):
            why = f", {min(reasons, key=REASONS.index)}" if answer is None and self.problem["reasons"] else ""
            parts.append(f"{i}: {answer or _ABSTAIN + why}")
        return "\n" + "\n".join(parts) + "\n"

    def is_correct(self, answer: str) -> bool:
        """Compare the answer to each question."""
        said: dict[int, str] = {}
        lines = [line for part in _BREAK.split(answer) if (line := part.strip(" .,\t\r*`-"))]
        if len(lines) == len(self._answers) and not any(map(_LINE.fullmatch, lines)):
            lines = [f"{number}: {line}" for number, line in enumerate(lines, 1)]
        for line in lines:
            match = _LINE.fullmatch(line)
            if match is None or not match[1].isascii() or not 1 <= int(match[1]) <= len(self._answers):
                raise InvalidActionError(
                    f"{line.strip()[:40]!r} is not of the form 1: answer, with a question's number"
                )
            if int(match[1]) in said:
                raise InvalidActionError(f"the answer has question {match[1]} twice")
            said[int(match[1])] = _bare(match[2])
        if len(said) < len(self._answers):
            raise InvalidActionError(
                f"the answer has {len(said)} of {len(self._answers)} questions: one answer must have a line for each"
            )
        verdicts = [self._is_right(said[i], *right) for i, right in enumerate(self._answers, 1)]
        return all(verdicts)

    def _is_right(self, said: str, answer: str | None, reasons: frozenset[str]) -> bool:
        if not said.startswith(_ABSTAIN):
            return answer is not None and said == answer.lower()
        why = re.sub(r"\W+", " ", said.removeprefix(_ABSTAIN)).strip()
        if "or" in why.split() or not self._names.isdisjoint(why.split()):
            return False  # an abstention with an answer in reserve
        if self.problem["reasons"] and why not in REASONS:
            raise InvalidActionError(f"the reason of an unanswerable question must be one of {', '.join(REASONS)}")
        return answer is None and (not self.problem["reasons"] or why in reasons)

    def shortcuts(self) -> Mapping[str, str]:
        """Return what players say who abstain always, never, wherever two notes are, or in a pattern."""
        after, n = _by_name(self.problem["facts"]), len(self._answers)
        why = ", contradiction" if self.problem["reasons"] else ""
        first = [_followed(after, question, 0) for question in self.problem["questions"]]
        last = [_followed(after, question, -1) for question in self.problem["questions"]]
        only = [_followed(after, question, None) for question in self.problem["questions"]]
        truth = [answer or f"{_ABSTAIN}, {min(reasons)}" for answer, reasons in self._answers]
        players = {
            "abstains always": [""] * n,
            "never abstains": [a or "nobody" for a in first],
            "takes the first of two notes": first,
            "takes the last of two notes": last,
        }
        if self.settings["merging"]:
            players["abstains wherever two notes are"] = only
        said = {f"who {name}": [a or _ABSTAIN + why for a in answers] for name, answers in players.items()}
        for odd in (0, 1):
            guessed = [a if a and i % 2 == odd else t if not a and i % 2 != odd else "x"
                       for i, (a, t) in enumerate(zip((a for a, _ in self._answers), truth, strict=True))]  # fmt: skip
            said[f"who abstains from every other question, from number {2 - odd} on"] = guessed
        return {name: _as_answer(answers) for name, answers in said.items()}


def possible_answers(
    after: Mapping[tuple[int, str], Sequence[str]], several: Sequence[int], question: Fact
) -> tuple[str | None, frozenset[str]]:
    """Return the answer to a question, or None and the reasons why it is unanswerable.

    Args:
        after: (link, name) -> where the notes say that it leads; [""] for nowhere.
        several: The links of which a name may have several.
        question: [first link, number of steps, name].
    """
    link, n_steps, name = question
    names, reasons = {name}, set[str]()
    is_cut = False
    for step in range(link, link + n_steps):
        following: set[str] = set()
        for each in names:
            leads_to = set(after.get((step, each), ()))
            if leads_to in (set(), {""}):
                reasons.add("none" if leads_to else "missing")
                is_cut = True
            if len(leads_to) > 1:
                reasons.add("ambiguous" if step in several else "contradiction")
            following |= leads_to - {""}
        names = following
    if is_cut or len(names) != 1:
        return None, frozenset(reasons)
    return names.pop(), frozenset()


def _followed(after: Mapping[tuple[int, str], Sequence[str]], question: Fact, which: int | None) -> str:
    """Return where a question leads if the first (0) or last (-1) of two notes is taken; "" if it leads nowhere.

    If `which` is None, it leads nowhere where there are two.
    """
    link, n_steps, name = question
    for step in range(link, link + n_steps):
        found = after.get((step, name), [""])
        name = "" if which is None and len(found) > 1 else found[which or 0]
    return name


def _by_name(facts: Sequence[Fact]) -> dict[tuple[int, str], list[str]]:
    after: dict[tuple[int, str], list[str]] = {}
    for link, name, other in facts:
        after.setdefault((link, name), []).append(other)
    return after


def _sentences(problem: Mapping[str, Any], links: Sequence[str]) -> list[str]:
    lines = []
    for i, (link, name, other) in enumerate(problem["facts"]):
        noun = links[link]
        article = "a" if link in problem["several"] else "the"
        if not other:
            lines.append(f"{name} has no {noun}.")
        elif i % 2:
            lines.append(f"{other} is {article} {noun} of {name}.")
        else:
            lines.append(f"{article.capitalize()} {noun} of {name} is {other}.")
    return [" ".join(lines)]


def _tables(problem: Mapping[str, Any], links: Sequence[str]) -> list[str]:
    lines = []
    for link in range(len(links)):
        rows = [f"{name}: {other or 'none'}" for here, name, other in problem["facts"] if here == link]
        lines += [f"[{links[link]}]", *rows] if rows else []
    return lines


def _as_answer(parts: Sequence[str]) -> str:
    return "<answer>" + "; ".join(f"{i}: {part}" for i, part in enumerate(parts, 1)) + "</answer>"


def _bare(said: str) -> str:
    """Return the name, or "unanswerable" with its reason, of an answer to one question, in small letters."""
    text = said.lower().strip(" .*`'\"\t")
    text = _OPEN.sub(_ABSTAIN, text, count=1) if _OPEN.match(text) else text
    sentence = _SENTENCE.fullmatch(text)
    return sentence[1] if sentence else text


def _is_fact(fact: Any) -> bool:
    if not isinstance(fact, list) or len(fact) != 3 or type(fact[0]) is not int or not 0 <= fact[0] < _N_LINKS + 2:
        return False
    return _is_name(fact[1]) and (fact[2] == "" or _is_name(fact[2]))


def _is_question(question: Any) -> bool:
    if not isinstance(question, list) or len(question) != 3 or not all(type(part) is int for part in question[:2]):
        return False
    first, n_steps, name = question
    return first >= 0 and n_steps >= 1 and first + n_steps <= _N_LINKS and _is_name(name)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"\w{1,30}", name) is not None and name.lower() != _ABSTAIN
