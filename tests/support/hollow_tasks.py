"""Tasks that keep the contract in form and can be won without what they are meant to teach, and honest ones beside."""

from __future__ import annotations

import re
import sqlite3
import time

from llm_envs.env import Difficulty, Outcome, SingleTurnEnv, TextEnv, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.mathematics.arithmetic import evaluate
from llm_envs.parsers import format_answer, format_tool_call, parse_reply
from llm_envs.rewards import read_integer

DOCSTRING = """Say it.

## Description
## Observation
## Action
## Reward
## Episode End
## Arguments
The level is "only".
## Version History
"""
NOTHING = {"correct": 0.0, "malformed": 0.0}
WON = {"correct": 1.0, "malformed": 0.0}


NAMES = [f"{a}{b}{c}{d}" for a in "BDFGKLMNPRST" for b in "aeiou" for c in "lmnrst" for d in "aeiou"][:300]


class Only:
    __doc__ = DOCSTRING
    difficulties = {"only": Difficulty("only", chance_rate=0.001)}
    default_difficulty = "only"


class Single(Only, SingleTurnEnv):
    difficulties = {"only": Difficulty("only", chance_rate=0.05)}
    problem_fields = {"a": int, "b": int}
    most_a, most_b = 1_000, 1_000

    def generate(self):
        return {"a": int(self.np_random.random() * self.most_a), "b": int(self.np_random.random() * self.most_b)}


class Game(Only, TextEnv):
    difficulties = {"only": Difficulty("only", chance_rate=0.2)}
    default_max_turns = 6
    problem_fields = {"names": list, "right": int}
    n_names = 6

    def generate(self):
        first, step = int(self.np_random.random() * 300), 1 + int(self.np_random.random() * 40)
        names = [NAMES[(first + step * i) % 300] for i in range(self.n_names)]
        return {"names": names, "right": int(self.np_random.random() * self.n_names)}

    def prompt(self):
        lines = "\n".join(f"- {name}: {len(name)} letters" for name in self.problem["names"])
        return f"One of them is meant.\n{lines}\nYou have {self.max_turns} replies."

    def begin(self):
        self.target = self.problem["names"][self.problem["right"]]
        self.knows = False

    def next_action(self):
        return format_answer(self.target) if self.knows else "Tell me."


# Won by heart.


class SixtyAnswers(Single):
    # The number differs from problem to problem, and has nothing to do with the answer.
    most_a, most_b = 60, 1_000_000

    def prompt(self):
        return f"Ticket {self.problem['b']}. What goes with {NAMES[self.problem['a']].lower()}?"

    def solution(self):
        return NAMES[self.problem["a"] * 7 % 60]


class Restated(Single):
    # The question is taken for the answer.
    def prompt(self):
        return f"Work out ${self.problem['a'] + 10}+{self.problem['b'] + 10}$."

    def solution(self):
        return str(self.problem["a"] + self.problem["b"] + 20)

    def is_correct(self, answer):
        return bool(re.fullmatch(r"\d{1,4}(\+\d{1,4})*", answer)) and str(evaluate(answer)) == self.solution()


class WorkedOut(Restated):
    def is_correct(self, answer):
        return answer == self.solution()


# Won by a plan.


class MostlyLeft(Only, TextEnv):
    """Two times yes, then the door that was named; it is mostly the same one."""

    __doc__ = DOCSTRING
    difficulties = {"only": Difficulty("only", chance_rate=0.4)}
    default_max_turns = 3
    problem_fields = {"n": int, "door": str}
    doors = ("left",) * 11 + ("right",) * 3 + ("up",) * 3 + ("down",) * 3

    def generate(self):
        door = self.doors[int(self.np_random.random() * len(self.doors))]
        return {"n": int(self.np_random.random() * 1_000_000), "door": door}

    def prompt(self):
        said = f"Game {self.problem['n']}. Say yes two times, then {self.problem['door']}."
        return f"{said} You have {self.max_turns} replies."

    def begin(self):
        self.n_yes = 0

    def play(self, action):
        answer = parse_reply(action).answer
        if self.n_yes < 2:
            self.n_yes += answer == "yes"
            return Outcome("Go on.", dict(NOTHING), answer not in ("yes", None), False)
        is_right = answer == self.problem["door"]
        return Outcome("The end.", dict(WON if is_right else NOTHING), True, is_right)

    def next_action(self):
        return format_answer("yes" if self.n_yes < 2 else self.problem["door"])


