"""Language and format: hand-worked texts, what a hurried player tries, and the regular expressions against Python's."""

import random
import re

import gymnasium as gym
import pytest
from task_play import reward

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.language.english import english_words
from llm_envs.tasks.language.extraction import matching
from llm_envs.tasks.language.json_record import _FIELDS, same_json
from llm_envs.tasks.language.patterns import Pattern
from llm_envs.tasks.language.vocabulary import VOCABULARY

# Acrostic.

POEM = {
    "first": "moo",
    "last": "kle",
    "words": 2,
    "given": ["milk"],
    "letters": [],
    "example": "morning milk\nold owl\nopen rose",
}


def test_an_acrostic_says_its_conditions():
    env = gym.make("llm/Acrostic-v0")
    observation, _ = env.reset(options={"problem": POEM})
    assert observation.splitlines() == [
        "Write 3 lines:",
        "- The first letters of the lines, from top to bottom, spell MOO.",
        "- The last letters of the lines spell KLE.",
        "- Each line has exactly 2 words.",
        "- These words occur: milk.",
        "- Every word is an English word of at least three letters and no proper name, and no word occurs twice.",
    ]
    with pytest.raises(InvalidConfigError, match="does not meet the conditions: stone does not occur"):
        env.reset(options={"problem": {**POEM, "given": ["stone"]}})


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_strings_of_letters_are_not_an_acrostic(level):
    """What meets every condition on letters and counts, with no word but those that are given."""
    env = gym.make("llm/Acrostic-v0", difficulty=level)
    rng = random.Random(0)
    for seed in range(100):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        lines = []
        for line in problem["example"].split("\n"):
            words = line.split()
            for j, word in enumerate(words):
                inside = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in word[1:-1])
                words[j] = word if word in problem["given"] else f"{word[0]}{inside}{word[-1]}"
            lines.append(" ".join(words))
        assert env.step(f"<answer>{chr(10).join(lines)}</answer>")[1] == 0


def test_the_letters_of_the_lines_are_counted():
    counted = POEM | {"letters": [11, 6, 8]}
    assert reward("llm/Acrostic-v0", counted, POEM["example"]) == 1
    assert reward("llm/Acrostic-v0", counted, "moody milk\nold owl\nopen rose") == 0
    assert reward("llm/Acrostic-v0", POEM, "moody milk\nold owl\nopen rose") == 1
    with pytest.raises(InvalidConfigError, match="a number for each line"):
        reward("llm/Acrostic-v0", POEM | {"letters": [11, 6]}, POEM["example"])


def test_english_words_are_those_of_both_spellings_with_their_endings():
    known = english_words()
    assert 75_000 < len(known) < 80_000
    assert {"colour", "color", "organised", "organized", "mice", "ran", "highest", "neighbors", *VOCABULARY} <= known
    assert not {"mxt", "qwxrt", "aaa", "clvi", "darth"} & known


# Instructions: each rule, met and missed.


@pytest.mark.parametrize(
    ("rule", "follows", "does_not"),
    [
        (["words", 3, 4], "One two three.", "One two."),
        (["sentences", 2], "One. Two!", "One. Two"),
        (["sentences", 3], "One... Two! A third?", "One two. . ."),  # a full stop alone is no sentence
        (["lines", 2], "One\ntwo", "One\n\ntwo"),
        (["bullets", 2], "- One\n- two", "- One\ntwo"),
        (["uses", "owl", 2], "Owl, old owl.", "Owl, old owls."),
        (["nth", 2, "old"], "An old owl", "Old, an owl"),
        (["first", "owl"], "- Owl here", "An owl"),
        (["last", "owl"], "The old owl!", "Owl old"),
        (["without", "e"], "An owl", "An Eel"),
        (["case", "capital"], "OLD OWL!", "OLD OWl"),
        (["case", "small"], "old owl", "Old owl"),
        (["commas", 1], "Old, owl", "Old, grey, owl"),
        (["longest", 4], "Old well-", "Older"),
        (["longest", 7], "A half-way house", "A halfwayy house"),  # the hyphen is no letter
        (["marks", "!"], "Old! Owl!!", "Old! Owl."),
        (["marks", "."], "Old. Owl.", "Old. Owl"),
    ],
)
def test_instructions(rule, follows, does_not):
    problem = {"rules": [rule], "example": follows}
    assert reward("llm/Instructions-v0", problem, follows) == 1
    assert reward("llm/Instructions-v0", problem, does_not) == 0


