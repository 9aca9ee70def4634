"""Blind policies: they repeat memorized answers and plans, copy from the prompt, or try the items of a list in order.

They are made from the oracle's play on the train split (`Lesson`). If one of them wins more of the test split than the
declared chance rate, the task can be won without the skill it is meant to teach; `blind_clauses.py` measures that.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random

from llm_envs.parsers import format_answer

__all__ = [
    "QUESTIONS",
    "BlindPolicy",
    "BlindReply",
    "Lesson",
    "PlayedTurns",
    "answer_in",
    "copied_replies",
    "enumerations",
    "equal_steps",
    "learned_replies",
    "listed_items",
    "mask",
    "most_common",
    "plans",
    "questions",
]

_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d]\w*|\S")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|`([^`\n]+)`")
_EXPRESSION = re.compile(r"[(\d][\d\s.,()+\-*/^\u00d7\u00f7\u00b7\u2212]*[\d)]")
_OPERATOR = re.compile(r"[+\-*/^\u00d7\u00f7\u00b7\u2212]")
_FORMULA = re.compile(r"\$([^$\n]+)\$")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

_MOST_WORDS = 64
"""Maximum number of actions to try in order."""
_FEW_WORDS = 16
"""Up to this many actions, `_N_ORDERS` random orders are tried too."""
_N_ORDERS = 120
_MAX_PLANS = 12
"""Maximum number of the oracle's plans to try on other problems."""
_SHARES = (0.5, 0.6, 0.8, 1.0)
"""How far to step from one number of the prompt towards another, as shares of the distance."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode of the oracle, as a learner sees it."""

    prompt: str
    """The first observation."""
    actions: tuple[str, ...]
    observations: tuple[str, ...] = ()
    """The observation before each action, in tasks of several turns."""


BlindReply = Callable[[str], str | None]
"""Prompt to reply, for tasks of one turn; None if the policy has no reply."""
PlayedTurns = Sequence[tuple[str, str, float]]
"""(action, next observation, reward) of each turn so far."""
BlindPolicy = Callable[[str, PlayedTurns, int], str]
"""(prompt, history, turns left) to action."""


def most_common(values: Sequence[str]) -> str:
    """Return the most frequent value; among equally frequent ones, the first."""
    return Counter(values).most_common(1)[0][0]


def mask(text: str) -> str:
    """Return a text with one placeholder for all numbers, and one for all names and quoted words."""
    text = _QUOTED.sub("X", text)
    return " ".join("0" if t[0].isdigit() else "X" if t[0].isupper() else t for t in _TOKEN.findall(text))


def answer_in(action: str) -> str:
    """Return the text inside the answer tags of an action, or all of the action."""
    found = _ANSWER.search(action)
    return (found[1] if found else action).strip()


# One turn.


def learned_replies(lessons: Sequence[Lesson]) -> dict[str, BlindReply]:
    """Return policies that memorize problems and their answers, by name.

    They reply with the most frequent answer; with the answer to problems that differ only in names and numbers; with
    the answer that belongs to a line of the prompt; or with the line that similar problems have in another form.
    """
    usual = most_common([lesson.actions[0] for lesson in lessons])
    by_wording: dict[str, list[str]] = defaultdict(list)
    by_line: dict[str, Counter[str]] = defaultdict(Counter)
    for lesson in lessons:
        by_wording[mask(lesson.prompt)].append(lesson.actions[0])
        for line in set(map(mask, lesson.prompt.splitlines())):
            by_line[line][lesson.actions[0]] += 1
    wordings = {wording: most_common(replies) for wording, replies in by_wording.items() if len(replies) > 1}
    lines = {line: counts.most_common(1)[0] for line, counts in by_line.items() if counts.total() > 2}
    shares = {line: count / by_line[line].total() for line, (_, count) in lines.items()}

    def same_line(prompt: str) -> str | None:
        known = [line for line in dict.fromkeys(map(mask, prompt.splitlines())) if line in shares]
        return lines[max(known, key=lambda line: shares[line])][0] if known else None

    return {
        "the most frequent answer": lambda prompt: usual,
        "the answer of problems with the same wording": lambda prompt: wordings.get(mask(prompt)),
        "the answer that belongs to a line of the prompt": same_line,
        "the line that similar problems have instead": _restored_line(lessons),
    }


