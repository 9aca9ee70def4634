"""Agents that ask by HTTP. Worker processes import this module, so it imports nothing heavy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from llm_envs.agents import Endpoint, EnvTask


def create_client(endpoint: Endpoint) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.AsyncClient(base_url=endpoint.base_url, headers=headers, timeout=120, trust_env=False)


async def ask(client: httpx.AsyncClient, messages: list[Any], **body: Any) -> dict[str, Any]:
    answer = await client.post("chat/completions", json={"messages": messages, **body})
    answer.raise_for_status()
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


async def acts(task: EnvTask, client: httpx.AsyncClient) -> None:
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        reply = await ask(client, messages, tools=task.tools)
        messages += [reply, *task.step(reply)]
    await client.aclose()


async def asks_three_at_once(task: dict[str, Any], client: httpx.AsyncClient) -> str:
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    messages.append(await ask(client, messages))
    parts = [[*messages, {"role": "user", "content": f"Part {part}."}] for part in range(3)]
    replies = await asyncio.gather(*(ask(client, part) for part in parts))
    await client.aclose()
    return " ".join(str(reply["content"]) for reply in replies)


class Client:
    """Asks by HTTP without a library, as any language could."""

    def __init__(self, endpoint: Endpoint) -> None:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        self.endpoint = endpoint
        self.http = httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=120, trust_env=False)

    def ask(self, messages: list[Any], **body: Any) -> dict[str, Any]:
        response = self.http.post("chat/completions", json={"messages": messages, **body})
        if response.status_code != 200:
            raise RuntimeError(response.json()["error"]["code"])
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    def close(self) -> None:
        self.http.close()


def answers(task: dict[str, Any], client: Client) -> str:
    """An agent that asks once."""
    return str(client.ask([{"role": "user", "content": task["question"]}])["content"])


def plays(task: EnvTask, client: Client) -> None:
    """An agent that plays an environment to its end."""
    messages = list(task.messages)
    while not task.is_over:
        reply = client.ask(messages, tools=task.tools)
        messages += [reply, *task.step(reply)]


def rewarded(result: Any, trajectory: Any) -> float:
    """Pay a result by its length, 0 or 1."""
    return float(len(str(result)) % 2)
