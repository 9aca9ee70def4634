"""`certify`: whether anyone's text environment is fit for training; `llm-envs certify` on the command line.

`CHECKS` lists the checks. Each has parts, which are small functions. The clauses of `check_task` examine tasks of ours;
the general parts examine every environment; the outer parts only those that the clauses cannot examine: environments
of other packages, and tasks without an oracle. A part that has nothing to examine is "not applicable", with its reason.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym

from llm_envs.checker import certify_costs as costs
from llm_envs.checker import certify_sameness as sameness
from llm_envs.checker import certify_scores as scores
from llm_envs.checker.candidate import Candidate, Settings
from llm_envs.checker.catalogue import example_kwargs
from llm_envs.checker.clauses import CLAUSES
from llm_envs.checker.subject import BrokenClause, Inapplicable
from llm_envs.errors import InvalidConfigError, MissingExtraError, UnknownTaskError
from llm_envs.problems import check_choice
from llm_envs.registration import task_spec

__all__ = ["CHECKS", "Certificate", "Check", "Finding", "certify"]

Status = Literal["passed", "failed", "not applicable"]
Part = Callable[[Candidate], str]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: why it matters, what it requires, and its parts."""

    name: str
    reason: str
    """The harm to a training without it."""
    bound: str
    """The requirement, with its numbers."""
    clauses: tuple[str, ...] = ()
    """Clauses of `check_task`, for tasks of ours with an oracle."""
    general: tuple[Part, ...] = ()
    """Parts for every environment."""
    outer: tuple[Part, ...] = ()
    """Parts for environments that the clauses cannot examine."""


