"""Each clause of `check_task` is tripped by a task that is broken in just that way, and by nothing else."""

import dataclasses
import random
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hollow_tasks import DOCSTRING, HOLLOW, HONEST, Looking, Only

from llm_envs import check_task
from llm_envs.checker.clauses import CLAUSES
from llm_envs.checker.episodes import ask_oracle, play, remembering, unwrap
from llm_envs.checker.subject import QUICK, THOROUGH
from llm_envs.checker.verdicts import EXCUSABLE
from llm_envs.env import Difficulty, Outcome, SingleTurnEnv, TextEnv, split_of
from llm_envs.errors import InvalidActionError, TaskCheckError, UnknownTaskError
from llm_envs.parsers import PARSERS, create_xml_parser, format_answer, format_tool_call, last_number, parse_reply
from llm_envs.registration import register_task
from llm_envs.spaces import TextSpace


class Sound(Only, SingleTurnEnv):
    problem_fields = {"n": int}

    def generate(self):
        return {"n": int(self.np_random.random() * 1_000_000)}

    def prompt(self):
        return f"Say {self.problem['n'] + 1} minus one."

    def solution(self):
        return str(self.problem["n"])


class SoundGame(Only, TextEnv):
    default_max_turns = 3
    problem_fields = {"n": int}

    def generate(self):
        return {"n": int(self.np_random.random() * 1_000_000)}

    def prompt(self):
        return f"Say yes, then {self.problem['n'] + 1} minus one. You have {self.max_turns} replies."

    def begin(self):
        self.said_yes = False

    def play(self, action):
        answer = parse_reply(action).answer
        if self.said_yes and answer == str(self.problem["n"]):
            return Outcome("Right.", {"correct": 1.0, "malformed": 0.0}, True, True)
        self.said_yes = self.said_yes or answer == "yes"
        return Outcome("Go on.", {"correct": 0.0, "malformed": 0.0})

    def next_action(self):
        return format_answer(self.problem["n"] if self.said_yes else "yes")


class SoundTool(Looking):
    def look(self) -> str:
        """Look."""
        return str(self.problem["n"])

    def next_action(self):
        return format_answer(self.tool_results[0].output) if self.tool_results else format_tool_call("look")


EFFORT = dataclasses.replace(QUICK, n_hostile_episodes=5)
"""Each kind of hostile action is as rude in its first episodes as in its thirtieth."""


# One broken task for each clause.


class WrongSpace(Sound):
    def __init__(self, split="train", difficulty=None, render_mode=None):
        super().__init__(split, difficulty, render_mode)
        self.observation_space = TextSpace(1000)


class NoRenderRate(Sound):
    metadata = {"render_modes": ["ansi"]}


class IntegerWeights(Sound):
    reward_weights = {"correct": 1, "malformed": -0.1}


class ExcusesWhatMustHold(Sound):
    clause_reasons = {"never_raises": "Nobody will ever write such a reply."}


class ExcusesInAWord(Sound):
    clause_reasons = {"refuses_neighbouring_numbers": "Rounding."}


class NoLevelDescription(Sound):
    difficulties = {"only": Difficulty("", chance_rate=0.001)}


class NoArgument(Sound):
    difficulties = {"only": Difficulty("a number", chance_rate=0.001, expected_hard="very hard")}


class NoHeadings(Sound):
    __doc__ = 'Say the number. The level is "only".'


class SwallowsArguments(Sound):
    has_natural_form = False

    def __init__(self, split="train", difficulty=None, render_mode=None, **kwargs):
        super().__init__(split, difficulty, render_mode)


class IgnoresGivenProblems(Sound):
    def _given_problem(self, options):
        super()._given_problem(options)
        return self._draw_problem()


class LeaksBetweenEpisodes(SoundGame):
    n_answers = 0

    def play(self, action):
        outcome = super().play(action)
        if self.n_turns == 2:
            self.n_answers += 1
            return outcome._replace(observation=f"Second answer number {self.n_answers}.")
        return outcome


