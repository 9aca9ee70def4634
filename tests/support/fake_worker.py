"""A model server with our real worker extension, whose tokens say which weights sampled them."""

import threading

import torch
from fake_server import Answer, completion, vllm_answers
from safetensors.torch import load_file, save_file

from llm_envs.policies.vllm.formats import EXTENSION
from llm_envs.policies.vllm.worker import WorkerExtension

N = 4096


def weights(value):
    """Weights of the "model": their first number is the token that it samples."""
    tensor = torch.arange(N, dtype=torch.float32)
    tensor[0] = value
    return [("w", tensor)]


def save_weights(folder, value):
    """Write a checkpoint; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights(value)), folder / "model.safetensors")
    return folder


class FakeWorker(WorkerExtension):
    """The worker, its runner and what surrounds them. Give `respond` to a `fake_server`."""

    def __init__(self, tokenizer, folder):
        self.model_runner, self.model, self.token = self, torch.nn.Linear(1, 1), 5
        self.model.config = None
        self.is_paused, self.process, self.tag, self.loads = False, "1", "default", []
        self.refuses = lambda asked: False
        """(request) -> whether it is answered by an error, after it was carried out if the answer is "lost"."""
        self._tokenizer, self._folder, self._lock = tokenizer, folder, threading.RLock()

    def reload_weights(self, weights_path=None, weights_iterator=None):
        """Take new weights, as vLLM's model runner does."""
        self.loads.append("whole" if weights_path else "deltas")
        tensors = dict(weights_iterator or load_file(f"{weights_path}/model.safetensors"))
        self.token = int(tensors["w"][0])

    def respond(self, asked, n_before):
        """Answer a request."""
        with self._lock:
            refused = self.refuses(asked)
            answer = Answer(500, {"error": f"no: {asked.headers.get('Authorization')}"}) if refused is True else None
            answer = answer or self._answer(asked, n_before)
        return Answer(drop=True) if refused == "lost" else answer

    def _answer(self, asked, n_before):
        if asked.path == "/update_weight_version":
            self.tag = asked.body["new_version"]
        elif asked.path in ("/pause", "/resume"):
            self.is_paused = asked.path == "/pause"
        elif asked.path == "/collective_rpc":
            try:
                getattr(self, asked.body["method"])(**asked.body["kwargs"])
            except Exception as error:
                return Answer(500, {"error": {"message": f"{type(error).__name__}: {error}"}})
        elif asked.path == "/v1/completions":
            return Answer(503, {"error": "paused"}) if self.is_paused else completion([self.token, 2])
        model = {"id": str(self._folder), "root": str(self._folder), "extension": EXTENSION}
        return vllm_answers(self._tokenizer, None, process=self.process, tag=self.tag, **model)(asked, n_before)
