"""Rewards from a model: a language model with a rubric, or a reward model with a score."""

from __future__ import annotations

from llm_envs.judges.llm_judge import LLMJudge, Question, judge_messages, parse_verdict, question_of
from llm_envs.judges.reward_model import RewardModel, torch_scorer

__all__ = [
    "LLMJudge",
    "Question",
    "RewardModel",
    "judge_messages",
    "parse_verdict",
    "question_of",
    "torch_scorer",
]
