"""Episodes in Ray actors: as without Ray, whatever happens to the actors, their nodes and the head."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from document_runs import Made, run_page
from documents import ROOT, read_page
from fake_server import Answer, Asked, fake_server

from llm_envs.cli.main import main
from llm_envs.data.folder import read_manifest
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.policies import ConstantPolicy, OraclePolicy
from llm_envs.policies.scripted import before_turn, with_latency
from llm_envs.rollout import Collector, EnvChoice, RolloutLimits, read_trajectories
from llm_envs.rollout.collect_run import collect_run
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.rollout.ray_collector import HEAD_S, MAX_LOSSES, RayCollector
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv

pytestmark = [pytest.mark.ray, pytest.mark.slow]

REPLIES = ["1", "2", "3", "4", "5", "6", "7", "8", "9"]
TASKS = ["llm/Calculator-v0", "llm/GuessNumber-v0"]


def oracle() -> Any:
    return OraclePolicy(), None


def tokens(latency_s: float = 0.0) -> Any:
    policy = HashingTokenPolicy(ByteCodec(), REPLIES)
    return (with_latency(policy, latency_s) if latency_s else policy), ByteCodec()


@pytest.fixture(scope="module", autouse=True)
def ray() -> Any:
    """Ray, to which the functions and classes of this file go by value."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray


@pytest.fixture
def cluster(ray: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head plays nothing, and this process connected to it."""
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # nodes say that they have GPUs, and Ray compares
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def node(cluster: Any) -> Any:
    cluster.add_node(num_cpus=2)
    return cluster


def plain(envs: Any, make_player: Callable[[], Any], n: int = 12, **settings: Any) -> list[Any]:
    policy, codec = make_player()
    with Collector(envs, policy, codec=codec, progress=False, **settings) as collector:
        return collector.collect(n, 2)


def assert_same(groups: Any, others: Any) -> None:
    """The same trajectories; only how often an episode was begun may differ."""
    for group, other in zip(groups, others, strict=True):
        for one, two in zip(group, other, strict=True):
            assert replace(one, metadata={}).to_json(timings=False) == replace(two, metadata={}).to_json(timings=False)


@pytest.mark.smoke
def test_the_same_trajectories(node: Any) -> None:
    for envs, player in ((TASKS, oracle), (NumbersEnv, tokens)):
        with RayCollector(envs, player, n_actors=2, seed=3, progress=False) as collector:
            assert collector.policy_name in ("OraclePolicy", "HashingTokenPolicy")
            assert_same(collector.collect(12, 2), plain(envs, player, seed=3))
            assert collector.stats.accepted == collector.stats.submitted == 24


def test_an_actor_that_cannot_play_ends_the_episodes_of_the_others(node: Any, tmp_path: Path) -> None:
    """The first actor's episodes take an hour; the second one's player fails."""

    def player() -> Any:
        try:
            (tmp_path / "first").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(3.0)  # the other one plays
            raise ValueError("no model here") from None
        return tokens(3600.0)

    started = time.monotonic()
    with (
        RayCollector(NumbersEnv, player, n_actors=2, progress=False) as collector,
        pytest.raises(ValueError, match="no model here"),
    ):
        collector.collect(4, 2)
    assert time.monotonic() - started < 300


def test_filters_streams_and_limits(node: Any) -> None:
    settings: dict[str, Any] = {"group_filter": create_spread_filter(), "limits": RolloutLimits(max_turns=2)}
    with RayCollector(NumbersEnv, tokens, n_actors=2, progress=False, **settings) as collector:
        assert_same(collector.collect(6, 2), plain(NumbersEnv, tokens, 6, **settings))
    with RayCollector(NumbersEnv, tokens, n_actors=2, progress=False) as collector:
        assert_same(list(collector.stream(2, n_groups=12)), plain(NumbersEnv, tokens))


@pytest.mark.smoke
def test_a_run_is_that_of_one_process(node: Any, tmp_path: Path) -> None:
    """Begun with Ray and resumed without it."""
    run = partial(collect_run, NumbersEnv, group_size=2)
    make = partial(RayCollector, n_actors=2)
    done = run(tokens, out=tmp_path / "ray", n_groups=10, make_collector=make)
    assert (done.n_finished, done.n_failed) == (20, 0)
    policy, codec = tokens()
    assert run(policy, codec=codec, out=tmp_path / "ray", n_groups=12, resume=True).n_before == 20
    run(policy, codec=codec, out=tmp_path / "plain", n_groups=12)
    assert read_manifest(tmp_path / "ray").settings == read_manifest(tmp_path / "plain").settings
    both = [sorted(read_trajectories(tmp_path / name), key=key_of) for name in ("ray", "plain")]
    assert_same([both[0]], [both[1]])


def key_of(trajectory: Any) -> Any:
    return trajectory.group_id, trajectory.member


class WaitsEnv(NumbersEnv):
    """Begins its last episodes once a file is there."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        while seed == self.last and not Path(self.gate).exists():
            time.sleep(0.05)
        return super().reset(seed=seed, options=options)

    last: int | None = None
    gate = ""


def test_nodes_that_are_killed_at_random(cluster: Any, tmp_path: Path) -> None:
    """No episode is lost, none is there twice, and all are those of a run without Ray."""
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    usual = plain(NumbersEnv, tokens, 600)
    WaitsEnv.last, WaitsEnv.gate = usual[-1].seed, str(tmp_path / "gate")
    rng, n_killed, seen = random.Random(0), 0, []
    player = partial(tokens, 0.1)
    settings: dict[str, Any] = {"max_concurrency": 8, "on_trajectory": seen.append, "progress": False}
    waiting = EnvChoice("NumbersEnv", factory=WaitsEnv)
    with RayCollector(waiting, player, n_actors=2, **settings) as collector, ThreadPoolExecutor(1) as pool:
        groups = pool.submit(collector.collect, 600, 2)
        try:
            while not groups.done() and n_killed < 4:  # here, because Ray adds nodes in the main thread only
                time.sleep(2.0)
                cluster.remove_node(nodes.pop(rng.randrange(len(nodes))), allow_graceful=False)
                n_killed += 1
                nodes.append(cluster.add_node(num_cpus=1))
                if n_killed == 2:
                    Path(WaitsEnv.gate).touch()
        finally:
            Path(WaitsEnv.gate).touch()
        assert_same(groups.result(), usual)
    assert n_killed >= 2
    assert len(seen) == len({key_of(trajectory) for trajectory in seen}) == 1200


class KillsEnv(NumbersEnv):
    """Kills its process in the fifth episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed == self.deadly:
            os._exit(1)
        return super().reset(seed=seed, options=options)

    deadly: int | None = None


@pytest.mark.smoke
def test_an_episode_that_kills_its_actors_fails_alone(node: Any) -> None:
    usual = plain(NumbersEnv, tokens)
    KillsEnv.deadly = usual[4].seed
    deadly = EnvChoice("NumbersEnv", factory=KillsEnv)
    with RayCollector(deadly, tokens, n_actors=2, max_retries=0, progress=False) as collector:
        groups = collector.collect(12, 2)
    for trajectory in groups[4]:
        assert trajectory.error is not None and f"{MAX_LOSSES} actors were lost" in trajectory.error.message
    others = [group for index, group in enumerate(groups) if index != 4]
    assert all(trajectory.status == "ok" for group in others for trajectory in group)


class WhereEnv(NumbersEnv):
    """Says on which node it is, and which GPUs it sees."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        import ray

        _, info = super().reset(seed=seed, options=options)
        return f"{ray.get_runtime_context().get_node_id()} {os.environ.get('CUDA_VISIBLE_DEVICES')}", info


ONE_TURN = {"limits": RolloutLimits(max_turns=1), "progress": False}


def where(groups: Any, env_id: str = "where") -> set[tuple[str, str]]:
    """The nodes and GPUs that episodes of `WhereEnv` had."""
    said = {t.messages[-2].content for group in groups for t in group if t.env_id == env_id}
    return {(text.split()[0], text.split()[1]) for text in said}


def until(is_enough: Callable[[set[tuple[str, str]]], bool], collector: RayCollector) -> set[tuple[str, str]]:
    """Play until the latest groups of `WhereEnv` were where they should be, for two minutes at most."""
    deadline = time.monotonic() + 120
    while not is_enough(found := where(collector.collect(8))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def test_an_environment_that_needs_a_label(cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    special = cluster.add_node(num_cpus=1, labels={"disk": "ssd"})
    envs = [EnvChoice("anywhere", factory=NumbersEnv), EnvChoice("ssd", factory=WhereEnv)]
    labels = {"ssd": {"disk": "ssd"}}
    with RayCollector(envs, one, labels=labels, n_actors=1, **ONE_TURN) as collector:
        assert {node for node, _ in where(collector.collect(20), "ssd")} == {special.node_id}


def one() -> Any:
    return ConstantPolicy("1"), None


WHERE = EnvChoice("where", factory=WhereEnv)


def gpu_groups() -> list[tuple[str, str]]:
    """The strategy and the state of each placement group so far."""
    from ray.util import placement_group_table

    return [(group["strategy"], group["state"]) for group in placement_group_table().values()]


def test_actors_with_one_gpu_each_have_different_ones(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=2, num_gpus=2)
    with RayCollector(WHERE, one, actor_options={"num_gpus": 1}, max_concurrency=1, **ONE_TURN) as collector:
        assert until(lambda found: len(found) == 2, collector) == {(node.node_id, "0"), (node.node_id, "1")}
        assert gpu_groups() == [("STRICT_PACK", "CREATED")] * 2
    assert gpu_groups() == [("STRICT_PACK", "REMOVED")] * 2


def test_the_gpus_of_an_actor_are_on_one_node_also_after_that_is_lost(cluster: Any) -> None:
    cluster.add_node(num_cpus=1, num_gpus=1)
    nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1, num_gpus=2) for _ in range(2))}
    with RayCollector(WHERE, one, n_actors=1, actor_options={"num_gpus": 2}, **ONE_TURN) as collector:
        (first,) = where(collector.collect(4))
        cluster.remove_node(nodes.pop(first[0]), allow_graceful=False)
        (second,) = until(lambda found: first not in found, collector)  # an actor outlives its node by a moment
    assert first[1] == second[1] == "0,1" and second[0] in nodes
    with RayCollector(WHERE, one, actor_options={"num_gpus": 2}, **ONE_TURN) as collector:
        assert where(collector.collect(4)) == {second}  # room for one, although there are three GPUs