def test_no_example_overuses_a_word():
    env = gym.make("llm/Instructions-v0", difficulty="hard").unwrapped
    for seed in (1199, 1636, 3048, 3819, 4170):  # of which the first text drawn does
        env.reset(seed=seed)
        assert env.step(env.oracle())[1] == 1


def test_a_text_cannot_be_padded():
    problem = {"rules": [["words", 20, 22]], "example": " ".join(VOCABULARY[:20])}
    assert reward("llm/Instructions-v0", problem, "word " * 20) == 0
    assert reward("llm/Instructions-v0", problem, problem["example"]) == 1
    assert reward("llm/Instructions-v0", {"rules": [["without", "e"]], "example": "owl"}, "...") == 0
    for wrong, message in [
        (["rhymes"], "is none of"),
        ([["words"], 1], "is none of"),
        (["words", "x"], "wrong arguments"),
        (["first", "b"], "not follow"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            reward("llm/Instructions-v0", {**problem, "rules": [wrong]}, "x")


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_consonants_follow_no_instructions(level):
    env = gym.make("llm/Instructions-v0", difficulty=level).unwrapped
    n_won = 0
    for seed in range(300):
        env.reset(seed=seed)
        (answer,) = env.shortcuts().values()
        words = re.findall(r"[^\W\d_]+", answer.removeprefix("<answer>").removesuffix("</answer>"))
        assert max(map(words.count, words)) <= 3
        n_won += env.step(answer)[1] == 1
    assert n_won / 300 <= env.chance_rate


@pytest.mark.parametrize(
    ("text", "is_english"),
    [
        ("It isn't Zeno's.", False),  # a name
        ("It isn't a dog's; we can't, won't and don't. They'll go, I'd say, and I\u2019ve seen you\u2019re OK.", True),
        ("On Monday at six o'clock, an up-to-date X-ray of my half-way house: hmm!", True),
        ("Colour or color, organised or organized, the 4th.", True),
        ("The bdrm of the mfg", False),
        ("The owl-xq", False),
        ("Qzx", False),
        ("The owl \u0436\u0443\u043a", False),
    ],
)
def test_words_are_english(text, is_english):
    problem = {"rules": [["words", 1, 30]], "example": "owl"}
    assert (reward("llm/Instructions-v0", problem, text) == 1) is is_english


# JsonRecord.

RECORD = {
    "schema": {"type": "object", "properties": {"age": {"type": "integer"}, "married": {"type": "boolean"}, "pet": {}}},
    "text": "Ada is 1 year old and not married.",
    "expected": {"age": 1, "married": False},
}


def test_lists_of_json_have_an_order_and_objects_none():
    assert same_json([{"a": 1, "b": [2.0]}], [{"b": [2], "a": 1}])
    assert not same_json([1, 2], [2, 1])
    assert not same_json(None, False) and not same_json("1", 1)


def test_comparisons_of_people_follow_from_what_is_right_in_the_end():
    """Salaries, worked out from the sentences alone."""
    env, compared = gym.make("llm/JsonRecord-v0", difficulty="expert").unwrapped, 0
    plain, other = (
        r"(\w+) earns ([\d,.]+)( thousand)? a year\.",
        r"(\w+) earns ([\d,]+) a year (more|less) than (\w+)\.",
    )
    for seed in range(12):
        env.reset(seed=seed)
        told = {}
        for match in re.finditer(f"{plain}|{other}", env.problem["text"]):
            who, amount, thousand, who_else, change, sign, base = match.groups()
            if who:
                told[who] = float(amount.replace(",", "")) * (1000 if thousand else 1), None
            else:
                told[who_else] = float(change.replace(",", "")) * (1 if sign == "more" else -1), base
        compared += sum(base is not None for _, base in told.values())
        for person in env.problem["expected"]["people"]:
            key = next((key for key in ("salary", "yearly_income") if key in person.get("work", {})), None)
            assert (key is not None) == (person["name"] in told)
            amount, base = told.get(person["name"], (0, None))
            while base is not None:
                more, base = told[base]
                amount += more
            assert key is None or person["work"][key] == pytest.approx(amount)
    assert compared > 20


@pytest.mark.parametrize(
    ("key", "value", "sentence", "right"),
    [
        ("age", 60, "Bo is 6 years younger than Al.", 54),
        ("birth_date", "1960-03-01", "Bo was born 6 days after Al.", "1960-03-07"),
        ("commute_minutes", 80, "Bo's way to work is 6 minutes longer than Al's.", 86),
        ("married", True, "Of Bo and Al, exactly one is married.", False),
        (
            *("languages", ["Greek", "Welsh"]),
            *("Bo speaks the languages of Al in the same order, but Greek comes last.", ["Welsh", "Greek"]),
        ),
        ("member_id", "A123", "The number on Bo's card is that on Al's card with C for its letter.", "C123"),
        (
            *("pet", {"name": "Moss", "kind": "cat"}),
            *("Bo has a dog that is called like Al's pet.", {"name": "Moss", "kind": "dog"}),
        ),
    ],
)
def test_comparisons_by_hand(key, value, sentence, right):
    field = next(field for field in _FIELDS if key in field.keys)
    rng = random.Random(0)
    found = [field.compare(rng.random, "Bo", "Al", value) for _ in range(3000)]
    assert next(follows(value) for follows, said in found if said == sentence) == right


# Extraction.

DELIVERIES = {
    "document": "K27 and M81.",
    "entries": [
        {"code": "K27", "person": "Ada", "city": "Oslo", "weight": 10, "arrived": True},
        {"code": "M81", "person": "Ben", "city": "Oslo", "weight": 40, "arrived": False},
        {"code": "P55", "person": "Ben", "city": "Riga", "weight": 41, "arrived": False},
    ],
    "conditions": [["city", "is", "Oslo"]],
}


@pytest.mark.parametrize(
    ("conditions", "right"),
    [
        ([["city", "is", "Oslo"]], "K27, M81"),
        ([["weight", "over", 40]], "P55"),
        ([["weight", "under", 40]], "K27"),
        ([["arrived", "is", False], ["person", "is", "Ben"], ["city", "is", "Riga"]], "p55."),
    ],
)
def test_extraction(conditions, right):
    problem = {**DELIVERIES, "conditions": conditions}
    assert reward("llm/Extraction-v0", problem, right) == 1
    assert reward("llm/Extraction-v0", problem, "K27, M81, P55") == 0
    for malformed in ("K28", "none", f"{right}, {right}"):
        assert reward("llm/Extraction-v0", problem, malformed) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": [["weight", "over", "40"]]},
        {"conditions": [["weight", "is", 40]]},
        {"conditions": [["city", "over", "Oslo"]]},
        {"conditions": [["arrived", "is", 1]]},
        {"conditions": [["city", "is", {"of": "heaviest", "that": [["city", "is", "Rome"]]}]]},  # there is none
        {"conditions": [["city", "is", {"of": "dearest", "that": []}]]},
        {"conditions": [["arrived", "is", {"of": "heaviest", "that": []}]]},
        {"conditions": [["city", "is", {"of": "heaviest", "that": [["city", "is", {"of": "heaviest", "that": []}]]}]]},
        {"entries": [{**DELIVERIES["entries"][0], "code": "k27"}]},
        {"entries": DELIVERIES["entries"] * 2},
    ],
)
def test_deliveries_that_do_not_hang_together_are_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        reward("llm/Extraction-v0", {**DELIVERIES, **change}, "K27")


