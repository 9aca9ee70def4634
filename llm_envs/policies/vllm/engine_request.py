"""A request to a vLLM engine in this process, from the caller that waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llm_envs.policies.vllm.adapters import Adapter
from llm_envs.types import Sampled
from llm_envs.types.sampling import spans_of_changes

if TYPE_CHECKING:
    import vllm

__all__ = ["EngineRequest"]


@dataclass(eq=False)
class EngineRequest:
    """One request."""

    id: str
    prompt_ids: list[int]
    params: vllm.SamplingParams
    read: Callable[[vllm.RequestOutput, int], Any]
    """The engine's last output and the weight version -> the answer."""
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    session: str | None = None
    """The session of the turn. None: the turn cannot be interrupted."""
    adapter: Adapter | None = None
    """None: the present one, when the engine takes the request."""
    weight_version: int = 0
    changes: list[tuple[int, int]] = field(default_factory=list)
    """Changes of the weights during the turn: the tokens before each, the version after it."""

    def resolve(self, outcome: Any) -> None:
        """Set the future's result, or its exception, on its own loop, unless its caller has gone or the loop closed."""
        set_outcome = self.answer.set_exception if isinstance(outcome, Exception) else self.answer.set_result

        def set_if_open() -> None:
            if not self.answer.done():
                set_outcome(outcome)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(set_if_open)

    def with_changes(self, answer: Any) -> Any:
        """Return a turn with the versions of its tokens; other answers as they are."""
        if not self.changes or not isinstance(answer, Sampled):
            return answer
        return replace(answer, versions=spans_of_changes(self.weight_version, self.changes, len(answer.token_ids)))
