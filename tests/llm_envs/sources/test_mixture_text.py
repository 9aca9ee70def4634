"""Mixtures written as text."""

from __future__ import annotations

from llm_envs.sources.mixture_text import parse_mixture


def test_a_pattern_leaves_out_what_needs_data_unless_it_matches_nothing_else() -> None:
    found = [choice.env_id for choice in parse_mixture(["llm/*"])]
    assert "llm/Calculator-v0" in found and not {"llm/GSM8K-v0", "llm/Repository-v0"} & {*found}
    assert [choice.env_id for choice in parse_mixture(["llm/GSM*"])] == ["llm/GSM8K-v0"]
    assert [choice.env_id for choice in parse_mixture(["llm/GSM8K-v0"])] == ["llm/GSM8K-v0"]