class ShowsItsNumber(SoundGame):
    n_made = 0

    def __init__(self, split="train", difficulty=None, max_turns=None, render_mode=None):
        super().__init__(split, difficulty, max_turns, render_mode)
        ShowsItsNumber.n_made += 1
        self.number = self.n_made

    def play(self, action):
        outcome = super().play(action)
        return outcome._replace(observation=f"This was game {self.number}.") if self.n_turns == 2 else outcome


class SeedsGlobally(Sound):
    def begin(self):
        np.random.seed(0)


class NeighboursAreAlike(Sound):
    # One seed in ten gives the problem of the one before it.

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed - (seed % 10 == 1) if seed else seed, options=options)


class SharesSeeds(Sound):
    # Seeds 0 to 49 give one problem.

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        if seed is not None or not hasattr(self, "bucket"):
            self.bucket = random.Random((seed or 0) // 50)
        return super().reset(seed=None, options=options)

    def generate(self):
        return {"n": self.bucket.randrange(1_000_000)}


class FewProblems(Sound):
    # Claims to be endless.

    def generate(self):
        return {"n": int(self.np_random.random() * 40)}


class IgnoresTheSplit(Sound):
    difficulties = {"only": Difficulty("a number", chance_rate=0.01, n_problems=500)}

    def _draw_problem(self):
        return {"n": int(self.np_random.random() * 500)}


class IgnoresItsSplitKey(Sound):
    # Each problem is drawn in one split only, but n and n + 1 are declared to be the same.
    difficulties = {"only": Difficulty("a number", chance_rate=0.01, n_problems=500)}

    def generate(self):
        return {"n": int(self.np_random.random() * 500)}

    def split_key(self, problem):
        return problem["n"] // 2

    def _draw_problem(self):
        while True:
            problem = self.generate()
            if split_of(problem) == self.split:
                return problem


class NeedlesslyUndivided(Sound):
    difficulties = {"only": Difficulty("a number", chance_rate=0.001, disjoint_splits=False)}


class HidesItsNumber(SoundGame):
    # All 2,000 problems begin alike: a split would only say which numbers cannot be hidden.
    difficulties = {"only": Difficulty("a number", chance_rate=0.01, n_problems=2_000, disjoint_splits=False)}

    def generate(self):
        return {"n": int(self.np_random.random() * 2_000)}

    def prompt(self):
        return f"Say yes, then the number that I tell. You have {self.max_turns} replies."

    def play(self, action):
        outcome = super().play(action)
        return outcome if outcome.terminated else outcome._replace(observation=f"It is {self.problem['n']}.")


class CountsItsLuck(Sound):
    # Claims to be endless: there are 40 problems, each with a seed that nobody sees.
    problem_fields = {"n": int, "seed": int}
    luck_fields = ("seed",)

    def generate(self):
        return {"n": int(self.np_random.random() * 40), "seed": int(self.np_random.random() * 2**31)}

    def split_key(self, problem):
        return problem["n"]


class OracleIsSometimesWrong(Sound):
    def next_action(self):
        return format_answer(self.problem["n"] if self.problem["n"] % 5 else "no idea")


class OracleEarnsLess(Sound):
    reward_weights = {"correct": 1.0, "malformed": -0.1, "style": 0.5}

    def score(self, reply, *, correct, malformed):
        return {"correct": float(correct), "malformed": float(malformed), "style": float("style" in reply.content)}


class TakesAnswersLiterally(Sound):
    # Bold, a full stop and a fence make a right answer wrong.
    plain_answer = staticmethod(lambda text: text)


class InsistsOnItsCase(Sound):
    def prompt(self):
        return f"{super().prompt()} Put an n before it; upper or lower case does not matter: N5 or n5."

    def solution(self):
        return f"n{self.problem['n']}"

    def is_correct(self, answer):
        return answer == self.solution()


class ReadsNoProse(Sound):
    def __init__(self, split="train", difficulty=None, render_mode=None):
        super().__init__(split, difficulty, render_mode)


class TakesTheLastNumber(Sound):
    def is_correct(self, answer):
        return last_number(answer) == self.solution()


class OverlooksADenial(Sound):
    def is_correct(self, answer):
        return super().is_correct(answer.removeprefix("The wrong answer is "))


class RaisesOnBadAnswers(Sound):
    def is_correct(self, answer):
        return int(answer) == self.problem["n"]


class AcceptsAnyAnswerThatContainsIt(Sound):
    def prompt(self):
        return f"Say {self.problem['n']}."

    def is_correct(self, answer):
        return str(self.problem["n"]) in answer


class RaisesOnNearMisses(Sound):
    def is_correct(self, answer):
        if answer.startswith(self.solution()[:4]):
            return int(answer) == self.problem["n"]
        return False


class PaysTwice(SoundGame):
    def play(self, action):
        outcome = super().play(action)
        if not outcome.terminated and self.said_yes and str(self.problem["n"]) in action:
            return Outcome("Nearly.", {"correct": 1.0, "malformed": 0.0})
        return outcome


class HasThreeAnswers(Sound):
    # Four in ten answers are the same, and a chance of one in a thousand is declared.
    def prompt(self):
        return f"What is {self.problem['n']} modulo 3?"

    def solution(self):
        return ("nothing", "a single one", "a pair")[self.problem["n"] % 3]


class NeverEnds(SoundGame):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        if not terminated:
            self._is_playing = True
            info.pop("is_success", None)
        return observation, reward, terminated, False, info


class CostsWithoutBound(SoundGame):
    default_max_turns = 30
    component_limits = {}


class CostsMoreThanDeclared(Sound):
    min_return = -0.05


class PaysBesideItsComponents(Sound):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward - 0.05 if reward < 1 else reward, terminated, truncated, info


class MixesInfoTypes(Sound):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"length": 0 if action == "" else 0.5}