class OneYesIsEnough(MostlyLeft):
    doors = ("left", "right", "up", "down")

    def begin(self):
        self.n_yes = 0

    def play(self, action):
        outcome = super().play(action)
        if outcome.terminated and self.n_yes == 1 and parse_reply(action).answer == self.problem["door"]:
            return outcome._replace(components=dict(WON), is_success=True)
        return outcome


class AnyDoor(MostlyLeft):
    doors = ("left", "right", "up", "down")


# Won without a look at one of two numbers.


class LooksAtOne(Only, TextEnv):
    difficulties = {"only": Difficulty("only", chance_rate=0.1)}
    default_max_turns = 5
    problem_fields = {"mine": list, "yours": list}

    def generate(self):
        return {name: [int(x * 1_000) for x in self.np_random.random(5)] for name in self.problem_fields}

    def prompt(self):
        return f"Hit or stick? A mistake ends the game. You have {self.max_turns} replies.\n{self._cards()}"

    def _cards(self):
        return f"I hold {self.problem['mine'][self.n_turns]}. You hold {self.problem['yours'][self.n_turns]}."

    def play(self, action):
        is_right = parse_reply(action).answer == ("hit" if self.problem["yours"][self.n_turns - 1] < 500 else "stick")
        if is_right and self.n_turns < 5:
            return Outcome(self._cards(), dict(NOTHING))
        return Outcome("The end.", dict(WON if is_right else NOTHING), True, is_right)

    def next_action(self):
        return format_answer("hit" if self.problem["yours"][self.n_turns] < 500 else "stick")


# Won by going through a list.


class ManyTries(Game):
    # A wrong name costs nothing, and there are as many replies as names.
    def play(self, action):
        answer = parse_reply(action).answer
        self.knows = True
        if answer == self.target:
            return Outcome("Yes.", dict(WON), True, True)
        return Outcome(f"It is {self.target}." if answer is None else "No.", dict(NOTHING))


class OneTry(Game):
    def play(self, action):
        answer = parse_reply(action).answer
        self.knows = True
        if answer is not None:
            is_right = answer == self.target
            return Outcome("The end.", dict(WON if is_right else NOTHING), True, is_right)
        return Outcome(f"It is {self.target}.", dict(NOTHING))


class SaysYes(OneTry):
    # Whoever asks about each name in turn is told when it is the right one.
    def play(self, action):
        outcome = super().play(action)
        if outcome.terminated or "tell me" in action.casefold():
            return outcome
        self.knows = action == f"How about {self.target}?"
        return outcome._replace(observation="That is the one." if self.knows else "That is not the one.")


class OneWording(OneTry):
    def play(self, action):
        if parse_reply(action).answer is None and action != "Tell me.":
            return Outcome("I do not understand.", dict(NOTHING))
        return super().play(action)


class Haggling(Only, TextEnv):
    """A price that is between the two of the prompt, nearer to the first; who comes near enough in steps is met."""

    __doc__ = DOCSTRING
    difficulties = {"only": Difficulty("only", chance_rate=0.1)}
    default_max_turns = 5
    problem_fields = {"low": int, "high": int}
    least_n_reads = 0

    def generate(self):
        low = 100 + int(self.np_random.random() * 100_000)
        return {"low": low, "high": low + 200 + int(self.np_random.random() * 1_000)}

    def prompt(self):
        low, high = self.problem["low"], self.problem["high"]
        return f"I pay {low} at first and {high} at most. You have {self.max_turns} replies; accept in the last one."

    def begin(self):
        self.offer, self.n_steps = self.problem["high"] + 1, 0

    def play(self, action):
        answer = parse_reply(action).answer
        if answer == "accept":
            is_right = self.n_steps > 2 and self.offer < self.problem["high"]
            return Outcome("The end.", dict(WON if is_right else NOTHING), True, is_right)
        if answer and re.fullmatch(r"[0-9]{1,9}", answer):
            self.n_steps += self.offer > int(answer) or self.n_steps == 0 or self._is_step(int(answer))
            self.offer = int(answer)
        return Outcome(f"I hear {self.offer}.", dict(NOTHING))

    def _is_step(self, offer):
        return self.problem["low"] <= self.offer < offer < self.problem["high"]

    def next_action(self):
        low, high = self.problem["low"], self.problem["high"]
        return format_answer("accept" if self.n_turns > 3 else low + self.n_turns * (high - low) // 8)


# References.


class Queries(Single):
    """Which rows a query finds; the rows are drawn so that no mistake in the comparison shows."""

    __doc__ = DOCSTRING
    nearest = (-3, 1)

    def prompt(self):
        a, b = self.problem["a"], self.problem["b"]
        return f"Give the n of t({b}) that are at least {a}, largest first, as a query."

    def solution(self):
        return f"SELECT n FROM t WHERE n >= {self.problem['a']} ORDER BY n DESC"

    def is_correct(self, answer):
        with sqlite3.connect(":memory:") as table:
            table.execute("CREATE TABLE t (n INTEGER)")
            a = self.problem["a"]
            table.executemany("INSERT INTO t VALUES (?)", [(a + n,) for n in (*self.nearest, 8, self.problem["b"] + 9)])
            try:
                return table.execute(answer).fetchall() == table.execute(self.solution()).fetchall()
            except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeEncodeError) as error:
                raise InvalidActionError("that is no query") from error