OTHERS = [["city", "is", "Oslo"], ["arrived", "is", False]]


@pytest.mark.parametrize(
    ("condition", "said", "right"),
    [
        (["weight", "over", {"of": "heaviest", "that": OTHERS[:1]}], "weigh more than the heaviest delivery", "P55"),
        (["weight", "under", {"of": "lightest", "that": OTHERS[1:]}], "weigh less than the lightest delivery", "K27"),
        (["city", "is", {"of": "heaviest", "that": OTHERS[1:]}], "go where the heaviest delivery", "P55"),
        (["person", "is", {"of": "heaviest", "that": OTHERS[:1]}], "ordered by the customer of the", "M81, P55"),
        (["person", "is", {"of": "heaviest", "that": OTHERS}], "that goes to Oslo and has not arrived.", "M81, P55"),
    ],
)
def test_conditions_with_another_delivery(condition, said, right):
    problem = {**DELIVERIES, "conditions": [condition]}
    assert reward("llm/Extraction-v0", problem, right) == 1
    assert reward("llm/Extraction-v0", problem, "K27, M81, P55") == 0
    assert said in gym.make("llm/Extraction-v0").reset(options={"problem": problem})[0]


def test_compared_deliveries_follow_from_what_is_right_in_the_end():
    """Weights and destinations, worked out from the sentences alone."""
    env, compared = gym.make("llm/Extraction-v0", difficulty="expert").unwrapped, 0
    for seed in range(12):
        env.reset(seed=seed)
        told = {}
        for sentence in re.findall(r"[^.]+\.(?: Its?(?! turned) [^.]*\.)?", env.problem["document"]):
            codes = re.findall(r"\b[A-Z][0-9]{2}\b", sentence)
            if not codes:
                continue
            own = re.search(r"goes where ([A-Z]\d\d) goes|kg (more|less) than ([A-Z]\d\d)", sentence)
            code = next(code for code in codes if own is None or code not in own.groups())
            if own and own[1]:
                told[code, "city"] = own[1], None
            elif city := re.search(r"(?:goes to|go to|for) ([A-Z]\w+)|([A-Z]\w+) is where", sentence):
                told[code, "city"] = None, city[1] or city[2]
            if own and own[2]:
                sign = 1 if own[2] == "more" else -1
                told[code, "weight"] = own[3], sign * int(re.search(r"(\d+) kg", sentence)[1])
            elif weight := re.search(r"(\d+) kg", sentence):
                told[code, "weight"] = None, int(weight[1])
        for entry in env.problem["entries"]:
            for name in ("city", "weight"):
                other, value = told[entry["code"], name]
                compared += other is not None
                while other is not None:
                    other, more = told[other, name]
                    value = more if name == "city" else value + more
                assert value == entry[name]
    assert compared > 12 * 15