def test_what_no_node_has_is_an_error(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_envs.rollout.ray_collector.NOWHERE_S", 1.0)
    for _ in range(2):
        node = cluster.add_node(num_cpus=1, num_gpus=2)
    with pytest.raises(BridgeError, match=r"\{'CPU': 1, 'GPU': 3\}\."):
        RayCollector(WHERE, one, actor_options={"num_gpus": 3})
    with pytest.raises(BridgeError, match=r"labels \{'disk': 'ssd'\}\."):
        RayCollector(WHERE, one, labels={"where": {"disk": "ssd"}})
    assert {state for _, state in gpu_groups()} == {"REMOVED"}
    with RayCollector(WHERE, one, n_actors=1, **ONE_TURN) as collector:
        assert len(collector.collect(2)) == 2
        for found in cluster.worker_nodes - {node}:
            cluster.remove_node(found, allow_graceful=False)
        cluster.remove_node(node, allow_graceful=False)
        with pytest.raises(BridgeError, match=r"\(--resume\)"):
            collector.collect(1000)


def test_gpus_and_labels_through_the_command(
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two nodes, of which only one has the label; each actor has both GPUs of its node."""
    from ray.util import placement_group_table

    monkeypatch.setattr("llm_envs.rollout.ray_collector.NOWHERE_S", 1.0)
    cluster.add_node(num_cpus=1, num_gpus=2)
    special = cluster.add_node(num_cpus=1, num_gpus=2, labels={"disk": "ssd"})
    command = ["collect", "llm/Calculator-v0", "-n", "4", "--ray", cluster.address, "--ray-actors", "1", "--out"]

    def labels(**wanted: str) -> list[str]:
        return ["--ray-labels", json.dumps({"llm/Calculator-v0": wanted})]

    assert main([*command, str(tmp_path / "a"), "--ray-gpus", "2", *labels(disk="ssd")]) == 0
    assert len(list(read_trajectories(tmp_path / "a"))) == 4
    (group,) = placement_group_table().values()
    assert [(bundle["GPU"], bundle["CPU"]) for bundle in group["bundles"].values()] == [(2.0, 1.0)]
    assert set(group["bundles_to_node_id"].values()) == {special.node_id}
    assert main([*command, str(tmp_path / "b"), "--ray-gpus", "3"]) == 1
    assert main([*command, str(tmp_path / "b"), *labels(disk="none")]) == 1
    gc.collect()
    assert "never retrieved" not in caplog.text
    said = capsys.readouterr().err
    assert "each needs {'CPU': 1, 'GPU': 3}." in said and "the labels {'disk': 'none'}." in said


def chat_api(asked: Asked, n_before: int) -> Answer:
    """A model that guesses by what it reads."""
    if asked.path != "/v1/chat/completions":
        return Answer(404)
    number = int(hashlib.sha256(json.dumps(asked.body["messages"]).encode()).hexdigest(), 16) % 100
    message = {"role": "assistant", "content": format_answer(number)}
    return Answer(body={"choices": [{"message": message, "finish_reason": "stop"}]})


def test_a_server_by_its_address(tmp_path: Path) -> None:
    """The actors are clients of a chat API."""
    with fake_server(chat_api) as server:
        command = ["collect", "llm/GuessNumber-v0", "--model", "m", "--engine", "api", "--url", server.url, "-n", "6"]
        assert main([*command, "--out", str(tmp_path / "plain")]) == 0
        n_plain = len(server.asked)
        assert main([*command, "--out", str(tmp_path / "ray"), "--ray", "--ray-actors", "2"]) == 0
        assert len(server.asked) == 2 * n_plain > 12
    both = [sorted(read_trajectories(tmp_path / name), key=key_of) for name in ("ray", "plain")]
    assert_same([both[0]], [both[1]])


def test_a_slow_writer_slows_the_actors_down(node: Any, tmp_path: Path) -> None:
    """Never more episodes have begun than were received, and those that the actors may have open."""
    most = 0

    def player() -> Any:
        async def note(_: Any) -> None:
            (tmp_path / f"{os.getpid()}-{time.monotonic_ns()}").touch()

        return before_turn(ConstantPolicy("1"), note), None

    n_received = 0

    def write(_: Any) -> None:
        nonlocal most, n_received
        most = max(most, len(list(tmp_path.iterdir())) - n_received)
        n_received += 1
        time.sleep(0.02)

    limits = RolloutLimits(max_turns=1)
    with RayCollector(
        NumbersEnv, player, n_actors=2, max_concurrency=4, limits=limits, on_trajectory=write, progress=False
    ) as collector:
        collector.collect(60)
    assert 0 < most <= 2 * 4 + 1


def fails() -> Any:
    raise ValueError("there is no such model")


def test_bad_input(node: Any) -> None:
    with pytest.raises(ValueError, match="no such model"):
        RayCollector(NumbersEnv, fails, n_actors=1)
    with pytest.raises(InvalidConfigError, match="over_sampling"):
        RayCollector(NumbersEnv, oracle, over_sampling=1.5)
    with pytest.raises(InvalidConfigError, match="at least 1"):
        RayCollector(NumbersEnv, oracle, max_concurrency=0)


def test_nobody_at_the_address() -> None:
    with pytest.raises(InvalidConfigError, match=r"'127\.0\.0\.1:1'"):
        RayCollector(NumbersEnv, oracle, address="127.0.0.1:1")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a cluster of this machine, which the command starts and ends."""
    command = ["collect", "llm/Calculator-v0", "-n", "6", "--out"]
    assert main([*command, str(tmp_path / "ray"), "--ray", "--ray-actors", "1"]) == 0
    assert main([*command, str(tmp_path / "plain")]) == 0
    both = [sorted(read_trajectories(tmp_path / name), key=key_of) for name in ("ray", "plain")]
    assert_same([both[0]], [both[1]])
    assert read_manifest(tmp_path / "ray").settings == read_manifest(tmp_path / "plain").settings
    evaluate = ["eval", "llm/Calculator-v0", "--policy", "oracle", "-n", "6", "--out"]
    for n in ("6", "8"):
        evaluate[evaluate.index("-n") + 1] = n
        assert main([*evaluate, str(tmp_path / "eval"), "--ray", "--ray-actors", "1", "--resume"]) == 0
    assert "100.0%" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "no"), "--ray-actors", "1"]) == 2
    assert main([*command, str(tmp_path / "no"), "--ray", "--model", str(tmp_path), "--serve", "1"]) == 2
    (tmp_path / "config.json").write_text("{}")  # so that the folder holds a model
    model = ["--ray", "--ray-gpus", "2", "--model", str(tmp_path), "--policy", "transformers"]
    assert main([*command, str(tmp_path / "no"), *model]) == 2
    assert "--ray-gpus 2: only --engine vllm plays on several GPUs" in capsys.readouterr().err


