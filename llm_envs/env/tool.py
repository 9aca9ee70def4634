"""The base class of tasks in which the agent calls tools until it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from llm_envs.env.text import TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import ParsedReply
from llm_envs.problems import Outcome
from llm_envs.spaces import encodable
from llm_envs.tools.base import INVALID_ARGUMENTS, UNKNOWN_TOOL, Tool
from llm_envs.tools.executor import Toolbox, run_calls
from llm_envs.tools.toolset import Toolset
from llm_envs.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from llm_envs.sandbox import PythonTool

__all__ = ["ToolEnv", "messages_of_results"]


class ToolEnv(TextEnv):
    """An environment of several turns in which the agent calls tools until it answers.

    The first rule that applies decides about a reply:

    1. A part of it is broken (`ParsedReply.problems`): an error observation, malformed.
    2. It calls tools: they run, in parallel where possible (`llm_envs.tools.executor`). Their results, in the order of
       the calls, are the observation. An answer in the same reply is ignored, because it was written before the results
       were known. Calling an unknown tool, or with wrong arguments, is malformed; a call that fails, times out or
       exceeds its budget is not. If some calls cannot be read, the others run, and the reply is malformed.
    3. It answers: the answer is judged and the episode terminates. If the answer has the wrong form, the reply is
       malformed and the episode continues.
    4. Neither: an error observation, malformed.

    The system prompt ends with the number of replies that an episode has.

    A task writes `make_tools`, `generate`, `prompt`, `is_correct` and `next_action`.
    """

    default_max_turns = 4
    max_calls_per_turn: ClassVar[int] = 16
    """Calls beyond this number are not run, and the reply is malformed."""
    max_parallel_calls: ClassVar[int] = 16
    """Calls of one turn that may run at once; see `llm_envs.tools.executor` for which calls can."""
    tool_timeout_s: ClassVar[float | None] = None
    """Limit in seconds of each call, for tools without their own limit; None means no limit."""

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)
        self.toolbox = Toolbox(self.make_tools(), self)
        self._schemas = [tool.schema for tool in self.toolbox.values()]
        self.blocking = type(self).blocking or self.toolbox.blocking

    @abstractmethod
    def make_tools(self) -> Toolset | Sequence[Tool | Toolset | PythonTool | Callable[..., Any]]:
        """Return the tools: typed functions (bound methods to use the episode's state), `Tool`s, `Toolset`s.

        It may also be a single toolset. Toolsets, budgets and `PythonTool`s are reset in each episode, before `begin`,
        and closed with the environment. Create them here: environments share no state.
        """

    @abstractmethod
    def is_correct(self, answer: str) -> bool:
        """Return whether the answer is right; raise a readable `InvalidActionError` if it has the wrong form."""

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Return the turn's reward components. Override this to add components."""
        return {"correct": 1.0 if correct else 0.0, "malformed": 1.0 if malformed else 0.0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; see `TextEnv.reset`."""
        result = super().reset(seed=seed, options=options)
        limit = f"You have {self.max_turns} {'reply' if self.max_turns == 1 else 'replies'}."
        self.system_prompt = limit if self.system_prompt is None else f"{self.system_prompt}\n{limit}"
        self.tools = list(self._schemas)
        return result

    def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Return the results of a turn's calls, in their order. Override this to run them in another way."""
        return run_calls(self.toolbox, calls, timeout_s=self.tool_timeout_s, max_parallel=self.max_parallel_calls)

    def close(self) -> None:
        """Close the toolsets, except shared ones."""
        self.toolbox.close()
        super().close()

    def _reset_tools(self) -> None:
        if self.toolbox.keeps_state:
            self.toolbox.reset(self.problem, self.np_random)

    def play(self, action: str) -> Outcome:
        """Run the reply's tool calls, or judge its answer."""
        reply = self.read(action)
        if reply.tool_calls:
            return self._play_calls(reply)
        self.tool_results = ()
        try:
            correct = bool(self.judge(reply, self.is_correct, or_else="tool call or "))
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}.", self.score(reply, (), correct=False, malformed=True))
        components = self.score(reply, (), correct=correct, malformed=False)
        return Outcome("Correct." if correct else "Incorrect.", components, True, correct)

    def _play_calls(self, reply: ParsedReply) -> Outcome:
        calls = reply.tool_calls[: self.max_calls_per_turn]
        self.tool_results = results = self.run_calls(calls)
        messages, malformed = messages_of_results(reply.tool_calls, results)
        if error := reply.dropped_calls_error:
            messages, malformed = [*messages, {"role": "user", "content": error}], True
        components = self.score(reply, results, correct=False, malformed=malformed)
        observation = "\n".join([message["content"] for message in messages])
        return Outcome(observation, components, False, False, messages)


def messages_of_results(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[list[dict[str, Any]], bool]:
    """Return the results of a reply's first calls as messages, and whether the reply is malformed.

    It is if it has more calls than results, calls an unknown tool, or one with wrong arguments.
    """
    messages: list[dict[str, Any]] = []
    for call, result in zip(calls, results, strict=False):
        messages.append({"role": "tool", "name": result.name, "content": result.output})
        if call.id is not None:
            messages[-1]["tool_call_id"] = encodable(call.id)
    malformed = any(result.error in (UNKNOWN_TOOL, INVALID_ARGUMENTS) for result in results)
    if len(results) < len(calls):
        text = f"Error: {len(calls)} tool calls in one reply; only the first {len(results)} were run."
        messages.append({"role": "user", "content": text})
    return messages, malformed or len(results) < len(calls)
