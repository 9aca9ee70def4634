"""Agents that people run, as they are published: how each is started, and how it finds our endpoint.

In commands, variables and files, `$url` and `$key` are the session's address and key, `$anthropic` the address without
/v1, `$child` the address for children, `$home` the agent's own folder and `$prompt` the file with its task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_envs.agents.session import MODEL
from llm_envs.errors import InvalidConfigError, did_you_mean

__all__ = ["PRESETS", "AgentPreset", "find_preset"]


@dataclass(frozen=True)
class AgentPreset:
    """How to start one agent."""

    package: str
    """In its registry."""
    version: str
    """The version that the tests run."""
    registry: Literal["npm", "pip"]
    program: str
    dialect: Literal["chat", "responses", "messages"]
    """The API that it speaks: chat completions, responses, or Anthropic's messages."""
    arguments: str
    """Of its command line, as bash reads them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Its children inherit these."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in its home -> text."""
    marks: tuple[str, ...] = ()
    """See `PolicySession`."""

    @property
    def install(self) -> str:
        """The command that installs it."""
        if self.registry == "npm":
            return f"npm install -g {self.package}@{self.version}"
        return f"pip install {self.package}=={self.version}, in its own environment"


def find_preset(name: str) -> AgentPreset:
    """Return a preset.

    Raises:
        InvalidConfigError: If no preset has that name.
    """
    if name not in PRESETS:
        raise InvalidConfigError(
            f"AgentEnv: the agent {name!r:.60} is none of {', '.join(PRESETS)}; a command is a list of words."
            f"{did_you_mean(name, PRESETS)}"
        )
    return PRESETS[name]


_PATIENCE_MS = 3_600_000
"""The run limits time, so no agent gives up on a model that answers slowly."""
_CHILD = {"OPENAI_BASE_URL": "$child", "OPENAI_API_KEY": "$key", "DO_NOT_TRACK": "1"}
_TASK = '"$(cat $prompt)"'

_CODEX = f"""\
model = "{MODEL}"
model_provider = "llm-envs"
web_search = "disabled"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.llm-envs]
name = "llm-envs"
base_url = "$url"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = {_PATIENCE_MS}
"""
_PI = {"baseUrl": "$url", "api": "openai-completions", "apiKey": "$key", "models": [{"id": MODEL}]}

PRESETS: Mapping[str, AgentPreset] = {
    "codex": AgentPreset(
        package="@openai/codex",
        version="0.171.0",
        registry="npm",
        program="codex",
        dialect="responses",
        arguments=f"exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox {_TASK}",
        variables=_CHILD,
        files={".codex/config.toml": _CODEX},
        marks=("thread-id",),
    ),
    "claude-code": AgentPreset(
        package="@anthropic-ai/claude-code",
        version="2.1.197",
        registry="npm",
        program="claude",
        dialect="messages",
        arguments=f"-p {_TASK} --dangerously-skip-permissions --model {MODEL}",
        # It reads its address from a variable, so its children have the same, and other headers.
        variables={
            "ANTHROPIC_BASE_URL": "$anthropic",
            "ANTHROPIC_API_KEY": "$key",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "small",
            "CLAUDE_CODE_SUBAGENT_MODEL": "subagent",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a text in the prompt that changes with each request
            "API_TIMEOUT_MS": str(_PATIENCE_MS),
            **_CHILD,
        },
        marks=("x-claude-code-session-id",),
    ),
    "mini-swe-agent": AgentPreset(
        package="mini-swe-agent",
        version="2.4.6",
        registry="pip",
        program="mini",
        dialect="chat",
        arguments=f"-y --exit-immediately -m openai/{MODEL} -t {_TASK} -o $home/trajectory.json -c mini.yaml "
        "-c model.model_kwargs.api_base=$url",
        variables={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            **_CHILD,
        },
    ),
    "pi": AgentPreset(
        package="@mariozechner/pi-coding-agent",
        version="0.73.1",
        registry="npm",
        program="pi",
        dialect="chat",
        arguments=f"-p --provider llm-envs --model {MODEL} {_TASK}",
        variables={"PI_OFFLINE": "1", **_CHILD},
        files={".pi/agent/models.json": json.dumps({"providers": {"llm-envs": _PI}})},
    ),
    "aider": AgentPreset(
        package="aider-chat",
        version="0.86.0",
        registry="pip",
        program="aider",
        dialect="chat",
        arguments=f"--model openai/{MODEL} --yes-always --no-git --no-check-update "
        f"--analytics-disable --no-show-model-warnings --no-show-release-notes --no-detect-urls --message {_TASK}",
        # It prefers this variable to its options.
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True", **_CHILD, "OPENAI_BASE_URL": "$url"},
    ),
}
"""By name."""