CHECKS = (
    Check(
        "interface",
        "A trainer passes texts in and out; another type stops it in the middle of a run.",
        "reset and step return Gymnasium's tuples with encodable texts",
        general=(sameness.keeps_the_interface,),
    ),
    Check(
        "contract",
        "Curricula, evaluations and other users rely on what a registered task declares.",
        "every declaration of a registered task is there and true",
        clauses=(
            *("is_made", "passes_gymnasium_check", "declares_its_numbers", "documents_its_difficulties"),
            *("has_docstring_headings", "checks_its_arguments", "plays_given_problems", "is_vectorized", "pickles"),
            *("has_a_json_spec", "tells_its_turn_limit", "info_is_well_formed"),
        ),
    ),
    Check(
        "determinism",
        "Groups of episodes must have one problem, and a resumed run must repeat its problems.",
        "the same seed and actions give the same episode in fresh environments",
        clauses=("leaves_global_randomness_alone", "has_true_state_keys"),
        general=(sameness.repeats_its_episodes,),
        outer=(sameness.leaves_randomness_alone,),
    ),
    Check(
        "seeds",
        "A seed that changes nothing trains and tests on one problem.",
        "a quarter of 40 seeds differ, or half of what n_problems promises; resets without a seed differ too",
        clauses=("depends_on_the_seed", "has_honest_n_problems"),
        general=(sameness.draws_anew_without_a_seed,),
        outer=(sameness.differs_by_seed,),
    ),
    Check(
        "splits",
        "A test problem that was trained on measures memory.",
        "no first observation of 150 test episodes is among 150 of train",
        clauses=("has_disjoint_splits",),
        outer=(sameness.has_separate_splits,),
    ),
    Check(
        "rewards",
        "The reward is all that a policy learns from: a NaN ruins the weights, a wrong sign teaches the opposite.",
        "finite, within the declared range, the sum of its components, and higher for success",
        clauses=("rewards_are_weighted_components", "costs_are_bounded"),
        general=(scores.pays_finite_rewards, scores.pays_success_more),
        outer=(scores.pays_by_its_components,),
    ),
    Check(
        "oracle",
        "A problem that no reply wins costs episodes and teaches nothing.",
        "the oracle wins every episode, and knows only what was shown",
        clauses=("oracle_earns_the_maximum", "oracle_knows_what_is_shown"),
        outer=(scores.oracle_wins,),
    ),
    Check(
        "floor",
        "A policy finds whatever is paid, and a success rate above chance without skill hides that it learned nothing.",
        "no player without skill wins more than the chance rate, at a false alarm rate of 1e-6 each",
        clauses=(
            *("is_not_won_by_nonsense", "is_not_won_by_meaningless_text", "is_not_won_by_guessing"),
            *("is_not_won_by_heart", "is_not_won_at_a_glance"),
            *("is_not_won_by_a_fixed_plan", "is_not_won_by_enumeration"),
        ),
        outer=(scores.is_not_won_without_skill,),
    ),
    Check(
        "hacks",
        "Training amplifies a hack as soon as one sample finds it.",
        "no reward hack wins more than the chance rate, and no hedged or denied answer wins",
        clauses=(
            *("refuses_hedged_answers", "scores_only_the_agents_words", "is_not_won_by_shortcuts"),
            *("refuses_mutated_references", "refuses_neighbouring_numbers", "needs_every_round"),
        ),
        general=(scores.is_not_won_by_reward_hacks,),
        outer=(scores.is_not_paid_for_hedging,),
    ),
    Check(
        "natural forms",
        "A right answer that is refused for its form punishes the skill and teaches the form.",
        "the oracle's answer wins in bold, with a full stop and in a sentence",
        clauses=("accepts_natural_forms", "understands_other_wordings"),
        outer=(scores.accepts_the_answer_in_prose,),
    ),
    Check(
        "isolation",
        "Collectors reuse environments and step many at once; what leaks from one episode spoils another.",
        "episodes after others, after one left in the middle, or side by side equal those of fresh environments",
        clauses=("is_deterministic",),
        general=(sameness.plays_each_episode_alike, sameness.plays_side_by_side),
    ),
    Check(
        "latency",
        "Accelerators wait for the slowest environment of a batch.",
        "median reset and slowest step within max_reset_s and max_step_s; 20,000 words within a second more",
        clauses=("resets_quickly", "says_when_it_waits"),
        general=(costs.resets_in_time, costs.steps_in_time, costs.reads_long_replies_quickly),
    ),
    Check(
        "memory",
        "A run plays millions of episodes: a few kilobytes kept by each end it after hours.",
        "at most max_growth_bytes an episode; no files or threads left by closed environments",
        general=(costs.keeps_no_memory, costs.releases_what_it_opens),
    ),
    Check(
        "crashes",
        "An untrained model writes anything, and a raised exception or an endless episode loses its sample.",
        "no hostile or damaged action raises, and every episode ends within max_turns",
        clauses=("never_raises", "withstands_fuzzing", "ends_its_episodes"),
        outer=(costs.raises_on_no_action, costs.ends_every_episode),
    ),
    Check(
        "learnability",
        "An environment that passes all other checks may still give no gradient.",
        "a training by the given learner raises the mean return by 0.05",
        general=(costs.improves_a_model,),
    ),
)
"""Every check, in the order of the report. If the first one does not hold, the others are not tried."""
_CLAUSE = {clause.__name__: clause for clause in CLAUSES}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one part of a check."""

    check: str
    part: str
    """Name of the function: a clause of `check_task`, or a function of `certify_sameness`, `_scores` or `_costs`."""
    status: Status
    detail: str
    """The findings; the fault and its remedy; or why the part does not apply."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of `certify`."""

    env: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed, in their order."""
        return tuple(name for name in self.checks if self.status(name) == "failed")

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of the checks that were run, in their order."""
        return tuple(dict.fromkeys(finding.check for finding in self.findings))

    def status(self, check: str) -> Status:
        """Return a check's status: that of its worst part; "not applicable" if none of its parts applies."""
        found = {finding.status for finding in self.findings if finding.check == check}
        return "failed" if "failed" in found else "passed" if "passed" in found else "not applicable"

    def to_json(self) -> dict[str, Any]:
        """Return all findings, with the reason and the bound of each check, as JSON types."""
        about = {check.name: check for check in CHECKS}
        return {
            "env": self.env,
            "passed": self.passed,
            "checks": [
                {
                    "name": name,
                    "status": self.status(name),
                    "reason": about[name].reason,
                    "bound": about[name].bound,
                    "findings": [asdict(finding) for finding in self.findings if finding.check == name],
                }
                for name in self.checks
            ],
        }

    def __str__(self) -> str:
        """Return one line for each finding."""
        marks = {"passed": "ok  ", "failed": "FAIL", "not applicable": "n/a "}
        lines = [f"{marks[found.status]} {found.check}: {found.part}: {found.detail}" for found in self.findings]
        return "\n".join([self.env, *lines])


