"""The tasks of tasks/logic that are about statements: knights and knaves, syllogisms, entailment."""

import random
from collections import Counter
from itertools import product

import gymnasium as gym
import pytest
from task_play import LEVELS, drawn, is_at_most, require_refused

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.logic.assignments import read_assignment
from llm_envs.tasks.logic.knights_and_knaves import _tells_its_speaker, possible_kinds
from llm_envs.tasks.logic.syllogisms import follows, forms

# Assignments.


def form_of(statement, speaker):
    """Return all of a statement but its other people: form, numbers, truths, and where it names the speaker."""
    form, *rest = statement
    if form == "count":
        return str(statement)
    people = [0, 2] if form == "if" else [0] if form == "is" else [0, 1]
    return str([form, *(value == speaker if place in people else value for place, value in enumerate(rest))])


@pytest.mark.parametrize(("level", "n_people", "n_train", "n_test"), [("easy", 3, 600, 300), ("medium", 5, 600, 300)])
def test_the_form_of_a_statement_does_not_give_its_speaker_away(level, n_people, n_train, n_test):
    """A table of how often each form is true, made from train, is right about test as rarely as declared."""
    tables, n_known, n_won = {}, 0, 0
    for split, n in (("train", n_train), ("test", n_test)):
        env = gym.make("llm/KnightsAndKnaves-v0", difficulty=level, split=split).unwrapped
        env.reset(seed=0)
        for _ in range(n):
            env.reset()
            truthful = [env._solution[name] == env.problem["kinds"][0] for name in env.problem["people"]]
            forms = [form_of(statement, speaker) for speaker, statement in enumerate(env.problem["statements"])]
            if split == "train":
                for form, is_truthful in zip(forms, truthful, strict=True):
                    tables.setdefault(form, []).append(is_truthful)
            else:
                known = [2 * sum(table) >= len(table) for table in (tables.get(form, [True]) for form in forms)]
                n_known += sum(map(bool.__eq__, known, truthful))
                n_won += known == truthful
    assert n_known / (n_people * n_test) < 0.58
    assert is_at_most(n_won / n_test, env.chance_rate, n_test)


def test_nobody_says_what_only_one_kind_can_say():
    for statement in (["any", 0, 1, False], ["both", 1, 0, False], ["if", 0, True, 1, True], ["count", 0]):
        assert _tells_its_speaker(5, statement, 0)
        assert statement[0] == "count" or not _tells_its_speaker(5, statement, 2)
    for statement in (["any", 0, 1, True], ["both", 1, 0, True], ["same", 0, 1], ["count", 5], ["is", 1, False]):
        assert not _tells_its_speaker(5, statement, 0)


def test_assignments_are_read():
    keys, values = ["Ada", "Ben"], ["knight", "knave"]
    wanted = {"Ada": "knight", "Ben": "knave"}
    for text in ("Ada: knight, Ben: knave", "ben = KNAVE; ada=Knight.", "Ada is knight\nBen->knave\n"):
        assert read_assignment(text, keys, values) == wanted
    for text, complaint in (
        ("Ada: knight", "has no value for Ben"),
        ("Ada: knight, Ben: knave, Ada: knave", "Ada has two values"),
        ("Ada: knight, Ben: either", "is not one of"),
        ("Ada: knight, Cleo: knave", "is not one of"),
        ("knight, knave", "not of the form Ada: knight"),
        ("", "not of the form"),
    ):
        with pytest.raises(InvalidActionError, match=complaint):
            read_assignment(text, keys, values)


# KnightsAndKnaves.

# Ada: Ben is a knave. Ben: Ada and Cleo are of the same kind. Cleo: at least one of Ada and me is a knave.
# Cleo a knave: then neither is a knave, a contradiction. So Cleo is a knight, so Ada is a knave, so Ben is a knight,
# who says that a knave and a knight are of the same kind: a contradiction. With "different" it fits.
KNIGHTS = {
    "people": ["Ada", "Ben", "Cleo"],
    "kinds": ["knight", "knave"],
    "statements": [["is", 1, False], ["different", 0, 2], ["any", 0, 2, False]],
}