class ScoresToolOutput(SoundTool):
    def play(self, action):
        outcome = super().play(action)
        answer = parse_reply(outcome.observation).answer
        if answer is not None and self.is_correct(answer):
            return Outcome(outcome.observation, {"correct": 1.0, "malformed": 0.0}, True, True)
        return outcome


class ScoresThinking(Sound):
    def play(self, action):
        return super().play(action.replace("<think>", "").replace("</think>", ""))


class SharesState(Sound):
    shared: dict = {}

    def begin(self):
        SharesState.shared["prompt"] = super().prompt()

    def step(self, action):
        return (self.shared["prompt"], *super().step(action)[1:])


class HoldsALambda(Sound):
    def begin(self):
        self.hook = lambda: None


class SlowToReset(Sound):
    def generate(self):
        started = time.process_time()
        while time.process_time() < started + 0.0012:
            pass
        return super().generate()


BROKEN = [
    (WrongSpace, "is_made"),
    (NoRenderRate, "passes_gymnasium_check"),
    (IntegerWeights, "declares_its_numbers"),
    (ExcusesWhatMustHold, "declares_its_numbers"),
    (ExcusesInAWord, "declares_its_numbers"),
    (NoLevelDescription, "documents_its_difficulties"),
    (NoArgument, "documents_its_difficulties"),
    (NoHeadings, "has_docstring_headings"),
    (SwallowsArguments, "checks_its_arguments"),
    (IgnoresGivenProblems, "plays_given_problems"),
    (ShowsItsNumber, "is_deterministic, has_true_state_keys"),
    (LeaksBetweenEpisodes, "has_true_state_keys, plays_each_episode_alike"),
    (SeedsGlobally, "leaves_global_randomness_alone"),
    (SharesSeeds, "depends_on_the_seed"),
    (NeighboursAreAlike, "depends_on_the_seed"),
    (FewProblems, "has_honest_n_problems"),
    (CountsItsLuck, "has_honest_n_problems"),
    (IgnoresTheSplit, "has_disjoint_splits"),
    (IgnoresItsSplitKey, "has_disjoint_splits"),
    (NeedlesslyUndivided, "has_disjoint_splits"),
    (OracleIsSometimesWrong, "oracle_earns_the_maximum"),
    (OracleEarnsLess, "oracle_earns_the_maximum"),
    (TakesAnswersLiterally, "accepts_natural_forms"),
    (InsistsOnItsCase, "accepts_natural_forms"),
    (ReadsNoProse, "accepts_natural_forms"),
    (TakesTheLastNumber, "refuses_hedged_answers"),
    (OverlooksADenial, "refuses_hedged_answers"),
    (RaisesOnBadAnswers, "never_raises"),
    (RaisesOnNearMisses, "withstands_fuzzing"),
    (PaysTwice, "returns_are_in_range"),
    (HasThreeAnswers, "is_not_won_by_guessing, is_not_won_by_heart"),
    (AcceptsAnyAnswerThatContainsIt, "is_not_won_by_nonsense, is_not_won_by_heart, refuses_hedged_answers"),
    (NeverEnds, "ends_its_episodes"),
    (CostsWithoutBound, "returns_are_in_range"),
    (CostsMoreThanDeclared, "returns_are_in_range"),
    (PaysBesideItsComponents, "rewards_are_weighted_components"),
    (MixesInfoTypes, "info_is_well_formed"),
    (ScoresToolOutput, "scores_only_the_agents_words"),
    (ScoresThinking, "scores_only_the_agents_words"),
    (SharesState, "is_vectorized"),
    (HoldsALambda, "pickles"),
    (SlowToReset, "resets_quickly"),
    *HOLLOW,
]


