"""Inspect AI: our policies as a model provider, and our environments as a task.

    inspect eval inspect_evals/gsm8k --model llm-envs/runs/grpo          # their tasks, a checkpoint of ours
    inspect eval llm_envs/episodes -T env_id=llm/Wordle-v0 --model ...   # our environments, any model of theirs

Inspect finds both by an entry point, which imports this module.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from llm_envs.agents.requests import RequestError, chat_answer, read_chat_request
from llm_envs.agents.session import PolicySession
from llm_envs.agents.task import EnvTask
from llm_envs.agents.task import TaskState as EpisodeState
from llm_envs.chat.context import Codec
from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.policies.base import Policy, TokenPolicy
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.workers.runner import EnvMaker
from llm_envs.sources.source import EpisodeSpec, SeedSource
from llm_envs.types import SamplingParams

with extra_needed("the bridge to Inspect needs `inspect-ai`: pip install 'llm-envs[evals]'."):
    import anyio.to_thread
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        get_model,
        modelapi,
    )
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

__all__ = ["PolicyModel", "episodes", "play_episode", "return_and_success"]

_STOPS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}
_GROUP = "0"
"""The group of every session here. So a seed in a request decides what is sampled."""


@modelapi(name="llm-envs")
class PolicyModel(ModelAPI):
    """A token policy as a model of Inspect: `--model llm-envs/PATH`, or `get_model("llm-envs/policy", policy=policy)`.

    Args:
        model_name: A checkpoint, unless `policy` is given.
        base_url: Not used.
        api_key: Not used.
        config: Inspect's settings of generation.
        policy: A token policy.
        codec: Its codec. None: the policy's own.
        engine: "transformers" or "vllm": where a checkpoint is loaded.
        max_new_tokens: Tokens of a reply where Inspect does not say.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 (Inspect declares it so)
        policy: Policy | None = None,
        codec: Codec | None = None,
        engine: str = "transformers",
        max_new_tokens: int = 2048,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        loaded: Any = _load(model_name, engine) if policy is None else policy
        self.policy: Any = loaded
        own_codec: Any = getattr(loaded, "codec", None)
        if not isinstance(loaded, TokenPolicy) or (own_codec is None and codec is None):
            raise InvalidConfigError(
                f"policy is a {type(loaded).__name__}; it must be a token policy (TransformersPolicy, "
                "VLLMEnginePolicy, VLLMServerPolicy), with its codec or one that you pass."
            )
        self.codec: Codec = own_codec if codec is None else codec
        self.sampling = SamplingParams(max_new_tokens=max_new_tokens)
        self._seeds = itertools.count()
        """Of requests without their own: epochs of a sample must differ."""

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Sample a reply.

        Raises:
            InvalidConfigError: If the request asks for something that a policy cannot do.
        """
        body = {
            "model": self.model_name,
            "messages": [_to_api(message) for message in input],
            "tools": [] if tool_choice == "none" else [_schema(tool) for tool in tools],
            "tool_choice": None if tool_choice in ("auto", "none") else str(tool_choice),
            "stop": config.stop_seqs,
            "n": config.num_choices,
            "max_tokens": config.max_tokens,
            **{name: getattr(config, name) for name in _PASSED},
        }
        spec = EpisodeSpec("inspect", group_id=_GROUP)
        limits = RolloutLimits(max_policy_s=config.timeout)
        # A new session for each request: a later one may continue, shorten or rewrite the conversation.
        session = PolicySession(
            spec, self.policy, self.codec, self.sampling, limits, "append", next(self._seeds), requests_decide=True
        )
        try:
            request = read_chat_request({name: value for name, value in body.items() if value is not None})
            id_, replies = await session.chat(request)
        except RequestError as error:
            if error.code == "context_length_exceeded":
                return ModelOutput.from_content(self.model_name, "", "model_length", str(error))
            raise InvalidConfigError(f"llm-envs/{self.model_name}: {error}") from error
        answer = chat_answer(request, id_, replies, self.codec)
        choices = [
            ChatCompletionChoice(message=self._message(reply), stop_reason=_STOPS[reply.finish_reason])
            for reply in replies
        ]
        usage = {name.removesuffix("_tokens"): n for name, n in answer["usage"].items()}
        return ModelOutput(
            model=self.model_name,
            choices=choices,
            usage=ModelUsage(
                input_tokens=usage["prompt"], output_tokens=usage["completion"], total_tokens=usage["total"]
            ),
        )

    async def count_text_tokens(self, text: str) -> int:
        """Return the tokens of a text; otherwise Inspect would load a tokenizer of OpenAI's from the network."""
        return len(self.policy.tokenizer.encode(text, add_special_tokens=False))

    def max_tokens(self) -> int | None:
        """Return the tokens of a reply where Inspect does not say."""
        return self.sampling.max_new_tokens

    def max_connections(self) -> int:
        """Return how many requests may run concurrently: the policy batches them."""
        return 64

    def _message(self, reply: Any) -> ChatMessageAssistant:
        calls = [
            ToolCall(id=id_, function=name, arguments=json.loads(arguments)) for id_, name, arguments in reply.calls
        ]
        thoughts = [ContentReasoning(reasoning=reply.thinking)] if reply.thinking else []
        return ChatMessageAssistant(
            content=[*thoughts, ContentText(text=reply.content)] if thoughts else reply.content,
            tool_calls=calls or None,
            source="generate",
            model=self.model_name,
            metadata={_EXACT: reply.sampled.text},
        )


