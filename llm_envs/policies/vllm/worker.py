"""A worker extension, which a vLLM server needs besides its own API to change its weights on a CPU.

    vllm serve MODEL --worker-extension-cls llm_envs.policies.vllm.worker.WorkerExtension

Imported only in the server's process. Servers that `vllm_serve.start_servers` starts have it.
"""

from __future__ import annotations

from typing import Any

from llm_envs.policies.vllm.engine import repack_tied_head

__all__ = ["EXTENSION", "WorkerExtension"]

EXTENSION = f"{__name__}.WorkerExtension"
"""The value for `--worker-extension-cls`."""


class WorkerExtension:
    """Methods that vLLM adds to its workers, called through `/collective_rpc`."""

    model_runner: Any

    def llm_envs_reload(self, weights_path: str) -> None:
        """Load the weights of a checkpoint, and pack an output layer again that is tied to the embedding."""
        self.model_runner.reload_weights(weights_path=weights_path)
        if next(self.model_runner.model.parameters()).device.type == "cpu":
            repack_tied_head(self.model_runner.model)
