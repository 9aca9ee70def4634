"""A Ray cluster: the connection, whether its head answers, room for actors, and GPUs that are kept for an actor."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.rollout.workers.remote import CONNECT_S, split_address

__all__ = ["RayCluster", "needs_of"]

_HEAD_TIMEOUT_S = 3.0


class RayCluster(AbstractContextManager["RayCluster"]):
    """A connection to a cluster; leaving the block ends it if it was made here.

    Args:
        address: Address of the cluster. None: the one that is connected or can be found here, else a new one on this
            machine.

    Raises:
        InvalidConfigError: If no cluster answers at the address.
        MissingExtraError: If Ray is not installed.
    """

    def __init__(self, address: str | None) -> None:
        with extra_needed("RayCollector needs Ray; install it with: pip install 'llm-envs[cluster]'"):
            import ray
        self.ray: Any = ray
        self.can_grow = True
        """Whether nodes may join: not if this process has started the cluster."""
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect(address)
        # A client (`ray://`) need not reach the head itself.
        is_client = address is not None and "://" in address
        self.head: str | None = None if is_client else ray.get_runtime_context().gcs_address

    def _connect(self, address: str | None) -> None:
        if address is not None and ":" in address and "://" not in address:
            try:  # Ray tries for minutes
                socket.create_connection(split_address(address), timeout=CONNECT_S).close()
            except OSError as error:
                raise InvalidConfigError(f"no Ray cluster answers at {address!r}: {error}") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        try:
            self.ray.init(address=address or "auto", **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address is not None:
                raise InvalidConfigError(f"no Ray cluster answers at {address!r}: {error!s:.300}") from error
            self.ray.init(address="local", include_dashboard=False, **options)
            self.can_grow = False

    def __exit__(self, *exception: object) -> None:
        """End the connection if it was made here."""
        if self._is_ours:
            self.ray.shutdown()

    def answers(self) -> bool:
        """Return whether the head takes a connection."""
        if self.head is None:
            return True
        try:
            socket.create_connection(split_address(self.head), timeout=_HEAD_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def room(self, options: Mapping[str, Any]) -> int:
        """Return how many actors with these options fit on the nodes that the cluster has now."""
        needs = needs_of(options)
        return sum(
            int(min((node["Resources"].get(name, 0.0) / need for name, need in needs.items()), default=1))
            for node in self.ray.nodes()
            if _may_have(node, options)
        )

    @contextmanager
    def reserved(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield options by which an actor takes GPUs that are its own, on one node, until the block ends.

        An actor that follows it there takes the same ones. Without GPUs nothing is reserved.
        """
        if not options.get("num_gpus"):
            yield dict(options)
            return
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        rest = dict(options)
        labels = rest.pop("label_selector", None)
        group = placement_group(
            [needs_of(options)], strategy="STRICT_PACK", bundle_label_selector=[labels] if labels else None
        )
        try:
            yield rest | {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}
        finally:
            if self.answers():  # else the call would wait for it
                remove_placement_group(group)


def needs_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that an actor with these options takes."""
    needs = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 0)}
    return {name: need for name, need in (needs | dict(options.get("resources") or {})).items() if need}


def _may_have(node: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Return whether a node lives and has the labels. Conditions other than equality are left to Ray."""
    wanted = {k: v for k, v in (options.get("label_selector") or {}).items() if "!" not in v and "(" not in v}
    return node["Alive"] and wanted.items() <= node.get("Labels", {}).items()
