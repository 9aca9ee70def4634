"""Our client of SGLang against the contract of its server module (`proof/sglang.py`): every request is decoded by
it, every reply is encoded by it. The engine behind it is not SGLang's.

`make test-real-model` fetches the contract first; elsewhere these tests are skipped without it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_server import Answer, Asked, FakeServer, fake_server

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import VLLMServerPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import FinishReason, Sampled, SamplingParams
from proof.sglang import FOLDER

IS_REQUIRED = os.environ.get("LLM_ENVS_REQUIRE_REAL_MODEL") == "1"
WHY = f"{FOLDER} has no contract: python -m proof.sglang"
pytestmark = [pytest.mark.real, pytest.mark.skipif(not FOLDER.is_dir() and not IS_REQUIRED, reason=WHY)]

TOKENIZER = tiny_tokenizer()
PROMPT = np.array([3, 4, 5], dtype=np.int32)
FINISHES: dict[str, dict[str, Any]] = {
    "token": {"type": "stop", "matched": 2},
    "text": {"type": "stop", "matched": "X"},
    "length": {"type": "length", "length": 3},
}


@pytest.fixture(scope="module")
def api() -> ModuleType:
    pytest.importorskip("msgspec")
    spec = importlib.util.spec_from_file_location("sglang_api_types", FOLDER / "api_types.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def fields_of(name: str) -> dict[str, bool]:
    """Return the fields of a class of io_struct.py, and whether each must be given."""
    tree = ast.parse((FOLDER / "io_struct.py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [line for line in found.body if isinstance(line, ast.AnnAssign)]
    return {line.target.id: line.value is None for line in fields if isinstance(line.target, ast.Name)}


class Contract:
    """The answers of SGLang's server, encoded by its types."""

    def __init__(self, api: ModuleType, model: Path) -> None:
        self.api, self.model, self.tag, self.finish = api, str(model), "default", "token"

    def __call__(self, asked: Asked, n_before: int) -> Answer:
        api = self.api
        if asked.path == "/generate":
            try:
                request = api.GenerateRequest.from_json_value(asked.body)
            except api.JsonContractError as error:
                return Answer(400, {"error": str(error)})
            assert request.return_logprob is True and request.input_ids == PROMPT.tolist()
            meta = {"id": "1", "prompt_tokens": 3, "completion_tokens": 3, "weight_version": self.tag}
            meta |= {"output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, "b"], [-0.125, 2, None]]}
            meta |= {"finish_reason": FINISHES[self.finish], "cached_tokens": 0}
            reply = api.GenerateResponse.from_json_value({"text": "ab", "output_ids": [5, 6, 2], "meta_info": meta})
            return Answer(body=reply.to_json_value())
        if asked.path == "/update_weights_from_disk":
            fields = fields_of("UpdateWeightFromDiskReqInput")
            assert asked.body.keys() <= fields.keys()
            assert {name for name, is_needed in fields.items() if is_needed} <= asked.body.keys()
            self.model, self.tag = asked.body["model_path"], asked.body["weight_version"]
            assert {"success", "message"} <= fields_of("UpdateWeightFromDiskReqOutput").keys()
            return Answer(body={"success": True, "message": "", "num_paused_requests": 0})
        model = api.GetModelInfoResponse(model_path=self.model, weight_version=self.tag, is_generation=True)
        server = api.GetServerInfoResponse(model_path=self.model, max_context_length=64)
        replies = {"/get_model_info": model, "/model_info": model, "/server_info": server, "/get_server_info": server}
        if asked.path == "/health":
            return Answer(body="")
        return Answer(body=replies[asked.path].to_json_value()) if asked.path in replies else Answer(404, {})


@pytest.fixture
def server(api: ModuleType, tmp_path: Path) -> Iterator[tuple[FakeServer, Contract]]:
    tiny_model(TOKENIZER).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    contract = Contract(api, tmp_path / "model")
    with fake_server(contract) as fake:
        yield fake, contract


def sample(policy: VLLMServerPolicy, **params: Any) -> Sampled:
    async def run() -> Sampled:
        settings = SamplingParams(max_new_tokens=4, **params)
        try:
            return await asyncio.wait_for(policy.sample(PROMPT, settings, seed=2**40, session="a"), timeout=120)
        finally:
            await policy._clients.aclose()

    return asyncio.run(run())


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("finish", "reason"),
    [("token", FinishReason.STOP), ("text", FinishReason.STOP_STRING), ("length", FinishReason.LENGTH)],
)
def test_a_turn_is_asked_for_and_read_by_the_contract(
    server: tuple[FakeServer, Contract], finish: str, reason: FinishReason
) -> None:
    fake, contract = server
    contract.finish = finish
    policy = VLLMServerPolicy(fake.url, TOKENIZER, server="sglang")
    turn = sample(policy, temperature=0.7, stop_strings=("X",), stop_token_ids=(7,))
    assert (turn.token_ids.tolist(), turn.logps.tolist()) == ([5, 6, 2], [-0.5, -0.25, -0.125])
    assert turn.finish_reason is reason


def test_the_length_of_a_context_is_the_contracts(server: tuple[FakeServer, Contract]) -> None:
    policy = VLLMServerPolicy(server[0].url, TOKENIZER, server="sglang")
    sample(policy)
    assert policy.max_model_len == 64


def test_an_update_from_disk_has_the_fields_of_the_contract(server: tuple[FakeServer, Contract]) -> None:
    fake, contract = server
    policy = VLLMServerPolicy(fake.url, TOKENIZER, server="sglang")
    sample(policy)
    model = tiny_model(TOKENIZER)
    policy.update_weights(model.named_parameters(), 1)
    assert len(fake.paths("/update_weights_from_disk")) == 1 and contract.tag != "default"
    assert sample(policy).weight_version == 1


def test_weights_by_tensor_are_refused_by_name(server: tuple[FakeServer, Contract]) -> None:
    """The contract wants pickled tensors of the server's process group: `UpdateWeightsFromTensorReqInput`."""
    assert "serialized_named_tensors" in fields_of("UpdateWeightsFromTensorReqInput")
    with pytest.raises(InvalidConfigError, match=r"transport='delta'.*server='sglang'"):
        VLLMServerPolicy(server[0].url, TOKENIZER, server="sglang", transport="delta")
