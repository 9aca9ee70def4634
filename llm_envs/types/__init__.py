"""The data that moves between environments, policies, the collector and the trainers.

Everything here is frozen and imports nothing of ours. Token data are NumPy arrays, never lists of Python floats: a
token takes 9 bytes of memory (id 4, mask 1, log-probability 4).

Axis legend, used as suffixes everywhere: `_G` group member, `_B` row of a batch, `_T` token, `_V` vocabulary.
"""

from llm_envs.types.messages import Message, Role, ToolCall, ToolResult
from llm_envs.types.sampling import FinishReason, IdArray, KeptTokens, Sampled, SamplingParams, VersionSpan
from llm_envs.types.trajectory import (
    RolloutError,
    Row,
    Status,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
    inspect_trajectory,
    validate_batch,
)

__all__ = [
    "FinishReason",
    "IdArray",
    "KeptTokens",
    "Message",
    "Role",
    "RolloutError",
    "Row",
    "Sampled",
    "SamplingParams",
    "Status",
    "StopReason",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "VersionSpan",
    "inspect_trajectory",
    "validate_batch",
]