@pytest.fixture
def registered():
    """Register a class under a passing id."""
    used = []

    def register(cls, name=None):
        id = f"check/{name or cls.__name__}-v0"
        register_task(id, cls)
        used.append(id)
        return id

    yield register
    for id in used:
        gym.registry.pop(id)


@pytest.mark.parametrize("cls", [Sound, SoundGame, SoundTool, HidesItsNumber, *HONEST])
def test_a_sound_task_passes(registered, cls):
    report = check_task(registered(cls))
    assert report.passed, str(report)
    assert [result.clause for result in report.results] == [clause.__name__ for clause in CLAUSES]


@pytest.mark.parametrize(("cls", "clause"), BROKEN, ids=[cls.__name__ for cls, _ in BROKEN])
def test_a_broken_task_trips_exactly_its_clause(registered, cls, clause):
    report = check_task(registered(cls), raise_on_failure=False, effort=EFFORT)
    assert ", ".join(result.clause for result in report.failures) == clause, str(report)


def test_a_task_that_cannot_be_written_down(registered):
    report = check_task(registered(partial(Sound), "Partial"), raise_on_failure=False)
    assert [result.clause for result in report.failures] == ["has_a_json_spec"]


def test_every_clause_has_a_broken_task():
    assert set(EXCUSABLE) <= {clause.__name__ for clause in CLAUSES}
    tripped = {clause for _, clauses in BROKEN for clause in clauses.split(", ")} | {"has_a_json_spec"}
    assert tripped == {clause.__name__ for clause in CLAUSES}


def test_a_thorough_check_looks_at_more(registered):
    report = check_task(registered(Sound), effort=dataclasses.replace(THOROUGH, n_pairs=2_000))
    details = {result.clause: result.detail for result in report.results}
    assert details["depends_on_the_seed"] == "60 problems from 60 seeds, 0 of 2000 neighbours alike"
    assert details["oracle_earns_the_maximum"] == "100% of 200 episodes"
    n_actions = int(details["withstands_fuzzing"].split()[0])
    assert 1_800 < n_actions < 2_200  # one in two of them is spoilt, 1,000 in all