def test_what_knights_and_knaves_say():
    env = gym.make("llm/KnightsAndKnaves-v0")
    assert env.reset(options={"problem": KNIGHTS})[0].splitlines()[1:] == [
        'Ada: "Ben is a knave."',
        'Ben: "Ada and Cleo are of different kinds."',
        'Cleo: "Of Ada and me, at least one is a knave."',
        "Of which kind is each of them?",
    ]
    convention = '"If X, then Y" is false when X is true and Y is false, and else true.'
    assert convention not in env.reset(options={"problem": KNIGHTS})[0]
    others = [["if", 0, True, 1, False], ["count", 1], ["both", 2, 0, True]]
    problem = KNIGHTS | {"statements": others}
    assert possible_kinds(3, others) == 1 << 0b101  # all but Ben, who says that there is one
    assert convention in env.reset(options={"problem": problem})[0].splitlines()[0]
    assert env.reset(options={"problem": problem})[0].splitlines()[1:4] == [
        'Ada: "If I am a knight, then Ben is a knave."',
        'Ben: "Exactly 1 of the 3 of us is a knight."',
        'Cleo: "Ada and I are both knights."',
    ]


def is_true(statement, kinds):
    """What a statement says, told in another way than the task's."""
    match statement:
        case ["is", a, truthful]:
            return kinds[a] is truthful
        case ["same", a, b]:
            return kinds[a] is kinds[b]
        case ["different", a, b]:
            return kinds[a] is not kinds[b]
        case ["any", a, b, truthful]:
            return truthful in (kinds[a], kinds[b])
        case ["both", a, b, truthful]:
            return kinds[a] is truthful and kinds[b] is truthful
        case ["if", a, first, b, second]:
            return kinds[b] is second if kinds[a] is first else True
        case ["count", count]:
            return kinds.count(True) == count


@pytest.mark.parametrize("level", LEVELS)
def test_exactly_one_assignment_of_kinds_fits(level):
    for task in drawn("llm/KnightsAndKnaves-v0", level, 60):
        statements, truthful = task.problem["statements"], task.problem["kinds"][0]
        fitting = [
            kinds
            for kinds in product((True, False), repeat=len(statements))
            if all(is_true(said, kinds) is kind for said, kind in zip(statements, kinds, strict=True))
        ]
        assert fitting == [tuple(kind == truthful for kind in task._solution.values())]


@pytest.mark.parametrize("level", LEVELS)
def test_no_assignment_of_kinds_is_common(level):
    n = 1_500
    found = Counter()
    for task in drawn("llm/KnightsAndKnaves-v0", level, n):
        found[tuple(kind == task.problem["kinds"][0] for kind in task._solution.values())] += 1
    assert is_at_most(max(found.values()) / n, task.chance_rate, n)


def test_other_names_and_another_order_are_one_puzzle():
    key = gym.make("llm/KnightsAndKnaves-v0").unwrapped.split_key
    for task in drawn("llm/KnightsAndKnaves-v0", "medium", 20):
        statements = task.problem["statements"]
        for order in ([1, 0, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 1, 0, 3]):
            renamed = [None] * 5
            for speaker, (form, *rest) in enumerate(statements):
                people = {"count": [], "is": [0], "if": [0, 2]}.get(form, [0, 1])
                renamed[order[speaker]] = [form, *(order[x] if i in people else x for i, x in enumerate(rest))]
            assert key({"statements": renamed}) == key({"statements": statements})
    # Ada of Ben, Ben of Ada: not what Ada says of Ben, and Ben of Cleo.
    say = [["is", 1, True], ["is", 0, True], ["count", 2]]
    assert key({"statements": say}) != key({"statements": [["is", 1, True], ["is", 2, True], ["count", 2]]})


# Syllogisms.


