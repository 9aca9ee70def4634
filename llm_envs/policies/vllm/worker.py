"""A worker extension that a vLLM server on a CPU needs to change its weights.

    vllm serve MODEL --worker-extension-cls llm_envs.policies.vllm.worker.WorkerExtension

Imported only in the server's process. `launcher.start_servers` starts servers with it.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from llm_envs.policies.inference.cpu import allow_amx
from llm_envs.policies.vllm.deltas import apply_delta
from llm_envs.policies.vllm.weights import repacking

__all__ = ["WorkerExtension"]

if "vllm" in sys.modules:  # in a server, which makes its weight transfer after it has loaded this extension
    allow_amx()
    with suppress(ImportError):  # a vLLM without these classes: it refuses the backend, and all else works
        from llm_envs.policies.vllm.gloo import register_gloo

        register_gloo()


class WorkerExtension:
    """Methods that vLLM adds to its workers, called through `/collective_rpc`."""

    model_runner: Any
    llm_envs_tag: str | None = None
    """Of the model's weights; None before the first change, and after one that failed."""
    llm_envs_copy: tuple[str, dict[str, Any]] | None = None
    """With deltas: a tag, and its weights in the CPU's memory."""
    llm_envs_changes: tuple[dict[str, list[tuple[int, str]]], dict[str, list[tuple[int, str]]]] = ({}, {})
    """Of the turns that ran when the weights changed last, and the time before: request -> see `llm_envs_versions`."""

    def llm_envs_bring_up(self, folder: str, whole_tag: str, deltas: list[dict[str, str]]) -> None:
        """Have the weights of a checkpoint and of its deltas; nothing is done if this worker has them.

        Args:
            folder: The full checkpoint.
            whole_tag: Its tag.
            deltas: In order, each with the `tag` of its version, its `sha256`, and its file's `path` or, in base64, its
                `data`. One that the worker has applied needs neither.

        Raises:
            ValueError: If a file is missing or not complete. Nothing was changed.
        """
        tags = [whole_tag, *(delta["tag"] for delta in deltas)]
        if self.llm_envs_tag == tags[-1]:
            return
        if not deltas:
            _files(Path(folder))
            self.llm_envs_copy = None
            self._llm_envs_load(tags[-1], weights_path=folder)
            return
        tag, weights = self.llm_envs_copy or ("", {})
        if tag not in tags:
            tag, weights = whole_tag, _read(Path(folder))
        changes = [_delta(delta) for delta in deltas[tags.index(tag) :]]  # all of them before the first is applied
        self.llm_envs_copy = None
        for change in changes:
            apply_delta(weights, change)
        self.llm_envs_copy = tags[-1], weights
        self._llm_envs_load(tags[-1], weights_iterator=iter(weights.items()))

    def _llm_envs_load(self, tag: str, **source: Any) -> None:
        self.llm_envs_tag = None
        with repacking(self.model_runner.model):
            self.model_runner.reload_weights(**source)
        self.llm_envs_note(tag)

    def llm_envs_note(self, tag: str | None) -> None:
        """Note the tag of weights that were loaded, and for each running turn the tokens before them.

        Args:
            tag: Of the weights; None before a change that others make.
        """
        self.llm_envs_tag = tag
        if tag is None:
            return
        before, changes = self.llm_envs_changes[0], {}
        for name, request in getattr(self.model_runner, "requests", {}).items():
            n_tokens = sum(token >= 0 for token in request.output_token_ids)  # -1: not sampled yet
            changes[name] = [*before.get(name, []), (n_tokens, tag)]
        self.llm_envs_changes = changes, before

    def llm_envs_versions(self, request_id: str) -> list[tuple[int, str]]:
        """Return the changes of the weights during a turn: its tokens before each, and the tag of the new weights.

        Args:
            request_id: The `id` of the server's answer. It must not be older than one more change.
        """
        matching = (
            changes for names in self.llm_envs_changes for name, changes in names.items() if name.startswith(request_id)
        )
        return next(matching, [])


def _delta(delta: dict[str, str]) -> bytes:
    if "path" in delta:
        data = Path(delta["path"]).read_bytes()
    elif "data" in delta:
        data = base64.b64decode(delta["data"])
    else:
        raise ValueError(f"this worker lacks the delta {delta['tag']!r}, which did not come with the request.")
    if hashlib.sha256(data).hexdigest() != delta["sha256"]:
        raise ValueError(f"the delta {delta['tag']!r} has another checksum: it is not complete.")
    return data


def _read(folder: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint, in memory that can be changed."""
    from safetensors.torch import load_file

    return {name: value.clone() for file in _files(folder) for name, value in load_file(file).items()}


def _files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint. vLLM notices that there are none only when it has begun to change the model."""
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise ValueError(f"{folder} has no *.safetensors here: the server must see the trainer's folder under this path.")
