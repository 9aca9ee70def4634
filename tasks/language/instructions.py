"""`llm/Instructions-v0`: write a text that follows instructions which a program can verify."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, shuffled
from llm_envs.tasks.language.english import english_words
from llm_envs.tasks.language.vocabulary import VOCABULARY
from llm_envs.tasks.replies import without_fence
from llm_envs.tasks.wording import in_words

__all__ = ["RULES", "InstructionsEnv", "Rule"]


class InstructionsEnv(SingleTurnEnv):
    """Write a text that follows instructions which a program can verify.

    ## Description
    Each episode asks for a text under several instructions at once: numbers of words, sentences or lines, words that
    must or must not occur, letters to avoid, capitals, how lines begin. All can be met together: the generator has a
    text that does. All words must be English, and none may be overused, so that a text cannot be padded. The content of
    the text is not judged. Teaches to keep many constraints in mind while writing, and to count.

    ## Observation
    The instructions. After the reply "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    The text in the final answer, `<answer>Rain fell.</answer>`; it may have several lines. White space around it, and
    a fence of three backticks, do not count. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if every instruction is followed; English words are those of
    `tasks/language/english_words.txt` with a vowel, and some short ones. `malformed` (weight -0.1): 1 for a reply
    without an answer or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): two instructions; "medium": four; "hard": six; "expert": six to
      ten.
    - `reset(options={"problem": {"rules": [["words", 3, 5], ["without", "e"]], "example": "A lion is out."}})` gives
      instructions (the names in `RULES`, each with its arguments) and an example that follows them.

    ## Version History
    - v0: first version.
    """

    # Bounds on how often the best of 400 fixed texts follows all instructions: measured 11%, 0.8% and 0%.
    difficulties = {
        "easy": Difficulty("two instructions", chance_rate=0.13, settings={"n_rules": 2, "n_sentences": 3}),
        "medium": Difficulty("four instructions", chance_rate=0.015, settings={"n_rules": 4, "n_sentences": 4}),
        "hard": Difficulty("six instructions", chance_rate=0.003, settings={"n_rules": 6, "n_sentences": 6}),
        "expert": Difficulty("six to ten instructions", chance_rate=0.003, settings={"n_rules": 10, "n_sentences": 9}),
    }
    default_difficulty = "easy"
    problem_fields = {"rules": list, "example": str}
    instructions = "Write a text that follows every instruction of the user. The content is up to you."
    answer_example = "Rain fell."
    plain_answer = staticmethod(without_fence)
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw a text, and then instructions that it follows."""
        random = self.np_random.random
        text = _draw_text(random, between(random, 2, self.settings["n_sentences"]))
        while not _is_varied(text):
            text = _draw_text(random, between(random, 2, self.settings["n_sentences"]))
        rules: list[list[Any]] = []
        for name in ["words", *shuffled(random, _OTHERS)]:
            arguments = RULES[name].draw(random, text)
            if arguments is not None:
                rules.append([name, *arguments])
            if len(rules) == self.settings["n_rules"]:
                break
        return {"rules": shuffled(random, rules), "example": text}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse unknown instructions, and those that the example does not follow."""
        for given in problem["rules"]:
            name, *arguments = given if isinstance(given, list) and given else [None]
            if not isinstance(name, str) or name not in RULES:
                raise InvalidActionError(f"{given!r} is none of {', '.join(RULES)}")
            try:
                RULES[name].say(*arguments)
                follows = RULES[name].follows(problem["example"], *arguments)
            except Exception as error:
                raise InvalidActionError(f"{given!r} has wrong arguments") from error
            if not follows:
                raise InvalidActionError(f"its example does not follow {given!r}")
        if not _is_varied(problem["example"]):
            raise InvalidActionError("its example overuses a word, or has one that is not English")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the instructions: another example does not make another problem."""
        return sorted(map(str, problem["rules"]))

    def prompt(self) -> str:
        """Return the instructions."""
        said = [RULES[name].say(*arguments) for name, *arguments in self.problem["rules"]]
        said.append(
            f"Use no word more than {_MOST_USES} times, and only English words of at most 15 letters, no names. (A "
            "word is letters, with - or ' between letters or not.)"
        )
        return "\n".join(["Write a text.", *(f"{i}. {line}" for i, line in enumerate(said, 1))])

    def solution(self) -> str:
        """Return the example."""
        return str(self.problem["example"])

    def is_correct(self, answer: str) -> bool:
        """Look at every instruction."""
        text = answer.strip()
        rules = self.problem["rules"]
        return _is_varied(text) and all(RULES[name].follows(text, *arguments) for name, *arguments in rules)

    def shortcuts(self) -> Mapping[str, str]:
        """Return the example with consonants in place of all words that no instruction names."""
        forbidden = "".join(letter for name, letter, *_ in self.problem["rules"] if name == "without")
        letters = [letter for letter in "bcdfghjklmnpqrstvwxz" if letter not in forbidden]
        named = {str(value) for _, *arguments in self.problem["rules"] for value in arguments}
        places = count()

        def meaningless(found: re.Match[str]) -> str:
            word = found[0]
            if word.lower() in named:
                return word
            place = next(places)
            drawn = "".join(letters[(place // len(letters) ** i) % len(letters)] for i in range(len(word)))
            return drawn.upper() if word.isupper() else drawn.capitalize() if word[0].isupper() else drawn

        return {"consonants": self.write_answer(_WORD.sub(meaningless, self.problem["example"]))}


class Rule(NamedTuple):
    """An instruction: its words, whether a text follows it, and its arguments for a given text."""

    say: Callable[..., str]
    """Its arguments -> the instruction."""
    follows: Callable[..., bool]
    """Text and arguments -> whether the text follows it."""
    draw: Callable[[Random, str], list[Any] | None]
    """A text -> arguments under which the text follows it; None if there are none that say much."""


_MOST_USES = 3
_WORD = re.compile(r"(?<![^\W_])[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_END = re.compile(r"[.!?]+")
_VOWEL = re.compile("[aeiouy]")
_OTHER_WORDS = frozenset(re.findall(r"\S+", """
a i o ad ah am an as at be by do eh er ex go ha he hi hm if in is it ma me mr ms mrs my no of oh ok okay on or ow ox pa
pi so to tv uh uk um up us we ye yo hmm shh brr nth dr st etc vs t-shirt x-ray e-mail shan english christmas easter
internet monday tuesday wednesday thursday friday saturday sunday january february march april may june july august
september october november december
"""))  # fmt: skip
"""Words that the list of English words, of 3 letters or more and no names, does not have."""
_ENDINGS = ("n't", "'t", "'s", "'d", "'m", "'ll", "'re", "'ve")


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _sentences(text: str) -> int:
    return len(_END.findall(text))


def _is_in_sentences(text: str) -> bool:
    """Return whether every sentence has words and an end."""
    *sentences, rest = _END.split(text)
    return bool(sentences) and not rest.strip() and all(map(_WORD.search, sentences))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_varied(text: str) -> bool:
    """Return whether a text has words, all of them English, and none too often."""
    uses = Counter(_words(text))
    return bool(uses) and max(uses.values()) <= _MOST_USES and all(map(_is_english, uses))


@lru_cache(maxsize=4096)
def _is_english(word: str) -> bool:
    """Return whether each part of a word is English: half-way, isn't, the owl's."""
    word = word.replace("\u2019", "'")
    stems = [word, *(word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending))]
    return word in _OTHER_WORDS or any(all(map(_is_listed, re.split("['-]", stem))) for stem in stems)


def _is_listed(word: str) -> bool:
    return word in _OTHER_WORDS or (word in english_words() and _VOWEL.search(word) is not None)


def _draw_text(random: Random, n_sentences: int) -> str:
    """Return sentences of common words, one to a line or running on, in one of several forms."""
    sentences = []
    for _ in range(n_sentences):
        words = [pick(random, VOCABULARY) for _ in range(between(random, 4, 8))]
        middle = between(random, 1, len(words) - 1)
        comma = "," if random() < 0.3 else ""
        text = " ".join([*words[:middle], *words[middle:]])
        if comma:
            text = f"{' '.join(words[:middle])}, {' '.join(words[middle:])}"
        sentences.append(text.capitalize() + pick(random, ".....!?"))
    form = random()
    if form < 0.35:
        text = " ".join(sentences)
    elif form < 0.7:
        text = "\n".join(sentences)
    else:
        text = "\n".join(f"- {sentence}" for sentence in sentences)
    case = random()
    return text.upper() if case < 0.15 else text.lower() if case < 0.3 else text


def _draw_words(random: Random, text: str) -> list[Any]:
    n = len(_words(text))
    low = n - between(random, 0, 2)
    return [low, low + 2]


def _draw_uses(random: Random, text: str) -> list[Any]:
    word, n = pick(random, sorted(Counter(_words(text)).items()))
    return [word, n]


def _draw_without(random: Random, text: str) -> list[Any] | None:
    missing = [letter for letter in "aeiourstnldm" if letter not in text.lower()]
    return [pick(random, missing)] if missing else None


def _draw_case(random: Random, text: str) -> list[Any] | None:
    if text == text.upper():
        return ["capital"]
    return ["small"] if text == text.lower() else None


def _in_case(text: str, case: str) -> bool:
    return text == (text.upper() if case == "capital" else text.lower())


def _draw_bullets(random: Random, text: str) -> list[Any] | None:
    lines = _lines(text)
    return [len(lines)] if len(lines) > 1 and all(line.startswith("- ") for line in lines) else None


def _draw_lines(random: Random, text: str) -> list[Any] | None:
    lines = _lines(text)
    return [len(lines)] if len(lines) > 1 and not lines[0].startswith("- ") else None


def _draw_longest(random: Random, text: str) -> list[Any] | None:
    longest = _most_letters(text)
    return [longest] if longest <= 6 else None


def _most_letters(text: str) -> int:
    return max((sum(map(str.isalpha, word)) for word in _words(text)), default=0)


def _ends(text: str, mark: str) -> bool:
    return _is_in_sentences(text) and all(set(found) == {mark} for found in _END.findall(text))


def _draw_marks(random: Random, text: str) -> list[Any] | None:
    marks = set(_END.findall(text))
    return [marks.pop()] if len(marks) == 1 else None


def _draw_nth(random: Random, text: str) -> list[Any]:
    words = _words(text)
    place = between(random, 2, min(len(words), 9))
    return [place, words[place - 1]]


RULES: Mapping[str, Rule] = {
    "words": Rule(
        lambda low, high: f"It has {low} to {high} words.",
        lambda text, low, high: low <= len(_words(text)) <= high,
        _draw_words,
    ),
    "sentences": Rule(
        lambda n: f"It has exactly {in_words(n, 'sentence')}, each ending with a full stop, ! or ?",
        lambda text, n: _sentences(text) == n and _is_in_sentences(text),
        lambda random, text: [_sentences(text)],
    ),
    "lines": Rule(
        lambda n: f"It has exactly {in_words(n, 'line')}, none of them empty.",
        lambda text, n: len(text.splitlines()) == len(_lines(text)) == n,
        _draw_lines,
    ),
    "bullets": Rule(
        lambda n: f'It is a list of exactly {in_words(n, "line")}, each beginning with "- ".',
        lambda text, n: len(_lines(text)) == n and all(line.startswith("- ") for line in _lines(text)),
        _draw_bullets,
    ),
    "uses": Rule(
        lambda word, n: f'The word "{word}" occurs {"once" if n == 1 else in_words(n, "time")}, no more and no less.',
        lambda text, word, n: _words(text).count(word) == n,
        _draw_uses,
    ),
    "nth": Rule(
        lambda n, word: f'Word number {n} is "{word}".',
        lambda text, n, word: _words(text)[n - 1 : n] == [word],
        _draw_nth,
    ),
    "first": Rule(
        lambda word: f'The first word is "{word}".',
        lambda text, word: _words(text)[:1] == [word],
        lambda random, text: _words(text)[:1],
    ),
    "last": Rule(
        lambda word: f'The last word is "{word}".',
        lambda text, word: _words(text)[-1:] == [word],
        lambda random, text: _words(text)[-1:],
    ),
    "without": Rule(
        lambda letter: f'The letter "{letter}" does not occur, neither small nor capital.',
        lambda text, letter: letter not in text.lower(),
        _draw_without,
    ),
    "case": Rule(lambda case: f"All letters are {case} letters.", _in_case, _draw_case),
    "commas": Rule(
        lambda n: f"It has exactly {in_words(n, 'comma')}.",
        lambda text, n: text.count(",") == n,
        lambda random, text: [text.count(",")] if "," in text else None,
    ),
    "longest": Rule(
        lambda n: f"No word has more than {n} letters.",
        lambda text, n: _most_letters(text) <= n,
        _draw_longest,
    ),
    "marks": Rule(
        lambda mark: f'Every sentence ends with "{mark}".',
        _ends,
        _draw_marks,
    ),
}
"""The instructions by name. A word consists of letters, and hyphens or apostrophes between letters."""
_OTHERS: Sequence[str] = [name for name in RULES if name != "words"]