def test_the_valid_moods_are_aristotles():
    # Letters: a all, e no, i some, o some not; of the major premise, the minor premise and the conclusion.
    valid = {
        1: "aaa eae aii eio aai eao",  # M-P, S-M
        2: "eae aee eio aoo eao aeo",  # P-M, S-M
        3: "aai iai aii eao oao eio",  # M-P, M-S
        4: "aai aee iai eao eio aeo",  # P-M, M-S
    }
    how = {"a": "all", "e": "no", "i": "some", "o": "some not"}
    figures = {1: ("MP", "SM"), 2: ("PM", "SM"), 3: ("MP", "MS"), 4: ("PM", "MS")}
    for figure, (major, minor) in figures.items():
        for mood in map("".join, product("aeio", repeat=3)):
            premises = [[how[mood[0]], *major], [how[mood[1]], *minor]]
            assert follows(premises, [how[mood[2]], "S", "P"]) == (mood in valid[figure].split()), (mood, figure)
    known = forms(2)
    assert [len(known[how, True]) for how in ("all", "no", "some", "some not")] == [1, 4, 7, 12]


def test_following_is_what_holds_in_every_world():
    rng = random.Random(0)
    hows, terms = ("all", "no", "some", "some not"), "abc"
    things = list(product((False, True), repeat=3))  # a thing is of some kinds; a world has some of these
    worlds = [[thing for i, thing in enumerate(things) if world >> i & 1] for world in range(2**8)]
    worlds = [world for world in worlds if all(any(thing[i] for thing in world) for i in range(3))]

    def holds(proposition, world):
        how, subject, predicate = proposition
        if how in ("if", "or"):
            return holds(subject, world) == (how == "or") or holds(predicate, world)
        predicates = [thing[terms.index(predicate)] for thing in world if thing[terms.index(subject)]]
        return {
            "all": all(predicates),
            "no": not any(predicates),
            "some": any(predicates),
            "some not": not all(predicates),
        }[how]

    for _ in range(150):
        propositions = [[rng.choice(hows), *rng.sample(terms, 2)] for _ in range(3)]
        *premises, conclusion = propositions
        sides = [[rng.choice(hows), *rng.sample(terms, 2)] for _ in range(2)]
        premises.append([rng.choice(("if", "or")), *sides])
        models = [world for world in worlds if all(holds(premise, world) for premise in premises)]
        if models:
            assert follows(premises, conclusion) == all(holds(conclusion, world) for world in models)


@pytest.mark.parametrize(
    ("premises", "conclusion", "is_valid"),
    [
        (["all a b", "if all a b then no c d"], "no c d", True),
        (["all a b", "if no c d then all a b"], "no c d", False),  # the converse
        (["some not c d", "if all a b then all c d"], "some not a b", True),  # the contrapositive
        (["some not a b", "if all a b then all c d"], "some not c d", False),
        (["no a b", "or some a b then all c d"], "all c d", True),
        (["some a b", "or some a b then all c d"], "some not c d", False),  # both may hold
        (["or all a b then all a c", "no b d", "no d c"], "no a d", True),  # by cases
        (["or all a b then all a c", "no b d", "some c d"], "no a d", False),
        (["all a b", "all b c", "if all a c then some d e", "if some e d then no f g", "all h f"], "no h g", True),
        (["all a b", "all c b", "if all a c then some d e", "if some e d then no f g", "all h f"], "no h g", False),
    ],
)
def test_conditional_premises_by_hand(premises, conclusion, is_valid):
    assert follows(list(map(parsed, premises)), parsed(conclusion)) == is_valid


def parsed(text):
    """Return the proposition "some not a b" or "if all a b then no c d"."""
    word, _, rest = text.partition(" ")
    if word in ("if", "or"):
        return [word, *map(parsed, rest.split(" then "))]
    *how, subject, predicate = text.split()
    return [" ".join(how), subject, predicate]


def arguments(*premises, conclusion):
    return {"arguments": [{"premises": list(map(parsed, premises)), "conclusion": parsed(conclusion)}]}