def test_a_pattern_is_in_one_split():
    env = gym.make("llm/Regex-v0").unwrapped
    first = {"pattern": "a+b", "match": ["ab"], "reject": ["b"]}
    assert (
        env.split_key(first) == env.split_key({**first, "match": ["aab"]}) != env.split_key({**first, "pattern": "ab+"})
    )


@pytest.mark.parametrize(("level", "n"), [("hard", 4), ("expert", 12)])
def test_a_correction_matters(level, n):
    env = gym.make("llm/Extraction-v0", difficulty=level)
    for seed in range(20):
        env.reset(seed=seed)
        first, last = env.unwrapped.problem["document"].rsplit("\n\n", 1)
        said = {entry["code"]: entry for entry in env.unwrapped.problem["entries"]}
        changed = [code for code in said if code in last]
        assert len(changed) == n and all(code in first for code in said)


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_every_condition_on_deliveries_matters(level):
    env = gym.make("llm/Extraction-v0", difficulty=level).unwrapped
    for seed in range(40):
        env.reset(seed=seed)
        entries, conditions = env.problem["entries"], env.problem["conditions"]
        found = matching(entries, conditions)
        assert 2 <= len(found) <= env.settings["most"] and len(conditions) == env.settings["conditions"]
        for i in range(len(conditions)):
            assert len(matching(entries, conditions[:i] + conditions[i + 1 :])) > len(found)


# Regex.


