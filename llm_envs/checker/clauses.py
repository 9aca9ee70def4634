"""The one list of clauses, by check: `check_task` requires some of every task, and `certify` examines all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llm_envs.checker import answer_form_clauses as forms
from llm_envs.checker import blind_clauses as blind
from llm_envs.checker import cost_clauses as costs
from llm_envs.checker import declaration_clauses as declarations
from llm_envs.checker import honesty_clauses as honesty
from llm_envs.checker import play_clauses as plays
from llm_envs.checker import replay_clauses as replays
from llm_envs.checker import reward_clauses as rewards
from llm_envs.checker import sameness_clauses as sameness
from llm_envs.checker.subject import Subject
from llm_envs.checker.twin_clauses import oracle_knows_what_is_shown

__all__ = ["CHECKS", "CLAUSES", "Check", "Clause"]

Clause = Callable[[Subject], str]
"""Examines a subject and returns its findings. Its first line of documentation is what must hold."""


@dataclass(frozen=True, slots=True)
class Check:
    """Clauses with one reason."""

    name: str
    reason: str
    """The harm to a training without it."""
    bound: str
    """The requirement, with its numbers."""
    clauses: tuple[Clause, ...] = ()
    """Every task must satisfy these: `check_task` and `certify` examine them."""
    further: tuple[Clause, ...] = ()
    """Only `certify` examines these, because they take long or matter less for a task of ours."""


CHECKS = (
    Check(
        "interface",
        "A trainer passes texts in and out; another type stops it in the middle of a run.",
        "reset and step return Gymnasium's tuples with encodable texts",
        further=(sameness.keeps_the_interface,),
    ),
    Check(
        "contract",
        "Curricula, evaluations and other users rely on what a registered task declares.",
        "every declaration of a registered task is there and true",
        (
            declarations.is_made,
            declarations.passes_gymnasium_check,
            declarations.declares_its_numbers,
            declarations.documents_its_difficulties,
            declarations.has_docstring_headings,
            declarations.checks_its_arguments,
            declarations.plays_given_problems,
            declarations.is_vectorized,
            declarations.pickles,
            declarations.has_a_json_spec,
            honesty.tells_its_turn_limit,
            plays.info_is_well_formed,
        ),
    ),
    Check(
        "determinism",
        "Groups of episodes must have one problem, and a resumed run must repeat its problems.",
        "the same seed and actions give the same episode in fresh environments",
        (sameness.is_deterministic, plays.has_true_state_keys, sameness.leaves_global_randomness_alone),
    ),
    Check(
        "seeds",
        "A seed that changes nothing trains and tests on one problem.",
        "a quarter of 60 seeds differ, or half of what n_problems promises; resets without a seed differ too",
        (sameness.depends_on_the_seed, plays.has_honest_n_problems),
        (sameness.draws_anew_without_a_seed,),
    ),
    Check(
        "splits",
        "A test problem that was trained on measures memory.",
        "no first observation of 150 test episodes is among 150 of train",
        (plays.has_disjoint_splits,),
    ),
    Check(
        "rewards",
        "The reward is all that a policy learns from: a NaN ruins the weights, a wrong sign teaches the opposite.",
        "finite, within the declared range, the sum of its components, and higher for success",
        (rewards.rewards_are_weighted_components, rewards.returns_are_in_range),
        (rewards.pays_success_more,),
    ),
    Check(
        "oracle",
        "A problem that no reply wins costs episodes and teaches nothing.",
        "the oracle wins every episode, and knows only what was shown",
        (plays.oracle_earns_the_maximum, oracle_knows_what_is_shown),
    ),
    Check(
        "floor",
        "A policy finds whatever is paid, and a success rate above chance without skill hides that it learned nothing.",
        "no player without skill wins more than the chance rate, at a false alarm rate of 1e-6 each",
        (
            rewards.is_not_won_by_nonsense,
            replays.is_not_won_by_meaningless_text,
            rewards.is_not_won_by_guessing,
            blind.is_not_won_by_heart,
            blind.is_not_won_at_a_glance,
            blind.is_not_won_by_a_fixed_plan,
            blind.is_not_won_by_enumeration,
        ),
        (rewards.is_not_won_by_common_replies,),
    ),
    Check(
        "hacks",
        "Training amplifies a hack as soon as one sample finds it.",
        "no reward hack wins more than the chance rate, and no hedged or denied answer wins",
        (
            forms.refuses_hedged_answers,
            plays.scores_only_the_agents_words,
            honesty.is_not_won_by_shortcuts,
            honesty.is_not_won_by_comparing,
            honesty.refuses_mutated_references,
            replays.refuses_neighbouring_numbers,
            replays.needs_every_round,
        ),
        (rewards.is_not_won_by_reward_hacks,),
    ),
    Check(
        "natural forms",
        "A right answer that is refused for its form punishes the skill and teaches the form.",
        "the oracle's answer wins in bold, with a full stop and in a sentence",
        (forms.accepts_natural_forms, replays.understands_other_wordings),
    ),
    Check(
        "isolation",
        "Collectors reuse environments and step many at once; what leaks from one episode spoils another.",
        "episodes after others, after one left in the middle, or side by side equal those of fresh environments",
        (sameness.plays_each_episode_alike,),
        (sameness.plays_side_by_side,),
    ),
    Check(
        "latency",
        "Accelerators wait for the slowest environment of a batch.",
        "median reset and slowest step within max_reset_s and max_step_s; 20,000 words within a second more",
        (declarations.resets_quickly, honesty.says_when_it_waits),
        (costs.resets_in_time, costs.steps_in_time, costs.reads_long_replies_quickly),
    ),
    Check(
        "memory",
        "A run plays millions of episodes: a few kilobytes kept by each end it after hours.",
        "at most max_growth_bytes an episode; no files or threads left by closed environments",
        further=(costs.keeps_no_memory, costs.releases_what_it_opens),
    ),
    Check(
        "crashes",
        "An untrained model writes anything, and a raised exception or an endless episode loses its sample.",
        "no hostile or damaged action raises, and every episode ends within max_turns",
        (plays.never_raises, plays.withstands_fuzzing, plays.ends_its_episodes),
    ),
    Check(
        "learnability",
        "An environment that passes all other checks may still give no gradient.",
        "a training by the given learner raises the mean return by 0.05",
        further=(costs.improves_a_model,),
    ),
)
"""Every check, in the order of the reports. If the first one does not hold, `certify` does not try the others."""
CLAUSES = tuple(clause for check in CHECKS for clause in check.clauses)
"""The clauses of `check_task`. If the first one does not hold, it does not try the others."""