ARGUMENTS = {
    "arguments": [
        {"premises": [["all", "men", "mortals"], ["all", "Greeks", "men"]], "conclusion": ["all", "Greeks", "mortals"]},
        {"premises": [["all", "men", "mortals"], ["all", "men", "Greeks"]], "conclusion": ["all", "Greeks", "mortals"]},
    ]
}


@pytest.mark.parametrize("level", LEVELS)
def test_no_row_of_verdicts_is_common_and_the_conclusion_tells_nothing(level):
    n, rows, verdicts = 1_000, Counter(), Counter()
    for task in drawn("llm/Syllogisms-v0", level, n):
        rows[task.solution()] += 1
        for argument, verdict in zip(task.problem["arguments"], task._solution.values(), strict=True):
            verdicts[argument["conclusion"][0], verdict] += 1
    assert is_at_most(max(rows.values()) / n, task.chance_rate, n)
    for how in ("all", "no", "some", "some not"):
        valid, invalid = verdicts[how, "valid"], verdicts[how, "invalid"]
        assert abs(valid - invalid) < 4 * (valid + invalid) ** 0.5


def test_arguments_that_differ_in_nouns_and_order_are_one_problem():
    key = gym.make("llm/Syllogisms-v0").unwrapped.split_key
    first, second = ARGUMENTS["arguments"]
    twin = {"premises": [["all", "x", "y"], ["all", "y", "z"]], "conclusion": ["all", "x", "z"]}
    assert key({"arguments": [first]}) == key({"arguments": [twin]})
    assert key({"arguments": [first, second]}) == key({"arguments": [second, first]})
    assert key({"arguments": [first]}) != key({"arguments": [second]})


def test_what_says_the_same_is_one_argument():
    key = gym.make("llm/Syllogisms-v0").unwrapped.split_key

    def key_of(*premises, conclusion):
        return key({"arguments": [{"premises": [part.split() for part in premises], "conclusion": conclusion.split()}]})

    # No a are b is no b are a; the aside is about another kind, x or y.
    one = key_of("no a b", "all c b", "some a x", conclusion="no c a")
    assert one == key_of("some y k", "all m l", "no l k", conclusion="no k m")
    assert one != key_of("no a b", "all c b", "some b x", conclusion="no c a")


@pytest.mark.parametrize("level", [*LEVELS, "expert"])
def test_a_table_of_arguments_from_train_knows_none_of_test(level):
    tables = {}
    for split, n in (("train", 150), ("test", 30)) if level != "expert" else (("train", 30), ("test", 6)):
        env = gym.make("llm/Syllogisms-v0", difficulty=level, split=split).unwrapped
        env.reset(seed=0)
        tables[split] = set()
        for _ in range(n):
            env.reset()
            tables[split] |= {env.split_key({"arguments": [argument]}) for argument in env.problem["arguments"]}
    assert not tables["train"] & tables["test"] and len(tables["test"]) > 60


def test_ways_to_write_a_condition_are_one_argument():
    key = gym.make("llm/Syllogisms-v0").unwrapped.split_key
    ways = ("if no x y then all a b", "if some not a b then some y x", "or some x y then all a b")
    ways += ("or all a b then some y x",)
    assert len({key(arguments(way, "all b c", conclusion="all a c")) for way in ways}) == 1
    assert key(arguments(ways[0], "all b c", conclusion="all a c")) != key(
        arguments("if some x y then all a b", "all b c", conclusion="all a c")
    )


def test_conditions_are_written_as_documented():
    env = gym.make("llm/Syllogisms-v0")
    convention = '"If X, then Y" is false when X is true and Y is false, and else true.'
    problem = arguments("if all a b then some not c d", "or no a b then some c d", conclusion="no a d")
    text = env.reset(options={"problem": problem})[0].splitlines()
    assert convention in text[0] and text[1] == (
        "1. If all a are b, then some c are not d. Either no a are b, or some c are d, or both. Therefore: No a are d."
    )
    assert convention not in env.reset(options={"problem": ARGUMENTS})[0]


