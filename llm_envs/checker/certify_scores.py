"""Checks of `certify` about what is paid: rewards, the oracle, players without skill, hacks, and forms of an answer.

Each check takes the candidate and returns its findings; `Inapplicable` if there is nothing to examine. If the check
does not hold, it raises `BrokenClause` with the fault and the remedy.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean
from typing import Any

from llm_envs.checker.blind import answer_in
from llm_envs.checker.candidate import Candidate, TextPolicy, Trace, probe
from llm_envs.checker.hostile import HostileAction, hostile_actions
from llm_envs.checker.reward_hacks import hedges, reward_hacks
from llm_envs.checker.subject import Inapplicable, repeat, require
from llm_envs.rewards import weighted_sum

__all__ = [
    "accepts_the_answer_in_prose",
    "hostile_policy",
    "is_not_paid_for_hedging",
    "is_not_won_by_reward_hacks",
    "is_not_won_without_skill",
    "oracle_wins",
    "pays_by_its_components",
    "pays_finite_rewards",
    "pays_success_more",
    "random_policy",
]

_NO_ORACLE = Inapplicable("no oracle: give Settings(oracle=...), or the environment a method oracle()")
_N_PAID = 10
_FIXED = (
    *("yes", "no", "true", "false", "0", "1", "2", "A", "B", "C", "D", "left", "right", "up", "down", "north", "stop"),
    *("hit", "stick", "heads", "tails", "rock", "none", "pass", "x"),
)
_MOVES = Inapplicable("the oracle's replies are moves of a longer episode, whose form the environment sets")
_N_FORMS = 5
"""Episodes whose right answer is written in each form."""


def _paid(candidate: Candidate) -> Iterator[Trace]:
    """Yield episodes of mixed play and of the oracle."""
    yield from candidate.references
    yield from candidate.oracle_traces[:_N_PAID] if candidate.oracle else ()
    for seed in range(_N_PAID):
        yield candidate.play(candidate.env, seed, candidate.player(seed + 1))


def pays_finite_rewards(candidate: Candidate) -> str:
    """Each reward is finite, and each return is within the declared range."""
    low, high = candidate.return_range or (-math.inf, math.inf)
    totals = []
    for trace in _paid(candidate):
        for step in trace.steps:
            require(
                math.isfinite(float(step.reward)), f"{step.action[:60]!r} earned {step.reward!r}: pay finite rewards"
            )
        totals.append(trace.total)
        require(
            low - 1e-9 <= trace.total <= high + 1e-9,
            f"the actions {[action[:30] for action in trace.actions[:6]]} earned {trace.total:g}; the declared range "
            f"of returns is {low:g} to {high:g}",
        )
    return f"returns from {min(totals):g} to {max(totals):g}" + (
        "" if candidate.return_range else "; no range declared"
    )


def pays_by_its_components(candidate: Candidate) -> str:
    """The reward is the weighted sum of `info["reward_components"]`, if there are components and `reward_weights`."""
    weights = getattr(candidate.env.unwrapped, "reward_weights", None)
    steps = [step for trace in _paid(candidate) for step in trace.steps]
    named = [step for step in steps if "reward_components" in step.info]
    if not weights or not named:
        return Inapplicable("info has no reward_components, or the environment no reward_weights")
    require(len(named) == len(steps), f"{len(steps) - len(named)} of {len(steps)} steps have no reward_components")
    for step in named:
        components = step.info["reward_components"]
        require(
            set(components) == set(weights), f"the components are {sorted(components)}, the weights {sorted(weights)}"
        )
        total = weighted_sum(components, weights)
        require(
            math.isclose(float(step.reward), total, abs_tol=1e-6),
            f"the reward is {step.reward}, its components {components} sum to {total:g}",
        )
    return f"{len(named)} steps"


def pays_success_more(candidate: Candidate) -> str:
    """Episodes that `info["is_success"]` calls won pay more on average than lost ones."""
    over = [trace for trace in _paid(candidate) if trace.is_over]
    told = [(trace.steps[-1].info["is_success"], trace.total) for trace in over if "is_success" in trace.steps[-1].info]
    if not told:
        return Inapplicable("info has no is_success")
    require(len(told) == len(over), "is_success is missing at the end of some episodes")
    won, lost = [total for is_won, total in told if is_won], [total for is_won, total in told if not is_won]
    if not won or not lost:
        return Inapplicable("no episode was won" if not won else "no episode was lost")
    require(
        fmean(won) > fmean(lost),
        f"{len(won)} won episodes earned {fmean(won):g} on average and {len(lost)} lost ones {fmean(lost):g}: pay for "
        "success, or correct is_success",
    )
    return f"{fmean(won):g} for success, {fmean(lost):g} otherwise"


def oracle_wins(candidate: Candidate) -> str:
    """The oracle wins every episode."""
    if candidate.oracle is None:
        return _NO_ORACLE
    for seed, trace in enumerate(candidate.oracle_traces):
        if not candidate.is_win(trace):
            last = f"after {trace.actions[-1:]!r:.80}, " if trace.steps else ""
            ended = repr(trace.error) if trace.error else f"it earned {trace.total:g} in {len(trace.steps)} turns"
            require(False, f"seed {seed}: the oracle did not win; {last}{ended}: mend the judge or the oracle")
    return f"{len(candidate.oracle_traces)} of {len(candidate.oracle_traces)} episodes"


def is_not_won_without_skill(candidate: Candidate) -> str:
    """Nonsense, random probes, one word for ever and answers to another problem win no more than the chance rate."""
    best, n_players = 0.0, 0
    for name, policy_of in _players(candidate):
        best = max(best, candidate.require_no_skill(name, policy_of))
        n_players += 1
    return f"{n_players} players won at most {best:.0%}; the chance rate is {candidate.chance_rate:g}"


def _players(candidate: Candidate) -> Iterator[tuple[str, Callable[[int], TextPolicy | None]]]:
    candidate.env.reset(seed=0)
    for name, act in hostile_actions(getattr(candidate.env.unwrapped, "tools", None) or ()).items():
        if "long" not in name and "all numbers" not in name and "an echo" not in name:  # hacks, and slow ones
            yield f"the action {name!r}", partial(hostile_policy, act)
    yield "a player of random probes", random_policy
    for word in _FIXED:
        yield f"always {word!r}", lambda seed, word=word: repeat([], word)  # type: ignore[misc]
    traces = [] if candidate.oracle is None else candidate.oracle_traces
    actions = [action for trace in traces for action in trace.actions]
    if not actions:
        return
    usual = max(actions, key=actions.count)
    yield f"always the oracle's most frequent action {usual[:40]!r}", lambda seed: repeat([], usual)

    def borrowed(seed: int) -> TextPolicy | None:
        mine, other = traces[seed % len(traces)], traces[(seed + 1) % len(traces)]
        return None if mine.opening == other.opening or seed >= len(traces) else repeat(other.actions, usual)

    yield "the oracle's actions for another problem", borrowed


def hostile_policy(act: HostileAction, seed: int) -> TextPolicy:
    """Return a policy of one hostile action, for environments of any kind."""
    rng = random.Random(seed)
    return lambda env, observation: act(_Told(env), observation, rng)


class _Told:
    """An environment whose missing attributes are empty, for hostile actions that look at them."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.env, name, "")


