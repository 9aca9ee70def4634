"""What every task must satisfy, in order; a clause is named as its function. `checker.check_task` runs them all."""

from __future__ import annotations

from collections.abc import Callable

from llm_envs.form_clauses import (
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
from llm_envs.play_clauses import (
    depends_on_the_seed,
    ends_its_episodes,
    has_disjoint_splits,
    has_honest_n_problems,
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
from llm_envs.subject import Subject

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
    leaves_global_randomness_alone,
    depends_on_the_seed,
    has_honest_n_problems,
    has_disjoint_splits,
    oracle_earns_the_maximum,
    never_raises,
    withstands_fuzzing,
    is_not_won_by_nonsense,
    is_not_won_by_guessing,
    ends_its_episodes,
    rewards_are_weighted_components,
    info_is_well_formed,
    scores_only_the_agents_words,
    is_vectorized,
    pickles,
    has_a_json_spec,
    resets_quickly,
)
"""Every clause, in the order in which they are checked. Without the first, the others are not tried."""