@pytest.mark.parametrize(
    ("premises", "once", "believed"),
    [
        (["all a b", "all b c", "if all a c then all c d"], True, True),
        (["if all a c then all c d", "all a b", "all b c"], False, True),  # the condition is not yet known to hold
        (["all c b", "all a b", "all b c", "if some not c d then some not a c"], True, True),
        (["all a b", "all b c", "if some a c then all d c"], False, False),
        (["all a b", "all b c", "if all b a then all c d"], False, True),  # the condition does not hold
        (["all a b", "all b c", *["some x y"] * 10, "if all a c then all c d", "all b c"], False, True),
    ],
)
def test_a_reader_that_never_goes_back_and_one_that_believes(premises, once, believed):
    env = gym.make("llm/Syllogisms-v0").unwrapped
    env.reset(options={"problem": arguments(*premises, conclusion="all a d")})
    verdicts = {name: "<answer>1: invalid</answer>" not in reply for name, reply in env.shortcuts().items()}
    assert verdicts == {"reader(12)": once, "conditions believed": believed}
    env.reset(options={"problem": ARGUMENTS})
    assert not env.shortcuts()


def test_expert_arguments_need_each_premise_but_the_asides():
    env = gym.make("llm/Syllogisms-v0", difficulty="expert").unwrapped
    n_valid = 0
    for seed in range(2):
        env.reset(seed=seed)
        for argument, verdict in zip(env.problem["arguments"], env._solution.values(), strict=True):
            premises, conclusion = argument["premises"], argument["conclusion"]
            sides = [
                part for each in [*premises, conclusion] for part in (each[1:] if each[0] in ("if", "or") else [each])
            ]
            terms = Counter(term for part in sides for term in part[1:])
            asides = [part for part in sides if min(terms[term] for term in part[1:]) == 1]
            needed = [each for each in premises if each not in asides]
            assert (len(premises), len(needed)) == (13, 10)
            assert sum(each[0] in ("if", "or") for each in needed) == 2
            assert follows(needed, conclusion) == (verdict == "valid")
            for i in range(10 if verdict == "valid" else 0):
                assert not follows(needed[:i] + needed[i + 1 :], conclusion)
            n_valid += verdict == "valid"
    assert 6 <= n_valid <= 18


# Entailment.

# p -> q and q -> r, so p -> r follows; r -> p fails where p is false and r is true, whatever q is.
CHAIN = {
    "letters": "pqr",
    "premises": [["if", "p", "q"], ["if", "q", "r"]],
    "conclusions": [["if", "p", "r"], ["if", "r", "p"]],
}


def test_entailment_is_written_as_documented():
    env = gym.make("llm/Entailment-v0")
    problem = {"letters": "pq", "premises": [["iff", ["not", "p"], ["or", "p", "q"]]], "conclusions": [["not", "p"]]}
    text, _ = env.reset(options={"problem": problem})
    assert text.splitlines()[1:] == ["Letters: p, q", "Premises:", "- ~p <-> (p | q)", "Conclusions:", "1. ~p"]
    assert env.unwrapped.solution() == "1: follows"
    for formula in ("r", ["if", "p"], ["nor", "p", "q"], ["not", "p", "q"], [], ["and", ["and"], "p"]):
        with pytest.raises(InvalidConfigError, match="is not a formula"):
            env.reset(options={"problem": problem | {"premises": [formula]}})


def truth(formula, values):
    match formula:
        case str():
            return values[formula]
        case ["not", part]:
            return not truth(part, values)
        case ["and", left, right]:
            return truth(left, values) and truth(right, values)
        case ["or", left, right]:
            return truth(left, values) or truth(right, values)
        case ["if", left, right]:
            return truth(left, values) <= truth(right, values)
        case ["iff", left, right]:
            return truth(left, values) == truth(right, values)


