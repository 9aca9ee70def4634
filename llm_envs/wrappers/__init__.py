"""Wrappers of text environments, and environments that mix others."""

from __future__ import annotations

from llm_envs.wrappers.few_shot import FewShot
from llm_envs.wrappers.mixtures import CurriculumEnv, MixtureEnv
from llm_envs.wrappers.text import (
    AddTools,
    FormatObservation,
    StepCost,
    StripThinking,
    TruncateObservation,
    TurnLimit,
)

__all__ = [
    "AddTools",
    "CurriculumEnv",
    "FewShot",
    "FormatObservation",
    "MixtureEnv",
    "StepCost",
    "StripThinking",
    "TruncateObservation",
    "TurnLimit",
]
