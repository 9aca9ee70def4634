"""`llm/TwentyQuestions-v0`: find the row of a table by yes/no questions about its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, in_words

__all__ = ["TwentyQuestionsEnv"]

_THEMES: dict[str, dict[str, list[str]]] = {
    "creature": {
        "color": ["red", "blue", "green", "brown", "white"],
        "size": ["tiny", "small", "large", "huge"],
        "habitat": ["forest", "desert", "lake", "mountain", "cave"],
        "diet": ["plants", "meat", "insects", "fish"],
        "legs": ["0", "2", "4", "6"],
        "active": ["day", "night", "dusk"],
    },
    "town": {
        "region": ["north", "south", "east", "west"],
        "founded": ["1200", "1450", "1600", "1750", "1900"],
        "river": ["yes", "no"],
        "climate": ["dry", "mild", "wet", "cold"],
        "trade": ["wool", "salt", "glass", "timber", "fish"],
        "bridges": ["0", "1", "2", "3"],
    },
    "machine": {
        "power": ["steam", "petrol", "battery", "solar"],
        "wheels": ["0", "2", "3", "4", "6"],
        "material": ["steel", "wood", "plastic", "brass"],
        "noise": ["silent", "quiet", "loud"],
        "purpose": ["digging", "lifting", "cleaning", "sorting", "cutting"],
        "weight": ["5", "20", "80", "300"],
    },
    "dish": {
        "taste": ["sweet", "sour", "salty", "bitter", "hot"],
        "served": ["warm", "cold", "frozen"],
        "grain": ["rice", "wheat", "maize", "none"],
        "texture": ["soft", "crisp", "creamy", "chewy"],
        "minutes": ["5", "10", "30", "60", "90"],
        "course": ["starter", "main", "dessert"],
    },
}
_QUESTION = re.compile(
    r"(?:(?:is|are|does it have|has it|do they have) )?(?:(?:the|its|their) )?(?:number of )?(\S+?)\s*"
    r"(>=|<=|\u2265|\u2264|>|<|=+|:| (?:(?:is|are|be) )?(?:equal to|greater than or equal to|less than or equal to"
    r"|at least|at most|greater than|more than|larger than|bigger than|over|above|less than|fewer than|smaller than"
    r"|below|under|exactly) | (?:is|are|equals?) | )\s*(\S+)"
)
_MAX_QUESTION = 200
_NAMING = re.compile(
    r"(?:(?:it is|it's|this is|(?:the )?name(?: is|:)|(?:my guess is|i guess|i say)(?: it is)?) )?(\S+)"
)
_AT_LEAST = (">=", "\u2265", "at least", "greater than or equal to")
_AT_MOST = ("<=", "\u2264", "at most", "less than or equal to")
_ABOVE = (">", "greater than", "more than", "larger than", "bigger than", "over", "above")
_BELOW = ("<", "less than", "fewer than", "smaller than", "below", "under")
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")
_NAMES = tuple("".join(syllables).capitalize() for syllables in product(_ONSETS, _VOWELS, _ONSETS, _VOWELS))


class TwentyQuestionsEnv(GameEnv):
    """Find which row of a table is meant by yes/no questions about its columns, then name it.

    ## Description
    Teaches to ask what splits the remaining rows most evenly, and to remember the rows that are left. The table is
    new in every problem: invented names with four to six properties of creatures, towns, machines or dishes; no
    single property tells enough. The agent has one or two questions more than halving the rows needs.

    ## Observation
    First the rules and the table. After a question "Yes." or "No."

    ## Action
    A question, `<answer>color is red</answer>` or, about a property of numbers, `<answer>legs > 2</answer>` or
    `<answer>legs < 4</answer>`; at the end the name, `<answer>it is Bako</answer>` or `<answer>Bako</answer>`. "Is the
    color red?" and "legs greater than 2" are understood, too. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right name. `malformed` (weight -0.1): 1 for each reply that is neither a question
    about the table nor a name of it. Questions earn nothing.

    ## Episode End
    Terminates when a name is given, right or wrong. Truncated after `max_turns` replies; naming is one of them, and a
    malformed reply counts.

    ## Arguments
    - `split`: "train" or "test": no table is in both, whatever its names and the order of its rows and columns. The
      hidden name does not decide the split, so that knowing the split tells nothing about it.
    - `difficulty`: "easy" (default): 8 rows of 4 properties, 6 replies; "medium": 20 rows of 5, 8 replies; "hard": 40
      rows of 6, 9 replies; "expert": 100 rows of 6, 10 replies.
    - `max_turns`: the number of replies, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"theme": "creature", "columns": ["name", "color"], "rows": [["Bako", "red"], ["Zuni",
      "blue"]], "secret": "Zuni"}})` plays a given table; the first column is the name.

    ## Version History
    - v0: first version.
    """

    # Only one name can be given: without looking at the answers it is right with probability 1/rows.
    difficulties = {
        "easy": Difficulty(
            "8 rows, 6 replies", chance_rate=1 / 8, settings={"rows": 8, "columns": 4, "turns": 6, "needed": 5}
        ),
        "medium": Difficulty(
            "20 rows, 8 replies", chance_rate=1 / 20, settings={"rows": 20, "columns": 5, "turns": 8, "needed": 7}
        ),
        "hard": Difficulty(
            "40 rows, 9 replies", chance_rate=1 / 40, settings={"rows": 40, "columns": 6, "turns": 9, "needed": 8}
        ),
        "expert": Difficulty(
            "100 rows, 10 replies", chance_rate=1 / 100, settings={"rows": 100, "columns": 6, "turns": 10, "needed": 9}
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = (
        "at the hard and expert levels every row of a table is looked for, to count the questions needed"
    )
    problem_fields = {"theme": str, "columns": list, "rows": list, "secret": str}
    instructions = (
        "Find out which row of the table is meant. In each reply, answer with one question about a property, or, once "
        "you are sure, with the name of the row."
    )
    answer_example = "color is red"

    def generate(self) -> dict[str, Any]:
        """Draw tables until the oracle needs few enough questions for every row."""
        while True:
            problem = self._draw()
            if _replies_needed(_questions(problem["columns"], problem["rows"])) <= self.settings["needed"]:
                return problem

    def _draw(self) -> dict[str, Any]:
        random = self.np_random.random
        theme = list(_THEMES)[int(random() * len(_THEMES))]
        properties = _THEMES[theme]
        columns = self.shuffled(list(properties))[: self.settings["columns"]]
        values = [properties[column] for column in columns]
        n_rows = self.settings["rows"]
        rows: dict[tuple[str, ...], None] = {}
        names: dict[str, None] = {}
        while len(rows) < n_rows:
            draws = random(len(values)).tolist()
            rows[tuple([choices[int(draw * len(choices))] for choices, draw in zip(values, draws, strict=True)])] = None
        while len(names) < n_rows:
            names[_NAMES[int(random() * len(_NAMES))]] = None
        table = [[name, *row] for name, row in zip(names, rows, strict=True)]
        secret = table[int(random() * n_rows)][0]
        return {"theme": theme, "columns": ["name", *columns], "rows": table, "secret": secret}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a table with rows that cannot be told apart."""
        columns, rows = problem["columns"], problem["rows"]
        if not all(
            isinstance(row, list) and len(row) == len(columns) and all(isinstance(value, str) for value in row)
            for row in (columns, *rows)
        ):
            raise InvalidActionError("its columns and each of its rows must be texts, as many in each")
        if len({row[0] for row in rows}) < len(rows) or problem["secret"] not in [row[0] for row in rows]:
            raise InvalidActionError("its names must differ, and its secret must be one of them")
        texts = [text for row in (columns, *rows) for text in row]
        if any(text != text.strip() or len(text.split()) != 1 for text in texts):
            raise InvalidActionError("its names, properties and values must be single words")
        if len({tuple(row[1:]) for row in rows}) < len(rows):
            raise InvalidActionError("two of its rows have the same values")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the table without its names, in a fixed order: what is shown, and not the name that is meant."""
        places = sorted(range(1, len(problem["columns"])), key=problem["columns"].__getitem__)
        rows = sorted([row[place] for place in places] for row in problem["rows"])
        return [[problem["columns"][place] for place in places], rows]

    def begin(self) -> None:
        """Remember which rows are possible, for the oracle."""
        self._columns: list[str] = self.problem["columns"]
        self._rows: list[list[str]] = self.problem["rows"]
        self._secret: str = self.problem["secret"]
        self._row = next(place for place, row in enumerate(self._rows) if row[0] == self._secret)
        self._left = (1 << len(self._rows)) - 1

    def written_instructions(self) -> str:
        """Return the system prompt, with a question and a name of the table as examples."""
        question = self.write_answer(f"{self.problem['columns'][-1]} is {self.problem['rows'][0][-1]}")
        name = self.write_answer(f"it is {self.problem['rows'][0][0]}")
        return f"{self.instructions} Ask a question in this form: {question} Give a name in this form: {name}"

    def prompt(self) -> str:
        """Return the rules and the table."""
        table = "\n".join([" | ".join(row) for row in (self._columns, *self._rows)])
        theme, example = self.problem["theme"], self._columns[-1]
        return (
            f"I am thinking of one {theme} of this table:\n\n{table}\n\nYou have "
            f"{in_words(self.max_turns, 'reply')}. Each is either one question about one property, which I "
            f'answer by yes or no, or the name of the {theme}, as "it is {self._rows[0][0]}". A question has the form '
            f'"{example} is {self._rows[0][-1]}"; where the values are numbers, also ">" and "<" can stand in place of '
            '"is". You can give only one name; a wrong one loses.'
        )

    def move(self, answer: str) -> Outcome:
        """Answer the question, or compare the name."""
        text = " ".join(answer.lower().rstrip("?!. ").split())
        if (name := self._named(text)) is not None:
            return self.win("Correct.") if name == self._secret.lower() else self.lose("Wrong. You lose.")
        asked = self._mask(*self._question(text))
        is_yes = bool(asked >> self._row & 1)
        self._left &= asked if is_yes else ~asked
        return self.go_on("Yes." if is_yes else "No.")

    def _named(self, text: str) -> str | None:
        """Return the name that an answer gives, in lower case; None if it asks about a property."""
        match = _NAMING.fullmatch(text)
        names = [row[0].lower() for row in self._rows]
        if match is not None and match[1].strip("\"'") in names:
            return match[1].strip("\"'")
        if match is not None and text.startswith("it is "):
            raise InvalidActionError(f"{match[1][:30]!r} is not a name of the table")
        return None

    def _question(self, text: str) -> tuple[str, str, str]:
        """Return a question as property, "is", ">" or "<", and value."""
        match = _QUESTION.fullmatch(text) if len(text) <= _MAX_QUESTION else None
        if match is None or (match[2] == " " and not re.match(r"(?:is|are|does|do|has)\b", text)):
            raise InvalidActionError('the answer is neither a question such as "property is value" nor "it is name"')
        column, value = match[1].strip("\"'"), match[3].strip("\"'")
        relation = re.sub(r"^(?:is|are|be) ", "", match[2].strip())
        if relation in _AT_LEAST + _AT_MOST and _is_number(value):
            shift = -1 if relation in _AT_LEAST else 1
            return column, ">" if shift < 0 else "<", str(int(value) + shift)
        return column, ">" if relation in _ABOVE else "<" if relation in _BELOW else "is", value

    def _mask(self, column: str, relation: str, value: str) -> int:
        """Return the rows for which the answer is yes, as bits."""
        columns = [name.lower() for name in self._columns]
        if column not in columns[1:]:
            raise InvalidActionError(f"{column[:30]!r} is not a property; they are {', '.join(self._columns[1:])}")
        place = columns.index(column, 1)
        if relation == "is":
            return _bits([row[place].lower() == value for row in self._rows])
        if not all(_is_number(row[place]) for row in self._rows):
            raise InvalidActionError(f"the values of {column!r} are not numbers; ask whether it is one of them")
        if not _is_number(value):
            raise InvalidActionError(f"{value[:30]!r} is not a whole number of at most 9 digits")
        bound = int(value)
        return _bits([int(row[place]) > bound if relation == ">" else int(row[place]) < bound for row in self._rows])

    def next_action(self) -> str:
        """Ask the question that splits the remaining rows most evenly; name the last one."""
        if self._left & (self._left - 1) == 0:
            return self.write_answer(f"it is {self._rows[self._left.bit_length() - 1][0]}")
        questions = _questions(self._columns, self._rows)
        return self.write_answer(_best_question(questions, self._left)[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _bits(answers: Sequence[bool]) -> int:
    """Return the places of the true ones as bits."""
    mask = 0
    for place, is_yes in enumerate(answers):
        if is_yes:
            mask |= 1 << place
    return mask


def _questions(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """Return every question worth asking, with the rows for which the answer is yes, as bits."""
    questions = []
    for place, column in enumerate(columns[1:], 1):
        masks: dict[str, int] = {}
        for number, row in enumerate(rows):
            masks[row[place]] = masks.get(row[place], 0) | 1 << number
        questions += [(f"{column} is {value}", mask) for value, mask in masks.items()]
        if all(_is_number(value) for value in masks):
            above = 0
            ordered = sorted(masks, key=int, reverse=True)
            for value, bound in pairwise(ordered):
                above |= masks[value]
                questions.append((f"{column} > {bound}", above))
    return questions


def _best_question(questions: Sequence[tuple[str, int]], left: int) -> tuple[str, int]:
    """Return the question that leaves the fewest rows in the worst case, the first of those that do."""
    n_left = left.bit_count()
    half = (n_left + 1) // 2
    best, fewest = questions[0], n_left
    for question in questions:
        n_yes = (question[1] & left).bit_count()
        worst = n_yes if 2 * n_yes > n_left else n_left - n_yes
        if worst < fewest:
            best, fewest = question, worst
            if worst <= half:
                break
    return best


def _replies_needed(questions: Sequence[tuple[str, int]], left: int | None = None) -> int:
    """Return how many replies the oracle needs in the worst case, the name included; 100 if rows are alike."""
    if left is None:
        left = 0
        for _, mask in questions:
            left |= mask
    if left & (left - 1) == 0:
        return 1
    mask = _best_question(questions, left)[1]
    if mask & left in (0, left):
        return 100
    return 1 + max(_replies_needed(questions, left & mask), _replies_needed(questions, left & ~mask))