@pytest.mark.parametrize("level", LEVELS)
def test_counterexamples_are_those_of_the_truth_table(level):
    for task in drawn("llm/Entailment-v0", level, 30):
        letters, premises = task.problem["letters"], task.problem["premises"]
        for conclusion, refuting in zip(task.problem["conclusions"], task._refuting, strict=True):
            wanted = 0
            for number in range(2 ** len(letters)):
                values = {letter: bool(number >> i & 1) for i, letter in enumerate(letters)}
                if all(truth(premise, values) for premise in premises) and not truth(conclusion, values):
                    wanted |= 1 << number
            assert refuting == wanted
        assert any(task._refuting)


@pytest.mark.parametrize("level", LEVELS)
def test_who_looks_at_all_no_and_some_alone_is_right_no_more_often_than_chance(level):
    n, wins = 300, 0
    for task in drawn("llm/Syllogisms-v0", level, n):
        verdicts = []
        for number, argument in enumerate(task.problem["arguments"], 1):
            hows, end = [how for how, *_ in argument["premises"]], argument["conclusion"][0]
            negative = sum(how in ("no", "some not") for how in hows) == (end in ("no", "some not"))
            particular = sum(how.startswith("some") for how in hows) <= end.startswith("some")
            verdicts.append(f"{number}: {'valid' if negative and particular else 'invalid'}")
        wins += task.step(f"<answer>{', '.join(verdicts)}</answer>")[1] == 1
    assert wins / n > 1 / 128
    assert is_at_most(wins / n, task.chance_rate, n)


@pytest.mark.parametrize("level", LEVELS)
def test_constant_answers_do_not_pay_in_entailment(level):
    n, wins = 300, Counter()
    for task in drawn("llm/Entailment-v0", level, n):
        for pattern in product((True, False), repeat=len(task._refuting)):
            for valuation in range(2 ** len(task.problem["letters"])):
                parts = zip(pattern, task._refuting, strict=True)
                wins[pattern, valuation] += all(not r if says else r >> valuation & 1 for says, r in parts)
    assert is_at_most(max(wins.values()) / n, task.chance_rate, n)


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        (
            "KnightsAndKnaves",
            KNIGHTS | {"statements": [["is", 1, False], ["same", 0, 2], ["any", 0, 2, False]]},
            "not exactly one",
        ),
        ("KnightsAndKnaves", KNIGHTS | {"statements": [["is", 0, True]] * 3}, "not exactly one"),
        ("KnightsAndKnaves", KNIGHTS | {"statements": [["is", 3, True]] * 3}, "none of the documented"),
        ("KnightsAndKnaves", KNIGHTS | {"statements": [["is", 1, True]]}, "with a statement each"),
        ("KnightsAndKnaves", KNIGHTS | {"people": ["Ada", "Ada", "Ben"]}, "different people"),
        ("KnightsAndKnaves", KNIGHTS | {"kinds": ["knight"]}, "two kinds"),
        ("KnightsAndKnaves", KNIGHTS | {"people": ["Ada", "Ben, the smith", "Cleo"]}, "single words"),
        ("KnightsAndKnaves", KNIGHTS | {"statements": [[["is"], 1, True]] * 3}, "none of the documented"),
        ("Syllogisms", arguments("all a b", "some not a b", conclusion="all a b"), "contradict"),
        ("Syllogisms", arguments("every a b", conclusion="all a b"), "a proposition is"),
        ("Syllogisms", arguments("all a a", conclusion="all a b"), "a proposition is"),
        ("Syllogisms", {"arguments": [{"premises": [["all", "a", "b"]]}]}, "has premises and a conclusion"),
        ("Syllogisms", arguments("if all a b then some not a b", "all a b", conclusion="all a b"), "contradict"),
        ("Syllogisms", arguments("if all a b", conclusion="all a b"), "a proposition is"),
        ("Syllogisms", arguments(conclusion="or all a b then no a b"), "a proposition is"),
        ("Syllogisms", arguments(*["or all a b then no a b"] * 7, conclusion="all a b"), "6 premises"),
        ("Syllogisms", arguments(*(f"all a {i}" for i in range(16)), conclusion="all a 1"), "16 terms"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