class SharpQueries(Queries):
    __doc__ = DOCSTRING
    nearest = (-1, 0)


class NearlyRight(WorkedOut):
    def is_correct(self, answer):
        return abs(read_integer(answer) - int(self.solution())) <= 1


class Excused(NearlyRight):
    __doc__ = DOCSTRING
    clause_reasons = {"refuses_neighbouring_numbers": "The measurement is not more exact than that."}


class Described(Single):
    # The wrong number of the code stands in its description.
    code = ("return first + {} * second", "return first + {} * second")

    def generate(self):
        return super().generate() | {"b": 1 + int(self.np_random.random() * 9)}

    def prompt(self):
        n, code = self.problem["a"] + 10, self.code[1].format(self.problem["a"] + 10 + self.problem["b"])
        return f"It should give the first plus {n} times the second.\n1: def total(first, second):\n2:     {code}"

    def solution(self):
        return f"2: {self.code[0].format(self.problem['a'] + 10)}"


class Exchanged(Described):
    # All that the description names stands in the code; the wrong line has another order.
    __doc__ = DOCSTRING
    code = ("return first + {} * second", "return second + {} * first")

    def generate(self):
        return super().generate() | {"b": 0}


class CountsWords(Single):
    # Only the number of words and the first one are judged.
    most_a, most_b = 300, 30
    has_natural_form = False

    def prompt(self):
        return f"Write {self.problem['b'] + 30} words, of which the first is {NAMES[self.problem['a']]}."

    def solution(self):
        a = self.problem["a"]
        return " ".join(NAMES[(a + 7 * i) % 300] for i in range(self.problem["b"] + 30))

    def is_correct(self, answer):
        words = re.findall(r"\w+", answer)
        return len(words) == self.problem["b"] + 30 and words[0] == NAMES[self.problem["a"]]


class Shortcut(WorkedOut):
    def shortcuts(self):
        return {"the sum without carrying the rest": format_answer(self.solution())}


class SolvedByReading(WorkedOut):
    # At a level that is expected to be hard, a player that keeps five facts wins.
    __doc__ = DOCSTRING
    difficulties = {
        "only": Difficulty(
            "only", chance_rate=0.001, expected_hard="Its text is too long for most of the models that read it once."
        )
    }

    def shortcuts(self):
        return {"reader(5)": format_answer(self.solution())}


class NoShortcut(WorkedOut):
    def shortcuts(self):
        return {"the first number alone": format_answer(self.problem["a"])}


# What is known, told and waited for.


class Looking(Only, ToolEnv):
    problem_fields = {"n": int}

    def make_tools(self):
        return [self.look]

    def look(self, where: str) -> str:
        """Look.

        Args:
            where: Anywhere.
        """
        return str(self.problem["n"])

    def generate(self):
        return {"n": int(self.np_random.random() * 1_000_000)}

    def prompt(self):
        return "Look, then say it."

    def is_correct(self, answer):
        return answer == str(self.problem["n"])

    def next_action(self):
        if self.tool_results and self.tool_results[0].success:
            return format_answer(self.tool_results[0].output)
        return format_tool_call("look", where="here")