def test_a_list_of_the_texts_is_too_long():
    for level in ("easy", "medium", "hard", "expert"):
        env = gym.make("llm/Regex-v0", difficulty=level)
        for seed in range(30):
            env.reset(seed=seed)
            assert env.step(f"<answer>{'|'.join(env.unwrapped.problem['match'])}</answer>")[1] <= 0


def random_pattern(rng, depth=0):
    kind = rng.randrange(7 if depth < 3 else 4)
    if kind < 2:
        return rng.choice(["a", "b", r"\."])
    if kind == 2:
        return rng.choice(["[ab]", "[^a]", ".", r"\d", "[a-b1]", r"\w", r"[\d-]"])
    if kind == 3:
        return rng.choice("ab") + rng.choice(["?", "*", "+", "{2}", "{1,2}", "{0}", "{0,2}", "{1,}", "{0,}"])
    if kind == 4:
        return f"({random_pattern(rng, depth + 1)}){rng.choice(['', '?', '*', '+', '{2}', '{0,1}', '{2,}'])}"
    if kind == 5:
        return random_pattern(rng, depth + 1) + random_pattern(rng, depth + 1)
    return f"({random_pattern(rng, depth + 1)}|{random_pattern(rng, depth + 1)})"


def test_patterns_match_what_pythons_do():
    rng = random.Random(0)
    for _ in range(2_000):
        source = random_pattern(rng)
        ours, theirs = Pattern(source), re.compile(source)
        for _ in range(6):
            text = "".join(rng.choice("ab1.-") for _ in range(rng.randrange(7)))
            assert ours.matches(text) == bool(theirs.fullmatch(text)), (source, text)


def test_patterns_take_time_in_proportion():
    assert not Pattern("(a+)+b").matches("a" * 5_000)  # 2 ** 5000 ways, one after another


@pytest.mark.parametrize(
    "source", ["(", "a)", "[", "a**", "{2}", "a{", "a{3,2}", r"\q", "(?:a)", "^a", "((a{99}){99}){99}", "a\\", "[z-a]"]
)
def test_broken_patterns_are_refused(source):
    with pytest.raises(InvalidActionError, match="the pattern"):
        Pattern(source)


# Answers to each, in plain and in natural forms.

REGEX = {"pattern": "a+b", "match": ["ab", "aab"], "reject": ["b", "abb"]}
TEXT = {"rules": [["sentences", 1], ["first", "owls"], ["marks", "."]], "example": "Owls sleep."}


