"""The offices of `assistant.py`: who works there, their calendars, the messages, and what should come of them.

An office is plain JSON: the names of the people, Robin's first; events `[day, first half hour, half hours, title,
[people]]`; messages `[sender, subject, kind, details]`, of which the kinds are "meet" (`{"with": [people], "slots":
half hours, "days": [...], "from": half hour, "to": half hour}`), "cancel" and "ask" (`{"event": place}`), and "news"
(`{}`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from llm_envs.errors import InvalidActionError

__all__ = [
    "DAYS",
    "N_SLOTS",
    "Event",
    "as_event",
    "check_office",
    "clock",
    "day_of",
    "draw_office",
    "slot_of",
    "text_of",
    "times_in",
    "wanted_state",
    "without_case",
]

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
N_SLOTS = 16
"""Half hours of a working day, from 9:00 to 17:00."""
_HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_HOUR = rf"(?:2[0-3]|[01]?[0-9]|{'|'.join(_HOURS)})"
_TIME = re.compile(
    rf"(?<![\w:.])(?P<half>half past )?(?P<hour>{_HOUR})(?:(?P<minute>[:.h][0-5][0-9])(?::00)?(?![\d:]))?"
    rf"(?: ?(?P<unit>h|hrs|hours|o['\u2019]clock))?"
    r"(?P<part> ?[ap]\.?m\b| ?noon\b| ?in the (?:morning|afternoon))?(?![\w:])"
    r"|\b(?P<noon>noon|midday)\b|(?<=\bat )(?P<compact>[01][0-9][03]0)(?![\w:])"
)
_DAY = re.compile(r"\b(?:(mon)|(tue)s?|(wed)(?:nes)?|(thu)(?:rs?)?|(fri))(?:day)?s?\b")

Event = tuple[str, int, int, int, frozenset[int]]
"""Title, day, first slot, number of slots, who is there besides Robin."""


# Times.


def clock(slot: int) -> str:
    """Return when a half hour begins, as 09:30."""
    return f"{9 + slot // 2:02d}:{30 * (slot % 2):02d}"


def slot_of(text: str) -> int:
    """Return the half hour of a time that somebody wrote; raise `InvalidActionError` if it is none."""
    match = _TIME.fullmatch(text.strip().casefold())
    slots = [slot for slot in range(N_SLOTS) if match is not None and _clock_of(match) == clock(slot)]
    if not slots:
        raise InvalidActionError(f"the start {text[:20]!r} is not a full or half hour from 09:00 to 16:30")
    return slots[0]


def day_of(text: str) -> int:
    """Return the number of a weekday; raise `InvalidActionError` if it is none."""
    match = _DAY.fullmatch(text.strip().casefold())
    if match is None or match.lastindex is None:
        raise InvalidActionError(f"{text[:20]!r} is none of {', '.join(DAYS)}")
    return match.lastindex - 1


def times_in(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the different weekdays and times that a text names, in their order.

    A time is written as 15:00, 15.00, 15h, "3 PM", "half past two", "three o'clock" or "noon". From one to half past
    five o'clock without "am", "pm" or a leading zero it is the afternoon, since the day ends at 17:00.
    """
    lower = text.casefold()
    days = dict.fromkeys(DAYS[match.lastindex - 1] for match in _DAY.finditer(lower) if match.lastindex)
    clocks = dict.fromkeys(filter(None, map(_clock_of, _TIME.finditer(lower))))
    return tuple(days), tuple(clocks)


def _clock_of(match: re.Match[str]) -> str:
    """Return the time that a match stands for, as 09:30; empty for another number, such as "1h", a duration."""
    if match["noon"]:
        return "12:00"
    if match["compact"]:
        return f"{match['compact'][:2]}:{match['compact'][2:]}"
    if not (match["half"] or match["minute"] or match["unit"] in ("h", "o'clock", "o\u2019clock") or match["part"]):
        return ""
    hour = _HOURS.index(match["hour"]) + 1 if match["hour"] in _HOURS else int(match["hour"])
    if hour < 9 and (match["unit"] in ("h", "hrs", "hours") or (match["minute"] or "").startswith("h")):
        return ""
    part = (match["part"] or "").strip()
    if part and hour <= 12:
        hour = hour % 12 + (0 if part.startswith("a") or "morning" in part else 12)
    elif hour < 6 and not match["hour"].startswith("0"):
        hour += 12
    return f"{hour:02d}:{30 if match['half'] else int((match['minute'] or ':0')[1:]):02d}"


# Offices.

