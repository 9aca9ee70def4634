"""Adapters on servers: each is loaded where a turn needs it, and unloaded when it is unused.

A server that is restarted has none; its next turn finds out and brings the adapter along. Servers are not paused: a
running turn keeps the adapter that it began with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from llm_envs.errors import BridgeError, ContextFullError, LLMEnvsError, ModelError
from llm_envs.policies.vllm.adapter_policy import HasAdapters
from llm_envs.policies.vllm.adapters import Adapter, check_bare
from llm_envs.policies.vllm.control import ServerControl, ServerFacts, ServerState, VLLMControl, side_by_side
from llm_envs.policies.vllm.exchange import ServedCheckpoint
from llm_envs.policies.vllm.formats import SERVE_COMMAND, TurnRequest
from llm_envs.policies.vllm.http import AsyncClients, RetryableError
from llm_envs.types import Sampled, SamplingParams

__all__ = ["ServesAdapters"]


class ServesAdapters(HasAdapters):
    """The adapters of a client of servers."""

    weight_version: int
    _clients: AsyncClients
    followers: list[Callable[[ServedCheckpoint | Adapter], None]]
    n_adapters_kept: int = 1
    """Versions that stay loaded: further clients of these servers may still have turns with the earlier ones."""
    _control: ServerControl
    _endpoints: list[ServerState]

    @abstractmethod
    async def _try(self, turn: TurnRequest, session: str, adapter: Adapter | None) -> Sampled: ...

    @property
    def facts(self) -> list[ServerFacts]:
        """The servers' descriptions of themselves."""
        return [endpoint.facts for endpoint in self._endpoints if endpoint.facts is not None]

    async def sample_with(
        self,
        adapter: Adapter | None,
        prompt_ids: npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        seed: int,
        session: str,
    ) -> Sampled:
        """Sample one turn with an adapter; None: the present one."""
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens fills the context of {self.max_model_len}.")
        turn = TurnRequest(prompt_ids, params, min(params.max_new_tokens, room), seed, self.codec.stop_token_ids)
        async with self._clients.slot():
            return await self._try(turn, session, adapter)

    def send_adapter(self, adapter: Adapter) -> None:
        """Make all servers load an adapter, in parallel, and make it the present one; unload unused ones.

        If no server answers, the next turns wait until one is back, and load it.
        """
        self._load_on_all(adapter)
        self.follow_adapter(adapter)
        self._unload(self.shelf.drop_unused(self.n_adapters_kept))

    def load_adapter(self, adapter: Adapter) -> None:
        """Make all servers load an additional adapter, in parallel.

        Raises:
            ModelError: If a server refuses it.
            BridgeError: If none answers.
        """
        errors = self._load_on_all(adapter)
        if len(errors) == len(self._endpoints):
            raise BridgeError(f"no server loaded the adapter: {errors[0]}")

    def _load_on_all(self, adapter: Adapter) -> list[LLMEnvsError]:
        """Return the errors of servers that do not answer; raise if one refuses the adapter."""
        errors = side_by_side(lambda endpoint: self._load_adapter(endpoint, adapter), self._endpoints)
        if refused := [error for error in errors if isinstance(error, ModelError)]:
            self._exchange.delete_adapter(adapter)
            raise refused[0]
        self.shelf.add(adapter)
        return errors

    def follow_adapter(self, adapter: Adapter) -> None:
        """Make an adapter the present one; a server that lacks it loads it at the next turn."""
        self.shelf.present, self.weight_version = adapter, adapter.version
        for follow in self.followers:
            follow(adapter)

    def _unload(self, adapters: list[Adapter]) -> None:
        """Make all servers unload adapters, and delete those that were written here."""
        for endpoint in self._endpoints:
            try:
                for adapter in adapters:
                    with suppress(ModelError):  # it has been restarted
                        url = f"{endpoint.url}/v1/unload_lora_adapter"
                        self._control.ask(url, {"lora_name": adapter.name}, timeout_s=self._control.quick_s)
            except LLMEnvsError:  # it is down
                continue
        for adapter in adapters:
            self._exchange.delete_adapter(adapter)

    def _model_of(self, facts: ServerFacts, adapter: Adapter | None) -> str:
        """Return the server's name of its model, or of the model with an adapter."""
        if adapter is not None:
            return adapter.name
        check_bare(facts.device, max(self.shelf.n_loaded, len(facts.adapters)), facts.max_loras)
        return facts.model

    def _load_adapter(self, endpoint: ServerState, adapter: Adapter) -> None:
        """Make a server load an adapter that it lacks."""
        if not isinstance(self._control, VLLMControl):
            raise ModelError(f"{endpoint.url} is not vLLM's server, and adapters were run with vLLM only.")
        with endpoint.lock:
            facts = endpoint.facts or self._control.facts(endpoint.url)
            if adapter.name not in facts.adapters:
                endpoint.facts = _loaded(self._control, facts, adapter)


def _loaded(control: VLLMControl, facts: ServerFacts, adapter: Adapter) -> ServerFacts:
    """Make a server load an adapter; return its facts with it.

    Raises:
        ModelError: If the server refuses it.
        RetryableError: If it does not answer, or was restarted.
    """
    body, refusal = {"lora_name": adapter.name, "lora_path": str(adapter.path)}, None
    try:
        control.ask(f"{facts.url}/v1/load_lora_adapter", body)
    except LLMEnvsError as error:  # success is a text, not JSON
        refusal = error
    now = control.facts(facts.url)
    if now.process != facts.process:
        raise RetryableError(f"{facts.url} was restarted.")
    if adapter.name not in now.adapters:
        command = SERVE_COMMAND.format(model=facts.root)
        raise ModelError(
            f"{facts.url} does not load the adapter in {str(adapter.path)!r}: {refusal}. A server that takes adapters "
            f"is started as: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 {command} --enable-lora --max-lora-rank 16"
        )
    return now
