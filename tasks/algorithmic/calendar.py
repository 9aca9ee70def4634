"""`llm/Calendar-v0`: weekdays, days between dates, the n-th weekday of a month."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import read_integer
from llm_envs.tasks.algorithmic.lists import check_length, without_markers
from llm_envs.tasks.draws import Random, between, pick
from llm_envs.tasks.wording import in_words

__all__ = ["CalendarEnv", "answer_to"]

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "December",
)
_NTH = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", -1: "last"}
_ISO = re.compile(r"(\d{1,4})[-/](\d{1,2})[-/](\d{1,2})", re.ASCII)
_MONTH = "|".join(rf"{name[:3]}(?:{name[3:]})?\.?" for name in _MONTHS)
_LONG_DATE = re.compile(
    rf"\b(?:(?P<month>{_MONTH})\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?|"
    rf"(?P<day_too>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month_too>{_MONTH}),?)\s+(?P<year>\d{{1,4}})\b",
    re.ASCII | re.IGNORECASE,
)
"""March 15, 2024 or 15th of March 2024."""
_DECORATION = re.compile("\\*\\*|[`\"'\u201c\u201d\u2018\u2019]")
_LEAD_IN = re.compile(
    r"^(?:(?:answers?|question)\s*)?(?:\d{1,2}\s*:\s+)?(?:(?:it|[\d-]{8,10}) (?:is|was) )?(?:an? )?", re.IGNORECASE
)
_KINDS: Mapping[str, tuple[str, ...]] = {
    "weekday": ("date",),
    "between": ("from", "to"),
    "shift": ("date", "days"),
    "nth": ("n", "weekday", "month", "year"),
    "shifted nth": ("n", "weekday", "month", "year", "days"),
    "months": ("day", "weekday", "first", "last"),
}


_PLAIN = ("weekday", "between", "shift", "nth")
_SHIFTED = ("weekday", "between", "shift", "shifted nth")


class CalendarEnv(SingleTurnEnv):
    """Answer several questions about dates.

    ## Description
    Each question asks for a weekday, for the number of days between two dates, for the date some days before or after
    another, for the date of, say, the third Friday of a month (or some days from it), or for the number of months
    whose, say, 13th is a Friday. All in the Gregorian
    calendar, also for years before it was introduced. Teaches leap years, lengths of months and counting in sevens.
    Several questions must all be answered rightly, because a single weekday could be guessed.

    ## Observation
    The rules and the questions. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>Friday; 2024-03-15; 120</answer>`: the answers in order, between semicolons, commas or on lines, with or
    without their numbers. Weekdays by their English names (or the first three letters), dates as 2024-03-15 or March
    15, 2024. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if all answers are right. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer has another number of parts, or a part that is not a weekday, date or whole number.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): two questions, years 2000 to 2030, up to 60 days; "medium": three, years 1900 to
      2100, up to 1000 days; "hard": four, years 1000 to 3000, up to 20000 days, also days from the third Friday;
      "expert": twelve, likewise, up to 200000 days, also the months of 20 to 40 years with a Friday, the 13th.
    - `reset(options={"problem": {"questions": [{"kind": "weekday", "date": "2024-03-15"}]}})` asks given questions.
      Other kinds: "between" (`from`, `to`), "shift" (`date`, `days`), "nth" (`n`: 1 to 4, or -1 for the last;
      `weekday`: 0 for Monday; `month`; `year`), "shifted nth" (with `days`, too), "months" (`day`, `weekday`, `first`
      and `last` year).

    ## Version History
    - v0: first version.
    """

    # A weekday is guessed in 1 of 7, as is the date of a third Friday within its week; a number of days more rarely.
    # So the chance rates are bounded by 1 of 7**questions, with a few more easy questions between nearby dates.
    difficulties = {
        "easy": Difficulty(
            "two questions", 0.025, settings={"questions": 2, "years": (2000, 2030), "days": 60, "kinds": _PLAIN}
        ),
        "medium": Difficulty(
            "three questions", 0.005, settings={"questions": 3, "years": (1900, 2100), "days": 1_000, "kinds": _PLAIN}
        ),
        "hard": Difficulty(
            "four questions", 0.001, settings={"questions": 4, "years": (1000, 3000), "days": 20_000, "kinds": _SHIFTED}
        ),
        "expert": Difficulty(
            "twelve questions",
            1e-4,
            settings={"questions": 12, "years": (1000, 3000), "days": 200_000, "kinds": (*_SHIFTED, "months")},
            expected_hard="Every question takes some ten sums over centuries, and two or three of the twelve ask to "
            "count among 240 to 480 months; at one wrong answer in 20 questions, 54% are right throughout.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"questions": list}
    instructions = (
        "Give one answer to each question, in the order of the questions, with semicolons between the answers. An "
        "answer is the name of a weekday, a date as YYYY-MM-DD, or a whole number."
    )
    answer_example = "Friday; 2024-03-15; 120"

    def generate(self) -> dict[str, Any]:
        """Draw questions."""
        random, kinds = self.np_random.random, self.settings["kinds"]
        return {"questions": [self._draw(random, pick(random, kinds)) for _ in range(self.settings["questions"])]}

    def _draw(self, random: Random, kind: str) -> dict[str, Any]:
        years, most = self.settings["years"], self.settings["days"]
        day = date(between(random, *years), 1, 1) + timedelta(between(random, 0, 364))
        if kind == "weekday":
            return {"kind": kind, "date": _iso(day)}
        if kind == "between":
            return {"kind": kind, "from": _iso(day), "to": _iso(day + timedelta(between(random, 20, most)))}
        if kind == "shift":
            days = between(random, 20, most)
            return {"kind": kind, "date": _iso(day), "days": days if random() < 0.6 else -days}
        if kind == "months":
            span = between(random, 20, 40)
            dated = {"first": day.year, "last": day.year + span - 1}
            return {"kind": kind, "day": between(random, 1, 28), "weekday": between(random, 0, 6), **dated}
        n, weekday = pick(random, tuple(_NTH)), between(random, 0, 6)
        question = {"kind": kind, "n": n, "weekday": weekday, "month": day.month, "year": day.year}
        if kind == "shifted nth":
            question["days"] = between(random, 20, 2_000)
        return question

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a question that is not about existing dates."""
        if not 1 <= len(problem["questions"]) <= 50:
            raise InvalidActionError("there must be 1 to 50 questions")
        for question in problem["questions"]:
            kind = str(question.get("kind")) if isinstance(question, dict) else ""
            if kind not in _KINDS or question.keys() != {"kind", *_KINDS[kind]}:
                raise InvalidActionError(f"a question must have a kind, and what that needs: {dict(_KINDS)}")
            try:
                answer_to(question)
            except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
                raise InvalidActionError(f"the question {question} is not about dates from 0001 to 9999") from error

    def begin(self) -> None:
        """Answer the questions."""
        self._answers = [answer_to(question) for question in self.problem["questions"]]

    def prompt(self) -> str:
        """Return the rules and the questions."""
        lines = ["By the Gregorian calendar (also before its introduction):"]
        lines += [f"{i}. {_ask(question)}" for i, question in enumerate(self.problem["questions"], 1)]
        return "\n".join(lines)

    def solution(self) -> str:
        """Return the answers."""
        return "; ".join(self._answers)

    def is_correct(self, answer: str) -> bool:
        """Compare answer by answer."""
        check_length(answer)
        wanted = len(self._answers)
        text = _LONG_DATE.sub(_as_iso, _DECORATION.sub("", answer).strip(" \n.;"))
        parts: list[str] = []
        for separator in (r"[;\n]", r";|\n|,|\band\b"):
            parts = without_markers([part.strip() for part in re.split(separator, text) if part.strip()])
            if len(parts) == wanted:
                return [_read(part) for part in parts] == self._answers
        raise InvalidActionError(f"the answer has {in_words(len(parts), 'part')} for {in_words(wanted, 'question')}")


def answer_to(question: Mapping[str, Any]) -> str:
    """Return the answer to a question: a weekday, a date as YYYY-MM-DD, or a number of days."""
    kind = question["kind"]
    if kind == "weekday":
        return _WEEKDAYS[date.fromisoformat(question["date"]).weekday()]
    if kind == "between":
        return str((date.fromisoformat(question["to"]) - date.fromisoformat(question["from"])).days)
    if kind == "shift":
        return _iso(date.fromisoformat(question["date"]) + timedelta(question["days"]))
    if kind == "months":
        years, weekday = range(question["first"], question["last"] + 1), question["weekday"]
        if not years or weekday not in range(7) or not 1 <= question["day"] <= 28:
            raise ValueError("no such day of months")
        days = (date(year, month, question["day"]) for year in years for month in range(1, 13))
        return str(sum(day.weekday() == weekday for day in days))
    n, weekday, month, year = (question[key] for key in ("n", "weekday", "month", "year"))
    if n not in _NTH or weekday not in range(7):
        raise ValueError("no such weekday of a month")
    first, length = monthrange(year, month)
    day = 1 + (weekday - first) % 7
    day += 7 * (n - 1) if n > 0 else (length - day) // 7 * 7
    return _iso(date(year, month, day) + timedelta(question.get("days", 0)))


def _iso(day: date) -> str:
    return day.isoformat()


def _ask(question: Mapping[str, Any]) -> str:
    kind = question["kind"]
    if kind == "weekday":
        return f"Which weekday is {question['date']}?"
    if kind == "between":
        return f"How many days after {question['from']} is {question['to']}? (The next day is 1 day after.)"
    if kind == "shift":
        days = question["days"]
        return f"Which date is {abs(days)} days {'before' if days < 0 else 'after'} {question['date']}?"
    weekday = _WEEKDAYS[question["weekday"]]
    if kind == "months":
        years = f"January {question['first']} to December {question['last']}"
        return f"Of the months from {years}, how many have a {weekday} as their day number {question['day']}?"
    month = _MONTHS[question["month"] - 1]
    nth = f"the {_NTH[question['n']]} {weekday} of {month} {question['year']}"
    if kind == "nth":
        return f"Which date is {nth}?"
    days = question["days"]
    return f"Which date is {abs(days)} days {'before' if days < 0 else 'after'} {nth}?"


_UNITS = ("day", "days", "week", "weeks", "month", "months", "year", "years")


def _as_iso(match: re.Match[str]) -> str:
    day, month, year = match["day"] or match["day_too"], match["month"] or match["month_too"], match["year"]
    number = next(i for i, name in enumerate(_MONTHS, 1) if name[:3].lower() == month[:3].lower())
    return f"{year}-{number}-{day}"


def _read(part: str) -> str:
    """Return an answer as `answer_to` writes it; raise if it is none of the three."""
    part = _LEAD_IN.sub("", part.strip(" .,")).strip(" .,")
    name = part.lower()
    for weekday in _WEEKDAYS:
        if name in (weekday.lower(), weekday[:3].lower()):
            return weekday
    if match := _ISO.fullmatch(part):
        return f"{int(match[1]):04}-{int(match[2]):02}-{int(match[3]):02}"
    try:
        return str(read_integer(part, units=_UNITS))
    except InvalidActionError as error:
        raise InvalidActionError(f"{part[:40]!r} is not a weekday, a date as YYYY-MM-DD or a whole number") from error