def random_policy(seed: int) -> TextPolicy:
    """Return a policy of words of the observation and common replies."""
    rng = random.Random(seed)
    return lambda env, observation: probe(observation, rng)


def is_not_won_by_reward_hacks(candidate: Candidate) -> str:
    """The library of reward hacks wins no more than the chance rate."""
    hacks, best = reward_hacks(), 0.0
    for name, policy in hacks.items():
        best = max(best, candidate.require_no_skill(f"the reward hack {name}", lambda seed, policy=policy: policy))  # type: ignore[misc]
    return f"{len(hacks)} hacks won at most {best:.0%}; the chance rate is {candidate.chance_rate:g}"


def is_not_paid_for_hedging(candidate: Candidate) -> str:
    """A right answer beside a wrong one, or one that is denied, does not win more than the chance rate."""
    finals = _finals(candidate)
    if isinstance(finals, Inapplicable):
        return finals
    answers = [answer for *_, answer in finals]
    n_tried = 0
    for name in hedges("", ""):
        won, tried = [], 0
        for place, (seed, trace, answer) in enumerate(finals):
            wrong = next((other for other in answers[place + 1 :] + answers[:place] if other != answer), None)
            if wrong is None or candidate.is_win(_with_answer(candidate, seed, trace, answer, wrong)):
                continue
            tried += 1
            won += (
                [seed]
                if candidate.is_win(_with_answer(candidate, seed, trace, answer, hedges(answer, wrong)[name]))
                else []
            )
        n_tried += tried
        require(
            not won or len(won) <= tried * candidate.chance_rate,
            f"{name} won {len(won)} of {tried} episodes (seeds {won[:3]}): refuse replies with more than one answer",
        )
    return f"{n_tried} hedged or denied answers" if n_tried else Inapplicable("all problems have one answer")


def accepts_the_answer_in_prose(candidate: Candidate) -> str:
    """A right answer wins in the forms in which models write it: in bold, with a full stop, in a sentence."""
    finals = _finals(candidate)
    if isinstance(finals, Inapplicable):
        return finals
    for name, form in _FORMS.items():
        for seed, trace, answer in finals[:_N_FORMS]:
            last = _with_answer(candidate, seed, trace, answer, form.format(answer))
            require(
                candidate.is_win(last),
                f"seed {seed}: the right answer {answer[:60]!r} {name} ({form.format(answer)!r:.80}) did not win: "
                "remove such decoration before you compare",
            )
    return f"{len(_FORMS)} forms"


_FORMS = {
    "between line breaks": "\n{}\n",
    "with a full stop": "{}.",
    "in bold": "**{}**",
    "in a sentence": "The answer is {}.",
    "after a thought": "Let me think.\n\nThe answer is {}",
}


def _finals(candidate: Candidate) -> list[tuple[int, Trace, str]] | Inapplicable:
    """Return (seed, episode, answer) of the oracle's episodes whose last action is an answer, or why there are none."""
    if candidate.oracle is None:
        return _NO_ORACLE
    if candidate.repeats:
        return Inapplicable("episodes do not repeat")
    won = [(seed, trace) for seed, trace in enumerate(candidate.oracle_traces) if candidate.is_win(trace)]
    if not won:
        return Inapplicable("the oracle never wins")
    found = [
        (seed, trace, answer_in(trace.actions[-1]))
        for seed, trace in won
        if len(trace.steps) == 1 or re.search("<answer>", trace.actions[-1])
    ]
    return found or _MOVES


def _with_answer(candidate: Candidate, seed: int, trace: Trace, answer: str, text: str) -> Trace:
    """Play the oracle's episode with another text in place of its answer."""
    *before, last = trace.actions
    return candidate.play(candidate.env, seed, repeat([*before, last.replace(answer, text)]), most=len(trace.steps))
