"""`llm/PythonInterpreter-v0`: questions that take a few lines of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd, lcm
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer
from llm_envs.sandbox import PythonTool, Sandbox, SandboxLimits, SubprocessSandbox
from llm_envs.tasks.code.judging import SANDBOX_LACKS

__all__ = ["KINDS", "PythonInterpreterEnv"]

_LIMITS = SandboxLimits(timeout_s=2.0, memory_bytes=64 << 20, output_characters=2_000)
_INTERPRETERS = ("monty", "cpython")


class PythonInterpreterEnv(ToolEnv):
    """Answer a question that is easy with code and hard in the head.

    ## Description
    Each episode asks for one whole number: a count over a range, the digits of a huge power, the thousandth value of a
    recurrence, the number of ways to pay a sum or to cross a grid. The tool `python(code)` runs Python in a sandbox;
    variables are kept from call to call. Teaches to turn a question into a small program, to read its output, and to
    correct the program when it fails.

    ## Observation
    First the question. After a call what the code printed and the value of its last expression, or a traceback; the
    sandbox's clock stands and its chance is seeded, so episodes repeat. After a malformed reply a readable error.

    ## Action
    A call of the tool `python`, at most four in a reply, or the final answer, `<answer>1234</answer>`.

    ## Reward
    `correct` (weight 1): 1 for the right number. `malformed` (weight -0.1): 1 for a reply that is neither a call nor an
    answer, is broken, or answers with something that is not a whole number. Code that fails costs a turn and nothing
    else.

    ## Episode End
    Terminates with the first answer that is a whole number. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): one line of code (a count over a range, digits of a power); "medium": a loop (a
      recurrence, primes, pairs without a common divisor); "hard": a program (longest Collatz chain, ways to pay a sum,
      paths through a grid with blocked cells); "expert": an algorithm, since numbers are too large to try everything (a
      far value of a recurrence, multiples in a huge range, numbers of a digit sum).
    - `max_turns`: 5 by default.
    - `interpreter`: "monty" (default; a subset of Python, `pip install 'llm-envs[tools]'`) or "cpython" (the real one
      in a closed process, on Linux).
    - `reset(options={"problem": {"kind": "digits", "numbers": [7, 90]}})` asks about given numbers.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often the best constant answer to a kind of question is right, measured over 2,000
    # problems of each: 0.7%, 1.2%, 0.8%.
    difficulties = {
        "easy": Difficulty("one line of code", chance_rate=0.01),
        "medium": Difficulty("a loop", chance_rate=0.02),
        "hard": Difficulty("a program", chance_rate=0.02),
        "expert": Difficulty("an algorithm: trying everything takes too long", chance_rate=0.02),
    }
    default_difficulty = "easy"
    default_max_turns = 5
    blocking = True  # the code runs in a process, for up to two seconds a call
    problem_fields = {"kind": str, "numbers": list}
    instructions = "Find the whole number with the tool python, then answer with it. Make at most 4 calls in a reply."
    answer_example = "-307"
    max_calls_per_turn = 4  # each may take its two seconds

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        interpreter: str = "monty",
        answer_form: str | None = None,
    ) -> None:
        if interpreter not in _INTERPRETERS:
            raise InvalidConfigError(
                f"PythonInterpreterEnv: interpreter is {interpreter!r}; known are {', '.join(_INTERPRETERS)}."
            )
        self._interpreter = interpreter
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)

    def make_tools(self) -> Sequence[PythonTool]:
        """Return the interpreter."""
        own: Sandbox | None = None if self._interpreter == "monty" else _cpython()
        return [PythonTool(own, limits=_LIMITS)]

    def generate(self) -> dict[str, Any]:
        """Draw a kind of question and its numbers."""
        random = self.np_random.random
        names = _LEVELS[self.difficulty]
        name = names[int(random() * len(names))]
        return {"kind": name, "numbers": KINDS[name].draw(random)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an unknown kind, and numbers that it has no question about."""
        kind = KINDS.get(problem["kind"])
        if kind is None:
            raise InvalidActionError(f"its kind is none of {', '.join(KINDS)}")
        numbers = problem["numbers"]
        if not all(type(number) is int and 0 <= number <= _MOST for number in numbers):
            raise InvalidActionError(f"its numbers must be whole numbers from 0 to {_MOST}")
        try:
            is_good = kind.fits(*numbers)
        except TypeError:
            is_good = False
        if not is_good:
            raise InvalidActionError(f"its numbers {numbers} do not fit a question of the kind {problem['kind']}")

    def begin(self) -> None:
        """Forget the last problem's answer; this one's is worked out when it is needed."""
        self._known: int | None = None

    @property
    def target(self) -> int:
        """The right answer."""
        if self._known is None:
            self._known = KINDS[self.problem["kind"]].answer(*self.problem["numbers"])
        return self._known

    def prompt(self) -> str:
        """Return the question."""
        return KINDS[self.problem["kind"]].text(*self.problem["numbers"])

    def written_instructions(self) -> str | None:
        """Return the system prompt, which names the parts of Python that the small sandbox lacks."""
        told = super().written_instructions()
        if self._interpreter != "monty":
            return told
        return f"The tool python runs a subset of Python, which does not have {SANDBOX_LACKS}. {told}"

    def is_correct(self, answer: str) -> bool:
        """Compare as whole numbers."""
        return read_integer(answer) == self.target

    def next_action(self) -> str:
        """Run the program; when it has given the number, or with the last turn, answer."""
        target = str(self.target)
        if self.n_turns + 1 >= self.max_turns or any(
            result.success and result.output == target for result in self.tool_results
        ):
            return self.write_answer(target)
        return format_tool_call("python", code=KINDS[self.problem["kind"]].code(*self.problem["numbers"]))


_shared_cpython: list[SubprocessSandbox] = []


def _cpython() -> SubprocessSandbox:
    """Return the process's own sandbox of CPython, made at the first call."""
    if not _shared_cpython:
        _shared_cpython.append(SubprocessSandbox())
    return _shared_cpython[0]


_MOST = 10**16


class Kind(NamedTuple):
    """A kind of question: the numbers it is about, whether given ones fit, its text, answer, and program."""

    draw: Callable[[Callable[[], float]], list[int]]
    fits: Callable[..., bool]
    text: Callable[..., str]
    answer: Callable[..., int]
    code: Callable[..., str]


def _between(random: Callable[[], float], low: int, high: int) -> int:
    return low + int(random() * (high - low + 1))


def _draw_multiples(random: Callable[[], float]) -> list[int]:
    low = _between(random, 100, 2_000)
    # Powers of two primes and another one, so that none divides another.
    divisors = [4, 9, 25, 7, 11, 13, 17]
    chosen = [divisors.pop(int(random() * len(divisors))) for _ in range(3)]
    return [low, low + _between(random, 3_000, 9_000), *chosen]


def _multiples(low: int, high: int, p: int, q: int, r: int) -> int:
    return sum((n % p == 0 or n % q == 0) and n % r != 0 for n in range(low, high + 1))


def _digit_sum(base: int, exponent: int) -> int:
    return sum(map(int, str(base**exponent)))


def _recurrence(first: int, factor: int, term: int, modulus: int, n: int) -> int:
    value = first
    for _ in range(n):
        value = (factor * value + term) % modulus
    return value


def _far_recurrence(first: int, factor: int, term: int, modulus: int, n: int) -> int:
    """Return x(n) by squaring the step: x -> factor * x + term."""
    step, value = (factor, term), first
    while n:
        if n % 2:
            value = (step[0] * value + step[1]) % modulus
        step = (step[0] * step[0] % modulus, (step[0] * step[1] + step[1]) % modulus)
        n //= 2
    return value


def _far_multiples(low: int, high: int, p: int, q: int, r: int) -> int:
    """Return the count by inclusion and exclusion."""

    def of(*divisors: int) -> int:
        return high // lcm(*divisors) - (low - 1) // lcm(*divisors)

    return of(p) + of(q) - of(p, q) - of(p, r) - of(q, r) + of(p, q, r)


def _digit_sums(n_digits: int, total: int) -> int:
    """Return how many numbers below 10**n_digits have the digit sum."""
    ways = [1] + [0] * total
    for _ in range(n_digits):
        ways = [sum(ways[max(0, place - 9) : place + 1]) for place in range(total + 1)]
    return ways[total]


def _primes(low: int, high: int) -> int:
    is_prime = bytearray([0, 0]) + bytearray([1]) * (high - 1)
    for n in range(2, int(high**0.5) + 1):
        if is_prime[n]:
            is_prime[n * n :: n] = bytes(len(range(n * n, high + 1, n)))
    return sum(is_prime[low:])


def _pairs(low: int, high: int) -> int:
    return sum(gcd(a, b) == 1 for a in range(low, high + 1) for b in range(a + 1, high + 1))


def _steps_to_one(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def _longest_chain(low: int, high: int) -> int:
    return max(range(low, high + 1), key=lambda n: (_steps_to_one(n), -n))


def _ways(amount: int, *coins: int) -> int:
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    return ways[amount]


def _draw_coins(random: Callable[[], float]) -> list[int]:
    coins = [1, 2, 3, 5, 7, 8, 10, 12, 15, 20, 25, 30, 50]
    chosen = sorted(coins.pop(int(random() * len(coins))) for _ in range(4))
    chosen[0] = 1  # so that every amount can be paid
    return [_between(random, 80, 400), *dict.fromkeys(chosen)]


def _draw_grid(random: Callable[[], float]) -> list[int]:
    width, height = _between(random, 6, 12), _between(random, 6, 12)
    while True:
        cells = [(_between(random, 1, width), _between(random, 1, height)) for _ in range(_between(random, 4, 8))]
        numbers = [width, height, *(number for cell in dict.fromkeys(cells) for number in cell)]
        if _fits_grid(*numbers):
            return numbers


def _fits_grid(width: int, height: int, *blocked: int) -> bool:
    if not (2 <= width <= 40 and 2 <= height <= 40 and len(blocked) % 2 == 0):
        return False
    cells = list(zip(blocked[::2], blocked[1::2], strict=True))
    inside = all(1 <= x <= width and 1 <= y <= height for x, y in cells)
    return inside and len(set(cells)) == len(cells) and _paths(width, height, *blocked) > 0


def _paths(width: int, height: int, *blocked: int) -> int:
    closed = set(zip(blocked[::2], blocked[1::2], strict=True))
    row = [0, 1] + [0] * (width - 1)  # ways to each cell of the row above; there is one way to the first cell
    for y in range(1, height + 1):
        for x in range(1, width + 1):
            row[x] = 0 if (x, y) in closed else row[x] + row[x - 1]
    return row[width]


_COLLATZ = """\
def steps(n):
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count

best = {low}
for n in range({low}, {high} + 1):
    if steps(n) > steps(best):
        best = n
best"""
_COINS = """\
ways = [1] + [0] * {amount}
for coin in {coins}:
    for total in range(coin, {amount} + 1):
        ways[total] += ways[total - coin]
ways[{amount}]"""
_GRID = """\
blocked = {blocked}
ways = {{}}
for y in range(1, {height} + 1):
    for x in range(1, {width} + 1):
        if (x, y) in blocked:
            ways[x, y] = 0
        elif (x, y) == (1, 1):
            ways[x, y] = 1
        else:
            ways[x, y] = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)
ways[{width}, {height}]"""
_RECURRENCE = """\
value = {first}
for _ in range({n}):
    value = ({factor} * value + {term}) % {modulus}
value"""
_FAR_RECURRENCE = """\
value, factor, term, n = {first}, {factor}, {term}, {n}
while n:
    if n % 2:
        value = (factor * value + term) % {modulus}
    factor, term = factor * factor % {modulus}, (factor * term + term) % {modulus}
    n = n // 2
value"""
_FAR_MULTIPLES = """\
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a

def count(divisors):
    common = 1
    for d in divisors:
        common = common * d // gcd(common, d)
    return {high} // common - ({low} - 1) // common

count([{p}]) + count([{q}]) - count([{p}, {q}]) - count([{p}, {r}]) - count([{q}, {r}]) + count([{p}, {q}, {r}])"""
_DIGIT_SUMS = """\
ways = [1] + [0] * {total}
for _ in range({n_digits}):
    ways = [sum(ways[max(0, place - 9):place + 1]) for place in range({total} + 1)]
ways[{total}]"""
_PAIRS = """\
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a

sum(1 for a in range({low}, {high} + 1) for b in range(a + 1, {high} + 1) if gcd(a, b) == 1)"""


def _cells(blocked: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(blocked[::2], blocked[1::2], strict=True))


KINDS: dict[str, Kind] = {
    "multiples": Kind(
        _draw_multiples,
        lambda low, high, p, q, r: low <= high <= low + 100_000 and min(p, q, r) > 0,
        lambda low, high, p, q, r: (
            f"How many whole numbers from {low} to {high} (both included) are divisible by {p} or by {q} (or by both), "
            f"but not by {r}?"
        ),
        _multiples,
        lambda low, high, p, q, r: (
            f"sum(1 for n in range({low}, {high} + 1) if (n % {p} == 0 or n % {q} == 0) and n % {r} != 0)"
        ),
    ),
    "digits": Kind(
        # 10 to any power has the sum 1, and 20 that of 2: no such bases.
        lambda r: [10 * _between(r, 1, 99) + _between(r, 1, 9), _between(r, 40, 300)],
        lambda base, exponent: base <= 1_000 and exponent <= 1_000,
        lambda base, exponent: f"What is the sum of the decimal digits of {base} to the power of {exponent}?",
        _digit_sum,
        lambda base, exponent: f"sum(int(digit) for digit in str({base} ** {exponent}))",
    ),
    "recurrence": Kind(
        lambda r: [_between(r, 1, 999), _between(r, 2, 99), _between(r, 1, 999), _between(r, 1_000, 99_999),
                   _between(r, 20, 2_000)],
        lambda first, factor, term, modulus, n: modulus > 0 and n <= 100_000,
        lambda first, factor, term, modulus, n: (
            f"A sequence begins with x(0) = {first} and goes on with x(n+1) = ({factor}*x(n) + {term}) mod {modulus}. "
            f"What is x({n})?"
        ),
        _recurrence,
        lambda first, factor, term, modulus, n: _RECURRENCE.format(
            first=first, factor=factor, term=term, modulus=modulus, n=n
        ),
    ),
    "primes": Kind(
        lambda r: (lambda low: [low, low + _between(r, 500, 3_000)])(_between(r, 2, 8_000)),
        lambda low, high: 2 <= low <= high <= 20_000,
        lambda low, high: f"How many prime numbers are there from {low} to {high} (both included)?",
        _primes,
        lambda low, high: (
            f"sum(1 for n in range({low}, {high} + 1) if all(n % d for d in range(2, int(n ** 0.5) + 1)))"
        ),
    ),
    "pairs": Kind(
        lambda r: (lambda low: [low, low + _between(r, 20, 70)])(_between(r, 2, 4_000)),
        lambda low, high: 1 <= low <= high <= low + 200,
        lambda low, high: (
            f"How many pairs of whole numbers a < b, both from {low} to {high} (both included), have no common divisor "
            f"but 1?"
        ),
        _pairs,
        lambda low, high: _PAIRS.format(low=low, high=high),
    ),
    "collatz": Kind(
        lambda r: (lambda low: [low, low + _between(r, 40, 150)])(_between(r, 10, 9_000)),
        lambda low, high: 1 <= low <= high <= low + 1_000,
        lambda low, high: (
            "Take a whole number; halve it if it is even, else multiply it by 3 and add 1; repeat until it is 1. Which "
            f"number from {low} to {high} (both included) takes the most steps? If several do, the smallest of them."
        ),
        _longest_chain,
        lambda low, high: _COLLATZ.format(low=low, high=high),
    ),
    "coins": Kind(
        _draw_coins,
        lambda amount, *coins: amount <= 2_000 and 0 < len(set(coins)) == len(coins) <= 8 and min(coins) > 0,
        lambda amount, *coins: (
            f"There are coins of {', '.join(map(str, coins))}, as many of each as you like. In how many ways can "
            f"exactly {amount} be paid? The order of the coins does not matter."
        ),
        _ways,
        lambda amount, *coins: _COINS.format(amount=amount, coins=list(coins)),
    ),
    "grid": Kind(
        _draw_grid,
        _fits_grid,
        lambda width, height, *blocked: (
            f"A grid has {width} columns and {height} rows. You start in cell (1, 1) and may go one cell to the right "
            f"or one cell down at a time, to cell ({width}, {height}); (column, row). These cells are blocked: "
            f"{', '.join(map(str, _cells(blocked)))}. How many different paths are there?"
        ),
        _paths,
        lambda width, height, *blocked: _GRID.format(width=width, height=height, blocked=_cells(blocked)),
    ),
    "far_recurrence": Kind(
        lambda r: [_between(r, 1, 999), _between(r, 2, 9_999), _between(r, 1, 9_999), _between(r, 10**8, 10**9),
                   _between(r, 10**14, 10**15)],
        lambda first, factor, term, modulus, n: modulus > 0,
        lambda first, factor, term, modulus, n: (
            f"A sequence begins with x(0) = {first} and goes on with x(n+1) = ({factor}*x(n) + {term}) mod {modulus}. "
            f"What is x({n})?"
        ),
        _far_recurrence,
        lambda first, factor, term, modulus, n: _FAR_RECURRENCE.format(
            first=first, factor=factor, term=term, modulus=modulus, n=n
        ),
    ),
    "far_multiples": Kind(
        lambda r: (lambda low: [low, low + _between(r, 10**13, 10**14), *_draw_multiples(r)[2:]])(
            _between(r, 10**12, 10**13)
        ),
        lambda low, high, p, q, r: 0 < low <= high and min(p, q, r) > 0,
        lambda low, high, p, q, r: (
            f"How many whole numbers from {low} to {high} (both included) are divisible by {p} or by {q} (or by both), "
            f"but not by {r}?"
        ),
        _far_multiples,
        lambda low, high, p, q, r: _FAR_MULTIPLES.format(low=low, high=high, p=p, q=q, r=r),
    ),
    "digit_sums": Kind(
        lambda r: [_between(r, 10, 40), _between(r, 20, 90)],
        lambda n_digits, total: 0 < n_digits <= 100 and total <= 9 * n_digits,
        lambda n_digits, total: (
            f"How many whole numbers from 0 to 10**{n_digits} - 1 have digits (in base ten) whose sum is {total}?"
        ),
        _digit_sums,
        lambda n_digits, total: _DIGIT_SUMS.format(n_digits=n_digits, total=total),
    ),
}  # fmt: skip
_LEVELS: dict[str, Sequence[str]] = {
    "easy": ("multiples", "digits"),
    "medium": ("recurrence", "primes", "pairs"),
    "hard": ("collatz", "coins", "grid"),
    "expert": ("far_recurrence", "far_multiples", "digit_sums"),
}
