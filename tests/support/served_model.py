"""A real tiny model behind vLLM's HTTP interface: it samples, loads weights that it is sent, and takes adapters.

Turns are sampled one by one, so that other requests do not change a bit of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fake_server import Answer, Asked, FakeServer, completion, fake_server, vllm_answers
from peft import PeftModel
from safetensors.torch import load_file

from llm_envs.policies import TransformersPolicy
from llm_envs.policies.inference import load_model, load_tokenizer, token_logps
from llm_envs.rollout.sync import BackgroundLoop
from llm_envs.types import SamplingParams


class ServedModel:
    """Answers as `vllm serve` would, with samples of a folder's model.

    Args:
        folder: The model.
        **model: Facts that the server reports (`max_lora_rank=16`: it takes adapters).
    """

    def __init__(self, folder: str, **model: Any) -> None:
        self.tokenizer, self.model = load_tokenizer(folder), load_model(folder)
        self._loop, self._policies = (
            BackgroundLoop(),
            {"m": TransformersPolicy(self.model, self.tokenizer, max_batch_size=1)},
        )
        facts = {"root": folder, "max_model_len": self._policies["m"].max_model_len} | model
        self._others = vllm_answers(self.tokenizer, self._sample, **facts)

    def respond(self, asked: Asked, n_before: int) -> Answer:
        """Answer one request."""
        if asked.path == "/collective_rpc" and asked.body["method"] == "reload_weights":
            folder = Path(asked.body["kwargs"]["weights_path"])
            weights = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
            self._policies["m"].update_weights(weights.items(), n_before)
        if asked.path == "/v1/load_lora_adapter":
            adapted = PeftModel.from_pretrained(copy.deepcopy(self.model), asked.body["lora_path"])
            merged: Any = adapted.merge_and_unload()
            self._policies[asked.body["lora_name"]] = TransformersPolicy(merged, self.tokenizer, max_batch_size=1)
        return self._others(asked, n_before)

    def _sample(self, asked: Asked, n_before: int) -> Answer:
        body = asked.body
        if "prompt_logprobs" in body:
            return Answer(body={"choices": [self._scored(body["model"], *row) for row in enumerate(body["prompt"])]})
        filters = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
        params = SamplingParams(max_new_tokens=body["max_tokens"], **filters)
        prompt = np.array(body["prompt"], np.int32)
        turn = partial(self._policies[body["model"]].sample, prompt, params, seed=body["seed"], session="")
        sampled = self._loop.start(turn).result()
        choice = {"token_logprobs": sampled.logps.tolist()}
        return completion(sampled.token_ids.tolist(), logprobs=choice, finish_reason=sampled.finish_reason.value)

    def _scored(self, name: str, number: int, ids: list[int]) -> dict[str, Any]:
        logps = token_logps(self._policies[name].model, [np.array(ids)])[0].tolist()
        listed = [None, *({str(token): {"logprob": logp}} for token, logp in zip(ids[1:], logps[1:], strict=True))]
        return {"index": number, "prompt_logprobs": listed}


@contextmanager
def model_server(folder: str, **model: Any) -> Iterator[FakeServer]:
    """Serve the model of a folder."""
    served = ServedModel(folder, **model)
    with fake_server(served.respond) as server:
        yield server
