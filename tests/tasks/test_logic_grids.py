"""`llm/GridPrograms-v0`: steps worked out by hand, and that the examples determine the program."""

from itertools import combinations, permutations, product

import gymnasium as gym
import pytest

from llm_envs.env import split_of
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.logic.grid_search import PHASES, fitting_programs, is_program, n_colours, run

ID = "llm/GridPrograms-v0"
LEVELS = {"easy": 2, "medium": 3, "hard": 4, "expert": 5}


def grid(text):
    return [[int(cell) for cell in row] for row in text.split()]


# A ring of 8 cells of colour 3 at the edge, a bar of 2 cells of colour 5 away from it, and one cell of colour 3.
THINGS = grid("""
    333000
    303000
    333050
    000050
    000000
    030000
""")  # fmt: skip


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ([["keep", "the largest"]], "333000 303000 333000 000000 000000 000000"),
        ([["keep", "without a hole"]], "000000 000000 000050 000050 000000 030000"),
        ([["keep", "not at the border"]], "000000 000000 000050 000050 000000 000000"),
        ([["keep", "of the commonest colour"]], "333000 303000 333000 000000 000000 030000"),
        ([["keep", "taller than wide"], ["arrange", "crop"]], "5 5"),
        ([["recolour", "the smallest", 7]], "333000 303000 333050 000050 000000 070000"),
        ([["recolour", "swap", 3, 5]], "555000 505000 555030 000030 000000 050000"),
        ([["recolour", "from to", 3, 5]], "555000 505000 555050 000050 000000 050000"),
        ([["recolour", "like the largest"]], "333000 303000 333030 000030 000000 030000"),
        ([["move", "down"]], "000000 000000 333000 303000 333050 030050"),
        ([["move", "right"]], "003330 003030 003335 000005 000000 000003"),
        ([["draw", "holes", 8]], "333000 383000 333050 000050 000000 030000"),
        ([["draw", "halo", 8]], "333800 383888 333858 888858 888888 838000"),
        ([["draw", "corners", 8]], "333000 303808 333050 000850 808808 030000"),
        ([["draw", "rays right", 8]], "333888 383888 333858 000058 000000 038888"),
        ([["keep", "the smallest"], ["arrange", "append the mirror image below"]], " ".join(
            ["000000"] * 5 + ["030000"] * 2 + ["000000"] * 5)),
        ([["keep", "of the rarest colour"], ["arrange", "quarter turn right"]],
         "000000 000000 000000 000000 005500 000000"),
    ],
)  # fmt: skip
def test_steps(program, output):
    assert run(program, THINGS) == grid(output)


def test_copies_count_the_objects():
    program = [["keep", "without a hole"], ["arrange", "once for each object, to the right"]]
    assert run(program, grid("10 02")) == grid("1010 0202")
    assert run([["arrange", "double the size"]], grid("10")) == grid("1100 1100")
    assert run([["keep", "with a hole"]], grid("10 02")) is None


PROBLEM = {
    "program": [["recolour", "all", 4], ["move", "down"]],
    "inputs": [grid("11 00"), grid("20 00 00"), grid("330 000")],
}


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("0 0 0\n4 4 0", 1),
        ("000\n440", 1),
        ("0,0,0\n4,4,0", 1),
        ("330\n000", 0),
        ("000\n440\n000", 0),
        ("000\n44", -0.1),
        ("000\n4x0", -0.1),
        ("the same", -0.1),
    ],
)
def test_every_cell_counts(answer, paid):
    env = gym.make(ID)
    text, _ = env.reset(options={"problem": PROBLEM})
    assert text.endswith("Output 2:\n0 0\n0 0\n4 0\nInput 3:\n3 3 0\n0 0 0\nWhat is its output?")
    assert env.step(format_answer(answer))[1] == pytest.approx(paid)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"program": [["move", "down"], ["recolour", "all", 4]]}, "must have steps"),
        ({"program": [["recolour", "all"]]}, "must have steps"),
        ({"program": [["recolour", "all", 0]]}, "must have steps"),
        ({"program": []}, "must have steps"),
        ({"inputs": [grid("11 00")]}, "two inputs"),
        ({"inputs": [[[1], [1, 2]], grid("1")]}, "an input must have"),
        ({"inputs": [grid("00"), grid("1")]}, "gives no output"),
    ],
)
def test_what_cannot_be_played_is_refused(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make(ID).reset(options={"problem": PROBLEM | change})


def concrete(phase):
    """Return every step of a phase, with all colours."""
    for kind in PHASES[phase]:
        for colours in permutations(range(1, 10), n_colours(phase, kind)):
            if kind != "swap" or colours[0] < colours[1]:
                yield [phase, kind, *colours]


def programs_found_by_trying_all(examples):
    """Return the programs of one or two steps that fit and have no idle step."""
    found = []
    for n in (1, 2):
        for phases in combinations(PHASES, n):
            for program in product(*map(concrete, phases)):
                if all(run(list(program), one) == output for one, output in examples):
                    shorter = [list(program[:i] + program[i + 1 :]) for i in range(n)]
                    if all(any(run(less, one) != output for one, output in examples) for less in shorter):
                        found.append(list(program))
    return sorted(found)


@pytest.mark.parametrize(
    "program",
    [
        [["keep", "the largest"], ["recolour", "all", 4]],
        [["recolour", "from to", 3, 2], ["arrange", "quarter turn left"]],
        [["draw", "box", 8], ["arrange", "crop"]],
        [["move", "left"], ["draw", "rays up", 3]],
    ],
)
def test_the_search_finds_what_trying_all_programs_finds(program):
    """The first example has several programs; the second one, too, rules some of them out."""
    inputs = [grid("0330 0030 2000 0000"), grid("33300 30300 00002 00002")]
    for n in (1, 2):
        examples = [(one, run(program, one)) for one in inputs[:n]]
        assert [output for _, output in examples] != [one for one, _ in examples]
        found = sorted(each for each in fitting_programs(examples) if len(each) <= 2)
        assert found == programs_found_by_trying_all(examples)
        assert program in found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_examples_determine_the_program_and_every_step_matters(level, split):
    env = gym.make(ID, difficulty=level, split=split).unwrapped
    for seed in range(10):
        env.reset(seed=seed)
        program, inputs = env.problem["program"], env.problem["inputs"]
        assert is_program(program)
        assert len(program) == LEVELS[level]
        assert len(inputs) in (4, 5)
        examples = [(one, run(program, one)) for one in inputs[:-1]]
        assert list(fitting_programs(examples)) == [program]
        assert split_of([step[:2] for step in program]) == split
        problem, names = env.problem, list(env.shortcuts())
        assert len(names) >= 2 + LEVELS[level] - 1
        for name, answer in env.shortcuts().items():
            env.reset(options={"problem": problem})
            assert env.step(answer)[1] == 0, name


def test_other_colours_and_grids_make_no_other_program():
    key = gym.make(ID).unwrapped.split_key
    other = {"program": [["recolour", "all", 7], ["move", "down"]], "inputs": [grid("01 00")] * 3}
    assert key(PROBLEM) == key(other)
    assert key(PROBLEM) != key(PROBLEM | {"program": [["recolour", "all", 4], ["move", "up"]]})


def test_the_number_of_programs_of_two_steps():
    assert sum(len(PHASES[a]) * len(PHASES[b]) for a, b in combinations(PHASES, 2)) == 1027