def test_blocks_that_need_ray_run(tmp_path: Path) -> None:
    page = read_page((ROOT / "docs/guides/machines.md").read_text(encoding="utf-8"), "machines.md")
    here = "tests/llm_envs/rollout/test_ray_collector.py::test_blocks_that_need_ray_run"
    assert any(here in block.said.get("run by", "") for block in page.blocks)
    run_page(page, tmp_path, Made(tmp_path), named=here)


def test_a_head_that_dies(ray: Any, tmp_path: Path) -> None:
    """The run ends with an error that says how to go on; resumed on a new head, it has all episodes once."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    command = ["collect", "llm/GuessNumber-v0", "--policy", "random", "-n", "800", "--out", str(tmp_path / "run")]
    command += ["--ray-actors", "1", "--max-step-s", "30"]
    process = subprocess.Popen(
        [sys.executable, "-m", "llm_envs.cli", *command, "--ray", cluster.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not any(path.stat().st_size > 100_000 for path in (tmp_path / "run").glob("*.jsonl")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        cluster.shutdown()
        _, said = process.communicate(timeout=HEAD_S + 300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1 and "has not answered for 20 s" in said and "--resume" in said
    n_before = len(list(read_trajectories(tmp_path / "run")))
    assert 0 < n_before < 800
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        assert main([*command, "--resume", "--ray", cluster.address]) == 0
    finally:
        ray.shutdown()
        cluster.shutdown()
    found = [key_of(trajectory) for trajectory in read_trajectories(tmp_path / "run")]
    assert len(found) == len(set(found)) == 800