_FIRST_NAMES = ("Ada", "Boris", "Chen", "Dora", "Emil", "Fatou", "Greta", "Hugo", "Iris", "Jamal", "Kate", "Lars")
_LAST_NAMES = (
    "Amari",
    "Berg",
    "Castro",
    "Dietz",
    "Eriksen",
    "Fontana",
    "Gupta",
    "Hahn",
    "Ito",
    "Janda",
    "Kovac",
    "Lindt",
)
_TITLES = ("Budget review", "Call with the bank", "Contract check", "Design talk", "Doctor", "Fire drill", "Handover",
           "Interview", "Lunch with Sam", "Newsletter", "Office tour", "Payroll", "Phone slot", "Planning",
           "Press call", "Reading hour", "Report", "Retrospective", "Safety talk", "School run", "Site visit",
           "Standup", "Taxes", "Training", "Travel booking", "Vendor call", "Wiki clean-up",
           "Workshop prep")  # fmt: skip
_SUBJECTS = ("Aurora launch", "Beta feedback", "Cost overview", "Delta migration", "Event in May", "Fair stand",
             "Grant proposal", "Hiring plan", "Intranet", "Journal article", "Key figures", "Logo options")  # fmt: skip
_NEWS = ("Canteen", "Lift repairs", "New printers", "Parking", "Photo contest", "Welcome")


class _Drawer:
    """Draws an office."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.random: Callable[[], float] = chain(rng.random(400).tolist(), iter(rng.random, None)).__next__
        self.events: list[list[Any]] = []
        self.titles = self.shuffled(_TITLES)

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def add(self, day: int, first: int, n_slots: int, person: int) -> None:
        title = "busy" if person else self.titles.pop() if self.titles else f"Note {len(self.events)}"
        self.events.append([day, first, n_slots, title, [person]])

    def fill(self, person: int, day: int, kept: range) -> None:
        """Draw what somebody does on a day, but for the half hours that are kept free."""
        first = self.below(2)
        while first < N_SLOTS - 1:
            n_slots = 1 + self.below(3)
            is_kept = first < kept.stop and kept.start < first + n_slots
            if first + n_slots <= N_SLOTS and not is_kept and self.random() < 0.55:
                self.add(day, first, n_slots, person)
            first += n_slots + self.below(3)

    def block(self, day: int, people: list[int], length: int, starts: range) -> None:
        """See to it that the people cannot meet at any of these starts."""
        taken = _taken(self.events, day, people)
        for first in starts:
            if not taken & set(range(first, first + length)):
                self.add(day, first, 1, people[self.below(len(people))])
                taken.add(first)


def draw_office(rng: np.random.Generator, n_others: int) -> dict[str, Any]:
    """Draw an office in which Robin is to meet `n_others` people; one more works there.

    The time of the meeting is drawn first, evenly, and all that would be earlier is taken.
    """
    draw = _Drawer(rng)
    firsts, lasts = draw.shuffled(_FIRST_NAMES), draw.shuffled(_LAST_NAMES)
    people = ["Robin Vale", *(f"{firsts[place]} {lasts[place]}" for place in range(n_others + 1))]
    days = draw.shuffled(range(5))[: 1 if n_others < 3 else 2 if n_others == 3 else 3]
    length = 1 + draw.below(3)
    low = draw.below(5) if n_others > 1 else 0
    high = N_SLOTS - (draw.below(3) if n_others > 1 else 0)
    place = draw.below(len(days))
    start = low + draw.below(high - length - low + 1)
    for person in range(len(people)):
        for day in range(5):
            if day in days or draw.random() < 0.3:
                draw.fill(person, day, range(start, start + length) if day == days[place] else range(0))
    invited = list(range(n_others + 1))
    for day in days[:place]:
        draw.block(day, invited, length, range(low, high - length + 1))
    draw.block(days[place], invited, length, range(low, start))
    if n_others >= 3 and draw.random() < 0.1:
        draw.add(days[place], start, 1 + draw.below(length), 0)  # Now and then this is what is called off.
    draw.events.sort(key=lambda event: event[:2])  # so that nothing shows in the numbers of events
    subjects = draw.shuffled(_SUBJECTS)
    details = {"with": invited[2:], "slots": length, "days": days, "from": low, "to": high}
    messages: list[list[Any]] = [[1, subjects[0], "meet", details]]
    if n_others >= 3:
        own = draw.shuffled(number for number, event in enumerate(draw.events) if 0 in event[4])
        at_start = [number for number in own if draw.events[number][:2] == [days[place], start]]
        own = [*at_start, *own]  # what was put where the meeting could be is called off
        if len(set(own)) < 2:
            return draw_office(rng, n_others)
        messages.append([2, subjects[1], "cancel", {"event": own[0]}])
        messages.append([3, subjects[2], "ask", {"event": own[-1]}])
    if n_others > 1:
        messages += [[1 + draw.below(n_others), name, "news", {}] for name in draw.shuffled(_NEWS)[: 1 + draw.below(2)]]
    return {"people": people, "events": draw.events, "messages": draw.shuffled(messages)}


def _taken(events: list[list[Any]], day: int, who: Iterable[int], gone: Iterable[int] = ()) -> set[int]:
    """Return the slots of a day at which one of the people is busy, without the events that are called off."""
    people = set(who)
    return {
        slot
        for number, (at, first, n_slots, _, busy) in enumerate(events)
        if at == day and number not in gone and people & set(busy)
        for slot in range(first, first + n_slots)
    }


def as_event(event: list[Any]) -> Event:
    """Return an event of the problem as one of Robin's calendar."""
    day, first, n_slots, title, who = event
    return title, day, first, n_slots, frozenset(who) - {0}