def certify(
    env: str | Callable[..., gym.Env[str, str]],
    settings: Settings | None = None,
    *,
    checks: Sequence[str] | None = None,
    **kwargs: Any,
) -> Certificate:
    """Examine whether a text environment is fit for training, whoever wrote it.

    Args:
        env: A registered id, such as "llm/Calculator-v0" or "my_package:my/Task-v0"; "module:Class"; or any function
            that makes the environment.
        settings: Declarations about the environment, and the bounds to hold it to.
        checks: Names of the checks to run; None runs all of `CHECKS`.
        **kwargs: Keyword arguments of the environment.

    Returns:
        The certificate, with a finding for each part of each check.

    Raises:
        InvalidConfigError: If the environment is not one of texts, or a name of a check is unknown.
        UnknownTaskError: If the id, module or class does not exist.
        MissingExtraError: If a package that the environment needs is not installed.
    """
    names = [check.name for check in CHECKS]
    for name in checks or ():
        check_choice("certify", "check", name, names)
    candidate = _candidate(env, settings or Settings(), kwargs)
    findings: list[Finding] = []
    with closing(candidate.env):
        for check in CHECKS:
            if checks is not None and check.name not in checks:
                continue
            findings += [_examine(check.name, part, candidate) for part in _parts(check, candidate)]
            if check is CHECKS[0] and any(finding.status == "failed" for finding in findings):
                break
    return Certificate(candidate.name, tuple(findings))


def _candidate(env: str | Callable[..., gym.Env[str, str]], settings: Settings, kwargs: dict[str, Any]) -> Candidate:
    maker, env_id, kwargs = _found(env, kwargs) if isinstance(env, str) else (env, None, kwargs)
    name = env if isinstance(env, str) else getattr(env, "__qualname__", repr(env))
    candidate = Candidate(name, partial(maker, **kwargs), settings, env_id, kwargs)
    try:
        made = candidate.env
    except (InvalidConfigError, MissingExtraError):
        raise
    except Exception as error:
        raise InvalidConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, gym.Env):
        raise InvalidConfigError(
            f"{name} is a {type(made).__name__}; it must be a gymnasium.Env with reset and step. Agents with a loop of "
            "theirs are examined by the environments that they play."
        )
    for space in (made.observation_space, made.action_space):
        if not isinstance(space, gym.spaces.Text):
            raise InvalidConfigError(
                f"{name} has the space {space}; it must be a gymnasium.spaces.Text. For numbers take "
                f"llm_envs.bridges.gymnasium:GymnasiumEnv with env_id, which puts them into words."
            )
    return candidate


def _found(name: str, kwargs: dict[str, Any]) -> tuple[Callable[..., gym.Env[str, str]], str | None, dict[str, Any]]:
    """Return the maker of an environment, its id if it is registered, and its keyword arguments."""
    module, _, attribute = name.rpartition(":")
    if module and attribute.isidentifier():
        try:
            maker = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UnknownTaskError(f"{name}: {error}; give module:Class, or a registered id.") from error
        return maker, None, kwargs
    spec = task_spec(name)
    return partial(gym.make, spec.id, disable_env_checker=True), spec.id, example_kwargs(spec.id) | kwargs


def _parts(check: Check, candidate: Candidate) -> list[tuple[str, Callable[[], str]]]:
    """Return the names and the calls of a check's parts that suit the candidate."""
    subject = candidate.subject
    parts: list[tuple[str, Callable[[], str]]] = []
    if check.clauses and subject is not None and (check.name != "contract" or candidate.env_id is not None):
        parts += [(name, partial(_CLAUSE[name], subject)) for name in check.clauses]
    parts += [(part.__name__, partial(part, candidate)) for part in check.general]
    if subject is None:
        parts += [(part.__name__, partial(part, candidate)) for part in check.outer]
    return parts or [(check.name, lambda: Inapplicable("only for registered tasks (TextEnv) with an oracle"))]


def _examine(check: str, part: tuple[str, Callable[[], str]], candidate: Candidate) -> Finding:
    name, call = part
    started = time.perf_counter()
    status: Status
    try:
        detail = call()
        status = "not applicable" if isinstance(detail, Inapplicable) else "passed"
    except Exception as error:
        status = "failed"
        detail = str(error) if isinstance(error, BrokenClause) else f"{type(error).__name__}: {error}"
    return Finding(check, name, status, str(detail), time.perf_counter() - started)