@pytest.mark.parametrize(
    ("name", "problem", "answer", "paid"),
    [
        ("Acrostic", POEM, "morning milk\nold owl\nopen rose", 1),
        ("Acrostic", POEM, "Morning milk,\n\n  Old owl!\nOpen rose.", 1),
        ("Acrostic", POEM, "morning milk\nold owl", 0),
        ("Acrostic", POEM, "milk morning\nold owl\nopen rose", 0),  # the last letters
        ("Acrostic", POEM, "tender milk\nold owl\nopen rose", 0),  # the first letters
        ("Acrostic", POEM, "morning dark\nold owl\nopen rose", 0),  # a given word is missing
        ("Acrostic", POEM, "morning milk\nold milk owl\nopen rose", 0),  # three words
        ("Acrostic", POEM, "open milk\nold owl\nopen rose", 0),
        ("Acrostic", POEM, "milk milk\nold owl\nopen rose", 0),  # a word twice
        ("Acrostic", POEM, "mrrrning milk\nold owl\nopen rose", 0),  # not a word
        ("Acrostic", POEM, "m milk\nold owl\nopen rose", -0.1),
        ("Acrostic", POEM, "morning m1lk\nold owl\nopen rose", -0.1),
        ("JsonRecord", RECORD, '{"married": false, "age": 1}', 1),
        ("JsonRecord", RECORD, '```json\n{"age": 1.0, "married": false}\n```', 1),
        ("JsonRecord", RECORD, '{"age": "1", "married": false}', 0),
        ("JsonRecord", RECORD, '{"age": true, "married": false}', 0),
        ("JsonRecord", RECORD, '{"age": 1, "married": 0}', 0),
        ("JsonRecord", RECORD, '{"age": 1, "married": false, "pet": null}', 0),  # invented
        ("JsonRecord", RECORD, '{"age": 1}', 0),
        ("JsonRecord", RECORD, '{"age": 2, "age": 1, "married": false}', -0.1),
        ("JsonRecord", RECORD, "{'age': 1, 'married': False}", -0.1),
        ("JsonRecord", RECORD, '{"age": NaN}', -0.1),
        ("JsonRecord", RECORD, "[1]", -0.1),
        ("JsonRecord", RECORD, "[" * 100_000, -0.1),
        ("Regex", REGEX, "a+b", 1),
        ("Regex", REGEX, "[a]+b", 1),
        ("Regex", REGEX, "a{1,2}b", 1),
        ("Regex", REGEX, "a*b", 0),  # matches "b"
        ("Regex", REGEX, "ab", 0),
        ("Regex", REGEX, "ab|aab|aaab", -0.1),  # longer than 7 characters
        ("Regex", REGEX, "(a+", -0.1),
        ("Regex", REGEX, "a++b", -0.1),
        ("Acrostic", POEM, "**M**orning milk\n**O**ld owl\n**O**pen rose", 1),
        ("Acrostic", POEM, "1. Morning milk\n2. Old owl\n3. Open rose", 1),
        ("Acrostic", POEM, "Here it is:\n```\nMorning milk\nOld owl\nOpen rose\n```", 1),
        ("Instructions", TEXT, "Owls sleep.", 1),
        ("Instructions", TEXT, "```\nOwls sleep.\n```", 1),
        ("JsonRecord", RECORD, 'This is it:\n```json\n{"age": 1, "married": false}\n```\nI left out the pet.', 1),
        ("JsonRecord", RECORD, 'The record is {"age": 1, "married": false}.', 1),
        ("Extraction", DELIVERIES, "- K27\n- M81", 1),
        ("Extraction", DELIVERIES, "1. K27; 2. M81", 1),
        ("Extraction", DELIVERIES, "Deliveries **K27** and **M81**.", 1),
        ("Extraction", DELIVERIES, "The codes are k27, m81.", 1),
        ("Extraction", DELIVERIES, "[K27, M81]", 1),
        ("Regex", REGEX, "`a+b`", 1),
        ("Regex", REGEX, "^a+b$", 1),
        ("Regex", REGEX, "**a+b**", 1),
        ("Regex", REGEX, "$a+b$", 1),
        ("Regex", REGEX, "(?:a)+b", 1),
        ("Regex", REGEX, "The pattern is:\n```\na+b\n```", 1),
        ("Acrostic", POEM, "Morning milk\nOld owl\nOpen rose\nor\nMoody milk\nOld owl\nOpen rose", -0.1),
        ("Instructions", TEXT, "Owls sleep", 0),  # the full stop belongs to the text
        ("Instructions", TEXT, "Owls sleep.\nOwls wake.", 0),
        ("JsonRecord", RECORD, '{"age": 1, "married": false} or {"age": 2, "married": false}', -0.1),
        ("Extraction", DELIVERIES, "K27, M81 or P55", -0.1),
        ("Extraction", DELIVERIES, "K27 and M81, maybe P55", -0.1),
        ("Extraction", DELIVERIES, "The answer is K27, M81. The answer is P55.", -0.1),
        ("Regex", REGEX, "a+b or ab", -0.1),
        ("Regex", REGEX, "```\na+b\n```\n```\nab\n```", -0.1),
    ],
)
def test_answers_are_paid(name, problem, answer, paid):
    assert reward(f"llm/{name}-v0", problem, answer) == pytest.approx(paid)


def test_codes_are_read_from_prose():
    env = gym.make("llm/Extraction-v0", answer_form="natural")
    for reply, paid in [("K27 and M81 go there. So the answer is K27, M81.", 1), ("It is K27, M81 or P55.", -0.1)]:
        env.reset(options={"problem": DELIVERIES})
        assert env.step(reply)[1] == pytest.approx(paid)