def _restored_line(lessons: Sequence[Lesson]) -> BlindReply:
    """Return a policy that replies with a line of the prompt, in its most frequent form among similar problems.

    Problems are similar if their first line is the same. For problems that show a text with one mistake: others, with
    other mistakes, show the right text. Words that differ between problems (names of variables) are numbered in the
    order of appearance.
    """
    groups: dict[str, list[list[str]]] = defaultdict(list)
    for lesson in lessons:
        lines = lesson.prompt.splitlines()
        if len(lines) > 2:
            groups[lines[0]].append(_renamed(lines[1:], {})[0])
    right = {
        first: [most_common(column) for column in zip(*bodies, strict=False)]
        for first, bodies in groups.items()
        if len(bodies) > 2
    }

    def reply(prompt: str) -> str | None:
        first, *lines = prompt.splitlines()
        if first not in right:
            return None
        renamed, names = _renamed(lines, {})
        back = {number: name for name, number in names.items()}
        for seen, usual in zip(renamed, right[first], strict=False):
            if seen != usual:
                line = re.sub(r"\0(\d+)\0", lambda found: back.get(found[0], "x"), usual)
                return format_answer(" ".join(line.split()))
        return None

    return reply


def _renamed(lines: Sequence[str], names: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the lines with each recurring name replaced by its number."""
    counts = Counter(word for line in lines for word in re.findall(r"[^\W\d]\w*", line))
    words = {word for word, count in counts.items() if count > 1 and word not in _KEYWORDS}

    def number(found: re.Match[str]) -> str:
        word = found[0]
        return names.setdefault(word, f"\0{len(names)}\0") if word in words else word

    return [re.sub(r"[^\W\d]\w*", number, line) for line in lines], names


_KEYWORDS = frozenset(
    "False None True and def elif else for if in is len list max min not or range return set str sum while".split()  # noqa: SIM905
)


def copied_replies(answer_template: str) -> dict[str, BlindReply]:
    """Return replies that copy a piece of the prompt as the answer, by name."""

    def numbers(prompt: str) -> list[str]:
        return _NUMBER.findall(prompt)

    def expressions(prompt: str) -> list[str]:
        return [text for text in _EXPRESSION.findall(prompt) if _OPERATOR.search(text[1:])]

    def quoted(prompt: str) -> list[str]:
        return ["".join(groups) for groups in _QUOTED.findall(prompt)]

    def applied(function: str) -> Callable[[str], list[str]]:
        return lambda prompt: [f"{function}({', '.join(numbers(prompt)[:2])})"] if len(numbers(prompt)) > 1 else []

    def last_line(prompt: str) -> list[str]:
        return prompt.strip().splitlines()[-1:]

    def last_sentence(prompt: str) -> list[str]:
        return [re.sub(r"^(what is|find|compute|calculate|evaluate|solve)\b:?", "", text.strip(" .?"), flags=re.I)
                for text in re.split(r"(?<=[.?!:])\s+", prompt.strip())[-1:]]  # fmt: skip

    def copy(pieces: Callable[[str], list[str]], place: int) -> BlindReply:
        def reply(prompt: str) -> str | None:
            found = pieces(prompt)
            if not -len(found) <= place < len(found):
                return None
            return answer_template.replace("...", found[place].strip(), 1)

        return reply

    return {
        "the first number of the prompt": copy(numbers, 0),
        "the second number of the prompt": copy(numbers, 1),
        "the last number of the prompt": copy(numbers, -1),
        "the last expression of the prompt, unchanged": copy(expressions, -1),
        "the first formula of the prompt, unchanged": copy(_FORMULA.findall, 0),
        "the gcd of the first two numbers of the prompt, not computed": copy(applied("\\gcd"), 0),
        "the lcm of the first two numbers of the prompt, not computed": copy(applied("\\operatorname{lcm}"), 0),
        "the first quoted text of the prompt": copy(quoted, 0),
        "the last quoted text of the prompt": copy(quoted, -1),
        "the last line of the prompt": copy(last_line, 0),
        "the question itself": copy(last_sentence, 0),
    }


# Several turns.


def plans(lessons: Sequence[Lesson]) -> dict[str, BlindPolicy]:
    """Return policies that ignore what they read, by name: the oracle's plans and common replies.

    After its plan, a policy plays the oracle's other actions, most frequent first, and then repeats the plan's last.
    """
    words = _vocabulary(lessons)
    distinct = list(dict.fromkeys(lesson.actions for lesson in lessons))[:_MAX_PLANS]
    policies = {
        f"the plan that begins {_short(plan[0])!r} (number {i})": _plan(plan, words) for i, plan in enumerate(distinct)
    }
    longest = max(len(lesson.actions) for lesson in lessons)
    columns = [[lesson.actions[turn] for lesson in lessons if len(lesson.actions) > turn] for turn in range(longest)]
    usual = [most_common(column) for column in columns]
    policies["at each turn the oracle's most frequent reply"] = _plan(usual, words)
    policies |= {f"always {_short(word)!r}": _plan([word], []) for word in words[:6]}
    if 1 < len(words) <= 6:
        for first, second in permutations(words, 2):
            for n in (1, 2):
                policies[f"{_short(first)!r}, {n} times {_short(second)!r}, and again"] = _cycle([first, *[second] * n])
    return policies


def enumerations(lessons: Sequence[Lesson]) -> dict[str, BlindPolicy]:
    """Return policies that go through a list and ignore the observations, by name.

    The lists are the actions that the oracle has used, most frequent first, and the items in the first observation,
    forwards and backwards.
    """
    words = _vocabulary(lessons)
    policies: dict[str, BlindPolicy] = {}
    if len(words) > 1:
        orders = [words]
        if len(words) <= _FEW_WORDS:
            rng = Random(0)
            orders += [rng.sample(words, len(words)) for _ in range(_N_ORDERS)]
        for number, order in enumerate(orders):
            name = ", ".join(map(_short, map(answer_in, order)))
            policies[f"each known action once, in the order {name},"] = _plan(order, [])
            if number <= _N_ORDERS // 4:
                policies[f"each known action until it costs something, in the order {name},"] = _until_refused(order)
    items = listed_items(lessons)
    if items is not None:
        policies["each listed item as the answer, in order"] = _in_order(items, 1)
        policies["each listed item as the answer, the last first"] = _in_order(items, -1)
    return policies


def _vocabulary(lessons: Sequence[Lesson]) -> list[str]:
    """Return all actions of the oracle, most frequent first; nothing if there are too many to try."""
    counts = Counter(action for lesson in lessons for action in lesson.actions)
    return [word for word, _ in counts.most_common()] if len(counts) <= _MOST_WORDS else []


def _short(action: str) -> str:
    text = " ".join(action.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plan(actions: Sequence[str], words: Sequence[str]) -> BlindPolicy:
    whole = [*actions, *(word for word in words if word not in set(actions))]
    return lambda prompt, history, turns_left: whole[min(len(history), len(whole) - 1)]


def _until_refused(actions: Sequence[str]) -> BlindPolicy:
    def policy(prompt: str, history: PlayedTurns, turns_left: int) -> str:
        n_refused = sum(reward < 0 for _, _, reward in history)
        return actions[n_refused % len(actions)]

    return policy


def _cycle(actions: Sequence[str]) -> BlindPolicy:
    return lambda prompt, history, turns_left: actions[len(history) % len(actions)]


def _in_order(items: Callable[[str], list[str]], step: int) -> BlindPolicy:
    def policy(prompt: str, history: PlayedTurns, turns_left: int) -> str:
        found = items(prompt)[::step] or ["?"]
        return format_answer(found[min(len(history), len(found) - 1)])

    return policy


def listed_items(lessons: Sequence[Lesson]) -> Callable[[str], list[str]] | None:
    """Return a function that finds the possible answers in a prompt by the text around the right one, or None."""
    contexts: Counter[tuple[str, str]] = Counter()
    for lesson in lessons:
        answer = re.escape(answer_in(lesson.actions[-1]))
        if not answer or len(answer) > 60:
            continue
        contexts.update({(found[1], found[2]) for found in re.finditer(rf"(\n|..)\b{answer}(\W\W?)", lesson.prompt)})
    known = [context for context, count in contexts.most_common(4) if count >= len(lessons) / 10]
    if sum(contexts[context] for context in known) < len(lessons) / 2:
        return None
    patterns = [re.compile(rf"(?={re.escape(before)}(\w[\w '-]*?){re.escape(after)})") for before, after in known]

    def items(prompt: str) -> list[str]:
        places = [(found.start(), found[1]) for pattern in patterns for found in pattern.finditer(prompt)]
        return list(dict.fromkeys(item for _, item in sorted(places)))[:_MOST_WORDS]

    return items


QUESTIONS = ("How about {}?", "Is it {}?", "{}?")


def questions(items: Callable[[str], list[str]], question: str, is_yes: Callable[[str, str], bool]) -> BlindPolicy:
    """Return a policy that asks about each listed item until it reads a yes, and answers with that item or the next.

    Args:
        items: Finds the items in the prompt.
        question: The question, with {} for the item.
        is_yes: Whether the observation after a question about an item is a yes.
    """

    def policy(prompt: str, history: PlayedTurns, turns_left: int) -> str:
        found = items(prompt) or ["?"]
        for item, (action, observation, _) in zip(found, history, strict=False):
            if action == question.format(item) and is_yes(item, observation):
                return format_answer(item)
        item = found[min(len(history), len(found) - 1)]
        return format_answer(item) if turns_left <= 1 else question.format(item)

    return policy


def equal_steps(lessons: Sequence[Lesson]) -> dict[str, BlindPolicy]:
    """Return policies that step evenly from one number of the prompt towards another, and then close, by name.

    They close with the oracle's most frequent last reply, unless that is a number. Returns nothing for tasks in which
    the oracle does not name several numbers.
    """
    named = [[a for a in lesson.actions if _is_number(answer_in(a))] for lesson in lessons]
    if sum(len(numbers) > 1 for numbers in named) < len(lessons) / 2:
        return {}
    lasts = [lesson.actions[-1] for lesson in lessons if not _is_number(answer_in(lesson.actions[-1]))]
    close = most_common(lasts) if len(lasts) > len(lessons) / 4 else None
    n_numbers = min(3, min(len(set(_NUMBER.findall(lesson.prompt))) for lesson in lessons))
    policies = {}
    for start, goal in permutations(range(n_numbers), 2):
        for share in _SHARES:
            name = f"equal steps from number {start + 1} of the prompt to {share:.0%} of the way to number {goal + 1}"
            policies[name] = _steps(start, goal, share, close)
    return policies


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,15}", text) is not None


def _steps(start: int, goal: int, share: float, close: str | None) -> BlindPolicy:
    def policy(prompt: str, history: PlayedTurns, turns_left: int) -> str:
        if close is not None and turns_left <= 1:
            return close
        numbers = [float(number) for number in dict.fromkeys(_NUMBER.findall(prompt))]
        n_steps = max(1, len(history) + turns_left - 1 - (close is not None))
        part = share * min(1.0, len(history) / n_steps)
        return format_answer(round(numbers[start] + part * (numbers[goal] - numbers[start])))

    return policy