class KnowsUnseen(Looking):
    def next_action(self):
        return format_answer(self.problem["n"]) if self.n_turns else format_tool_call("look", where="")


class KnowsInTheEnd(Looking):
    # Only one whose other turns were wasted says what it has not seen.
    def next_action(self):
        return format_answer(self.problem["n"]) if self.n_turns == self.max_turns - 1 else super().next_action()


class TellsNoLimit(OneTry):
    def prompt(self):
        return super().prompt().rpartition("\n")[0]


class WaitsUnsaid(Looking):
    def look(self, where: str) -> str:
        """Look.

        Args:
            where: Anywhere.
        """
        if "while" in where:
            time.sleep(0.15)
        return super().look(where)


# Problems that are one in substance.


class ManyNames(Single):
    # A million problems, of which each is one of 50 with another number that does not matter.
    most_a, most_b = 50, 20_000

    def prompt(self):
        return f"Problem {self.problem['b']}: three times {self.problem['a']} and {self.problem['b']}?"

    def solution(self):
        return str(3 * self.problem["a"] + self.problem["b"])

    def split_key(self, problem):
        return problem["a"]


class Boards(Only, SingleTurnEnv):
    difficulties = {"only": Difficulty("only", chance_rate=0.1, n_problems=512)}
    problem_fields = {"board": str}

    def generate(self):
        return {"board": "".join("X" if x < 0.5 else "." for x in self.np_random.random(9))}

    def prompt(self):
        rows = [" ".join(self.problem["board"][i : i + 3]) for i in (0, 3, 6)]
        return "\n".join(["Write it as one number.", "  A B C", *(f"{i} {row}" for i, row in enumerate(rows, 1))])

    def solution(self):
        return str(int(self.problem["board"].replace("X", "1").replace(".", "0"), 2))


class TurnedBoards(Boards):
    # Split by what does not change when the board is turned.
    def split_key(self, problem):
        board = problem["board"]
        forms = []
        for _ in range(4):
            board = "".join(board[i] for i in (6, 3, 0, 7, 4, 1, 8, 5, 2))
            forms += [board, board[6:] + board[3:6] + board[:3]]
        return min(forms)


class HiddenSplit(Looking):
    # Who knows train's 80 numbers never says one of test's.
    difficulties = {"only": Difficulty("only", chance_rate=0.05, n_problems=100)}

    def generate(self):
        return {"n": int(self.np_random.random() * 100)}


class SlowToStep(WorkedOut):
    def is_correct(self, answer):
        started = time.process_time()
        while time.process_time() < started + 0.003:
            pass
        return super().is_correct(answer)


HONEST = (WorkedOut, Excused, Exchanged, AnyDoor, OneTry, SharpQueries, NoShortcut, Looking, TurnedBoards)
HOLLOW = (
    (SixtyAnswers, "is_not_won_by_heart"),
    (Restated, "is_not_won_by_heart"),
    (MostlyLeft, "is_not_won_by_a_fixed_plan"),
    (LooksAtOne, "is_not_won_at_a_glance"),
    (ManyTries, "is_not_won_by_enumeration"),
    (SaysYes, "is_not_won_by_enumeration"),
    (Haggling, "is_not_won_by_enumeration"),
    (OneWording, "understands_other_wordings"),
    (OneYesIsEnough, "needs_every_round"),
    (NearlyRight, "refuses_neighbouring_numbers"),
    (Described, "is_not_won_by_comparing"),
    (CountsWords, "is_not_won_by_meaningless_text"),
    (Queries, "refuses_mutated_references, refuses_neighbouring_numbers"),
    (Shortcut, "is_not_won_by_shortcuts"),
    (SolvedByReading, "is_not_won_by_shortcuts"),
    (KnowsUnseen, "oracle_knows_what_is_shown"),
    (KnowsInTheEnd, "oracle_knows_what_is_shown"),
    (TellsNoLimit, "tells_its_turn_limit"),
    (WaitsUnsaid, "says_when_it_waits"),
    (ManyNames, "has_honest_n_problems"),
    (Boards, "has_disjoint_splits"),
    (HiddenSplit, "has_disjoint_splits"),
    (SlowToStep, "resets_quickly"),
)
"""Each task that is broken, and the clause that says so."""
