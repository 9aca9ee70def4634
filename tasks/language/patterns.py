r"""Regular expressions that a model wrote, matched by a small engine in time proportional to the text.

Python's `re` can take exponential time on a pattern such as `(a+)+b`, and cannot be stopped. Here a pattern becomes a
nondeterministic automaton (Thompson, 1968) whose states are followed side by side.

Supported: literal characters, `.`, classes `[a-z0-9_]` and `[^...]`, `\d` and `\w`, a backslash before any other
sign, groups `( )`, alternatives `|`, and `?`, `*`, `+`, `{m}`, `{m,n}`, `{m,}` behind any of them. A pattern matches
whole texts.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_envs.errors import InvalidActionError

__all__ = ["Pattern"]

Test = Callable[[str], bool]
_MOST_STATES = 2_000
_DEEPEST = 50
_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = frozenset(_DIGITS + _LETTERS + _LETTERS.upper() + "_")


class Pattern:
    """A compiled pattern.

    Args:
        source: The regular expression.

    Raises:
        InvalidActionError: If it is broken, uses what is not supported, or is too large.
    """

    def __init__(self, source: str) -> None:
        self._source, self._at = source, 0
        self._tests: list[Test | None] = []
        """Of each state: the test of the character that leads on; None where nothing is read."""
        self._next: list[list[int]] = []
        self._closures: dict[int, set[int]] = {}
        start, end = self._alternatives(0)
        if self._at < len(source):
            raise InvalidActionError(f"the pattern has a {source[self._at]!r} too many at place {self._at + 1}")
        self._start, self._end = start, end

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        states = self._closure(self._start)
        for character in text:
            ahead: set[int] = set()
            for state in states:
                test = self._tests[state]
                if test is not None and test(character):
                    ahead |= self._closure(self._next[state][0])
            if not ahead:
                return False
            states = ahead
        return self._end in states

    def _closure(self, state: int) -> set[int]:
        """Return what is reached from a state without reading: the states that read, and the end."""
        known = self._closures.get(state)
        if known is None:
            found, left = {state}, [state]
            while left:
                here = left.pop()
                if self._tests[here] is None:
                    for following in self._next[here]:
                        if following not in found:
                            found.add(following)
                            left.append(following)
            known = {reached for reached in found if self._tests[reached] is not None or reached == self._end}
            self._closures[state] = known
        return known

    def _state(self, test: Test | None = None) -> int:
        if len(self._tests) >= _MOST_STATES:
            raise InvalidActionError("the pattern is too large: its repetitions multiply")
        self._tests.append(test)
        self._next.append([])
        return len(self._tests) - 1

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    # Each of these reads a part of the source and returns the states at its start and its end.

    def _alternatives(self, depth: int) -> tuple[int, int]:
        if depth > _DEEPEST:
            raise InvalidActionError("the pattern has groups nested too deeply")
        start, end = self._state(), self._state()
        while True:
            first, last = self._sequence(depth)
            self._next[start].append(first)
            self._next[last].append(end)
            if self._peek() != "|":
                return start, end
            self._at += 1

    def _sequence(self, depth: int) -> tuple[int, int]:
        start = end = self._state()
        while self._peek() not in ("", "|", ")"):
            first, last = self._repeated(depth)
            self._next[end].append(first)
            end = last
        return start, end

    def _repeated(self, depth: int) -> tuple[int, int]:
        begun = self._at
        first, last = self._atom(depth)
        stop = self._at
        bounds = self._bounds()
        if bounds is None:
            return first, last
        low, high = bounds
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise InvalidActionError(f"the pattern repeats a repetition at place {self._at + 1}: put it into a group")
        resume = self._at
        start = end = self._state()
        copies = low if high is None else high
        for i in range(max(copies, 1)):
            if i:  # another copy: the source of the atom is read again
                self._at = begun
                first, last = self._atom(depth)
                assert self._at == stop
            if copies == 0:
                break
            self._next[end].append(first)
            after = self._state()
            self._next[last].append(after)
            if i >= low:
                self._next[end].append(after)
            end = after
        if high is None:
            if low == 0:
                self._next[start].append(first)
                self._next[last].append(start)
                end = start
            else:
                self._next[last].append(first)
        self._at = resume
        exit_state = self._state()
        self._next[end].append(exit_state)
        return start, exit_state

    def _bounds(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign in ("?", "*", "+") and sign:
            self._at += 1
            return {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
        if sign != "{":
            return None
        close = self._source.find("}", self._at)
        inside = self._source[self._at + 1 : close] if close > 0 else ""
        low, comma, high = inside.partition(",")
        if not (low.isascii() and low.isdigit() and len(low) < 4) or (
            high and not (high.isascii() and high.isdigit() and len(high) < 4)
        ):
            raise InvalidActionError(f"the pattern has no repetition {{m}} or {{m,n}} at place {self._at + 1}")
        self._at = close + 1
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise InvalidActionError(f"the pattern repeats at least {bounds[0]} and at most {bounds[1]} times")
        return bounds

    def _atom(self, depth: int) -> tuple[int, int]:
        sign = self._peek()
        if sign == "(":
            self._at += 1
            if self._peek() == "?":
                raise InvalidActionError("the pattern has a (?...), which is not supported: use ( ) alone")
            start, end = self._alternatives(depth + 1)
            if self._peek() != ")":
                raise InvalidActionError("the pattern has a ( without its )")
            self._at += 1
            return start, end
        if sign in ("*", "+", "?", "{", "}", "]") or sign == "^" or sign == "$":
            hint = ": it matches whole texts anyway" if sign in "^$" else f": write \\{sign} for the sign itself"
            raise InvalidActionError(f"the pattern has a {sign!r} at place {self._at + 1}{hint}")
        self._at += 1
        test = self._class() if sign == "[" else self._escape() if sign == "\\" else _any if sign == "." else _one(sign)
        start, end = self._state(test), self._state()
        self._next[start].append(end)
        return start, end

    def _escape(self) -> Test:
        sign = self._peek()
        self._at += 1
        if sign == "d":
            return _DIGITS.__contains__
        if sign == "w":
            return _WORD.__contains__
        if not sign or sign.isalnum():
            raise InvalidActionError(f"the pattern has a \\{sign}, which is not supported: only \\d, \\w and signs")
        return _one(sign)

    def _class(self) -> Test:
        begun = self._at
        negated = self._peek() == "^"
        self._at += negated
        tests: list[Test] = []
        while self._peek() != "]" or not tests:
            sign = self._peek()
            self._at += 1
            if not sign:
                raise InvalidActionError(f"the pattern has a [ without its ] at place {begun}")
            if sign == "\\":
                tests.append(self._escape())
            elif self._peek() == "-" and self._source[self._at + 1 : self._at + 2] not in ("", "]"):
                high = self._source[self._at + 1]
                self._at += 2
                if high < sign or high == "\\":
                    raise InvalidActionError(f"the pattern has a range {sign}-{high}")
                tests.append(_between(sign, high))
            else:
                tests.append(_one(sign))
        self._at += 1
        if negated:
            return lambda character: not any(test(character) for test in tests)
        return lambda character: any(test(character) for test in tests)


def _any(character: str) -> bool:
    return character != "\n"


def _one(sign: str) -> Test:
    return sign.__eq__


def _between(low: str, high: str) -> Test:
    return lambda character: low <= character <= high
