"""A worker extension that a vLLM server on a CPU needs to change its weights.

    vllm serve MODEL --worker-extension-cls llm_envs.policies.vllm.worker.WorkerExtension

Imported only in the server's process. `launcher.start_servers` starts servers with it.
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
        """Load the weights of a checkpoint, and pack an output layer that is tied to the embedding again."""
        self.model_runner.reload_weights(weights_path=weights_path)
        if next(self.model_runner.model.parameters()).device.type == "cpu":
            repack_tied_head(self.model_runner.model)