def without_case(event: Event) -> Event:
    """Return an event as it is compared: its title in lower case."""
    return (event[0].casefold(), *event[1:])


def wanted_state(
    problem: Mapping[str, Any],
) -> tuple[list[Event], dict[int, tuple[tuple[str, ...], tuple[str, ...]] | None]]:
    """Return Robin's events, and the day and time to be named in the answer to each message; None: any text."""
    events, messages = problem["events"], problem["messages"]
    gone = {details["event"] for _, _, kind, details in messages if kind == "cancel"}
    wanted = [as_event(event) for number, event in enumerate(events) if 0 in event[4] and number not in gone]
    times: dict[int, tuple[tuple[str, ...], tuple[str, ...]] | None] = {}
    for place, (sender, subject, kind, details) in enumerate(messages):
        if kind == "cancel":
            times[place] = None
        elif kind == "ask":
            day, first, *_ = events[details["event"]]
            times[place] = ((DAYS[day],), (clock(first),))
        elif kind == "meet":
            who = frozenset([sender, *details["with"]]) - {0}
            day, first = _earliest(events, gone, {0, *who}, details)
            wanted.append((subject, day, first, details["slots"], who))
            times[place] = ((DAYS[day],), (clock(first),))
    return wanted, times


def _earliest(
    events: list[list[Any]], gone: set[int], who: Iterable[int], details: Mapping[str, Any]
) -> tuple[int, int]:
    length = details["slots"]
    for day in details["days"]:
        taken = _taken(events, day, who, gone)
        for first in range(details["from"], details["to"] - length + 1):
            if not taken & set(range(first, first + length)):
                return day, first
    raise InvalidActionError("there is no time at which all are free")


def check_office(problem: Mapping[str, Any]) -> None:
    """Raise an error if people, events and messages do not fit together."""
    people, events, messages = problem["people"], problem["events"], problem["messages"]
    firsts = [name.split()[0].casefold() for name in people]
    if len(set(firsts)) < len(firsts) or people[0] != "Robin Vale" or not messages:
        raise InvalidActionError("it needs people with different first names, Robin Vale first, and a message")
    for day, first, n_slots, title, who in events:
        if not (0 <= day < 5 and 0 <= first < first + n_slots <= N_SLOTS and isinstance(title, str) and who):
            raise InvalidActionError("its events are [day 0 to 4, first half hour, half hours, title, [people]]")
        [people[place] for place in who]
    if sum(kind == "meet" for _, _, kind, _ in messages) > 1:
        raise InvalidActionError("one message may ask for a meeting: two could want the same time")
    for sender, subject, kind, details in messages:
        if (
            kind not in ("meet", "cancel", "ask", "news")
            or not 0 < sender < len(people)
            or not isinstance(subject, str)
        ):
            raise InvalidActionError("its messages are [sender, subject, meet, cancel, ask or news, details]")
        if kind in ("cancel", "ask") and 0 not in events[details["event"]][4]:
            raise InvalidActionError("a message is about an event that is not Robin's")
        if kind == "meet" and not (1 <= details["slots"] <= 4 and 0 <= details["from"] < details["to"] <= N_SLOTS):
            raise InvalidActionError("a meeting has 1 to 4 half hours, between 0 and 16")
        text_of([sender, subject, kind, details], people, events)


def text_of(message: list[Any], people: list[str], events: list[list[Any]]) -> str:
    """Return the text of a message."""
    sender, subject, kind, details = message
    name = people[sender].split()[0]
    if kind == "news":
        return f"Dear all, there is news about: {subject.lower()}. Have a look when you like; nothing to do.\n{name}"
    if kind in ("cancel", "ask"):
        day, _, _, title, _ = events[details["event"]]
        if kind == "cancel":
            return (
                f'Hi Robin, "{title}" on {DAYS[day]} is off. Please take it out of your calendar, and confirm.\n{name}'
            )
        return f'Hi Robin, when does "{title}" on {DAYS[day]} begin? I would like to know.\n{name}'
    days = [DAYS[day] for day in details["days"]]
    text = f"Hi Robin, I would like to talk with you about this on {days[0]}, for {30 * details['slots']} minutes."
    if len(days) > 1:
        text += f" If {days[0]} is impossible, then on {' or else '.join(days[1:])}."
    if details["with"]:
        text += f" {' and '.join(people[place] for place in details['with'])} should come too."
    if details["from"]:
        text += f" I cannot begin before {clock(details['from'])}."
    if details["to"] < N_SLOTS:
        text += f" It must be over by {clock(details['to'])}."
    return f"{text} The earliest time that suits everybody is best.\n{name}"