_EXACT = "text"
"""Key of a message's metadata: the reply as our policy wrote it, which an environment of ours reads."""
_PASSED = (
    *("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls"),
)


@task(name="episodes")
def episodes(env_id: str, n: int = 100, seed: int = 0, split: str | None = "test", **kwargs: Any) -> Task:
    """Return episodes of an environment as a task of Inspect: those that `llm_envs.evaluate` plays with this seed.

    Args:
        env_id: A registered id, or "module:id".
        n: Number of episodes.
        seed: Decides which problems are played.
        split: The environment's split; None for one without splits.
        **kwargs: Further arguments of the environment.
    """
    arguments = kwargs if split is None else {**kwargs, "split": split}
    source = SeedSource(env_id, seed=seed, env_kwargs=arguments)
    samples = []
    for index in range(n):
        spec = source.spec(index)
        played = EnvTask(EnvMaker(env_id, arguments), spec.seed, None, EpisodeState())
        try:
            played.reset()
        finally:
            played.close()
        samples.append(
            Sample(
                id=index,
                input=[_from_api(message) for message in played.messages],
                metadata={"env_id": env_id, "env_kwargs": arguments, "seed": spec.seed},
            )
        )
    score = return_and_success()
    return Task(dataset=MemoryDataset(samples, name=env_id), solver=play_episode(), scorer=score, name=env_id)


@solver
def play_episode() -> Solver:
    """Play the sample's episode: the model replies, the environment answers, until it is over."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        sample, report, model = state.metadata, _Report(), get_model()
        make = EnvMaker(sample["env_id"], sample["env_kwargs"])
        played = EnvTask(make, sample["seed"], None, report)
        try:
            await anyio.to_thread.run_sync(played.reset)
            tools = [ToolInfo.model_validate(tool["function"]) for tool in played.tools]
            while not played.is_over and not state.completed:
                state.output = await model.generate(state.messages, tools=tools)
                reply = state.output.message
                state.messages.append(reply)
                report.exact = (reply.metadata or {}).get(_EXACT)
                answers = await anyio.to_thread.run_sync(played.step, _to_api(reply))
                state.messages += [_from_api(answer) for answer in answers]
        finally:
            await anyio.to_thread.run_sync(played.close)
        state.store.set("return", report.reward)
        state.store.set("success", report.is_success and played.is_over)
        return state

    return solve


@scorer(metrics={"success": [mean(), stderr()], "return": [mean(), stderr()]})
def return_and_success() -> Scorer:
    """Score an episode by the environment's rewards."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value={"success": float(state.store.get("success")), "return": state.store.get("return")})

    return score


class _Report(EpisodeState):
    """The state of an episode whose conversation Inspect keeps."""

    exact: str | None = None
    """The last reply as our policy wrote it; None for another model."""

    def exact_text(self, message: Mapping[str, Any]) -> str | None:
        """Return the reply as our policy wrote it."""
        return self.exact


def _load(name_or_path: str, engine: str) -> Any:
    if engine == "transformers":
        from llm_envs.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(name_or_path)
    if engine == "vllm":
        from llm_envs.policies.vllm.engine import VLLMEnginePolicy

        return VLLMEnginePolicy.from_pretrained(name_or_path)
    raise InvalidConfigError(f"llm-envs/{name_or_path}: engine is {engine!r}; known are transformers and vllm.")


def _to_api(message: ChatMessage) -> dict[str, Any]:
    """Return a message in the form of OpenAI's chat API."""
    data: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageTool):
        data["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            data["content"] = f"Error: {message.error.message}"
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        data["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in message.tool_calls
        ]
    if not isinstance(message.content, str):
        thoughts = [part.reasoning for part in message.content if isinstance(part, ContentReasoning)]
        if thoughts:
            data["reasoning_content"] = "\n".join(thoughts)
        others = {part.type for part in message.content} - {"text", "reasoning"}
        if others:
            raise InvalidConfigError(f"a message has {', '.join(sorted(others))}; a policy reads text only.")
    return data


def _from_api(data: Mapping[str, Any]) -> ChatMessage:
    if data["role"] == "tool":
        return ChatMessageTool(content=data["content"], tool_call_id=data["tool_call_id"])
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    return kinds[data["role"]](content=data["content"])


def _schema(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }
