"""The clauses that every task must satisfy, in order, named after their functions. `check.check_task` runs them."""

from __future__ import annotations

from collections.abc import Callable

from llm_envs.checker.blind_clauses import (
    is_not_won_at_a_glance,
    is_not_won_by_a_fixed_plan,
    is_not_won_by_enumeration,
    is_not_won_by_heart,
)
from llm_envs.checker.form_clauses import accepts_natural_forms, refuses_hedged_answers
from llm_envs.checker.honesty_clauses import (
    is_not_won_by_shortcuts,
    refuses_mutated_references,
    says_when_it_waits,
    tells_its_turn_limit,
)
from llm_envs.checker.play_clauses import (
    costs_are_bounded,
    depends_on_the_seed,
    ends_its_episodes,
    has_disjoint_splits,
    has_honest_n_problems,
    has_true_state_keys,
    info_is_well_formed,
    is_deterministic,
    is_not_won_by_guessing,
    is_not_won_by_nonsense,
    never_raises,
    oracle_earns_the_maximum,
    rewards_are_weighted_components,
    scores_only_the_agents_words,
    withstands_fuzzing,
)
from llm_envs.checker.replay_clauses import (
    is_not_won_by_meaningless_text,
    needs_every_round,
    refuses_neighbouring_numbers,
    understands_other_wordings,
)
from llm_envs.checker.static_clauses import (
    checks_its_arguments,
    declares_its_numbers,
    documents_its_difficulties,
    has_a_json_spec,
    has_docstring_headings,
    is_made,
    is_vectorized,
    leaves_global_randomness_alone,
    passes_gymnasium_check,
    pickles,
    plays_given_problems,
    resets_quickly,
)
from llm_envs.checker.subject import Subject
from llm_envs.checker.twin_clauses import oracle_knows_what_is_shown

__all__ = ["CLAUSES"]

CLAUSES: tuple[Callable[[Subject], str], ...] = (
    is_made,
    passes_gymnasium_check,
    declares_its_numbers,
    documents_its_difficulties,
    has_docstring_headings,
    checks_its_arguments,
    plays_given_problems,
    is_deterministic,
    has_true_state_keys,
    leaves_global_randomness_alone,
    depends_on_the_seed,
    has_honest_n_problems,
    has_disjoint_splits,
    oracle_earns_the_maximum,
    oracle_knows_what_is_shown,
    accepts_natural_forms,
    refuses_hedged_answers,
    understands_other_wordings,
    never_raises,
    withstands_fuzzing,
    is_not_won_by_nonsense,
    is_not_won_by_meaningless_text,
    is_not_won_by_guessing,
    is_not_won_by_heart,
    is_not_won_by_a_fixed_plan,
    is_not_won_by_enumeration,
    is_not_won_at_a_glance,
    is_not_won_by_shortcuts,
    refuses_mutated_references,
    refuses_neighbouring_numbers,
    needs_every_round,
    ends_its_episodes,
    tells_its_turn_limit,
    costs_are_bounded,
    rewards_are_weighted_components,
    info_is_well_formed,
    scores_only_the_agents_words,
    is_vectorized,
    pickles,
    has_a_json_spec,
    resets_quickly,
    says_when_it_waits,
)
"""Every clause, in the order of the check. If the first does not hold, the others are not tried."""