def test_the_error_lists_all_that_is_broken(registered):
    class Worse(NoHeadings):
        def is_correct(self, answer):
            raise OSError("gone")

    with pytest.raises(TaskCheckError) as caught:
        check_task(registered(Worse))
    text = str(caught.value)
    assert text.startswith("check/Worse-v0 breaks ")
    assert "- has_docstring_headings: the class docstring lacks the headings ['Description'," in text
    assert "- never_raises: the action 'a blank answer' raised" not in text  # blank answers never reach is_correct
    assert "raised OSError: gone" in text


def test_a_task_that_cannot_be_made_is_not_tried_further(registered):
    class NoLevels(Sound):
        difficulties = {}

    report = check_task(registered(NoLevels), raise_on_failure=False)
    assert [(result.clause, result.passed) for result in report.results] == [("is_made", False)]
    assert "known are" in report.results[0].detail


def test_something_else_than_a_text_environment_is_named():
    register_task("check/CartPole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    try:
        with pytest.raises(TaskCheckError, match=r"CartPoleEnv is not an llm_envs\.TextEnv"):
            check_task("check/CartPole-v0")
    finally:
        gym.registry.pop("check/CartPole-v0")


def test_an_unknown_id():
    with pytest.raises(UnknownTaskError, match="Did you mean llm/Calculator-v0"):
        check_task("llm/Calculator-v1")


def test_an_oracle_that_is_not_exact_must_beat_chance(registered):
    class Lucky(Sound):
        oracle_is_exact = False
        difficulties = {"only": Difficulty("a number", chance_rate=0.9)}

        def next_action(self):
            return format_answer(self.problem["n"] if self.problem["n"] % 2 else 0)

    report = check_task(registered(Lucky), raise_on_failure=False)
    (failure,) = [result for result in report.failures if result.clause == "oracle_earns_the_maximum"]
    assert "no more than chance_rate 0.9" in failure.detail


class Costly(SoundTool):
    """Quality minus cost: each call costs 0.25, so the oracle earns 0.75, on the level "twice" 0.5."""

    __doc__ = DOCSTRING.replace('The level is "only".', 'The levels are "only" and "twice".')
    reward_weights = {"correct": 1.0, "malformed": -0.1, "cost": -0.25}
    component_limits = {"malformed": 5.0, "cost": 6.0}
    min_return = -2.0

    def score(self, reply, results, *, correct, malformed):
        return {"correct": float(correct), "malformed": float(malformed), "cost": float(len(results))}

    def next_action(self):
        if self.tool_results:
            return format_answer(self.tool_results[0].output)
        return format_tool_call("look") * self.settings.get("n_looks", 1)


class Declared(Costly):
    max_return = 0.75
    difficulties = {
        "only": Difficulty("a number", chance_rate=0.001),
        "twice": Difficulty("look twice", chance_rate=0.001, max_return=0.5, settings={"n_looks": 2}),
    }


def test_an_oracle_that_pays_for_its_tools_declares_max_return(registered):
    report = check_task(registered(Costly), raise_on_failure=False)
    (failure,) = report.failures
    assert failure.clause == "oracle_earns_the_maximum"
    assert "the oracle earned 0.75 of 1, which is the sum of the positive weights" in failure.detail
    assert "max_return = 0.75, or Difficulty(..., max_return=0.75)" in failure.detail

    assert (Declared().max_return, Declared(difficulty="twice").max_return, Declared.max_return) == (0.75, 0.5, 0.75)
    env_id = registered(Declared)
    assert check_task(env_id).passed
    assert check_task(env_id, difficulty="twice").passed


class Boxed(Sound):
    parse_reply = PARSERS["boxed"]
    answer_template = "\\boxed{...}"


class ReAct(SoundTool):
    parse_reply = PARSERS["react"]
    answer_template = "Final Answer: ..."

    def next_action(self):
        if self.tool_results:
            return f"Thought: seen.\nFinal Answer: {self.tool_results[0].output}"
        return "Thought: look.\nAction: look\nAction Input: {}"


class OwnTags(Sound):
    answer_template = "<result>...</result>"

    def parse_reply(self, text):
        return create_xml_parser(thinking_tag="thought", call_tag=None, answer_tag="result")(text)


class LastNumber(Sound):
    parse_reply = PARSERS["last_number"]
    answer_template = "..."


@pytest.mark.parametrize("cls", [Boxed, ReAct, OwnTags, LastNumber])
def test_a_task_whose_replies_have_another_form_passes(registered, cls):
    report = check_task(registered(cls))
    assert report.passed, str(report)


@pytest.mark.parametrize("cls", [Boxed, ReAct, LastNumber])
def test_a_parser_in_a_class_gets_no_self_on_any_python(cls):
    """Python 3.14 makes methods of `functools.partial`, which some parsers are."""
    assert isinstance(vars(cls)["parse_reply"], staticmethod)


class BoxedThinking(Boxed):
    def play(self, action):
        return super().play(action.replace("<think>", "").replace("</think>", ""))


def test_an_answer_of_another_form_counts_in_thinking_no_more_than_one_in_tags(registered):
    report = check_task(registered(BoxedThinking), raise_on_failure=False)
    assert [result.clause for result in report.failures] == ["scores_only_the_agents_words"]


def test_the_chance_rate_is_allowed_but_not_much_more(registered):
    class Coin(Sound):
        """Right if the reply's length has the parity of the problem."""

        __doc__ = DOCSTRING
        difficulties = {"only": Difficulty("a coin", chance_rate=0.5)}

        def is_correct(self, answer):
            if not answer.isascii():
                raise InvalidActionError("not a coin")
            return len(answer) % 2 == self.problem["n"] % 2

        def solution(self):
            return "x" * (2 + self.problem["n"] % 2)

    class Loaded(Coin):
        difficulties = {"only": Difficulty("a coin", chance_rate=0.05)}

    def failed(cls):
        report = check_task(registered(cls), raise_on_failure=False)
        return "is_not_won_by_nonsense" in [result.clause for result in report.failures]

    assert not failed(Coin)
    assert failed(Loaded)


def test_one_typo_is_one_line_with_its_place(registered):
    class Typo(Sound):
        def prompt(self):
            return no_such_name  # noqa: F821

    with pytest.raises(TaskCheckError) as caught:
        check_task(registered(Typo))
    lines = [line for line in str(caught.value).splitlines() if "no_such_name" in line]
    assert len(lines) <= 2, str(caught.value)  # Gymnasium's own check may word it otherwise
    line = Typo.prompt.__code__.co_firstlineno + 1
    assert "is_deterministic, " in lines[0]
    assert lines[0].endswith(f"NameError: name 'no_such_name' is not defined (at {__file__}:{line})")


@pytest.mark.parametrize("env_id", ["llm/Blackjack-v0", "llm/Calculator-v0"])
def test_an_environment_that_remembers_its_problems_plays_the_same_episodes(env_id: str) -> None:
    """Blackjack draws while it is played: the generator goes on from where `generate` left it."""
    plain, memory = gym.make(env_id), remembering(gym.make(env_id))
    wanted = [play(plain, seed, ask_oracle) for seed in (3, 4, None, 3)]
    assert [play(memory, seed, ask_oracle) for seed in (3, 4, None, 3)] == wanted
    problem = memory.reset(seed=3)[0] and unwrap(memory).problem
    problem.clear()
    assert memory.reset(seed=3)[0] == plain.reset(seed=3)[0], "a problem that play changed is whole the next time"


def test_a_problem_is_generated_once_for_all_the_policies_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    env, n_generated = gym.make("llm/Calculator-v0"), 0
    generate = unwrap(env).generate

    def counted() -> dict[str, Any]:
        nonlocal n_generated
        n_generated += 1
        return generate()

    monkeypatch.setattr(unwrap(env), "generate", counted)
    remembering(env)
    for seed in (1, 2):
        env.reset(seed=seed)
    n_first = n_generated
    for seed in (1, 2, 1, 2):
        env.reset(seed=seed)
    assert n_generated == n_first >= 2
