"""The Kubernetes manifest: its commands are ours, and what its parts name exists. (No cluster runs it here.)"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_envs.cli.main import create_parser
from llm_envs.data.shards import Shard

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = ROOT / "examples" / "kubernetes" / "llm-envs.yaml"
PARTS: dict[tuple[str, str], Any] = {
    (part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
}


def pods() -> Iterator[tuple[str, Any]]:
    """Yield the name and the template of every pod."""
    for (_, name), part in PARTS.items():
        if "template" in part["spec"]:
            yield name, part["spec"]["template"]


def command(name: str) -> list[str]:
    (container,) = dict(pods())[name]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def test_the_collectors_are_shards_of_one_run() -> None:
    job = PARTS["Job", "collect"]["spec"]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "3") for word in command("collect")]
    options = create_parser("collect").parse_args(words[1:])
    assert options.shard == Shard(3, job["completions"]) and options.resume and job["completionMode"] == "Indexed"


def test_the_environment_servers() -> None:
    options = create_parser("serve-envs").parse_args(command("environments")[1:])
    assert (options.host, options.port, options.workers) == ("0.0.0.0", 7100, 32)


def test_the_trainer() -> None:
    pytest.importorskip("trl")
    from llm_envs.trainers.cli.commands import KINDS
    from llm_envs.trainers.cli.parser import TrainingParser

    (container,) = dict(pods())["train"]["spec"]["containers"]
    assert 'exec llm-envs train grpo "$@" --resume-from-checkpoint=' in container["command"][2]
    settings = TrainingParser(KINDS["grpo"]).parse_args([*container["args"], "--resume-from-checkpoint=false"])
    assert settings.vllm_mode == "server" and settings.vllm_exchange_dir == "/shared/weights"
    named = [*settings.vllm_server_urls, *(f"http://{address}" for address in settings.env_servers)]
    for url in named:
        pod, _, service = url.removeprefix("http://").partition(":")[0].partition(".")
        owner, _, index = pod.rpartition("-")
        assert int(index) < PARTS["StatefulSet", owner]["spec"]["replicas"]
        assert PARTS["StatefulSet", owner]["spec"]["serviceName"] == service
        ports = [port["port"] for port in PARTS["Service", service]["spec"]["ports"]]
        assert int(url.rpartition(":")[2]) in ports


def test_what_is_named_exists() -> None:
    for name, template in pods():
        labels = template["metadata"]["labels"]
        assert labels == {"app": name, "part-of": "llm-envs"}
        (container,) = template["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes.keys()
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in PARTS
        assert " /shared" not in shlex.join(command(name)) or "shared" in volumes
    for (kind, _), part in PARTS.items():
        if kind == "Service":
            assert part["spec"]["selector"]["app"] in dict(pods())
